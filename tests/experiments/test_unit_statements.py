"""Statements about matrix units: their witnesses in fractions, and what judges them, attacked."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from experiments import unit_monotonicity, unit_statements
from experiments.common import read_result
from experiments.unit_monotonicity import exactly
from experiments.unit_statements import SMALL, STATEMENTS, certificates
from mcfsim.products import Unit, get_unit, is_monotone, matmul
from tests.products.units_by_definition import Definition, cut, exponent

RESULT = read_result("unit_monotonicity")
CERTIFICATES = RESULT["certificates"]
WITNESSES = [item for item in CERTIFICATES if "witness" in item]


# -- witnesses, by the definition in fractions ------------------------------------------------------------
class Case:
    """A group of a unit, in fractions."""

    def __init__(self, unit, kept):
        self.unit = unit
        self.case = case = {x: [float(Fraction(z)) for z in kept[x]] for x in ("a", "b")}
        case |= {x: float(Fraction(kept[x])) for x in ("c", "result")}
        (fmt,) = unit.inputs
        self.c, self.made = Fraction(case["c"]), Fraction(case["result"])
        pairs = list(zip(case["a"], case["b"], strict=True))
        self.terms = [self.c, *(Fraction(x) * Fraction(y) for x, y in pairs)]
        places = [exponent(x, fmt.emin) + exponent(y, fmt.emin) for x, y in pairs]
        self.top = max([exponent(self.c, unit.added.emin), *places])
        self.q = Fraction(2) ** (self.top - unit.fraction_bits)
        self.losing = sum(x != cut(x, self.q) for x in self.terms)
        self.off = abs(self.made - sum(self.terms))
        out = unit.output
        self.ulp = Fraction(2) ** (max(exponent(self.made, out.emin), out.emin) - out.precision + 1)
        self.rounding = max(self.ulp - self.q, 0) if unit.rounding == "toward_zero" else self.ulp / 2

    def by_definition(self):
        """Return the result by the definition."""
        case = self.case
        return Definition(self.unit).element(case["a"], case["b"], case["c"], self.unit.inputs * 2)


#: By name of a statement: whether it holds of a case and, where operands change, of the case after that.
IN_FRACTIONS = {
    "error, one term fewer": lambda x, _: x.off <= max(x.losing - 1, 0) * x.q + x.rounding,
    "error, E one less": lambda x, _: x.off <= x.losing * x.q / 2 + max(x.ulp - x.q / 2, x.rounding),
    "error, terms to nearest": lambda x, _: x.off <= x.losing * x.q / 2 + x.rounding,
    "error, output to nearest": lambda x, _: x.off <= x.losing * x.q + x.ulp / 2,
    "faithful": lambda x, _: x.off <= x.ulp,
    "exact only if nothing is cut": lambda x, _: x.off != 0 or x.losing == 0,
    "sign": lambda x, _: x.made * sum(x.terms) >= 0,
    "monotone in factors": lambda x, y: x.made <= y.made or y.case["a"][0] <= x.case["a"][0],
    "monotone in C": lambda x, y: x.made <= y.made or y.c <= x.c,
}


@pytest.mark.parametrize("item", WITNESSES, ids=lambda x: f"{x['unit']}-{x['statement']}")
def test_witnesses_refute_by_the_definition(item):
    unit, witness = SMALL[item["unit"]], item["witness"]
    cases = [Case(unit, x) for x in (witness, witness.get("then", witness))]
    for case in cases:
        assert case.by_definition() == case.made
    assert not IN_FRACTIONS[item["statement"]](*cases)


def test_verdicts_are_as_proved():
    for item in CERTIFICATES:
        assert not (item["proved"] and item["verdict"] == "refuted"), item
        assert item["proved"] == next(x for x in STATEMENTS if x.name == item["statement"]).holds(
            SMALL[item["unit"]]
        )
    by_name = {x.name: {y["verdict"] for y in CERTIFICATES if y["statement"] == x.name} for x in STATEMENTS}
    false = {x.name for x in STATEMENTS if not all(map(x.holds, SMALL.values()))}
    assert false == IN_FRACTIONS.keys()
    assert {name for name, verdicts in by_name.items() if "refuted" in verdicts} == false
    # The bound by last bits is reached, the other one missed by the last bit of a term.
    worst = {(x["unit"], x["statement"]): Fraction(x["worst"]) for x in CERTIFICATES if "worst" in x}
    assert {worst[name, "error, by last bits"] for name in SMALL} == {1}
    assert all(Fraction(9, 10) < worst[name, "error"] < 1 for name in SMALL)


@pytest.mark.slow
def test_certificates_of_the_smallest_unit_are_made_again():
    again = certificates(SMALL["smallest"])
    assert exactly(again) == [x for x in CERTIFICATES if x["unit"] == "smallest"]


# -- what the judge catches -------------------------------------------------------------------------------
def judged(monkeypatch, unit, names, **fields):
    """Return which of the statements are refuted of the smallest unit where another one makes the results."""
    with monkeypatch.context() as patch:
        other = replace(unit, **fields)
        patch.setattr(unit_statements, "matmul", lambda a, b, unit, c: matmul(a, b, unit=other, c=c))
        found = certificates(unit, tuple(x for x in STATEMENTS if x.name in names))
        return {x["statement"] for x in found if x["proved"] and x["verdict"] == "refuted"}


@pytest.mark.parametrize(
    ("fields", "caught"),
    [
        ({"fraction_bits": 2}, {"error", "error, by last bits", "exact", "exact, of one sign", "cut"}),
        ({"fraction_bits": 4}, {"exact, of one sign"}),
        ({"rounding": "nearest_even"}, {"below", "cut"}),
        ({"sums": "floored"}, {"below"}),
    ],
)
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_results_of_another_unit_are_caught(fields, caught, monkeypatch):
    unit = SMALL["smallest"]
    if fields == {"fraction_bits": 4}:
        unit = replace(unit, fraction_bits=2)
    assert caught == judged(monkeypatch, unit, caught, **fields)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_what_is_proved_monotone_is_so_and_the_rest_is_not(bits):
    # The output has so many bits that no rounding hides what a sum loses.
    (fmt,) = SMALL["smallest"].inputs
    given = {"addend": replace(fmt, precision=4, emax=2), "output": replace(fmt, precision=9, emax=3)}
    unit = Unit("own", replace(fmt, emax=1), k=2, fraction_bits=bits, **given)
    some = tuple(x for x in STATEMENTS if x.name.startswith("monotone"))
    for item, of in zip(certificates(unit, some), ("factors", "addend"), strict=True):
        assert (item["verdict"] == "verified") == is_monotone(unit, of)


# -- units by name ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", unit_monotonicity.proved_units(), ids=str)
@pytest.mark.sampled(6, each=False)
def test_falls_are_found_again_and_are_so_by_the_definition(unit):
    kept = RESULT["units"][unit.name]
    found, groups = unit_monotonicity.fall(unit), unit_monotonicity.fall_across_groups(unit)
    assert exactly({"fall": found, "two groups": groups}) == {x: kept[x] for x in ("fall", "two groups")}
    for of, proved in kept["proved"].items():
        assert is_monotone(unit, of) == proved
    assert (found is None) == (groups is None) == kept["proved"]["addend"]
    if found is None:
        return
    a, b = unit_monotonicity.factors(unit, found["multiples"], found["quantum"])
    element = partial(Definition(unit).element, formats=(unit.input, unit.input))
    made = [element(a.tolist(), b.tolist(), c) for c in found["c"]]
    assert made == found["result"]
    assert made[0] > made[1]
    first, other = unit_monotonicity.factors(unit, [1], found["c"][1] - found["c"][0])
    made = []
    for x in groups["a_1"]:
        first[0] = x
        made.append(element([*first, *a], [*other, *b], groups["c"]))
    assert made == groups["result"]
    assert made[0] > made[1]


@pytest.mark.parametrize("unit", unit_monotonicity.proved_units(), ids=str)
@pytest.mark.sampled(6, each=False)
def test_no_random_group_falls_where_it_is_proved_monotone(unit):
    """Raise a factor by one step to a power of two, beside products near the last bit."""
    rng, k, (fmt, *_) = np.random.default_rng(3), unit.k, unit.inputs
    rows, least = 400, fmt.emin - fmt.precision + 1
    power = 2.0 ** rng.integers(max(fmt.emin, -6) + 1, min(fmt.emax, 6), rows)
    a = np.full((rows, k), 2.0**least)
    a *= rng.integers(1, 2**fmt.precision, (rows, k))
    b = 2.0 ** rng.integers(least, 1, (rows, k))
    a[:, 0], b[:, 0] = power, 2.0 ** rng.integers(least, 1, rows)
    before = a.copy()
    before[:, 0] -= power * 2.0**-fmt.precision
    made = [unit_monotonicity.dot(x, b, unit=unit) for x in (before, a)]
    assert (made[0] <= made[1]).all()


@pytest.mark.parametrize("unit", unit_monotonicity.proved_units(), ids=str)
@pytest.mark.sampled(6, each=False)
def test_the_order_of_products_matters_across_groups(unit):
    first, last = RESULT["orders"][unit.name]
    assert Fraction(first) < Fraction(last)
    assert [first, last] == exactly(unit_monotonicity.order_across_groups(unit.name))
    assert len(RESULT["orders"]) == len(unit_monotonicity.proved_units())


def test_a_product_with_zero_counts_by_its_other_factor_except_on_hopper():
    # In MMA-Sim a zero has the exponent -126: beside it, a tiny C loses its last bit. An H200 keeps it.
    c = 2.0**-120 * (1 + 2.0**-23)
    for unit, kept in ((get_unit("ampere_fp16"), 2.0**-120), (get_unit("hopper_fp16"), c)):
        made = [float(unit_monotonicity.dot([x], [0.0], unit=unit, c=c)) for x in (1.0, 2.0**15)]
        assert made == [c, kept]
        assert made[1] == Definition(unit).element([2.0**15], [0.0], c, (unit.input,) * 2)
