"""Programs and random words by loops over elements, which LLVM compiles, or by NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.compile.lines import AsBits, Epilogue, Lines
from mcfsim.compile.llvm_source import rows_source, source, words_source
from mcfsim.compile.lowering import Lowered, Packed
from mcfsim.compile.objects import called, is_saved
from mcfsim.compile.program import Draw, Program, flat, mapped
from mcfsim.compile.scalars import ScalarEncoding
from mcfsim.compile.sources import KEY
from mcfsim.kernels.element.forms import as_calls
from mcfsim.kernels.element.machine import I64, recorded
from mcfsim.kernels.element.philox import philox_element
from mcfsim.kernels.elementary import table_of
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords, Words, counters, word_bits
from mcfsim.storage.buffers import BLOCK, scratch

Array = NDArray[Any]


@dataclass(frozen=True)
class BoundLoop:
    """A loop bound to its real scalars.

    Attributes
    ----------
    source : str
        The source of the compiled module; empty if NumPy runs the loop.
    operands, results : tuple of dtype
        The dtypes of the vectors that it takes and fills.
    checks : bool
        Whether it checks that all operands are values of their formats.
    in_place : bool
        Whether a result may itself be an operand; it must not overlap one in part.
    block : int
        The best number of elements per call, so that its results are used while they are in the cache.
    """

    source: str
    operands: tuple[np.dtype[Any], ...]
    results: tuple[np.dtype[Any], ...]
    checks: bool
    in_place: bool
    block: int
    _loop: Callable[..., int]
    _numbers: tuple[Any, ...]
    _draws: Mapping[Draw, int]
    _streams: tuple[tuple[RandomWords, int], ...] = ()

    def drawing(self, words: Mapping[int, RandomWords]) -> BoundLoop:
        """Return the loop with random words for each source."""
        streams = [(words[x.source].of(x.operation), bits) for x, bits in self._draws.items()]
        return replace(self, _streams=tuple(streams))

    def on_threads(self, threads: int) -> BoundLoop:
        """Return the loop for one of several threads.

        Threads wait for each other between calls, so each call processes more elements.
        """
        if threads == 1:
            return self
        loop = self._loop if self.source else partial(self._loop, at_once=BLOCK)
        return replace(self, block=BLOCK, _loop=loop)

    def __call__(
        self,
        operands: Sequence[Array],
        results: Sequence[Array],
        start: int = 0,
        numbers: Sequence[Any] = (),
    ) -> bool:
        """Fill results from operands, contiguous vectors of one length and of the right dtypes.

        The index of the first element matters where random words are drawn. Further numbers are those that
        an epilogue takes, of their types.

        Returns
        -------
        bool
            Whether all operands are values of their formats, if that is checked; else true.
        """
        check_processor()
        take = draw if self.source else drawn_by_numpy
        words = [
            take(stream, start, operands[0].size, bits, f"words{place}")
            for place, (stream, bits) in enumerate(self._streams)
        ]
        return not self._loop(*operands, *words, *self._numbers, *numbers, *results)

    @property
    def random_bits(self) -> tuple[int, ...]:
        """How many random bits each of its words has."""
        return tuple(self._draws.values())

    def over_rows(self, addresses: NDArray[np.int64], size: int) -> bool:
        """Fill vectors of one size given by a table of addresses, row by row; see `Loop`.

        A row has the addresses of operands, words and results.
        """
        return not self._loop(addresses, np.int64(size), *self._numbers)


class CompilationError(RuntimeError):
    """LLVM failed to compile a loop."""


class Loop(Lines[BoundLoop]):
    """A program compiled to one loop over elements, or run by NumPy's functions.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded", "float32"}, optional
        How real scalars enter.
    checked : bool, optional
        Whether the loop checks its operands, and tells whether all are values of their formats.
    wide : bool, optional
        Whether all results are of float64.
    packed : bool or {"operands", "results"}, optional
        Whether operands and results are codes, as in `mcfsim.codec`, of floating-point formats with codes of
        at most 16 bits and a code for NaN; or which of the two are.
    epilogue : Epilogue, optional
        Processes the results.
    joined : AsBits, optional
        The operand that is stored as bits, if there is one, in a program on codes. NumPy does not run it.
    apart : bool, optional
        Whether a result shares no memory with operands, unless it is itself an operand: the compiled loop is
        then faster, and a long algorithm becomes several loops.
    trusted : collection of int, optional
        The places of inputs that need not be checked; see `mcfsim.compile.lowering.lower`.
    rows : bool, optional
        Whether the loop is over the rows of a table and their elements: see `BoundLoop.over_rows`.

    Notes
    -----
    A compiled loop that is bound to numbers needs llvmlite (`ImportError`), and LLVM may fail
    (`CompilationError`).
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        *,
        checked: bool = False,
        wide: bool = False,
        packed: Packed = False,
        epilogue: Epilogue | None = None,
        joined: AsBits | None = None,
        apart: bool = False,
        trusted: Collection[int] = (),
        rows: bool = False,
    ) -> None:
        options = {"checked": checked, "wide": wide, "packed": packed, "trusted": trusted}
        super().__init__(program, scalars, joined, epilogue=epilogue, **options)
        self._apart, self._rows = apart, rows
        self._lock = Lock()
        self._compiled: dict[tuple[ScalarEncoding, ...], Callable[..., int]] = {}
        self._written: dict[tuple[ScalarEncoding, ...], tuple[Lowered, Callable[..., int]]] = {}

    def _bound(self, ways: tuple[ScalarEncoding, ...], numbers: tuple[float, ...]) -> BoundLoop:
        lowered, text = self._lowered(ways)
        return self._bound_loop(lowered, text, self._loop(ways), numbers)

    def on_numpy(self, numbers: Sequence[Any]) -> BoundLoop:
        """Return the loop as run by NumPy, bound to real scalars as by `with_numbers`.

        It does not check its operands, and its results must share no memory with them; neither are codes.

        Raises
        ------
        UnsupportedFormatError
            As `with_numbers` does.
        """
        ways, found = self._entering(numbers)
        if ways not in self._written:
            lowered = self._line(ways, wide=self._options["wide"])
            self._written[ways] = lowered, calls(lowered)
        lowered, loop = self._written[ways]
        return self._bound_loop(lowered, "", loop, found)

    def _bound_loop(
        self, lowered: Lowered, text: str, loop: Callable[..., int], found: Sequence[float]
    ) -> BoundLoop:
        operands, results, numbers = lowered.dtypes
        return BoundLoop(
            source=text,
            operands=operands,
            results=results,
            checks=lowered.strange is not None,
            in_place=bool(text) and self._apart,
            block=BLOCK if text and lowered.draws else AT_ONCE,  # each word is a call of its own
            _loop=loop,
            _numbers=tuple([dtype.type(x) for dtype, x in zip(numbers[: len(found)], found, strict=True)]),
            _draws=lowered.draws,
        )

    def source(self, numbers: Sequence[Any]) -> str:
        """Return the source of the module that is compiled for the given real scalars."""
        text: str = self._lowered(self.ways(numbers))[1]
        return text

    def is_ready(self, numbers: Sequence[Any]) -> bool:
        """Return whether the loop for the given real scalars is compiled and loaded."""
        return self.ways(numbers) in self._compiled

    def is_saved(self, numbers: Sequence[Any]) -> bool:
        """Return whether it was compiled before on this machine."""
        return is_saved(self.source(numbers))

    def __call__(self, *operands: Any, **scalars: Any) -> Any:
        """Run the program on vectors.

        Parameters
        ----------
        *operands : array or (nested) tuple of arrays
            As the algorithm takes them, in the carriers; contiguous vectors of one length.
        **scalars : real number
            The real scalars, by name.

        Returns
        -------
        array or (nested) tuple of arrays
            As the algorithm returns them.

        Raises
        ------
        TypeError, ValueError
            If an array is not such a vector, or, where that is checked, has an element that is no value.
        """
        bound_loop, arrays = self.with_scalars(scalars), list(flat(operands))
        size = arrays[0].size
        for x, array, dtype in zip(self.program.inputs, arrays, bound_loop.operands, strict=True):
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(f"{x.name} must be a contiguous vector of {dtype}")
            if array.size != size:
                raise ValueError(f"{x.name} has {array.size} elements, not {size}")
        results = [np.empty(size, dtype) for dtype in bound_loop.results]
        if not bound_loop(arrays, results):
            raise ValueError("an operand has an element that is no value of its format")
        rest = iter(results)
        return mapped(lambda _: next(rest), self.program.results)

    def _loop(self, ways: tuple[ScalarEncoding, ...]) -> Callable[..., int]:
        """Return the compiled function, with its tables; the code that draws its words is compiled, too."""
        with self._lock:  # so that threads do not compile it twice
            if ways not in self._compiled:
                lowered, text = self._lowered(ways)
                tables = [table_of(key) for key in lowered.tables]
                try:
                    loop = called(text, "rows" if self._rows else "loop", *tables, *self._arguments(lowered))
                    if lowered.draws:
                        _word_loop()
                except ImportError:
                    raise
                except Exception as error:
                    raise CompilationError(f"{self.program.name} could not be compiled: {error}") from error
                self._compiled[ways] = partial(loop, *tables) if tables else loop
            return self._compiled[ways]

    def _arguments(self, lowered: Lowered) -> tuple[Any, ...]:
        """Return arguments of the compiled function, except the tables."""
        operands, results, numbers = lowered.dtypes
        vectors = [np.empty(0, x) for x in (*operands, *map(word_dtype, lowered.draws.values()))]
        filled = [np.empty(0, x) for x in results]
        singles = [x.type(1) for x in numbers]
        if self._rows:
            return np.empty((0, len(vectors) + len(filled)), np.int64), np.int64(0), *singles
        return *vectors, *singles, *filled

    def _emitted(self, lowered: Lowered, about: str) -> str:
        return rows_source(lowered, about) if self._rows else source(lowered, about, apart=self._apart)


