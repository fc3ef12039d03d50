"""A statement is what it would compute: no journal and no cache answers for another one."""

import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile.loops import Loop
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.storage.sweeps.reached import digest
from mcfsim.theorems import THEOREMS, hypothesis, verify
from mcfsim.theorems.check import Check
from mcfsim.theorems.compiled import Predicates
from mcfsim.theorems.identity import NoIdentityError, _parts, check_same, holding, identity_of
from mcfsim.theorems.judge import recorded_algorithm
from mcfsim.theorems.symmetries import signs_hold
from mcfsim.theorems.verification import prepare

from .differing import FAMILIES
from .trying import mine

statement = partial(mine, mcf.two_sum)
#: A format whose pairs are so many that loops are recorded, and few enough to try them all.
WIDE = Format("wide", precision=5, emin=-9, emax=10)
NARROW = "float8_e5m2"
ROOT = Path(__file__).parents[2]


# -- what differs in one thing ------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [2, pytest.param(16, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_statements_that_differ_in_one_thing_they_reach_have_different_identities(count):
    for name, make in FAMILIES.items():
        found = [identity_of(make(n)) for n in range(1, 1 + count)]
        assert all(found), (name, found[0].lack)
        assert [identity_of(make(n)) for n in range(1, 1 + count)] == found, f"{name}: built again"
        # Kinds of numbers, of which there are eleven, come again.
        different = found[:11] if name == "kinds of numbers" else found
        assert len(set(different)) == len(different), name
    assert len(FAMILIES) > 90


def test_what_differs_has_another_key():
    for name in ("closure cell", "relative error", "a list", "words of the claim", "bound", "families"):
        one, two, again = (prepare(FAMILIES[name](n), "float4_e2m1fn", "nearest_even").key for n in (1, 2, 1))
        assert one == again != two, name


def digests():
    found = {name: digest(_parts(make(1))) for name, make in FAMILIES.items()}
    return found | {name: digest(_parts(theorem)) for name, theorem in list(THEOREMS.items())[::9]}


@pytest.mark.slow
def test_identities_are_the_same_in_another_process():
    code = "import json; from tests.theorems.test_identity import digests; print(json.dumps(digests()))"
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    found = digests()
    assert json.loads(done.stdout) == found
    assert len(found) >= 110
    assert all(name in identity_of(theorem).digest for name, theorem in list(THEOREMS.items())[::9])


def test_an_instance_is_what_it_was_before_it_computed_something():
    x = statement(lambda t: t.finite & (mcf.get_format("bfloat16").precision == 8))
    before = identity_of(x)
    bound = FAMILIES["a method's self"](3)
    found, _ = identity_of(bound), bound.claim.said.test.__self__.twice
    assert (identity_of(x), identity_of(bound)) == (before, found)


def test_circles_and_depth():
    ring: list[object] = [1]
    ring.append(ring)
    other: list[object] = [1, [1]]
    other[1] = other
    assert digest([("x", ring)]) == digest([("x", other)]) != digest([("x", [1, ring])])
    deep: tuple[object, ...] = ()
    far: list[object] = []
    for _ in range(200):  # 2^200 paths
        deep = (deep, deep)
    digest([("x", deep)])
    for _ in range(10_000):
        far = [far]
    assert "nested too deeply" in identity_of(statement(lambda t, far=far: t.finite)).lack


# -- journals and caches ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_claim_is_judged_by_what_it_reads_now(tmp_path):
    """More than once, so that loops are recorded, compiled and kept; and by one journal."""
    bound = [1e30]

    def small(t):
        return np.abs(t.results[0]) <= 4

    statements = {
        "claim": statement(lambda t: np.abs(t.results[0]) <= bound[0]),
        "hypothesis": statement(small, where=[hypothesis("small", lambda t: abs(t["a"]) <= bound[0])]),
        "algorithm": mine(lambda ar, a, b: ar.mul(ar.add(a, b), bound[0]), small),
    }
    for name, x in statements.items():
        found = []
        for bound[0] in (1e30, 1.0, 1e30) if name != "algorithm" else (1.0, 2.0, 1.0):
            now = verify(x, WIDE)
            assert now == verify(x, WIDE, journal=tmp_path / "j")
            found.append((now.applicable, now.violations))
        assert found[0] == found[2]
        assert found[0] != found[1], name


