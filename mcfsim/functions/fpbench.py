"""Benchmarks of FPBench that are straight lines, with the ranges of inputs that it publishes.

Formulas, their order of operations and ranges are facts of the suite: Damouche, Martel, Panchekha, Qiu,
Sanchez-Stern, Tatlock, Toward a standard benchmark format and suite for floating-point analysis, NSV 2016;
https://fpbench.org. Constants are real scalars, here as binary64 numbers; operations of constants alone are
rounded like all others. Benchmarks that branch or loop are left out, and so is ``azimuth``, which takes an
arctangent.

The benchmarks were made for binary32 and binary64. In bfloat16 `nonlin2` may divide by zero, and in float16
the pressure of `carbon_gas` overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mcfsim.functions.geometry import hypot
from mcfsim.protocol import Arithmetic, Value, straight_line


@dataclass(frozen=True)
class Benchmark:
    """A function and the box of its inputs.

    Parameters
    ----------
    name : str
        Its name in FPBench.
    function : callable
        ``function(ar, *inputs)``, with the inputs in the order of `inputs`.
    inputs : mapping of str to (float, float)
        The least and the greatest value of each; FPBench excludes the ends of some.
    source : str
        The file of FPBench that has it, and the paper that published it first.
    """

    name: str
    function: Callable[..., Any]
    inputs: Mapping[str, tuple[float, float]]
    source: str


@straight_line
def doppler(ar: Arithmetic, u: Value, v: Value, t: Value) -> Value:
    """Return ``-c v / (c + u)**2`` with ``c = 331.4 + 0.6 t``: the change of a frequency."""
    c = ar.add(331.4, ar.mul(0.6, t))
    total = ar.add(c, u)
    return ar.div(ar.mul(ar.neg(c), v), ar.mul(total, total))


@straight_line
def rigid_body_1(ar: Arithmetic, x1: Value, x2: Value, x3: Value) -> Value:
    """Return ``-x1 x2 - 2 x2 x3 - x1 - x3``."""
    first = ar.sub(ar.neg(ar.mul(x1, x2)), ar.mul(ar.mul(2.0, x2), x3))
    return ar.sub(ar.sub(first, x1), x3)


@straight_line
def rigid_body_2(ar: Arithmetic, x1: Value, x2: Value, x3: Value) -> Value:
    """Return ``2 x1 x2 x3 + 3 x3**2 - x2 x1 x2 x3 + 3 x3**2 - x2``."""
    squares = ar.mul(ar.mul(3.0, x3), x3)
    first = ar.add(ar.mul(ar.mul(ar.mul(2.0, x1), x2), x3), squares)
    second = ar.sub(first, ar.mul(ar.mul(ar.mul(x2, x1), x2), x3))
    return ar.sub(ar.add(second, squares), x2)


@straight_line
def jet_engine(ar: Arithmetic, x1: Value, x2: Value) -> Value:
    """Return a controller's value, a rational function of two inputs."""
    threefold, twice = ar.mul(ar.mul(3.0, x1), x1), ar.mul(2.0, x2)
    square = ar.mul(x1, x1)
    d = ar.add(square, 1.0)
    s = ar.div(ar.sub(ar.add(threefold, twice), x1), d)
    other = ar.div(ar.sub(ar.sub(threefold, twice), x1), d)
    product = ar.mul(ar.mul(ar.mul(2.0, x1), s), ar.sub(s, 3.0))
    total = ar.mul(ar.add(product, ar.mul(square, ar.sub(ar.mul(4.0, s), 6.0))), d)
    total = ar.add(total, ar.mul(threefold, s))
    total = ar.add(ar.add(total, ar.mul(square, x1)), x1)
    return ar.add(x1, ar.add(total, ar.mul(3.0, other)))


def _turbine(ar: Arithmetic, factor: Value, v: Value, w: Value, r: Value) -> Value:
    """Return ``factor w**2 r**2 / (1 - v)``."""
    return ar.div(ar.mul(factor, ar.mul(ar.mul(ar.mul(w, w), r), r)), ar.sub(1.0, v))


