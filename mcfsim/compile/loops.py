"""Programs as loops over elements: compiled by Numba, or as calls of NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.compile.drawing import draw, drawn_by_numpy, word_dtype
from mcfsim.compile.joined import AsBits
from mcfsim.compile.lines import Lines, Sequel
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.numba_source import rows_source, source
from mcfsim.compile.program import Draw, Program, flat
from mcfsim.compile.scalars import Entering
from mcfsim.compile.sources import called, is_cached
from mcfsim.kernels.element.calls import Calls
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import BLOCK, scratch

Array = NDArray[Any]


@dataclass(frozen=True)
class Filler:
    """A loop with its real scalars put in.

    Attributes
    ----------
    source : str
        Of the module that was compiled; empty if NumPy carries the loop out.
    operands, results : tuple of dtype
        Of the vectors that it takes and fills.
    checks : bool
        Whether it looks if all operands are values of their formats.
    block : int
        How many elements it is best handed at a time, so that what it makes is used while it is in the cache.
    """

    source: str
    operands: tuple[np.dtype[Any], ...]
    results: tuple[np.dtype[Any], ...]
    checks: bool
    block: int
    _loop: Callable[..., int]
    _numbers: tuple[Any, ...]
    _draws: Mapping[Draw, int]
    _streams: tuple[tuple[RandomWords, int], ...] = ()

    def drawing(self, words: Mapping[int, RandomWords]) -> Filler:
        """Return the loop with random words for each source."""
        streams = [(words[x.source].of(x.operation), bits) for x, bits in self._draws.items()]
        return replace(self, _streams=tuple(streams))

    def on_threads(self, threads: int) -> Filler:
        """Return the loop for one of several threads.

        Those of NumPy wait for each other at each call, so each call is made for more elements.
        """
        if self.source or threads == 1:
            return self
        return replace(self, block=BLOCK, _loop=partial(self._loop, at_once=BLOCK))

    def __call__(
        self,
        operands: Sequence[Array],
        results: Sequence[Array],
        start: int = 0,
        numbers: Sequence[Any] = (),
    ) -> bool:
        """Fill results from operands, contiguous vectors of one length and of the right dtypes.

        The index of the first element matters where random words are drawn. Further numbers are those that a
        sequel asks for, of their types.

        Returns
        -------
        bool
            Whether all operands are values of their formats, if that was to be looked at; else true.
        """
        check_processor()
        take = draw if self.source else drawn_by_numpy
        words = [
            take(stream, start, operands[0].size, bits, f"words{place}")
            for place, (stream, bits) in enumerate(self._streams)
        ]
        # All alike read-only: Numba compiles for each kind of argument.
        given = [_read_only(x) for x in (*operands, *words)]
        return not self._loop(*given, *self._numbers, *numbers, *results)

    @property
    def random_bits(self) -> tuple[int, ...]:
        """How many random bits each of its words has."""
        return tuple(self._draws.values())

    def over_rows(self, addresses: NDArray[np.int64], size: int) -> bool:
        """Fill vectors of one size that are found by their addresses, a row each time; see `RowLoop`.

        In a row are those of operands, words and results.
        """
        return not self._loop(addresses, np.int64(size), *self._numbers)


class CompilationError(RuntimeError):
    """What Numba was given it did not compile, or its cache could not be written."""


class Loop(Lines):
    """A program compiled to one loop over elements, or carried out by NumPy's functions.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded"}, optional
        How real scalars enter.
    checked : bool, optional
        Whether the loop looks at its operands, and tells whether all are values of their formats.
    wide : bool, optional
        Whether all results are of float64.
    packed : bool, optional
        Whether operands and results are codes, as `mcfsim.codec` has them, of floating-point formats with
        codes of at most 16 bits, and one for NaN.
    sequel : Sequel, optional
        What is made of the results.
    joined : AsBits, optional
        Which operand lies as bits, if one does, of a program on codes. NumPy does not carry it out.
    apart : bool, optional
        Whether results share no memory with operands: a long text is then faster.
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        *,
        checked: bool = False,
        wide: bool = False,
        packed: bool = False,
        sequel: Sequel | None = None,
        joined: AsBits | None = None,
        apart: bool = False,
    ) -> None:
        super().__init__(program, scalars, sequel, joined, checked=checked, wide=wide, packed=packed)
        self.checked, self._apart = checked, apart
        self._lock = Lock()
        self._compiled: dict[tuple[Entering, ...], Callable[..., int]] = {}
        self._written: dict[tuple[Entering, ...], tuple[Lowered, Callable[..., int]]] = {}

    def with_scalars(self, scalars: Mapping[str, Any]) -> Filler:
        """Return the compiled loop for some real scalars, given by name."""
        return self.with_numbers(self._numbers(scalars))

    def with_numbers(self, numbers: Sequence[Any]) -> Filler:
        """Return the compiled loop for some real scalars, in the order of `mcfsim.compile.scalars.uses`.

        Raises
        ------
        ImportError
            If Numba is not installed.
        UnsupportedFormatError
            If an operation of the program has no exact path in binary64, or a scalar leads beyond that.
        CompilationError
            If Numba fails.
        """
        ways, found = self._entering(numbers)
        lowered, text = self._lowered(ways)
        return self._filler(lowered, text, self._loop(ways), found)

    def on_numpy(self, numbers: Sequence[Any]) -> Filler:
        """Return the loop as NumPy carries it out, for some real scalars, as `with_numbers` does.

        It does not look at its operands, and its results must share no memory with them; neither are codes.

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
        return self._filler(lowered, "", loop, found)

    def _filler(self, lowered: Lowered, text: str, loop: Callable[..., int], found: list[float]) -> Filler:
        typed = zip(map(lowered.dtype, lowered.numbers[: len(found)]), found, strict=True)
        return Filler(
            source=text,
            operands=tuple(map(lowered.dtype, lowered.operands)),
            results=tuple(map(lowered.dtype, lowered.results)),
            checks=lowered.strange is not None,
            block=BLOCK if text and lowered.draws else AT_ONCE,  # each word is a call of its own
            _loop=loop,
            _numbers=tuple(dtype.type(number) for dtype, number in typed),
            _draws=lowered.draws,
        )

    def is_cached(self, numbers: Sequence[Any]) -> bool:
        """Return whether the loop for some real scalars was compiled before, on this machine."""
        return is_cached(self.source(numbers))

    def __call__(self, *operands: Any, **scalars: Any) -> Any:
        """Carry the program out on vectors.

        Parameters
        ----------
        *operands : array or (nested) tuple of arrays
            As the text takes them, in the carriers; contiguous vectors of one length.
        **scalars : real number
            The real scalars, by name.

        Returns
        -------
        array or (nested) tuple of arrays
            As the text returns them.

        Raises
        ------
        TypeError, ValueError
            If arrays are others, or, where that is looked at, hold what is no value of their formats.
        """
        filler, arrays = self.with_scalars(scalars), list(flat(operands))
        size = arrays[0].size
        for x, array, dtype in zip(self.program.inputs, arrays, filler.operands, strict=True):
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(f"{x.name} must be a contiguous vector of {dtype}")
            if array.size != size:
                raise ValueError(f"{x.name} has {array.size} elements, not {size}")
        results = [np.empty(size, dtype) for dtype in filler.results]
        if not filler(arrays, results):
            raise ValueError("an operand holds what is no value of its format")
        return _filled(self.program.results, iter(results))

    def _loop(self, ways: tuple[Entering, ...]) -> Callable[..., int]:
        """Return the compiled function, called once on no elements, at which Numba compiles it."""
        with self._lock:  # lest threads compile it twice
            return self._made_once(ways)

    def _made_once(self, ways: tuple[Entering, ...]) -> Callable[..., int]:
        if ways not in self._compiled:
            lowered, text = self._lowered(ways)
            try:
                loop = self._called(lowered, text)
            except ImportError:
                raise
            except Exception as error:
                raise CompilationError(f"{self.program.name} could not be compiled: {error}") from error
            self._compiled[ways] = loop
        return self._compiled[ways]

    def _called(self, lowered: Lowered, text: str) -> Callable[..., int]:
        words = [word_dtype(bits) for bits in lowered.draws.values()]
        dtypes = [*map(lowered.dtype, lowered.operands), *words]
        operands = [_read_only(np.empty(0, dtype)) for dtype in dtypes]
        numbers = [lowered.dtype(number).type(1) for number in lowered.numbers]
        results = [np.empty(0, lowered.dtype(result)) for result in lowered.results]
        return called(text, "loop", *operands, *numbers, *results)

    def _source(self, lowered: Lowered, about: str) -> str:
        return source(lowered, about, apart=self._apart)


class RowLoop(Loop):
    """A program compiled to a loop over rows of a table, and over elements in each: see `Filler.over_rows`.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded"}, optional
        How real scalars enter.
    trusted : set of int, optional
        The inputs, by their places, that need not be looked at; see `mcfsim.compile.lowering.lower`.
    """

    def __init__(
        self, program: Program, scalars: Scalars = "exact", *, trusted: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(program, scalars, checked=True)
        self._options["trusted"] = trusted

    def _called(self, lowered: Lowered, text: str) -> Callable[..., int]:
        columns = len(lowered.operands) + len(lowered.words) + len(lowered.results)
        numbers = [lowered.dtype(number).type(1) for number in lowered.numbers]
        return called(text, "rows", np.empty((0, columns), np.int64), np.int64(0), *numbers)

    def _source(self, lowered: Lowered, about: str) -> str:
        return source(lowered, about) + rows_source(lowered)


def _read_only(x: Array) -> Array:
    view = x.view()
    view.flags.writeable = False
    return view


def _filled(nested: Any, rest: Iterator[Array]) -> Any:
    return tuple(_filled(item, rest) for item in nested) if isinstance(nested, tuple) else next(rest)


# -- by NumPy -----------------------------------------------------------------------------------------------
#: Elements that are worked on at once: all values of a program that live together fit into the second cache.
AT_ONCE = 1 << 15


def calls(lowered: Lowered) -> Callable[..., int]:
    """Return a function ``loop(*operands, *words, *numbers, *results)`` that fills results, vectors.

    As one that is compiled it takes random words of 16 or 32 bits; but the results share no memory with the
    operands, and it does not look at these: it returns 0. How many elements it works on at once may be given.
    """
    given = (*lowered.operands, *lowered.words, *lowered.numbers)
    first, last = len(lowered.operands), len(lowered.operands) + len(lowered.words)
    whole = Calls(lowered.results, given, lowered.numbers)

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
