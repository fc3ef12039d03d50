"""One element trained with AdamW or SGD, in scalar operations of the judge, from the documented formulas."""

import math
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.formats import FORMATS, Format
from mcfsim.optim.strategies import Addition, Stored
from mcfsim.oracle import OracleArithmetic, operate, round_float, round_fraction
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import DynamicMap

FLOAT32 = FORMATS["float32"]
REMAINDERS = {"remainder-8": 127, "remainder-16": 32767}
MASTER = ("fp32-master", "split-master", "split-truncated", "fp8-moments", *REMAINDERS)
SATURATED = Rounding(overflow="saturate")
FLOAT32_MOMENTS = ("fp32-optim", "eco", *MASTER)
#: Of parameters that share bits with their master copies.
SHARED = {"split-master": Mode.NEAREST_AWAY, "split-truncated": Mode.TOWARD_ZERO}


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


class Drawn(OracleArithmetic):
    """Operations of one element in one step, each rounded at random by the words of its own stream.

    The judge rounds to odd in 53 bits, which leaves the first bits that are cut off, and whether any follow.
    """

    BITS = 16

    def __init__(self, fmt, words, index):
        super().__init__(fmt)
        self.words, self.index, self.count = words, index, 0

    def _operate(self, name, *operands):
        return self._drawn(operate(name, operands, FORMATS["float64"], Rounding(Mode.TO_ODD)))

    def round(self, x):
        return self._drawn(float(x))

    def _drawn(self, x):
        (word,) = self.words.of(self.count).words(self.index, 1, self.BITS).tolist()
        self.count += 1
        if not math.isfinite(x) or x == 0:
            return x
        number, fmt = abs(Fraction(x)), self.format
        quantum = Fraction(2) ** (max(math.frexp(x)[1] - 1, fmt.emin) - fmt.precision + 1)
        below = number // quantum
        up = math.floor((number / quantum - below) * 2**self.BITS) + word >= 2**self.BITS
        result = (below + up) * quantum
        return math.copysign(float(result) if result <= fmt.max else math.inf, x)

    @staticmethod
    def real(x):
        """Let a hyperparameter in as it is."""
        return x


def roles_of(strategy, step, index, rounding):
    """Return the judge's arithmetics of one element's step: m, v, update, addition, what the model sees."""
    master = strategy.extra if strategy.addition is Addition.MASTER else strategy.parameter
    in_turn = [strategy.m, strategy.parameter, master, strategy.v, Stored(strategy.m.format)]
    kinds = [(item.format, item.rounding) for item in in_turn]
    made = {}
    for number, (fmt, mode) in enumerate(dict.fromkeys(kinds)):
        if mode is Mode.STOCHASTIC:
            made[fmt, mode] = Drawn(fmt, RandomWords(0, step).of(number << 16), index)
        else:
            made[fmt, mode] = OracleArithmetic(fmt, Rounding(mode) if mode else rounding)
    m, model, parameter, v, update = (made[kind] for kind in kinds)
    return m, v, update, parameter, model


def kept(numbers, element, block):
    """Return float32 numbers as blocks of elements with a float32 scale keep them, in fractions.

    The largest of a block becomes the largest element; a block that has a NaN or an infinity becomes NaN.
    """
    found = []
    for start in range(0, len(numbers), block):
        part = list(map(float, numbers[start : start + block]))
        if not all(map(math.isfinite, part)):
            found += [math.nan] * len(part)
            continue
        scale = Fraction(round_fraction(max(map(abs, map(Fraction, part))) / element.max, FLOAT32))
        for x in part:
            rounded = Fraction(round_fraction(Fraction(x) / scale, element, SATURATED)) if scale else 0
            found.append(math.copysign(round_fraction(abs(rounded) * scale, FLOAT32), x))
    return found


def single(x):
    """Return a number rounded into binary32; infinities and NaN are kept."""
    return float(round_fraction(Fraction(x), FLOAT32)) if isinstance(x, Fraction) or math.isfinite(x) else x


def left_of(master, theta, fmt, most):
    """Return a master copy as theta and a remainder from -most to most say it, in fractions."""
    exponent = max(math.frexp(theta)[1] - 1, fmt.emin) if theta else fmt.emin
    half = Fraction(2) ** (exponent - fmt.precision)
    share = Fraction(single((Fraction(master) - Fraction(theta)) / half * most))
    rho = math.copysign(math.floor(min(abs(share), most) + Fraction(1, 2)), share)
    return single(Fraction(theta) + Fraction(single(Fraction(single(Fraction(rho) / most)) * half)))


def quantised(numbers, how):
    """Return what is left of float32 numbers in a scaled format, or by one of the published quantisers."""
    if isinstance(how, ScaledFormat):
        return kept(numbers, how.element, how.block)
    judge = by_table if isinstance(how, DynamicMap) else by_powers
    groups = [numbers[i : i + how.block] for i in range(0, len(numbers), how.block)]
    return [x for group in groups for x in judge([float(x) for x in group], how)]


