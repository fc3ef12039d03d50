"""What rounding costs a step, of elements that come a part at a time, or from several processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from mcfsim.training.inner_products import InnerProducts, all_finite, ratio
from mcfsim.training.metrics import effective_update


@dataclass
class Tally:
    """Sums over the elements of a step, from which lost arithmetic and EDQ follow.

    They are those of `mcfsim.metrics.lost_fraction` and `mcfsim.metrics.normalized_edq` of all elements
    together; the EDQ up to the order in which its sums are formed, in binary64.

    Attributes
    ----------
    asked, unmoved : int
        Elements with an update that is not zero; those of them whose represented value did not move.
    finite : bool
        Whether no number was infinite or NaN.
    """

    asked: int = 0
    unmoved: int = 0
    finite: bool = True
    _parts: list[InnerProducts] = field(default_factory=list)

    def add(self, intended: ArrayLike, before: Sequence[ArrayLike], after: Sequence[ArrayLike]) -> None:
        """Count in some elements: D, and the components of their represented values, before and after."""
        d, e = np.asarray(intended, np.float64).ravel(), effective_update(before, after)
        if d.size:
            self.finite &= all_finite(d, *before, *after)
            self.asked += int(np.count_nonzero(d))
            self.unmoved += int(np.count_nonzero((d != 0) & (e == 0)))
            self._parts = [InnerProducts.joined([*self._parts, InnerProducts.of(d, e)])]

    @classmethod
    def joined(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the tally of all elements of some."""
        found = list(tallies)
        counts = sum(x.asked for x in found), sum(x.unmoved for x in found)
        parts = [part for x in found for part in x._parts]
        return cls(*counts, all(x.finite for x in found), parts)

    @property
    def lost(self) -> float:
        """Share of elements with D != 0 that did not move; NaN if there is none, or one is not finite."""
        return ratio(self.unmoved, self.asked) if self.finite else float("nan")

    @property
    def normalized_edq(self) -> float:
        """``<D, E> / ||D||**2``: 1 if nothing is lost; NaN if D is zero, or a number is not finite."""
        return InnerProducts.joined(self._parts).normalized_edq() if self.finite else float("nan")
