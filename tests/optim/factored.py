"""One tensor trained with Adafactor, in scalar operations of the judge, from the documented formulas."""

import math
from fractions import Fraction
from functools import lru_cache
from itertools import product

from mcfsim.formats import FORMATS
from mcfsim.multiword import expansion
from mcfsim.optim.strategies import Addition
from mcfsim.oracle import OracleArithmetic, round_fraction
from mcfsim.rounding import Mode, Rounding

from .reference import Drawn, Scalar, left_of, quantised, roles_of

ODD = Rounding(Mode.TO_ODD)
#: Indices of random words for each part of a step, and what there are numbers for.
AREA, OVER = 1 << 40, ("element", "row", "column", "matrix", "tensor")
settled = lru_cache(roles_of)


class Tensor:
    """A stack of matrices, or a vector, with its optimizer state.

    `before` says how many elements, rows, columns, matrices and tensors there are in tensors before it.
    """

    def __init__(self, hyper, strategy, shape, theta, before, *, decayed, rounding=None):
        self.hyper, self.strategy, self.before = hyper, strategy, dict(zip(OVER, before, strict=True))
        self.rounding = rounding or Rounding()
        self.factored = len(shape) > 1
        self.stack, self.rows, self.columns = (math.prod(shape[:-2]), *(1, 1, *shape)[-2:])
        self.where = list(product(range(self.stack), range(self.rows), range(self.columns)))
        self.decay = hyper.weight_decay if decayed else 0.0
        self.theta, rest = list(theta), (0.0,) * (strategy.parameter.components - 1)
        #: The master copy, Kahan's compensation, or the other components.
        self.extra = list(theta) if strategy.addition is Addition.MASTER else [rest or 0.0] * len(self.where)
        self.m = [(0.0,) * strategy.m.components] * len(self.where)
        lengths = (self.stack * self.rows, self.stack * self.columns) if self.factored else (len(self.where),)
        self.v = [[(0.0,) * strategy.v.components for _ in range(length)] for length in lengths]

    def roles(self, place, over, index):
        """Return the arithmetics of m, v, update, addition and model for one number of a part of the step."""
        if not self.strategy.draws:
            return settled(self.strategy, 0, 0, self.rounding)
        area = (place * len(OVER) + OVER.index(over)) * AREA
        return roles_of(self.strategy, self.count, area + self.before[over] + index, self.rounding)

    def step(self, gradient, count, rate):
        """Make one step and return the update D."""
        self.count, hyper = count, self.hyper
        self.gain = count**-hyper.beta2_power
        everything = range(len(self.where))
        g, square = [0.0] * len(everything), [0.0] * len(everything)
        for i in everything:
            m, v, *_ = self.roles(0, "element", i)
            g[i] = m.round(gradient[i])
            taken = g[i] if v.format == m.format else v.round(g[i])
            square[i] = v.add(v.mul(taken, taken), hyper.epsilon)
        variance, place = self._variances(square)
        u, uu, ww = ([0.0] * len(everything) for _ in range(3))
        for i in everything:
            m, v, up, *_ = self.roles(place, "element", i)
            root = up.sqrt(variance[i] if up.format == v.format else up.round(variance[i]))
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
        return [self._move(place + 4, i, u[i], clip, size) for i in everything]

    def _variances(self, square):
        """Move the second moments; return each element's, and which part of the step comes next."""
        if not self.factored:
            for i in range(len(square)):
                self._average(self.roles(1, "element", i)[1], self.v[0], i, square[i])
            return [v[0] for v in self.v[0]], 2
        rows = [(s, r) for s in range(self.stack) for r in range(self.rows)]
        columns = [(s, c) for s in range(self.stack) for c in range(self.columns)]
        by = dict(zip(self.where, square, strict=True))
        for i, (s, r) in enumerate(rows):
            mean = self._mean(1, "row", i, [by[s, r, c] for c in range(self.columns)])
            self._average(self.roles(3, "row", i)[1], self.v[0], i, mean)
        for i, (s, c) in enumerate(columns):
            mean = self._mean(2, "column", i, [by[s, r, c] for r in range(self.rows)])
            self._average(self.roles(4, "column", i)[1], self.v[1], i, mean)
        row = {key: v[0] for key, v in zip(rows, self.v[0], strict=True)}
        column = {key: v[0] for key, v in zip(columns, self.v[1], strict=True)}
        share = {}
        for s in range(self.stack):
            mean = self._mean(5, "matrix", s, [row[s, r] for r in range(self.rows)])
            for r in range(self.rows):
                share[s, r] = self.roles(6, "row", s * self.rows + r)[1].div(row[s, r], mean)
        return [
            self.roles(7, "element", i)[1].mul(share[s, r], column[s, c])
            for i, (s, r, c) in enumerate(self.where)
        ], 8

    def _average(self, ar, moments, i, new, beta=None, gain=None):
        """Move a moment by a real scalar, or by a beta2 of as many components as the strategy has of it.

        Of two components by `reference.Scalar`; of more by the text for them, each operation the judge's.
        """
        gain = self.gain if gain is None else gain
        if beta is None:
            beta = 1.0 - gain
            if self.strategy.beta2_components > 1:
                beta = self._parts(beta, ar.format, self.strategy.beta2_components)
        if len(moments[i]) == 1:
            moments[i] = (ar.fma(new, gain, ar.mul(moments[i][0], beta)),)
        elif len(moments[i]) == 2 and isinstance(beta, tuple):
            low = Scalar(ar.format, Rounding(), "exact")
            moments[i] = low.grow(low.multiply(beta, moments[i]), low.mul(new, gain))
        else:
            low = OracleArithmetic(ar.format)
            by = expansion.mul if isinstance(beta, tuple) else expansion.scale
            decayed = by(low, *((beta, moments[i]) if isinstance(beta, tuple) else (moments[i], beta)))
            moments[i] = expansion.grow(low, decayed, low.mul(new, gain))

    @staticmethod
    def _parts(x, fmt, count):
        """Return a real number as so many numbers of a format, each what the ones before leave, rounded."""
        left, found = Fraction(x), []
        for _ in range(count):
            found.append(round_fraction(left, fmt))
            left -= Fraction(found[-1])
        return tuple(found)

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
            return ar.round(round_fraction(total / len(numbers), FORMATS["float64"], ODD))
        return ar.round(total / len(numbers))

    def _meant(self, i):
        return self.extra[i] if self.strategy.addition is Addition.MASTER else self.theta[i]

    def _move(self, place, i, u, clip, size):
        m, _, up, ar, model = self.roles(place, "element", i)
        clipped = up.div(u, clip)
        if hasattr(self.hyper, "beta1"):
            beta1, new = self.hyper.beta1, up.mul(clipped, size)
            self._average(m, self.m, i, new, beta1, 1.0 - beta1)
            update = self.m[i][0]
            if self.decay:
                update = up.add(update, up.mul(up.mul(up.round(self._meant(i)), self.decay), size))
        else:
            if self.decay:
                clipped = up.add(clipped, up.mul(up.round(self._meant(i)), self.decay))
            update = up.mul(clipped, size)
        step = ar.round(update)
        match self.strategy.addition:
            case Addition.PLAIN:
                self.theta[i] = ar.add(self.theta[i], step)
            case Addition.MASTER:
                self.extra[i] = ar.add(self.extra[i], step)
                self.theta[i] = model.round(self.extra[i])
                if bits := self.strategy.extra.remainder:
                    kept_bits = 2 ** (bits - 1) - 1
                    self.extra[i] = left_of(self.extra[i], self.theta[i], model.format, kept_bits)
            case Addition.KAHAN:
                y = ar.add(step, self.extra[i])
                moved = ar.add(self.theta[i], y)
                self.extra[i] = ar.sub(y, ar.sub(moved, self.theta[i]))
                self.theta[i] = moved
            case Addition.GROW:
                parts = (self.theta[i], *self.extra[i])
                if len(parts) == 2:
                    parts = Scalar(ar.format, Rounding(), "exact").grow(parts, step)
                else:
                    parts = expansion.grow(OracleArithmetic(ar.format), parts, step)
                self.theta[i], *rest = parts
                self.extra[i] = tuple(rest)
        return update

    def requantize(self):
        """Keep moments in the strategy's way."""
        if how := self.strategy.v.scaled:
            self.v = [[(x,) for x in quantised([v[0] for v in part], how)] for part in self.v]
        if how := self.strategy.m.scaled:
            self.m = [(x,) for x in quantised([m[0] for m in self.m], how)]

    def state(self):
        """Return the components of each tensor by the names of `mcfsim.optim.state.State`."""
        second = [[v[k] for part in self.v for v in part] for k in range(self.strategy.v.components)]
        addition, first = self.strategy.addition, [list(part) for part in zip(*self.m, strict=True)]
        rest = [list(part) for part in zip(*self.extra, strict=True)] if addition is Addition.GROW else []
        return {
            "parameter": [self.theta, *rest],
            "m": first if hasattr(self.hyper, "beta1") else [],
            "v": second,
            "extra": [self.extra] if addition in (Addition.KAHAN, Addition.MASTER) else [],
        }
