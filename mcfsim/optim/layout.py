"""The layout of named tensors, and of their state, in vectors, and the division of work among threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import as_array, check_processor, is_real, lacks
from mcfsim.kernels.real_numbers import same_integers
from mcfsim.optim.declaration import Declaration, Granularity
from mcfsim.optim.groups import GroupBoundaries
from mcfsim.optim.strategies import Strategy

Array = NDArray[Any]


class StoredTensor(Protocol):
    """A tensor that is read piece by piece, like a weight of `mcfsim.models.weights.open_weights`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""

    @property
    def size(self) -> int:
        """Number of elements."""

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, in row-major order, as a vector of real numbers of one dtype."""


#: Tensors by name, each an array or a stored tensor.
Tensors = Mapping[str, Array | StoredTensor]


class Layout:
    """The places of tensors in the vector of all parameters.

    Parameters
    ----------
    parameters : mapping of str to array or StoredTensor
        The tensors, by name.
    decayed : collection of str
        The names of tensors with weight decay; these tensors come first.

    Raises
    ------
    TypeError
        If the parameters are not a mapping, or the decayed names are a string or not a collection.
    ValueError
        If there is no tensor, or a decayed name is not the name of a tensor.

    Attributes
    ----------
    slices : dict of str to slice
        The place of each tensor, in the order of the vector.
    size : int
        Number of all elements.
    decayed_size : int
        Number of elements of the decayed tensors.
    """

    def __init__(self, parameters: Tensors, decayed: Collection[str] = ()) -> None:
        if not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters must be a mapping of names to arrays, not {type(parameters).__name__}"
            )
        if isinstance(decayed, str) or not isinstance(decayed, Collection):
            raise TypeError(f"decayed must be a collection of names, not {decayed!r}")
        if not parameters:
            raise ValueError("there are no parameters")
        if unknown := sorted(set(decayed) - set(parameters)):
            raise ValueError(f"decayed tensors {unknown} are not among the parameters {sorted(parameters)}")
        chosen = set(decayed)
        self.shapes = {
            name: tuple(np.shape(parameters[name]))
            for name in sorted(parameters, key=lambda n: n not in chosen)
        }
        self.slices: dict[str, slice] = {}
        self.size = self.decayed_size = 0
        for name, shape in self.shapes.items():
            start = self.size
            self.size += int(np.prod(shape, dtype=np.int64))
            self.slices[name] = slice(start, self.size)
            if name in chosen:
                self.decayed_size = self.size

    def blocks(self, tensors: Tensors, size: int) -> tuple[np.dtype[Any], Iterator[tuple[slice, Array]]]:
        """Return the elements of tensors in blocks of `size`, with their places, in the order of the vector.

        A block may span several tensors. All blocks have the dtype that is returned first, and may be views.

        Raises
        ------
        TypeError
            If a tensor is a masked array, or holds no real numbers, such as truth values.
        ValueError
            At once, if names or shapes are not those of the layout; later, if a stored tensor cannot be read,
            or has fewer elements than its shape says, or if a 64-bit integer among other numbers is not a
            binary64 number.
        """
        sources = self._sources(tensors)
        dtype = _dtype(sources)
        return dtype, self._blocks(sources, dtype, size)

    def join(self, tensors: Tensors) -> Array:
        """Return the tensors as one new vector; errors are those of `blocks`."""
        dtype, blocks = self.blocks(tensors, max(1, self.size))
        vector = np.empty(self.size, dtype)
        for part, x in blocks:
            vector[part] = x
        return vector

    def split(self, vector: Array) -> dict[str, Array]:
        """Return the tensors as views of a vector, by name."""
        return {name: vector[self.slices[name]].reshape(shape) for name, shape in self.shapes.items()}

    def _sources(self, tensors: Tensors) -> dict[str, Array | StoredTensor]:
        """Return the checked tensors, by name: arrays and stored tensors."""
        if not isinstance(tensors, Mapping):
            raise TypeError(f"tensors must be a mapping of names to arrays, not {type(tensors).__name__}")
        if tensors.keys() != self.shapes.keys():
            raise ValueError(f"expected the tensors {sorted(self.shapes)}, not {sorted(tensors)}")
        for name, shape in self.shapes.items():
            if (given := tuple(np.shape(tensors[name]))) != shape:
                raise ValueError(f"tensor {name!r} must have shape {shape}, not {given}")
        return {
            name: as_array(tensor, f"tensor {name!r}") if lacks(tensor, StoredTensor) else tensor
            for name, tensor in tensors.items()
        }

    def _blocks(
        self, sources: dict[str, Array | StoredTensor], dtype: np.dtype[Any], size: int
    ) -> Iterator[tuple[slice, Array]]:
        pieces: list[Array] = []
        begin = 0
        for name, part in self.slices.items():
            end = part.start
            while end < part.stop:
                first, end = end - part.start, min(begin + size, part.stop)
                pieces.append(_stretch(name, sources[name], first, end - part.start, dtype))
                if end in (begin + size, self.size):
                    yield slice(begin, end), pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                    pieces, begin = [], end


def _dtype(sources: dict[str, Array | StoredTensor]) -> np.dtype[Any]:
    """Return a dtype that holds the numbers of all tensors."""
    dtypes = dict[np.dtype[Any], None]()
    for name, source in sources.items():
        dtype = _stretch(name, source, 0, 0).dtype
        if dtype.kind != "O" and not is_real(dtype):  # exact numbers are objects
            raise TypeError(f"tensor {name!r} of dtype {dtype} does not hold real numbers of at most 64 bits")
        dtypes[dtype] = None
    if len(dtypes) == 1:
        return next(iter(dtypes))
    # NumPy knows no dtype for some pairs with ml_dtypes; binary32 holds the numbers of all of these.
    return np.result_type(*(np.float32 if x.type.__module__ == "ml_dtypes" else x for x in dtypes))


def _stretch(
    name: str, source: Array | StoredTensor, start: int, stop: int, dtype: np.dtype[Any] | None = None
) -> Array:
    """Return elements of a tensor as a vector, converted to a dtype that holds them; a view if possible."""
    if isinstance(source, np.ndarray):
        part = source.reshape(-1)[start:stop] if source.flags.c_contiguous else source.flat[start:stop]
        return part if dtype is None else _converted(name, part, dtype)
    try:
        elements = np.asarray(source.read(start, stop))
    except Exception as problem:
        what = str(problem) or type(problem).__name__
        raise ValueError(f"tensor {name!r} cannot be read from element {start} on: {what}") from problem
    if elements.shape != (stop - start,):
        raise ValueError(
            f"tensor {name!r} gives an array of shape {elements.shape} for its elements {start} to {stop}"
        )
    if dtype is None:
        return elements
    if not np.can_cast(elements.dtype, dtype):
        raise ValueError(f"tensor {name!r} gives {elements.dtype} from element {start} on, {dtype} before")
    return _converted(name, elements, dtype)


def _converted(name: str, numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers in another dtype, and refuse integers that it does not hold."""
    found = numbers.astype(dtype, copy=False)
    if numbers.dtype.kind in "iu" and found.dtype.kind == "f":
        same = same_integers(numbers, found)
        if not same.all():
            lost = numbers[~same][0]
            raise ValueError(
                f"tensor {name!r} has {lost} beside floats, an integer that {dtype} does not hold"
            )
    return found


