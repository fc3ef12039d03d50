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

#: Few cases, and as many as are judged by loops where there are some.
FORMATS = ("float4_e2m1fn", Format("wide", precision=5, emin=-9, emax=10))


def true(t):
    return t.finite | True


def theorem(algorithm=lambda ar, a, b: ar.add(a, b), test=true, **facts):
    said = facts.pop("claim", None) or claim("it is so", test)
    return Theorem("mine", algorithm, (value("a"), value("b")), said, **facts)


def measured_with(error):
    """Return a claim whose error is computed from trials."""
    return bounded(error, lambda t: t.exact("b"), 9, unit=1)


# -- what is given back -------------------------------------------------------------------------------------
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


def writing(way, place):
    """Return what a statement is made of that writes in some way to what it was given."""
    space = {"np": np, "ctypes": ctypes}
    exec(f"def write(x): {WAYS[way]}", space)
    where, _, what = place.partition(" ")

    def algorithm(ar, a, b):
        space["write"](a)
        return ar.add(a, b)

    def test(t, then=true):
        space["write"](PICKED[what or "operand"](t))
        return then(t)

    return {
        "algorithm": {"algorithm": algorithm},
        "claim": {"test": test},
        "hypothesis": {"where": [hypothesis("h", test)]},
        "measure": {"claim": measured_with(lambda t: test(t, lambda t: t.result() - t.exact("a")))},
    }[where]


ALTERED = ("algorithm", "claim operand", "claim result", "hypothesis operand", "hypothesis result", "measure")
#: The last are the paths of stochastic rounding, on which no error is measured.
PLACED = [*itertools.product(ALTERED, [(fmt, "nearest_even") for fmt in FORMATS])]
PLACED += [*itertools.product(ALTERED[:-1], [("float4_e2m1fn", "stochastic")])]


@pytest.mark.parametrize(("place", "on"), PLACED, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_blocks_are_read_only_and_looked_at_afterwards(way, place, on):
    with pytest.raises((ValueError, RuntimeError), match=r"'mine': .*(read-only|written to)"):
        verify(theorem(**writing(way, place), modes=[on[1]]), *on)


def test_operands_that_are_results_and_results_kept_by_the_algorithm():
    own = np.zeros(1)

    def kept(ar, a, b):
        nonlocal own
        own = ar.add(a, b)
        return own

    def clearing(t):
        own[...] = t["a"]
        return t.results[0] == t["a"]

    itself = theorem(lambda ar, a, b: (a, b, a), lambda t: t.results[0] == t.results[2])
    assert verify(itself, "float8_e5m2").holds
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
    blocks = [np.array([1.0, 2.0], np.float32), np.array([1.0, 1.0], np.float32)]
    trial = try_block(x, on_blocks(mcf.get_format("float8_e5m2"), mcf.rounding.Rounding()), blocks)
    there = applicable(x, trial)
    assert violating(x, trial, there).tolist() == [False, True]
    assert there.tolist() == [True, True]
