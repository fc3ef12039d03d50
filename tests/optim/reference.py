"""Parameters trained by definition: the documented formulas, in scalar operations, for any declaration."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from mcfsim.formats import FORMATS
from mcfsim.multiword import expansion
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.strategies import Addition, Roles, Stored
from mcfsim.optim.vectors import read
from mcfsim.oracle import OracleArithmetic, operate, round_fraction
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, get_rounding
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import DynamicMap
from tests.shared.in_single import InSingle, Real, widened
from tests.shared.rationals import single

from . import on_grid_reference as grids

FLOAT32, FLOAT64 = FORMATS["float32"], FORMATS["float64"]
#: What a strategy draws that is given no words.
DEFAULT_WORDS = RandomWords(0)
SATURATED, ODD = Rounding(overflow="saturate"), Rounding(Mode.TO_ODD)


# -- arithmetics ---------------------------------------------------------------------------------------------
class Single(InSingle):
    """Operations of one format; real scalars enter by a policy."""

    def __init__(self, fmt, rounding=Rounding(), scalars="exact"):  # noqa: B008
        super().__init__(fmt, rounding)
        self.scalars = scalars

    def real(self, x):
        if self.scalars == "float32" and widened(self.format):
            return Real(x)
        return x if self.scalars == "exact" else self.round(x)

    def sum_and_error(self, a, b):
        """Return the rounded sum and its error by definition; nearest modes only."""
        s = self.add(a, b)
        error = Fraction(a) + Fraction(b) - Fraction(s)
        assert round_fraction(error, self.format) == error
        return s, float(error)

    def grow(self, x, a):
        """Yu et al., ICML 2024: Grow, with an exact sum in the first step."""
        if len(x) != 2:
            return expansion.grow(self, x, a)
        s, e = self.sum_and_error(x[0], a)
        return self.sum_and_error(s, self.add(x[1], e))

    def multiply(self, x, y):
        """Joldes, Muller, Popescu 2017, Algorithm 11, operands exchanged: Collage's Mul."""
        if len(x) != 2:
            return expansion.mul(self, x, y)
        p = self.mul(x[0], y[0])
        e = self.fma(x[0], y[0], -p)
        cross = self.fma(x[0], y[1], self.mul(x[1], y[0]))
        return self.sum_and_error(p, self.add(e, cross))


@lru_cache(maxsize=2**14)
def _words(words, part, bits):
    """Return 64 words of an operation, for elements that lie together."""
    return words.words(64 * part, 64, bits).tolist()