# -- each tensor's state ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class StateSlices:
    """The places of a slot's numbers in its vector, in the order of the tensors.

    Attributes
    ----------
    slices : mapping of str to mapping of str to slice
        The places, by tensor and by the name of the part that is kept of it.
    size : int
        Number of numbers in the vector.
    """

    slices: Mapping[str, Mapping[str, slice]]
    size: int

    @classmethod
    def of(cls, hyper: Declaration, slot: str, layout: Layout) -> StateSlices:
        """Return the places of an optimizer's slot for the tensors of a layout."""
        size, found = 0, dict[str, dict[str, slice]]()
        for tensor, shape in layout.shapes.items():
            found[tensor] = {}
            viewed = hyper.viewed(tensor, shape)
            for name, over in hyper.parts(slot, viewed).items():
                count = over.count(viewed)
                found[tensor][name] = slice(size, size + count)
                size += count
        return cls(found, size)

    def tensor(self, name: str) -> slice:
        """Return the place of all parts of a tensor; it is empty if nothing is kept."""
        parts = list(self.slices[name].values()) or [slice(0, 0)]
        return slice(parts[0].start, parts[-1].stop)

    def every(self) -> list[slice]:
        """Return the places of all parts of all tensors; numbers share scales only within a part."""
        return [part for parts in self.slices.values() for part in parts.values()]


