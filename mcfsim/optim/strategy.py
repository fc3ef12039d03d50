"""A storage strategy as data: what is kept in which format, and how the update is added."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, get_args

from mcfsim.checks.arguments import whole_number
from mcfsim.formats import Format
from mcfsim.multiword.components import check_components
from mcfsim.optim.roles import Roles, arithmetics
from mcfsim.optim.stored import ONE_LOW, Stored, check_remainder, check_shared, is_open
from mcfsim.rounding import Overflow, Rounding, Underflow, get_rounding

#: The slots of state that a strategy stores, and an optimizer may have.
SlotName = Literal["m", "v"]
SLOTS: tuple[SlotName, ...] = get_args(SlotName)
#: All that a strategy stores, by field.
_LABELS = ("parameter", "gradient", *SLOTS, "extra")


class Addition(StrEnum):
    """How the update D is added to the parameter theta (RN rounds to the parameter's format).

    ``plain``: ``theta = RN(theta + RN(D))``. ``kahan``: with a compensation c that remembers what the last
    addition lost. ``grow``: to an expansion. ``master``: to a master copy in its own format, of which
    theta is the rounding. ``feedback``: ``t = RN(theta + D)`` in the update's format, ``theta = RN(t)``, and
    what that has lost is fed back into the momentum, by the optimizers that feed back.
    """

    PLAIN = "plain"
    KAHAN = "kahan"
    GROW = "grow"
    MASTER = "master"
    FEEDBACK = "feedback"


@dataclass(frozen=True)
class Strategy:
    """What an optimizer stores in which format, and how it adds its update.

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
        See `Addition`.
    beta2_components : int
        1: beta2 enters as a real scalar by the arithmetic's scalar policy. More: as an expansion of so
        many components in the format of `v`.

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
        if len({item.format is None for item in self.tensors.values()}) > 1:
            raise ValueError(
                f"{self.name}: exact numbers and formats do not mix; all are stored exactly, or none"
            )
        if (self.extra is None) is (self.addition in (Addition.KAHAN, Addition.MASTER)):
            raise ValueError(
                f"{self.name}: addition {self.addition} and extra = {self.extra} do not go together"
            )
        if self.addition is not Addition.GROW and self.parameter.components != 1:
            raise ValueError(f"{self.name}: a parameter of several components needs addition='grow'")
        for item in self.tensors.values():
            if item.components > 1:
                check_components(item.format)
        if self.extra is not None and self.extra.components != 1:
            raise ValueError(f"{self.name}: extra holds one number an element, not {self.extra.components}")
        if self.extra and self.addition is Addition.KAHAN and self.extra.format != self.parameter.format:
            raise ValueError(
                f"{self.name}: a compensation is in the parameter's format, {self.parameter.format}, "
                f"not in {self.extra.format}"
            )
        if self.gradient.rounding or (self.addition is Addition.KAHAN and self.extra and self.extra.rounding):
            which = "gradient" if self.gradient.rounding else "compensation"
            raise ValueError(f"{self.name}: a {which} has no rounding of its own")
        if any(item.shared for label, item in self.tensors.items() if label != "extra"):
            raise ValueError(f"{self.name}: only a master copy shares bits with the parameter")
        if any(item.scaled for label, item in self.tensors.items() if label not in SLOTS):
            raise ValueError(f"{self.name}: only moments are kept in a scaled format")
        if any(item.grid for label, item in self.tensors.items() if label != "parameter"):
            raise ValueError(f"{self.name}: only the parameter lies on a grid")
        if self.parameter.grid and self.addition not in (Addition.PLAIN, Addition.MASTER):
            raise ValueError(f"{self.name}: a parameter on a grid needs addition 'plain' or 'master'")
        if self.parameter.grid and self.extra and (self.extra.shared or self.extra.remainder):
            raise ValueError(f"{self.name}: beside a parameter on a grid a master copy is stored whole")
        if self.extra and self.extra.shared:
            if self.addition is not Addition.MASTER:
                raise ValueError(f"{self.name}: only a master copy shares bits with the parameter")
            check_shared(self.name, self.parameter, self.extra)
        self._check_remainder()
        if self.addition is Addition.FEEDBACK and self.m.components != 1:
            raise ValueError(f"{self.name}: errors are fed back into an m of one component")
        if self.beta2_components not in (1, self.v.components):
            raise ValueError(
                f"{self.name}: beta2 of {self.beta2_components} components multiplies no v of "
                f"{self.v.components}"
            )

    def _check_remainder(self) -> None:
        of = [label for label, item in self.tensors.items() if item.remainder is not None]
        if of and (of != ["extra"] or self.addition is not Addition.MASTER):
            raise ValueError(f"{self.name}: only a master copy has a remainder, not {of[0]}")
        if of and self.extra:
            check_remainder(self.name, self.parameter, self.extra)

    @property
    def tensors(self) -> dict[str, Stored]:
        """All that is stored for each parameter, by the field's name."""
        return {label: item for label in _LABELS if (item := getattr(self, label)) is not None}

    @property
    def bytes_per_parameter(self) -> float | None:
        """Bytes of parameter, gradient, both moments and extra for each parameter; None for exact numbers."""
        return self.stored_bytes()

    def stored_bytes(self, slots: Collection[str] = SLOTS) -> float | None:
        """Return the bytes stored for each parameter with these slots of state; None for exact numbers."""
        sizes = [self.size_of(label) for label in self.tensors if label in slots or label not in SLOTS]
        if None in sizes:
            return None
        total = sum((size or Fraction(0) for size in sizes), Fraction(0))
        return int(total) if total.denominator == 1 else float(total)

    def size_of(self, label: str) -> Fraction | None:
        """Return the bytes that a tensor of `tensors` takes for each parameter; None for exact numbers."""
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
        """Whether some of its operations round at random, whatever those of the run do."""
        return any(item.draws for item in self.tensors.values())

    @property
    def unshared(self) -> Strategy:
        """The strategy with a whole master copy, where this one keeps a remainder of it."""
        if self.extra is None or self.extra.remainder is None:
            return self
        return replace(self, extra=replace(self.extra, remainder=None))

    def at(self, low: Format) -> Strategy:
        """Return the strategy with `low` in place of `LOW`."""

        def settle(stored: Stored) -> Stored:
            return replace(stored, format=low) if is_open(stored.format) else stored

        return replace(
            self,
            parameter=settle(self.parameter),
            m=settle(self.m),
            v=settle(self.v),
            gradient=settle(self.gradient),
            extra=settle(self.extra) if self.extra else None,
        )

    def roles(self, rounding: Rounding | str = "nearest_even", **options: Any) -> Roles:
        """Return the arithmetics of a step: the update in the format of m, the rest as stored.

        Parameters
        ----------
        rounding : str or Rounding, optional
            For all of them; a tensor with a rounding of its own takes only the policies.
        **options
            Passed to `mcfsim.arithmetic`: ``scalars``, ``overflow``, ``random``; ``precision`` for exact
            numbers. A strategy that rounds at random by itself draws `DEFAULT_WORDS` if it is given none.

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
                f"{self.name}: the parameter is made of its master copy's bits by overflow 'ieee' and "
                f"underflow 'gradual' alone, not {policy.overflow!s} and {policy.underflow!s}"
            )
        if self.extra and self.extra.remainder and policy.underflow is not Underflow.GRADUAL:
            raise ValueError(
                f"{self.name}: a remainder reaches half an ulp, and flushed numbers lie further off; it "
                f"takes underflow 'gradual' alone, not {policy.underflow!s}"
            )
        master = self.extra if self.addition is Addition.MASTER and self.extra else self.parameter
        moments, model, parameter, second, update = arithmetics(
            [self.m, self.parameter, master, self.v, Stored(self.m.format)], policy, **options
        )
        return Roles(moments, second, update, parameter, model)
