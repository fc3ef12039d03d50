"""The parts of claims and hypotheses: an example of each function and class, as it is printed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import ModuleType
from typing import Any

from mcfsim.report.tables import markdown_table
from mcfsim.rounding import Mode
from mcfsim.theorems import claims, hypotheses, logic
from mcfsim.theorems.logic import Proposition, Result, Term, Word, written
from mcfsim.theorems.logic.notation import LEGEND
from mcfsim.theorems.statement import Claim, Hypothesis

#: Other names that the examples may use: two operands, two results, an operand of several words.
NAMES: Mapping[str, Any] = {
    "Fraction": Fraction,
    "Mode": Mode,
    "a": Word("a"),
    "b": Word("b"),
    "s": Result(0, "s"),
    "e": Result(1, "e"),
}
CLAIMS = {
    "claim(abs(e) <= abs(b))": "",
    "exact_sum()": "",
    'exactly(product_of("a", "b"))': "",
    'exactly(quotient_of("a", "b"))': "",
    "normalised()": "",
    "double_word_to_even()": "",
    'same_results("Grow(x, a)", "DWPlusFP(x, a)")': "",
    'finite_result(0, "s")': "",
    "nonoverlapping_results()": "",
    "nonoverlapping_results(2)": "",
    "strongly_nonoverlapping_results()": "",
    'all_of(exact_sum(), finite_result(1, "e"))': "",
    'relative_error(3, sum_of("x", "y"))': "",
    'relative_error(Fraction(7, 2), quotient_of("x", "y"))': "",
    'relative_error(1, product_of("a", "b"), unit=1)': "",
    'error_relative_to(2, sum_of("x"), magnitudes_of("x"))': "",
    "bounded(e, abs(a) + abs(b), 1, unit=1)": "",
    "bounded(e, Ulp(s), Fraction(1, 2))": "",
    'root_error(Fraction(25, 8), sum_of("x"))': "",
    'mixed_error(sum_of("x"), magnitudes_of("x"), shares, "u |s| + u^2 S", stop=1)': "",
    'unbiased(sum_of("a", "b"))': "",
    'unbiased_iff_resolved(sum_of("a", "b"))': "",
    'bias_inward(sum_of("a", "b"))': "",
    'bias_of_half(sum_of("a", "b"))': "",
    'variance_of_quarter(sum_of("a", "b"))': "",
    'neighbour_of(sum_of("a", "b"))': "",
    'lost_on_every_draw_below("a", "b", 1)': "",
}
HYPOTHESES = {
    "hypothesis(2 * abs(b) <= abs(a))": "",
    'ordered("a", "b")': "",
    'by_magnitude("a", "b", "c")': "",
    'nonzero("a", "b")': "",
    'positive("a")': "",
    'same_sign("a", "b")': "",
    'within_factor_two("a", "b")': "",
    'normal_or_zero("a")': "",
    'share_at_most("b", "a", 3)': "",
    'share_above("b", "a", 3)': "",
    'exponents_ordered("a", "b")': "",
    'exponent_gap("a", "b")': "",
    'exponent_gap("a", "b", 2)': "",
    'multiple_of_ulp("a", "b")': "",
    'product_of_quanta("a", "b")': "",
    'nonoverlapping("a", "b")': "",
    'nonadjacent("a", "b")': "",
    'bits_resolved("a", "b")': "",
    'sum_in_range("a", "b")': "",
    'product_in_range("a", "b")': "",
    'not_largest("a")': "",
    'finite_result(0, "s")': "",
    'of_format("p >= 4", lambda fmt, rounding: fmt.precision >= 4)': "",
    "RESULTS_FINITE": "no result is infinite or NaN",
}
PARTS = {
    "R": "the exact sum of the results",
    "S": "the first result, by the name s",
    "E": "the second result, by the name e",
    'sum_of("x", "y")': "",
    'product_of("a", "b")': "",
    'quotient_of("a", "b")': "",
    'inner_product("x", "y")': "",
    'magnitudes_of("x")': "",
    'magnitudes_of("x", "y")': "",
    'error_of(sum_of("a", "b"))': "",
    "resolution(a)": "",
    "resolution(a, 1)": "",
    "exponents_at_least(a, b)": "",
    'is_of_quanta("a", "b")': "",
    'sum_at_most_largest("a", "b")': "",
}
#: Calls of `mcfsim.theorems.logic`, with an explanation where there is no docstring to quote.
TERMS = {
    'Operand("x")': "",
    'Word("x", 1)': "",
    'Result(0, "s")': "",
    "Result(0)": "a result without a name",
    "Results()": "",
    "Results(0, 2)": "the exact sum of the first two results",
    "a + b - 1": "exact sums and differences of terms, int and Fraction; no floats",
    "2 * a * b": "exact products",
    "a * Fraction(1, 2)": "quotients are products with a Fraction",
    "-abs(a)": "magnitudes and negatives",
    "U": "the unit roundoff",
    "Exponent(a)": "",
    "Ulp(a)": "",
    "LowBit(a)": "",
    "UlpTowards(a, b)": "",
    "Rounded(a, b)": "the sum of two values as the arithmetic rounds it; in `equal` with a word or a result",
    "Rounded(a, b, Mode.UP)": "the same in a mode of its own",
    "RoundedToBits(a, PRECISION)": "rounded to so many bits; in `equal` with a word or a result",
    "PRECISION": "bits of the significand",
    "EMIN": "the exponent of the smallest normal number",
    "SMALLEST_NORMAL": "the smallest normal number",
    "SMALLEST": "the smallest subnormal number",
    "LARGEST": "the largest number",
    "RANDOM_BITS": "of stochastic rounding, how many bits it draws",
    'OfFormat("p/2", lambda fmt, rounding: Fraction(fmt.precision, 2))': "",
    "Expectation(Results())": "",
    'Mixed(sum_of("x"), magnitudes_of("x"), shares, "u |s| + u^2 S")': "a reference of `Within`",
    'Computed(lambda t: t.exact("a"), "a, by arrays")': "",
}
PROPOSITIONS = {
    "equal(s + e, a + b)": "",
    "abs(e) <= abs(b)": "and `<`, `>=`, `>`; two in a row are refused",
    "(a > 0) & (b > 0)": "both",
    "AllOf((a > 0, b > 0))": "",
    "(a > 0) | (b > 0)": "one or both",
    "AnyOf((a > 0, b > 0))": "",
    "~(a <= b)": "the contrary",
    "Not(equal(a, b))": "",
    "Iff(equal(s, a), equal(b, 0))": "",
    "SameSign(a, b)": "",
    'Same("Grow(x, a)", "DWPlusFP(x, a)")': "",
    "Finite(s)": "",
    "Finite()": "all results are finite",
    "NoOverflow()": "",
    "IsValue(a - b)": "",
    "IsMultiple(a, Ulp(b))": "",
    "IsMultiple(a, 2 * Ulp(s))": "the same of twice an ulp, as of a constant of the format",
    "HasBits(s, PRECISION)": "",
    "Nonoverlapping((b, a))": "",
    "StronglyNonoverlapping()": "",
    "Within(Results() - (a + b), a + b, Bound(2, 1))": "",
    "Within(e, Ulp(s), Bound(Fraction(1, 2), strict=True))": "a bound that is not reached",
    "EveryDraw(equal(s, a))": "",
    'InFormat("p >= 4", lambda fmt, rounding: fmt.precision >= 4)': "",
    'Predicate("a is even", lambda t: t["a"] % 2 == 0)': "",
}
#: What is no part of a statement.
OTHERS = {"Proposition", "Term", "UnreadableError", "written"}


def claims_table() -> str:
    """Return each claim by a call, as it is printed, and what it says."""
    return _table(claims, CLAIMS)


def hypotheses_table() -> str:
    """Return each hypothesis by a call, as it is printed, and what it says."""
    return _table(hypotheses, HYPOTHESES)


def parts_table() -> str:
    """Return each function that returns terms and propositions for claims and hypotheses, by a call."""
    return _table(hypotheses, PARTS)


def logic_table() -> str:
    """Return terms and propositions by an example, as they are printed."""
    return _table(logic, {**TERMS, **PROPOSITIONS})


def legend() -> str:
    """Return the signs that statements are printed with, and what they stand for."""
    return "\n".join(f"- `{sign}`: {text}" for sign, text in LEGEND.items())


def builders_of(module: ModuleType, *kinds: type) -> Iterator[str]:
    """Yield the public functions of a module, and its constants of some types."""
    for name, thing in vars(module).items():
        made_here = inspect.isfunction(thing) and thing.__module__ == module.__name__
        if not name.startswith("_") and (made_here or isinstance(thing, kinds)):
            yield name


def evaluated(module: ModuleType, call: str) -> Any:
    """Return the value of a table's call, evaluated with the names of a module."""
    others = vars(claims) | vars(hypotheses) | vars(logic)
    return eval(call, {**others, **vars(module), **NAMES, "shares": _shares})


