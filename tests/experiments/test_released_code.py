"""The faults of the released code are what they are said to be, and nothing else differs."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments.common import _shorten as shorten
from experiments.common import read_result
from experiments.released_code import FAULTS, NONE, Faulty, aliased_product, chosen, end, length
from mcfsim.multiword.expansion import value


def moved(hyper, strategy, steps=5):
    """Return an optimizer after some steps, the update of the last, and the state before it."""
    random = np.random.default_rng(1)
    start = {"w": random.standard_normal((8, 16)), "gain": np.ones(16)}
    optimizer = mcf.Optimizer(hyper, mcf.strategy(strategy), start, ["w"])
    for _ in range(steps):
        before = [x.copy() for items in optimizer.state for x in items]
        gradient = {name: random.standard_normal(x.shape) for name, x in start.items()}
        update = optimizer.step(optimizer.receive(gradient), 1e-3)
    return optimizer, update, before


def test_an_aliased_product_multiplies_by_beta2_and_twice_it_less_one():
    ar = mcf.arithmetic(None, backend="exact")
    for b, rest in ((0.75, 0.0), (0.96875, 0.125), (0.5, 0.125)):
        parts = aliased_product(ar, (ar.round(b), ar.round(0.0)), (ar.round(1.0), ar.round(rest)))
        # What is left of the second word is right; the error of the product counts twice.
        assert value(parts) == Fraction(b) * (2 * Fraction(b) - 1) + 2 * Fraction(b) * Fraction(rest)
    # It is right where nothing is to be lost.
    assert aliased_product(mcf.arithmetic("bfloat16"), (1.0, 0.0), (0.75, 0.0)) == (0.75, 0.0)


@pytest.mark.parametrize("beta2", [0.95, 0.98, 0.999, 0.9999])
def test_the_rest_of_beta2_by_the_default_format(beta2):
    strategy = mcf.strategy("collage-plus")
    roles = strategy.roles()

    def found(default):
        return Faulty(beta2=beta2, default=default).scalars(roles, strategy, 1, 1.0, decayed=True).beta2

    assert found("bfloat16") == found(None) == mcf.expand(roles.second_moment, beta2, 2)
    rest = np.float32(beta2 - float(np.float32(beta2)))
    assert found("float32") == (found(None)[0], float(mcf.round_to(rest, "bfloat16")))
    assert abs(found("float32")[1]) < 2.0**-24


@pytest.mark.parametrize("strategy", ["collage-plus", "fp32-master", "plain"])
def test_without_a_fault_it_is_adamw(strategy, assert_same):
    ours, update, _ = moved(Faulty(beta2=0.95), strategy)
    right, expected, _ = moved(mcf.AdamW(beta2=0.95), strategy)
    assert_same(update, expected)
    pairs = zip(ours.state, right.state, strict=True)
    for x, y in (pair for one, other in pairs for pair in zip(one, other, strict=True)):
        assert_same(x, y)


def test_an_update_is_rounded_before_the_master_copy(assert_same):
    optimizer, update, before = moved(Faulty(rounded=True), "fp32-master")
    (master,), old = optimizer.state.extra, before[-1]
    code = update.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((code + 0x7FFF + ((code >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    assert (rounded != update).mean() > 0.9
    assert_same(master, old + rounded)


def test_what_is_read_is_not_the_object_that_is_asked_for():
    assert chosen(NONE) == "plain"
    assert chosen("".join(["no", "ne"])) == "collage-light"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sampled(4, each=False)
def test_v_is_found_again(fault):
    ratio = end(0.95, fault)
    again = [float(of(ratio)) for of in (np.min, np.median, np.max)]
    assert shorten(again) == read_result("released_code_audit")["steady"]["0.95"][fault]


@pytest.mark.slow
def test_rates_make_updates_longer_as_the_fault_does():
    longer = length(0.95, "aliased", 120)
    assert longer[0] == 1.0
    assert 1.6 < longer[-1] < 1.8
    assert length(0.999, "both", 120)[-1] < 1.0
