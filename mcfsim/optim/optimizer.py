"""An optimizer with its state: a step function run over all parameters, a block at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.checks.arguments import finite_number
from mcfsim.checks.processor import check_subnormals
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import Filler
from mcfsim.compile.program import Program, Scalar, flat
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout
from mcfsim.optim.recording import numbers, record_step, symbols, words_of
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK, scratch

#: Elements that a compiled step works on before what it makes is put in the place of what was, in the cache.
COMPILED_BLOCK = 1 << 15
#: Fewer elements are not worth looking whether compiling pays.
_LEAST_COMPILED = 1 << 12


def check_hyperparameters(given: Any, label: str) -> None:
    """Raise TypeError unless something is hyperparameters, and not the class or the name of some."""
    if not isinstance(given, Declaration):
        what = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise TypeError(f"{label} must be hyperparameters, as mcfsim.AdamW() or mcfsim.SGD(), not {what}")


def learning_rate(label: str, rate: Any) -> float:
    """Return a learning rate as a float; raise unless it is finite and not negative."""
    if (number := finite_number(label, rate)) < 0:
        raise ValueError(f"{label} = {rate} must not be negative")
    return number


class Optimizer:
    """A step function, a storage strategy and the state of all parameters.

    Parameters
    ----------
    hyper : AdamW, SGD or another Declaration
        The hyperparameters, which bring the step.
    strategy : Strategy
        With its low format put in, as by `mcfsim.strategy`.
    parameters : mapping of str to array
        The start. It is rounded to nearest even into the parameter's format; a master copy starts from
        its own rounding.
    decayed : collection of str, optional
        The tensors that weight decay applies to.
    rounding : str or Rounding, optional
        Of every operation.
    **options
        Passed to `Strategy.roles`, as ``scalars="rounded"``.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, as a class or a name in place of hyperparameters, or the backend
        computes on something else than NumPy arrays.
    ValueError
        If the strategy's low format is still open, there are no parameters, or an option is refused.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter, or the first such rate of `step`, is zero in the format of the moments.

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
        hyper: Declaration,
        strategy: Strategy,
        parameters: Mapping[str, NDArray[Any]],
        decayed: Collection[str] = (),
        rounding: Rounding | str = "nearest_even",
        **options: Any,
    ) -> None:
        check_hyperparameters(hyper, "hyper")
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy, as strategy('plain', 'bf16'), not {strategy!r}")
        self.hyper, self.strategy = hyper, strategy
        self.layout = Layout(parameters, decayed)
        self.roles = strategy.roles(rounding, **options)
        for ar in self.roles:
            if not isinstance(ar.carrier, np.dtype):
                raise TypeError(
                    f"an Optimizer keeps NumPy arrays, and {ar!r} computes on others; mcfsim.torch has "
                    "optimizers of tensors"
                )
        self.count = 0
        self._warned = False
        self._programs: dict[Any, Program] = {}
        for role, entering in hyper.entering().items():
            warn_of_vanishing(self.roles.of(role), entering)
        start = self.layout.join(parameters)
        nothing = np.zeros(self.layout.size)
        theta, rest = self._stored(self.roles.model, start), self._stored(self.roles.model, nothing)
        # A master copy starts as the parameter does, a compensation from nothing.
        extra = self._stored(self.roles.parameter, start if strategy.addition is Addition.MASTER else nothing)
        averages: dict[str, tuple[NDArray[Any], ...]] = {"m": (), "v": ()}
        for slot in hyper.slots:
            zero, stored = self._stored(self.roles.of(slot.name), nothing), strategy.tensors[slot.name]
            averages[slot.name] = tuple(zero.copy() for _ in range(stored.components))
        self.state = State(
            parameter=(theta, *(rest.copy() for _ in range(strategy.parameter.components - 1))),
            **averages,
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
            The learning rate: finite, and not negative.

        Returns
        -------
        array, shape (size,)
            The update D that was asked for, before its addition to the parameter.

        Raises
        ------
        TypeError
            If the rate is no number, or the gradient no array.
        ValueError
            If the rate is out of range, or the gradient of another shape. Nothing has changed then.
        """
        rate = learning_rate("rate", rate)
        if not isinstance(gradient, np.ndarray):
            raise TypeError(f"the gradient must be an array, as `receive` returns it, not {gradient!r}")
        if gradient.shape != (self.layout.size,):
            raise ValueError(f"the gradient must have shape ({self.layout.size},), not {gradient.shape}")
        check_subnormals()
        self._warned = self._warned or warn_of_vanishing(self.roles.update, {"rate": rate})
        count = self.count + 1
        update = np.empty(self.layout.size, dtype=self.roles.update.carrier)
        gradient = np.ascontiguousarray(gradient)
        planned = []  # whole before anything is changed: a compiled step may be refused
        for part, decayed in self._parts():
            scalars = self.hyper.scalars(self.roles, self.strategy, count, rate, decayed=decayed)
            filler = self._compiled(scalars, gradient, part.stop - part.start, count)
            planned.append((part, scalars, filler))
        for part, scalars, filler in planned:
            if filler is not None:
                self._fill(filler, gradient, update, part)
                continue
            with np.errstate(all="ignore"):
                for block in _blocks(part, BLOCK):
                    old = State(*(tuple(item[block] for item in items) for items in self.state))
                    roles = block_roles(self.roles, count, block.start)
                    new, update[block] = self.hyper.step(roles, self.strategy, old, gradient[block], scalars)
                    for targets, sources in zip(self.state, new, strict=True):
                        for target, source in zip(targets, sources, strict=True):
                            target[block] = source
        self.count = count
        return update

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the tensors that the model sees: the leading components, as views."""
        return self.layout.split(self.state.parameter[0])

    def represented(self) -> tuple[NDArray[Any], ...]:
        """Return copies of the components whose sum is the parameter that the optimizer means."""
        return tuple(item.copy() for item in self.state.represented(self.strategy))

    def _parts(self) -> Iterator[tuple[slice, bool]]:
        """Yield the elements that weight decay applies to, and the others."""
        edge, size = self.layout.decayed_size, self.layout.size
        for begin, end, decayed in ((0, edge, True), (edge, size, False)):
            if begin < end:
                yield slice(begin, end), decayed

    def _compiled(self, scalars: Any, gradient: NDArray[Any], elements: int, count: int) -> Filler | None:
        """Return the compiled loop of a step, if there is to be one."""
        compiled = how_compiled(self.roles)
        if compiled is False or (compiled is None and elements < _LEAST_COMPILED):
            return None
        if gradient.dtype not in (np.float32, np.float64):
            return None
        policy, fmt = self.roles.moments.scalars, get_format(str(gradient.dtype))  # type: ignore[attr-defined]

        def record() -> Program:
            return self._recorded(scalars, fmt)

        def words(program: Program) -> dict[int, RandomWords]:
            return words_of(self.roles, count)

        return loops(policy).filler(record, elements, compiled, numbers(scalars), words)

    def _recorded(self, scalars: Any, gradient: Format) -> Program:
        """Return the step as a program, recorded once for all numbers if it asks no more than it may."""
        symbolic = symbols(scalars)
        key = gradient, *("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        given = self.hyper, self.strategy, self.roles
        if key not in self._programs:
            try:
                self._programs[key] = record_step(*given, symbolic, gradient=gradient)
            except TypeError:  # it computes with scalars
                return record_step(*given, scalars, gradient=gradient)
        return self._programs[key]

    def _fill(self, filler: Filler, gradient: NDArray[Any], update: NDArray[Any], part: slice) -> None:
        """Make a step by a compiled loop, which must not write where it reads."""
        state = [item for items in self.state for item in items]

        def fill(block: slice) -> None:
            size = block.stop - block.start
            new = [scratch(f"step{place}", size, item.dtype) for place, item in enumerate(state)]
            operands = [*(item[block] for item in state), gradient[block]]
            filler(operands, [*new, update[block]], block.start)
            for item, made in zip(state, new, strict=True):
                item[block] = made

        threads = self.roles.moments.threads  # type: ignore[attr-defined]
        if threads == 1:
            for block in _blocks(part, COMPILED_BLOCK):
                fill(block)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(fill, _blocks(part, COMPILED_BLOCK)))


def _blocks(part: slice, size: int) -> Iterator[slice]:
    for start in range(part.start, part.stop, size):
        yield slice(start, min(start + size, part.stop))


def block_roles(roles: Roles, step: int, start: int) -> Roles:
    """Return the arithmetics that work on one block, cut here so that all of a step work on the same.

    For stochastic rounding the words are those of the step and of each element's index, from `start` on.
    """
    made = {id(ar): ar.on_block(step, start) for ar in roles}  # one for each, if several roles share it
    return Roles(*(made[id(ar)] for ar in roles))
