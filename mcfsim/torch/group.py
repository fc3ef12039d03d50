"""What a group of parameters may say: hyperparameters, by PyTorch's names, settings, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

import numpy as np
import torch

from mcfsim.backends.strung_tensors import check_dense
from mcfsim.checks.names import hint
from mcfsim.optim.declaration import Declaration, learning_rate

#: How steps are made, with the defaults.
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
#: What PyTorch and its schedulers write into a group, and a name that its owner may give it.
LABELS = (
    "params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
    "swa_lr",
)  # fmt: skip
#: What PyTorch calls hyperparameters for which it has names of its own, in the place of the first.
_TOGETHER = {"betas": ("beta1", "beta2")}
_RENAMED = {"epsilon": "eps"}


class Absent(NamedTuple):
    """An option of PyTorch's optimizers that has no counterpart here.

    Attributes
    ----------
    off : tuple
        The values that ask for nothing.
    why : str
        Why others are refused.
    """

    off: tuple[Any, ...]
    why: str


ABSENT: Mapping[str, Absent] = {
    "foreach": Absent((False, None), "a step batches tensors by itself"),
    "fused": Absent((False, None), "a step is one loop or kernel already, and rounds as its strategy says"),
    "differentiable": Absent((False, None), "no gradient flows through a rounding"),
    "amsgrad": Absent((False, None), "the largest second moments are not kept"),
    "nesterov": Absent((False, None), "such steps are those of mcfsim.torch.Nesterov"),
    "dampening": Absent((0,), "a gradient enters the momentum whole"),
    "decoupled_weight_decay": Absent((True,), "weight decay is decoupled; torch.optim.Adam's is not here"),
}


class Hyperparameters:
    """The hyperparameters of a declaration as PyTorch has them: ``beta1, beta2`` as ``betas``, and ``eps``.

    Parameters
    ----------
    declaration : type
    own : mapping
        Defaults, by PyTorch's names, that differ from the declaration's.

    Attributes
    ----------
    defaults : dict
        By PyTorch's names, in their order; `inspect.Parameter.empty` if there is none.
    """

    def __init__(self, declaration: type[Declaration], own: Mapping[str, Any]) -> None:
        given = {name: of.default for name, of in signature(declaration).parameters.items()}
        self._fields: dict[str, list[str]] = {}
        for name in given:
            self._fields.setdefault(_called(name, given), []).append(name)
        self.defaults: dict[str, Any] = {}
        for name, parts in self._fields.items():
            found = tuple(given[part] for part in parts)
            whole = found if name in _TOGETHER else found[0]
            self.defaults[name] = own.get(name, Parameter.empty if Parameter.empty in found else whole)

    @property
    def constructor(self) -> Signature:
        """What the constructor of the optimizer takes."""
        params = Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)
        lr = Parameter("lr", Parameter.POSITIONAL_OR_KEYWORD, default=1e-3)
        hyper = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY if default is Parameter.empty else Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
            )
            for name, default in self.defaults.items()
        ]
        settings = [Parameter(name, Parameter.KEYWORD_ONLY, default=x) for name, x in SETTINGS.items()]
        ordered = sorted([*hyper, *settings], key=lambda parameter: parameter.kind)
        return Signature([params, lr, *ordered])

    def renamed(self, whose: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a constructor is given, by PyTorch's names where it has the declaration's.

        Raises
        ------
        TypeError
            If one is given by both.
        """
        taken = dict(given)
        for name, parts in self._fields.items():
            if not (own := [part for part in parts if part in taken and part != name]):
                continue
            if name in taken:
                raise TypeError(f"{whose} is given {name} and {', '.join(own)}, which it holds")
            default = self.defaults[name] if name in _TOGETHER else (self.defaults[name],)
            found = tuple(taken.pop(part, x) for part, x in zip(parts, default, strict=True))
            taken[name] = found if name in _TOGETHER else found[0]
        return taken

    def of(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a group, by the declaration's names.

        Raises
        ------
        TypeError, ValueError
            If one is a tensor without numbers, or those given together are not so many.
        """
        found: dict[str, Any] = {}
        for name, parts in self._fields.items():
            given = _several(name, parts, group[name]) if name in _TOGETHER else [number(group[name])]
            found |= zip(parts, given, strict=True)
        return found

    def rate(self, group: Mapping[str, Any]) -> float:
        """Return the learning rate of a group; raise unless it is finite and not negative."""
        return learning_rate("lr", number(group["lr"]))

    def received(self, whose: str, given: Mapping[str, Any], labels: Iterable[str] = ()) -> dict[str, Any]:
        """Return what an optimizer or a group is given, without what PyTorch has and is off.

        Raises
        ------
        TypeError
            If a name is unknown.
        ValueError
            If an option is on that has no counterpart here.
        """
        if "params" in labels and "params" not in given:
            raise TypeError(f"{whose} has no 'params'")
        taken = without_absent(whose, given)
        known = ("lr", *self.defaults, *SETTINGS, *labels)
        for name in taken:
            if name not in known:
                near = hint(str(name), (*known, *ABSENT))
                raise TypeError(f"{whose} has no {name!r}{near}; it takes {', '.join(known)}")
        return taken


def without_absent(whose: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those that have no counterpart here, and are off.

    Raises
    ------
    ValueError
        If one is on.
    """
    for name in given.keys() & ABSENT.keys():
        x, absent = given[name], ABSENT[name]
        plain = isinstance(x, int | float | np.bool_)
        if not any(x is off or (plain and x == off) for off in absent.off):
            allowed = " or ".join(repr(off) for off in absent.off)
            raise ValueError(f"{whose} has no {name} = {x!r}: {absent.why}; leave it {allowed}")
    return {name: x for name, x in given.items() if name not in ABSENT}


def check_flags(group: Mapping[str, Any]) -> None:
    """Raise TypeError unless what is on or off in a group is a truth value."""
    for name in FLAGS:
        if not isinstance(group[name], bool | np.bool_):
            raise TypeError(f"{name} must be True or False, not {group[name]!r}")


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
    """Return what PyTorch calls a hyperparameter, one of some."""
    for whole, parts in _TOGETHER.items():
        if name in parts and set(parts) <= set(names):
            return whole
    return _RENAMED.get(name, name)


def _several(name: str, parts: list[str], given: Any) -> list[Any]:
    """Return hyperparameters that are given together."""
    if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if not isinstance(given, list | tuple) or len(given) != len(parts):
        raise ValueError(f"{name} = {given!r} must be {len(parts)} numbers: {', '.join(parts)}")
    return [number(x) for x in given]
