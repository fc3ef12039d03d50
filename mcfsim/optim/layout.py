"""Named tensors as one vector: the decayed ones first, each a contiguous slice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import as_array, lacks

Array = NDArray[Any]


class StoredTensor(Protocol):
    """A tensor that is read a stretch at a time, as a weight of `mcfsim.models.weights.open_weights`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""

    @property
    def size(self) -> int:
        """Elements."""

    def read(self, start: int, stop: int) -> Array:
        """Return elements, in row-major order, as a vector of real numbers, all of one dtype."""


#: What a tensor may be given as.
Tensors = Mapping[str, Array | StoredTensor]


class Layout:
    """Where each tensor lies in the vector of all parameters.

    Parameters
    ----------
    parameters : mapping of str to array or StoredTensor
        The tensors, by name.
    decayed : collection of str
        Those that weight decay applies to; they come first.

    Raises
    ------
    TypeError
        If the parameters are no mapping, or the decayed names no collection but a string.
    ValueError
        If there is no tensor, or a decayed name is none of them.

    Attributes
    ----------
    slices : dict of str to slice
        In the order of the vector.
    size : int
        Elements in all.
    decayed_size : int
        Elements of the decayed tensors.
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

    def blocks(self, tensors: Tensors, size: int) -> Iterator[tuple[slice, Array]]:
        """Yield all elements in the order of the vector, so many at a time, and where they lie in it.

        A block goes on across the borders of tensors. All are of one dtype, and may be views.

        Raises
        ------
        TypeError
            If a tensor is a masked array.
        ValueError
            If names or shapes are not those of the layout, which is seen at once; or later if a stored tensor
            cannot be read, or has fewer elements than its shape says.
        """
        sources = self._sources(tensors)
        return self._blocks(sources, _dtype(sources), size)

    def dtype(self, tensors: Tensors) -> np.dtype[Any]:
        """Return the dtype that `blocks` has, and refuse what it refuses at once."""
        return _dtype(self._sources(tensors))

    def join(self, tensors: Tensors) -> Array:
        """Return the tensors as one new vector, see `blocks`."""
        sources = self._sources(tensors)
        dtype = _dtype(sources)
        vector = np.empty(self.size, dtype)
        for name, part in self.slices.items():
            vector[part] = _stretch(name, sources[name], 0, part.stop - part.start, dtype)
        return vector

    def split(self, vector: Array) -> dict[str, Array]:
        """Return the tensors as views of the vector."""
        return {name: vector[self.slices[name]].reshape(shape) for name, shape in self.shapes.items()}

    def _sources(self, tensors: Tensors) -> dict[str, Array | StoredTensor]:
        """Return what tensors are read from: arrays, and stored tensors."""
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
    """Return the dtype that holds the numbers of all tensors."""
    dtypes = dict.fromkeys(_stretch(name, source, 0, 0).dtype for name, source in sources.items())
    return np.result_type(*dtypes)


def _stretch(
    name: str, source: Array | StoredTensor, start: int, stop: int, dtype: np.dtype[Any] | None = None
) -> Array:
    """Return elements of a tensor as a vector, of a dtype that holds them; a view where that is possible."""
    if isinstance(source, np.ndarray):
        part = source.reshape(-1)[start:stop] if source.flags.c_contiguous else source.flat[start:stop]
        return part if dtype is None else part.astype(dtype, copy=False)
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
        raise ValueError(f"tensor {name!r} gives {elements.dtype} from element {start} on, before {dtype}")
    return elements.astype(dtype, copy=False)
