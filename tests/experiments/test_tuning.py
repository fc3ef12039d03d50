"""How rates are chosen: the least loss within a grid that grows where it must, by two seeds."""

import numpy as np
import pytest

from experiments import dqt_published, own_rates, tuning

RATES, OPTIONS = tuning.RATES, ("plain", ("collage-plus", 0.95))


def chosen(loss):
    """Return the choice of rates where `loss(option, rate, seed)` is what a training gives, and the jobs."""
    asked = []

    def losses(jobs):
        asked.extend(jobs)
        return [loss(*job) for job in jobs]

    tuned = tuning.tune(OPTIONS, losses)
    assert len(set(asked)) == len(asked)
    return tuned, asked


@pytest.mark.parametrize("place", range(-3, 9))
def test_the_best_rate_is_found_also_beyond_the_grid(place):
    best = RATES[0] * 2.0**place
    tuned, asked = chosen(lambda option, rate, seed: np.log2(rate / best) ** 2)
    assert list(tuned) == list(OPTIONS)
    for rates in tuned.values():
        assert tuning.best_rate(rates) == best
        assert min(rates) < best < max(rates)
        assert set(RATES) <= set(rates)
        assert list(rates) == sorted(rates)
    assert {seed for *_, seed in asked} == set(tuning.SEEDS)


def test_each_option_has_its_own():
    tuned, _ = chosen(lambda option, rate, seed: abs(RATES.index(rate) - (1 if option == "plain" else 4)))
    assert [tuning.best_rate(rates) for rates in tuned.values()] == [RATES[1], RATES[4]]


def test_the_second_seed_decides_among_the_better_half():
    tuned, _ = chosen(
        lambda option, rate, seed: abs(RATES.index(rate) - (2.2 if seed == tuning.SEEDS[0] else 3.5))
    )
    for rates in tuned.values():
        assert tuning.best_rate(rates) == RATES[3]
        assert [len(losses) for losses in rates.values()] == [1, 2, 2, 2, 1, 1]


def test_a_training_that_diverges_counts_as_a_model_that_knows_nothing():
    tuned, _ = chosen(lambda option, rate, seed: None if rate > RATES[2] else 3 - RATES.index(rate))
    for rates in tuned.values():
        assert tuning.best_rate(rates) == RATES[2]
        assert [losses[0] for losses in rates.values()] == [3, 2, 1, *[pytest.approx(np.log(256))] * 3]
    assert dqt_published.best_rate({0.1: None, 0.2: 2.5, 0.4: 2.6}) == 0.2


def test_no_seed_of_the_choice_is_reported():
    assert not {*tuning.SEEDS, dqt_published.TUNING} & {*own_rates.SEEDS, *dqt_published.SEEDS}
    assert len(own_rates.SEEDS) >= 8
    assert {own_rates.CONTROL, own_rates.REFERENCE} < set(own_rates.OPTIONS)
