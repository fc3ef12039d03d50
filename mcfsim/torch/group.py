"""Parameter groups: their hyperparameters, their settings, and the objects that make their steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from functools import lru_cache, partial
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

import numpy as np
import torch

from mcfsim.checks import hint
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.kernels.torch_tensors import check_dense
from mcfsim.optim.declaration import Declaration, Interval
from mcfsim.optim.staged import check_step
from mcfsim.optim.strategies import DEFAULT_WORDS, Strategy
from mcfsim.optim.strategies import strategy as get_strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.torch.captured import RepeatableStep
from mcfsim.torch.moved import StepRunner
from mcfsim.torch.state_layout import StateLayout
from mcfsim.torch.straight_step import DeviceStep, HostStep
from mcfsim.torch.whole_step import GatheredStep, GridStep, WholeStep

#: The settings of a group, with their defaults.
SETTINGS: Mapping[str, Any] = {
    "strategy": "collage-plus",
    "low": "bfloat16",
    "rounding": "nearest_even",
    "scalars": "exact",
    "random": None,
    "capturable": False,
    "maximize": False,
}
#: Settings that are on or off.
FLAGS = ("capturable", "maximize")
#: Entries that PyTorch and its schedulers write into a group, and a name that the user may give it.
LABELS = (
    "params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
    "swa_lr",
)  # fmt: skip
#: PyTorch's own names of hyperparameters; a joint name takes the place of the first one.
_TOGETHER = {"betas": ("beta1", "beta2")}
_RENAMED = {"epsilon": "eps"}


class Absent(NamedTuple):
    """An option of PyTorch's optimizers that has no counterpart here.

    Attributes
    ----------
    off : tuple
        The values that mean it is off.
    why : str
        Why other values are refused.
    """

    off: tuple[Any, ...]
    why: str


ABSENT: Mapping[str, Absent] = {
    "foreach": Absent((False, None), "a step batches tensors by itself"),
    "fused": Absent((False, None), "a step is one loop or kernel already, and rounds as its strategy says"),
    "differentiable": Absent((False, None), "no gradient flows through a rounding"),
    "amsgrad": Absent((False, None), "such steps are those of mcfsim.torch.AMSGrad or TorchAMSGrad"),
    "nesterov": Absent((False, None), "such steps are those of mcfsim.torch.Nesterov"),
    "dampening": Absent((0,), "only mcfsim.torch.SGD has a momentum that is dampened"),
    "decoupled_weight_decay": Absent((True,), "weight decay is decoupled; torch.optim.Adam's is not here"),
}


class Hyperparameters:
    """A declaration's hyperparameters by PyTorch's names: ``beta1, beta2`` as ``betas``, and ``eps``.

    Parameters
    ----------
    declaration : type
    own : mapping
        Defaults, by the declaration's names, that differ from its own.

    Attributes
    ----------
    defaults : dict
        The defaults by PyTorch's names, in order; `inspect.Parameter.empty` where there is none.

    Raises
    ------
    TypeError
        If one has the name of another entry of groups, as ``lr`` or ``rounding``.
    """

    def __init__(self, declaration: type[Declaration], own: Mapping[str, Any]) -> None:
        given = {name: of.default for name, of in signature(declaration).parameters.items()}
        made = {x.name: x.default_factory for x in fields(declaration) if x.default_factory is not MISSING}  # type: ignore[arg-type]
        given |= {**{name: make() for name, make in made.items()}, **own}
        if taken := given.keys() & {"lr", *SETTINGS, *LABELS, *_TOGETHER}:
            names = ", ".join(sorted(taken))
            raise TypeError(
                f"hyperparameters of {declaration.__name__} have names of other entries of groups: {names}; "
                "give them other names"
            )
        self._fields: dict[str, list[str]] = {}
        for name in given:
            self._fields.setdefault(_called(name, given), []).append(name)
        self.defaults: dict[str, Any] = {}
        for name, parts in self._fields.items():
            found = tuple(given[part] for part in parts)
            whole = found if name in _TOGETHER else found[0]
            self.defaults[name] = Parameter.empty if Parameter.empty in found else whole

    @property
    def constructor(self) -> Signature:
        """The signature of the optimizer's constructor."""
        named = {"params": Parameter.empty, "lr": 1e-3, **self.defaults, **SETTINGS}
        keywords = {*SETTINGS, *(name for name, x in self.defaults.items() if x is Parameter.empty)}
        found = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY if name in keywords else Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
            )
            for name, default in named.items()
        ]
        return Signature(sorted(found, key=lambda parameter: parameter.kind))

    def renamed(self, whose: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a constructor, with the declaration's names replaced by PyTorch's.

        Raises
        ------
        TypeError
            If a hyperparameter is given by both names.
        """
        taken = dict(given)
        for name, parts in self._fields.items():
            if not (own := [part for part in parts if part in taken and part != name]):
                continue
            if name in taken:
                raise TypeError(f"{whose} is given both {name} and {', '.join(own)}; give one")
            default = self.defaults[name] if name in _TOGETHER else (self.defaults[name],)
            found = tuple(taken.pop(part, x) for part, x in zip(parts, default, strict=True))
            taken[name] = found if name in _TOGETHER else found[0]
        return taken

    def of(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a group, by the declaration's names.

        Raises
        ------
        TypeError, ValueError
            If one is a tensor without numbers, or a joint entry has the wrong number of them.
        """
        found: dict[str, Any] = {}
        for name, parts in self._fields.items():
            given = _several(name, parts, group[name]) if name in _TOGETHER else [number(group[name])]
            found |= zip(parts, given, strict=True)
        return found

    def rate(self, group: Mapping[str, Any]) -> float:
        """Return the learning rate of a group; raise unless it is finite and not negative."""
        return Interval.NOT_NEGATIVE.number("lr", number(group["lr"]))

    def received(self, whose: str, given: Mapping[str, Any], labels: Iterable[str] = ()) -> dict[str, Any]:
        """Return the arguments of an optimizer or a group, without options of `ABSENT` that are off.

        Raises
        ------
        TypeError
            If a name is unknown.
        ValueError
            If an option without a counterpart here is on.
        """
        if "params" in labels and "params" not in given:
            raise TypeError(f"{whose} has no 'params'")
        taken = without_absent(whose, given, self.defaults)
        known = ("lr", *self.defaults, *SETTINGS, *labels)
        for name in taken:
            if name not in known:
                near = hint(str(name), (*known, *ABSENT))
                raise TypeError(f"{whose} has no {name!r}{near}; it takes {', '.join(known)}")
        return taken


def without_absent(whose: str, given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return options without those that have no counterpart here and are not `known`; these must be off.

    Raises
    ------
    ValueError
        If one of them is on.
    """
    absents = (given.keys() & ABSENT.keys()) - set(known)
    for name in absents:
        x, absent = given[name], ABSENT[name]
        plain = isinstance(x, int | float | np.bool_)
        if not any(x is off or (plain and x == off) for off in absent.off):
            allowed = " or ".join(repr(off) for off in absent.off)
            raise ValueError(f"{whose} has no {name} = {x!r}: {absent.why}; leave it {allowed}")
    return {name: x for name, x in given.items() if name not in absents}


def check_flags(group: Mapping[str, Any]) -> None:
    """Raise TypeError unless the flags of a group are truth values."""
    for name in FLAGS:
        if not isinstance(group[name], bool | np.bool_):
            raise TypeError(f"{name} must be True or False, not {group[name]!r}")


def without_doubles(group: dict[str, Any]) -> None:
    """Remove repeated parameters from a group, and their names; keep the first of each."""
    places = {p: place for place, p in reversed(list(enumerate(group["params"])))}
    for name in ("params", "param_names"):
        if name in group:
            group[name] = [group[name][place] for place in sorted(places.values())]


def number(x: Any) -> Any:
    """Return a hyperparameter, which may be a tensor of one element, as a Python number.

    Raises
    ------
    TypeError
        If it is a tensor that is not dense and real, or has no numbers.
    """
    if not isinstance(x, torch.Tensor) or x.numel() != 1:
        return x
    check_dense(x.detach())
    return x.item()


def _called(name: str, names: Iterable[str]) -> str:
    """Return PyTorch's name of a hyperparameter, given the names of all."""
    for whole, parts in _TOGETHER.items():
        if name in parts and set(parts) <= set(names):
            return whole
    return _RENAMED.get(name, name)


def _several(name: str, parts: list[str], given: Any) -> list[Any]:
    """Return the numbers of a joint entry, such as ``betas``."""
    if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if not isinstance(given, list | tuple) or len(given) != len(parts):
        raise ValueError(f"{name} = {given!r} must be {len(parts)} numbers: {', '.join(parts)}")
    return [number(x) for x in given]


# -- settings ---------------------------------------------------------------------------------------------
class Settings(NamedTuple):
    """The settings of a group that determine the arithmetic of its steps.

    Attributes
    ----------
    strategy : Strategy
        Its low format is put in.
    rounding : str or Rounding
        The rounding of every operation.
    scalars : {"exact", "rounded", "float32"}
        How hyperparameters enter.
    random : RandomWords or None
        The words that stochastic rounding draws.
    """

    strategy: Strategy
    rounding: Rounding | str
    scalars: Scalars
    random: RandomWords | None

    @classmethod
    def settled(cls, group: dict[str, Any]) -> Settings:
        """Return the settings of a new group; write into it the strategy with its low format put in.

        Raises
        ------
        TypeError, ValueError
            If a strategy, format or rounding is unknown, or the strategy keeps exact numbers.
        """
        chosen = get_strategy(group["strategy"], group.pop("low"))
        if chosen.parameter.format is None:
            raise ValueError(f"strategy {chosen.name!r} keeps exact numbers, which no tensor holds")
        if not isinstance(group["random"], RandomWords | None):  # an array, say, which is no key of a dict
            raise TypeError(f"random must be RandomWords(seed), not {group['random']!r}")
        random = DEFAULT_WORDS if group["random"] is None and chosen.draws else group["random"]
        group.update(strategy=chosen, random=random)
        return cls.of(group)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Settings:
        """Return the settings of a group; raise TypeError for a strategy that was put there by its name."""
        if not isinstance(group["strategy"], Strategy):
            raise TypeError(
                f"strategy = {group['strategy']!r} was put into a group after it was made; a run goes on "
                "under another one by mcfsim.torch.adopt(optimizer, strategy)"
            )
        return cls(*(group[name] for name in cls._fields))

    @property
    def draws(self) -> bool:
        """Whether a step draws random words."""
        return self.strategy.draws or get_rounding(self.rounding).stochastic

    def described(self) -> dict[str, Any]:
        """Return the settings as they are saved: strings, and the fields of the random words."""
        drawn = None if self.random is None else asdict(self.random)
        named = {"strategy": self.strategy.name, "rounding": str(self.rounding), "scalars": self.scalars}
        return {**named, "random": drawn}

    def gone_on(self, saved: Mapping[str, Any]) -> Settings:
        """Return these settings with the random words of saved ones.

        Raises
        ------
        ValueError
            If the saved settings differ otherwise, or have no random words although a step draws some.
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
        return self._replace(random=random)


class Steps:
    """The objects that make an optimizer's steps under given settings.

    Attributes
    ----------
    stores : StateLayout
    on_host : HostStep
        For tensors in CPU memory.
    on_device : DeviceStep
        For other tensors.
    repeatable : RepeatableStep
        For other tensors, if a captured graph may repeat the steps.
    whole : WholeStep or None
        For all tensors, if steps have stages.
    on_grid : bool
        Whether parameters lie on grids.
    check : callable
        Raises if an arithmetic cannot make a step without stages with given hyperparameters.
    numbered : bool
        Whether the indices of elements matter, because words are drawn or groups are formed by them.
    """

    def __init__(self, declaration: type[Declaration], settings: Settings) -> None:
        scalars, self._random = settings.scalars, settings.random
        roles = settings.strategy.roles(settings.rounding, scalars=scalars, random=settings.random)
        self.stores = StateLayout.of(declaration, settings.strategy, roles, scalars)
        self.on_grid = settings.strategy.parameter.grid is not None
        self.numbered = settings.draws or bool(self.stores.scaled) or self.on_grid
        self.on_host, self.on_device = HostStep(self.stores), DeviceStep(self.stores)
        self.repeatable = RepeatableStep(self.stores)
        check = partial(check_step, strategy=settings.strategy.unshared, roles=roles, shape=())
        self.check = lru_cache(maxsize=64)(check)
        self.whole = WholeStep(self.stores) if declaration.staged else None

    def carrier(self, *, host: bool, repeated: bool) -> StepRunner:
        """Return the object that makes steps: in CPU memory, or elsewhere, repeatable by graphs or not.

        Raises
        ------
        ValueError
            If a graph is to repeat steps that are made on the CPU.
        """
        if repeated and (self.whole is not None or self.on_grid):
            raise ValueError(
                "steps in stages, and those of weights on grids, are made on the CPU, where no graph repeats "
                "them; leave capturable False"
            )
        found: StepRunner = self.repeatable if repeated else self.on_device
        if host:
            found = self.on_host
        if self.whole is not None:
            found = self.whole
        if self.on_grid:
            found = GridStep(self.stores, found, self._random)
        return GatheredStep(self.stores, found) if self.stores.together else found
