"""The class `Optimizer`: a step function with its state, run over all parameters a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.numpy import NumpyArithmetic
from mcfsim.checks import Whole, check_flag, check_processor, whole_number
from mcfsim.optim.declaration import Declaration, Interval, check_addition, check_hyperparameters
from mcfsim.optim.groups import common_edges
from mcfsim.optim.layout import Layout, Tensors, in_stripes, parts_of
from mcfsim.optim.on_grid import OnGrid
from mcfsim.optim.staged import Staged, check_step
from mcfsim.optim.staged_step import StagedSteps
from mcfsim.optim.start import carry_over, receive, start
from mcfsim.optim.state import State, Step, step_by
from mcfsim.optim.step_programs import CompiledStep
from mcfsim.optim.strategies import DEFAULT_WORDS, Strategy
from mcfsim.optim.strategy import draws, warn_of_vanishing
from mcfsim.optim.vectors import (
    Formats,
    apart,
    check_gradient,
    filling,
    form,
    read,
    read_block,
    requantize,
    write,
    write_block,
)
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from mcfsim.storage.files import Pathlike


class Optimizer:
    """An optimizer with the state of all its parameters, stored by a strategy.

    Parameters
    ----------
    hyper : AdamW, SGD or another Declaration
        The hyperparameters, which provide the step.
    strategy : Strategy
        The storage strategy, with its low format filled in, as `mcfsim.strategy` returns it.
    parameters : mapping of str to array or stored tensor
        The parameters at the start, rounded to nearest even into the parameter's format; or into that of a
        master copy, from which the parameter is rounded. A stored tensor
        (`mcfsim.optim.layout.StoredTensor`), such as `mcfsim.models.weights.open_weights` gives, is read in
        pieces.
    decayed : collection of str, optional
        The tensors with weight decay.
    rounding : str or Rounding, optional
        The rounding of every operation.
    steps : int, optional
        The number of steps that will be made in all, if known; it decides whether compiling them pays.
    packed : bool, optional
        Whether vectors hold codes, as defined by `mcfsim.codec`, in place of carrier numbers, for formats
        with NaN and codes of at most 16 bits. Moments that share scales are kept as codes and scales
        (`mcfsim.optim.groups.Groups`). The results are the same bits, in half the memory or less.
    folder : path, optional
        A folder for vectors in memory-mapped files, for a state near memory's size or beyond it:
        ``parameter0.npy``, ``m0.npy`` and so on, by their place in `state`, ``m0_scales.npy`` for codes that
        share scales, and ``gradient.npy``. The folder is made if needed, and must have none of these files.
        They are working memory: they stay when the process ends, but are not a checkpoint. The results are
        the same bits.
    **options
        Passed to `Strategy.roles`: for example ``scalars="rounded"``, or ``threads``, which share a step.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, such as a class or a name in place of hyperparameters, or if the
        backend does not compute on NumPy arrays.
    ValueError
        If the strategy's low format is still open, there are no parameters, an option is refused, or a stored
        tensor cannot be read; if exact numbers are to be packed or to lie in a folder; or if weights on a
        grid, or moments whose groups depend on each other (`mcfsim.optim.groups.check_groups`), are to be
        packed.
    UnsupportedFormatError
        If an arithmetic has no exact path for an operation of the step.
    OutputError
        If the folder cannot be made, or has one of the files, or its disk has too little room for all of
        them. After this or any other error, no new files are left there.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter, or the first such rate given to `step`, is zero in the format that it is used in.

    Attributes
    ----------
    layout : Layout
        The places of tensors in the vectors below.
    state : State
        Vectors of carrier numbers or of codes, or `mcfsim.optim.vectors.Packed` vectors; `step` and `advance`
        change them in place.
    formats : tuple of Format or None
        The formats of the vectors, in the state's order; None for exact numbers.
    grid : OnGrid or None
        The grids of the parameter, if it lies on grids.
    count : int
        Number of steps made.
    whole : Whole
        Whether the last change of the state was completed. A step that is interrupted, for example by
        KeyboardInterrupt, spoils the state; then only loading another state is allowed.
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
            raise TypeError(f"strategy must be a Strategy, like strategy('plain', 'bf16'), not {strategy!r}")
        check_addition(type(hyper), strategy)
        check_flag("packed", packed)
        if packed and strategy.gradient.format is None:
            raise ValueError("exact numbers have no codes: packed=True is for formats")
        if packed and strategy.parameter.grid is not None:
            raise ValueError(f"{strategy.name!r} keeps weights on a grid, as numbers; leave out packed=True")
        if folder is not None and strategy.gradient.format is None:
            raise ValueError("exact numbers are not stored in files: folder is for formats")
        self.hyper, self.strategy, self.packed = hyper, strategy, packed
        self._given = {"rounding": rounding, "packed": packed, "steps": steps, **options}
        self.layout = Layout(parameters, decayed)
        self._decayed = tuple(decayed)
        self.roles = strategy.roles(rounding, **options)
        for ar in self.roles:
            if not isinstance(ar.carrier, np.dtype):
                raise TypeError(
                    f"an Optimizer keeps NumPy arrays, and {ar!r} computes on others; mcfsim.torch has "
                    "optimizers of tensors"
                )
        self._draws = draws(strategy, self.roles)
        #: Moments to quantise after each step; packed ones are quantised when they are written.
        self._quantised = [
            (slot.name, kept, fmt)
            for slot in (() if packed else hyper.slots)
            if (kept := strategy.tensors[slot.name].scaled) is not None
            and (fmt := strategy.tensors[slot.name].format) is not None
        ]
        self.count = 0
        self.whole = Whole(
            "load a saved one by mcfsim.models.saving.load_state, or make the optimizer anew from the weights"
        )
        self._steps = whole_number("steps", steps, least=1)
        self._warned = False
        self._compiled = CompiledStep(hyper, strategy, packed=packed)
        self._staged: StagedSteps | None = None
        if isinstance(hyper, Staged):
            self._staged = StagedSteps(self._compiled, self.roles, self.layout)
        else:
            check_step(hyper, strategy, self.roles, ())
        for role, scalars in hyper.rounded_hyperparameters().items():
            warn_of_vanishing(self.roles.of(role), scalars)
        self.formats: Formats = tuple(role.format for role in self.roles.stored.values())
        self.state, self._gradient = start(
            hyper, strategy, self.roles, self.layout, parameters, packed=packed, folder=folder
        )
        self.grid: OnGrid | None = None
        if strategy.parameter.grid is not None and strategy.parameter.format is not None:
            words = options.get("random") or DEFAULT_WORDS
            placed = strategy.parameter.grid, strategy.parameter.format, self.layout.slices
            self.grid = OnGrid(*placed, words)
            self.grid.begin(self.state.parameter[0])
        #: The places of each tensor's numbers in the vectors of a slot.
        self.parts = parts_of(hyper, self.layout)
        self._edges = common_edges((*self.state.m, *self.state.v), self.layout.slices.values())

    def receive(self, gradients: Tensors, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return gradients as one vector, rounded into the strategy's format.

        Parameters
        ----------
        gradients : mapping of str to array or stored tensor
            Gradients with the names and shapes of the parameters.
        out : array, shape (size,), optional
            The array to fill, with codes or carrier numbers, as vectors hold the strategy's gradients. By
            default it is new, or ``gradient.npy`` in the folder, which the next call overwrites.

        Raises
        ------
        TypeError
            If `out` is not an array, or of another dtype, or a gradient does not hold real numbers.
        ValueError
            Before anything is written, if names or shapes differ, or `out` has another shape or is read-only;
            or if a stored tensor cannot be read.
        """
        fmt = self.strategy.gradient.format
        if fmt is None:
            if out is not None:
                raise ValueError("exact numbers are not received into an array: out is for formats")
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
            The result of `receive`, or any floating-point numbers, which the step rounds.
        rate : float
            The learning rate, finite and not negative.

        Returns
        -------
        array, shape (size,)
            The update D before its addition to the parameter; codes if vectors hold codes.

        Raises
        ------
        TypeError
            If the rate is not a number, or the gradient is not an array of floats or of codes as the vectors
            hold them.
        ValueError
            If the rate is out of range, the gradient has another shape, or an element is not a code. Nothing
            has changed then.
        SpoiltStateError
            If an earlier step, or a loading, was interrupted when part of the state had changed.
        """
        rate = self._checked(gradient, rate)
        update = np.empty(self.layout.size, form(self.roles.update.format, packed=self.packed))
        self._advance(gradient, rate, update)
        return update

    def advance(self, gradient: NDArray[Any], rate: float) -> None:
        """Make one step in place, as `step` does, but keep only one block of the update at a time."""
        self._advance(gradient, self._checked(gradient, rate), None)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the tensors that the model sees, by name: the leading components, as views or decoded."""
        self.whole.check()
        return self.layout.split(read(self.state.parameter[0], self.formats[0]))

    def represented(self) -> tuple[NDArray[Any], ...]:
        """Return copies of the components whose exact sum is the parameter that the state represents."""
        self.whole.check()
        values = read_block(self.state._replace(m=(), v=()), self.formats, slice(None))
        return tuple(np.array(item) for item in values.represented(self.strategy))

    def switched(self, strategy: Strategy, **options: Any) -> Optimizer:
        """Return an optimizer that continues from this state under another strategy.

        What the state represents is rounded once into the new storage, to nearest even:

        - The parameter is the exact sum of the numbers of `represented`. It is rounded into a master copy,
          and from there into the parameter; or it is split into components, each the remainder so far,
          rounded. A compensation is the last of these.
        - The exact sum of a moment's components is rounded in the same way, and from there into blocks if the
          moment is kept in a scaled format or by a quantiser.

        What both strategies store in the same way is copied bit for bit: each moment, and the parameter with
        all that is stored with it. The count of steps and the random words continue. So a switch to the same
        strategy changes nothing. Weights are put on a grid as at the start, unless they have its integers.

        Parameters
        ----------
        strategy : Strategy
            The storage from now on, with its low format filled in; ``exact`` rounds sums to its precision.
        **options
            Other changes: ``rounding``, options of `Strategy.roles`, and a `folder` for the new vectors.

        Returns
        -------
        Optimizer
            With its own vectors; this one stays as it is. A number too large for its format overflows, as at
            the start.

        Raises
        ------
        TypeError, ValueError, SpoiltStateError
            As the constructor and `represented` do; or if codes would become numbers, or numbers codes.
        """
        self.whole.check()
        if options.get("packed", self.packed) is not self.packed:
            raise ValueError(f"a switch cannot change packed = {self.packed}")
        empty = {name: np.broadcast_to(np.float32(0), shape) for name, shape in self.layout.shapes.items()}
        made = Optimizer(self.hyper, strategy, empty, self._decayed, **{**self._given, **options})
        formats, strategies = (self.formats, made.formats), (self.strategy, strategy)
        same = carry_over(self.state, made.state, formats, strategies, made.roles, self.parts)
        if made.grid is not None:
            made.grid.go_on(self.grid if same else None, made.state.parameter[0])
        made.count = self.count
        return made

    def _checked(self, gradient: NDArray[Any], rate: float) -> float:
        """Return the rate as a float; raise the errors of `step`."""
        rate = Interval.NOT_NEGATIVE.number("rate", rate)
        check_gradient(gradient, self.layout.size, self.strategy.gradient.format, packed=self.packed)
        check_processor()
        self.whole.check()
        self._warned = self._warned or warn_of_vanishing(self.roles.update, {"rate": rate})
        return rate

    def _advance(self, gradient: NDArray[Any], rate: float, update: NDArray[Any] | None) -> None:
        """Make a step, and write the update to a vector if there is one."""
        count = self.count + 1
        if self._draws:
            RandomWords(0, count)  # refuses steps that have no words
        gradient = apart(gradient, chain.from_iterable(self.state))
        # One thread if an arithmetic is watched, or is not the emulator.
        threads = min(ar.threads if type(ar) is NumpyArithmetic else 1 for ar in self.roles)
        # Plan the whole step before anything is changed: compiling it may raise an error.
        if self._staged is None:
            move = self._planned(gradient, rate, update, count, threads)
        else:
            given, ahead = (self.roles, self.state, self.formats, gradient, update), self._steps - count
            move = self._staged.planned(*given, count=count, rate=rate, threads=threads, ahead=max(0, ahead))
        with self.whole.changing(f"step {count}"):
            if self.grid is not None:
                self.grid.before(self.state.parameter[0])
            move()
            for slot, kept, fmt in self._quantised:
                (vector,) = getattr(self.state, slot)
                requantize(vector, self.parts[slot].every(), kept, fmt)
            if self.grid is not None:
                self.grid.after(self.state.parameter[0], count)
            self.count = count

    def _planned(
        self, gradient: NDArray[Any], rate: float, update: NDArray[Any] | None, count: int, threads: int
    ) -> Callable[[], None]:
        """Return a function that makes a straight-line step, one block of the vectors at a time."""
        planned: list[tuple[slice, int, Callable[[slice], None]]] = []
        vectors = [(x, fmt) for items, fmt in zip(self.state, self.formats, strict=True) for x in items]
        edge, ahead = self.layout.decayed_size, max(0, self._steps - count)
        for part, decayed in ((slice(0, edge), True), (slice(edge, self.layout.size), False)):
            if part.start == part.stop:
                continue
            scalars = self.hyper.scalars(self.roles, self.strategy, count, rate, decayed=decayed)
            shape = (part.stop - part.start,)
            found = self._compiled.bound_loops(self.roles, scalars, gradient, shape, count, ahead)
            if self.roles.update.format is None:  # what has no result must raise before any change
                made = self._made(scalars, count, gradient, part)
                planned.append((part, self.layout.size, partial(self._kept, *made, update)))
            elif not found:
                planned.append((part, BLOCK, partial(self._eager, scalars, count, gradient, update)))
            else:
                bound_loop = found[0].loop.on_threads(threads)
                # Numbers that share scales are read and written by calls: fewer and larger ones are faster.
                size = bound_loop.block if self._edges is None else BLOCK
                given = [*vectors, (gradient, self.strategy.gradient.format)]
                asked = [*vectors, (update, self.roles.update.format)]
                planned.append((part, size, filling(bound_loop, given, asked)))

        def move() -> None:
            for part, block, work in planned:
                in_stripes(work, part, block, threads, self._edges)

        return move

    def _eager(
        self, scalars: Any, count: int, gradient: NDArray[Any], update: NDArray[Any] | None, block: slice
    ) -> None:
        """Make the step of one block by operations on arrays."""
        self._kept(*self._made(scalars, count, gradient, block), update, block)

    def _made(self, scalars: Any, count: int, gradient: NDArray[Any], block: slice) -> Step:
        """Return the result of one block's step, and change nothing."""
        given = np.ascontiguousarray(gradient[block])
        if self.packed:
            given = read(given, self.strategy.gradient.format)
        roles = self.roles.on_block(count, block.start)
        with np.errstate(all="ignore"):
            old = read_block(self.state, self.formats, block)
            return step_by(self.hyper.step, roles, self.strategy, old, given, scalars)

    def _kept(self, new: State, asked: Any, update: NDArray[Any] | None, block: slice) -> None:
        """Write the result of one block's step."""
        if update is not None:
            write(update[block], asked, self.roles.update.format)
        write_block(self.state, new, self.formats, block)

    def _check_out(self, out: Any, dtype: np.dtype[Any]) -> None:
        """Raise an error unless `out` is an array that can receive a gradient."""
        if not isinstance(out, np.ndarray) or out.dtype != dtype:
            raise TypeError(f"out must be an array of {dtype}, not {getattr(out, 'dtype', type(out))}")
        if out.shape != (self.layout.size,) or not out.flags.writeable:
            raise ValueError(f"out must be writeable, of shape ({self.layout.size},), not {out.shape}")