# -- by NumPy -----------------------------------------------------------------------------------------------
#: Elements processed at a time: so few that all values of a program alive at once fit into the L2 cache.
AT_ONCE = 1 << 15


def calls(lowered: Lowered) -> Callable[..., int]:
    """Return a function ``loop(*operands, *words, *numbers, *results)`` that fills vectors by NumPy.

    Like a compiled loop it takes random words of 16 or 32 bits. But results must share no memory with
    operands, and it does not check operands: it returns 0. It processes `at_once` elements at a time.
    """
    given = (*lowered.operands, *lowered.words, *lowered.numbers)
    first, last = len(lowered.operands), len(lowered.operands) + len(lowered.words)
    whole = as_calls(lowered.results, given, lowered.numbers)

    def loop(*arrays: Any, at_once: int = AT_ONCE) -> int:
        operands, words, numbers = arrays[:first], arrays[first:last], arrays[last : len(given)]
        singles = [np.asarray(number) for number in numbers]
        size = arrays[-1].size
        with np.errstate(all="ignore"):
            for start in range(0, size, at_once):
                part = slice(start, min(start + at_once, size))
                drawn = [_widened(x[part], f"word {place}") for place, x in enumerate(words)]
                taken = [*(x[part] for x in operands), *drawn, *singles]
                whole(taken, [x[part] for x in arrays[len(given) :]])
        return 0

    return loop


