"""Averages that cannot decay, because the format that they are stored in takes back each step of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.multiword import expansion
from mcfsim.multiword.expansion import expand
from mcfsim.optim.strategies import Strategy
from mcfsim.rounding import Mode
from mcfsim.scaled.quantisers import Quantiser

#: Significands that are tried: all of a format of up to so many bits, else so many spread evenly.
_MOST_BITS = 14


def significands(fmt: Format) -> NDArray[np.float64]:
    """Return the numbers of a format from 1 up to 2; they stand for all that are normal.

    Of formats of more than 14 bits as many are taken, spread evenly, the ends among them.
    """
    bits = fmt.precision - 1
    if bits < _MOST_BITS:
        return 1.0 + np.arange(1 << bits) / (1 << bits)
    spread = np.linspace(0, (1 << bits) - 1, 1 << _MOST_BITS).astype(np.int64)
    return 1.0 + spread / (1 << bits)


@lru_cache
def frozen_share(strategy: Strategy, slot: str, beta: float) -> float:
    """Return the share of significands of a moving average that stay as they are when multiplied by beta.

    Where it is 1 an average never decays: `RN(beta x) = x` for every normal number x. So it is of a bfloat16
    second moment at beta2 = .999.

    Parameters
    ----------
    strategy : Strategy
        With its low format put in.
    slot : {"m", "v"}
        Which average.
    beta : float
        The decay rate, in [0, 1).

    Returns
    -------
    float
        Of a single component, in its format; rounded at random, of those that no draw moves. Of an expansion,
        that starts without anything in the components after the first: of its sum. In a scaled format, of the
        elements of a block that keeps its scale; kept in another way, of the codes of numbers spread over the
        five octaves below a largest one that stays. 0 for exact numbers.

    References
    ----------
    Yu et al., Collage, ICML 2024, on beta2 = .999 in bfloat16.
    """
    stored = strategy.tensors[slot]
    fmt = stored.format
    if fmt is None:
        return 0.0
    if stored.draws:  # cut off, a product goes as far as a draw takes it
        stored = replace(stored, rounding=Mode.TOWARD_ZERO, random_bits=None, rule=None)
    roles = (replace(strategy, m=stored) if slot == "m" else replace(strategy, v=stored)).roles()
    ar: Any = roles.moments if slot == "m" else roles.second_moment
    if isinstance(stored.scaled, Quantiser):
        return _frozen_codes(ar, stored.scaled, beta)
    if stored.scaled is not None:
        x = round_to(_within(stored.scaled.element), fmt)
        return float(np.mean(round_to(ar.mul(x, beta), stored.scaled.element) == x))
    x = ar.round(_within(fmt))
    zero = np.zeros_like(x)
    components = (x, *([zero] * (stored.components - 1)))
    by_expansion = slot == "v" and strategy.beta2_components > 1
    if by_expansion:
        decayed = expansion.mul(ar, expand(ar, beta, strategy.beta2_components), components)
    else:
        decayed = expansion.scale(ar, components, beta)
    before = np.sum([item.astype(np.float64) for item in components], axis=0)
    after = np.sum([item.astype(np.float64) for item in decayed], axis=0)
    return float(np.mean(before == after))


def _frozen_codes(ar: Any, kept: Quantiser, beta: float) -> float:
    """Return the share of numbers below the largest of their group whose codes beta does not change."""
    x = kept.through(np.geomspace(1 / 32, 1, kept.block).astype(np.float32))
    after = np.append(ar.mul(x[:-1], beta), x[-1])
    codes = kept.encode(np.asarray(after, np.float32))[0] == kept.encode(x)[0]
    return float(codes[:-1].mean())


def _within(fmt: Format) -> NDArray[np.float64]:
    """Return all significands, at an exponent in the middle of the format's range."""
    middle = (fmt.emin + fmt.emax) // 2
    return np.ldexp(significands(fmt), middle)
