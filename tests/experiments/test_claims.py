"""What pages say of committed results holds in them: what is above or below, what is lost, what learns."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import ttest_1samp

import mcfsim as mcf
from experiments import (
    dqt_bits,
    dqt_tensors,
    first_moment,
    late_training,
    paired,
    posit_quire,
    precision_curves,
    rounding_points,
    stalled_averages,
    strategy_losses,
    switch,
)
from experiments.common import read_result
from tests.shared.pages import page

pytestmark = pytest.mark.slow

OPTIONS = read_result("collage_options")["table"]
DQT = read_result("dqt_bits")["table"]
AUDIT = read_result("released_code_audit")


@pytest.mark.parametrize("count", [2, 3, 20])
def test_an_interval_is_students(count):
    random = np.random.default_rng(count)
    for _ in range(30):
        found = random.standard_normal(count) + random.standard_normal()
        expected = ttest_1samp(found, 0).confidence_interval(0.95)
        assert paired.interval(found) == pytest.approx((expected.low, expected.high), rel=1e-9)
        assert paired.apart(found) == (ttest_1samp(found, 0).pvalue < 0.05)
    assert list(map(paired.answer, ([0.0, 0.0], [1.0, 1.1], [-1.0, 1.1]))) == ["", "yes", "no"]


@pytest.mark.parametrize("count", [3, 8])
def test_the_ends_of_a_quotient_are_where_the_interval_of_a_difference_ends_at_zero(count):
    random = np.random.default_rng(count)
    for _ in range(30):
        x, y = random.standard_normal((2, count)) + random.standard_normal((2, 1))
        if not paired.apart(y):
            with pytest.raises(ValueError, match="not told from zero"):
                paired.quotient(x, y)
            continue
        mean, low, high = paired.quotient(x, y)
        assert low < mean < high
        assert mean == pytest.approx(x.mean() / y.mean())
        for end in (low, high):
            assert min(map(abs, paired.interval(x - end * y))) == pytest.approx(0, abs=1e-8)
        assert not paired.apart(x - (low + high) / 2 * y)


# -- a switch to float32 -------------------------------------------------------------------------------------
def test_what_the_last_steps_recover_and_at_which_rate_plain_bf16_learns():
    text = " ".join(page("switch").read_text().split())
    few, _, half, _ = (switch.share(last)[0] for last in switch.LAST)
    lost = "of what plain bf16 has lost, the last half"
    assert switch.TITLE.endswith(f"{100 * few:.0f} % {lost} {100 * half:.0f} %")
    assert f": {100 * few:.0f} % of the gap is recovered. The last half recovers {100 * half:.0f} %." in text
    said = []
    for rate in (0.002, 0.004):
        found = switch.rate_of(rate)
        mean, low, high = (f"{2.0**x:.5f}"[1:] for x in (found.mean(), *paired.interval(found)))
        assert f"{mean} ({low} to {high}) for {rate:g}".replace(" 0.", " .") in text
        said.append(f"{100 * 2 ** found.mean() / rate:.0f} %")
    assert f"which is {' and '.join(said)} of it" in text


# -- late in training ----------------------------------------------------------------------------------------
def test_the_power_of_the_size_is_said_with_its_interval():
    text = " ".join(page("results").read_text().split())
    for schedule, words, sign in zip(
        late_training.SCHEDULES,
        ("after the cosine, where it shrinks", "at the constant rate: there it grows"),
        (-1, 1),
        strict=True,
    ):
        found = late_training.exponent(schedule)
        assert min(sign * x for x in found) > 0
        slope, low, high = (f"{x:+.2f}".replace("0.", ".") for x in found)
        assert f"{slope} ({low} to {high}) {words}" in text.replace(" of +", " +")
    slope, _, _ = late_training.exponent("constant, 1/32")
    assert f"by {100 * (10**slope - 1):.0f} % for ten times the parameters" in text


# -- the strategies of the README ---------------------------------------------------------------------------
@pytest.mark.parametrize("kind", strategy_losses.LABELS)
def test_the_table_of_strategies_tells_only_weights_on_grids_from_master_weights(kind):
    found = strategy_losses.losses(kind)
    apart = {name for name, x in found.items() if paired.apart(x - found[strategy_losses.REFERENCE])}
    assert apart == set(mcf.GRID_STRATEGIES) - {"bitnet"}
    gaps = [np.mean(found[name] - found[strategy_losses.REFERENCE]) for name in apart]
    assert (f"{min(gaps):.1f}", f"{max(gaps):.1f}") == ("1.8", "2.1")


def test_strategies_stand_in_the_order_of_those_that_are_told_to_lose_less():
    found, order = strategy_losses.losses("own"), strategy_losses.order()
    counts = [
        sum(
            paired.apart(found[name] - theirs) and (found[name] - theirs).mean() > 0
            for theirs in found.values()
        )
        for name in order
    ]
    assert sorted(order) == sorted(found)
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


@pytest.mark.parametrize("beta2", ["0.999", "0.95"])
def test_what_the_options_show(beta2):
    """What is lost and what arrives late in the run, by the table and the figure of the small model."""
    rows = OPTIONS[beta2]
    for name in ("plain", "fp32-optim"):
        assert 0.5 < rows[name]["late_lost"] < 0.6
        assert rows[name]["late_normalized_edq"] < 0.9
    for name in ("kahan", "collage-light", "collage-plus"):
        assert rows[name]["late_lost"] < 0.004
        arrived = np.array([rows[name]["normalized_edq"], rows[name]["late_normalized_edq"]])
        assert abs(arrived - 1).max() < 0.0005
    large = {name for name, row in rows.items() if row["late_v_ratio"] > 1.1}
    assert large == ({"plain", "kahan", "collage-light"} if beta2 == "0.999" else set())
    assert abs(rows["collage-plus"]["late_v_ratio"] - 1) < 0.001
    drawn = read_result("collage_options")["series"][beta2]
    assert min(np.array(drawn["plain"]["lost"])[:, -1]) > 0.5


def test_a_plain_second_moment_stalls_and_an_expansion_does_not():
    ends = read_result("beta2_expansion")["v_over_g_squared_at_the_end"]
    low, _, high = ends["constant"]["bf16"]
    assert (round(low, 3), round(high, 3)) == (0.258, 0.512)
    for kind, by_curve in ends.items():
        exact = by_curve["exact"][1]
        assert abs(by_curve["bf16, 2 components"][1] / exact - 1) < 0.01, kind
        assert abs(by_curve["bf16"][1] / exact - 1) > 0.5, kind


def test_averages_stall_where_the_rule_says_and_are_wrong_by_then():
    """For each constant target, and for each number of a model's v."""
    assert stalled_averages.agreement() == (192, 192)
    result = read_result("stalled_averages")
    for row in result["constant"]:
        for said, found in zip(row["wrong_by_rule"], row["wrong_by_trial"], strict=True):
            assert found is None if said is None else found <= said
    assert [run["said_wrongly"] for run in result["runs"]] == [0] * 6
    assert round(sum(run["asked"] for run in result["runs"]) / 1e6) == 856


