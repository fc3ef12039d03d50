"""Sums over ranks, as collective operations make them: in a stated order, each hop rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import chosen, real_array, whole_number
from mcfsim.formats import Format, get_format
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding, get_rounding

Array = NDArray[Any]

#: Bytes of a segment of gloo's ring, at most.
_SEGMENT = 1 << 20


class Hops(StrEnum):
    """Orders in which the numbers of ranks 0 to N - 1 are added.

    ``sequential``: in the order of ranks. ``ring``: in N chunks, chunk c from rank c - 1 downward to rank c,
    modulo N, as gloo does; the chunks are those of its segments. ``ring_up``: chunk c from rank c + 1 upward
    to rank c, in chunks of equal length, as in NCCL's ring with one channel. ``binomial``: rank r adds the
    sum of rank ``r + 2**k``, for k = 0, 1, ... as long as r is a multiple of ``2**(k + 1)``.
    """

    SEQUENTIAL = "sequential"
    RING = "ring"
    RING_UP = "ring_up"
    BINOMIAL = "binomial"


class Division(StrEnum):
    """How a mean is made of a sum over N ranks.

    ``none``: not at all. ``before``: each rank divides first, as DDP does. ``after``: the sum is divided.
    ``reciprocal``: each rank multiplies by 1 / N, rounded into the format first, as NCCL's average does.
    """

    NONE = "none"
    BEFORE = "before"
    AFTER = "after"
    RECIPROCAL = "reciprocal"


@dataclass(frozen=True)
class Reduction:
    """Gradients of several batches, one per rank or micro-batch, that `reduce` combines at each step.

    Parameters
    ----------
    parts : int
        How many.
    order, format, rounding, divide, out_format
        As for `reduce`; by default each part is divided first, so that the result is a mean.

    Raises
    ------
    TypeError, ValueError
        If a number or name is out of range.
    """

    parts: int
    order: Hops | str = Hops.SEQUENTIAL
    format: Format | str = "float32"
    rounding: Rounding | str = "nearest_even"
    divide: Division | str = Division.BEFORE
    out_format: Format | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", whole_number("parts", self.parts, least=1))
        object.__setattr__(self, "order", chosen("order", self.order, Hops))
        object.__setattr__(self, "divide", chosen("divide", self.divide, Division))
        for label in ("format", "out_format"):
            if (fmt := getattr(self, label)) is not None:
                object.__setattr__(self, label, _kept(get_format(fmt)))
        self._reduced([np.zeros(1, np.float32)] * min(self.parts, 2))  # refuses roundings

    @classmethod
    def of(cls, given: Reduction | str | None) -> Reduction | None:
        """Return a reduction given as such or in text, as ``"8,ring,bfloat16,after"``; None for None.

        Raises
        ------
        TypeError, ValueError
            If it is neither, or an entry is out of range.
        """
        if given is None or isinstance(given, Reduction):
            return given
        if not isinstance(given, str):
            raise TypeError(f"a reduction is a Reduction or a text as '8,ring,bfloat16', not {given!r}")
        entries = [entry.strip() for entry in given.split(",")]
        names = ("parts", "order", "format", "divide", "out_format")
        if len(entries) > len(names) or not entries[0].isdecimal():
            raise ValueError(
                f"a reduction in text is the number of parts, then order, format, divide and out_format, as "
                f"'8,ring,bfloat16', not {given!r}"
            )
        return cls(int(entries[0]), **dict(zip(names[1:], entries[1:], strict=False)))

    def __call__(self, parts: Sequence[Array]) -> Array:
        """Return the parts as one array; exact numbers are added and divided exactly.

        Raises
        ------
        ValueError
            If there are more parts than stated, or fewer; see also `reduce`.
        """
        if len(parts) != self.parts:
            raise ValueError(f"a reduction of {self.parts} parts was given {len(parts)}")
        if np.asarray(parts[0]).dtype == object:
            total = sum(parts[1:], start=parts[0])
            return np.asarray(total if self.divide is Division.NONE else total / len(parts))
        return self._reduced(parts)

    def _reduced(self, parts: Sequence[Array]) -> Array:
        divide, out_format = self.divide, self.out_format
        return reduce(parts, self.order, self.format, self.rounding, divide=divide, out_format=out_format)


def _kept(fmt: Format) -> Format | str:
    """Return the name of a format, if it is known by its name, and the format itself otherwise."""
    with suppress(ValueError):
        if get_format(fmt.name) == fmt:
            return fmt.name
    return fmt


def reduce(
    parts: Sequence[ArrayLike],
    order: Hops | str = Hops.SEQUENTIAL,
    format: Format | str = "float32",
    rounding: Rounding | str = "nearest_even",
    *,
    divide: Division | str = Division.NONE,
    out_format: Format | str | None = None,
) -> Array:
    """Return the sum, or the mean, of arrays of several ranks, bit for bit as in a collective operation.

    Parameters
    ----------
    parts : sequence of array_like
        One array for each rank, of one shape. They are first rounded into the format.
    order : {"sequential", "ring", "ring_up", "binomial"}, optional
        See `Hops`.
    format : Format or str, optional
        The format of what ranks send: each sum of two is rounded into it.
    rounding : str or Rounding, optional
        The rounding of all operations; not stochastic.
    divide : {"none", "before", "after", "reciprocal"}, optional
        See `Division`.
    out_format : Format or str, optional
        A format into which the result is rounded once more, to nearest even: that of the parameters where
        gradients are reduced in a wider one, as FSDP2 does.

    Returns
    -------
    array
        Values of the format, or of the output format, in its carrier. NaN, infinities and overflow are
        handled as in the format's arithmetic.

    Raises
    ------
    TypeError
        If a part holds no real numbers.
    ValueError
        If there is no part, shapes differ, a name is unknown, or the rounding is stochastic.

    References
    ----------
    ``ring`` of ``gloo/allreduce.cc``; ``device/all_reduce.h`` of NCCL; DistributedDataParallel and its
    ``bf16_compress_hook``, which is ``format="bfloat16", divide="before"``.

    Examples
    --------
    >>> [float(reduce([1.0] * 600, "sequential", fmt)[()]) for fmt in ("bfloat16", "float32")]
    [256.0, 600.0]
    """
    order, divide = chosen("order", order, Hops), chosen("divide", divide, Division)
    fmt, policy = get_format(format), get_rounding(rounding)
    if policy.stochastic:
        raise ValueError("sums over ranks are not rounded at random: no rank says by which words")
    arrays = [real_array(part, f"parts[{rank}]") for rank, part in enumerate(parts)]
    if not arrays:
        raise ValueError("there are no parts; one array for each rank is needed")
    if odd := [rank for rank, x in enumerate(arrays) if x.shape != arrays[0].shape]:
        raise ValueError(
            f"parts[{odd[0]}] has shape {arrays[odd[0]].shape}, and parts[0] has {arrays[0].shape}"
        )
    ar = arithmetic(fmt, rounding=policy)
    ranks, count = len(arrays), float(len(arrays))
    flat = [ar.round(x).reshape(-1) for x in arrays]
    if divide is Division.BEFORE:
        flat = [ar.div(x, count) for x in flat]
    elif divide is Division.RECIPROCAL:
        share = ar.round(np.full(1, 1.0 / count))
        flat = [ar.mul(x, np.broadcast_to(share, x.shape)) for x in flat]
    if order is Hops.BINOMIAL:
        total = _in_a_tree(ar, flat)
    else:
        orders = _orders(order, ranks, flat[0].size, fmt.bits // 8 or 1)
        total = _arriving(flat, orders, 0)
        for hop in range(1, ranks):
            total = ar.add(total, _arriving(flat, orders, hop))
    if divide is Division.AFTER:
        total = ar.div(total, count)
    if out_format is not None:
        total = arithmetic(out_format).round(total)
    return np.asarray(total).reshape(arrays[0].shape)


def _orders(order: Hops, ranks: int, size: int, width: int) -> list[tuple[slice, list[int]]]:
    """Return parts of the vector, each with the order of ranks."""
    if order is Hops.SEQUENTIAL:
        return [(slice(0, size), list(range(ranks)))]
    if order is Hops.RING:
        segments = ranks * math.ceil(max(2, size * width / (_SEGMENT // width * width) / ranks))
        segment = math.ceil(math.ceil(size * width / segments) / width)
        length, step = segment * (segments // ranks), -1
    else:
        length, step = math.ceil(size / ranks), 1
    found = []
    for chunk in range(ranks):
        part = slice(chunk * length, (chunk + 1) * length)
        if part.start < size:
            found.append((part, [(chunk + step * (k + 1)) % ranks for k in range(ranks)]))
    return found


def _arriving(flat: list[Array], orders: list[tuple[slice, list[int]]], hop: int) -> Array:
    """Return what is added at a hop: each part of the vector from the rank whose turn it is."""
    if len(orders) == 1:
        return flat[orders[0][1][hop]]
    found = np.empty_like(flat[0])
    for part, places in orders:  # so that there is one addition a hop, however many parts there are
        found[part] = flat[places[hop]][part]
    return found


def _in_a_tree(ar: Arithmetic, given: list[Array]) -> Array:
    """Return the sum of vectors, added in pairs, and pairs of pairs."""
    apart = 1
    while apart < len(given):
        for rank in range(0, len(given) - apart, 2 * apart):
            given[rank] = ar.add(given[rank], given[rank + apart])
        apart *= 2
    return given[0]
