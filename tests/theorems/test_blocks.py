"""What algorithms, hypotheses and claims get is for reading, and what they give back are plain arrays."""

import ctypes
import itertools

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.factory import on_blocks
from mcfsim.formats import Format
from mcfsim.theorems import Theorem, claim, hypothesis, value, verify
from mcfsim.theorems.claims import bounded
from mcfsim.theorems.judge import applicable, try_block, violating

PAIR = (value("a"), value("b"))
#: Few cases, and as many as are judged by loops where there are some.
FORMATS = ("float4_e2m1fn", Format("wide", precision=5, emin=-9, emax=10))


def theorem(algorithm=lambda ar, a, b: ar.add(a, b), test=lambda t: t.finite | True, **facts):
    said = facts.pop("claim", None) or claim("it is so", test)
    return Theorem("mine", algorithm, PAIR, said, **facts)


# -- what is given back -------------------------------------------------------------------------------------
class Own(np.ndarray):
    """A class of arrays of somebody's."""


STRANGE = {
    "all masked": lambda x: np.ma.array(x, mask=True),
    "masked nowhere": lambda x: np.ma.array(x),
    "own": lambda x: x.view(Own),
    "recarray": lambda x: x.view(np.recarray),
    "matrix": lambda x: np.matrix(x),
    "matrix of one column": lambda x: np.matrix(x).T,
    "0-d": lambda x: np.array(x[0]),
    "number": lambda x: x[0],
    "list": lambda x: x.tolist(),
    "objects": lambda x: x.astype(object),
    "shorter": lambda x: x[:1].repeat(x.size - 1),
    "of two axes": lambda x: x.reshape(1, -1),
}


def measured_with(error):
    """Return a claim whose error is computed from trials."""
    return bounded(error, lambda t: t.exact("b"), 9, unit=1)


PLACES = {
    "algorithm": lambda s: theorem(lambda ar, a, b: s(ar.add(a, b))),
    "one of two results": lambda s: theorem(lambda ar, a, b: (a, s(ar.add(a, b)))),
    "operand": lambda s: theorem(lambda ar, a, b: (s(a), b)),
    "claim": lambda s: theorem(test=lambda t: s(t["a"] == t["b"])),
    "true claim": lambda s: theorem(test=lambda t: s(t.finite | True)),
    "hypothesis": lambda s: theorem(where=[hypothesis("h", lambda t: s(t["a"] == t["b"]))]),
    "false hypothesis": lambda s: theorem(where=[hypothesis("h", lambda t: s(t["a"] != t["a"]))]),
    "part of a claim": lambda s: theorem(test=lambda t: t.only(t["a"] == 0, lambda u: s(u["b"] == u["a"]))),
    "measure": lambda s: theorem(claim=measured_with(lambda t: s(t["a"] == t["b"]))),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_only_plain_arrays_are_taken(place, fmt, tmp_path):
    def mapped(x):
        found = np.memmap(tmp_path / "m", x.dtype, "w+", shape=x.shape)
        found[:] = x
        return found

    for name, of in {**STRANGE, "memmap": mapped}.items():
        strange_one = PLACES[place](of)
        # From a unit of work it comes as a RuntimeError.
        with pytest.raises((TypeError, ValueError, RuntimeError), match="'mine': "):
            print(name, verify(strange_one, fmt))


# -- what is written to -------------------------------------------------------------------------------------
WAYS = {
    "in place": "x -= 1",
    "an element": "x[0] = 3",
    "by a ufunc": "np.add(x, x, out=x)",
    "by copyto": "np.copyto(x, 1)",
    "by its flag": "x.setflags(write=True); x[...] = 1",
    "by its base": "own = x if x.base is None else x.base; own.flags.writeable = True; own[...] = 1",
    "by a view": "x.flags.writeable = True; x.view(f'u{x.itemsize}')[-1] ^= 1",
    "by a zero's sign": "x.setflags(write=True); x[x == 0] *= -1",
    "by its address": "ctypes.memset(x.ctypes.data, 1, x.nbytes)",
}


def writing(text):
    """Return a function that writes to an array."""
    space = {"np": np, "ctypes": ctypes}
    exec(f"def way(x): {text}", space)
    return space["way"]


def doing(way, pick, then):
    """Return a test that writes to a block of a trial, and then says something."""

    def test(t):
        way(pick(t))
        return then(t)

    return test


def true(t):
    return t.finite | True


PICKED = {"operand": lambda t: t["b"], "result": lambda t: t.results[0]}


def altered(way, place, **facts):
    """Return a statement that writes to what it was given."""

    def algorithm(ar, a, b):
        if place == "algorithm":
            way(a)
        return ar.add(a, b)

    where, _, what = place.partition(" ")
    if where == "claim":
        facts["test"] = doing(way, PICKED[what], true)
    elif where == "hypothesis":
        facts["where"] = [hypothesis("h", doing(way, PICKED[what], true))]
    elif where == "measure":
        facts["claim"] = measured_with(doing(way, PICKED["operand"], lambda t: t.result() - t.exact("a")))
    return theorem(algorithm, **facts)


ALTERED = ("algorithm", "claim operand", "claim result", "hypothesis operand", "hypothesis result", "measure")
#: The last are the paths of stochastic rounding, on which no error is measured.
PLACED = [*itertools.product(ALTERED, [(fmt, None) for fmt in FORMATS])]
PLACED += [*itertools.product(ALTERED[:-1], [("float4_e2m1fn", "stochastic")])]


@pytest.mark.parametrize(("place", "on"), PLACED, ids=str)
@pytest.mark.parametrize("way", [*map(writing, WAYS.values())], ids=WAYS)
def test_blocks_are_read_only_and_looked_at_afterwards(way, place, on):
    fmt, mode = on
    of_paths = {"modes": [mode]} if mode else {}
    with pytest.raises((ValueError, RuntimeError), match=r"'mine': .*(read-only|written to)"):
        verify(altered(way, place, **of_paths), fmt, mode or "nearest_even")


def test_operands_that_are_results_and_results_kept_by_the_algorithm():
    own = np.zeros(1)

    def itself(ar, a, b):
        return a, b, a

    def kept(ar, a, b):
        nonlocal own
        own = ar.add(a, b)
        return own

    def clearing(t):
        own[...] = t["a"]
        return t.results[0] == t["a"]

    assert verify(theorem(itself, lambda t: t.results[0] == t.results[2]), "float8_e5m2").holds
    with pytest.raises(ValueError, match=r"written to|two answers"):
        verify(theorem(kept, clearing), "float8_e5m2")


def test_a_test_that_keeps_what_it_returned_changes_nothing():
    """A claim clears the block that a hypothesis returned: nothing would be applicable."""
    given = []

    def supposed(t):
        given[:] = [t["a"] == t["a"]]
        return given[0]

    def said(t):
        given[0][...] = False
        return t["a"] == t["b"]

    x = theorem(test=said, where=[hypothesis("h", supposed)])
    with pytest.raises(ValueError, match="two answers"):  # it changes what it reads
        verify(x, "float4_e2m1fn")
    blocks = [np.array([1.0, 2.0], np.float32), np.array([1.0, 1.0], np.float32)]
    trial = try_block(x, on_blocks(mcf.get_format("float8_e5m2"), mcf.rounding.Rounding()), blocks)
    there = applicable(x, trial)
    assert violating(x, trial, there).tolist() == [False, True]
    assert there.tolist() == [True, True]