@pytest.mark.parametrize("beta2", ["0.999", "0.95"])
def test_the_length_of_a_first_moment_follows_one_ulp_of_beta1(beta2):
    """What is changed is that ulp alone; an ulp more or less beyond the middles changes little."""
    found = {name: np.array(rows[beta2]) for name, rows in read_result("first_moment")["trainings"].items()}
    length = {name: numbers[:, 0].mean() - 1 for name, numbers in found.items()}
    for ulps in ("", " +1 ulp", " +2 ulp"):
        assert 4e-4 < length[f"double(.9){ulps}"] < 8e-4
    for ulps in (" -1 ulp", " -2 ulp"):
        assert -5e-4 < length[f"double(.9){ulps}"] < -2e-4
    assert paired.apart(found["double(.9)"][:, 0] - found["double(.9) -1 ulp"][:, 0])
    assert abs(length["double(.9), m in 2 components"]) < 1e-5
    assert -0.01 < length["double(.9), scalars rounded"] < -0.008


def test_the_parts_of_the_length_of_an_update_add_up_to_it():
    found = {label: np.array(parts) for label, parts in read_result("first_moment")["blame"].items()}
    whole = found.pop(first_moment.ALL)
    assert sum(found.values()) == pytest.approx(whole, abs=1e-8)


def test_the_rates_of_the_study_are_within_its_grid():
    result = read_result("own_rates")
    for name, tuned in result["tuning"].items():
        rates = sorted(map(float, tuned))
        assert rates[0] < result["runs"][name]["rate"] < rates[-1]
        both = {float(rate): np.mean(losses) for rate, losses in tuned.items() if len(losses) == 2}
        assert result["runs"][name]["rate"] == min(both, key=both.get)
    assert {len(row["loss"]) for row in result["runs"].values()} == {8}


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


# -- posits -------------------------------------------------------------------------------------------------
PLAIN = "plain"
#: The training in binary64, with parameters of float32.
WIDE = (None, None, "float32", PLAIN)


def losses(*wanted, sums="once"):
    """Return the validation losses of a training with posits or floats, one a seed."""
    runs = read_result(posit_quire.NAME)["runs"]
    (item,) = (one for one in posit_quire.CHOICES if (one.forward, one.loss, one.low, one.strategy) == wanted)
    rate = posit_quire.best(runs, item)
    keys = [posit_quire.key(item, rate, sums, seed) for seed in posit_quire.SEEDS]
    return np.array([runs[key]["validation_loss"] for key in keys])


