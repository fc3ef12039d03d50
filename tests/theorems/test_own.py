"""Own statements: the tutorial keeps its word, and what a statement does wrong is said by its name."""

import doctest
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.theorems import Theorem, claim, double_word, exact_sum, hypothesis, relative_error, value, verify
from mcfsim.theorems.claims import sum_of
from mcfsim.theorems.hypotheses import ordered
from mcfsim.theorems.verification import prepare

DOCS = Path(__file__).parents[2] / "docs"
#: Pages of examples, and how many these have at least.
PAGES = {"own_theorems.md": 50, "every_p.md": 18}
PAIR = (value("a"), value("b"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_tutorials_show_real_output(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    runner, text = doctest.DocTestRunner(), (DOCS / page).read_text()
    if "theorems.solver" in text:
        pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        examples = doctest.DocTestParser().get_doctest(block, {}, page, None, None)
        assert examples.examples
        examples.globs = names
        runner.run(examples, clear_globs=False)
    failed, attempted = runner.summarize()
    assert not failed, capsys.readouterr().out
    assert attempted >= PAGES[page]


def test_a_midpoint_by_brute_force():
    """The counts of the tutorial, from the definition of what a midpoint is."""
    ar = mcf.arithmetic("float8_e5m2")
    values = mcf.codec.all_values("float8_e5m2")
    a, b = map(np.ravel, np.meshgrid(*2 * [values[np.isfinite(values)]]))
    means = ar.mul(ar.add(a, b), 0.5), ar.add(ar.mul(a, 0.5), ar.mul(b, 0.5))
    wrong = [np.count_nonzero(~((np.minimum(a, b) <= m) & (m <= np.maximum(a, b)))) for m in means]
    assert (a.size, wrong) == (61504, [120, 8])


# -- algorithms ---------------------------------------------------------------------------------------------
def theorem(algorithm=mcf.two_sum, **facts):
    return Theorem("mine", algorithm, PAIR, **{"claim": exact_sum(), **facts})


def tried(statement, fmt="float4_e2m1fn", **options):
    return verify(statement, fmt, **options)


@pytest.mark.parametrize(
    ("algorithm", "returned"),
    [
        (lambda ar, a, b: None, "result 1 of the algorithm is None of type NoneType"),
        (lambda ar, a, b: [ar.add(a, b), a], r"result 1 of the algorithm is \[.* of type list"),
        (lambda ar, a, b: (ar.add(a, b), 0.0), "result 2 of the algorithm is 0.0 of type float"),
        (lambda ar, a, b: (ar.add(a, b), ar.round(0.5)), r"result 2 of the algorithm is 0\.5 of type float"),
        (lambda ar, a, b: (ar.add(a, b), (a, a[:1])), r"result 3 .* is an array of float32, shape \(1,\)"),
        (
            lambda ar, a, b: (a, a == b),
            r"result 2 .* is an array of bool, shape \(\d+,\); it must be a block of",
        ),
        (lambda ar, a, b: (), "the algorithm returns no results"),
    ],
)
def test_what_an_algorithm_must_return(algorithm, returned):
    with pytest.raises(TypeError, match=f"^'mine': {returned}"):
        tried(theorem(algorithm))


def test_an_algorithm_that_fails():
    with pytest.raises(ValueError, match=r"'mine': the algorithm raised AttributeError: .*'addd'") as error:
        tried(theorem(lambda ar, a, b: ar.addd(a, b)))
    assert isinstance(error.value.__cause__, AttributeError)
    with pytest.raises(ValueError, match=r"'mine': the algorithm raised TypeError: .*positional argument"):
        tried(theorem(lambda ar, a: (a, a)))
    with pytest.raises(ValueError, match="'mine': the algorithm raised ValueError: a double word is a tuple"):
        tried(theorem(lambda ar, x, b: mcf.double_word.dw_plus_fp(ar, tuple(x[:1]), b)))


def test_that_there_is_no_exact_path_is_said_as_ever():
    with pytest.raises(UnsupportedFormatError, match="has no exact path"):
        verify(theorem(lambda ar, a, b: ar.fma(a, b, b)), "float64", samples=16)


# -- hypotheses and claims ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("test", "given"),
    [
        (lambda t: None, "gave None of type NoneType"),
        (lambda t: True, "gave True of type bool"),
        (lambda t: t["a"], r"gave an array of float32, shape \(2,\)"),
        (lambda t: (t["a"] > 0)[:1], r"gave an array of bool, shape \(1,\)"),
        (lambda t: np.all(t["a"] > 0), r"gave np.False_ of type bool"),
    ],
)
def test_what_predicates_must_return(test, given):
    must = "; its test must return a block of 2 truth values, one a case"
    with pytest.raises(TypeError, match=f"^'mine': the hypothesis 'odd' {given}{must}"):
        tried(theorem(where=[hypothesis("odd", test)]))
    with pytest.raises(TypeError, match=f"^'mine': the claim 'even' {given}{must}"):
        tried(theorem(claim=claim("even", test)))


def test_predicates_that_fail():
    with pytest.raises(
        ValueError, match=r"'mine': the claim 'c' raised KeyError: .*no operand 'x'; operands: a, b"
    ):
        tried(theorem(claim=claim("c", lambda t: t["x"] == 0)))
    with pytest.raises(
        ValueError, match="'mine': the hypothesis 'h' raised ZeroDivisionError: division by zero"
    ):
        tried(theorem(where=[hypothesis("h", lambda t: t["a"] > 1 / 0)]))
    with pytest.raises(ValueError, match=r"'mine': the hypothesis '\|b\| <= \|x\|' raised KeyError"):
        tried(theorem(where=[ordered("x", "b")]))


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers_say_the_same(kind):
    with pytest.raises(Exception, match="'mine': the algorithm raised ZeroDivisionError"):
        tried(theorem(_divides_by_zero), workers=2, kind=kind)


def _divides_by_zero(ar, a, b):
    return ar.add(a, 1 / 0)


# -- the statement itself -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("facts", "error", "problem"),
    [
        ({"algorithm": "two_sum"}, TypeError, "the algorithm must be callable, not 'two_sum'"),
        ({"operands": ["a", "b"]}, TypeError, "operands must be several of type Operand, not ['a', 'b']"),
        ({"operands": []}, ValueError, "has the operands"),
        ({"operands": [value("a"), value("a")]}, ValueError, "of distinct names"),
        ({"claim": lambda t: t["a"] == 0}, TypeError, "the claim must be a Claim, not <function"),
        (
            {"where": ordered("a", "b")},
            TypeError,
            "where must be several of type Hypothesis, not Hypothesis(",
        ),
        (
            {"where": [lambda t: t["a"] == 0]},
            TypeError,
            "where must be several of type Hypothesis, not [<function",
        ),
        ({"modes": ["sideways"]}, ValueError, "'sideways' is not a valid Mode"),
        ({"modes": "up"}, TypeError, "modes must be several of type str, not 'up'"),
        ({"scaling": "any"}, ValueError, "'any' is not a valid Scaling"),
        ({"range": "any"}, ValueError, "unknown range 'any'; known ranges: bounded, unbounded"),
    ],
)
def test_statements_that_are_none(facts, error, problem):
    with pytest.raises(error, match=re.escape(problem)):
        Theorem("mine", **{"algorithm": mcf.two_sum, "operands": PAIR, "claim": exact_sum(), **facts})


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"extent": "some"}, ValueError, "unknown extent 'some'; known extents: core, all"),
        ({"limit": 0}, ValueError, "limit = 0 must be at least 1"),
        ({"samples": 0.5}, TypeError, "samples must be an int, not 0.5"),
        ({"seed": True}, TypeError, "seed must be an int, not True"),
        ({"format": "bfloat17"}, ValueError, "bfloat17"),
        ({"theorem": "three_sum"}, ValueError, "unknown theorem 'three_sum'"),
        (
            {"theorem": mcf.two_sum},
            TypeError,
            "a theorem is a Theorem or the id of one, not <function two_sum",
        ),
    ],
)
def test_verifications_that_are_none(options, error, problem):
    with pytest.raises(error, match=re.escape(problem)):
        verify(**{"theorem": theorem(), "format": "float4_e2m1fn", **options})


def test_families_must_be_of_the_kind_of_the_operand():
    sums = Theorem(
        "sums",
        mcf.double_word.dw_plus_fp,
        (double_word("x"), value("y")),
        relative_error(2, sum_of("x", "y")),
        scaling="common",
        families=lambda p: [(1, 1, 1)],
    )
    with pytest.raises(ValueError, match=r"'sums': .*x .*is no double word"):
        verify(sums, "bfloat16", limit=1, samples=1)


# -- results of earlier work --------------------------------------------------------------------------------
def test_an_edited_statement_does_not_resume_what_another_left():
    def key(statement):
        return prepare(statement, "float4_e2m1fn", "nearest_even").key

    def first(ar, a, b):
        return ar.add(a, b), a

    before = key(theorem(first))

    def first(ar, a, b):
        return ar.add(a, b), b

    assert key(theorem(first)) != before
    assert key(theorem(partial(mcf.grow, ordered=True))) != key(theorem(partial(mcf.grow, ordered=False)))
    always, never = (claim("c", lambda t: t["a"] == t["a"]), claim("c", lambda t: t["a"] != t["a"]))
    assert key(theorem(claim=always)) != key(theorem(claim=never))
    assert key(replace(theorem(), claim=exact_sum())) == key(theorem())
