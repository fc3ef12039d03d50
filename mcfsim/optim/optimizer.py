"""An optimizer with its state: a step function run over all parameters, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.checks.arguments import whole_number
from mcfsim.checks.processor import check_processor
from mcfsim.checks.whole import Whole
from mcfsim.codec.codes import check_codes
from mcfsim.compile.loops import Filler
from mcfsim.optim.compiled_step import CompiledStep, fill_block
from mcfsim.optim.declaration import Declaration, check_addition, check_hyperparameters, learning_rate
from mcfsim.optim.groups import common_edges
from mcfsim.optim.layout import Layout, Tensors
from mcfsim.optim.on_grid import OnGrid
from mcfsim.optim.staged import Staged
from mcfsim.optim.staged_step import StagedSteps
from mcfsim.optim.start import receive, start
from mcfsim.optim.state_slices import parts_of
from mcfsim.optim.strategies import DEFAULT_WORDS, Roles, Strategy
from mcfsim.optim.stripes import in_stripes
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.optim.vectors import (
    Formats,
    form,
    is_packed,
    packed_dtype,
    read,
    read_block,
    requantize,
    write,
    write_block,
)
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.storage.files import Pathlike


class Optimizer:
    """A step function, a storage strategy and the state of all parameters.

    Parameters
    ----------
    hyper : AdamW, SGD or another Declaration
        The hyperparameters, which bring the step.
    strategy : Strategy
        With its low format put in, as by `mcfsim.strategy`.
    parameters : mapping of str to array or stored tensor
        The start. It is rounded to nearest even into the parameter's format; a master copy starts from
        its own rounding. A stored tensor (`mcfsim.optim.layout.StoredTensor`), as a weight of
        `mcfsim.models.weights.open_weights`, is read a stretch at a time.
    decayed : collection of str, optional
        The tensors that weight decay applies to.
    rounding : str or Rounding, optional
        Of every operation.
    steps : int, optional
        How many will be made in all, if that is known: whether compiling them pays is settled by that.
    packed : bool, optional
        Whether vectors hold codes, as `mcfsim.codec` has them, in place of carrier numbers: of formats with
        codes of at most 16 bits, and one for NaN. Moments that share scales are kept as codes and scales
        (`mcfsim.optim.groups.Groups`). The bits are the same, in half the memory or less.
    folder : path, optional
        Where vectors lie in files that are mapped into memory, for a state near memory's size or beyond it:
        ``parameter0.npy``, ``m0.npy`` and so on, by their place in `state`, ``m0_scales.npy`` beside codes
        that share scales, and ``gradient.npy``. It is made if it is not there, and has none of these files.
        They are working memory, which stays when the process ends, and is no checkpoint. The bits are the
        same.
    **options
        Passed to `Strategy.roles`, as ``scalars="rounded"``, or ``threads``, which share a step.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, as a class or a name in place of hyperparameters, or the backend
        computes on something else than NumPy arrays.
    ValueError
        If the strategy's low format is still open, there are no parameters, an option is refused, or exact
        numbers are to be packed or to lie in a folder, or moments to be packed whose groups do not stand
        each for itself (`mcfsim.optim.groups.check_groups`), or weights on a grid; or if a stored tensor
        cannot be read.
    OutputError
        If the folder cannot be made, or has one of the files, or its disk too little room for all of them.
        Nothing is left there then, nor if anything else is refused.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter, or the first such rate of `step`, is zero in the format of the moments.

    Attributes
    ----------
    layout : Layout
        Where each tensor lies in the vectors below.
    state : State
        Vectors of carrier numbers, or of codes, or of what `mcfsim.optim.vectors.Packed` is; changed in place
        by `step` and `advance`.
    formats : tuple of Format or None
        Of the vectors, in the state's order; None for exact numbers.
    grid : OnGrid or None
        Of a parameter that lies on one.
    count : int
        Steps made.
    whole : Whole
        Whether the last change of the state came to its end. A step that is broken off half-way, by
        KeyboardInterrupt say, spoils the state: then nothing but loading another one is allowed.
    """

    def __init__(
        self,
        hyper: Declaration,
        strategy: Strategy,
        parameters: Tensors,
        decayed: Collection[str] = (),
        rounding: Rounding | str = "nearest_even",
        *,
        packed: bool = False,
        folder: Pathlike | None = None,
        steps: int = 1,
        **options: Any,
    ) -> None:
        check_hyperparameters(hyper, "hyper")
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy, as strategy('plain', 'bf16'), not {strategy!r}")
        check_addition(type(hyper), strategy)
        if not isinstance(packed, bool):
            raise TypeError(f"packed must be True or False, not {packed!r}")
        if packed and strategy.gradient.format is None:
            raise ValueError("exact numbers have no codes: packed=True is for formats")
        if packed and strategy.parameter.grid is not None:
            raise ValueError(
                f"strategy {strategy.name!r} keeps its weights on a grid, as numbers; leave out packed=True"
            )
        if folder is not None and strategy.gradient.format is None:
            raise ValueError("exact numbers lie in no file: folder is for formats")
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
        self.whole = Whole(
            "load a saved one by mcfsim.models.saving.load_state, or make the optimizer anew from the weights"
        )
        self._steps = whole_number("steps", steps, least=1)
        self._warned = False
        self._compiled = CompiledStep(hyper, strategy, packed=packed)
        self._staged = (
            StagedSteps(hyper, strategy, self.roles, self.layout) if isinstance(hyper, Staged) else None
        )
        for role, entering in hyper.entering().items():
            warn_of_vanishing(self.roles.of(role), entering)
        kept = self.roles.model, *self.roles[:2], self.roles.parameter
        self.formats: Formats = tuple(role.format for role in kept)
        self.state, self._gradient = start(
            hyper, strategy, self.roles, self.layout, parameters, packed=packed, folder=folder
        )
        self.grid: OnGrid | None = None
        if strategy.parameter.grid is not None and strategy.parameter.format is not None:
            words = options.get("random") or DEFAULT_WORDS
            placed = strategy.parameter.grid, strategy.parameter.format, self.layout.slices
            self.grid = OnGrid(*placed, words)
            self.grid.begin(self._weights())
        #: Where the numbers of each tensor lie in the vectors of a slot of state.
        self.parts = parts_of(hyper, self.layout)
        self._edges = common_edges((*self.state.m, *self.state.v), self.layout.slices.values())

    def receive(self, gradients: Tensors, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the gradient as the optimizer gets it: one vector, rounded into the strategy's format.

        Parameters
        ----------
        gradients : mapping of str to array or stored tensor
            With the names and shapes of the parameters.
        out : array, shape (size,), optional
            Where it goes: of the strategy's gradients as vectors hold them, in codes or in the carrier. By
            default it is new, or ``gradient.npy`` in the folder, which the next call overwrites.

        Raises
        ------
        TypeError
            If `out` is no array, or of another dtype, or a gradient holds no real numbers.
        ValueError
            If names or shapes are others, or `out` has another shape or is read-only, before anything is
            written; or if a stored tensor cannot be read.
        """
        fmt = self.strategy.gradient.format
        if fmt is None:
            if out is not None:
                raise ValueError("exact numbers are received into no array; out is for formats")
            return np.asarray(self.roles.moments.round(self.layout.join(gradients)))
        if out is not None:
            self._check_out(out, form(fmt, packed=self.packed))
        target = self._gradient if out is None else out
        return receive(self.layout, gradients, fmt, target, packed=self.packed)

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
        SpoiltStateError
            If an earlier step, or a loading, was broken off when part of the state had changed.
        """
        rate = self._checked(gradient, rate)
        update = np.empty(self.layout.size, form(self.roles.update.format, packed=self.packed))
        self._advance(gradient, rate, update)
        return update

    def advance(self, gradient: NDArray[Any], rate: float) -> None:
        """Make one step in place, as `step` does, and keep of the update no more than a block at a time."""
        self._advance(gradient, self._checked(gradient, rate), None)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the tensors that the model sees: the leading components, as views, or decoded."""
        self.whole.check()
        return self.layout.split(read(self.state.parameter[0], self.formats[0]))

    def represented(self) -> tuple[NDArray[Any], ...]:
        """Return copies of the components whose sum is the parameter that the optimizer means."""
        self.whole.check()
        values = read_block(self.state._replace(m=(), v=()), self.formats, slice(None))
        return tuple(np.array(item) for item in values.represented(self.strategy))

    def _checked(self, gradient: NDArray[Any], rate: float) -> float:
        """Return the rate as a float; raise as `step` does."""
        rate = learning_rate("rate", rate)
        if not isinstance(gradient, np.ndarray):
            raise TypeError(f"the gradient must be an array, as `receive` returns it, not {gradient!r}")
        if gradient.shape != (self.layout.size,):
            raise ValueError(f"the gradient must have shape ({self.layout.size},), not {gradient.shape}")
        if self.packed and is_packed(gradient):
            self._check_codes(gradient)
        check_processor()
        self.whole.check()
        self._warned = self._warned or warn_of_vanishing(self.roles.update, {"rate": rate})
        return rate

    def _advance(self, gradient: NDArray[Any], rate: float, update: NDArray[Any] | None) -> None:
        """Make a step, and put the update in a vector if there is one."""
        count, threads = self.count + 1, self._threads()
        # Whole before anything is changed: a compiled step may be refused.
        if self._staged is None:
            move = self._planned(gradient, rate, update, count, threads)
        else:
            move = self._staged.planned(
                *(self.roles, self.state, self.formats, gradient, update),
                count=count,
                rate=rate,
                threads=threads,
                ahead=max(0, self._steps - count),
            )
        with self.whole.changing(f"step {count}"):
            if self.grid is not None:
                self.grid.before(self._weights())
            move()
            for slot in () if self.packed else self.hyper.slots:
                stored = self.strategy.tensors[slot.name]
                if stored.scaled is not None and stored.format is not None:
                    (vector,) = getattr(self.state, slot.name)
                    requantize(vector, self.parts[slot.name].every(), stored.scaled, stored.format)
            if self.grid is not None:
                self.grid.after(self._weights(), count)
            self.count = count

    def _planned(
        self, gradient: NDArray[Any], rate: float, update: NDArray[Any] | None, count: int, threads: int
    ) -> Callable[[], None]:
        """Return what makes a step that is a straight line, a block of all tensors at a time."""
        planned: list[tuple[slice, int, Callable[[slice], None]]] = []
        for part, decayed in self._parts():
            scalars = self.hyper.scalars(self.roles, self.strategy, count, rate, decayed=decayed)
            elements = part.stop - part.start
            ahead = elements * max(0, self._steps - count)
            filler = self._compiled.filler(self.roles, scalars, gradient, elements, count, ahead)
            if filler is None:
                planned.append((part, BLOCK, partial(self._eager, scalars, count, gradient, update)))
            else:
                filler = filler.on_threads(threads)
                # Numbers that share scales are read and written by calls, of which fewer on more are faster.
                size = filler.block if self._edges is None else BLOCK
                planned.append((part, size, partial(self._fill, filler, gradient, update)))

        def move() -> None:
            for part, block, work in planned:
                in_stripes(work, part, block, threads, self._edges)

        return move

    def _weights(self) -> NDArray[Any]:
        """Return the vector of weights that lie on a grid, as numbers."""
        weights: NDArray[Any] = self.state.parameter[0]
        return weights

    def _eager(
        self, scalars: Any, count: int, gradient: NDArray[Any], update: NDArray[Any] | None, block: slice
    ) -> None:
        """Make a step of a block by operations on arrays."""
        given = np.ascontiguousarray(gradient[block])
        if self.packed:
            given = read(given, self.strategy.gradient.format)
        roles = block_roles(self.roles, count, block.start)
        with np.errstate(all="ignore"):
            old = read_block(self.state, self.formats, block)
            new, asked = self.hyper.step(roles, self.strategy, old, given, scalars)
            if update is not None:
                write(update[block], asked, self.roles.update.format)
            write_block(self.state, new, self.formats, block)

    def _fill(
        self, filler: Filler, gradient: NDArray[Any], update: NDArray[Any] | None, block: slice
    ) -> None:
        """Make a step of a block by a compiled loop."""
        vectors = [(x, fmt) for items, fmt in zip(self.state, self.formats, strict=True) for x in items]
        given = [*vectors, (gradient, self.strategy.gradient.format)]
        fill_block(filler, block, given, [*vectors, (update, self.roles.update.format)])

    def _threads(self) -> int:
        """Return how many threads share a step: one if an arithmetic is not the emulator, or is watched."""
        found = {ar.threads if type(ar) is NumpyArithmetic else 1 for ar in self.roles}
        return min(found)

    def _check_codes(self, gradient: NDArray[Any]) -> None:
        """Raise unless a gradient of codes holds those of the strategy's format."""
        fmt = self.strategy.gradient.format
        assert fmt is not None
        if gradient.dtype != packed_dtype(fmt):
            raise TypeError(f"codes of {fmt} are an array of {packed_dtype(fmt)}, not {gradient.dtype}")
        check_codes(gradient, fmt)

    def _check_out(self, out: Any, dtype: np.dtype[Any]) -> None:
        """Raise unless a gradient can be received into an array."""
        if not isinstance(out, np.ndarray) or out.dtype != dtype:
            raise TypeError(f"out must be an array of {dtype}, not {getattr(out, 'dtype', type(out))}")
        if out.shape != (self.layout.size,) or not out.flags.writeable:
            raise ValueError(
                f"out must be writeable, and have shape ({self.layout.size},); it has {out.shape}"
            )

    def _parts(self) -> Iterator[tuple[slice, bool]]:
        """Yield the elements that weight decay applies to, and the others."""
        edge, size = self.layout.decayed_size, self.layout.size
        for begin, end, decayed in ((0, edge, True), (edge, size, False)):
            if begin < end:
                yield slice(begin, end), decayed


def block_roles(roles: Roles, step: int, start: int) -> Roles:
    """Return the arithmetics that work on one block, cut here so that all of a step work on the same.

    For stochastic rounding the words are those of the step and of each element's index, from `start` on.
    """
    made = {id(ar): ar.on_block(step, start) for ar in roles}  # one for each, if several roles share it
    return Roles(*(made[id(ar)] for ar in roles))
