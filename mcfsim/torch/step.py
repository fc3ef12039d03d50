"""An optimizer of PyTorch that makes the steps of `mcfsim.optim` on the tensors of a model, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, cast

import numpy as np

from mcfsim.backends.factory import arithmetic
from mcfsim.backends.tensors import as_array, check_dense
from mcfsim.checks.processor import check_subnormals
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim.declaration import Declaration, learning_rate
from mcfsim.optim.strategies import DEFAULT_WORDS, Strategy
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.torch import operator
from mcfsim.torch.device_step import DeviceStep
from mcfsim.torch.host_step import HostStep
from mcfsim.torch.moved import Moved, Stores
from mcfsim.torch.saving import SavedOptimizer

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("mcfsim.torch needs PyTorch: pip install 'mcfsim[torch]'") from error


class StoredOptimizer(SavedOptimizer):
    """A step of `mcfsim.optim` on packed tensors: by NumPy on the CPU, by kernels on a GPU."""

    def __init__(
        self,
        params: Any,
        chosen: Strategy,
        rounding: Rounding | str,
        scalars: Scalars,
        random: RandomWords | None,
        **defaults: Any,
    ) -> None:
        self._prepare(chosen, rounding, scalars, random)
        super().__init__(params, defaults)

    #: Whose step it makes.
    _declaration: type[Declaration]

    @classmethod
    def _hyper(cls, group: Mapping[str, Any]) -> Declaration:
        """Return the hyperparameters of a group: those of the declaration's fields."""
        return cls._declaration(
            **{field.name: group[field.name] for field in fields(cast(Any, cls._declaration))}
        )

    def _prepare(
        self,
        chosen: Strategy,
        rounding: Rounding | str,
        scalars: Scalars,
        random: RandomWords | None = None,
    ) -> None:
        """Keep the settings, and derive the arithmetics and each component's name, format and dtype."""
        self.strategy, self.rounding, self.scalars = chosen, rounding, scalars
        if chosen.parameter.format is None:
            raise ValueError(f"strategy {chosen.name!r} keeps exact numbers, which no tensor holds")
        self._number = operator.enrolled(self)
        self._draw(random)

    def _draw(self, random: RandomWords | None) -> None:
        """Take random words from a stream, with which stochastic rounding begins."""
        self.random = random = DEFAULT_WORDS if random is None and self.strategy.draws else random
        roles = self.strategy.roles(self.rounding, scalars=self.scalars, random=random)
        self._stores = Stores.of(self._declaration, self.strategy, roles, self.scalars)
        self._on_host, self._on_device = HostStep(self._stores), DeviceStep(self._stores)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own hyperparameters; see `torch.optim.Optimizer`."""
        super().add_param_group(param_group)
        group = self.param_groups.pop()  # it comes back once it is found good
        if len(set(group["params"])) < len(group["params"]):
            raise ValueError("a parameter appears twice in its group")
        rate, entering = learning_rate("lr", float(group["lr"])), self._hyper(group).entering()
        for role in {**entering, "update": {}}:
            scalars = entering.get(role, {})
            warn_of_vanishing(
                self._stores.roles.of(role), {**scalars, "lr": rate} if role == "update" else scalars
            )
        for parameter in group["params"]:
            self._check(parameter)
        self.param_groups.append(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients, each rounded into the strategy's gradient format.

        A closure, if given, computes the gradients first, and what it returns is returned. A parameter or
        gradient that is no dense tensor of the right dtype raises TypeError, before anything changes. In what
        ``torch.compile`` makes of a training step this is one operator, with the same bits.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        parameters = [p for group in self.param_groups for p in group["params"]]
        places = [place for place, p in enumerate(parameters) if p.grad is not None]
        moving = [parameters[place] for place in places]
        gradients = [p.grad for p in moving]
        if torch.compiler.is_compiling():
            operator.step(self._number, places, moving, gradients)
        else:
            self.advance(places, moving, gradients)
        return loss

    def advance(
        self, places: Sequence[int], given: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """Make one step of tensors that stand for the parameters at some places, counted through all groups.

        Raises
        ------
        TypeError, ValueError
            As `step` does, before anything changes.
        """
        check_subnormals()
        groups = [number for number, group in enumerate(self.param_groups) for _ in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        firsts = list(accumulate((p.numel() for p in parameters), initial=0))
        with torch.no_grad():
            for tensor, gradient in zip(given, gradients, strict=True):
                self._check(tensor)
                check_dense(gradient)
            for group in self.param_groups:
                learning_rate("lr", float(group["lr"]))  # which a scheduler may have changed
            alike: dict[Any, list[tuple[torch.Tensor, Moved]]] = {}
            for place, tensor, gradient in zip(places, given, gradients, strict=True):
                p = parameters[place]
                state = self.state[p] = self.state[p] or self._start(p)
                moved = Moved({**state, "parameter": tensor.detach()}, gradient, firsts[place])
                key = groups[place], state["step"] + 1, p.device
                alike.setdefault(key, []).append((p, moved))
            for (number, count, device), together in alike.items():
                on, group = self._on_host if _is_host(device) else self._on_device, self.param_groups[number]
                on.move([x for _, x in together], self._hyper(group), count, float(group["lr"]))
                for p, _ in together:
                    self.state[p]["step"] = count
            # Autograd did not see the writing, and could not tell that a graph has become stale.
            torch.autograd.graph.increment_version(given)

    def _start(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state before the first step: zeros, and a master copy of the parameter."""
        state: dict[str, Any] = {"step": 0}
        for name, dtype in list(self._stores.dtypes.items())[1:]:  # the first is the parameter itself
            state[name] = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
        if "master" in state:
            ar = arithmetic(self._stores.formats["master"], backend="torch", device=parameter.device)
            state["master"].copy_(ar.round(parameter.detach()))
        return state

    def _check(self, parameter: torch.Tensor) -> None:
        expected = self._stores.dtypes["parameter"]
        if parameter.dtype != expected:
            raise TypeError(
                f"strategy {self.strategy.name!r} stores parameters as {expected}, not {parameter.dtype}; "
                f"convert the model with .to({expected}), or choose another strategy or low format"
            )
        check_dense(parameter.detach())
        if any(size > 1 and not step for size, step in zip(parameter.shape, parameter.stride(), strict=True)):
            raise TypeError("elements of the parameter share memory; make it a tensor of its own by .clone()")

    def represented(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the parameter that the optimizer means, as a new float64 tensor.

        It is the sum of the parameter's components, of the parameter and Kahan's compensation, or it is
        the master copy. A sum that needs more than 53 bits is rounded. A tensor that is no parameter of
        this optimizer raises ValueError.
        """
        if not any(parameter is known for group in self.param_groups for known in group["params"]):
            raise ValueError("the tensor is no parameter of this optimizer")
        tensors = {**(self.state.get(parameter) or self._start(parameter)), "parameter": parameter.detach()}
        if "remainder" in tensors:
            leading, rest = (as_array(tensors[name].cpu()) for name in ("parameter", "remainder"))
            numbers = self._stores.split(leading, rest.view(np.uint16)).numbers()
            return torch.from_numpy(np.asarray(numbers, np.float64)).to(parameter.device)
        total = torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)
        for name in reversed(self._stores.names.represented(self.strategy)):
            total += tensors[name].to(torch.float64)
        return total

    def __getstate__(self) -> dict[str, Any]:
        settings = (self.strategy, self.rounding, self.scalars, self.random)
        return {**super().__getstate__(), "settings": settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        settings = state.pop("settings", None)
        super().__setstate__(state)
        if settings is not None:  # torch also comes here with loaded state alone
            self._prepare(*settings)


def _is_host(device: torch.device) -> bool:
    """Return whether tensors of a device are NumPy's, too."""
    return bool(device.type == "cpu")
