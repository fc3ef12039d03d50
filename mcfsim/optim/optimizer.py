"""An optimizer with its state: a step function run over all parameters, a block at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.convert import round_to
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.layout import Layout
from mcfsim.optim.sgd import SGD
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.rounding import Rounding
from mcfsim.scratch import BLOCK
from mcfsim.subnormals import check_subnormals

Hyperparameters = AdamW | SGD


class Optimizer:
    """A step function, a storage strategy and the state of all parameters.

    Parameters
    ----------
    hyper : AdamW or SGD
        The hyperparameters; they name the step function.
    strategy : Strategy
        With its low format put in.
    parameters : mapping of str to array
        The start. It is rounded to nearest even into the parameter's format; a master copy starts from
        its own rounding.
    decayed : collection of str, optional
        The tensors that weight decay applies to.
    rounding : str or Rounding, optional
        Of every operation.
    **options
        Passed to `Strategy.roles`, as ``scalars="rounded"``.

    Attributes
    ----------
    layout : Layout
        Where each tensor lies in the vectors below.
    state : State
        Vectors of carrier numbers; changed in place by `step`.
    count : int
        Steps made.
    """

    def __init__(
        self,
        hyper: Hyperparameters,
        strategy: Strategy,
        parameters: Mapping[str, NDArray[Any]],
        decayed: Collection[str] = (),
        rounding: Rounding | str = "nearest_even",
        **options: Any,
    ) -> None:
        self.hyper, self.strategy = hyper, strategy
        self.layout = Layout(parameters, decayed)
        self.roles = strategy.roles(rounding, **options)
        self.count = 0
        start = self.layout.join(parameters)
        nothing = np.zeros(self.layout.size)
        theta, rest = self._stored(self.roles.model, start), self._stored(self.roles.model, nothing)
        zero = self._stored(self.roles.moments, nothing)
        # A master copy starts as the parameter does, a compensation from nothing.
        extra = self._stored(self.roles.parameter, start if strategy.addition is Addition.MASTER else nothing)
        self.state = State(
            parameter=(theta, *(rest.copy() for _ in range(strategy.parameter.components - 1))),
            m=tuple(zero.copy() for _ in range(strategy.m.components)),
            v=tuple(zero.copy() for _ in range(strategy.v.components)) if isinstance(hyper, AdamW) else (),
            extra=(extra,) if strategy.extra else (),
        )

    @staticmethod
    def _stored(ar: Any, x: NDArray[Any]) -> NDArray[Any]:
        """Return a copy in the arithmetic's format, rounded to nearest even whatever its own rounding."""
        if ar.format is None:
            return np.array(ar.round(x))
        return np.array(round_to(x, ar.format), dtype=ar.carrier)

    def receive(self, gradients: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the gradient as the optimizer gets it: one vector, rounded into the strategy's format."""
        joined = self.layout.join(gradients)
        fmt = self.strategy.gradient.format
        return np.asarray(self.roles.moments.round(joined) if fmt is None else round_to(joined, fmt))

    def step(self, gradient: NDArray[Any], rate: float) -> NDArray[Any]:
        """Make one step in place.

        Parameters
        ----------
        gradient : array, shape (size,)
            From `receive`.
        rate : float
            The learning rate.

        Returns
        -------
        array, shape (size,)
            The update D that was asked for, before its addition to the parameter.
        """
        if gradient.shape != (self.layout.size,):
            raise ValueError(f"the gradient must have shape ({self.layout.size},), not {gradient.shape}")
        check_subnormals()
        self.count += 1
        update = np.empty(self.layout.size, dtype=self.state.m[0].dtype)
        with np.errstate(all="ignore"):
            for block, decayed in self._blocks():
                scalars: Any = self.hyper.scalars(
                    self.roles, self.strategy, self.count, rate, decayed=decayed
                )
                old = State(*(tuple(item[block] for item in part) for part in self.state))
                roles = block_roles(self.roles, self.count, block.start)
                new, update[block] = self.hyper.step(roles, self.strategy, old, gradient[block], scalars)
                for old_part, new_part in zip(old, new, strict=True):
                    for target, source in zip(old_part, new_part, strict=True):
                        target[...] = source
        return update

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the tensors that the model sees: the leading components, as views."""
        return self.layout.split(self.state.parameter[0])

    def represented(self) -> tuple[NDArray[Any], ...]:
        """Return copies of the components whose sum is the parameter that the optimizer means."""
        return tuple(item.copy() for item in self.state.represented(self.strategy))

    def _blocks(self) -> Iterator[tuple[slice, bool]]:
        edge, size = self.layout.decayed_size, self.layout.size
        for begin, end, decayed in ((0, edge, True), (edge, size, False)):
            for start in range(begin, end, BLOCK):
                yield slice(start, min(start + BLOCK, end)), decayed


def block_roles(roles: Roles, step: int, start: int) -> Roles:
    """Return the arithmetics that work on one block, cut here so that all of a step work on the same.

    For stochastic rounding the words are those of the step and of each element's index, from `start` on.
    """
    made: dict[int, Any] = {}
    for ar in roles:
        if isinstance(ar, NumpyArithmetic):
            random = None if ar.random is None else replace(ar.random, step=step)
            made.setdefault(id(ar), ar.blocks.at(random, start))
    return Roles(*(made.get(id(ar), ar) for ar in roles))
