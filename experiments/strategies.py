"""Every strategy in words: what it loses, when that matters, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.strategies import GRID_STRATEGIES, strategy

LOW = "bfloat16"


@dataclass(frozen=True)
class Words:
    """What cannot be computed from a declaration.

    Parameters
    ----------
    lost : str
        What is lost.
    fails : str
        When it fails.
    source : str
        Where it comes from.
    """

    lost: str
    fails: str
    source: str


COLLAGE = "[Collage](https://arxiv.org/abs/2405.03637)"
#: The words for each strategy of `STRATEGIES` and `GRID_STRATEGIES`.
WORDS = {
    "plain": Words(
        "each update shorter than half an ulp of its weight",
        "where lr times the direction is below about 2^-9 of a weight: gains first, then all late in the run",
        f"{COLLAGE}, option A",
    ),
    "kahan": Words(
        "what is shorter than half an ulp of the compensation; v at beta2 = .999 does not decay",
        "where v must fall: beta2 above .996",
        "[Kahan, 1965](https://doi.org/10.1145/363707.363723); "
        "[Zamirai et al.](https://arxiv.org/abs/2010.06192)",
    ),
    "collage-light": Words(
        "what is shorter than half an ulp of the second component; v at beta2 = .999 does not decay",
        "where v must fall: beta2 above .996",
        f"{COLLAGE}, option B",
    ),
    "collage-plus": Words(
        "next to nothing: the first moment is rounded to one component",
        "where the range of the low format ends: its second component is lost near the smallest number",
        f"{COLLAGE}, option C",
    ),
    "stochastic-parameter": Words(
        "nothing in the mean; each weight walks about it by up to an ulp; v at beta2 = .999 does not decay",
        "at small rates, where noise is longer than updates; where runs that draw otherwise must agree",
        "[Gupta et al.](https://arxiv.org/abs/1502.02551); "
        "[Zamirai et al.](https://arxiv.org/abs/2010.06192)",
    ),
    "stochastic": Words(
        "nothing in the mean; weights and moments walk about it",
        "as stochastic-parameter",
        "[Gupta et al.](https://arxiv.org/abs/1502.02551)",
    ),
    "fp32-optim": Words(
        "the same updates as plain: moments are exact, the addition is not",
        "where plain does",
        f"{COLLAGE}, option D without master weights",
    ),
    "fp32-master": Words(
        "nothing that matters: 24 bits of each update",
        "where memory does",
        f"[Micikevicius et al.](https://arxiv.org/abs/1710.03740); {COLLAGE}, option D",
    ),
    "mcf-2": Words(
        "what is shorter than half an ulp of the second components",
        "where the range of the low format ends; in float8 v soon stops to decay",
        f"{COLLAGE}, with moments in components, too",
    ),
    "mcf-3": Words(
        "what is shorter than half an ulp of the third components",
        "where the range of the low format ends: the last components are lost near the smallest number",
        f"{COLLAGE}, with a component more",
    ),
    "eco": Words(
        "nothing for good but a bounded rest: errors wait in the momentum until a step takes them along",
        "where updates below 2^-15 of a weight must arrive within thousands of steps",
        "[ECO](https://arxiv.org/abs/2601.22101)",
    ),
    "split-master": Words(
        "nothing: the master copy is that of fp32-master, bit for bit; the model sees ties rounded away",
        "in formats that are no upper part of float32",
        "[NVIDIA Apex](https://github.com/NVIDIA/apex), store_param_remainders",
    ),
    "split-truncated": Words(
        "nothing: the master copy is that of fp32-master, bit for bit; the model sees weights cut off",
        "in formats that are no upper part of float32; what the model sees is half an ulp nearer to 0",
        "[bf16_fused_adam](https://github.com/imoneoi/bf16_fused_adam); "
        "[modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt)",
    ),
    "remainder-8": Words(
        "what is shorter than 2^-17 of a weight: 8 bits follow those of the parameter",
        "late in runs at small rates",
        "[FlashOptim](https://arxiv.org/abs/2602.23349), 24 bits",
    ),
    "remainder-16": Words(
        "the last bit of one master copy in 1300, and of every second one below powers of two",
        "where runs must have the bits of fp32-master",
        "[FlashOptim](https://arxiv.org/abs/2602.23349), 32 bits",
    ),
    "fp8-moments": Words(
        "of the moments all but 4 bits, and what is below 2^-19 of the largest of its group",
        "where a group of 128 holds moments of very different sizes: small v become 0, and their steps long",
        "[Dettmers et al.](https://arxiv.org/abs/2110.02861); "
        "[COAT](https://arxiv.org/abs/2410.19313), without its expansion",
    ),
    "int8-moments": Words(
        "of the moments all but 2 to 7 bits, and what is below 3e-7 of the largest of its block",
        "as fp8-moments",
        "[Dettmers et al.](https://arxiv.org/abs/2110.02861), as torchao has it",
    ),
    "coat-moments": Words(
        "of the moments all but 4 bits; each group fills the range of the format",
        "where a group holds zeros: its smallest number decides how the others are pressed",
        "[COAT](https://arxiv.org/abs/2410.19313)",
    ),
    "fp32": Words("nothing that matters", "where memory does", "the common reference"),
    **{
        name: Words(
            "nothing in the mean, while weights lie within the grid; all beyond its ends",
            "where the largest weight must grow, as of a tied embedding; the fewer bits, the longer the walk",
            "[DQT](https://arxiv.org/abs/2412.04787)",
        )
        for name in GRID_STRATEGIES
        if name != "bitnet"
    },
    "bitnet": Words(
        "of what the model sees all but -1, 0 and 1; the master copy loses nothing that matters",
        "where memory does, or three values do not suffice",
        "[BitNet b1.58](https://arxiv.org/abs/2402.17764)",
    ),
    "exact": Words(
        "nothing: real numbers of 400 bits",
        "on problems that cannot compute with them",
        "[mpmath](https://mpmath.org)",
    ),
}


def bytes_of(name: str) -> float | None:
    """Return a strategy's bytes per parameter; None for exact numbers, or if it is for other formats."""
    try:
        return strategy(name, LOW).bytes_per_parameter
    except UnsupportedFormatError:  # of a strategy for other formats
        return None
