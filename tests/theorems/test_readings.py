"""One statement, one claim: what is listed is printed as it is, and all interpreters read the same of it."""

import random
import re
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest

from experiments import propositions
from mcfsim.formats import Format
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import THEOREMS, Theorem, claims, double_word, hypotheses, logic, value
from mcfsim.theorems.logic import Predicate
from mcfsim.theorems.logic.notation import LEGEND
from mcfsim.theorems.logic.terms import InnerProduct, nodes
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.solver import question_of, readable
from mcfsim.theorems.statement import Claim, Hypothesis
from tests.shared.pages import page
from tests.theorems import reading
from tests.theorems.reading import altered, by_arrays, by_fractions, by_line, by_solver, trial_of
from tests.theorems.trying import rounding_of

#: Lines have no number that is the sum of so many.
LONG = 64


def test_every_statement_is_data():
    for theorem in THEOREMS.values():
        for said in reading.propositions(theorem):
            assert not any(isinstance(node, Predicate) for node in nodes(said)), theorem.name


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, pytest.param(400, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", THEOREMS)
@pytest.mark.sampled(80, each=False)
def test_arrays_lines_and_fractions_say_the_same(name, count):
    say_the_same(name, count)


@pytest.mark.slow
def test_arrays_and_fractions_say_the_same_of_an_inner_product():
    say_the_same("dot2", 30)


def say_the_same(name, count):
    theorem, draw = THEOREMS[name], random.Random(f"{name} {count}")
    seen = {True: 0, False: 0}
    modes = sorted(theorem.modes)
    some = max(2, min(count, 4096 // theorem.components) // (len(modes) * len(reading.formats_of(theorem))))
    for fmt in reading.formats_of(theorem):
        for mode in modes:
            bits = {"random_bits": draw.randint(1, 4)} if mode is Mode.STOCHASTIC else {}
            right = trial_of(theorem, fmt, rounding_of(theorem, mode, **bits), draw, some)
            for trial in (right, altered(right, draw), altered(right, draw, 0.15)):
                for said in reading.propositions(theorem):
                    held = by_arrays(said, trial)
                    compare(theorem, said, trial, held)
                for truth in seen:  # of the claim, which is the last
                    seen[truth] += int(np.count_nonzero(held == truth))
    assert min(seen.values()) > 0


def compare(theorem, said, trial, held):
    exactly = by_fractions(theorem, said, trial)
    assert held.tolist() == exactly.tolist(), _first(theorem, said, trial, held != exactly)
    if trial.rounding.stochastic or theorem.components > LONG:
        return
    try:
        on_line, open_ = by_line(theorem, said, trial)
    except TypeError:  # numbers that no line has: then there is none
        return
    wrong = (on_line != exactly) & ~open_
    assert not wrong.any(), _first(theorem, said, trial, wrong)


def _first(theorem, said, trial, wrong):
    place = int(np.argmax(wrong))
    return theorem.written(said), trial.format, trial.rounding.mode, trial.at([place])


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", [name for name, theorem in THEOREMS.items() if readable(theorem)])
@pytest.mark.sampled(10, each=False)
def test_the_solver_is_asked_what_fractions_say(name, count):
    theorem, draw = THEOREMS[name], random.Random(f"{name} {count}")
    question = question_of(theorem)
    seen = {True: 0, False: 0}
    for mode, ties in ((Mode.NEAREST_EVEN, "even"), (Mode.NEAREST_AWAY, "away")):
        for p in range(max(3, theorem.precision), 8) if mode in theorem.modes else ():
            some = count // 5 // len(theorem.modes) // 2 + 1
            right = trial_of(theorem, unbounded(p), Rounding(mode), draw, some)
            for trial in (altered(right, draw, 0, finite=True), altered(right, draw, finite=True)):
                where = [by_fractions(theorem, hypothesis.said, trial) for hypothesis in theorem.where]
                supposed = np.logical_and.reduce([np.ones(trial.size, bool), *where])
                claimed = by_fractions(theorem, theorem.claim.said, trial)
                for case, found in enumerate(by_solver(question, trial, ties)):
                    assert found == (supposed[case], claimed[case]), (trial.at([case]), mode)
                    seen[bool(claimed[case])] += 1
    assert min(seen.values()) > count / 20


PAGE = page("own_theorems").read_text()
SAID = {**propositions.TERMS, **propositions.PROPOSITIONS}
TABLES = {claims: propositions.CLAIMS, hypotheses: propositions.HYPOTHESES, logic: SAID}


def names_of(*calls):
    return {call.partition("(")[0] for table in calls for call in table}


# -- the tables ---------------------------------------------------------------------------------------------
def test_everything_is_listed():
    parts = names_of(propositions.PARTS)
    builders = set(propositions.builders_of(claims, Claim, logic.Term))
    suppositions = set(propositions.builders_of(hypotheses, Hypothesis))
    assert builders <= names_of(propositions.CLAIMS) | parts
    assert suppositions <= names_of(propositions.HYPOTHESES) | parts
    assert names_of(propositions.CLAIMS, propositions.HYPOTHESES) | parts == builders | suppositions
    examples = " ".join((*propositions.TERMS, *propositions.PROPOSITIONS))
    assert set(logic.__all__) - set(re.findall(r"\b[A-Za-z_]+\b", examples)) == propositions.OTHERS


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_page_prints_what_the_call_is(module):
    rows = {}
    for line in PAGE.splitlines():
        cells = [cell.strip().replace("\0", "|") for cell in line.replace(r"\|", "\0").split("|")[1:-1]]
        if len(cells) == 3:
            call, printed, says = cells
            rows[call.strip("`")] = printed.strip("`"), says
    kind = {claims: Claim, hypotheses: Hypothesis}.get(module, logic.Term | logic.Proposition)
    for call in TABLES[module]:
        made = propositions.evaluated(module, call)
        assert isinstance(made, kind)
        printed, says = rows[call]
        assert printed == logic.written(made.said if module is not logic else made)
        assert len(says) > 3


OPERANDS = (value("a"), value("b"), value("c"), double_word("x"), double_word("y"))


def listed():
    for module, table in TABLES.items():
        for call in table:
            made = propositions.evaluated(module, call)
            said = made.said if isinstance(made, Claim | Hypothesis) else made
            if isinstance(said, logic.Mixed):
                said = logic.Within(logic.Results() - logic.Operand("x"), said, logic.Bound(1))
            elif isinstance(said, logic.Rounded | logic.RoundedToBits):
                said = logic.equal(said, logic.Word("b"))
            elif isinstance(said, logic.Term):
                said = logic.equal(said, logic.Word("a")) | (said <= logic.Word("b"))
            if not any(isinstance(node, logic.Predicate | logic.Computed) for node in nodes(said)):
                yield pytest.param(said, id=call)


def text(ar, a, b, c, x, y):
    s = ar.add(a, b)
    return s, ar.sub(b, ar.sub(s, a))


@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("said", [*listed()])
@pytest.mark.sampled(10, each=False)
def test_arrays_lines_and_fractions_read_what_is_listed(said, count):
    theorem, draw = Theorem("listed", text, OPERANDS, Claim(said)), random.Random(5)
    # What would be rounded at random is no number.
    drawn = () if any(isinstance(node, logic.Rounded) for node in nodes(said)) else (Mode.STOCHASTIC,)
    for mode in (Mode.NEAREST_EVEN, Mode.UP, *drawn):
        rounding = Rounding(mode, **({"random_bits": 2} if mode is Mode.STOCHASTIC else {}))
        right = trial_of(theorem, Format("", precision=3, emin=-7, emax=7), rounding, draw, count)
        for trial in (right, altered(right, draw)):
            held, exactly = by_arrays(said, trial), by_fractions(theorem, said, trial)
            assert held.tolist() == exactly.tolist(), logic.written(said)
            if rounding.stochastic:
                continue
            with suppress(AttributeError, TypeError):  # not all is recorded: the rest is asked block by block
                on_line, open_ = by_line(theorem, said, trial)
                assert not ((on_line != exactly) & ~open_).any(), logic.written(said)


# -- as mathematics -----------------------------------------------------------------------------------------
A, B, R1 = logic.Word("a"), logic.Word("b"), logic.Result(0)


PRINTED = [
    (logic.U * abs(A) * 3, "3 u |a|"),
    (A * Fraction(3, 2), "3/2 a"),
    ((A - B) * Fraction(1, 2), "(a - b)/2"),
    (A * -B, "a (-b)"),
    (A + (-1), "a - 1"),
    (A - (B - A), "a - (b - a)"),
    (A * B * (A * B), "(a b)^2"),
    (2 * logic.SMALLEST_NORMAL, "2 (2^emin)"),
    (A - logic.OfFormat("p + 1", lambda fmt, _: fmt.precision + 1), "a - (p + 1)"),
    (InnerProduct("x", "y") + A, "(sum x_i y_i) + a"),
    (logic.Rounded(A, -B), "RN(a - b)"),
    (logic.Word("x", 1), "x_2"),
    (~(A <= B), "b < a"),
    (~(A < B), "b <= a"),
    (~(R1 <= B), "not (r1 <= b)"),  # which holds of NaN, unlike b < r1
    (~logic.SameSign(A, B), "a b < 0"),
    (~logic.SameSign(A, R1), "not (a r1 >= 0)"),
    (~((A <= B) & (B <= 0)), "not (a <= b and b <= 0)"),
    (logic.AllOf((A > 0,)), "a > 0"),
]


@pytest.mark.parametrize(("said", "printed"), PRINTED)
def test_how_it_is_written(said, printed):
    assert logic.written(said) == printed


def test_the_signs_of_all_statements_are_explained():
    called = re.compile(r"\b([a-z]\w*|RN|E)[(\[]")
    used = {sign for theorem in THEOREMS.values() for sign in called.findall(theorem.statement)}
    assert {"e", "ulp", "lowbit", "step", "gamma", "RN", "E"} <= used
    assert used - {"sqrt", "floor", "ceil", "max"} <= set(called.findall(" ".join(LEGEND)))
