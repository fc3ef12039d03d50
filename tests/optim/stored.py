"""Tensors that are read a stretch at a time, and other tensors; optimizers, and all that they hold."""

import numpy as np

import mcfsim as mcf
from mcfsim.formats import Format
from mcfsim.optim.groups import Groups
from mcfsim.optim.vectors import read
from mcfsim.scaled import ScaledFormat

#: A format of float32's exponents, of which more than half of the bits follow.
SHORT = Format("short", precision=5, emin=-126, emax=127)
E4M3 = mcf.get_format("float8_e4m3fn")


def scaled(element, block, scale="float32", rule="absmax"):
    return ScaledFormat(f"{element}", element=element, block=block, scale=scale, rule=rule)


def made(start, strategy="plain", low="bfloat16", *, hyper=None, decayed=(), **options):
    """Return an optimizer of a start, or of so many ones."""
    start = {"w": np.ones(start)} if isinstance(start, int) else start
    return mcf.Optimizer(hyper or mcf.AdamW(), mcf.strategy(strategy, low), start, decayed, **options)


def numbers(seed, shapes, low="bfloat16", least=-9, most=3):
    """Return tensors of a low format, of several magnitudes, and zeros among those that may be small."""
    random, found = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        x = random.standard_normal(shape) * 2.0 ** random.integers(least, most, shape)
        x = np.where(random.random(shape) < 0.1 * (least < 0), 0.0, x)
        found[name] = mcf.round_to(np.asarray(x, np.float32), low).reshape(shape)
    return found


class Stretches:
    """An array as a stored tensor; from `end` on it has no more elements, or it raises `problem` there."""

    def __init__(self, array, end=None, problem=None):
        self.shape, self.size = np.shape(array), np.size(array)
        self._elements, self._problem = np.ravel(array)[:end], problem

    def read(self, start, stop):
        if self._problem is not None and stop > self._elements.size:
            raise self._problem
        return self._elements[start:stop].copy()


class Changing(Stretches):
    """A stored tensor that changes its dtype."""

    def read(self, start, stop):
        return super().read(start, stop).astype(np.float64 if start else np.float32)


class Made:
    """Numbers that are made when they are read, in binary32: a stored tensor of any size, of no memory."""

    def __init__(self, shape, seed):
        self.shape, self.size, self.seed = shape, int(np.prod(shape)), seed

    def read(self, start, stop):
        places = np.arange(start, stop, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(self.seed)
        return (places.astype(np.int32) * np.float32(2.0**-31)).astype(np.float32)


def some_tensors():
    shapes = {"bias": (3,), "matrix": (2, 3), "scalar": (), "empty": (0, 4), "cube": (2, 2, 2)}
    counter = iter(range(100))
    return {
        name: np.array([next(counter) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)
        for name, shape in shapes.items()
    }


def held(optimizer):
    """Return the numbers of all vectors of an optimizer's state."""
    pairs = zip(optimizer.state, optimizer.formats, strict=True)
    return [read(x, fmt) for items, fmt in pairs for x in items]


def bits(optimizer):
    """Return the count and all that an optimizer holds, as bytes; one NaN stands for all."""
    kept = [x for items in optimizer.state for x in items]
    parts = [(x.codes, x.scales) if isinstance(x, Groups) else (getattr(x, "rest", x),) for x in kept]
    vectors = [np.array(part) for items in parts for part in items]
    for x in vectors:
        if x.dtype.kind == "f":
            x[np.isnan(x)] = np.nan
    return optimizer.count, [x.tobytes() for x in vectors]
