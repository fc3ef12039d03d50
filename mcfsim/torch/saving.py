"""The state of an optimizer, saved and gone on from, to the same bits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from itertools import chain
from typing import Any

import torch

from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim.strategies import Strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding


class SavedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose state says of what arithmetic it is."""

    strategy: Strategy
    rounding: Rounding | str
    scalars: Scalars
    random: RandomWords | None

    @abstractmethod
    def _draw(self, random: RandomWords | None) -> None:
        """Take random words from a stream, with which stochastic rounding begins."""

    @abstractmethod
    def _start(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state before the first step."""

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
                states[parameter] = {name: _copied(x, parameter.device) for name, x in state.items()}
        return states

    def _arithmetic(self) -> dict[str, str]:
        settings = (type(self).__name__, self.strategy.name, str(self.rounding), self.scalars)
        return dict(zip(("optimizer", "strategy", "rounding", "scalars"), settings, strict=True))


def _described(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{item.dtype} {tuple(item.shape)}" for name, item in state.items() if name != "step"}


def _copied(item: Any, device: torch.device) -> Any:
    """Return a copy of what a state holds, a tensor on a device."""
    return item.to(device, copy=True) if isinstance(item, torch.Tensor) else deepcopy(item)
