"""Hyperparameters that are zero in the format that they are used in: a warning for these alone."""

import warnings
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import SGD, AdamW, Optimizer, Rounding, VanishingScalarWarning, strategy
from mcfsim.optim.amsgrad import AMSGrad
from mcfsim.optim.declaration import optimizers
from mcfsim.optim.muon import Muon
from mcfsim.optim.strategies import Stored
from mcfsim.oracle import round_fraction

START = {"w": np.ones(3)}
ROUNDINGS = [
    *("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"),
    *(Rounding(underflow=policy) for policy in ("flush_before", "flush_after")),
]
FORMATS = ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "tf32", "posit8", "int8", "float6_e2m3fn"]
#: A format without subnormal numbers has nothing to flush.
CASES = [
    (fmt, rounding)
    for fmt in FORMATS
    for rounding in ROUNDINGS
    if isinstance(rounding, str) or mcf.get_format(fmt).has_subnormals
]
SCALARS = [3.0 * 10.0**-k for k in range(0, 13, 3)] + [2.0**-k for k in (1, 8, 10, 15, 24)] + [1e-38, 1e-44]


def warned(function, *args, **options):
    """Return the messages of the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*args, **options)
    assert all(item.category is VanishingScalarWarning for item in found)
    return [str(item.message) for item in found]


def named(messages):
    """Return which scalars messages are of."""
    return {message.split(" = ")[0] for message in messages}


@pytest.mark.parametrize(("fmt", "rounding"), CASES, ids=str)
@pytest.mark.sampled(6)
def test_a_warning_exactly_where_the_definition_rounds_to_zero(fmt, rounding):
    policy = rounding if isinstance(rounding, Rounding) else Rounding(rounding)
    target = mcf.get_format(fmt)

    def zero(x):
        return x > 0 and round_fraction(Fraction(x), target, policy) == 0

    seen = set()
    for scalar in SCALARS:
        beta = max(0.0, min(1 - scalar, 1 - 2.0**-53))
        hyper = AdamW(beta1=beta, beta2=0.75, epsilon=scalar, weight_decay=scalar)
        expected = {"1 - beta1": 1 - beta, "1 - beta2": 0.25, "epsilon": scalar, "weight_decay": scalar}
        found = named(warned(Optimizer, hyper, strategy("plain", fmt), START, rounding=rounding))
        assert found == {name for name, x in expected.items() if zero(x)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = Optimizer(SGD(), strategy("plain", fmt), START, rounding=rounding)
        gradient = optimizer.receive({"w": np.zeros(3)})
        assert named(warned(optimizer.step, gradient, scalar)) == ({"rate"} if zero(scalar) else set())
        seen.add(zero(scalar))
    upward = policy.mode in ("up", "to_odd") or fmt.startswith("posit")
    assert seen == ({False} if upward else {True, False})


def test_the_message_says_what_where_and_what_follows():
    (message,) = warned(Optimizer, AdamW(), strategy("plain", "float16"), START)
    least = "whose smallest positive number is 5.96046e-08"
    assert message == f"epsilon = 1e-08 is zero in float16, {least}: where v is zero, a step is 0 / 0"


def test_a_rate_is_warned_of_once():
    optimizer = Optimizer(SGD(), strategy("plain", "float8_e4m3fn"), START)
    gradient = np.ones(3, np.float32)
    counts = [len(warned(optimizer.step, gradient, rate)) for rate in (0.5, 0.0, 1e-4, 1e-5, 0.5)]
    assert counts == [0, 0, 1, 0, 0]


def test_stochastic_rounding_warns_of_what_no_draw_saves():
    rounding, random = Rounding("stochastic", random_bits=8), mcf.RandomWords(0)
    found = {}
    for exponent in range(-24, -8):
        hyper = AdamW(epsilon=2.0**exponent)
        low = strategy("plain", "float8_e4m3fn")
        found[exponent] = bool(warned(Optimizer, hyper, low, START, rounding=rounding, random=random))
    # A fraction below 2**-8 of the smallest number, 2**-9, is no longer seen by 8 bits.
    assert found == {exponent: exponent < -17 for exponent in found}


@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_every_optimizer_warns_of_what_enters_its_steps(kind):
    """Of the defaults the epsilons are zero in float16, each in the format in which it is used."""
    wide = Stored("float32")
    by_m = kind in (AdamW, AMSGrad, Muon)
    for strategies, warns in (({}, True), ({"m": wide}, not by_m), ({"v": wide}, by_m)):
        chosen = strategy(mcf.Strategy("mine", **strategies), "float16")
        expected = {"epsilon"} if warns and hasattr(kind, "epsilon") else set()
        assert named(warned(Optimizer, kind(), chosen, START)) == expected
