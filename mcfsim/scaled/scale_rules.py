"""The rules that give the scales of blocks, by name, and what each needs."""

from __future__ import annotations

from enum import StrEnum


class ScaleRule(StrEnum):
    """A rule that gives the scale of a block from its elements; M is the largest number of their format.

    ``amax`` is the largest magnitude of the block, S the largest number of the scale format. The first eight
    rules give elements ``x / scale``, exact and then rounded once. The others compute in binary32, as
    published code does: each operation is rounded to nearest even, and so is the quotient, which is then
    clipped to -M ... M and rounded to an element. They and ``quest`` take numbers of no more than 32 bits.

    Four rules give powers of two. A scale beyond the range of the scale format is replaced by the nearest one
    within it; a block of zeros has the smallest scale:

    ``floor``: ``2**(floor(log2(amax)) - floor(log2(M)))``, which lets elements overflow (OCP MX v1.0, 6.3).
    ``ceil``: twice that unless amax is a power of two (CEIL of torchao's MX formats).
    ``round_up``: the smallest scale with ``amax / scale <= M``, so no element overflows (Mishra et al. 2025).
    ``even``: ``floor``, with amax first rounded to the precision of M, ties to even.

    Three rules give real numbers, rounded once to nearest even in the scale format. A number beyond its
    largest becomes the largest; in a format without zero a number below its smallest becomes the smallest:

    ``absmax``: ``amax / M``.
    ``absmean``: ``max(mean |x|, 1e-5) / M`` (Zhao et al. 2024).
    ``max``: ``max(x) / M``, an error in a block without positive numbers (the update of Zhao et al. 2024).

    ``quest`` clips on purpose: ``2**floor(log2(fl(2.92247856 / M) std + 1e-8))`` (the forward pass of
    Quartet). ``std = sqrt(max(mean(x x) - mean(x)**2, 0))`` in binary32, each operation rounded. Sums halve:
    elements i and ``i + n/2`` are added until one is left, n the next power of two.

    In binary32, for NVFP4, with a tensor scale t that follows from A, the amax of all blocks:

    ``torchao``: ``t = A / (M S)``, the scale ``min(max((amax / M) / t, smallest normal), S)`` rounded, and
    the quotient ``x ((1 / t) / scale)``. Without a tensor scale t is 1.
    ``transformer_engine``: ``g = min(M S / A, largest binary32)`` and ``t = 1 / g``; the scale
    ``min(amax (g (1 / M)), S)`` rounded, and the quotient ``x min(1 / (scale t), largest binary32)``.
    ``four_six_mae``, ``four_six_mse`` (Four Over Six): as ``transformer_engine``, with 256 for S in g, from
    ``(amax / M) g`` for a block scaled to M = 6, and 1.5 times that for one scaled to 4. The scale with the
    smaller error wins, ties go to 6. Errors, of nearest even elements, are ``((q scale) A) / (256 M) - x``;
    their magnitudes or squares are summed from left to right, those of a tile's rows by halving.
    ``eden`` (MS-EDEN of Quartet II): with ``v = fl(6 / (17/16 * .93))``, here M for 6, ``t = (A / 255.99) /
    v``, the scale ``(amax / v) / t`` rounded, 1 if that is 0, and the quotient ``x / (scale t)``. Then the
    scales of each `ScaledFormat.group` are multiplied by ``<x, x> / <x, q>`` of quotients and elements, sums
    by halving, and rounded stochastically, one word a block. The array must be rotated beforehand.

    In binary32, without a tensor scale, except for ``quartet``, whose tensor scale t is a constant:

    ``current``: ``1 / e`` with ``e = min(M / amax, largest binary32)``, 1 if amax is 0, and the quotient
    ``x e`` (Transformer Engine's current scaling; also its delayed scaling, see `DelayedScale`).
    ``floor_power``: the same with e rounded down to a power of two (its Float8BlockScaling).
    ``deepseek``: ``max(amax, 1e-4) / M``, and the quotient ``x (1 / scale)`` (DeepGEMM).
    ``deepseek_power``: the same scale rounded up to a power of two.
    ``quartet`` (the backward pass of Quartet): ``floor`` and ``t = fl(4/3)``, the quotient ``x / (scale t)``.

    References
    ----------
    Open Compute Project, OCP microscaling formats (MX) specification, version 1.0, 2023.
    Mishra, Stosic, Layton, Micikevicius, Recipes for pre-training LLMs with MXFP8, arXiv 2506.08027, 2025.
    Zhao et al., Direct quantized training of language models, arXiv 2412.04787, 2024.
    Castro et al., Quartet: native FP4 training can be optimal for large language models, arXiv 2505.14669.
    Quartet II: accurate LLM pre-training in NVFP4 by improved unbiased gradient estimation, 2601.22813.
    Cook et al., Four over six: more accurate NVFP4 quantization with adaptive block scaling, 2512.02010.
    """

    FLOOR = "floor"
    CEIL = "ceil"
    ROUND_UP = "round_up"
    EVEN = "even"
    ABSMAX = "absmax"
    ABSMEAN = "absmean"
    MAX = "max"
    QUEST = "quest"
    TORCHAO = "torchao"
    TRANSFORMER_ENGINE = "transformer_engine"
    FOUR_SIX_MAE = "four_six_mae"
    FOUR_SIX_MSE = "four_six_mse"
    EDEN = "eden"
    CURRENT = "current"
    FLOOR_POWER = "floor_power"
    DEEPSEEK = "deepseek"
    DEEPSEEK_POWER = "deepseek_power"
    QUARTET = "quartet"

    @property
    def exact(self) -> bool:
        """Whether elements are exact quotients, rounded once; otherwise binary32 rounds quotients first."""
        return self in _EXACT

    @property
    def in_binary32(self) -> bool:
        """Whether the rule computes in binary32, and takes no longer numbers."""
        return not self.exact or self is ScaleRule.QUEST

    @property
    def tensor_scale(self) -> bool | None:
        """Whether the rule needs a tensor scale; None if it works with and without one."""
        if self in (ScaleRule.ABSMAX, ScaleRule.TORCHAO):
            return None
        return self in _WITH_TENSOR_SCALE


#: The rules whose scales are powers of two, from the largest magnitude of a block.
POWERS = (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.ROUND_UP, ScaleRule.EVEN)
#: The rules that compare two scales of a block.
FOUR_SIX = (ScaleRule.FOUR_SIX_MAE, ScaleRule.FOUR_SIX_MSE)
_EXACT = (*POWERS, ScaleRule.ABSMAX, ScaleRule.ABSMEAN, ScaleRule.MAX, ScaleRule.QUEST)
_WITH_TENSOR_SCALE = (ScaleRule.TRANSFORMER_ENGINE, *FOUR_SIX, ScaleRule.EDEN, ScaleRule.QUARTET)
