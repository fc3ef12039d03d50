"""Statements of unbounded exponents: the range of the format that stands for them is not the statement's."""

import random
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.oracle import FractionArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS, Theorem, claim, relative_error, value, verify
from mcfsim.theorems.claims import product_of, quotient_of
from mcfsim.theorems.domain import cover
from mcfsim.theorems.in_range import Watch, inside, may_leave
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.trial import flat

#: Of one operation: |RN(t) - t| <= u |t|.
OPERATIONS = {
    "mul": (lambda ar, a, b: ar.mul(a, b), relative_error(1, product_of("a", "b"), unit=1)),
    "div": (lambda ar, a, b: ar.div(a, b), relative_error(1, quotient_of("a", "b"), unit=1)),
}


def stated(what, **facts):
    """Return the statement about one operation, or that the results of an algorithm are finite."""
    algorithm, about = (what, claim("finite", lambda t: t.finite)) if callable(what) else OPERATIONS[what]
    return Theorem("own", algorithm, [value("a"), value("b")], about, range="unbounded", **facts)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.sampled(3)
def test_errors_of_one_operation_are_as_the_definition_says(operation, fmt):
    """Whatever the exponents of the format, and declared to scale or not."""
    for scaling in ("none", "each"):
        certificate = verify(stated(operation, scaling=scaling), fmt, samples=20_000, limit=1 << 22)
        assert certificate.holds, (scaling, str(certificate))
        assert certificate.worst.constant != "0/1"


@pytest.mark.parametrize("squarings", [4, 5, 12])
def test_what_overflows_where_nothing_can_is_not_tried_and_a_division_by_zero_is_none(squarings):
    def power(ar, a, b):
        for _ in range(squarings):
            a = ar.mul(a, a)
        return ar.mul(a, b)

    certificate = verify(stated(power), "bfloat16", samples=4000)
    assert certificate.holds
    assert certificate.applicable < certificate.tried
    divided = stated(lambda ar, a, b: ar.div(a, ar.sub(b, b)))
    assert verify(divided, "bfloat16", samples=99).verdict == "refuted"


@pytest.mark.slow
def test_the_exponents_of_the_format_are_no_matter():
    """Which operands are tried depends on its precision alone."""
    formats = mcf.Format("wide", precision=8, emin=-500, emax=500), mcf.get_format("bfloat16")
    said = [theorem for theorem in THEOREMS.values() if theorem.range == "unbounded"]
    for theorem in (stated("mul", scaling="each"), *said[::3]):
        if theorem.precision <= 8:
            domains = [cover(theorem, fmt, Rounding(), Selection(limit=4000)) for fmt in formats]
            one, other = (
                (domain.covers, [(part.kind, part.text, part.size) for part in domain.parts])
                for domain in domains
            )
            assert one == other, theorem.name


# -- the watch ----------------------------------------------------------------------------------------------
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "neg": 1, "abs": 1}


def text_at_random(draw):
    """Return a text that carries out random steps on the numbers that it has."""
    steps = []
    for place in range(3, 4 + draw.randrange(6)):
        operation = draw.choice(list(ARITY))
        steps.append((operation, [draw.randrange(place) for _ in range(ARITY[operation])]))

    def text(ar, *numbers):
        for operation, places in steps:
            numbers += (getattr(ar, operation)(*(numbers[place] for place in places)),)
        return numbers[3:]

    return text


@pytest.mark.parametrize("texts", [60, pytest.param(1500, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_what_stays_in_range_is_as_with_unbounded_exponents(texts):
    """Inside the range, results are those of unbounded exponents; outside, some operation's is another."""
    draw, p = random.Random(texts), 4
    fmt = mcf.Format("narrow", precision=p, emin=-9, emax=9)
    ar, exactly = mcf.backends.factory.on_blocks(fmt, Rounding()), FractionArithmetic(p)
    seen = {True: 0, False: 0}
    for _ in range(texts):
        algorithm = text_at_random(draw)
        numbers = [
            [draw.choice((1, -1)) * draw.randrange(8, 16) * 2.0 ** draw.randint(-9, 3) for _ in range(40)]
            for _ in range(3)
        ]
        watch = Watch(ar, 40)
        with np.errstate(all="ignore"):
            results = flat(algorithm(watch, *(np.array(x, np.float32) for x in numbers)))
        for case, operands in enumerate(zip(*numbers, strict=True)):
            try:
                right = flat(algorithm(exactly, *map(Fraction, operands)))
            except ZeroDivisionError:
                continue
            found = [float(result[case]) for result in results]
            same = all(np.isfinite(found)) and list(map(Fraction, found)) == right
            assert same or not watch.inside[case], operands
            seen[same] += 1
    assert min(seen.values()) > texts


def test_statements_that_cannot_leave_the_range_are_not_watched():
    for theorem in THEOREMS.values():
        scaled = theorem.scaling != "none" and theorem.range == "unbounded"
        assert may_leave(theorem, unbounded(8)) == (theorem.range == "unbounded" and not scaled), theorem.name
    trial = try_block(
        THEOREMS["two_sum"], mcf.backends.factory.on_blocks(unbounded(8), Rounding()), 2 * [np.ones(3, "f4")]
    )
    assert inside(THEOREMS["two_sum"], trial) is None
