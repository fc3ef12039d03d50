"""Own statements: the tutorials keep their word; what is wrong with one, or with what it gives, is said."""

import ctypes
import doctest
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.multiword.double_word import dw_plus_fp
from mcfsim.theorems import claim, double_word, exactly, hypothesis, relative_error, sequence, value, verify
from mcfsim.theorems.claims import bounded, product_of, sum_of
from mcfsim.theorems.hypotheses import ordered
from mcfsim.theorems.judge import applicable, try_block, violating
from tests.shared.pages import page
from tests.theorems.trying import add, mine

#: Pages of examples, and how many these have at least.
PAGES = {"own_theorems": 50, "every_p": 18, "every_bound": 14}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.sampled(3, each=False)
@pytest.mark.costly("the solver proves")
def test_the_tutorials_show_real_output(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    runner, text = doctest.DocTestRunner(), page(name).read_text()
    if "theorems.solver" in text:
        pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        examples = doctest.DocTestParser().get_doctest(block, {}, name, None, None)
        assert examples.examples
        examples.globs = names
        runner.run(examples, clear_globs=False)
    failed, attempted = runner.summarize()
    assert not failed, capsys.readouterr().out
    assert attempted >= PAGES[name]


# -- what is wrong with a statement -------------------------------------------------------------------------
SMALL = "float4_e2m1fn"
#: Algorithms, and what is said of them.
WRONG = [
    (lambda ar, a, b: None, "result 1 of the algorithm is None of type NoneType"),
    (lambda ar, a, b: [ar.add(a, b), a], r"result 1 of the algorithm is \[.* of type list"),
    (lambda ar, a, b: (a, ar.round(0.5)), r"result 2 of the algorithm is 0\.5 of type float"),
    (lambda ar, a, b: (a, (a, a[:1])), r"result 3 .* is an array of float32, shape \(1,\)"),
    (lambda ar, a, b: (a, a == b), r"result 2 .* array of bool, shape \(\d+,\); it must be a"),
    (lambda ar, a, b: (), "the algorithm returns no results"),
    (lambda ar, a, b: ar.addd(a, b), "the algorithm raised AttributeError: .*'addd'"),
    (lambda ar, a: (a, a), "the algorithm raised TypeError: .*positional argument"),
    (lambda ar, a, b: dw_plus_fp(ar, (a,), b), "the algorithm raised ValueError: a double word is a tuple"),
]


@pytest.mark.parametrize(("algorithm", "problem"), WRONG, ids=range(9))
def test_what_an_algorithm_does_wrong(algorithm, problem):
    raises = "raised" in problem
    with pytest.raises(ValueError if raises else TypeError, match=f"^'mine': {problem}") as raised:
        verify(mine(algorithm), SMALL)
    assert not isinstance(raised.value, UnsupportedFormatError)
    assert (raised.value.__cause__ is not None) >= raises


OTHERS = [
    lambda ar, a, b: a * b,
    lambda ar, a, b: (ar.add(a, b), ar.like(mcf.get_format("float16"), ar.rounding).mul(a, b)),
    lambda ar, a, b: np.multiply(a, b, dtype=np.float64),
]


@pytest.mark.parametrize("algorithm", OTHERS, ids=["of NumPy", "of another format", "of a longer dtype"])
@pytest.mark.parametrize("fmt", [SMALL, "bfloat16"])
def test_results_are_values_of_the_format(algorithm, fmt):
    """Claims would take them for such, and cut off what they have more; and what is not rounded is exact."""
    # From a unit of work it comes as a RuntimeError.
    with pytest.raises((ValueError, RuntimeError), match=f"'mine': result . of .* is no value of {fmt}"):
        verify(mine(algorithm, exactly(product_of("a", "b"))), fmt, samples=1)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers_say_the_same(kind):
    with pytest.raises(Exception, match="'mine': the algorithm raised ZeroDivisionError"):
        verify(mine(lambda ar, a, b: ar.add(a, 1 / 0)), SMALL, workers=2, kind=kind)


#: Tests, and what is said of them.
WRONG_TESTS = [
    (lambda t: None, "gave None of type NoneType"),
    (lambda t: True, "gave True of type bool"),
    (lambda t: t["a"], r"gave an array of float32, shape \(2,\)"),
    (lambda t: (t["a"] > 0)[:1], r"gave an array of bool, shape \(1,\)"),
    (lambda t: np.all(t["a"] > 0), r"gave np.False_ of type bool"),
    (lambda t: t["x"] == 0, r"raised KeyError: .*no operand 'x'; operands: a, b"),
    (lambda t: t["a"] > 1 / 0, "raised ZeroDivisionError: division by zero"),
    (ordered("x", "b").said, "raised KeyError"),
]


@pytest.mark.parametrize(("test", "given"), WRONG_TESTS, ids=range(8))
def test_what_a_predicate_does_wrong(test, given):
    raises = given.startswith("raised")
    error = ValueError if raises else TypeError
    must = "" if raises else "; its test must return a block of 2 truth values, one per case"
    said, named = (("odd", test), "odd") if callable(test) else ((test,), r"\|b\| <= \|x\|")
    wrong = {"claim": mine(said=claim(*said)), "hypothesis": mine(where=[hypothesis(*said)])}
    for what, theorem in wrong.items():
        with pytest.raises(error, match=f"^'mine': the {what} '{named}' {given}{must}"):
            verify(theorem, SMALL)


#: What is no part of a statement, ...
NO_PARTS = [
    ({"algorithm": "two_sum"}, TypeError, "the algorithm must be callable, not 'two_sum'"),
    ({"operands": ["a", "b"]}, TypeError, "operands must be several of type OperandSpec, not ['a', 'b']"),
    ({"operands": []}, ValueError, "has the operands"),
    ({"operands": [value("a"), value("a")]}, ValueError, "with distinct names"),
    ({"claim": lambda t: t["a"] == 0}, TypeError, "the claim must be a Claim, not <function"),
    ({"where": ordered("a", "b")}, TypeError, "several of type Hypothesis, not Hypothesis("),
    ({"where": [len]}, TypeError, "where must be several of type Hypothesis, not [<built-in"),
    ({"modes": ["sideways"]}, ValueError, "'sideways' is not a valid Mode"),
    ({"modes": "up"}, TypeError, "modes must be several of type str, not 'up'"),
    ({"scaling": "any"}, ValueError, "'any' is not a valid Scaling"),
    ({"range": "any"}, ValueError, "unknown range 'any'; known ranges: bounded, unbounded"),
    ({"gaps": lambda p: (3, -3)}, ValueError, "gaps must begin with the least, not be 3 to -3"),
]
#: ... and no option of its verification.
NO_OPTIONS = [
    ({"extent": "some"}, ValueError, "unknown extent 'some'; known extents: core, all"),
    ({"extent": "all", "format": "float32"}, ValueError, "cannot all be tried: too many"),
    ({"limit": 0}, ValueError, "limit = 0 must be at least 1"),
    ({"samples": 0.5}, TypeError, "samples must be an int, not 0.5"),
    ({"seed": True}, TypeError, "seed must be an int, not True"),
    ({"format": "bfloat17"}, ValueError, "bfloat17"),
    ({"rounding": "sideways"}, ValueError, "allowed: nearest_even"),
    ({"theorem": "three_sum"}, ValueError, "unknown theorem 'three_sum'"),
    ({"theorem": "nosuch"}, ValueError, "known theorems: sterbenz"),
    ({"theorem": add}, TypeError, "a theorem is a Theorem or the id of one, not <function add"),
]


@pytest.mark.parametrize(("given", "error", "problem"), NO_PARTS, ids=range(12))
def test_statements_that_are_none(given, error, problem):
    with pytest.raises(error, match=re.escape(problem)):
        replace(mine(), **given)


@pytest.mark.parametrize(
    ("length", "error", "problem"),
    [
        (0, ValueError, "length = 0 must be at least 1"),
        (-1, ValueError, "length = -1 must be"),
        (2.0, TypeError, "length must be an int"),
    ],
)
def test_sequences_of_no_length_are_refused(length, error, problem):
    with pytest.raises(error, match=problem):
        sequence("x", length)


@pytest.mark.parametrize(("given", "error", "problem"), NO_OPTIONS, ids=range(10))
def test_verifications_that_are_none(given, error, problem):
    with pytest.raises(error, match=re.escape(problem)):
        verify(**{"theorem": mine(), "format": SMALL, **given})


def test_families_must_be_of_the_kind_of_the_operand():
    operands, said = (double_word("x"), value("y")), relative_error(2, sum_of("x", "y"))
    sums = mine(dw_plus_fp, said, operands, scaling="common", families=lambda p: [(1, 1, 1)])
    with pytest.raises(ValueError, match=r"'mine': .*x .*is no double word"):
        verify(sums, "bfloat16", limit=1, samples=1)


#: Few cases, and as many as are judged by loops where there are some.
FORMATS = ("float4_e2m1fn", Format("wide", precision=5, emin=-9, emax=10))


def true(t):
    return t.finite | True


def measured_with(error):
    return bounded(error, lambda t: t.exact("b"), 9, unit=1)


class Own(np.ndarray):
    """A class of arrays of somebody's."""


STRANGE = {
    "all masked": lambda x: np.ma.array(x, mask=True),
    "masked nowhere": lambda x: np.ma.array(x),
    "own": lambda x: x.view(Own),
    "matrix of one column": lambda x: np.matrix(x).T,
    "0-d": lambda x: np.array(x[0]),
    "number": lambda x: x[0],
    "list": lambda x: x.tolist(),
    "objects": lambda x: x.astype(object),
    "shorter": lambda x: x[:1].repeat(x.size - 1),
    "of two axes": lambda x: x.reshape(1, -1),
}
PLACES = {
    "algorithm": lambda s: mine(lambda ar, a, b: s(ar.add(a, b)), true),
    "one of two results": lambda s: mine(lambda ar, a, b: (a, s(ar.add(a, b))), true),
    "operand": lambda s: mine(lambda ar, a, b: (s(a), b), true),
    "claim": lambda s: mine(add, lambda t: s(t["a"] == t["b"])),
    "true claim": lambda s: mine(add, lambda t: s(t.finite | True)),
    "hypothesis": lambda s: mine(add, true, where=[hypothesis("h", lambda t: s(t["a"] == t["b"]))]),
    "false hypothesis": lambda s: mine(add, true, where=[hypothesis("h", lambda t: s(t["a"] != t["a"]))]),
    "part of a claim": lambda s: mine(add, lambda t: t.only(t["a"] == 0, lambda u: s(u["b"] == u["a"]))),
    "measure": lambda s: mine(add, measured_with(lambda t: s(t["a"] == t["b"]))),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_only_plain_arrays_are_taken(place, fmt):
    for name, of in STRANGE.items():
        # From a unit of work it comes as a RuntimeError.
        with pytest.raises((TypeError, ValueError, RuntimeError), match="'mine': "):
            print(name, verify(PLACES[place](of), fmt))


# -- what is written to -------------------------------------------------------------------------------------
WAYS = {
    "in place": "x -= 1",
    "by a ufunc": "np.add(x, x, out=x)",
    "by its flag": "x.setflags(write=True); x[...] = 1",
    "by its base": "own = x if x.base is None else x.base; own.flags.writeable = True; own[...] = 1",
    "by a view": "x.flags.writeable = True; x.view(f'u{x.itemsize}')[-1] ^= 1",
    "by a zero's sign": "x.setflags(write=True); x[x == 0] *= -1",
    "by its address": "ctypes.memset(x.ctypes.data, 1, x.nbytes)",
}
PICKED = {"operand": lambda t: t["b"], "result": lambda t: t.results[0]}


def writing(way, place, modes):
    space = {"np": np, "ctypes": ctypes}
    exec(f"def write(x): {WAYS[way]}", space)
    where, _, what = place.partition(" ")

    def algorithm(ar, a, b):
        space["write"](a)
        return ar.add(a, b)

    def test(t, then=true):
        space["write"](PICKED[what or "operand"](t))
        return then(t)

    said = measured_with(lambda t: test(t, lambda t: t.result() - t.exact("a")))
    given = {"algorithm": (algorithm, true), "claim": (add, test), "measure": (add, said)}
    supposed = [hypothesis("h", test)] * (where == "hypothesis")
    return mine(*given.get(where, (add, true)), where=supposed, modes=modes)


ALTERED = ("algorithm", "claim operand", "claim result", "hypothesis operand", "hypothesis result", "measure")
#: The last are the paths of stochastic rounding, on which no error is measured.
PLACED = [*itertools.product(ALTERED, [(fmt, "nearest_even") for fmt in FORMATS])]
PLACED += [*itertools.product(ALTERED[:-1], [("float4_e2m1fn", "stochastic")])]


@pytest.mark.parametrize(("place", "on"), PLACED, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(3)
def test_blocks_are_read_only_and_looked_at_afterwards(way, place, on):
    with pytest.raises((ValueError, RuntimeError), match=r"'mine': .*(read-only|written to)"):
        verify(writing(way, place, [on[1]]), *on)


def test_operands_that_are_results_and_results_kept_by_the_algorithm():
    own = []

    def kept(ar, a, b):
        own[:] = [ar.add(a, b)]
        return own[0]

    def clearing(t):
        own[0][...] = t["a"]
        return t.results[0] == t["a"]

    itself = mine(lambda ar, a, b: (a, b, a), lambda t: t.results[0] == t.results[2])
    assert verify(itself, "float8_e5m2").holds
    with pytest.raises(ValueError, match=r"written to|two answers"):
        verify(mine(kept, clearing), "float8_e5m2")


def test_a_test_that_keeps_what_it_returned_changes_nothing():
    """A claim clears the block that a hypothesis returned: nothing would be applicable."""
    given = []

    def supposed(t):
        given[:] = [t["a"] == t["a"]]
        return given[0]

    def said(t):
        given[0][...] = False
        return t["a"] == t["b"]

    x = mine(add, said, where=[hypothesis("h", supposed)])
    blocks = [np.array([1.0, 2.0], np.float32), np.array([1.0, 1.0], np.float32)]
    trial = try_block(x, on_blocks(mcf.get_format("float8_e5m2"), mcf.rounding.Rounding()), blocks)
    there = applicable(x, trial)
    assert violating(x, trial, there).tolist() == [False, True]
    assert there.tolist() == [True, True]
