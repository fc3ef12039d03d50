"""The emulator on NumPy arrays: every operation is correctly rounded, once, to one format."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.checks import as_array, check_processor, check_threads, is_real
from mcfsim.compile.choice import check_compiled, loops
from mcfsim.compile.folds import FoldRun
from mcfsim.compile.program import Program, ProgramStep
from mcfsim.compile.rolling import MANY
from mcfsim.compile.tracing import ProgramRecording, Traced, record
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.blocks import for_each_block, is_one_block
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.operation_plan import OPERATIONS as PLANNED
from mcfsim.kernels.operation_plan import SELECTING
from mcfsim.kernels.real_numbers import SCALARS, Scalars, is_scalar, same_integers
from mcfsim.protocol import Arithmetic, Forwarding, Value
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK


class NumpyArithmetic(Forwarding):
    """Emulated arithmetic of one format and rounding on NumPy arrays.

    Parameters
    ----------
    fmt : Format
        Format of every result.
    rounding : Rounding
        Mode and overflow policy.
    scalars : {"exact", "rounded", "float32"}, optional
        How Python numbers enter: as real numbers into an operation that rounds once, rounded first, or into
        binary32, where the operation is then carried out. See `mcfsim.protocol.Arithmetic`.
    threads : int, optional
        Threads that share the blocks of large arrays.
    random : RandomWords, optional
        Random words, which stochastic rounding needs. Each operation takes the next operation of the stream,
        and each element the word of its index in row-major order. A result of scalars alone takes the word of
        index 0. Threads that share the arithmetic never share a word, but their scheduling decides which
        operation of the stream each of them takes.
    compiled : bool, optional
        Whether LLVM compiles algorithms to loops, with the same bits. True: for arrays of any size. False:
        never. None: if llvmlite is installed and there has been enough work on large arrays for compiling to
        pay. Operations on Python numbers alone are never compiled.

    Attributes
    ----------
    carrier : dtype
        The dtype of all results: ``float32`` if it holds every value of the format, else ``float64``.

    Notes
    -----
    Operands are Python numbers, or arrays of any shapes that broadcast, of dtype float32, float64 or one that
    casts to the carrier exactly. An array with an element that is no value of the format raises ValueError:
    convert it with `round`. If all operands are Python numbers, so is the result.

    Raises
    ------
    UnsupportedFormatError
        If float64 does not hold the format, or an operation has no exact path.
    ImportError
        If algorithms must be compiled, but llvmlite is not installed.
    ProcessorError
        Here and in operations, if the processor is set to treat subnormal numbers as zeros, or not to round
        to nearest.
    """

    def __init__(
        self,
        fmt: Format,
        rounding: Rounding,
        *,
        scalars: Scalars = "exact",
        threads: int = 1,
        random: RandomWords | None = None,
        compiled: bool | None = None,
    ) -> None:
        if scalars not in SCALARS:
            raise ValueError(f"unknown scalar policy {scalars!r}; allowed: {', '.join(SCALARS)}")
        check_threads(threads)
        check_compiled(compiled)
        if not isinstance(random, RandomWords | None):
            raise TypeError(f"random must be RandomWords(seed), not {random!r}")
        if rounding.stochastic and random is None:
            raise ValueError("stochastic rounding needs random=RandomWords(seed)")
        self.blocks = BlockArithmetic(fmt, rounding, scalars)
        self.random = random
        self.threads = threads
        self.compiled = compiled

    def __repr__(self) -> str:
        policies = f"{self.rounding.mode}, {self.rounding.overflow}, scalars={self.scalars!r}"
        return f"NumpyArithmetic({self.format}, {policies})"

    @property
    def format(self) -> Format:
        """Format of every result."""
        return self.blocks.format

    @property
    def rounding(self) -> Rounding:
        """Mode and overflow policy."""
        return self.blocks.rounding

    @property
    def scalars(self) -> Scalars:
        """How Python numbers enter."""
        return self.blocks.scalars

    @property
    def carrier(self) -> np.dtype[Any]:
        """The dtype of results."""
        return self.blocks.carrier

    def like(self, fmt: Format, rounding: Rounding) -> NumpyArithmetic:
        """Return the emulator of another format and rounding."""
        options: Any = {"scalars": self.scalars, "threads": self.threads, "compiled": self.compiled}
        return NumpyArithmetic(fmt, rounding, random=self.random, **options)

    def on_block(self, step: int, start: int) -> BlockArithmetic:
        """Return the operations on one contiguous block; nothing is checked."""
        random = None if self.random is None else replace(self.random, step=step)
        return self.blocks.at(random, start)

    def round(self, x: Value) -> Value:
        """Return real numbers rounded to the format: scalars, or arrays of a floating or integer dtype.

        Unlike the other operations, this one takes any numbers. The result has the carrier's dtype.
        """
        streams = self._streams()
        random = None if streams is None else streams.of(0)
        options: Any = {"threads": self.threads, "random": random, "compiled": self.compiled}
        result = round_to(x, self.format, self.rounding, **options)
        return result if np.isscalar(result) else np.asarray(result, dtype=self.carrier)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(arithmetic, *operands, **options)``, computed block by block.

        Parameters
        ----------
        function : callable
            A branch-free sequence of operations of the arithmetic that is its first argument.
        *operands : value or (nested) tuple of values
            The operands; the result has the shape to which they broadcast.
        **options
            Passed to the function unchanged.

        Raises
        ------
        TypeError, ValueError, UnsupportedFormatError
            If the function must be compiled, but is no straight line or has an operation that cannot be
            compiled.
        """
        check_processor()
        leaves: list[Value] = []
        layout = _flatten(operands, leaves)
        arrays = {index: self._operand(leaf) for index, leaf in enumerate(leaves) if not is_scalar(leaf)}
        shapes: list[Any] = []
        streams = self._streams()

        def on_blocks(start: int, *blocks: NDArray[Any]) -> list[NDArray[Any]]:
            if not all(map(self.blocks.keeps, blocks)):
                self._refuse_strange(arrays)
            values = list(leaves)
            for index, block in zip(arrays, blocks, strict=True):
                values[index] = block
            results: list[Any] = []
            inner = self.blocks.at(streams, start)
            shapes[:] = [_flatten(function(inner, *_unflatten(layout, values), **options), results)]
            for place, item in enumerate(results):
                if type(item) is not np.ndarray and is_scalar(item):
                    results[place] = item = inner.settle(item)
                    carrier = item.carrier
                elif hasattr(item, "dtype"):
                    carrier = item.dtype
                else:
                    raise TypeError(f"a result is {item!r:.60}: allowed are values, and tuples of them")
                if carrier is not self.carrier and carrier != self.carrier and blocks:
                    raise ValueError("a result is of a format with another carrier")
            return results

        if not arrays:
            with np.errstate(all="ignore"):
                scalars: list[Any] = [float(np.asarray(item).reshape(())) for item in on_blocks(0)]
            return _unflatten(shapes[0], scalars)
        shape = broadcast([array.shape for array in arrays.values()])
        large = math.prod(shape) > BLOCK
        recorded = lru_cache(maxsize=1)(partial(self._recorded, function, layout, leaves, options))
        whole = self.compiled or (self.compiled is None and large)
        if self.compiled is not False and (whole or len(leaves) >= MANY):
            folded = self._folded(recorded, arrays, shape)
            if folded is not None:
                return folded
        if whole:
            compiled = self._compiled(recorded, arrays, math.prod(shape))
            if compiled is not None:
                return compiled
        with np.errstate(all="ignore"):
            # For large arrays, a first run on one element finds the number of results.
            count = len(on_blocks(0, *(np.zeros(1, self.carrier) for _ in arrays))) if large else 0
            if not count:
                small = [_extend(array, shape).reshape(-1) for array in arrays.values()]
                size = small[0].shape
                found = on_blocks(0, *small)
                results = [
                    np.array(_extend(np.asarray(item), size), self.carrier).reshape(shape) for item in found
                ]
            else:

                def fill(start: int, *blocks: NDArray[Any]) -> None:
                    found = on_blocks(start, *blocks[: len(arrays)])
                    for target, result in zip(blocks[len(arrays) :], found, strict=True):
                        target[...] = result

                results = self._filled(fill, arrays, count)
        return _unflatten(shapes[0], results)

    def _filled(
        self, fill: Callable[..., None], arrays: dict[int, NDArray[Any]], count: int
    ) -> list[NDArray[Any]]:
        """Return `count` new results, whose blocks `fill` fills from those of the operands."""
        return for_each_block(
            *(fill, list(arrays.values()), self.carrier, count),
            threads=self.threads,
            ordered=self.rounding.stochastic,
        )

    def _compiled(
        self, recorded: Callable[[], ProgramRecording], arrays: dict[int, NDArray[Any]], elements: int
    ) -> Any:
        """Return a function's results from one compiled loop, or None if none is used."""

        def words(program: Program) -> dict[int, RandomWords]:
            return {0: self._take(program.drawn[0])} if program.drawn and program.drawn[0] else {}

        found = loops(self.scalars, checked=True).bound_loop(
            lambda: recorded().program(), elements, self.compiled, words=words, by_numpy=True
        )
        if found is None:
            return None
        bound_loop = found.on_threads(self.threads)

        def fill(start: int, *blocks: NDArray[Any]) -> None:
            given, made = blocks[: len(arrays)], blocks[len(arrays) :]
            looked = bound_loop.checks or all(map(self.blocks.keeps, given))
            if not (looked and bound_loop(given, made, start)):
                self._refuse_strange(arrays)

        layout = _flatten(recorded().results, [])
        return _unflatten(layout, self._filled(fill, arrays, len(bound_loop.results)))

    def _folded(
        self,
        recorded: Callable[[], ProgramRecording],
        arrays: dict[int, NDArray[Any]],
        shape: tuple[int, ...],
    ) -> Any:
        """Return a function's results from compiled loops over its parts, or None if one loop is enough."""
        fold = loops(self.scalars, checked=True).fold(recorded, math.prod(shape), self.compiled)
        if fold is None:
            return None
        recording = recorded()  # the fold's own has the same operations, but may nest results differently
        words = self._take(recording.drawn[0]) if any(recording.drawn) else None

        def carry_out(step: ProgramStep, start: int) -> Any:
            ar = self.blocks
            if step.result.format != ar.format or step.rounding != ar.rounding:
                ar = ar.like(step.result.format, step.rounding)
            ar = ar.at(words, start)
            if step.draw is not None:
                ar.operations = step.draw.operation
            return getattr(ar, step.operation)(*step.operands)

        operands = [_extend(array, shape) for array in arrays.values()]
        results = [np.empty(shape, self.carrier) for _ in fold.rolled.results]
        run = FoldRun(fold, operands, results, carry_out, self.blocks.keeps, words)
        if not run.fill(self.threads):
            self._refuse_strange(arrays)
        return _unflatten(_flatten(recording.results, []), results)

    def _recorded(
        self, function: Callable[..., Any], layout: Any, leaves: list[Value], options: dict[str, Any]
    ) -> ProgramRecording:
        """Return the recorded operations of a function that can be compiled.

        Raises
        ------
        ValueError
            If the function draws in a second format, or returns nothing, or a result has another carrier.
        """
        names = [leaf if is_scalar(leaf) else f"x{index}" for index, leaf in enumerate(leaves)]
        given = _unflatten(layout, names)
        recording = record(function, self.format, self.rounding, operands=given, options=options)
        if not recording.outputs():
            raise ValueError(f"{recording.name} returns no values, so there is nothing to compile")
        if len(recording.drawn) > 1 or (any(recording.drawn) and not self.rounding.stochastic):
            raise ValueError("stochastic rounding of a second format needs random words of its own")
        if any(isinstance(x, Traced) and carrier_of(x.format) != self.carrier for x in recording.outputs()):
            raise ValueError("a result is of a format with another carrier")
        return recording

    def _operate(self, name: str, *operands: Value) -> Any:
        """Return the result of one operation."""
        if self._are_blocks(operands):
            check_processor()
            blocks = [x.reshape(-1) for x in operands]
            with np.errstate(all="ignore"):
                if all(map(self.blocks.keeps, blocks)):
                    return getattr(self.blocks, name)(*blocks).reshape(operands[0].shape)
        operation = OPERATIONS[name]
        for operand in operands:
            if isinstance(operand, tuple):
                raise TypeError("an operand is a tuple of values; write an array as a list")
        if not all(map(is_scalar, operands)):
            return self.evaluate(operation, *operands)
        check_processor()
        with np.errstate(all="ignore"):
            return float(operation(self.blocks.at(self._streams(), 0), *operands))

    def _are_blocks(self, operands: tuple[Value, ...]) -> bool:
        """Return whether operands form one block that needs no conversion and no random words."""
        blocks = self.blocks
        # Only `evaluate` converts arrays that may hold a zero which the format lacks.
        plain = blocks.format.has_negative_zero and not (blocks.rounding.stochastic or self.compiled)
        arrays = plain and {*map(type, operands)} == {np.ndarray}
        return arrays and is_one_block(operands, blocks.carrier, BLOCK)

    def _take(self, count: int) -> RandomWords:
        """Take the words of `count` operations, and return the stream of the first."""
        with _Streams.taking:
            first = self.random
            assert first is not None
            self.random = first.of(count)
            return first

    def _streams(self) -> _Streams | None:
        """Return the streams of one call, or None if its operations do not draw."""
        return _Streams(self) if self.rounding.stochastic else None

    def _operand(self, x: Any) -> NDArray[Any]:
        """Return an operand as an array; if it has the carrier's dtype, its blocks are checked later."""
        array = as_array(x, "an operand")
        if array.dtype == self.carrier and self.format.has_negative_zero:
            return array
        return self._taken_in(array)

    def _refuse_strange(self, arrays: dict[int, NDArray[Any]]) -> None:
        """Raise the error that names the first element that is no value of the format."""
        for array in arrays.values():
            self._taken_in(array)

    def _taken_in(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array of any real dtype in the carrier; raise if an element is no value of the format."""
        if not is_real(array.dtype):
            raise TypeError(f"an operand of dtype {array.dtype} is no array of real numbers")
        with np.errstate(all="ignore"):  # signalling NaNs
            if array.dtype.kind == "V":  # an ml_dtypes type; float32 holds all of these
                array = array.astype(np.float32)
            rounded = np.asarray(round_to(array, self.format), dtype=self.carrier)
            if array.dtype.kind in "iu":
                same = same_integers(array, rounded)
            else:
                same = (rounded == array) | (np.isnan(rounded) & np.isnan(array))
        if not same.all():
            index = tuple(int(i) for i in np.argwhere(~same)[0])
            raise ValueError(
                f"operand element {index} = {array[index]!r} is no value of {self.format}; "
                "bring numbers in with .round(x) first"
            )
        result: NDArray[Any] = rounded
        return result


def _operation(name: str) -> Callable[..., Any]:
    """Return an operation as an algorithm."""

    def operation(ar: Arithmetic, *operands: Value) -> Value:
        return getattr(ar, name)(*operands)

    return operation


#: Each operation as an algorithm.
OPERATIONS = {name: _operation(name) for name in (*PLANNED, "neg", "abs", "sign", *FUNCTIONS, *SELECTING)}


class _Streams:
    """The random streams of the operations of one call, the same in all its blocks.

    The first block that reaches an operation takes its stream from the arithmetic; the others reuse it.
    """

    taking = threading.Lock()

    def __init__(self, ar: NumpyArithmetic) -> None:
        self._ar = ar
        self._taken: list[RandomWords] = []

    def of(self, operation: int) -> RandomWords:
        """Return the stream of an operation, counted from 0."""
        with self.taking:
            while len(self._taken) <= operation:
                next_one = self._ar.random
                assert next_one is not None
                self._taken.append(next_one)
                self._ar.random = next_one.of(1)
            return self._taken[operation]


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast; raise ValueError if they do not."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"operands of shapes {', '.join(map(str, shapes))} do not broadcast") from None


def _extend(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    # NumPy is slow even if the array has this shape already.
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _flatten(tree: Any, leaves: list[Any]) -> Any:
    """Append the leaves of nested tuples to a list and return their layout."""
    if isinstance(tree, tuple):
        return tuple([_flatten(item, leaves) for item in tree])
    leaves.append(tree)
    return len(leaves) - 1


def _unflatten(layout: Any, leaves: list[Any]) -> Any:
    return (
        tuple([_unflatten(item, leaves) for item in layout]) if isinstance(layout, tuple) else leaves[layout]
    )