def test_signs_and_operands_follow_what_is_read():
    """What was found out of one statement, its signs and its families, is not taken for another."""
    odd, family = [False], [Fraction(1)]
    families, scaling = (lambda p: [(family[0], Fraction(1))]), "common"
    x = statement(lambda t: (t["a"] > -3) | odd[0], families=families, scaling=scaling)
    place = mcf.get_format(NARROW), mcf.rounding.Rounding()
    said, operands = [], []
    for odd[0], family[0] in ((False, Fraction(1)), (True, Fraction(3)), (False, Fraction(1))):
        said.append(signs_hold(x, *place, each=False))
        operands.append(prepare(replace(x, scaling="none"), "e8m11", "up").domain().parts[0].tables[0][0][0])
    assert said == [False, True, False]
    assert operands == [1, 3, 1]


# -- what has no name ---------------------------------------------------------------------------------------
def unnamed(tmp_path):
    file = open(tmp_path / "some", "w")  # noqa: SIM115  # closed by the test
    return {
        "an open file": file,
        "a random generator": np.random.default_rng(1),
        "a generator": (x for x in "abc"),
        "a live iterator, of type list_iterator": iter([1]),
        "a live iterator, of type map": map(abs, [1]),
        "a lock of threads": threading.Lock(),
        "a RLock of threads": threading.RLock(),
        "a Event of threads": threading.Event(),
        "a memoryview, whose state cannot be determined": memoryview(b"1"),
        "eval, which may read anything": eval,
    }


@pytest.mark.slow
def test_what_cannot_be_named_is_verified_and_kept_by_no_journal(tmp_path):
    things = unnamed(tmp_path)
    for text, x in things.items():
        said = statement(lambda t, x=x: t.finite | (x is None))
        refusal = rf"^'mine' cannot be kept in a journal.*: .*'?.* is {text}$"
        with pytest.raises(NoIdentityError, match=refusal):
            verify(said, NARROW, journal=tmp_path / "journal")
        assert not (tmp_path / "journal").exists()
    for x in [*things.values()][:3]:
        said = statement(lambda t, x=x: (t.results[0] == t["a"]) | (x is None))
        named = statement(lambda t, x=3: (t.results[0] == t["a"]) | (x is None))
        assert verify(said, WIDE) == verify(named, WIDE)
    for test in (
        lambda t: t.finite & (random.random() < 2),
        lambda t: t.finite & (np.random.random() < 2),  # noqa: NPY002
        lambda t: t.finite & bool(open),
    ):
        with pytest.raises(NoIdentityError, match="cannot be kept in a journal"):
            verify(statement(test), NARROW, journal=tmp_path / "j")
    things["an open file"].close()


def test_it_is_said_where_it_is(tmp_path):
    with open(tmp_path / "f", "w") as f:
        inner = {"x": [f]}
        with pytest.raises(ValueError, match="item 0 of item 'x' of closure cell 'inner' of the claim is an"):
            verify(statement(lambda t: t.finite | bool(inner)), NARROW, journal=tmp_path / "j")
        supposed = hypothesis("h", lambda t, f=f: t.finite)
        with pytest.raises(ValueError, match="default 1 of the hypothesis 'h' is an open file"):
            verify(statement(where=[supposed]), NARROW, journal=tmp_path / "j")


# -- asked twice --------------------------------------------------------------------------------------------
def counted():
    calls = []

    def test(t):
        calls.append(1)
        return t.finite | (len(calls) > 5)

    return test


class Some:
    def __init__(self, a):
        self.finite, self.size = np.True_, a.size


