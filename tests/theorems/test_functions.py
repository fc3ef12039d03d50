"""Statements on functions: their bounds hold on few bits, and a share of their bounds does not."""

from dataclasses import replace
from fractions import Fraction

import pytest

from mcfsim.formats import Format
from mcfsim.theorems import verify
from mcfsim.theorems.catalogue import accumulations, complex_plane
from mcfsim.theorems.logic import AllOf, Within
from mcfsim.theorems.statement import Claim

pytestmark = pytest.mark.slow

#: Few bits, and room for all products.
SMALL = Format("p5", precision=5, emin=-40, emax=40)
ALL = (*accumulations.THEOREMS, *complex_plane.THEOREMS)
BOUNDED = [x.name for x in ALL if x.holds and x.claim.measured is not None]
#: The share of its bound that an error reaches, where that is less than a half.
REACHED = {
    "doubly_compensated_sum": Fraction(2, 5),
    "compensated_horner": Fraction(1, 10),
    "horner": Fraction(1, 3),
}


def sharper(said, factor):
    """Return a proposition whose error bounds are multiplied by a factor."""
    if isinstance(said, AllOf):
        return AllOf(tuple(sharper(part, factor) for part in said.parts))
    if isinstance(said, Within):
        constant = factor * said.bound.at(SMALL.precision)
        return replace(said, bound=replace(said.bound, constant=constant, text=""))
    return said


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.sampled(6, each=False)
def test_a_bound_holds_and_no_small_share_of_it_does(name):
    (theorem,) = (x for x in ALL if x.name == name)
    assert not verify(theorem, SMALL, samples=1 << 14, limit=1 << 20).violations
    claim = Claim(sharper(theorem.claim.said, REACHED.get(name, Fraction(1, 2))))
    wrong = replace(theorem, name=f"{name}_sharper", claim=claim, sharp="", worst=None)
    assert verify(wrong, SMALL, samples=1 << 14, limit=1 << 20).violations
