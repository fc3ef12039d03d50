"""How the parameters of a group are stored and rounded, and what carries their steps out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.strategies import DEFAULT_WORDS, Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.torch.batched import Batched
from mcfsim.torch.device_step import DeviceStep
from mcfsim.torch.host_step import HostStep
from mcfsim.torch.moved import Stores
from mcfsim.torch.repeatable_step import RepeatableStep
from mcfsim.torch.work import StepRunner


@dataclass(frozen=True)
class Settings:
    """What a group says of the arithmetic of its steps.

    Attributes
    ----------
    strategy : Strategy
        Without an open format.
    rounding : str or Rounding
        Of every operation.
    scalars : {"exact", "rounded"}
        How hyperparameters enter.
    random : RandomWords or None
        What stochastic rounding draws.
    """

    strategy: Strategy
    rounding: Rounding | str
    scalars: Scalars
    random: RandomWords | None

    @classmethod
    def settled(cls, group: dict[str, Any]) -> Settings:
        """Return what a new group says, and write it into the group: the strategy with its low format put in.

        Raises
        ------
        TypeError, ValueError
            If a strategy, format or rounding is unknown, or the strategy keeps exact numbers, or its weights
            on a grid.
        """
        chosen = get_strategy(group["strategy"], group.pop("low"))
        if chosen.parameter.format is None:
            raise ValueError(f"strategy {chosen.name!r} keeps exact numbers, which no tensor holds")
        if chosen.parameter.grid is not None:
            raise ValueError(
                f"strategy {chosen.name!r} keeps its weights on a grid, which mcfsim.Optimizer and "
                "mcfsim.simulate serve, and no optimizer of tensors"
            )
        random = DEFAULT_WORDS if group["random"] is None and chosen.draws else group["random"]
        group.update(strategy=chosen, random=random)
        return cls.of(group)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Settings:
        """Return what a group says."""
        return cls(*(group[name] for name in cls.__dataclass_fields__))

    @property
    def draws(self) -> bool:
        """Whether a step draws random words."""
        return self.strategy.draws or get_rounding(self.rounding).stochastic

    def described(self) -> dict[str, Any]:
        """Return what is saved of the settings: strings, and the fields of the random words."""
        drawn = None if self.random is None else asdict(self.random)
        named = {"strategy": self.strategy.name, "rounding": str(self.rounding), "scalars": self.scalars}
        return {**named, "random": drawn}

    def gone_on(self, saved: Mapping[str, Any]) -> Settings:
        """Return these settings with random words that go on where saved ones do.

        Raises
        ------
        ValueError
            If the saved settings are others, or have no random words and a step draws some.
        """
        own = self.described()
        found = {name: saved.get(name, own[name]) for name in own}
        drawn = found.pop("random")
        if found != {name: own[name] for name in found}:
            raise ValueError(f"the state is of {found}, and this optimizer is of {own}")
        if drawn is None and self.draws:
            raise ValueError("the state has no random words, and stochastic rounding needs random")
        try:
            random = None if drawn is None else RandomWords(**drawn)
        except TypeError as error:
            raise ValueError(
                f"the state's random = {drawn!r} is no seed, step and stream: {error}"
            ) from error
        return Settings(self.strategy, self.rounding, self.scalars, random)


class Steps:
    """The steps of an optimizer by some settings.

    Attributes
    ----------
    stores : Stores
    on_host : Batched
        Of tensors in the CPU's memory.
    on_device : DeviceStep
        Of others.
    repeatable : RepeatableStep
        Of others, so that a captured graph may repeat them.
    numbered : bool
        Whether it matters which numbers elements have: those by which words are drawn, or groups are made.
    """

    def __init__(self, declaration: type[Declaration], settings: Settings) -> None:
        scalars = settings.scalars
        roles = settings.strategy.roles(settings.rounding, scalars=scalars, random=settings.random)
        self.stores = Stores.of(declaration, settings.strategy, roles, scalars)
        self.numbered = settings.draws or bool(self.stores.scaled)
        self.on_host, self.on_device = Batched(HostStep(self.stores)), DeviceStep(self.stores)
        self.repeatable = RepeatableStep(self.stores)

    def carrier(self, *, host: bool, repeated: bool) -> StepRunner:
        """Return what carries steps out: in the CPU's memory, or elsewhere, repeated by graphs or not."""
        if host:
            return self.on_host
        return self.repeatable if repeated else self.on_device