#: The type of the names of tensors.
Name = TypeVar("Name")


def parts_of(hyper: Declaration, layout: Layout) -> dict[str, StateSlices]:
    """Return the places of an optimizer's slots, by the slot's name."""
    return {slot.name: StateSlices.of(hyper, slot.name, layout) for slot in hyper.slots}


def offsets(shapes: Mapping[Name, tuple[int, ...]]) -> dict[Name, dict[Granularity, int]]:
    """Return for each tensor and granularity how many numbers the tensors before it have."""
    found, before = {}, dict.fromkeys(Granularity, 0)
    for tensor, shape in shapes.items():
        found[tensor] = dict(before)
        for over in Granularity:
            before[over] += over.count(shape)
    return found


def bytes_per_parameter(hyper: Declaration, strategy: Strategy, layout: Layout) -> float | None:
    """Return the bytes that an optimizer stores per parameter of a layout; None for exact numbers.

    For an empty layout they are the bytes per parameter of vectors.
    """
    slots, size = parts_of(hyper, layout), layout.size
    return strategy.stored_bytes({slot: Fraction(x.size, size) if size else 1 for slot, x in slots.items()})


# -- stripes ----------------------------------------------------------------------------------------------
#: Number of elements in a stripe: large enough that each thread reads files and memory in order for long,
#: and small enough that all threads end at about the same time.
_STRIPE = 1 << 22


def in_stripes(
    work: Callable[[slice], object],
    part: slice,
    block: int,
    threads: int,
    edges: GroupBoundaries | None = None,
) -> None:
    """Call a function on each block of a range: in order on one thread, else in order within each stripe.

    Parameters
    ----------
    work : callable
        Takes a block; calls for different blocks must not interfere.
    part : slice
        The range, from a start to a stop.
    block, threads : int
        Number of elements in a block, and number of threads.
    edges : GroupBoundaries, optional
        The edges at which the blocks, and the range itself, must begin and end.
    """

    def along(stripe: slice) -> None:
        check_processor()  # a setting of each thread
        for one in blocks(stripe, block, edges):
            work(one)

    size = part.stop - part.start
    if threads == 1 or size <= block:
        along(part)
        return
    share = -(-size // threads)
    stripe = -(-min(share, _STRIPE) // block) * block
    pool = ThreadPoolExecutor(threads)
    try:
        list(pool.map(along, blocks(part, stripe, edges)))
    finally:
        pool.shutdown(cancel_futures=True)


def blocks(part: slice, size: int, edges: GroupBoundaries | None = None) -> Iterator[slice]:
    """Yield a range in blocks of `size` elements; the last one may be shorter.

    With edges, a block ends at the last edge within `size` elements, and has at least one whole group.
    """
    if edges is not None:
        size = max(size, edges.group)
    start = part.start
    while start < part.stop:
        stop = min(start + size, part.stop)
        stop = stop if edges is None else edges.last(stop)
        yield slice(start, stop)
        start = stop
