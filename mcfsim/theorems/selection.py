"""How much is tried of the operands that there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mcfsim.checks.arguments import check_int

#: Which operands: ``core`` uses the reductions of the statement, ``all`` uses none.
Extent = Literal["core", "all"]
#: A core of pairs of words has at most so many cases, and an eighth of it if its low words lie deep.
LIMIT = 1_100_000_000
#: So many cases are sampled.
SAMPLES = 1 << 22


@dataclass(frozen=True)
class Selection:
    """Which operands of a format are tried.

    Parameters
    ----------
    extent : {"core", "all"}, optional
        ``all`` takes every operand of the format and no reduction.
    limit : int, optional
        The most cases of a core of pairs of words; it is made less deep until it has no more.
    samples, seed : int, optional
        How many random cases there are where the core is not all, and which.

    Raises
    ------
    TypeError
        If a number is no int.
    ValueError
        If the extent is unknown, or a number out of range.
    """

    extent: Extent = "core"
    limit: int = LIMIT
    samples: int = SAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.extent not in get_args(Extent):
            raise ValueError(f"unknown extent {self.extent!r}; known extents: {', '.join(get_args(Extent))}")
        for label, least in (("limit", 1), ("samples", 0), ("seed", 0)):
            check_int(label, getattr(self, label), least)