def apart(one, other):
    return paired.apart(losses(*one) - losses(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Eight bits forward and backward, and binary64.
        (("float8_e4m3fn", "bfloat16", "bfloat16", PLAIN), WIDE),
        (("posit8", "posit12", "posit12", PLAIN), WIDE),
        (("posit8", "posit16", "posit16", PLAIN), WIDE),
        # Posits and floats of as many bits.
        (("posit8", None, "posit8", PLAIN), ("float8_e4m3fn", None, "float8_e4m3fn", PLAIN)),
        (("posit16", None, "posit16", PLAIN), ("bfloat16", None, "bfloat16", PLAIN)),
        # What is lost in the weights, and what brings it back.
        (("posit8", "posit16", "posit8", "kahan"), ("posit8", "posit16", "posit8", PLAIN)),
    ],
)
def test_which_trainings_are_not_told_apart(one, other):
    assert not apart(one, other)


def test_eight_bits_throughout_end_half_as_high_again_and_what_they_lose_in_the_weights():
    for name in ("posit8", "float8_e4m3fn"):
        assert apart((name, None, name, PLAIN), WIDE)
        assert 1.4 < losses(name, None, name, PLAIN).mean() / losses(*WIDE).mean() < 1.6
    eight = "posit8", "posit16", "posit8"
    gap = losses(*eight, PLAIN) - losses("posit8", "posit16", "posit16", PLAIN)
    assert paired.apart(gap)
    assert round(gap.mean(), 2) == 0.03
    assert apart((*eight, "stochastic-parameter"), (*eight, PLAIN))


def test_a_quire_is_worth_something_with_posit8_throughout():
    rows = [(item.forward, item.loss, item.low, item.strategy) for item in posit_quire.EACH]
    worth = {row: losses(*row, sums="each") - losses(*row) for row in rows}
    told = {row: round(gain.mean(), 2) for row, gain in worth.items() if paired.apart(gain)}
    assert told == {("posit8", None, "posit8", PLAIN): 0.03}


# -- weights on grids ---------------------------------------------------------------------------------------
def test_to_nearest_few_bits_freeze_and_at_random_they_learn():
    for integers in ("ternary", "int2", "int3", "int4"):
        still, moving = DQT[f"dqt-{integers}, {dqt_bits.NEAREST}"], DQT[f"dqt-{integers}"]
        assert still["changed"][0] == 0.0
        assert max(still["changed"]) <= (1e-3 if integers == "int4" else 0)
        assert min(moving["changed"]) > 0
        assert moving["validation_loss"] < still["validation_loss"] - 0.5


def test_with_a_tied_embedding_on_it_the_grid_and_not_the_rounding_costs_eight_bits_their_loss():
    """What the page says: above BitNet's, and below it from a grid up to the largest weight."""
    loss = {name: row["validation_loss"] for name, row in DQT.items()}
    assert loss["dqt-int8"] > 1.05 * loss[dqt_bits.BITNET]
    assert loss[f"dqt-int8, {dqt_bits.WIDE}"] < loss[dqt_bits.BITNET]
    ternary = [DQT[f"dqt-int{bits}"]["ternary_validation_loss"] for bits in range(3, 9)]
    assert max(ternary[1:]) < loss["dqt-ternary"] - 5 * DQT["dqt-ternary"]["spread"]
    costs = [found - loss[f"dqt-int{bits}"] for bits, found in enumerate(ternary, 3)]
    assert costs[0] == max(costs) > 2 * min(costs)
    assert DQT["dqt-int8"]["grid_size"][-1] <= 1 < DQT[dqt_bits.BITNET]["grid_size"][-1]


def test_it_is_the_embedding_that_costs_eight_bits_their_loss():
    """Taken off the grid alone it takes the gap away, and put on it alone it brings nearly all of it."""
    found = {shape: dqt_tensors.above_bitnet(row) for shape, row in dqt_tensors.losses().items()}
    short, matrices = dqt_tensors.SHORT, dqt_tensors.MATRICES
    long = {choice: found[choice, 64, dqt_bits.LONG] for choice in dqt_tensors.CHOICES}
    assert min(long["all"]) > 0.65
    assert min(long["the embedding"]) > 0.6
    assert max(long["all but the embedding"]) < 0.05
    assert max(long[matrices]) < 0.03
    assert paired.apart(long[matrices])
    assert not any(paired.apart(found[matrices, width, short]) for width in dqt_tensors.WIDTHS)
    assert max(found["all", 256, short]) < 0.12 < 0.28 < min(found["all", 64, short])