@pytest.mark.parametrize("test", [lambda t: np.random.default_rng().random(t.size) < 0.5, counted()])
@pytest.mark.parametrize("place", ["claim", "hypothesis", "algorithm"])
@pytest.mark.parametrize("fmt", ["float4_e2m1fn", NARROW])
def test_what_gives_two_answers_is_refused(test, place, fmt):
    def algorithm(ar, a, b):
        drawn = np.where(test(Some(a)), a, b)
        return ar.mul(ar.add(a, b), drawn * 0 + 1), drawn

    given = {"claim": {"said": test}, "hypothesis": {"where": [hypothesis("it is", test)]}}
    with pytest.raises(NoIdentityError, match="gave two answers to the same question"):
        verify(mine(**given.get(place, {"algorithm": algorithm})), fmt)


def test_a_statement_changed_by_its_first_cases_is_refused_each_time():
    count = [0]

    def algorithm(ar, a, b):
        count[0] += a.size == 2
        return two_sum(ar, a, b)

    for _ in range(3):
        count[0] = 0
        with pytest.raises(NoIdentityError, match="was changed while it was tried"):
            verify(mine(algorithm), "float4_e2m1fn")


def test_a_statement_is_asked_twice_and_no_more_before_it_is_tried(monkeypatch):
    asked, right = [], Check._answers
    monkeypatch.setattr(Check, "_answers", lambda one: asked.append(one) or right(one))
    assert verify(mine(), "float4_e2m1fn").holds
    assert len(asked) == 2


def test_a_statement_changed_while_it_is_tried_is_refused():
    bound = [1.0]
    x = statement(lambda t: np.abs(t["a"]) <= bound[0])
    with pytest.raises(NoIdentityError, match="was changed while it was tried"), holding(x):
        bound[0] = 2.0
    with holding(x) as before:
        bound[0] = 1.0
        bound[0] = 2.0
    check_same(x, before)


# -- changed meanwhile --------------------------------------------------------------------------------------
BOUND = [1e9]


def read_from_a_module(t):
    return np.abs(t.results[0]) <= BOUND[0]


@pytest.mark.slow
def test_a_global_changed_here_is_not_another_one_there():
    pytest.importorskip("cloudpickle")
    x = statement(read_from_a_module)
    BOUND[0] = 1.0
    try:
        with pytest.raises(RuntimeError, match="is another statement in this process"):
            verify(x, "float4_e2m1fn", workers=2)
    finally:
        BOUND[0] = 1e9


def test_a_loop_that_is_kept_does_not_ask_a_statement_that_has_changed():
    """It knows the statement that it was made of, in whose place another one may be that says the same."""

    bound, place = [1.0], (mcf.get_format(NARROW), mcf.rounding.Rounding())
    at_most = (statement(lambda t, x=x: np.abs(t["a"]) <= x[0]) for x in (bound, [1.0]))
    before, same = (Predicates(x, *place) for x in at_most)
    assert before == same
    loop = Loop(recorded_algorithm(before.theorem, *place), epilogue=before)
    loop.line([])
    bound[0] = 2.0
    assert Predicates(before.theorem, *place) != before
    with pytest.raises(NoIdentityError, match="was changed"):
        loop.line([])


@pytest.mark.parametrize("options", [{}, {"compiled": False}, {"backend": "native"}, {"scalars": "rounded"}])
def test_a_claim_may_compute_by_an_arithmetic_of_its_own(options, tmp_path):
    """What an arithmetic makes and keeps when it is used is no change of the statement."""
    ar = mcf.arithmetic("float32", **options)
    x = statement(lambda t: ar.add(t["a"], t["b"]) == ar.add(t["b"], t["a"]))
    assert verify(x, NARROW, journal=tmp_path / "j").holds


def test_a_claim_may_not_draw_other_words_each_time():
    drawing = mcf.arithmetic("float32", "stochastic", random=mcf.RandomWords(1))
    with pytest.raises(NoIdentityError, match="gave two answers"):
        verify(statement(lambda t: drawing.add(t["a"], t["b"]) >= t["a"]), NARROW)
