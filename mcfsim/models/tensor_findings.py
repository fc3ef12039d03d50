"""Tensors as an audit sees them: their kinds, by how they start, and the findings under each strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

# -- kinds ------------------------------------------------------------------------------------------------
#: Factors of an adapter as PEFT and torchtune name them, adapters of embeddings included.
_FACTOR = re.compile(r"(^|\.)lora_(embedding_)?(?P<factor>[abAB])(\.|$)")
_MAGNITUDE = re.compile(r"(^|\.)(lora_magnitude_vector|magnitude)(\.|$)")
#: A norm's tensor by the name of its module, or its own.
_NORM = re.compile(r"norm|(^|[._])ln(?![a-z])|(^|[._])(gain|gamma)$", re.IGNORECASE)
#: Other tensors of a norm: a bias, and statistics of batches.
_NO_GAIN = re.compile(r"(^|[._])(bias|beta|running_\w+)$", re.IGNORECASE)


class TensorKind(StrEnum):
    """Kinds of tensors.

    ``adapter A`` and ``adapter B``: factors of a low-rank adapter, ``W + s B A``. ``magnitude``: the lengths
    of the columns of such a sum (DoRA). ``gain``: the gains of a norm, which start at 1, or at 0 where the
    norm multiplies by 1 + w (Gemma).

    References
    ----------
    Hu et al., LoRA, arXiv 2106.09685; Liu et al., DoRA, arXiv 2402.09353.
    """

    ADAPTER_A = "adapter A"
    ADAPTER_B = "adapter B"
    MAGNITUDE = "magnitude"
    GAIN = "gain"
    OTHER = "other"


def kind_of(name: str, shape: Sequence[int], values: ArrayLike) -> TensorKind:
    """Return the kind of a tensor by its name and shape, and by its numbers where the name says nothing.

    Parameters
    ----------
    name : str
        Factors are called ``lora_A``, ``lora_B``, ``lora_embedding_A``, ``lora_a`` and so on, followed by an
        adapter's name and ``weight`` or by nothing. Gains lie in a module whose name has ``norm`` or ``ln``,
        or are called ``gain`` or ``gamma``.
    shape : sequence of int
        A factor has two dimensions or more; a gain or a magnitude extends along one dimension alone.
    values : array_like
        Some elements. A vector of another name is a gain if all lie in [1/2, 2).
    """
    if factor := _FACTOR.search(name):
        if len(shape) < 2:
            return TensorKind.OTHER  # a factor's bias
        return TensorKind.ADAPTER_A if factor["factor"] in "aA" else TensorKind.ADAPTER_B
    if sum(size > 1 for size in shape) > 1 or not len(shape):
        return TensorKind.OTHER
    if _MAGNITUDE.search(name):
        return TensorKind.MAGNITUDE
    if len(shape) > 1 or _NO_GAIN.search(name):
        return TensorKind.OTHER
    numbers = np.asarray(values, np.float64)
    near_one = bool(numbers.size) and bool(((numbers >= 0.5) & (numbers < 2.0)).all())
    return TensorKind.GAIN if near_one or _NORM.search(name) else TensorKind.OTHER


# -- findings ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TensorFinding:
    """The findings for one tensor under one strategy.

    Parameters
    ----------
    lost : float
        Share of its elements whose updates do nothing, averaged over the run with each step weighted by its
        rate; NaN if nothing is asked.
    edq : float
        Normalised effective descent quality <D, E> / <D, D>, averaged in the same way: 1 if all arrives.
    at_first : float
        Share of its elements that the first update leaves unchanged, at the largest rate; NaN if nothing is
        asked.
    stops : int or None
        The first step from which less than `Plan.stopped` of each update arrives until the end.
    idle : float or None
        Share of its weights that decay alone does not move at the largest rate; None without decay.
    beyond : int or None
        The first step at which its weights are out of the format's range; later steps have no EDQ.
    changed : float
        Share of its codes that a step changes, averaged over the steps.
    bytes : float
        Bytes stored for it.
    lost_by_step, edq_by_step : tuple of float
        `lost` and `edq` at each of `Audit.steps`.
    """

    lost: float
    edq: float
    at_first: float
    stops: int | None
    idle: float | None
    beyond: int | None
    changed: float
    bytes: float
    lost_by_step: tuple[float, ...]
    edq_by_step: tuple[float, ...]


@dataclass(frozen=True)
class AuditedTensor:
    """One tensor and the findings for it.

    Parameters
    ----------
    name, shape, format
        Name, shape and format of the tensor in its file.
    kind : TensorKind
        A factor of an adapter, a magnitude, a gain, or another tensor.
    decayed : bool
        Whether weight decay applies.
    rms, zeros : float
        Root mean square of its weights, and the share that is zero.
    direction_rms : float
        Root mean square of a step's directions, in units of the learning rate, without decay.
    stays_below : tuple of float
        The rates, toward zero and away from it, below which steps as long as the rate leave half of its
        weights or more unchanged, if each weight is one number of the low format: half the median distance to
        a neighbour.
    histogram : tuple of float
        Shares of |update| / ulp(weight) in the low format at the largest rate, in the bins of `EDGES`.
    found : mapping of str to TensorFinding
        The findings, by strategy.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    kind: TensorKind
    decayed: bool
    rms: float
    zeros: float
    direction_rms: float
    stays_below: tuple[float, float]
    histogram: tuple[float, ...]
    found: Mapping[str, TensorFinding]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))