def test_eight_bits_come_near_bitnet_from_a_grid_that_is_wide_enough():
    found = {name: np.mean(row["above_bitnet"]) for name, row in read_result("dqt_long")["table"].items()}
    assert found["dqt-int8"] > 0.5
    for wide in (dqt_bits.WIDE, "max-abs scale", "wide start, max-abs scale"):
        assert found[f"dqt-int8, {wide}"] < 0.05
    for other in ("int8 activations", "bf16 states", "fp8 states", "fixed scale", dqt_bits.ADAFACTOR):
        assert abs(found[f"dqt-int8, {other}"] - found["dqt-int8"]) < 0.01


# -- released code, and schemes of other systems ------------------------------------------------------------
def test_v_is_what_the_released_code_gives():
    # By running it: medians over the significands after a constant gradient.
    published = {"0.95": 0.342, "0.98": 0.337, "0.99": 0.307, "0.999": 0.477}
    for beta2, v in published.items():
        assert AUDIT["steady"][beta2]["aliased"][1] == pytest.approx(v, abs=1.1e-3)
    assert AUDIT["steady"]["0.999"]["default"][1] == pytest.approx(5.0, abs=0.01)
    assert AUDIT["steady"]["0.999"]["right"][1] == pytest.approx(0.993, abs=0.007)


def test_what_faults_of_the_released_code_cost():
    found = AUDIT["table"]
    for beta2, row in found.items():
        assert abs(np.mean(row["right, collage-plus"]["differences"])) < 0.003, beta2
    faults = ("aliased, collage-plus", "rates of aliased, fp32-master")
    fault, rates = (np.array(found["0.95"][name]["differences"]) for name in faults)
    assert paired.interval(fault)[1] < -0.5
    assert abs(rates.mean() / fault.mean() - 1) < 0.1
    assert abs(np.mean(found["0.999"]["rounded, fp32-master"]["differences"])) < 0.001
    light, plain = (
        np.mean(found["0.999"][f"right, {name}"]["differences"]) for name in ("collage-light", "plain")
    )
    assert 5 * light < plain


def test_small_updates_are_lost_where_the_formats_say():
    found = read_result("lost_update_phase")["retained"]["bfloat16"]
    rows = {name: row["mean"] for name, row in found.items()}
    assert rows["nearest"][9:] == [0.0] * 16
    assert rows["nearest"][8] > 0
    assert rows["Kahan"][9:] == rows["2 components"][9:]
    assert rows["split 16 + 16"] == rows["binary32 master"]
    apart = np.subtract(rows["remainder of 16 bits"], rows["binary32 master"])  # it misses some last bits
    assert 0 < np.abs(apart[:24]).max() < 1e-4
    assert rows["remainder of 8 bits"][17:] == [0.0] * 8
    assert rows["stochastic, 16 bits"][24] == 0.0 < rows["stochastic, 32 bits"][24]


def test_which_schemes_are_binary32_master_weights():
    found = read_result("scheme_equivalence")
    assert found["steps"] == 10_000
    same = [name for name, row in found["schemes"].items() if row["weight"]["apart"] == 0]
    assert same == ["split-truncated", "split-master"]
    rounded = found["schemes"]["split-master"]
    assert rounded["seen"]["apart"] > 0 == rounded["apart without a tie"]


def test_replicas_drift_by_what_they_draw():
    for kinds in read_result("replicas")["apart"].values():
        assert not np.array(kinds["one"]).any()
        assert (np.diff(np.mean(kinds["two"], axis=0)) > 0).all()


# -- errors by precision and components ---------------------------------------------------------------------
def test_what_the_figure_of_precision_and_components_says():
    found = read_result("precision_curves")
    for task in precision_curves.TASKS:
        low, high = found[task]["by_precision"]["1"]["interval"]
        assert low < -1 < high
    assert found["average"]["by_precision"]["2"]["interval"][0] < -1
    assert found["average"]["by_precision"]["2"]["interval"][1] > -1
    rows = {task: found[task]["by_components"] for task in precision_curves.TASKS}
    assert all(row["largest"][-1] == 0 for row in rows["sum"].values())
    for fmt in ("bfloat16", "float16", "float8_e4m3fn"):  # what is left is rounded on entry
        _, two, three = rows["average"][fmt]["median"]
        assert 0.8 < three / two < 1.2
    for fmt, row in rows["updates"].items():
        kept = row["median"][1 if fmt in ("bfloat16", "float16") else 2]
        assert kept < row["median"][0] / 50
    two = found["sum"]["by_precision"]["2"]
    assert [p for p, x in zip(two["at"], two["largest"], strict=True) if x == 0] == list(range(8, 25, 2))
