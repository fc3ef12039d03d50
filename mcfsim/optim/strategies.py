"""The named storage strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mcfsim.checks import hint
from mcfsim.formats import Format, get_format
from mcfsim.formats.grids import grid
from mcfsim.optim.stored import (
    DYNAMIC,
    DYNAMIC_UNSIGNED,
    EXPANDED,
    FLOAT8_GROUPS,
    FLOAT32,
    LOW,
    ONE_LOW,
    Reach,
    Stored,
    WeightGrid,
    is_open,
)
from mcfsim.optim.strategy import DEFAULT_WORDS, SLOTS, Addition, Roles, Strategy
from mcfsim.rounding import Mode, Rounding
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import Quantiser

__all__ = [
    "DEFAULT_WORDS",
    "FLOAT32",
    "GRID_STRATEGIES",
    "LOW",
    "MOMENTS",
    "STRATEGIES",
    "Addition",
    "Roles",
    "Stored",
    "Strategy",
    "is_open",
    "strategy",
]


def _declared(*items: Strategy) -> Mapping[str, Strategy]:
    return MappingProxyType({item.name: item for item in items})


def _components(count: int) -> Strategy:
    """Return the strategy that keeps everything but gradients in `count` components of the low format."""
    several: dict[str, Any] = dict.fromkeys(("parameter", "m", "v"), Stored(LOW, components=count))
    return Strategy(f"mcf-{count}", **several, beta2_components=count, addition=Addition.GROW)


_DRAWN = Stored(LOW, rounding=Mode.STOCHASTIC)
#: Moments in binary32.
_WIDE: dict[str, Any] = {"m": Stored(FLOAT32), "v": Stored(FLOAT32)}


def _beside_master(name: str, parameter: Stored = ONE_LOW, **changes: Any) -> Strategy:
    """Return `fp32-master` with some tensors changed."""
    tensors = {**_WIDE, "extra": Stored(FLOAT32), **changes}
    return Strategy(name, parameter=parameter, **tensors, addition=Addition.MASTER)


#: How m and v, which steps compute in binary32, are kept in 8 bits, by the name that a composed strategy has
#: after its "+". By a table, with a scale for each block: Dettmers et al., ICLR 2022, as in torchao; in
#: groups of 128 float8 numbers: Xi et al., ICLR 2025 (COAT), without and with its expansion of the range.
MOMENTS: Mapping[str, tuple[ScaledFormat | Quantiser, ScaledFormat | Quantiser]] = MappingProxyType(
    {
        "fp8": (FLOAT8_GROUPS, FLOAT8_GROUPS),
        "int8": (DYNAMIC, DYNAMIC_UNSIGNED),
        "coat": (EXPANDED, EXPANDED),
    }
)


def _with_moments(base: Strategy, kept: str, name: str) -> Strategy:
    """Return a strategy with its moments kept as `MOMENTS` says."""
    m, v = (Stored(FLOAT32, scaled=item) for item in MOMENTS[kept])
    return replace(base, name=name, m=m, v=v)


#: The strategies by name: options A, B, C and D of Yu et al., ICML 2024, and others to compare them with.
#: Everything in two or three components, for formats of 8 bits. Stochastic rounding: Gupta et al., ICML 2015;
#: Zamirai et al., arXiv 2010.06192. A master copy whose upper half is the parameter: rounded, NVIDIA Apex,
#: DistributedFusedAdam(store_param_remainders=True); truncated, imoneoi/bf16_fused_adam and modded-nanogpt. A
#: master copy as 8 or 16 bits beside the rounded parameter: FlashOptim, arXiv 2602.23349. Errors fed back
#: into the momentum: ECO, arXiv 2601.22101.
STRATEGIES: Mapping[str, Strategy] = _declared(
    Strategy("plain"),
    Strategy("kahan", extra=Stored(LOW), addition=Addition.KAHAN),
    Strategy("collage-light", parameter=Stored(LOW, components=2), addition=Addition.GROW),
    Strategy(
        "collage-plus",
        parameter=Stored(LOW, components=2),
        v=Stored(LOW, components=2),
        beta2_components=2,
        addition=Addition.GROW,
    ),
    _components(2),
    _components(3),
    Strategy("stochastic-parameter", parameter=_DRAWN),
    Strategy("stochastic", parameter=_DRAWN, m=_DRAWN, v=_DRAWN),
    Strategy("fp32-optim", **_WIDE),
    Strategy("eco", **_WIDE, addition=Addition.FEEDBACK),
    _beside_master("fp32-master"),
    _beside_master(
        "split-master", Stored(LOW, rounding=Mode.NEAREST_AWAY), extra=Stored(FLOAT32, shared=True)
    ),
    _beside_master(
        "split-truncated", Stored(LOW, rounding=Mode.TOWARD_ZERO), extra=Stored(FLOAT32, shared=True)
    ),
    _beside_master("remainder-8", extra=Stored(FLOAT32, remainder=8)),
    _beside_master("remainder-16", extra=Stored(FLOAT32, remainder=16)),
    *(_with_moments(_beside_master("fp32-master"), kept, f"{kept}-moments") for kept in MOMENTS),
    Strategy("fp32", parameter=Stored(FLOAT32), **_WIDE, gradient=Stored(FLOAT32)),
    Strategy("exact", parameter=Stored(None), m=Stored(None), v=Stored(None), gradient=Stored(None)),
)


#: The strategies whose parameter lies on a grid of integers, by name. ``dqt-int8`` and so on: Zhao et al.,
#: arXiv 2412.04787, with state in binary32. ``bitnet``: Ma et al., arXiv 2402.17764, all tensors ternary.
GRID_STRATEGIES: Mapping[str, Strategy] = _declared(
    *(
        Strategy(f"dqt-{integers}", parameter=Stored(FLOAT32, grid=WeightGrid(grid(integers))), **_WIDE)
        for integers in ("ternary", *(f"int{bits}" for bits in range(2, 9)))
    ),
    _beside_master(
        "bitnet",
        Stored(FLOAT32, grid=WeightGrid(grid("ternary"), reach=Reach.ABSMEAN, rounding=Rounding())),
    ),
)


def strategy(name: str | Strategy, low: Format | str = "bfloat16") -> Strategy:
    """Return a strategy, by name or as declared, with its low format filled in.

    Parameters
    ----------
    name : str or Strategy
        A name of `STRATEGIES` or `GRID_STRATEGIES`; or such a name, "+" and a name of `MOMENTS`, which says
        how moments are kept, such as ``"kahan+int8"``; or a declaration of your own.
    low : Format or str, optional
        The low format.

    Raises
    ------
    TypeError
        If `name` is neither a name nor a `Strategy`.
    ValueError
        If a name is unknown; the message lists the known ones. Or if a strategy has its own way to keep
        moments, which no other can replace.

    Examples
    --------
    >>> strategy("collage-plus", "bfloat16").bytes_per_parameter
    12
    >>> strategy("plain+fp8").size_of("m")
    Fraction(33, 32)
    """
    if isinstance(name, Strategy):
        return name.at(get_format(low))
    if not isinstance(name, str):
        raise TypeError(f"a strategy is a Strategy or the name of one, not {name!r}")
    known = {**STRATEGIES, **GRID_STRATEGIES}
    if name.partition("+")[0] in known and "+" in name:
        return _composed(name, known).at(get_format(low))
    if name not in known:
        raise ValueError(
            f"unknown strategy {name!r}{hint(name, known)}; known strategies: {', '.join(known)}"
        )
    return known[name].at(get_format(low))


def _composed(name: str, known: Mapping[str, Strategy]) -> Strategy:
    """Return the strategy of a name like ``kahan+int8``; raise ValueError if there is none."""
    first, _, kept = name.partition("+")
    base = known[first]
    if kept not in MOMENTS:
        raise ValueError(
            f"strategy {name!r}: moments are not kept as {kept!r}{hint(kept, MOMENTS)}, but as "
            f"{', '.join(MOMENTS)}"
        )
    own = [label for label in SLOTS if (x := base.tensors[label]) != ONE_LOW and x != Stored(FLOAT32)]
    if own:
        raise ValueError(
            f"strategy {first!r} has its own way to keep {' and '.join(own)}; moments in 8 bits can replace "
            "only one number per parameter, in the low format or float32, that rounds as the run does"
        )
    return _with_moments(base, kept, name)
