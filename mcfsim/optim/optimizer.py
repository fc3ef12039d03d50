"""An optimizer with its state: a step function run over all parameters, a block at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import finite_number, whole_number
from mcfsim.checks.processor import check_subnormals
from mcfsim.codec.codes import check_codes
from mcfsim.compile.loops import Filler
from mcfsim.convert import round_to
from mcfsim.optim.compiled_step import COMPILED_BLOCK, CompiledStep, fill_block
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout
from mcfsim.optim.memory import (
    Formats,
    Split,
    is_packed,
    packed_dtype,
    read,
    read_block,
    requantize,
    write,
    write_block,
)
from mcfsim.optim.state import State
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.rounding import Mode, Rounding
from mcfsim.storage.buffers import BLOCK


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
    steps : int, optional
        How many will be made in all, if that is known: whether compiling them pays is settled by that.
    packed : bool, optional
        Whether vectors hold codes, as `mcfsim.codec` has them, in place of carrier numbers: of formats with
        codes of at most 16 bits, and one for NaN. The bits are the same, in half the memory or less.
    **options
        Passed to `Strategy.roles`, as ``scalars="rounded"``.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, as a class or a name in place of hyperparameters, or the backend
        computes on something else than NumPy arrays.
    ValueError
        If the strategy's low format is still open, there are no parameters, an option is refused, or exact
        numbers, or such as share scales, are to be packed.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter, or the first such rate of `step`, is zero in the format of the moments.

    Attributes
    ----------
    layout : Layout
        Where each tensor lies in the vectors below.
    state : State
        Vectors of carrier numbers, or of codes; changed in place by `step`.
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
        *,
        packed: bool = False,
        steps: int = 1,
        **options: Any,
    ) -> None:
        check_hyperparameters(hyper, "hyper")
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy, as strategy('plain', 'bf16'), not {strategy!r}")
        if not isinstance(packed, bool):
            raise TypeError(f"packed must be True or False, not {packed!r}")
        if packed and strategy.gradient.format is None:
            raise ValueError("exact numbers have no codes: packed=True is for formats")
        scaled = [slot.name for slot in hyper.slots if strategy.tensors[slot.name].scaled]
        if packed and scaled:
            raise ValueError(
                f"strategy {strategy.name!r} keeps {' and '.join(scaled)} in blocks that share a scale, for "
                "which packed vectors have no place; leave out packed=True"
            )
        self.hyper, self.strategy, self.packed = hyper, strategy, packed
        self.layout = Layout(parameters, decayed)
        self.roles = strategy.roles(rounding, **options)
        for ar in self.roles:
            if not isinstance(ar.carrier, np.dtype):
                raise TypeError(
                    f"an Optimizer keeps NumPy arrays, and {ar!r} computes on others; mcfsim.torch has "
                    "optimizers of tensors"
                )
        self.count = 0
        self._steps = whole_number("steps", steps, least=1)
        self._warned = False
        self._compiled = CompiledStep(hyper, strategy, packed=packed)
        for role, entering in hyper.entering().items():
            warn_of_vanishing(self.roles.of(role), entering)
        start = self.layout.join(parameters)
        nothing = np.zeros(self.layout.size)
        theta, rest = self._stored(self.roles.model, start), self._stored(self.roles.model, nothing)
        # A master copy starts as the parameter does, a compensation from nothing.
        extra: Any = self._stored(
            self.roles.parameter, start if strategy.addition is Addition.MASTER else nothing
        )
        if strategy.extra and strategy.extra.shared:
            theta, extra = self._split(extra)
        kept = self.roles.model, *self.roles[:2], self.roles.parameter
        self._formats: Formats = tuple(role.format for role in kept)
        averages: dict[str, tuple[NDArray[Any], ...]] = {"m": (), "v": ()}
        for slot in hyper.slots:
            zero, stored = self._stored(self.roles.of(slot.name), nothing), strategy.tensors[slot.name]
            averages[slot.name] = tuple(zero.copy() for _ in range(stored.components))
        self.state = State(
            parameter=(theta, *(rest.copy() for _ in range(strategy.parameter.components - 1))),
            **averages,
            extra=(extra,) if strategy.extra else (),
        )

    def _stored(self, ar: Any, x: NDArray[Any]) -> NDArray[Any]:
        """Return a copy in the arithmetic's format, rounded to nearest even whatever its own rounding."""
        if ar.format is None:
            return np.array(ar.round(x))
        vector = self._empty(ar)
        write(vector, round_to(x, ar.format), ar.format)
        return vector

    def _split(self, master: NDArray[Any]) -> tuple[NDArray[Any], Any]:
        """Return the parameter as its master copy has it, rounded as in a step, and the copy beside it."""
        model: Any = self.roles.model
        fmt, rounding = model.format, model.rounding
        theta = self._empty(model)
        write(theta, round_to(master, fmt, rounding), fmt)
        if not is_packed(theta):
            return theta, master
        extra = Split.beside(theta, fmt, rounded=rounding.mode is Mode.NEAREST_AWAY)
        extra.keep(master)
        return theta, extra

    def _empty(self, ar: Any) -> NDArray[Any]:
        """Return a vector as an arithmetic's values lie in memory."""
        return np.empty(self.layout.size, packed_dtype(ar.format) if self.packed else ar.carrier)

    def receive(self, gradients: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the gradient as the optimizer gets it: one vector, rounded into the strategy's format."""
        joined = self.layout.join(gradients)
        fmt = self.strategy.gradient.format
        if fmt is None:
            return np.asarray(self.roles.moments.round(joined))
        rounded = np.asarray(round_to(joined, fmt))
        if not self.packed:
            return rounded
        vector = np.empty(rounded.shape, packed_dtype(fmt))
        write(vector, rounded, fmt)
        return vector

    def step(self, gradient: NDArray[Any], rate: float) -> NDArray[Any]:
        """Make one step in place.

        Parameters
        ----------
        gradient : array, shape (size,)
            From `receive`; or any floating numbers, which the step rounds.
        rate : float
            The learning rate: finite, and not negative.

        Returns
        -------
        array, shape (size,)
            The update D that was asked for, before its addition to the parameter; codes if vectors hold them.

        Raises
        ------
        TypeError
            If the rate is no number, or the gradient no array, or codes of another kind than vectors hold.
        ValueError
            If the rate is out of range, or the gradient of another shape, or an element no code. Nothing has
            changed then.
        """
        rate = learning_rate("rate", rate)
        if not isinstance(gradient, np.ndarray):
            raise TypeError(f"the gradient must be an array, as `receive` returns it, not {gradient!r}")
        if gradient.shape != (self.layout.size,):
            raise ValueError(f"the gradient must have shape ({self.layout.size},), not {gradient.shape}")
        if self.packed and is_packed(gradient):
            self._check_codes(gradient)
        check_subnormals()
        self._warned = self._warned or warn_of_vanishing(self.roles.update, {"rate": rate})
        count = self.count + 1
        update = self._empty(self.roles.update)
        gradient = np.ascontiguousarray(gradient)
        planned = []  # whole before anything is changed: a compiled step may be refused
        for part, decayed in self._parts():
            scalars = self.hyper.scalars(self.roles, self.strategy, count, rate, decayed=decayed)
            elements = part.stop - part.start
            ahead = elements * max(0, self._steps - count)
            filler = self._compiled.filler(self.roles, scalars, gradient, elements, count, ahead)
            planned.append((part, scalars, filler))
        for part, scalars, filler in planned:
            if filler is not None:
                self._fill(filler, gradient, update, part)
                continue
            with np.errstate(all="ignore"):
                for block in _blocks(part, BLOCK):
                    old = read_block(self.state, self._formats, block)
                    roles = block_roles(self.roles, count, block.start)
                    given = self._received(gradient[block])
                    new, asked = self.hyper.step(roles, self.strategy, old, given, scalars)
                    write(update[block], asked, self.roles.update.format)
                    write_block(self.state, new, self._formats, block)
        for slot in self.hyper.slots:
            stored = self.strategy.tensors[slot.name]
            if stored.scaled is not None and stored.format is not None:
                (vector,) = getattr(self.state, slot.name)
                requantize(vector, self.layout.slices.values(), stored.scaled, stored.format)
        self.count = count
        return update

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the tensors that the model sees: the leading components, as views, or decoded."""
        return self.layout.split(read(self.state.parameter[0], self._formats[0]))

    def represented(self) -> tuple[NDArray[Any], ...]:
        """Return copies of the components whose sum is the parameter that the optimizer means."""
        values = read_block(self.state, self._formats, slice(None))
        return tuple(np.array(item) for item in values.represented(self.strategy))

    def _received(self, gradient: NDArray[Any]) -> NDArray[Any]:
        return read(gradient, self.strategy.gradient.format) if self.packed else gradient

    def _check_codes(self, gradient: NDArray[Any]) -> None:
        """Raise unless a gradient of codes holds those of the strategy's format."""
        fmt = self.strategy.gradient.format
        assert fmt is not None
        if gradient.dtype != packed_dtype(fmt):
            raise TypeError(f"codes of {fmt} are an array of {packed_dtype(fmt)}, not {gradient.dtype}")
        check_codes(gradient, fmt)

    def _parts(self) -> Iterator[tuple[slice, bool]]:
        """Yield the elements that weight decay applies to, and the others."""
        edge, size = self.layout.decayed_size, self.layout.size
        for begin, end, decayed in ((0, edge, True), (edge, size, False)):
            if begin < end:
                yield slice(begin, end), decayed

    def _fill(self, filler: Filler, gradient: NDArray[Any], update: NDArray[Any], part: slice) -> None:
        """Make a step by a compiled loop."""
        vectors = [(x, fmt) for items, fmt in zip(self.state, self._formats, strict=True) for x in items]
        given = [*vectors, (gradient, self.strategy.gradient.format)]
        asked = [*vectors, (update, self.roles.update.format)]

        def fill(block: slice) -> None:
            fill_block(filler, block, given, asked)

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
