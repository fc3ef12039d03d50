"""Tensors that are read a stretch at a time, for tests of what takes such; all that an optimizer holds."""

import numpy as np

from mcfsim.optim.groups import Groups


class Stretches:
    """An array as a stored tensor; from `end` on it has no more elements, or it raises `problem` there."""

    def __init__(self, array, end=None, problem=None):
        self.shape, self.size = np.shape(array), np.size(array)
        self._elements, self._problem = np.ravel(array)[:end], problem

    def read(self, start, stop):
        if self._problem is not None and stop > self._elements.size:
            raise self._problem
        return self._elements[start:stop].copy()


class Made:
    """Numbers that are made when they are read, in binary32: a stored tensor of any size, of no memory."""

    def __init__(self, shape, seed):
        self.shape, self.size, self.seed = shape, int(np.prod(shape)), seed

    def read(self, start, stop):
        places = np.arange(start, stop, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(self.seed)
        return (places.astype(np.int32) * np.float32(2.0**-31)).astype(np.float32)


def bits(optimizer):
    """Return the count and all that an optimizer holds, as bytes; one NaN stands for all."""
    held = [x for items in optimizer.state for x in items]
    parts = [(x.codes, x.scales) if isinstance(x, Groups) else (getattr(x, "rest", x),) for x in held]
    vectors = [np.array(part) for items in parts for part in items]
    for x in vectors:
        if x.dtype.kind == "f":
            x[np.isnan(x)] = np.nan
    return optimizer.count, [x.tobytes() for x in vectors]
