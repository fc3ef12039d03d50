"""Tensors trained with Adafactor, in scalar operations of the judge, from the documented formulas."""

import math
from fractions import Fraction
from itertools import chain, product

import numpy as np

from mcfsim.optim.strategies import Addition
from mcfsim.oracle import round_fraction
from mcfsim.rounding import get_rounding

from .reference import FLOAT64, ODD, Drawn, added, averaged, into, quantised, roles_of, second_moment

#: Indices of random words for each part of a step, and what there are numbers for.
AREA, OVER = 1 << 40, ("element", "row", "column", "matrix", "tensor")


class Judge:
    """All tensors of an optimizer; of those without elements nothing is stored."""

    def __init__(self, hyper, strategy, start, decayed, rounding="nearest_even"):
        self.tensors, before = {}, dict.fromkeys(OVER, 0)
        for name in sorted(start, key=lambda name: name not in decayed):
            if start[name].size:
                given = hyper, strategy, start[name], dict(before), name in decayed, get_rounding(rounding)
                self.tensors[name] = tensor = Tensor(*given)
                for over, count in zip(OVER, tensor.counts, strict=True):
                    before[over] += count

    def step(self, gradients, rate):
        """Make one step and return the updates."""
        return [u for name, x in self.tensors.items() for u in x.step(gradients[name], rate)]

    def vectors(self):
        """Return the state: for each field its vectors, as an optimizer has them."""
        states = [x.numbers() for x in self.tensors.values()]
        joined = {label: chain(*(state[label] for state in states)) for label in states[0]}
        return {label: list(zip(*numbers, strict=True)) for label, numbers in joined.items()}