def printed(thing: Any) -> str:
    """Return a claim, a hypothesis, a proposition, a term or a quotient of two as mathematics."""
    if isinstance(thing, tuple):
        return " / ".join(map(written, thing))
    said = thing.said if isinstance(thing, Claim | Hypothesis) else thing
    assert isinstance(said, Term | Proposition)
    return written(said)


def _table(module: ModuleType, calls: Mapping[str, str]) -> str:
    rows = []
    for call, says in calls.items():
        as_printed = printed(evaluated(module, call))
        rows.append(
            {"call": f"`{call}`", "printed as": f"`{as_printed}`", "says": says or _says(module, call)}
        )
    return markdown_table(rows)


def _says(module: ModuleType, call: str) -> str:
    """Return the first line of the docstring of a function or a class."""
    name = call.partition("(")[0]
    thing = vars(module).get(name) or vars(claims)[name]
    first = (inspect.getdoc(thing) or "").splitlines()[0].replace("``", "`").rstrip(".")
    for opening in ("Claim ", "Suppose ", "Return ", "Say "):
        first = first.removeprefix(opening)
    return first[0].lower() + first[1:] if re.match("A |[A-Z][a-z]", first) else first


def _shares(p: int) -> tuple[Fraction, Fraction]:
    return Fraction(1, 2**p), Fraction(1, 4**p)
