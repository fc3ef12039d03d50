"""Matrices trained with Muon, in scalar operations of the judge and sums of fractions, by its formulas."""

import math
from fractions import Fraction
from itertools import product

import numpy as np

from mcfsim import AdamW
from mcfsim.optim.strategies import Addition
from mcfsim.oracle import round_fraction
from mcfsim.rounding import get_rounding

from .reference import Element, Single, added, averaged, into, quantised, requantize, roles_of

AREA, KINDS = 1 << 40, 5


def root(x, fmt):
    """Return the square root of a fraction, rounded once to nearest even."""
    bits = 2 * fmt.precision + 20
    shift = max(0, bits - (x.numerator.bit_length() - x.denominator.bit_length()) // 2)
    scaled = x * 4**shift
    floor = math.isqrt(scaled.numerator // scaled.denominator)
    sticky = floor * floor != scaled
    return round_fraction(Fraction(2 * floor + sticky, 2 ** (shift + 1)), fmt)


class Iteration:
    """A Newton-Schulz iteration on lists of lists of numbers; an element is a tuple of components."""

    def __init__(self, how):
        self.how = how
        self.low, self.wide = Single(how.iterate), Single(how.accumulator.format)

    def __call__(self, x):
        tall = len(x) > len(x[0])
        found = self._iterated(_turned(x) if tall else x)
        return _turned(found) if tall else found

    def _iterated(self, x):
        how = self.how
        base = self.low if how.components == 1 else self.wide
        x = [[base.round(e) for e in row] for row in x]
        norm = root(sum(Fraction(e) ** 2 for row in x for e in row), base.format)
        if how.margin != 1:
            norm = base.mul(norm, how.margin)
        norm = base.add(norm, how.epsilon) if how.added else max(norm, base.round(how.epsilon))
        x = [[self._stored(base.div(e, norm)) for e in row] for row in x]
        for coefficients in how.iterations:
            x = (self._fused_step if how.fused else self._step)(x, *coefficients)
        return self._each(self._whole, x)

    def _fused_step(self, x, a, b, c):
        square = self._each(self._stored, self._product(x, _turned(x)))
        scaled = self._each(lambda e: self.wide.mul(e, c), self._product(square, square))
        return self._fused(x, a, self._product(self._fused(square, b, scaled), x))

    def _step(self, x, a, b, c):
        low = self.low
        square = self._each(self._stored, self._product(x, _turned(x)))
        scaled = self._each(lambda e: (low.mul(e[0], c),), square)
        scaled = self._each(self._stored, self._product(scaled, square))
        mixed = _paired(lambda s, t: (low.add(low.mul(s[0], b), t[0]),), square, scaled)
        moved = self._each(self._stored, self._product(mixed, x))
        return _paired(lambda s, t: (low.add(low.mul(s[0], a), t[0]),), x, moved)

    def _fused(self, x, factor, y):
        return _paired(lambda s, t: self._stored(self.wide.fma(self._whole(s), factor, t)), x, y)

    def _product(self, x, y):
        n = self.how.components
        columns = _turned(y)
        return [[self._sum(row, column, n) for column in columns] for row in x]

    def _sum(self, row, column, n):
        by = self.how.accumulator
        pairs = [(i, j) for i in range(n) for j in range(n) if i + j < n]
        terms = [(s[i], t[j]) for i, j in pairs for s, t in zip(row, column, strict=True)]
        size, total = by.block or len(terms), None
        for start in range(0, len(terms), size):
            part = terms[start : start + size] + ([] if total is None else [(total, 1.0)])
            exact = sum(Fraction(s) * Fraction(t) for s, t in part)
            # A sum of nothing but negative zeros is one.
            zero = -0.0 if all(math.copysign(1.0, s) != math.copysign(1.0, t) for s, t in part) else 0.0
            total = round_fraction(exact, by.format, by.rounding) if exact else zero
        return float(total)

    def _stored(self, x):
        found = [self.low.round(x)]
        for _ in range(1, self.how.components):
            x = self.wide.sub(x, found[-1])
            found.append(self.low.round(x))
        return tuple(found)

    def _whole(self, x):
        total = self.wide.round(x[0])
        for part in x[1:]:
            total = self.wide.add(total, part)
        return total

    @staticmethod
    def _each(function, x):
        return [[function(e) for e in row] for row in x]


def _turned(x):
    return [list(column) for column in zip(*x, strict=True)]


def _paired(function, x, y):
    return [[function(s, t) for s, t in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


FACTORS = {
    "none": lambda r, c: 1.0,
    "original": lambda r, c: max(1.0, r / c) ** 0.5,
    "match_rms_adamw": lambda r, c: 0.2 * max(r, c) ** 0.5,
    "spectral": lambda r, c: (r / c) ** 0.5,
}


class Matrices:
    """A tensor of matrices with its state."""

    def __init__(self, hyper, strategy, start, before, decayed, rounding):
        self.hyper, self.strategy, self.before, self.rounding = hyper, strategy, before, rounding
        self.stack, self.rows, self.columns = math.prod(start.shape[:-2]), *start.shape[-2:]
        self.where = list(product(range(self.stack), range(self.rows), range(self.columns)))
        self.decay, self.count = hyper.weight_decay if decayed else 0.0, 0
        theta, master = start.reshape(-1).tolist(), strategy.addition is Addition.MASTER
        self.parameter = [(x, *(0.0,) * (strategy.parameter.components - 1)) for x in theta]
        self.extra = [(x if master else 0.0,) * (strategy.extra is not None) for x in theta]
        self.m, self.v = [(0.0,) * strategy.m.components for _ in theta], []

    def step(self, gradient, rate):
        self.count += 1
        gradient, hyper, mu = np.ravel(gradient).tolist(), self.hyper, self.hyper.momentum
        gain = 1.0 - mu if hyper.averaged else 1.0
        direction = {}
        for i, place in enumerate(self.where):
            m, _, up, *_ = self._roles(0, i)
            g = m.round(gradient[i])
            self.m[i] = averaged(m, self.m[i], mu, g, gain)
            direction[place] = into(up, self.m[i][0], m)
            if hyper.nesterov:
                near = up.mul(into(up, g, m), gain)
                direction[place] = up.fma(direction[place], mu, near)
        made = [
            Iteration(hyper.iteration)([[direction[s, r, c] for c in cs] for r in rs])
            for s in range(self.stack)
            for rs, cs in [(range(self.rows), range(self.columns))]
        ]
        factor = [self._roles(1, i)[2].round(made[s][r][c]) for i, (s, r, c) in enumerate(self.where)]
        length = rate * FACTORS[hyper.scale](self.rows, self.columns)
        updates = [self._move(i, factor[i], length, rate * self.decay) for i in range(len(self.where))]
        if how := self.strategy.m.scaled:
            self.m = [(x,) for x in quantised([m[0] for m in self.m], how)]
        return updates

    def _roles(self, place, index):
        return roles_of(self.strategy, self.count, place * KINDS * AREA + self.before + index, self.rounding)

    def _move(self, i, factor, length, shrinkage):
        roles = self._roles(2, i)
        up, master = roles.update, self.strategy.addition is Addition.MASTER
        update = up.mul(factor, -length)
        if shrinkage:
            theta = up.round(self.extra[i][0] if master else self.parameter[i][0])
            update = up.fma(factor, -length, up.mul(theta, -shrinkage))
        before = self.parameter[i], self.extra[i]
        self.parameter[i], self.extra[i] = added(self.strategy, roles, *before, update)
        return update


class Others:
    """A tensor that AdamW moves, by its elements."""

    def __init__(self, hyper, strategy, start, before, decayed, rounding):
        beside = AdamW(hyper.beta1, hyper.beta2, hyper.epsilon, hyper.weight_decay)
        self.share = hyper.share
        self.elements = [
            Element(beside, strategy, x, before + i, decayed=decayed, rounding=rounding)
            for i, x in enumerate(start.reshape(-1).tolist())
        ]

    def step(self, gradient, rate):
        pairs = zip(self.elements, np.ravel(gradient).tolist(), strict=True)
        updates = [element.step(g, rate * self.share) for element, g in pairs]
        for slot in "mv":
            requantize(self.elements, slot, self.elements[0].strategy.tensors[slot])
        return updates

    def __getattr__(self, label):
        extra = (0.0,) * (self.elements[0].strategy.extra is not None)
        found = [getattr(element, label) for element in self.elements]
        return [x or extra for x in found] if label == "extra" else found


class Judge:
    """All tensors of an optimizer."""

    def __init__(self, hyper, strategy, start, decayed, rounding="nearest_even", others=()):
        self.tensors, before = {}, 0
        for name in sorted(start, key=lambda name: name not in decayed):
            matrix = start[name].ndim > 1 and name not in others
            given = hyper, strategy, start[name], before, name in decayed, get_rounding(rounding)
            if start[name].size:
                self.tensors[name] = (Matrices if matrix else Others)(*given)
            before += start[name].size

    def step(self, gradients, rate):
        """Make one step and return the updates."""
        return [u for name, x in self.tensors.items() for u in x.step(gradients[name], rate)]

    def vectors(self):
        """Return the state: for each field its vectors, as an optimizer has them."""
        found = {}
        for label in ("parameter", "m", "v", "extra"):
            numbers = [x for tensor in self.tensors.values() for x in getattr(tensor, label)]
            found[label] = list(zip(*numbers, strict=True))
        return found
