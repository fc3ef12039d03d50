"""Advice against brute force, searches against all inputs, bounds against errors, curves against theory."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.analysis.advice import target_of
from mcfsim.analysis.analyse import analyse
from mcfsim.analysis.blame import Blame
from mcfsim.functions import ema_in_components
from mcfsim.rounding import DETERMINISTIC
from tests.analysis.algorithms import ALGORITHMS, average, random_function, root, softmax, total
from tests.shared.rationals import floor_log2


def worst(rounded, rows, wide, numbers):
    """Return the largest error of the result, rounded back, with some expressions in a wider format."""
    steps = Blame(rounded.program).steps_of(list(rows))
    found = rounded.at(numbers, {step.result: mcf.get_format(wide) for step in steps})
    back = np.asarray(mcf.round_to(found.computed, rounded.format), float)
    with np.errstate(all="ignore"):
        relative = np.abs((back - found.exact) / found.exact)
    return float(np.nanmax(relative[found.exact != 0], initial=0.0))


@pytest.mark.costly("every set of expressions is run")
@pytest.mark.sampled(25, each=False)
@pytest.mark.parametrize("chunk", range(25))
def test_advice_is_the_smallest_set_that_serves(chunk, tmp_path):
    for seed in (2 * chunk, 2 * chunk + 1):
        function = random_function(tmp_path, seed, operations=5)
        report = analyse(function, {"x": "uniform(0.5, 2)", "y": "uniform(0.5, 2)"}, count=300, truth=0)
        rounded, target = report.rounded, max(1.5 * report.u, report.median() + report.u / 2)
        advice = report.advise(target)
        every = {step.text.row for step in rounded.program.steps}
        numbers = rounded.inputs.block(0)
        if not advice.reached:
            fresh = rounded.inputs.fresh(4096, rounded.inputs.seed + 1).block(0)
            assert (
                max(worst(rounded, every, "float32", x) for x in (numbers, fresh)) > target
                or advice.fresh > target
            )
            continue
        assert advice.smallest
        assert max(advice.after, advice.fresh) <= target
        after = worst(rounded, advice.expressions, "float32", numbers)
        assert after == pytest.approx(advice.after, rel=1e-12)
        samples = [numbers, *(rounded.inputs.fresh(4096, seed).block(0) for seed in range(1, 5))]
        for size in range(len(advice.expressions)):
            for rows in combinations(every, size):
                assert any(worst(rounded, rows, "float32", x) > target for x in samples), (seed, rows)


@pytest.mark.slow
def test_advice_says_when_no_set_serves_and_when_none_is_needed():
    report = analyse(root, ALGORITHMS[root], count=300)
    assert report.advise("2u").reached
    easy = report.advise(1.0)
    assert easy.expressions == ()
    assert "meets the target 1 already" in str(easy)
    assert easy.after == easy.before
    narrow = report.advise("1u", wide=mcf.Format("p9", precision=9, emin=-126, emax=127))
    assert not narrow.reached
    assert f"is missed: with {len(narrow.expressions)} expressions in p9" in str(narrow)
    both = report.advise("3u", wide="two components")
    assert both.wide.precision == 16


def mean(ar, x, y):
    return ar.mul(ar.add(x, y), 0.3)


ONE_TO_TWO = {"x": "uniform(1, 2)", "y": "uniform(1, 2)"}


def test_advice_rounds_the_result_back_as_the_function_rounds():
    """Upward, the rounding of a float32 result alone costs more than 1.2 u: no advice reaches that."""
    report = analyse(mean, ONE_TO_TWO, rounding="up", count=300, truth=0)

    def widened(ar, x, y):
        wide = ar.like(mcf.get_format("float32"), mcf.Rounding())
        return ar.round(wide.mul(wide.add(wide.round(x), wide.round(y)), 0.3))

    applied = analyse(widened, ONE_TO_TWO, rounding="up", count=300, truth=0)
    assert 1.2 * report.u < applied.worst() < 2 * report.u
    assert not report.advise("1.2u").reached
    assert report.advise("2u").reached


def test_advice_is_tried_on_all_inputs():
    def difference(ar, x, y):
        return ar.add(ar.mul(x, 1.1), y)

    x, y = np.ones(5000), np.ones(5000)
    y[4500] = -0.99609375
    report = analyse(difference, {"x": x, "y": y}, truth=0)
    advice = report.advise("2u")
    assert advice.before == report.worst() > 2 * report.u
    assert [row.text for row in advice.expressions] == ["ar.mul(x, 1.1)"]
    assert advice.reached
    y[0], y[4500] = -0.99609375, -1.0
    report = analyse(difference, {"x": x, "y": y}, truth=0)
    missed = report.advise("2u", wide=mcf.Format("p9", precision=9, emin=-126, emax=127))
    assert not missed.reached
    rows = {step.text.row for step in report.rounded.program.steps}
    numbers = [report.rounded.inputs.block(k) for k in (0, 1)]
    first, second = (worst(report.rounded, rows, missed.wide, x) for x in numbers)
    assert missed.after == second > first > missed.target


def test_fresh_inputs_of_arrays_and_samplers_go_together():
    report = analyse(mean, {"x": np.linspace(1, 2, 300), "y": "uniform(1, 2)"}, truth=0)
    assert report.advise("1u").reached


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_advice_begins_with_the_error_of_the_report(rounding):
    """Also of the sum of components, and at random of inputs in the second block."""
    x = np.append(np.ones(4096), np.linspace(1, 2, 300))
    options = {"output": "sum", "rounding": rounding, "truth": 0}
    report = analyse(lambda ar, x: mcf.fast_two_sum(ar, ar.mul(x, x), 0.375), {"x": x}, **options)
    assert report.advise(1.0).before == report.worst() > 0


def test_there_are_no_fresh_inputs_of_arrays():
    report = analyse(mean, {"x": np.linspace(1, 2, 300), "y": np.linspace(2, 3, 300)}, truth=0)
    for target, said in (("1u", "with 1 expression in float32"), ("2u", "meets the target")):
        advice = report.advise(target)
        assert advice.reached
        assert np.isnan(advice.fresh)
        assert said in str(advice)
        assert "fresh" not in str(advice)


def test_a_format_of_less_range_is_not_wider():
    report = analyse(mean, ONE_TO_TWO, truth=0, count=5)
    short = mcf.Format("short", precision=9, emin=-100, emax=127)
    positive = mcf.Format("positive", precision=9, emin=-126, emax=127, signed=False)
    for narrow in ("float16", short, positive):
        with pytest.raises(ValueError, match="not wider than bfloat16"):
            report.advise("2u", narrow)


def test_targets_are_numbers_or_units():
    fmt = mcf.get_format("bfloat16")
    assert target_of("2u", fmt) == target_of(" 2 u ", fmt) == target_of(2.0**-7, fmt) == 2.0**-7
    assert target_of("0.01", fmt) == target_of("1e-2", fmt) == 0.01
    for wrong in ("u2", "-1u", "", "nan", ".", "1.2.3"):
        with pytest.raises(ValueError, match="target"):
            target_of(wrong, fmt)
    with pytest.raises(ValueError, match="below u"):
        target_of(2.0**-9, fmt)
    with pytest.raises(ValueError, match="seed = -1 must not be negative"):
        analyse(mean, ONE_TO_TWO, truth=0, count=5).advise("2u", seed=-1)


# -- searches ----------------------------------------------------------------------------------------------
def hypot(ar, a, b):
    return ar.sqrt(ar.add(ar.mul(a, a), ar.mul(b, b)))


def squares(ar, a, b):
    return ar.sub(ar.mul(a, a), ar.mul(b, b))


def quotient(ar, a, b):
    return ar.div(ar.add(a, b), ar.mul(a, b))


def logistic(ar, a, b):
    return ar.div(1.0, ar.add(1.0, ar.exp(ar.mul(a, b))))


@pytest.mark.parametrize("objective", ["error/(cond u)", "error/u", "absolute"])
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("function", [hypot, squares, quotient, logistic], ids=lambda x: x.__name__)
@pytest.mark.slow
@pytest.mark.sampled(11, each=False)
def test_a_search_finds_the_worst_of_all_pairs(function, fmt, objective):
    report = analyse(function, {"a": "uniform(0.25, 12)", "b": "uniform(0.25, 12)"}, fmt, truth=0)
    best = report.search(objective, every=True)
    found = report.search(objective, every=False)
    assert best.all_tried
    assert not found.all_tried
    assert found.value == best.value
    at = report.rounded.at([np.array([x]) for x in found.inputs.values()])
    with np.errstate(all="ignore"):
        error = np.abs(at.error if objective == "absolute" else at.error / at.exact)
        scale = {
            "absolute": 1.0,
            "error/u": report.u,
            "error/(cond u)": max(1.0, float(at.condition[0])) * report.u,
        }
    assert float(error[0]) / scale[objective] == found.value


@pytest.mark.sampled(40, each=False)
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_a_search_finds_the_worst_of_all_pairs_of_random_functions(seed, fmt, tmp_path):
    function = random_function(tmp_path, seed)
    report = analyse(function, {"x": "uniform(0.25, 12)", "y": "uniform(0.25, 12)"}, fmt, truth=0)
    assert report.search(every=False).value == report.search(every=True).value


@pytest.mark.costly("all pairs of bfloat16 numbers of a range")
@pytest.mark.parametrize("function", [hypot, quotient], ids=lambda x: x.__name__)
@pytest.mark.sampled(2, each=False)
def test_a_search_comes_near_the_worst_of_all_pairs_of_a_large_format(function):
    inputs = {"a": "uniform(1, 4)", "b": "uniform(1, 4)"}
    report = analyse(function, inputs, "bfloat16", truth=0)
    assert report.search(every=False).value >= 0.99 * report.search(every=True).value


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_search_tries_all_inputs_of_any_number_of_operands(count):
    def product(ar, x):
        return mcf.functions.polynomial_from_roots(ar, 1.1, x)

    values = np.arange(8) / 8 + 2
    inputs = {"x": tuple(x.reshape(-1) for x in np.meshgrid(*[values] * count))}
    report = analyse(product, inputs, "float8_e4m3fn", truth=0)
    found = report.search("error/u")
    assert found.all_tried
    assert found.value == report.worst() / report.u > 0


def test_a_search_has_the_range_of_all_inputs():
    """The worst of them comes after the first block of 4096."""
    report = analyse(lambda ar, x: ar.mul(x, 1.1), {"x": np.linspace(1, 2, 5000)}, truth=0)
    assert np.argmax(report.relative) > 4096
    assert report.search("error").value == report.worst()


@pytest.mark.slow
def test_searches_stay_inside_and_refuse_nonsense():
    report = analyse(hypot, {"a": "uniform(1, 2)", "b": "uniform(1, 2)"}, truth=0, count=50)
    found = report.search(inside=(3.0, 5.0), steps=5)
    assert all(3 <= x <= 5 for x in found.inputs.values())
    for wrong, message in (((5.0, 3.0), "first number exceeds"), ((float("nan"), 3.0), "finite")):
        with pytest.raises(ValueError, match=message):
            report.search(inside=wrong)
    exact = analyse(lambda ar, a: ar.sub(a, a), {"a": "normal()"}, truth=0, count=50).search()
    assert np.isnan(exact.value)
    assert "no input that was tried has a finite error" in str(exact)
    with pytest.raises(ValueError, match=r"unknown objective 'eror'.*error"):
        report.search("eror")
    wide = analyse(total, {"x": "normal()*6"}, count=50, truth=0)
    with pytest.raises(ValueError, match="too many"):
        wide.search(every=True)


# -- bounds and curves ---------------------------------------------------------------------------------------
def steep(ar, x, y):
    """Overflow either way, underflow either way, and an end that a later operation brings back."""
    far = ar.mul(ar.mul(x, y), ar.mul(x, x))
    near = ar.div(y, ar.mul(far, far))
    return ar.sub(ar.add(ar.mul(far, 0.3), near), ar.div(x, 0.01))


SMALL = ("int4", "int8", "ternary", "float4_e2m1fn", "float6_e2m3fn", "float8_e8m0fnu")
SMALL += ("float8_e4m3fnuz", "binary8p1", "binary8p4uf", "posit8")


@pytest.mark.parametrize("mode", ["nearest_even", "down", "to_odd"])
@pytest.mark.parametrize("fmt", SMALL)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_no_error_exceeds_a_bound_where_results_saturate(fmt, mode):
    inputs = {"x": "normal(0, 2)", "y": "normal(0, 2)"}
    if not mcf.get_format(fmt).signed:
        inputs = {"x": "logspace(0.01, 9)", "y": "logspace(0.01, 9)"}
    report = analyse(steep, inputs, fmt, rounding=mode, count=500, truth=0)
    for row in report.bounds():
        assert row.claim != "bound" or not row.exceeded, row


@pytest.mark.slow
def test_stagnation_breaks_three_sigma_and_the_report_says_so():
    report = analyse(total, {"x": tuple(np.full(20, 0.9) for _ in range(1024))}, truth=0)
    (sigma,) = (row for row in report.bounds() if row.name == "3 sigma")
    assert sigma.claim == "heuristic"
    assert sigma.exceeded == 20
    assert "exceeded by 20 of 20 (heuristic)" in str(report)


@pytest.mark.slow
def test_curves_have_the_slopes_of_theory():
    along_p = mcf.curve(total, {"x": "uniform(0.1, 1)*32"}, "precision", range(6, 24, 3), count=100)
    assert along_p.interval[0] < -1 < along_p.interval[1]
    assert along_p.interval[1] - along_p.interval[0] < 0.2
    with pytest.raises(ValueError, match="needs an operand that is a tuple"):
        mcf.curve(hypot, {"a": "normal()", "b": "normal()"}, "length")
    assert np.isnan(mcf.curve(average, {"g": "normal()*3"}, "precision", [8], count=10).slope)
    modes = mcf.curve(softmax, {"x": "normal()*4"}, "rounding", count=50)
    assert [x.at for x in modes.points] == [str(mode) for mode in DETERMINISTIC]


def nearest(x, p):
    """Return a fraction rounded to p bits, ties to even."""
    quantum = Fraction(2) ** (floor_log2(x) - p + 1)
    return round(x / quantum) * quantum


def test_a_curve_is_what_fractions_say():
    inputs = {"x": np.random.default_rng(3).uniform(0.1, 1, (5, 9))}
    expected = []
    for p in (4, 7, 11, 16):
        errors = []
        for row in inputs["x"].tolist():
            terms = [nearest(Fraction(x), p) for x in row]
            s = terms[0]
            for t in terms[1:]:
                s = nearest(s + t, p)
            errors.append(abs(s / sum(terms) - 1))
        expected.append((p, float(sorted(errors)[2]), float(max(errors))))
    found = mcf.curve(total, inputs, "precision", [p for p, *_ in expected])
    for point, (p, median, largest) in zip(found.points, expected, strict=True):
        assert (point.at, point.inputs) == (p, 5)
        assert (point.median, point.largest) == pytest.approx((median, largest), rel=1e-12, abs=0)
    # Least squares, and Student's t of two degrees of freedom in closed form.
    x, y = np.array([(p, np.log2(median)) for p, median, _ in expected]).T
    across = np.sum((x - x.mean()) ** 2)
    slope = np.sum((x - x.mean()) * (y - y.mean())) / across
    rest = y - y.mean() - slope * (x - x.mean())
    half = 0.95 * np.sqrt(2 / (4 * 0.975 * 0.025)) * np.sqrt(np.sum(rest**2) / 2 / across)
    assert (found.slope, *found.interval) == pytest.approx((slope, slope - half, slope + half), rel=1e-9)
    assert found.between(7, 16).points == found.points[1:]
    assert np.isnan(found.between(5, 12).slope)
    with pytest.raises(ValueError, match="total along precision has no point from 12 to 15"):
        found.between(12, 15)


@pytest.mark.slow
def test_a_curve_along_components_counts_the_constants():
    x, beta = np.random.default_rng(4).uniform(0.5, 1.5, (3, 6)), Fraction(99, 100)
    found = mcf.curve(ema_in_components, {"x": x}, "components", [1, 2], options={"beta": beta})
    ar = mcf.arithmetic("bfloat16")
    columns = [mcf.round_to(column, ar.format) for column in x.T]
    exact = [0, 0, 0]
    for column in columns:
        exact = [beta * m + (1 - beta) * Fraction(float(t)) for m, t in zip(exact, column, strict=True)]
    for point in found.points:
        parts = ema_in_components(ar, tuple(columns), beta=beta, k=point.at)
        results = [sum(Fraction(float(part[place])) for part in parts) for place in range(3)]
        errors = sorted(float(abs(a / b - 1)) for a, b in zip(results, exact, strict=True))
        assert (point.median, point.largest) == pytest.approx(tuple(errors[1:]), rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("along", "at", "message"),
    [
        ("precision", [], "a curve along precision needs at least one value"),
        ("precision", [1, 4], "precision = 1 must be at least 2"),
        ("precision", ["4"], "precision must be an int, not '4'"),
        ("precision", "4:8", "at must be a sequence of values, not '4:8'"),
        ("precision", [8, 9, 8], "precision: 8 is among the values more than once"),
        ("precision", [60], "exceeds float64"),
        ("length", [0], "length = 0 must be at least 1"),
        ("length", [2.0], "length must be an int"),
        ("components", [1], "softmax has no option 'k' that is the number of components"),
        ("rounding", ["up", "up"], "rounding: up is among the values more than once"),
        ("rounding", [1], "unknown rounding 1"),
        ("condition", [1, 2], "along condition the values follow from the inputs"),
        ("condition", None, "no binade of condition numbers holds 4 inputs"),
        (3, None, "no curve along 3"),
    ],
)
def test_curves_along_nothing_are_refused(along, at, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mcf.curve(softmax, {"x": "normal()*4"}, along, at, count=3)


def test_stochastic_errors_keep_to_their_variance():
    """One input, many runs: the deviation is at most a third of the bound of three, and near it."""
    x = tuple(np.full(4000, 0.5 + 0.03 * k) for k in range(16))
    report = analyse(total, {"x": x}, rounding="stochastic", truth=0)
    deviation, bound = float(np.std(report.error)), float(np.median(report.columns["3 sigma"])) / 3
    assert 0.3 * bound < deviation < bound
    assert abs(float(np.mean(report.error))) < 4 * deviation / np.sqrt(4000)


@pytest.mark.slow
def test_binary64_is_analysed_without_intervals():
    report = analyse(softmax, {"x": "normal()*4"}, "float64", count=50)
    assert "interval" not in {row.name for row in report.bounds()}
    assert report.truth.off < 1e-6
    assert 0 < report.worst() < 20 * report.u


def test_binary64_is_searched():
    report = analyse(hypot, {"a": "uniform(1, 100)", "b": "uniform(1, 100)"}, "float64", count=200, truth=0)
    found = report.search("error/u", steps=20)
    assert report.worst() / report.u < found.value <= 2
    assert all(1 <= x <= 100 for x in found.inputs.values())


@pytest.mark.parametrize(
    ("along", "at", "more", "message"),
    [
        ("rounding", ["up"], {"rounding": "down"}, "rounding cannot be given for a curve along rounding"),
        ("components", [2], {"output": 1}, "output cannot be given for a curve along components"),
        ("components", [2], {"options": {"k": 3}}, "the option k is what the curve goes along"),
        ("length", [2], {"precisions": [5]}, "precisions cannot be given for a curve along length"),
    ],
)
def test_a_curve_refuses_what_it_sets_itself(along, at, more, message):
    with pytest.raises(ValueError, match=message):
        mcf.curve(ema_in_components, {"x": "normal()*3"}, along, at, count=5, **more)


def test_what_a_search_does_not_take_is_said():
    report = analyse(mean, ONE_TO_TWO, "float8_e4m3fn", truth=0, count=5)
    for inside in ((1,), (1, 2, 3), 5, "ab"):
        with pytest.raises(ValueError, match="inside must be a pair of numbers"):
            report.search(inside=inside)
    with pytest.raises(ValueError, match="unknown objective 5"):
        report.search(5)
    with pytest.raises(ValueError, match="seed = -1 must not be negative"):
        report.search(seed=-1)
    with pytest.raises(ValueError, match="the difference = inf must be finite"):
        analyse(mean, {"x": "uniform(-1e308, 1e308)", "y": "normal()"})
    with pytest.raises(ValueError, match="at least one format"):
        analyse(mean, ONE_TO_TWO, [])
