"""One element trained with AdamW or SGD, in scalar operations of the judge, from the documented formulas."""

from dataclasses import dataclass
from fractions import Fraction

from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import operate, round_float, round_fraction
from mcfsim.rounding import Rounding

FLOAT32 = FORMATS["float32"]


@dataclass(frozen=True)
class Scalar:
    """Operations on Python floats, each rounded once into one format."""

    fmt: Format
    rounding: Rounding
    scalars: str

    def add(self, a, b):
        return operate("add", [a, b], self.fmt, self.rounding)

    def sub(self, a, b):
        return operate("sub", [a, b], self.fmt, self.rounding)

    def mul(self, a, b):
        return operate("mul", [a, b], self.fmt, self.rounding)

    def div(self, a, b):
        return operate("div", [a, b], self.fmt, self.rounding)

    def sqrt(self, a):
        return operate("sqrt", [a], self.fmt, self.rounding)

    def fma(self, a, b, c):
        return operate("fma", [a, b, c], self.fmt, self.rounding)

    def round(self, a):
        return round_float(a, self.fmt, self.rounding)

    def real(self, x):
        """Let a hyperparameter in by the scalar policy."""
        return x if self.scalars == "exact" else self.round(x)

    def sum_and_error(self, a, b):
        """Return the rounded sum and its error by definition; nearest modes only."""
        s = self.add(a, b)
        error = Fraction(a) + Fraction(b) - Fraction(s)
        assert round_fraction(error, self.fmt) == error
        return s, float(error)

    def grow(self, x, a):
        """Yu et al., ICML 2024: Grow, with an exact sum in the first step."""
        s, e = self.sum_and_error(x[0], a)
        return self.sum_and_error(s, self.add(x[1], e))

    def multiply(self, x, y):
        """Joldes, Muller, Popescu 2017, Algorithm 11, operands exchanged: Collage's Mul."""
        p = self.mul(x[0], y[0])
        e = self.fma(x[0], y[0], -p)
        cross = self.fma(x[0], y[1], self.mul(x[1], y[0]))
        return self.sum_and_error(p, self.add(e, cross))


class Element:
    """One parameter with its optimizer state, under one of the named strategies of low precision."""

    def __init__(self, strategy, low, theta, scalars="exact", rounding=None):
        rounding = rounding or Rounding()
        self.strategy = strategy
        self.low = Scalar(low, rounding, scalars)
        self.wide = Scalar(FLOAT32, rounding, scalars)
        self.moments = self.wide if strategy.startswith("fp32-") else self.low
        self.theta = theta
        self.m = self.v = 0.0
        self.rest = 0.0  # the second component, Kahan's compensation or the master copy
        self.dv = 0.0
        if strategy == "fp32-master":
            self.rest = theta
        self.count = 0

    def adamw(self, gradient, rate, beta1, beta2, epsilon, decay):
        """Make one step and return the update D."""
        ar = self.moments
        self.count += 1
        g = ar.round(gradient)
        square = ar.mul(g, g)
        gain1, gain2 = ar.real(1.0 - beta1), ar.real(1.0 - beta2)
        self.m = ar.fma(g, gain1, ar.mul(self.m, ar.real(beta1)))
        if self.strategy == "collage-plus":
            b = round_fraction(Fraction(beta2), ar.fmt)
            db = round_fraction(Fraction(beta2) - Fraction(b), ar.fmt)
            decayed = ar.multiply((b, db), (self.v, self.dv))
            self.v, self.dv = ar.grow(decayed, ar.mul(square, gain2))
        else:
            self.v = ar.fma(square, gain2, ar.mul(self.v, ar.real(beta2)))
        mhat = ar.div(self.m, ar.real(1.0 - beta1**self.count))
        vhat = ar.div(self.v, ar.real(1.0 - beta2**self.count))
        direction = ar.div(mhat, ar.add(ar.sqrt(vhat), ar.real(epsilon)))
        return self._update(direction, rate, decay)

    def sgd(self, gradient, rate, momentum, decay):
        """Make one step and return the update D."""
        ar = self.moments
        self.m = ar.add(ar.mul(self.m, ar.real(momentum)), ar.round(gradient))
        return self._update(self.m, rate, decay)

    def _update(self, direction, rate, decay):
        ar = self.moments
        if decay:
            theta = ar.round(self.rest if self.strategy == "fp32-master" else self.theta)
            direction = ar.add(direction, ar.mul(theta, ar.real(decay)))
        update = ar.mul(direction, -ar.real(rate))
        self._move(update)
        return update

    def _move(self, update):
        low, step = self.low, self.low.round(update)
        if self.strategy in ("plain", "fp32-optim"):
            self.theta = low.add(self.theta, step)
        elif self.strategy == "kahan":
            y = low.add(step, self.rest)
            moved = low.add(self.theta, y)
            self.rest = low.sub(y, low.sub(moved, self.theta))
            self.theta = moved
        elif self.strategy == "fp32-master":
            self.rest = self.wide.add(self.rest, update)
            self.theta = low.round(self.rest)
        else:
            self.theta, self.rest = low.grow((self.theta, self.rest), step)

    def state(self):
        """Return the components of each tensor by the names of `mcfsim.optim.state.State`."""
        expansion = self.strategy.startswith("collage")
        return {
            "parameter": (self.theta, self.rest) if expansion else (self.theta,),
            "m": (self.m,),
            "v": (self.v, self.dv) if self.strategy == "collage-plus" else (self.v,),
            "extra": (self.rest,) if self.strategy in ("kahan", "fp32-master") else (),
        }