def _widened(words: Array, place: str) -> Array:
    out = scratch(place, words.size, np.dtype(np.int64))
    np.copyto(out, words)
    return out


# -- random words, by a compiled loop or by NumPy: the same words -------------------------------------------
def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype of the shortest words that have at least `bits` bits."""
    return np.dtype(f"u{word_bits(bits) // 8}")


def draw(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the words of a range of indices, as `RandomWords.draws` does.

    The next draw for the same place in the same thread overwrites them.
    """
    these, wanted = counters(start, count, word_bits(bits))
    drawn: NDArray[Any] = scratch(place, 4 * len(these), np.int32)
    _word_loop()(*map(np.int64, (*words.key, words.step, words.place, these.start)), drawn)
    return drawn.view(word_dtype(bits))[wanted]


def draw_rows(words: RandomWords, operations: Any, counter: int, drawn: NDArray[np.int32]) -> None:
    """Fill each row of an array with the words of one operation, from a given counter of four words."""
    key = (words.seed & 0xFFFFFFFF, words.seed >> 32, words.step)
    _word_rows()(*map(np.int64, key), words.place + operations, np.int64(counter), drawn)


def drawn_by_numpy(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the same words as `draw`, drawn by NumPy."""
    drawn: Words = scratch(place, count, word_dtype(bits))
    np.copyto(drawn, words.draws(start, count, bits))
    return drawn


@lru_cache(maxsize=1)
def _word_loop() -> Any:
    """Return the loop that draws words, compiled or loaded."""
    return called(_words_source(), "loop", *[np.int64(0)] * 5, np.empty(0, np.int32))


@lru_cache(maxsize=1)
def _word_rows() -> Any:
    """Return the loop that draws words for several operations."""
    nothing = np.empty(0, np.int64), np.int64(0), np.empty((0, 0), np.int32)
    return called(_words_source(), "rows", *[np.int64(0)] * 3, *nothing)


def _words_source() -> str:
    """Return the source of the loop that draws random words."""
    line, results = recorded(philox_element, index=I64, **dict.fromkeys(KEY, I64))
    inputs = {value.constant: value for value in line.values if value.verb == "input"}
    key = tuple(inputs[name] for name in KEY)
    lowered = Lowered(line, numbers=key, results=results, index=inputs["index"])
    return words_source(lowered, "The words of Philox4x32-10, four of a counter.")
