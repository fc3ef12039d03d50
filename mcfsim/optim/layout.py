"""Named tensors as one vector: the decayed ones first, each a contiguous slice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Layout:
    """Where each tensor lies in the vector of all parameters.

    Parameters
    ----------
    parameters : mapping of str to array
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

    def __init__(self, parameters: Mapping[str, NDArray[Any]], decayed: Collection[str] = ()) -> None:
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
        self.shapes = {
            name: np.shape(parameters[name]) for name in sorted(parameters, key=lambda n: n not in decayed)
        }
        self.slices: dict[str, slice] = {}
        self.size = self.decayed_size = 0
        for name, shape in self.shapes.items():
            start = self.size
            self.size += int(np.prod(shape, dtype=np.int64))
            self.slices[name] = slice(start, self.size)
            if name in decayed:
                self.decayed_size = self.size

    def join(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the tensors as one new vector.

        Raises
        ------
        ValueError
            If names or shapes are not those of the layout.
        """
        if tensors.keys() != self.shapes.keys():
            raise ValueError(f"expected the tensors {sorted(self.shapes)}, not {sorted(tensors)}")
        for name, shape in self.shapes.items():
            if np.shape(tensors[name]) != shape:
                raise ValueError(f"tensor {name!r} must have shape {shape}, not {np.shape(tensors[name])}")
        return np.concatenate([np.ravel(tensors[name]) for name in self.shapes])

    def split(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the tensors as views of the vector."""
        return {name: vector[self.slices[name]].reshape(shape) for name, shape in self.shapes.items()}
