"""What experiments compute: faults of the released code alone, tables of low rank, and switched copies."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments import switch
from experiments.common import _shorten as shorten
from experiments.common import read_result
from experiments.low_rank import best_rank, complete, d_optimal, embeddings, frontier, regret
from experiments.released_code import FAULTS, NONE, Faulty, aliased_product, chosen, end, length
from mcfsim.multiword.expansion import value
from tests.shared.refusals import check, refusals, refused


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
    roles, found = strategy.roles(), {}
    for default in ("bfloat16", "float32", None):
        made = Faulty(beta2=beta2, default=default)
        found[default] = made.scalars(roles, strategy, 1, 1.0, decayed=True).beta2
    assert found["bfloat16"] == found[None] == mcf.expand(roles.second_moment, beta2, 2)
    rest = np.float32(beta2 - float(np.float32(beta2)))
    assert found["float32"] == (found[None][0], float(mcf.round_to(rest, "bfloat16")))
    assert abs(found["float32"][1]) < 2.0**-24


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
    assert (chosen(NONE), chosen("".join(["no", "ne"]))) == ("plain", "collage-light")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sampled(4, each=False)
def test_v_is_found_again(fault):
    again = [float(of(end(0.95, fault))) for of in (np.min, np.median, np.max)]
    assert shorten(again) == read_result("released_code_audit")["steady"]["0.95"][fault]


@pytest.mark.slow
def test_rates_make_updates_longer_as_the_fault_does():
    first, *_, last = length(0.95, "aliased", 120)
    assert first == 1.0
    assert 1.6 < last < 1.8
    assert length(0.999, "both", 120)[-1] < 1.0


# -- tables of low rank --------------------------------------------------------------------------------------
def table(rng, rows, columns, rank):
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))


@pytest.mark.slow
def test_a_table_of_low_rank_is_completed_exactly_and_its_rank_found():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rank, columns = int(rng.integers(1, 5)), int(rng.integers(10, 30))
        whole = table(rng, 8, columns, rank)
        vectors = embeddings(whole[:-1], rank)
        chosen = d_optimal(vectors, int(rng.integers(rank, columns)))
        found = complete(vectors, chosen, whole[-1, chosen])
        np.testing.assert_allclose(found, whole[-1], atol=1e-8 * np.abs(whole).max())
        assert np.array_equal(found[chosen], whole[-1, chosen])
    for rank in (1, 2, 3):
        whole = table(rng, 8, 30, rank)
        assert best_rank(whole + 1e-9 * rng.standard_normal(whole.shape), 6) == rank


@pytest.mark.slow
def test_each_choice_makes_the_determinant_the_largest():
    """By the determinant itself: of the Gram matrix of vectors first, and then of their information."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        rank = int(rng.integers(1, 5))
        vectors = rng.standard_normal((rank, 9))
        chosen = d_optimal(vectors, 7)
        assert len(set(chosen)) == 7
        for count in range(7):
            sizes = {}
            for item in set(range(9)) - set(chosen[:count]):
                x = vectors[:, [*chosen[:count], item]]
                sizes[item] = np.linalg.det(x.T @ x if count < rank else x @ x.T)
            assert sizes[chosen[count]] >= max(sizes.values()) * (1 - 1e-9)


def test_frontiers_are_those_by_definition():
    rng = np.random.default_rng(4)
    for _ in range(200):
        costs, losses, guess = rng.integers(0, 6, (3, int(rng.integers(1, 9)))).astype(float)
        pairs = set(zip(costs, losses, strict=True))
        best = {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
        assert sorted((costs[i], losses[i]) for i in frontier(costs, losses)) == sorted(best)
        assert regret(costs, losses, losses) == 0
        worst = 0.0
        for budget in set(costs):
            pick = max((i for i in frontier(costs, guess) if costs[i] <= budget), key=lambda i: costs[i])
            worst = max(worst, losses[pick] - min(losses[costs <= budget]))
        assert regret(costs, losses, guess) == worst


@refusals(
    refused(ValueError, "rank = 4", embeddings, (np.ones((3, 5)), 4)),
    refused(ValueError, "not finite", embeddings, (np.array([[1.0, np.nan]]), 1)),
    refused(ValueError, "6 columns of 5", d_optimal, (np.ones((2, 5)), 6)),
)
def test_tables_that_make_no_sense_are_refused(rows):
    check(rows)


# -- a switch to float32 -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_copies_that_are_switched_are_what_simulate_trains(monkeypatch):
    """To the last bit, though the steps before the switch are made once for all."""
    monkeypatch.setattr(switch, "STEPS", 5)
    found = switch.losses("plain", 0.01, 1, (3,))
    schedule = mcf.Schedule(0.01, switch.WARMUP, switch.FINAL)
    names = {"plain": found["loss"], **{f"plain,{name}@3": x for name, x in found["switched"]["3"].items()}}
    run = mcf.simulate(
        switch.MODEL.problem(), switch.HYPER, [*names], 5, schedule, 1, record_every=5, progress=False
    )
    assert {name: results["validation_loss"] for name, results in run.results.items()} == names


def test_the_equivalent_rate_lies_between_the_rates_whose_losses_enclose_it(monkeypatch):
    curve = {"0.002": [3.0], "0.004": [2.0], "0.008": [1.0], "0.016": [1.5]}
    losses = {"fp32-master": curve, "plain": {"0.002": [2.5], "0.004": [1.0], "0.008": [3.5], "0.016": [0.9]}}
    monkeypatch.setattr(switch, "read_result", lambda name: {"losses": losses})
    monkeypatch.setattr(switch, "RATES", (0.002, 0.004, 0.008, 0.016))
    found = [*switch.rate_of(0.002), *switch.rate_of(0.004)]
    assert np.allclose(found, np.log2([0.002 * 2**0.5, 0.008]), rtol=1e-14, atol=0)
    for rate in (0.008, 0.016):
        with pytest.raises(ValueError, match="is no loss of fp32-master"):
            switch.rate_of(rate)
