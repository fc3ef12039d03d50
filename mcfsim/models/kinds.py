"""Kinds of tensors whose starts are alike: factors of adapters, magnitudes, gains of norms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

#: Factors of an adapter: of PEFT and those who store as it does, of torchtune; of embeddings.
_FACTOR = re.compile(r"(^|\.)lora_(embedding_)?(?P<factor>[abAB])(\.|$)")
_MAGNITUDE = re.compile(r"(^|\.)(lora_magnitude_vector|magnitude)(\.|$)")
#: A norm's tensor by the name of its module, or its own.
_NORM = re.compile(r"norm|(^|[._])ln(?![a-z])|(^|[._])(gain|gamma)$", re.IGNORECASE)
#: What else a norm has: a bias, and statistics of batches.
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
        A factor has two dimensions or more, a gain and a magnitude have numbers in one alone.
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
