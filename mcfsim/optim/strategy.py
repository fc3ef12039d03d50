"""Storage strategies as data: how each tensor is stored, how the update is added, and the arithmetics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.multiword.components import check_components
from mcfsim.optim.stored import ONE_LOW, Stored, check_remainder, check_shared, is_open
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow, get_rounding

# -- the arithmetics of a step ----------------------------------------------------------------------------
#: The random words of a strategy that rounds at random, unless it is given others.
DEFAULT_WORDS = RandomWords(0)


class Roles(NamedTuple):
    """The arithmetics of a step, by role.

    Attributes
    ----------
    moments : Arithmetic
        For the first moment, and for the numbers that enter it.
    second_moment : Arithmetic
        For the second moment; the same as `moments`, unless format or rounding differ.
    update : Arithmetic
        For the update computed from the moments: in the format of the first moment, with the run's rounding.
    parameter : Arithmetic
        For the addition of the update: in the master copy's format, if there is a master copy.
    model : Arithmetic
        Rounds the parameter that the model sees.
    """

    moments: Arithmetic
    second_moment: Arithmetic
    update: Arithmetic
    parameter: Arithmetic
    model: Arithmetic

    def of(self, role: str) -> Arithmetic:
        """Return the arithmetic of a slot, ``m`` or ``v``, or of a role by its name."""
        named = {"m": self.moments, "v": self.second_moment}
        found: Arithmetic = named[role] if role in named else getattr(self, role)
        return found

    @property
    def stored(self) -> dict[str, Arithmetic]:
        """The arithmetic of each tensor of the state, by its field of `mcfsim.optim.state.State`."""
        return {"parameter": self.model, "m": self.moments, "v": self.second_moment, "extra": self.parameter}

    def distinct(self) -> dict[int, Arithmetic]:
        """Return the arithmetics without repetition, by identity; each is a source of random words."""
        return {id(ar): ar for ar in self}

    def mapped(self, function: Callable[[Any], Any]) -> Roles:
        """Return the results of a function in place of the arithmetics; roles still share them."""
        made = {key: function(ar) for key, ar in self.distinct().items()}
        return Roles(*(made[id(ar)] for ar in self))

    def on_block(self, step: int, start: int) -> Roles:
        """Return the arithmetics of a step for one block; all of them get the same block.

        For stochastic rounding, words depend on the step and on each element's index, which starts at
        `start`.
        """
        return self.mapped(lambda ar: ar.on_block(step, start))


def draws(strategy: Strategy, roles: Roles) -> bool:
    """Return whether steps draw random words, which only the first 2**32 steps have."""
    # A grid draws by itself.
    return strategy.draws or any(ar.rounding is not None and ar.rounding.stochastic for ar in roles)


def arithmetics(
    tensors: Sequence[Stored],
    policy: Rounding,
    *,
    random: RandomWords | None = None,
    precision: int = 400,
    **options: Any,
) -> list[Arithmetic]:
    """Return the arithmetic of each tensor; tensors of the same format and rounding share one.

    Parameters
    ----------
    tensors : sequence of Stored
        The tensors; one without a rounding of its own has that of the policy.
    policy : Rounding
        The rounding of the run.
    random : RandomWords, optional
        The random words; by default `DEFAULT_WORDS` if a tensor asks for stochastic rounding by itself.
    precision : int, optional
        Number of bits of exact numbers.
    **options
        Passed to `mcfsim.arithmetic`.
    """
    if random is None and any(item.draws for item in tensors):
        random = DEFAULT_WORDS

    def make(item: Stored, words: RandomWords | None) -> Arithmetic:
        if item.format is None:
            return arithmetic(None, backend="exact", precision=precision)
        drawn: dict[str, Any] = {} if words is None else {"random": words}  # not every backend draws
        return arithmetic(item.format, item.rounded(policy), **drawn, **options)

    kinds = [(item.format, item.rounding, item.random_bits, item.rule) for item in tensors]
    # Each arithmetic has its own range of operation numbers, larger than the number of operations of a step.
    made = {
        kind: make(item, random.of(index << 16) if isinstance(random, RandomWords) else random)
        for index, (kind, item) in enumerate(dict(zip(kinds, tensors, strict=True)).items())
    }
    return [made[kind] for kind in kinds]


# -- strategies -------------------------------------------------------------------------------------------
#: Names of the slots that a strategy stores and an optimizer may have.
SlotName = Literal["m", "v"]
SLOTS: tuple[SlotName, ...] = get_args(SlotName)
#: The fields of all tensors that a strategy stores.
_LABELS = ("parameter", "gradient", *SLOTS, "extra")


class Addition(StrEnum):
    """A way to add the update D to the parameter theta (RN rounds to the parameter's format).

    ``plain``: ``theta = RN(theta + RN(D))``. ``kahan``: with a compensation c, which keeps what the last
    addition lost. ``grow``: to an expansion. ``master``: to a master copy in its own format; theta is its
    rounding. ``feedback``: ``t = RN(theta + D)`` in the update's format, ``theta = RN(t)``, and the error of
    RN(t) is fed back into the momentum, by the optimizers that support it.
    """

    PLAIN = "plain"
    KAHAN = "kahan"
    GROW = "grow"
    MASTER = "master"
    FEEDBACK = "feedback"


@dataclass(frozen=True)
class Strategy:
    """A storage strategy: how an optimizer stores each tensor, and how it adds its update.

    Parameters
    ----------
    name : str
        A label, not empty and without "|".
    parameter, m, v, gradient : Stored
        The tensors. Each moment is computed in its own format, the update in that of `m`. An optimizer
        without a second moment leaves `v` unused.
    extra : Stored, optional
        The master copy (addition ``master``) or the compensation (``kahan``).
    addition : Addition
        How the update is added, see `Addition`.
    beta2_components : int
        If 1, beta2 enters as a real scalar, by the arithmetic's scalar policy. If larger, it is an expansion
        with this number of components in the format of `v`.

    Raises
    ------
    TypeError
        If a part is of the wrong type.
    ValueError
        If the parts contradict each other.
    """

    name: str
    parameter: Stored = ONE_LOW
    m: Stored = ONE_LOW
    v: Stored = ONE_LOW
    gradient: Stored = ONE_LOW
    extra: Stored | None = None
    addition: Addition = Addition.PLAIN
    beta2_components: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a strategy's name must be a string, not {self.name!r}")
        for label in _LABELS:
            item = getattr(self, label)
            if not isinstance(item, Stored) and not (label == "extra" and item is None):
                raise TypeError(f"{self.name}: {label} must be Stored(format, components), not {item!r}")
        try:
            object.__setattr__(self, "addition", Addition(self.addition))
        except ValueError:
            known = ", ".join(Addition)
            raise ValueError(f"{self.name}: unknown addition {self.addition!r}; allowed: {known}") from None
        count = whole_number(f"{self.name}: beta2_components", self.beta2_components, least=1)
        object.__setattr__(self, "beta2_components", count)
        if not self.name or "|" in self.name:
            raise ValueError(f"a strategy's name must not be empty or have a '|': {self.name!r}")
        for why in self._contradictions():
            raise ValueError(f"{self.name}: {why}")

    def _contradictions(self) -> Iterator[str]:
        """Yield what is wrong with the parts, taken together."""
        extra, addition, tensors = self.extra, self.addition, self.tensors
        if len({item.format is None for item in tensors.values()}) > 1:
            yield "exact numbers and formats do not mix; all are stored exactly, or none"
        if (extra is None) is (addition in (Addition.KAHAN, Addition.MASTER)):
            yield f"addition {addition} and extra = {extra} do not go together"
        if addition is not Addition.GROW and self.parameter.components != 1:
            yield "a parameter of several components needs addition='grow'"
        for item in tensors.values():
            if item.components > 1:
                check_components(item.format)
        if extra is not None and extra.components != 1:
            yield f"extra holds one number per element, not {extra.components}"
        if extra and addition is Addition.KAHAN and extra.format != self.parameter.format:
            low = self.parameter.format
            yield f"a compensation is in the parameter's format, {low}, not in {extra.format}"
        if self.gradient.rounding:
            yield "a gradient has no rounding of its own"
        if extra and addition is Addition.KAHAN and extra.rounding:
            yield "a compensation has no rounding of its own"
        if any(item.shared for label, item in tensors.items() if label != "extra"):
            yield "only a master copy shares bits with the parameter"
        if any(item.scaled for label, item in tensors.items() if label not in SLOTS):
            yield "only moments are kept in a scaled format"
        if any(item.grid for label, item in tensors.items() if label != "parameter"):
            yield "only the parameter lies on a grid"
        if self.parameter.grid and addition not in (Addition.PLAIN, Addition.MASTER):
            yield "a parameter on a grid needs addition 'plain' or 'master'"
        if self.parameter.grid and extra and (extra.shared or extra.remainder):
            yield "beside a parameter on a grid a master copy is stored whole"
        if extra and extra.shared:
            if addition is not Addition.MASTER:
                yield "only a master copy shares bits with the parameter"
            check_shared(self.name, self.parameter, extra)
        remainders = [label for label, item in tensors.items() if item.remainder is not None]
        if remainders and (remainders != ["extra"] or addition is not Addition.MASTER):
            yield f"only a master copy has a remainder, not {remainders[0]}"
        if extra and extra.remainder is not None:
            check_remainder(self.name, self.parameter, extra)
        if addition is Addition.FEEDBACK and self.m.components != 1:
            yield "errors are fed back into an m of one component"
        if self.beta2_components not in (1, self.v.components):
            yield f"beta2 of {self.beta2_components} components cannot multiply a v of {self.v.components}"

    @property
    def tensors(self) -> dict[str, Stored]:
        """The tensors that are stored, by the name of their field."""
        return {label: item for label in _LABELS if (item := getattr(self, label)) is not None}

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes per parameter of parameter, gradient, both moments and extra; None for exact numbers."""
        return self.stored_bytes({"m": 1, "v": 1})

    def stored_bytes(self, shares: Mapping[str, Fraction | int]) -> float | None:
        """Return the bytes stored per parameter; None for exact numbers.

        Parameters
        ----------
        shares : mapping of str to Fraction or int
            How many numbers each slot keeps per parameter; a slot that is left out keeps none.
        """
        total = Fraction(0)
        for label in self.tensors:
            size = self.size_of(label)
            if size is None:
                return None
            total += size * shares.get(label, 0 if label in SLOTS else 1)
        return int(total) if total.denominator == 1 else float(total)

    def size_of(self, label: str) -> Fraction | None:
        """Return the bytes per parameter of a tensor of `tensors`; None for exact numbers."""
        item = self.tensors[label]
        if item.bits is None:
            return None
        if item.scaled is not None:
            return item.scaled.bits_per_element / 8
        if item.remainder is not None:
            return Fraction(item.remainder, 8)
        if item.grid is not None:
            return Fraction(item.grid.integers.bits, 8)
        known = self.parameter.bits if item.shared else 0
        return Fraction(item.bits - (known or 0), 8)

    @property
    def draws(self) -> bool:
        """Whether a tensor rounds at random, whatever the run's rounding."""
        return any(item.draws for item in self.tensors.values())

    @property
    def unshared(self) -> Strategy:
        """The strategy with a whole master copy in place of a remainder, if it keeps one."""
        if self.extra is None or self.extra.remainder is None:
            return self
        return replace(self, extra=replace(self.extra, remainder=None))

    def at(self, low: Format) -> Strategy:
        """Return the strategy with `low` in place of `LOW`."""

        def settle(stored: Stored) -> Stored:
            return replace(stored, format=low) if is_open(stored.format) else stored

        settled: dict[str, Any] = {label: settle(item) for label, item in self.tensors.items()}
        return replace(self, **settled)

    def roles(self, rounding: Rounding | str = "nearest_even", **options: Any) -> Roles:
        """Return the arithmetics of a step: the update in the format of m, the rest as stored.

        Parameters
        ----------
        rounding : str or Rounding, optional
            The rounding of all; a tensor with a rounding of its own takes only the policies from it.
        **options
            Passed to `mcfsim.arithmetic`: ``scalars``, ``overflow``, ``random``; ``precision`` for exact
            numbers. A strategy that rounds at random by itself uses `DEFAULT_WORDS` if ``random`` is missing.

        Raises
        ------
        ValueError
            If the low format is still open, or the arithmetic refuses an option.
        """
        if any(is_open(item.format) for item in self.tensors.values()):
            raise ValueError(
                f"the low format of strategy {self.name!r} is still open; "
                f"mcfsim.strategy({self.name!r}, 'bfloat16') puts one in"
            )
        policy = get_rounding(rounding, options.pop("overflow", "ieee"), options.pop("underflow", "gradual"))
        others = (policy.overflow, policy.underflow) != (Overflow.IEEE, Underflow.GRADUAL)
        if self.extra and self.extra.shared and others:
            raise ValueError(
                f"{self.name}: the parameter shares bits with its master copy only under overflow 'ieee' and "
                f"underflow 'gradual', not {policy.overflow!s} and {policy.underflow!s}"
            )
        if self.extra and self.extra.remainder and policy.underflow is not Underflow.GRADUAL:
            raise ValueError(
                f"{self.name}: a remainder reaches half an ulp, and flushed numbers lie further off; "
                f"underflow must be 'gradual', not {policy.underflow!s}"
            )
        master = self.extra if self.addition is Addition.MASTER and self.extra else self.parameter
        rounded = self.parameter
        if self.extra and self.extra.remainder and policy.mode is not Mode.NEAREST_AWAY:
            # A number rounded in another way lies further from its master copy than a remainder reaches.
            rounded = replace(rounded, rounding=rounded.rounding or Mode.NEAREST_EVEN)
        moments, model, parameter, second, update = arithmetics(
            [self.m, rounded, master, self.v, Stored(self.m.format)], policy, **options
        )
        return Roles(moments, second, update, parameter, model)


# -- hyperparameters that become zero ---------------------------------------------------------------------
class VanishingScalarWarning(UserWarning):
    """A warning: a positive hyperparameter rounds to zero in the format in which it is used."""


def warn_of_vanishing(ar: Arithmetic, scalars: Mapping[str, float]) -> bool:
    """Warn of each number that rounds to zero in an arithmetic's format; return whether one does.

    Parameters
    ----------
    ar : Arithmetic
        The arithmetic of the operations that use the numbers.
    scalars : mapping of str to float
        The numbers by name; `epsilon` is added to the root of the second moment, the others are factors.
    """
    if ar.format is None:
        return False  # nothing is rounded
    found = {name: scalar for name, scalar in scalars.items() if _vanishes(ar, scalar)}
    for name, scalar in found.items():
        effect = (
            "where v is zero, a step is 0 / 0" if name == "epsilon" else "its products with 1 or less are 0"
        )
        warnings.warn(
            f"{name} = {scalar:.6g} is zero in {ar.format}, whose smallest positive number is "
            f"{float(ar.format.smallest_subnormal):.6g}: {effect}",
            VanishingScalarWarning,
            stacklevel=3,
        )
    return bool(found)


def _vanishes(ar: Any, scalar: float) -> bool:
    """Return whether a number is positive and rounds to zero in an arithmetic's format on every draw."""
    if not 0 < scalar < ar.format.smallest_normal:
        return False
    highest = np.full(1, 2**32 - 1, np.uint32)
    words = highest if ar.rounding.stochastic else None
    return bool(round_to(np.array([scalar]), ar.format, ar.rounding, random=words)[0] == 0)