@straight_line
def turbine_1(ar: Arithmetic, v: Value, w: Value, r: Value) -> Value:
    """Return ``3 + 2 / r**2 - 0.125 (3 - 2 v) w**2 r**2 / (1 - v) - 4.5``."""
    factor = ar.mul(0.125, ar.sub(3.0, ar.mul(2.0, v)))
    first = ar.add(3.0, ar.div(2.0, ar.mul(r, r)))
    return ar.sub(ar.sub(first, _turbine(ar, factor, v, w, r)), 4.5)


@straight_line
def turbine_2(ar: Arithmetic, v: Value, w: Value, r: Value) -> Value:
    """Return ``6 v - 0.5 v w**2 r**2 / (1 - v) - 2.5``."""
    return ar.sub(ar.sub(ar.mul(6.0, v), _turbine(ar, ar.mul(0.5, v), v, w, r)), 2.5)


@straight_line
def turbine_3(ar: Arithmetic, v: Value, w: Value, r: Value) -> Value:
    """Return ``3 - 2 / r**2 - 0.125 (1 + 2 v) w**2 r**2 / (1 - v) - 0.5``."""
    factor = ar.mul(0.125, ar.add(1.0, ar.mul(2.0, v)))
    first = ar.sub(3.0, ar.div(2.0, ar.mul(r, r)))
    return ar.sub(ar.sub(first, _turbine(ar, factor, v, w, r)), 0.5)


@straight_line
def verhulst(ar: Arithmetic, x: Value) -> Value:
    """Return ``4 x / (1 + x / 1.11)``: a population with limited growth."""
    return ar.div(ar.mul(4.0, x), ar.add(1.0, ar.div(x, 1.11)))


@straight_line
def predator_prey(ar: Arithmetic, x: Value) -> Value:
    """Return ``4 x**2 / (1 + (x / 1.11)**2)``."""
    part = ar.div(x, 1.11)
    return ar.div(ar.mul(ar.mul(4.0, x), x), ar.add(1.0, ar.mul(part, part)))


@straight_line
def carbon_gas(ar: Arithmetic, v: Value) -> Value:
    """Return the deviation of a real gas of volume v from ``(p + a (n / v)**2) (v - n b) = k n t``."""
    part = ar.div(1000.0, v)
    pressure = ar.add(3.5e7, ar.mul(ar.mul(0.401, part), part))
    volume = ar.sub(v, ar.mul(1000.0, 42.7e-6))
    return ar.sub(ar.mul(pressure, volume), ar.mul(ar.mul(1.3806503e-23, 1000.0), 300.0))


def _powers(ar: Arithmetic, x: Value, n: int) -> list[Value]:
    """Return x, x**2, ..., x**n, each the one before times x."""
    found = [x]
    while len(found) < n:
        found.append(ar.mul(found[-1], x))
    return found


@straight_line
def sine(ar: Arithmetic, x: Value) -> Value:
    """Return ``x - x**3 / 6 + x**5 / 120 - x**7 / 5040``."""
    power = _powers(ar, x, 7)
    found = ar.add(ar.sub(x, ar.div(power[2], 6.0)), ar.div(power[4], 120.0))
    return ar.sub(found, ar.div(power[6], 5040.0))


@straight_line
def sine_order_3(ar: Arithmetic, x: Value) -> Value:
    """Return a cubic polynomial near the sine."""
    return ar.sub(ar.mul(0.954929658551372, x), ar.mul(0.12900613773279798, ar.mul(ar.mul(x, x), x)))


@straight_line
def sqroot(ar: Arithmetic, x: Value) -> Value:
    """Return ``1 + 0.5 x - 0.125 x**2 + 0.0625 x**3 - 0.0390625 x**4``, near the root of 1 + x."""

    def term(factor: float, n: int) -> Value:
        found = ar.mul(factor, x)
        for _ in range(n - 1):
            found = ar.mul(found, x)
        return found

    first = ar.sub(ar.add(1.0, term(0.5, 1)), term(0.125, 2))
    return ar.sub(ar.add(first, term(0.0625, 3)), term(0.0390625, 4))