class Drawn(OracleArithmetic):
    """Operations of one element in one step, each rounded at random by the words of its own stream."""

    # The judge rounds to odd in 53 bits: it leaves the first bits that are cut off, and whether any follow.
    BITS = 16

    def __init__(self, fmt, words, index):
        super().__init__(fmt)
        self.words, self.index, self.count = words, index, 0

    def _operate(self, name, *operands):
        return self._drawn(operate(name, operands, FLOAT64, ODD))

    def round(self, x):
        return self._drawn(float(x))

    def _drawn(self, x):
        word = _words(self.words.of(self.count), self.index // 64, self.BITS)[self.index % 64]
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


def _kinds(strategy, rounding):
    """Return format and own rounding of m, v, update, addition and model, and in which order they draw."""
    master = strategy.extra if strategy.addition is Addition.MASTER else strategy.parameter
    m, v, update, model = strategy.m, strategy.v, Stored(strategy.m.format), strategy.parameter
    if strategy.extra and strategy.extra.remainder and rounding.mode is not Mode.NEAREST_AWAY:
        model = Stored(model.format, rounding="nearest_even")
    kinds = [(item.format, item.rounding) for item in (m, v, update, master, model)]
    return kinds, list(dict.fromkeys(kinds[i] for i in (0, 4, 3, 1, 2)))


@lru_cache
def _settled(strategy, rounding, scalars):
    kinds, _ = _kinds(strategy, rounding)
    made = {(fmt, mode): Single(fmt, Rounding(mode) if mode else rounding, scalars) for fmt, mode in {*kinds}}
    return Roles(*(made[kind] for kind in kinds))


def roles_of(strategy, step, index, rounding, scalars="exact", words=DEFAULT_WORDS):
    """Return the arithmetics of one element's step."""
    own = {item.rounding for item in strategy.tensors.values()}
    if not rounding.stochastic and Mode.STOCHASTIC not in own:
        return _settled(strategy, rounding, scalars)
    kinds, order = _kinds(strategy, rounding)
    made = {}
    for number, (fmt, mode) in enumerate(order):
        if (mode or rounding.mode) is Mode.STOCHASTIC:
            made[fmt, mode] = Drawn(fmt, replace(words, step=step).of(number << 16), index)
        else:
            made[fmt, mode] = Single(fmt, Rounding(mode) if mode else rounding, scalars)
    return Roles(*(made[kind] for kind in kinds))


def into(ar, x, source):
    """Return a value of one arithmetic in another: rounded where the formats differ."""
    return x if ar.format == source.format else ar.round(x)


# -- what is kept of numbers ---------------------------------------------------------------------------------
def kept(numbers, element, block):
    """Return float32 numbers as blocks of elements with a float32 scale keep them, in fractions."""
    found = []  # the largest of a block becomes the largest element
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
        return kept(numbers, how.element, how.block or max(1, len(numbers)))
    judge = by_table if isinstance(how, DynamicMap) else by_powers
    groups = [numbers[i : i + how.block] for i in range(0, len(numbers), how.block)]
    return [x for group in groups for x in judge([float(x) for x in group], how)]


def by_table(group, how):
    """The nearest of the table's numbers, which are PyTorch's; of two the upper one."""
    table = how.table.tolist()
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
        read = single(float(code) * scale)
        back = power(read, 0.0 if math.isinf(k) else single(1 / k))
        # Of zero by infinite the sign is lost, too.
        found.append(centre if math.isnan(read) else math.copysign(single(back * centre), x))
    return found


# -- the formulas --------------------------------------------------------------------------------------------
def parts_of(x, fmt, count):
    """Return a real number as so many numbers of a format, each what the ones before leave, rounded."""
    left, found = Fraction(x), []
    for _ in range(count):
        found.append(round_fraction(left, fmt))
        left -= Fraction(found[-1])
    return tuple(found)


def averaged(ar, x, beta, new, gain):
    """Return a moment moved by a new number: by real scalars, or a beta of as many components as it has."""
    if len(x) == 1:
        return (ar.fma(new, ar.real(gain), ar.mul(x[0], ar.real(beta))),)
    decayed = ar.multiply(beta, x) if isinstance(beta, tuple) else expansion.scale(ar, x, ar.real(beta))
    return ar.grow(decayed, ar.mul(new, ar.real(gain)))


def second_moment(strategy, ar, v, beta, square, gain):
    """Return a second moment moved by a square, with a beta of as many components as the strategy's."""
    count = strategy.beta2_components
    parts = tuple(map(ar.real, parts_of(beta, ar.format, count)))
    return averaged(ar, v, parts if count > 1 else beta, square, gain)


def added(strategy, roles, parameter, extra, update):
    """Return parameter and extra after an update, in the strategy's way."""
    ar, step = roles.parameter, roles.parameter.round(update)
    match strategy.addition:
        case Addition.PLAIN:
            return (ar.add(parameter[0], step),), extra
        case Addition.MASTER:
            return split_master(strategy, roles, ar.add(extra[0], step))
        case Addition.KAHAN:
            y = ar.add(step, extra[0])
            moved = ar.add(parameter[0], y)
            return (moved,), (ar.sub(y, ar.sub(moved, parameter[0])),)
        case Addition.GROW:
            return ar.grow(parameter, step), extra


def split_master(strategy, roles, master):
    """Return the parameter, and what is left of its master copy."""
    theta, bits = roles.model.round(master), strategy.extra.remainder
    left = left_of(master, theta, roles.model.format, 2 ** (bits - 1) - 1) if bits else master
    return (theta,), (left,)


class Element:
    """One parameter with its optimizer state: a formula for each optimizer, in any strategy."""

    def __init__(self, hyper, strategy, theta, index=0, *, decayed=True, rounding=None, **options):
        self.hyper, self.strategy, self.index = hyper, strategy, index
        self.rounding, self.options, self.count = rounding or Rounding(), options, 0
        self.decay = hyper.weight_decay if decayed else 0.0
        addition, of = strategy.addition, strategy.tensors
        self.parameter = (theta, *(0.0,) * (strategy.parameter.components - 1))
        self.m, self.v = ((0.0,) * of[name].components * hyper.keeps(name) for name in "mv")
        self.largest = self.v
        self.extra = {Addition.MASTER: (theta,), Addition.KAHAN: (0.0,)}.get(addition, ())

    @property
    def meant(self):
        return self.extra[0] if self.strategy.addition is Addition.MASTER else self.parameter[0]

    def step(self, gradient, rate):
        """Make one step and return the update D."""
        self.count += 1
        roles = roles_of(self.strategy, self.count, self.index, self.rounding, **self.options)
        return getattr(self, type(self.hyper).__name__.lower())(roles, roles.moments.round(gradient), rate)

    def amsgrad(self, roles, g, rate):
        return self.adamw(roles, g, rate, self._seen)

    def torchamsgrad(self, roles, g, rate):
        return self.torchadamw(roles, g, rate, self._seen)

    def _seen(self, v):
        """Return the largest v so far."""
        old = self.largest[0]
        top = math.nan if math.isnan(v) or math.isnan(old) else max(v, old)
        # Infinite moments have a difference of NaN, which chooses none.
        rest = self.v if v >= old and v - old == v - old else self.largest if v < old else (math.nan,) * 9
        self.largest = (top, *rest[1 : len(self.v)])
        return top

    def adamw(self, roles, g, rate, seen=lambda v: v):
        up, hyper, count = roles.update, self.hyper, self.count
        self.m = averaged(roles.moments, self.m, hyper.beta1, g, 1.0 - hyper.beta1)
        taken = into(roles.second_moment, g, roles.moments)
        square = roles.second_moment.mul(taken, taken)
        self._second(roles.second_moment, square, 1.0 - hyper.beta2)
        mhat = up.div(self.m[0], up.real(1.0 - hyper.beta1**count))
        largest = seen(self.v[0])
        vhat = up.div(into(up, largest, roles.second_moment), up.real(1.0 - hyper.beta2**count))
        below = up.add(up.sqrt(vhat), up.real(hyper.epsilon))
        fed = (1.0 - hyper.beta1**count) * (1 - 1 / hyper.beta1) if hyper.beta1 else 0.0
        return self._along(roles, up.div(mhat, below), rate, fed, below)

    def sgd(self, roles, g, rate):
        mu = self.hyper.momentum
        self.m = averaged(roles.moments, self.m, mu, g, 1.0)
        return self._along(roles, self.m[0], rate, 1 - 1 / mu if mu else 0.0)

    def nesterov(self, roles, g, rate):
        mu, up = self.hyper.momentum, roles.update
        self.m = averaged(roles.moments, self.m, mu, g, 1.0)
        return self._along(roles, up.fma(self.m[0], up.real(mu), g), rate)

    def lion(self, roles, g, rate):
        ar, hyper, before = roles.moments, self.hyper, self.m
        ahead = averaged(ar, before, hyper.beta1, g, 1.0 - hyper.beta1)[0]
        update = self._asked(roles, math.copysign(1.0, ahead) if ahead else ahead, rate)
        self.m = averaged(ar, before, hyper.beta2, g, 1.0 - hyper.beta2)
        self.parameter, self.extra = added(self.strategy, roles, self.parameter, self.extra, update)
        return update

    def torchadamw(self, roles, g, rate, seen=lambda v: v):
        """Make one step with the rounding points of PyTorch: in binary32, rounded where it is stored."""
        wide, hyper, count = Single(FLOAT32), self.hyper, self.count
        low, second, up, adding = roles.moments, roles.second_moment, roles.update, roles.parameter
        stored = low, second, up, adding
        inner, inner_v, inner_up, inner_p = (ar if ar.format == FLOAT32 else wide for ar in stored)
        weight = wide.round(1.0 - hyper.beta1)
        if len(self.m) > 1:
            self.m = averaged(low, self.m, hyper.beta1, g, 1.0 - hyper.beta1)
        else:
            apart = inner.sub(g, self.m[0])
            start, share = (self.m[0], weight) if weight < 0.5 else (g, weight - 1.0)
            self.m = (into(low, inner.fma(apart, share, start), inner),)
        taken, gain2 = into(second, g, low), wide.round(1.0 - hyper.beta2)
        if len(self.v) > 1:
            self._second(second, second.mul(taken, taken), gain2)
        else:
            shrunk = into(second, inner_v.mul(self.v[0], wide.round(hyper.beta2)), inner_v)
            moved = inner_v.fma(inner_v.mul(gain2, taken), taken, shrunk)
            self.v = (into(second, moved, inner_v),)
        root = into(second, inner_v.sqrt(seen(self.v[0])), inner_v)
        correction = wide.round((1.0 - hyper.beta2**count) ** 0.5)
        root = into(second, inner_v.div(root, correction), inner_v)
        below = into(second, inner_v.add(root, Single(second.format).round(hyper.epsilon)), inner_v)
        size = wide.round(rate / (1.0 - hyper.beta1**count))
        quotient = inner_up.div(inner_up.mul(self.m[0], -size), below)
        lost = wide.round(rate * self.decay)
        update = quotient
        if self.decay:
            update = inner_up.fma(into(inner_up, self.meant, adding), -lost, quotient)
        update = into(up, update, inner_up)
        if self.strategy.addition in (Addition.KAHAN, Addition.GROW):
            self.parameter, self.extra = added(self.strategy, roles, self.parameter, self.extra, update)
            return update
        moved = self.meant
        if self.decay:
            kept = wide.round(1.0 - rate * self.decay)
            moved = into(adding, inner_p.mul(moved, kept), inner_p)
        moved = into(adding, inner_p.add(moved, quotient), inner_p)
        master = self.strategy.addition is Addition.MASTER
        self.parameter, self.extra = split_master(self.strategy, roles, moved) if master else ((moved,), ())
        return update

    def _second(self, ar, square, gain):
        self.v = second_moment(self.strategy, ar, self.v, self.hyper.beta2, square, gain)

    def _asked(self, roles, direction, rate):
        up = roles.update
        if self.decay:
            direction = up.add(direction, up.mul(up.round(self.meant), up.real(self.decay)))
        return up.mul(direction, up.real(-rate))

    def _along(self, roles, direction, rate, fed=None, below=None):
        """Add the update; what rounding loses of it goes back into m, by a weight and over a denominator."""
        update, ar, up = self._asked(roles, direction, rate), roles.moments, roles.update
        if self.strategy.addition is not Addition.FEEDBACK:
            self.parameter, self.extra = added(self.strategy, roles, self.parameter, self.extra, update)
            return update
        model = roles.model
        target = up.add(into(up, self.parameter[0], model), update)
        self.parameter = (into(model, target, up),)
        error = up.sub(target, into(up, self.parameter[0], model))
        error = error if below is None else up.mul(error, below)
        weight = fed * (1 - rate * self.decay) / rate
        self.m = (ar.add(self.m[0], ar.mul(error, ar.real(weight))),)
        return update


class Judge:
    """All tensors of an optimizer, of numbers of a low format: what is done to elements, then to tensors."""

    def __init__(self, hyper, strategy, start, decayed, rounding="nearest_even", words=None, **options):
        self.strategy, self.grid = strategy, strategy.parameter.grid
        self.count, self.words = 0, words or DEFAULT_WORDS
        options |= {"rounding": get_rounding(rounding), "words": self.words}
        self.elements, self.scales, index = {}, {}, 0
        self.largest = type(hyper).__name__ in ("AMSGrad", "TorchAMSGrad")
        for name in sorted(start, key=lambda name: name not in decayed):
            numbers = np.ravel(start[name]).tolist()
            places = enumerate(numbers, start=index)
            self.elements[name] = [
                Element(hyper, strategy, x, place, decayed=name in decayed, **options) for place, x in places
            ]
            index += len(numbers)
            if self.grid:
                self._lie(self.elements[name], name, numbers, self.grid.start)

    def step(self, gradients, rate):
        """Make one step and return the updates."""
        self.count += 1
        updates = []
        for name, elements in self.elements.items():
            before = [x.parameter[0] for x in elements]
            given = np.ravel(gradients[name]).tolist()
            updates += [x.step(g, rate) for x, g in zip(elements, given, strict=True)]
            for slot in ("m", "v", "largest"):
                requantize(elements, slot, self.strategy.tensors[slot if slot == "m" else "v"])
            if self.grid:
                after = [x.parameter[0] for x in elements]
                self._lie(elements, name, after if self.grid.reach == "absmean" else before, self.grid.reach)
        return updates

    def _lie(self, elements, name, numbers, reach):
        """Put a tensor on its grid: by random words after a step, if at random."""
        if not elements:
            return
        integers, first = self.grid.integers, elements[0].index
        if reach != "fixed":
            self.scales[name] = grids.scale(numbers, integers.high, str(reach))
        drawn = [None] * len(elements)
        if self.grid.draws and self.count:
            drawn = grids.words(self.words.seed, self.count, first, len(elements))
        for x, word in zip(elements, drawn, strict=True):
            x.parameter = grids.put(x.parameter[0], self.scales[name], integers.low, integers.high, word)[:1]

    def vectors(self):
        """Return the state: for each field its vectors, as an optimizer has them."""
        more = ("v", "largest") if self.largest else ("v",)
        found = {}
        for label in ("parameter", "m", "v", "extra"):
            kept = more if label == "v" else (label,)
            numbers = (getattr(x, name) for part in self.elements.values() for name in kept for x in part)
            found[label] = list(zip(*numbers, strict=True))
        return found


def requantize(elements, slot, stored):
    """Put in place of a moment of each element what is left of it as it is kept."""
    if not stored.scaled or not elements or not getattr(elements[0], slot):
        return
    left = quantised([getattr(x, slot)[0] for x in elements], stored.scaled)
    for x, number in zip(elements, left, strict=True):
        setattr(x, slot, (Single(stored.format).round(number) if stored.format != FLOAT32 else number,))


def course(judge, gradients, rates):
    """Return the updates of a judge, and all that is stored at the start and after each step."""
    start = (), judge.vectors()
    return [start, *((judge.step(*now), judge.vectors()) for now in zip(gradients, rates, strict=True))]


def assert_course(assert_same, optimizer, expected, gradients, rates):
    """Make steps, and compare the updates, and all that is stored after each, with those of a judge."""
    steps = [(), *zip(gradients, rates, strict=True)]
    for now, (updates, vectors) in zip(steps, expected, strict=True):
        if now:
            found = optimizer.step(optimizer.receive(now[0]), now[1])
            assert_same(read(found, optimizer.roles.update.format), updates)
        for label, found, fmt in zip(vectors, optimizer.state, optimizer.formats, strict=True):
            assert len(found) == len(vectors[label])
            for mine, other in zip(found, vectors[label], strict=True):
                assert_same(read(mine, fmt), other)


def assert_judged(assert_same, start, gradients, rates, rounding="nearest_even", scalars="exact", **options):
    """Train an optimizer, and by the judge, and compare; the start are what begins the arguments of both."""
    optimizer = Optimizer(*start, rounding, scalars=scalars, **options)
    judge = Judge(*start, rounding, options.get("random"), scalars=scalars)
    assert_course(assert_same, optimizer, course(judge, gradients, rates), gradients, rates)
    return optimizer, judge