def by_table(group, how):
    """The nearest of bitsandbytes' numbers, middles of equal parts of decades; of two the upper one."""
    count = [2 ** (i if how.signed else i + 1) for i in range(7)]
    exact = [
        Fraction(10) ** (i - 6) * (Fraction(1, 10) + Fraction(9 * (2 * k + 1), 20 * n))
        for i, n in enumerate(count)
        for k in range(n)
    ]
    exact += [-x for x in exact] * how.signed + [Fraction(0), Fraction(1)]
    table = [float(x) for x in how.table]
    assert len(table) == 256
    assert all(abs(Fraction(x) - y) <= abs(y) / 2**21 for x, y in zip(table, sorted(exact), strict=True))
    scale = max(single(Fraction(1e-12)), *map(abs, group))
    found = []
    for x in group:
        y = single(Fraction(x) / Fraction(scale))
        place = max(sum(t <= y for t in table) - 1, 0)
        above = table[min(place + 1, 255)]
        half = single(Fraction(single(Fraction(above) - Fraction(table[place]))) / 2)
        if single(Fraction(y) - Fraction(table[place])) >= half:
            place = min(place + 1, 255)
        found.append(single(Fraction(table[place]) * Fraction(scale)))
    return found


def by_powers(group, how):
    """COAT's kernel, thread by thread; powers by the mathematical library."""

    def power(x, k):
        if x == 1 or k == 0:
            return 1.0
        if math.isinf(k):
            return 0.0 if x < 1 else math.inf
        return single(x**k)

    lanes = [abs(x) for x in group] + [float(FLOAT32.max)] * (how.block - len(group))

    def least(values):
        while len(values) > 1:
            own, other = values[: len(values) // 2], values[len(values) // 2 :]
            values = [min(a, b) if b > 0 else a for a, b in zip(own, other, strict=True)]
        return values[0]

    warps = [least(lanes[i : i + 32]) for i in range(0, len(lanes), 32)]
    low = single(least(warps + [1e9] * (32 - len(warps))) + 1e-30)
    top = single(max(map(abs, group)) + 1e-30)
    centre = single(single(math.sqrt(top)) * single(math.sqrt(low)))
    spread = single(math.log2(single(Fraction(top) / Fraction(low))))
    k = math.inf if spread == 0 else math.floor(single(single(math.log2(100352)) / spread) * 16) / 16
    scale = single(power(single(top / centre), k) / 448)
    found = []
    for x in group:
        y = power(single(abs(x) / centre), k)
        ratio = y / scale if scale else math.nan
        if math.isnan(ratio):  # infinite by infinite, or zero by zero; any number to the power of 0 is 1
            found.append(centre)
            continue
        code = round_fraction(Fraction(min(single(ratio), 448.0)), FORMATS["float8_e4m3fn"])
        back = power(single(float(code) * scale), 0.0 if math.isinf(k) else single(1 / k))
        found.append(math.copysign(single(back * centre), x))
    return found


class Element:
    """One parameter with its optimizer state, under one of the named strategies of low precision."""

    def __init__(self, strategy, low, theta, scalars="exact", rounding=None, index=0):
        rounding = rounding or Rounding()
        self.strategy, self.index = strategy, index
        self.low = Scalar(low, rounding, scalars)
        self.wide = Scalar(FLOAT32, rounding, scalars)
        self.moments = self.up = self.wide if strategy in FLOAT32_MOMENTS else self.low
        self.adding = self.low
        mode = SHARED.get(strategy)
        self.model = Scalar(low, Rounding(mode), scalars) if mode else self.low
        self.theta = theta
        self.m = self.v = 0.0
        self.rest = 0.0  # the second component, Kahan's compensation or the master copy
        self.dv = 0.0
        if strategy in MASTER:
            self.rest = theta
        self.denominator = 1.0
        self.count = 0

    def begin(self):
        """Count a step, and take its random words: of m and v, if these draw, and else of the parameter."""
        self.count += 1
        if "stochastic" in self.strategy:
            stream = 0 if self.strategy == "stochastic" else 1 << 16
            self.adding = Drawn(self.low.fmt, RandomWords(0, self.count).of(stream), self.index)
            if self.strategy == "stochastic":
                self.moments = self.adding

    def adamw(self, gradient, rate, beta1, beta2, epsilon, decay):
        """Make one step and return the update D."""
        self.begin()
        ar, up = self.moments, self.up
        g = ar.round(gradient)
        gain1, gain2 = ar.real(1.0 - beta1), ar.real(1.0 - beta2)
        self.m = ar.fma(g, gain1, ar.mul(self.m, ar.real(beta1)))
        square = ar.mul(g, g)
        if self.strategy == "collage-plus":
            self._grow_second(square, beta2, gain2)
        else:
            self.v = ar.fma(square, gain2, ar.mul(self.v, ar.real(beta2)))
        mhat = up.div(self.m, up.real(1.0 - beta1**self.count))
        vhat = up.div(self.v, up.real(1.0 - beta2**self.count))
        self.denominator = up.add(up.sqrt(vhat), up.real(epsilon))
        weight = (1.0 - beta1**self.count) * (1 - 1 / beta1) * (1 - rate * decay) / rate if beta1 else 0.0
        return self._update(up.div(mhat, self.denominator), rate, decay, weight)

    def by_torch_points(self, gradient, rate, beta1, beta2, epsilon, decay):
        """Make one step with the rounding points of PyTorch: in binary32, rounded where it is stored."""
        self.begin()
        single, ar = Scalar(FLOAT32, Rounding(), "exact"), self.moments
        inner = ar if ar.fmt == FLOAT32 else single
        g, weight = ar.round(gradient), single.round(1.0 - beta1)
        apart = inner.sub(g, self.m)
        start, share = (self.m, weight) if weight < 0.5 else (g, weight - 1.0)
        self.m = ar.round(inner.fma(apart, share, start))
        if self.strategy == "collage-plus":
            self._grow_second(ar.mul(g, g), beta2, single.round(1.0 - beta2))
        else:
            decayed = ar.round(inner.mul(self.v, single.round(beta2)))
            self.v = ar.round(inner.fma(inner.mul(single.round(1.0 - beta2), g), g, decayed))
        root = ar.round(
            inner.div(ar.round(inner.sqrt(self.v)), single.round((1.0 - beta2**self.count) ** 0.5))
        )
        denominator = ar.round(inner.add(root, Scalar(ar.fmt, Rounding(), "exact").round(epsilon)))
        size = single.round(rate / (1.0 - beta1**self.count))
        quotient = inner.div(inner.mul(self.m, -size), denominator)
        if self.strategy in ("kahan", "collage-light", "collage-plus"):
            lost = single.round(rate * decay)
            self._move(ar.round(inner.fma(self.theta, -lost, quotient) if decay else quotient))
            return
        into = self.wide if self.strategy in MASTER else self.low
        adding = self.wide if into.fmt == FLOAT32 else single
        moved = self.rest if self.strategy in MASTER else self.theta
        if decay:
            moved = into.round(adding.mul(moved, single.round(1.0 - rate * decay)))
        moved = into.round(adding.add(moved, quotient))
        self.theta = self.model.round(moved)
        if self.strategy in MASTER:
            self.theta, self.rest = self._halves(moved)

    def _grow_second(self, square, beta2, gain2):
        """Move v in two components by a square."""
        ar = self.moments
        b = round_fraction(Fraction(beta2), ar.fmt)
        db = round_fraction(Fraction(beta2) - Fraction(b), ar.fmt)
        decayed = ar.multiply((b, db), (self.v, self.dv))
        self.v, self.dv = ar.grow(decayed, ar.mul(square, gain2))

    def sgd(self, gradient, rate, momentum, decay):
        """Make one step and return the update D."""
        self.begin()
        ar = self.moments
        g = ar.round(gradient)
        self.m = ar.add(ar.mul(self.m, ar.real(momentum)), g)
        return self._update(self.m, rate, decay, (1 - 1 / momentum) * (1 - rate * decay) / rate)

    def _update(self, direction, rate, decay, weight):
        ar = self.up
        if decay:
            theta = ar.round(self.rest if self.strategy in MASTER else self.theta)
            direction = ar.add(direction, ar.mul(theta, ar.real(decay)))
        update = ar.mul(direction, -ar.real(rate))
        if self.strategy == "eco":
            target = ar.add(self.theta, update)
            self.theta = self.low.round(target)
            # A denominator of 1 changes nothing.
            error = ar.mul(ar.sub(target, self.theta), self.denominator)
            self.m = ar.add(self.m, ar.mul(error, ar.real(weight)))
        else:
            self._move(update)
        return update

    def _move(self, update):
        low, step = self.low, self.low.round(update)
        if self.strategy in ("plain", "fp32-optim", "stochastic-parameter", "stochastic"):
            self.theta = self.adding.add(self.theta, self.adding.round(update))
        elif self.strategy == "kahan":
            y = low.add(step, self.rest)
            moved = low.add(self.theta, y)
            self.rest = low.sub(y, low.sub(moved, self.theta))
            self.theta = moved
        elif self.strategy in MASTER:
            self.theta, self.rest = self._halves(self.wide.add(self.rest, update))
        else:
            self.theta, self.rest = low.grow((self.theta, self.rest), step)

    def _halves(self, master):
        """Return the parameter, and what is left of its master copy."""
        theta, most = self.model.round(master), REMAINDERS.get(self.strategy)
        return theta, left_of(master, theta, self.low.fmt, most) if most else master

    def state(self):
        """Return the components of each tensor by the names of `mcfsim.optim.state.State`."""
        expansion = self.strategy.startswith("collage")
        return {
            "parameter": (self.theta, self.rest) if expansion else (self.theta,),
            "m": (self.m,),
            "v": (self.v, self.dv) if self.strategy == "collage-plus" else (self.v,),
            "extra": (self.rest,) if self.strategy in ("kahan", *MASTER) else (),
        }
