"""What pages say is above or below, better or worse, holds with the interval of its paired differences."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import ttest_1samp

import mcfsim as mcf
from experiments import first_moment, memory_quality, paired, posit_quire, rounding_points
from experiments.common import read_result

pytestmark = pytest.mark.slow

#: By so many standard deviations of three differences the 95 % interval of their mean reaches to both sides.
OF_THREE = paired.interval([-1.0, 0.0, 1.0])[1]


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_an_interval_is_students(count):
    random = np.random.default_rng(count)
    for _ in range(30):
        found = random.standard_normal(count) + random.standard_normal()
        expected = ttest_1samp(found, 0).confidence_interval(0.95)
        assert paired.interval(found) == pytest.approx((expected.low, expected.high), rel=1e-9)
        assert paired.apart(found) == (ttest_1samp(found, 0).pvalue < 0.05)
    assert list(map(paired.answer, ([0.0, 0.0], [1.0, 1.1], [-1.0, 1.1]))) == ["", "yes", "no"]
    assert round(OF_THREE, 1) == 2.5


def test_the_table_of_strategies_tells_only_weights_on_grids_from_master_weights():
    cells = {
        c["strategy"]: c for c in read_result(memory_quality.RESULT)["cells"] if c["format"] == "bfloat16"
    }
    apart = {name for name, cell in cells.items() if paired.apart(memory_quality.against_reference(cell))}
    assert apart == set(mcf.GRID_STRATEGIES)
    assert cells["split-master"]["peak"] != cells["fp32-master"]["peak"]


def test_which_options_are_told_from_master_weights():
    table = read_result("collage_options")["table"]
    apart = {
        (name, beta2)
        for beta2, rows in table.items()
        for name, row in rows.items()
        if abs(row["difference"]) > OF_THREE * row["spread"]
    }
    plain = {(name, beta2) for name in ("plain", "fp32-optim") for beta2 in ("0.999", "0.95")}
    assert apart == plain | {("kahan", "0.999"), ("collage-light", "0.999")}


def losses(*wanted, sums="once"):
    """Return the validation losses of a training with posits or floats, one a seed."""
    runs = read_result(posit_quire.NAME)["runs"]
    (item,) = (one for one in posit_quire.CHOICES if (one.forward, one.loss, one.low, one.strategy) == wanted)
    rate = posit_quire.best(runs, item)
    found = [runs[posit_quire.key(item, rate, sums, seed)] for seed in posit_quire.SEEDS]
    return np.array([run["validation_loss"] for run in found])


PLAIN = "plain"


@pytest.fixture(scope="module")
def wide():
    """Return the losses of the training in binary64, with parameters of float32."""
    return losses(None, None, "float32", PLAIN)


@pytest.mark.parametrize(
    "row",
    [
        ("float8_e4m3fn", "bfloat16", "bfloat16", PLAIN),
        ("posit8", "posit12", "posit12", PLAIN),
        ("posit8", "posit16", "posit16", PLAIN),
    ],
)
def test_eight_bits_forward_and_backward_are_not_told_from_binary64(row, wide):
    assert not paired.apart(losses(*row) - wide)


def test_eight_bits_throughout_end_half_as_high_again_and_what_they_lose_in_the_weights(wide):
    for name in ("posit8", "float8_e4m3fn"):
        found = losses(name, None, name, PLAIN)
        assert paired.apart(found - wide)
        assert 1.4 < found.mean() / wide.mean() < 1.6
    eight = losses("posit8", "posit16", "posit8", PLAIN)
    gap = eight - losses("posit8", "posit16", "posit16", PLAIN)
    assert paired.apart(gap)
    assert round(gap.mean(), 2) == 0.03
    assert paired.apart(losses("posit8", "posit16", "posit8", "stochastic-parameter") - eight)
    assert not paired.apart(losses("posit8", "posit16", "posit8", "kahan") - eight)


def test_a_quire_is_worth_something_with_posit8_throughout():
    worth = {}
    for item in posit_quire.EACH:
        row = item.forward, item.loss, item.low, item.strategy
        worth[row] = losses(*row, sums="each") - losses(*row)
    apart = {row: round(gain.mean(), 2) for row, gain in worth.items() if paired.apart(gain)}
    assert apart == {("posit8", None, "posit8", PLAIN): 0.03}


@pytest.mark.parametrize(("posit", "other"), [("posit8", "float8_e4m3fn"), ("posit16", "bfloat16")])
def test_posits_and_floats_of_as_many_bits_are_not_told_apart(posit, other):
    assert not paired.apart(losses(posit, None, posit, PLAIN) - losses(other, None, other, PLAIN))


def test_decay_apart_gains_by_not_decaying(monkeypatch):
    """Without decay both end at the same bits, which are those of decay apart; already after some steps."""
    monkeypatch.setattr(rounding_points, "TRAINED", 30)
    monkeypatch.setattr(rounding_points, "SEEDS", (0,))
    decayed = rounding_points.losses("plain", ("added",))
    monkeypatch.setitem(rounding_points.HYPER, "weight_decay", 0.0)
    assert rounding_points.losses("plain", ()) == rounding_points.losses("plain", ("added",)) == decayed


def test_near_middles_all_go_the_way_of_one_ulp_of_beta1():
    below, wanted = math.nextafter(0.9, 0.0), Fraction(9, 10)
    assert Fraction(below) < wanted < Fraction(0.9)
    assert len(first_moment.middles(wanted)) == 12
    assert first_moment.ways(0.9, wanted) == (12, 0)
    assert first_moment.ways(below, wanted) == (0, 12)
    for beta1 in (0.9, below):
        assert first_moment.ways(beta1, wanted, single=True) == (6, 6)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def test_pytorch_multiplies_as_the_page_says(torch):
    wanted = Fraction(9, 10)
    found = torch.tensor(first_moment.middles(wanted), dtype=torch.bfloat16).mul(0.9).tolist()
    exact = [wanted * k for k in first_moment.middles(wanted)]
    assert sum(Fraction(x) > y for x, y in zip(found, exact, strict=True)) == 6
