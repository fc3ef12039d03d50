"""A step of any optimizer on the CPU tensors of a PyTorch model, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, fields
from itertools import chain
from typing import Any, cast

import numpy as np

from mcfsim.backends.tensors import TORCH_DTYPES, as_array, cut, flat, torch_dtype
from mcfsim.checks.processor import check_subnormals
from mcfsim.codec import encode
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim.declaration import Declaration, learning_rate
from mcfsim.optim.memory import Split, requantize
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from mcfsim.optim.strategies import DEFAULT_WORDS, Addition, Stored, Strategy
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, get_rounding

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("mcfsim.torch needs PyTorch: pip install 'mcfsim[torch]'") from error


class StoredOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """A step of `mcfsim.optim` on tensors: state is kept packed, a block of it at a time is unpacked."""

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
        self._draw(random)
        self._formats: dict[str, Format] = {}

        def declare(name: str, stored: Stored | None) -> tuple[str, ...]:
            if stored is None or stored.format is None:
                return ()
            names = (name, *(f"{name}_{k}" for k in range(1, stored.components)))
            self._formats |= dict.fromkeys(names, stored.format)
            return names

        master = "remainder" if chosen.extra and chosen.extra.shared else "master"
        self._names = State(
            parameter=declare("parameter", chosen.parameter),
            m=declare("m", chosen.m if self._declaration.keeps("m") else None),
            v=declare("v", chosen.v if self._declaration.keeps("v") else None),
            extra=declare(master if chosen.addition is Addition.MASTER else "compensation", chosen.extra),
        )
        # Of torch's formats bfloat16 alone leads float32, and 16 bits follow: signed, for torch cannot
        # pickle unsigned tensors of 16 bits.
        self._dtypes = {
            name: torch.int16 if name == "remainder" else torch_dtype(fmt)
            for name, fmt in self._formats.items()
        }

    def _draw(self, random: RandomWords | None) -> None:
        """Take random words from a stream, with which stochastic rounding begins."""
        self.random = random = DEFAULT_WORDS if random is None and self.strategy.draws else random
        self._roles = self.strategy.roles(self.rounding, scalars=self.scalars, random=random)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own hyperparameters; see `torch.optim.Optimizer`."""
        super().add_param_group(param_group)
        group = self.param_groups.pop()  # it comes back once it is found good
        if len(set(group["params"])) < len(group["params"]):
            raise ValueError("a parameter appears twice in its group")
        rate, entering = learning_rate("lr", float(group["lr"])), self._hyper(group).entering()
        for role in {**entering, "update": {}}:
            scalars = entering.get(role, {})
            warn_of_vanishing(self._roles.of(role), {**scalars, "lr": rate} if role == "update" else scalars)
        for parameter in group["params"]:
            self._check(parameter)
        self.param_groups.append(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients, each rounded into the strategy's gradient format.

        A closure, if given, computes the gradients first, and what it returns is returned. A parameter or
        gradient that is no dense CPU tensor of the right dtype raises TypeError, before anything changes.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        check_subnormals()
        with torch.no_grad(), np.errstate(all="ignore"):
            moving = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
            for parameter in chain(*moving):
                self._check(parameter)
                as_array(parameter.grad)
            for group in self.param_groups:
                learning_rate("lr", float(group["lr"]))  # which a scheduler may have changed
            first = 0
            for group, parameters in zip(self.param_groups, moving, strict=True):
                together: dict[int, list[torch.Tensor]] = {}
                for parameter in parameters:
                    state = self.state[parameter] = self.state[parameter] or self._start(parameter)
                    together.setdefault(state["step"] + 1, []).append(parameter)
                for count, same in together.items():
                    runs = [(0, same)] if self.random is None else _runs(group["params"], same, first)
                    for start, neighbours in runs:
                        self._move(neighbours, self._hyper(group), count, float(group["lr"]), start)
                first += sum(p.numel() for p in group["params"])
        return loss

    def _move(
        self, parameters: list[torch.Tensor], hyper: Declaration, count: int, rate: float, start: int
    ) -> None:
        """Make step number `count` of these parameters, whose elements are numbered from `start` on."""
        scalars: Any = hyper.scalars(self._roles, self.strategy, count, rate, decayed=True)
        held = [{**self.state[p], "parameter": p} for p in parameters]
        stored = {name: [flat(tensors[name]) for tensors in held] for name in self._formats}
        gradients = [flat(p.grad) for p in parameters]
        fmt: Any = self.strategy.gradient.format
        exact = [TORCH_DTYPES.get(p.grad.dtype) == fmt for p in parameters]
        for pieces in cut(p.numel() for p in parameters):
            size = pieces[-1][2].stop
            blocks = {
                name: np.empty(size, np.uint16 if name == "remainder" else carrier_of(item))
                for name, item in self._formats.items()
            }
            gradient = np.empty(size, carrier_of(fmt))
            for index, part, place in pieces:
                for name, block in blocks.items():
                    block[place] = stored[name][index][part]
                given = gradients[index][part]
                gradient[place] = given if exact[index] else round_to(given, fmt)
            old = State(*(tuple(blocks[name] for name in names) for names in self._names))
            split = self._split(blocks["parameter"], blocks["remainder"]) if "remainder" in blocks else None
            if split is not None:
                old = old._replace(extra=(split.numbers(),))
            roles = block_roles(self._roles, count, start)
            start += size
            new, _ = hyper.step(roles, self.strategy, old, gradient, scalars)
            if split is not None:
                split.keep(new.extra[0])
                new = new._replace(extra=(split.rest,))
            for name, block in zip(chain(*self._names), chain(*new), strict=True):
                for index, part, place in pieces:
                    stored[name][index][part] = block[place]
        for name, item in (("m", self.strategy.m), ("v", self.strategy.v)):
            if item.scaled is not None and name in self._formats:
                for vector in stored[name]:
                    requantize(vector, [slice(0, len(vector))], item.scaled, self._formats[name])
        for parameter in parameters:
            self.state[parameter]["step"] = count
        # Autograd did not see the writing, and could not tell that a graph has become stale.
        torch.autograd.graph.increment_version(parameters)

    def _split(self, parameter: Any, rest: Any) -> Split:
        """Return the master copy of which a parameter's codes are the leading bits, with the others."""
        fmt = self._formats["parameter"]
        rounded = self.strategy.parameter.rounding is Mode.NEAREST_AWAY
        return Split.beside(encode(parameter, fmt), rest, fmt, rounded=rounded)

    def _start(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state before the first step: zeros, and a master copy of the parameter."""
        state: dict[str, Any] = {"step": 0}
        for name, dtype in list(self._dtypes.items())[1:]:  # the first is the parameter itself
            state[name] = torch.zeros(parameter.shape, dtype=dtype, device="cpu")
        if "master" in state:
            as_array(state["master"])[...] = round_to(as_array(parameter.detach()), self._formats["master"])
        return state

    def _check(self, parameter: torch.Tensor) -> None:
        expected = self._dtypes["parameter"]
        if parameter.dtype != expected:
            raise TypeError(
                f"strategy {self.strategy.name!r} stores parameters as {expected}, not {parameter.dtype}; "
                f"convert the model with .to({expected}), or choose another strategy or low format"
            )
        as_array(parameter.detach())
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
            split = self._split(
                as_array(tensors["parameter"]), as_array(tensors["remainder"]).view(np.uint16)
            )
            return torch.from_numpy(np.asarray(split.numbers(), np.float64))
        total = torch.zeros(parameter.shape, dtype=torch.float64, device="cpu")
        for name in reversed(self._names.represented(self.strategy)):
            total += tensors[name].to(torch.float64)
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return state and groups as torch does, and under ``arithmetic`` what the state is of.

        Under ``random`` is where stochastic rounding draws from, by `mcfsim.RandomWords`' fields, or None.
        """
        drawn = None if self.random is None else asdict(self.random)
        return {**super().state_dict(), "arithmetic": self._arithmetic(), "random": drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`, whose tensors are copied, to the same bits.

        Random words go on where the state's do, whatever this optimizer began with. A state of another
        optimizer, strategy or rounding, or of other parameters, raises ValueError.
        """
        states: dict[torch.Tensor, dict[str, Any]] = {}
        random: list[RandomWords | None] = []

        def check(_: Any, given: dict[str, Any]) -> None:
            states.update(self._restored(given))
            random.append(self._saved_random(given))

        # torch casts all state to the parameter's dtype, which would round what is kept in a longer one.
        keep = self.register_load_state_dict_pre_hook(check)
        try:
            super().load_state_dict(state_dict)
        finally:
            keep.remove()
        self.state.update(states)
        self._draw(random[-1])

    def _saved_random(self, given: Mapping[str, Any]) -> RandomWords | None:
        """Return the random words of a saved state; those of this optimizer if it says nothing of them."""
        drawn = given.get("random", None if self.random is None else asdict(self.random))
        if drawn is None:
            if get_rounding(self.rounding).stochastic or self.strategy.draws:
                raise ValueError("the state has no random words, and stochastic rounding needs random")
            return None
        try:
            return RandomWords(**drawn)
        except TypeError as error:
            raise ValueError(
                f"the state's random = {drawn!r} is no seed, step and stream: {error}"
            ) from error

    def _restored(self, given: dict[str, Any]) -> dict[torch.Tensor, dict[str, Any]]:
        """Return copies of the saved states in their own dtypes, by parameter."""
        own = self._arithmetic()
        if (found := given.get("arithmetic", own)) != own:
            raise ValueError(f"the state is of {found}, and this optimizer is of {own}")
        saved = chain.from_iterable(group["params"] for group in given["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        states = {}
        for number, parameter in zip(saved, parameters, strict=False):  # torch refuses groups of other sizes
            if state := given["state"].get(number):
                found, expected = _described(state), _described(self._start(parameter))
                if found != expected:
                    raise ValueError(f"the state of parameter {number} has {found}, not {expected}")
                states[parameter] = deepcopy(state)
        return states

    def _arithmetic(self) -> dict[str, str]:
        settings = (type(self).__name__, self.strategy.name, str(self.rounding), self.scalars)
        return dict(zip(("optimizer", "strategy", "rounding", "scalars"), settings, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        settings = (self.strategy, self.rounding, self.scalars, self.random)
        return {**super().__getstate__(), "settings": settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        settings = state.pop("settings", None)
        super().__setstate__(state)
        if settings is not None:  # torch also comes here with loaded state alone
            self._prepare(*settings)


def _runs(
    group: list[torch.Tensor], chosen: list[torch.Tensor], first: int
) -> list[tuple[int, list[torch.Tensor]]]:
    """Return those chosen from a group as runs of neighbours, each with the number of its first element.

    The group's elements are numbered from `first` on, in the order of its parameters.
    """
    runs: list[tuple[int, list[torch.Tensor]]] = []
    wanted, end = set(chosen), -1
    for parameter in group:
        if parameter in wanted:
            if first != end:
                runs.append((first, []))
            runs[-1][1].append(parameter)
            end = first + parameter.numel()
        first += parameter.numel()
    return runs


def _described(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{item.dtype} {tuple(item.shape)}" for name, item in state.items() if name != "step"}