@straight_line
def bspline3(ar: Arithmetic, u: Value) -> Value:
    """Return ``-u**3 / 6``."""
    return ar.div(ar.neg(ar.mul(ar.mul(u, u), u)), 6.0)


@straight_line
def kepler_0(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return ``x2 x5 + x3 x6 - x2 x3 - x5 x6 + x1 (-x1 + x2 + x3 - x4 + x5 + x6)``."""
    first = ar.sub(ar.add(ar.mul(x2, x5), ar.mul(x3, x6)), ar.mul(x2, x3))
    return ar.add(ar.sub(first, ar.mul(x5, x6)), ar.mul(x1, _alternating(ar, x1, x2, x3, x4, x5, x6)))


def _alternating(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return ``-x1 + x2 + x3 - x4 + x5 + x6``."""
    first = ar.sub(ar.add(ar.add(ar.neg(x1), x2), x3), x4)
    return ar.add(ar.add(first, x5), x6)


@straight_line
def kepler_1(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value) -> Value:
    """Return a cubic polynomial of four squared lengths."""
    first = ar.mul(ar.mul(x1, x4), ar.sub(ar.add(ar.add(ar.neg(x1), x2), x3), x4))
    second = ar.mul(x2, ar.add(ar.add(ar.sub(x1, x2), x3), x4))
    third = ar.mul(x3, ar.add(ar.sub(ar.add(x1, x2), x3), x4))
    total = ar.sub(ar.add(ar.add(first, second), third), ar.mul(ar.mul(x2, x3), x4))
    return ar.sub(ar.sub(ar.sub(total, ar.mul(x1, x3)), ar.mul(x1, x2)), x4)


def _delta(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return the three products of `delta` with sums."""
    first = ar.mul(ar.mul(x1, x4), _alternating(ar, x1, x2, x3, x4, x5, x6))
    sums = ar.add(ar.add(ar.sub(x1, x2), x3), x4)
    second = ar.mul(ar.mul(x2, x5), ar.add(ar.sub(sums, x5), x6))
    sums = ar.add(ar.add(ar.sub(ar.add(x1, x2), x3), x4), x5)
    third = ar.mul(ar.mul(x3, x6), ar.sub(sums, x6))
    return ar.add(ar.add(first, second), third)


@straight_line
def kepler_2(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return `delta`, with the last products subtracted."""
    total = _delta(ar, x1, x2, x3, x4, x5, x6)
    for a, b, c in ((x2, x3, x4), (x1, x3, x5), (x1, x2, x6), (x4, x5, x6)):
        total = ar.sub(total, ar.mul(ar.mul(a, b), c))
    return total


@straight_line
def delta(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return a cubic polynomial of the squared edges of a simplex, from the proof of Kepler's conjecture."""
    total = _delta(ar, x1, x2, x3, x4, x5, x6)
    for a, b, c in ((x2, x3, x4), (x1, x3, x5), (x1, x2, x6), (x4, x5, x6)):
        total = ar.add(total, ar.mul(ar.mul(ar.neg(a), b), c))
    return total


@straight_line
def delta_4(ar: Arithmetic, x1: Value, x2: Value, x3: Value, x4: Value, x5: Value, x6: Value) -> Value:
    """Return the derivative of `delta` with respect to x4."""
    total = ar.sub(ar.mul(ar.neg(x2), x3), ar.mul(x1, x4))
    total = ar.add(ar.add(total, ar.mul(x2, x5)), ar.mul(x3, x6))
    return ar.add(ar.sub(total, ar.mul(x5, x6)), ar.mul(x1, _alternating(ar, x1, x2, x3, x4, x5, x6)))


@straight_line
def share_of_next(ar: Arithmetic, t: Value) -> Value:
    """Return ``t / (t + 1)``."""
    return ar.div(t, ar.add(t, 1.0))


@straight_line
def share_of_sum(ar: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``x / (x + y)``."""
    return ar.div(x, ar.add(x, y))


@straight_line
def nonlin2(ar: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``(t - 1) / (t**2 - 1)`` with ``t = x y``."""
    t = ar.mul(x, y)
    return ar.div(ar.sub(t, 1.0), ar.sub(ar.mul(t, t), 1.0))


@straight_line
def nonlin1_r4(ar: Arithmetic, x: Value) -> Value:
    """Return ``(x - 1) / (x**2 - 1)``."""
    return ar.div(ar.sub(x, 1.0), ar.sub(ar.mul(x, x), 1.0))


@straight_line
def nonlin1_test2(ar: Arithmetic, x: Value) -> Value:
    """Return ``1 / (x + 1)``, which is what `nonlin1_r4` means."""
    return ar.div(1.0, ar.add(x, 1.0))


@straight_line
def himmilbeau(ar: Arithmetic, x1: Value, x2: Value) -> Value:
    """Return ``(x1**2 + x2 - 11)**2 + (x1 + x2**2 - 7)**2``: the function of Himmelblau."""
    a = ar.sub(ar.add(ar.mul(x1, x1), x2), 11.0)
    b = ar.sub(ar.add(x1, ar.mul(x2, x2)), 7.0)
    return ar.add(ar.mul(a, a), ar.mul(b, b))


@straight_line
def logexp(ar: Arithmetic, x: Value) -> Value:
    """Return ``log(1 + exp(x))``."""
    return ar.log(ar.add(1.0, ar.exp(x)))


@straight_line
def sum_of_differences(ar: Arithmetic, x0: Value, x1: Value, x2: Value) -> Value:
    """Return ``(x0 + x1 - x2) + (x1 + x2 - x0) + (x2 + x0 - x1)``."""
    p0, p1 = ar.sub(ar.add(x0, x1), x2), ar.sub(ar.add(x1, x2), x0)
    return ar.add(ar.add(p0, p1), ar.sub(ar.add(x2, x0), x1))


@straight_line
def i4(ar: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``sqrt(x + y**2)``."""
    return ar.sqrt(ar.add(x, ar.mul(y, y)))


@straight_line
def i6(ar: Arithmetic, x: Value, y: Value) -> Value:
    """Return ``sin(x y)``."""
    return ar.sin(ar.mul(x, y))


@straight_line
def sphere(ar: Arithmetic, x: Value, r: Value, lat: Value, lon: Value) -> Value:
    """Return ``x + r sin(lat) cos(lon)``."""
    return ar.add(x, ar.mul(ar.mul(r, ar.sin(lat)), ar.cos(lon)))


@straight_line
def exp1x(ar: Arithmetic, x: Value) -> Value:
    """Return ``(exp(x) - 1) / x``."""
    return ar.div(ar.sub(ar.exp(x), 1.0), x)


@straight_line
def exp1x_log(ar: Arithmetic, x: Value) -> Value:
    """Return ``(exp(x) - 1) / log(exp(x))``: unlike in `exp1x`, errors of the exponential cancel."""
    e = ar.exp(x)
    return ar.div(ar.sub(e, 1.0), ar.log(e))


_ROSA = "FPBench rosa.fpcore; Darulova, Kuncak, Sound compilation of reals, POPL 2014"
_FPTAYLOR = "Solovyev et al., Rigorous estimation of floating-point round-off errors, FM 2015"
_TESTS, _EXTRA, _REAL2FLOAT = (
    f"FPBench fptaylor-{name}.fpcore; {_FPTAYLOR}" for name in ("tests", "extra", "real2float")
)


def _all(names: str, low: float, high: float) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(names.split(), (low, high))


_SIX = "x1 x2 x3 x4 x5 x6"
_BODY = _all("x1 x2 x3", -15, 15)
_WIND = {"v": (-4.5, -0.3), "w": (0.4, 0.9), "r": (3.8, 7.8)}
_ROOT = {"x": (0.1, 10), "y": (-5, 5)}
_PLACE = {"x": (-10, 10), "r": (0, 10), "lat": (-1.570796, 1.570796), "lon": (-3.14159265, 3.14159265)}

_ROWS: tuple[tuple[str, Callable[..., Any], Mapping[str, tuple[float, float]], str], ...] = (
    ("doppler1", doppler, {"u": (-100, 100), "v": (20, 20000), "T": (-30, 50)}, _ROSA),
    ("doppler2", doppler, {"u": (-125, 125), "v": (15, 25000), "T": (-40, 60)}, _ROSA),
    ("doppler3", doppler, {"u": (-30, 120), "v": (320, 20300), "T": (-50, 30)}, _ROSA),
    ("rigidBody1", rigid_body_1, _BODY, _ROSA),
    ("rigidBody2", rigid_body_2, _BODY, _ROSA),
    ("jetEngine", jet_engine, {"x1": (-5, 5), "x2": (-20, 5)}, _ROSA),
    ("turbine1", turbine_1, _WIND, _ROSA),
    ("turbine2", turbine_2, _WIND, _ROSA),
    ("turbine3", turbine_3, _WIND, _ROSA),
    ("verhulst", verhulst, {"x": (0.1, 0.3)}, _ROSA),
    ("predatorPrey", predator_prey, {"x": (0.1, 0.3)}, _ROSA),
    ("carbonGas", carbon_gas, {"v": (0.1, 0.5)}, _ROSA),
    ("sine", sine, {"x": (-1.57079632679, 1.57079632679)}, _ROSA),
    ("sineOrder3", sine_order_3, {"x": (-2, 2)}, _ROSA),
    ("sqroot", sqroot, {"x": (0, 1)}, _ROSA),
    ("bspline3", bspline3, {"u": (0, 1)}, _ROSA),
    ("kepler0", kepler_0, _all(_SIX, 4.0, 6.36), _REAL2FLOAT),
    ("kepler1", kepler_1, _all("x1 x2 x3 x4", 4.0, 6.36), _REAL2FLOAT),
    ("kepler2", kepler_2, _all(_SIX, 4.0, 6.36), _REAL2FLOAT),
    ("sphere", sphere, _PLACE, _REAL2FLOAT),
    ("logexp", logexp, {"x": (-8, 8)}, _REAL2FLOAT),
    ("intro-example", share_of_next, {"t": (0, 999)}, _TESTS),
    ("test05_nonlin1, r4", nonlin1_r4, {"x": (1.00001, 2)}, _TESTS),
    ("test05_nonlin1, test2", nonlin1_test2, {"x": (1.00001, 2)}, _TESTS),
    ("delta4", delta_4, _all(_SIX, 4.0, 6.3504), _EXTRA),
    ("delta", delta, _all(_SIX, 4.0, 6.3504), _EXTRA),
    ("exp1x", exp1x, {"x": (0.01, 0.5)}, _EXTRA),
    ("exp1x_log", exp1x_log, {"x": (0.01, 0.5)}, _EXTRA),
    ("x_by_xy", share_of_sum, _all("x y", 1, 4), _EXTRA),
    ("hypot", hypot, _all("x1 x2", 1, 100), _EXTRA),
    ("sum", sum_of_differences, _all("x0 x1 x2", 1, 2), _EXTRA),
    ("nonlin1", share_of_next, {"z": (0, 999)}, _EXTRA),
    ("nonlin2", nonlin2, _all("x y", 1.001, 2), _EXTRA),
    ("i4", i4, _ROOT, _EXTRA),
    ("i6", i6, _ROOT, _EXTRA),
    ("himmilbeau", himmilbeau, _all("x1 x2", -5, 5), _EXTRA),
)

#: The benchmarks, by name.
FPBENCH: Mapping[str, Benchmark] = MappingProxyType({row[0]: Benchmark(*row) for row in _ROWS})