class Tensor:
    """A stack of matrices, or a vector; `before` says how many there are before it of what `OVER` names."""

    def __init__(self, hyper, strategy, start, before, decayed, rounding):
        shape, theta = start.shape, start.reshape(-1).tolist()
        self.hyper, self.strategy, self.before, self.rounding = hyper, strategy, before, rounding
        self.factored, self.count = len(shape) > 1, 0
        self.stack, self.rows, self.columns = (math.prod(shape[:-2]), *(1, 1, *shape)[-2:])
        self.where = list(product(range(self.stack), range(self.rows), range(self.columns)))
        self.counts = len(theta), self.stack * self.rows, self.stack * self.columns, self.stack, 1
        self.decay = hyper.weight_decay if decayed else 0.0
        self.averages = hyper.keeps("m")
        self.parameter = [(x, *(0.0,) * (strategy.parameter.components - 1)) for x in theta]
        master = strategy.addition is Addition.MASTER
        self.extra = [(x if master else 0.0,) * (strategy.extra is not None) for x in theta]
        self.m = [(0.0,) * strategy.m.components for _ in theta]
        lengths = self.counts[1:3] if self.factored else (len(theta),)
        self.v = [[(0.0,) * strategy.v.components for _ in range(length)] for length in lengths]

    def roles(self, place, over, index):
        """Return the arithmetics for one number of a part of the step."""
        area = (place * len(OVER) + OVER.index(over)) * AREA
        return roles_of(self.strategy, self.count, area + self.before[over] + index, self.rounding)

    def step(self, gradient, rate):
        """Make one step and return the update D."""
        self.count += 1
        gradient = np.ravel(gradient).tolist()
        hyper, count = self.hyper, self.count
        self.gain = count**-hyper.beta2_power
        everything = range(len(self.where))
        g, square = [0.0] * len(everything), [0.0] * len(everything)
        for i in everything:
            m, v, *_ = self.roles(0, "element", i)
            g[i] = m.round(gradient[i])
            taken = into(v, g[i], m)
            square[i] = v.add(v.mul(taken, taken), hyper.epsilon)
        variance, place = self._variances(square)
        u, uu, ww = ([0.0] * len(everything) for _ in range(3))
        for i in everything:
            m, v, up, *_ = self.roles(place, "element", i)
            root = up.sqrt(into(up, variance[i], v))
            u[i] = up.div(g[i], root)  # of the format of m
            theta = up.round(self._meant(i))
            uu[i], ww[i] = up.mul(u[i], u[i]), up.mul(theta, theta)
        mean_u = self._mean(place + 1, "tensor", 0, uu, 2)
        mean_w = self._mean(place + 2, "tensor", 0, ww, 2)
        up = self.roles(place + 3, "tensor", 0)[2]
        length = up.div(up.sqrt(mean_u), hyper.threshold)
        clip = length if not length <= 1 else 1.0
        scale = up.sqrt(mean_w)
        scale = scale if not scale <= hyper.least_scale else up.round(hyper.least_scale)
        size = up.mul(scale, -min(rate, count**-0.5))
        updates = [self._move(place + 4, i, u[i], clip, size) for i in everything]
        self._requantize()
        return updates

    def _variances(self, square):
        """Move the second moments; return each element's, and which part of the step comes next."""
        if not self.factored:
            for i in range(len(square)):
                self._average(self.roles(1, "element", i)[1], 0, i, square[i])
            return [v[0] for v in self.v[0]], 2
        rows = [(s, r) for s in range(self.stack) for r in range(self.rows)]
        columns = [(s, c) for s in range(self.stack) for c in range(self.columns)]
        by = dict(zip(self.where, square, strict=True))
        for i, (s, r) in enumerate(rows):
            mean = self._mean(1, "row", i, [by[s, r, c] for c in range(self.columns)])
            self._average(self.roles(3, "row", i)[1], 0, i, mean)
        for i, (s, c) in enumerate(columns):
            mean = self._mean(2, "column", i, [by[s, r, c] for r in range(self.rows)])
            self._average(self.roles(4, "column", i)[1], 1, i, mean)
        row = {key: v[0] for key, v in zip(rows, self.v[0], strict=True)}
        column = {key: v[0] for key, v in zip(columns, self.v[1], strict=True)}
        share = {}
        for s in range(self.stack):
            mean = self._mean(5, "matrix", s, [row[s, r] for r in range(self.rows)])
            for r in range(self.rows):
                share[s, r] = self.roles(6, "row", s * self.rows + r)[1].div(row[s, r], mean)
        pairs = [(share[s, r], column[s, c]) for s, r, c in self.where]
        return [self.roles(7, "element", i)[1].mul(*pair) for i, pair in enumerate(pairs)], 8

    def _average(self, ar, part, i, new):
        given = self.v[part][i], 1.0 - self.gain, new, self.gain
        self.v[part][i] = second_moment(self.strategy, ar, *given)

    def _mean(self, place, over, index, numbers, role=1):
        ar, by = self.roles(place, over, index)[role], self.hyper.accumulator
        if not all(map(math.isfinite, numbers)):
            return ar.round(sum(numbers) / len(numbers))
        total = sum(map(Fraction, numbers))
        if by is not None:
            for start in range(0, len(numbers), by.block):
                part = sum(map(Fraction, numbers[start : start + by.block]))
                total = Fraction(round_fraction(part + (total if start else 0), by.format, by.rounding))
        if isinstance(ar, Drawn):
            return ar.round(round_fraction(total / len(numbers), FLOAT64, ODD))
        return ar.round(total / len(numbers))

    def _meant(self, i):
        return self.extra[i][0] if self.strategy.addition is Addition.MASTER else self.parameter[i][0]

    def _move(self, place, i, u, clip, size):
        roles = self.roles(place, "element", i)
        m, _, up, *_ = roles
        clipped = up.div(u, clip)
        if self.averages:
            beta1, new = self.hyper.beta1, up.mul(clipped, size)
            self.m[i] = averaged(m, self.m[i], beta1, new, 1.0 - beta1)
            update = self.m[i][0]
            if self.decay:
                update = up.add(update, up.mul(up.mul(up.round(self._meant(i)), self.decay), size))
        else:
            if self.decay:
                clipped = up.add(clipped, up.mul(up.round(self._meant(i)), self.decay))
            update = up.mul(clipped, size)
        before = self.parameter[i], self.extra[i]
        self.parameter[i], self.extra[i] = added(self.strategy, roles, *before, update)
        return update

    def _requantize(self):
        """Keep moments in the strategy's way."""
        if how := self.strategy.v.scaled:
            self.v = [[(x,) for x in quantised([v[0] for v in part], how)] for part in self.v]
        if how := self.strategy.m.scaled:
            self.m = [(x,) for x in quantised([m[0] for m in self.m], how)]

    def numbers(self):
        """Return the components of each number by the names of `mcfsim.optim.state.State`."""
        m, v = self.m if self.averages else [], [x for part in self.v for x in part]
        return {"parameter": self.parameter, "m": m, "v": v, "extra": self.extra}
