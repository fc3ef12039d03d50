"""Gradients of a run: what a problem computes for one batch, or for several that are reduced over ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import chosen, lacks, real_array, whole_number
from mcfsim.formats import Format, get_format
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.training.problems import Problem, get_problem
from mcfsim.training.problems.base import Tensors, check_loss, loss_and_gradient_of, start_of
from mcfsim.training.problems.calculation import known

Array = NDArray[Any]

# -- sums over ranks, as collective operations make them: in a stated order, each hop rounded ------------
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
        """Return a reduction given as an object or as text like ``"8,ring,bfloat16,after"``; None for None.

        Raises
        ------
        TypeError, ValueError
            If it is neither, or an entry is out of range.
        """
        if given is None or isinstance(given, Reduction):
            return given
        if not isinstance(given, str):
            raise TypeError(f"a reduction is a Reduction or a text like '8,ring,bfloat16', not {given!r}")
        entries = [entry.strip() for entry in given.split(",")]
        names = ("parts", "order", "format", "divide", "out_format")
        if len(entries) > len(names) or not entries[0].isdecimal():
            raise ValueError(
                f"a reduction in text is the number of parts, then order, format, divide and out_format, "
                f"like '8,ring,bfloat16', not {given!r}"
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
        return known(fmt).name
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
        raise ValueError("sums over ranks are not rounded at random: there are no random words for them")
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
    for part, places in orders:  # so that each hop is one addition, however many parts there are
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


# -- where gradients come from ----------------------------------------------------------------------------
class Source(Protocol):
    """A source of starting weights and of one gradient per step, the same for the same arguments."""

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""

    @property
    def has_losses(self) -> bool:
        """Whether a loss comes with each gradient."""

    def check_exact(self) -> None:
        """Raise ValueError if the source has no gradients for weights in mpmath's numbers."""

    def settings(self) -> dict[str, Any]:
        """Return the entries of a run's settings that describe the source."""

    def start(self, seed: int) -> Tensors:
        """Return the weights before the first step."""

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss (None if there is none) and the gradient of a step, by tensor."""

    def try_out(self, seed: int) -> None:
        """Raise TypeError or ValueError, before the first step, if `results` cannot be computed."""

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return named numbers about the weights after the last step."""

    def fingerprint(self, seed: int) -> str:
        """Return a digest of data that the settings need not name."""


@dataclass(frozen=True)
class ComputedGradients:
    """A source of gradients that a problem computes, in its own precision, at the weights given.

    Parameters
    ----------
    problem : Problem
        The objective.
    reduction : Reduction, optional
        With a reduction of k parts, step t reduces the gradients of batches ``k (t - 1) + 1`` to ``k t`` to
        one.
    """

    problem: Problem
    reduction: Reduction | None = None
    has_losses = True

    @classmethod
    def of(cls, given: Any, reduction: Any = None) -> ComputedGradients:
        """Make a source from a problem or its name; raise TypeError for anything else."""
        problem = get_problem(given) if isinstance(given, str) else given
        if isinstance(problem, type) or (lacking := lacks(problem, Problem)):
            why = "" if isinstance(problem, type) else f", which lacks {', '.join(lacking)}"
            raise TypeError(
                f"problem must be a Problem, like mcfsim.get_problem('quadratic'), not {problem!r}{why}"
            )
        return cls(problem, Reduction.of(reduction))

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""
        return self.problem.decayed

    def check_exact(self) -> None:
        """Raise ValueError if the problem does not compute with mpmath's numbers."""
        if not self.problem.exact_capable:
            raise ValueError(
                f"problem {self.problem.name!r} cannot be trained in exact arithmetic; leave out 'exact'"
            )

    def settings(self) -> dict[str, Any]:
        """Return the problem's settings, and those of a reduction if there is one."""
        reduced = {} if self.reduction is None else {"reduction": self.reduction}
        return {"problem": self.problem.settings(), **reduced}

    def start(self, seed: int) -> Tensors:
        """Return the problem's starting point."""
        return start_of(self.problem, seed)

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss and the gradient at these weights."""
        reduction = self.reduction
        if reduction is None:
            return loss_and_gradient_of(self.problem, self._taken(weights), step, seed)
        last = reduction.parts * step
        losses, parts = [], []
        for batch in range(last - reduction.parts + 1, last + 1):
            loss, gradient = loss_and_gradient_of(self.problem, self._taken(weights), batch, seed)
            losses.append(loss)
            parts.append({name: x.copy() for name, x in gradient.items()})  # a problem may reuse one buffer
        mean = sum(losses) / reduction.parts
        return mean, {name: reduction([part[name] for part in parts]) for name in parts[0]}

    def try_out(self, seed: int) -> None:
        """Raise an error if a custom problem has no validation loss at its start."""
        if not type(self.problem).__module__.startswith("mcfsim."):
            self.results(self.start(seed))

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return the validation loss."""
        loss = self.problem.validation_loss(self._taken(weights))
        check_loss(f"validation_loss of problem {self.problem.name!r}", loss)
        return {"validation_loss": float(loss)}

    def fingerprint(self, seed: int) -> str:
        """Return a SHA-256 of what the problem computes at its start.

        It covers the start, the loss on the first batch and its gradient, and the validation loss, with
        names, shapes and all bits.
        """
        start = self.start(seed)
        loss, gradients = loss_and_gradient_of(self.problem, self._taken(start), 1, seed)
        losses = np.array([loss, *self.results(start).values()], dtype=np.float64)
        digest = hashlib.sha256()
        for part in (start, gradients, {"losses": losses}):
            for name in sorted(part):
                array = np.asarray(part[name])
                digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()

    def _taken(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Return copies of weights in the dtype that the problem computes in, or of numbers of mpmath."""
        dtype = np.float64 if self.problem.exact_capable else np.float32
        return {name: x.astype(object if x.dtype == object else dtype) for name, x in weights.items()}
