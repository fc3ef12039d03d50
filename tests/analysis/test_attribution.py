"""What rounding does to a function: every number against the oracle, fractions and mpmath; planted errors."""

import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.analysis.analyse import analyse
from mcfsim.analysis.attribution import Attribution, RoundedFunction
from mcfsim.analysis.blame import Blame
from mcfsim.analysis.samplers import inputs_of
from mcfsim.analysis.truth import of_program, truth
from mcfsim.rounding import get_rounding
from tests.analysis.algorithms import ALGORITHMS, random_function, softmax, total, waves

FINE, COARSE = (mcf.Format(f"p{p}", precision=p, emin=-400, emax=400) for p in (11, 6))
FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "posit16")


def in_formats(*formats):
    """Return algorithms in formats; tables of every function in one of 16 bits take seconds."""
    return [
        pytest.param(text, fmt, marks=pytest.mark.exhaustive if text is waves and "16" in fmt else ())
        for text in ALGORITHMS
        for fmt in formats
    ]


def question(function, inputs, fmt="bfloat16", mode="nearest_even", count=40, data="format", **options):
    found = inputs_of(function, inputs, options, count, 0)
    return RoundedFunction(
        function, found, mcf.get_format(fmt), get_rounding(mode), "exact", 0, data, options
    )


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(22, each=False)
@pytest.mark.parametrize("mode", ["nearest_even", "up"])
@pytest.mark.parametrize(("function", "fmt"), in_formats(*FORMATS))
def test_errors_are_those_of_mpmath_and_shares_add_up(function, fmt, mode):
    asked = question(function, ALGORITHMS[function], fmt, mode)
    numbers = [x[:40] for x in asked.inputs.block(0)]
    found = asked.at(numbers)
    given, _ = asked.rounded_inputs(numbers)
    right = of_program(asked, given).error_of(found.computed)
    there = np.isfinite(found.error) & np.isfinite(right)
    assert there.any() or fmt == "float8_e4m3fn"
    shares = [share for _, share in found.shares()]
    # Where shares cancel, the error is their last bits.
    last = 2.0**-50 * sum(map(np.abs, shares))
    assert (np.abs(found.error - right) <= 1e-12 * np.abs(right) + last)[there].all()
    assert np.allclose(sum(shares)[there], found.error[there], rtol=1e-11, atol=1e-15)


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("function", "fmt"), in_formats("bfloat16"))
def test_stochastic_runs_have_errors_too(function, fmt):
    asked = question(function, ALGORITHMS[function], fmt, "stochastic")
    found = asked.block(0)
    given, _ = asked.rounded_inputs(asked.inputs.block(0))
    right = of_program(asked, [x[:20] for x in given]).error_of(found.computed[:20])
    there = np.isfinite(right)
    assert np.allclose(found.error[:20][there], right[there], rtol=1e-11, atol=1e-15)
    assert not np.array_equal(found.computed, question(function, ALGORITHMS[function]).block(0).computed)


def selecting(ar, x, y):
    """Pass products through every operation that may return its operand as it is."""
    p, q = ar.mul(x, y), ar.div(y, 3.0)
    a, b = ar.maximum(p, ar.neg(q)), ar.minimum(ar.abs(p), 1.1)
    return ar.fma(ar.sign(p), ar.round(b), ar.choose(ar.sub(a, b), a, ar.maximum(q, 0.0)))


def test_a_negative_that_the_format_lacks_has_an_error():
    found = question(lambda ar, x: ar.neg(x), {"x": np.array([-128.0, 127, 5])}, "int8").block(0)
    assert found.computed.tolist() == [127, -127, -5]
    assert found.error.tolist() == [-1, 0, 0]


@pytest.mark.parametrize("mode", ["nearest_even", "up", "to_odd"])
@pytest.mark.slow
def test_errors_with_some_results_in_a_wider_format_are_those_of_mpmath(mode):
    """A wider operand that is returned as it is, is rounded into the result's own format."""
    asked = question(selecting, {"x": "normal()", "y": "normal()"}, "bfloat16", mode)
    rng, numbers = np.random.default_rng(1), asked.inputs.block(0)
    given, _ = asked.rounded_inputs(numbers)
    truth = of_program(asked, given)
    for _ in range(30):
        wide = {x.result: mcf.get_format("float32") for x in asked.program.steps if rng.random() < 0.5}
        found = asked.at(numbers, wide)
        right = truth.error_of(found.computed)
        assert (np.abs(found.error - right) <= 1e-12 * np.abs(right)).all()


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(25, each=False)
@pytest.mark.parametrize("chunk", range(25))
def test_a_planted_error_is_blamed(chunk, tmp_path):
    """One operation of a random function is rounded to 5 bits fewer: its expression comes first."""
    tried, seed = 0, 1000 * chunk
    while tried < 20:
        seed += 1
        function = random_function(tmp_path, seed)
        asked = question(function, {"x": "uniform(0.5, 2)", "y": "uniform(-2, -0.5)"}, FINE, count=200)
        numbers, plain = asked.inputs.block(0), asked.block(0)
        # By how much the result changes, relatively, with each operation. Near a root of the function, or of
        # what it computes on its way, an ordinary error is larger than a planted one elsewhere.
        with np.errstate(all="ignore"):
            passed = {
                step.result: np.abs(
                    plain.factors.get(step.result, 0.0) * plain.run.values[step.result] / plain.exact
                )
                for step in asked.program.steps
            }
            calm = np.all([np.isfinite(x) & (x < 4) for x in passed.values()], axis=0)
        steps = [x for x in asked.program.steps if calm.any() and np.median(passed[x.result][calm]) > 0.5]
        steps = [x for x in steps if x.operation not in ("abs", "neg", "sign", "maximum", "minimum")]
        if calm.sum() < 40 or not steps:
            continue
        planted = steps[np.random.default_rng(seed).integers(len(steps))]
        blame = Blame(asked.program)
        blame.add(blame.summed(asked.at([x[calm] for x in numbers], {planted.result: COARSE})))
        first = blame.rows(1.0)[0]
        assert first.expression == planted.text.row, (seed, str(first.expression), str(planted.text.row))
        tried += 1


def test_rows_are_expressions_of_the_user_and_open_to_what_they_call():
    def text(ar, x, y):
        s, e = mcf.two_sum(ar, x, y)
        return ar.mul(ar.add(s, e), ar.add(x, y))

    asked = question(text, {"x": "normal()", "y": "normal()"})
    rows = {step.text.row.text: [] for step in asked.program.steps}
    for step in asked.program.steps:
        rows[step.text.row.text].append(step.text.detail.text)
    assert list(rows) == [
        "mcf.two_sum(ar, x, y)",
        "ar.add(s, e)",
        "ar.add(x, y)",
        "ar.mul(ar.add(s, e), ar.add(x, y))",
    ]
    assert len(rows["mcf.two_sum(ar, x, y)"]) == 6
    assert rows["ar.add(x, y)"] == ["ar.add(x, y)"]  # not merged with the sum in two_sum


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one.py", "other.py"])
def test_equal_texts_in_several_files_are_told_apart(name):
    """Also in one whose path begins as the package's does: its expressions have rows of their own."""
    file, found = f"{Path(mcf.__file__).parent}_{name}", {}
    exec(compile("def third(ar, x):\n    return ar.div(x, 3.0)\n", file, "exec"), found)
    report = analyse(lambda ar, x: found["third"](ar, x), {"x": "normal()"}, count=5, truth=0)
    assert [row.expression.file for row in report.blame()] == [file]


@pytest.mark.slow
def test_explanations_add_up_to_one_and_cancelling_shares_explain_little():
    report = analyse(softmax, {"x": "uniform(-4, 4)*16"}, count=3000)
    assert sum(row.explains for row in report.blame()) == pytest.approx(1, rel=1e-9)
    assert report.blame()[0].rms == max(row.rms for row in report.blame())
    assert report.truth.off < 1e-12
    assert report.truth.compared == 20


@pytest.mark.slow
def test_threads_and_blocks_make_no_difference():
    reports = [analyse(softmax, {"x": "normal()*4"}, count=5000, threads=threads) for threads in (1, 3)]
    assert np.array_equal(reports[0].error, reports[1].error)
    assert [row.rms for row in reports[0].blame()] == [row.rms for row in reports[1].blame()]
    assert reports[0].error.size == 5000
    short = analyse(softmax, {"x": "normal()*4"}, count=2048)
    assert np.array_equal(short.error, reports[0].error[:2048])


def test_real_data_count_the_rounding_of_inputs():
    report = analyse(total, {"x": "uniform(0.1, 1)*2"}, data="real", count=500)
    rows = {str(row.expression): row for row in report.blame()}
    assert rows["the rounding of inputs"].rms > 0.2
    exact = sum(report.rounded.inputs.block(0))
    assert np.allclose(report.exact, exact, rtol=1e-15, atol=0)


@pytest.mark.slow
def test_sums_of_results_and_zeros_are_counted():
    def both(ar, x, y):
        return mcf.two_sum(ar, x, y)

    report = analyse(both, {"x": "normal()", "y": "normal()"}, output="sum")
    assert not report.error.any()
    assert report.median() == 0

    def nothing(ar, x):
        return ar.sub(x, x)

    report = analyse(nothing, {"x": "normal()"})
    assert report.zeros == 1000
    assert np.isnan(report.relative).all()


@pytest.mark.slow
def test_constants_that_are_rounded_count_and_other_ones_are_told():
    def decayed(ar, m, k=1):
        return total(ar, tuple(ar.mul(m, part) for part in mcf.expand(ar, 0.9999, k)))

    report = analyse(decayed, {"m": "uniform(1, 2)"})  # .9999 is 1.0 in bfloat16
    np.testing.assert_allclose(report.relative, 1 / 0.9999 - 1, rtol=1e-12)
    assert report.blame()[0].expression.text == "mcf.expand(ar, 0.9999, k)"
    assert not report.truth.constants
    assert report.truth.off < 1e-12
    for k in (2, 3):
        report = analyse(decayed, {"m": "uniform(1, 2)"}, options={"k": k})
        assert report.truth.off < 1e-12, k
        assert not [row for row in report.bounds() if row.exceeded], k

    def second(ar, m):
        return ar.add(m, ar.mul(ar.mul(m, 4096.0), mcf.expand(ar, 0.9999, 2)[1]))

    report = analyse(second, {"m": "uniform(1, 2)"})  # exactly, the second component is zero
    assert report.median() > 0.4
    assert not [row for row in report.bounds() if row.exceeded]

    def powers(ar, m):
        beta = mcf.expand(ar, 0.99, 1)[0]
        for _ in range(64):
            m = ar.mul(m, beta)
        return m

    advice = analyse(powers, {"m": "uniform(1, 2)"}, truth=0).advise("20u")
    assert [x.text for x in advice.expressions] == ["mcf.expand(ar, 0.99, 1)"]

    def rounded(ar, m):
        return ar.mul(m, float(mcf.round_to(0.9999, "bfloat16")) if ar.format else 0.9999)

    report = analyse(rounded, {"m": "uniform(1, 2)"})
    assert report.truth.constants == pytest.approx(1e-4, rel=1e-3)
    assert "the program is not the function" in str(report)

    def refused(ar, m):
        return ar.mul(m, float(mcf.round_to(0.9999, ar.format)))

    assert "itself does not run in exact arithmetic" in str(analyse(refused, {"m": "uniform(1, 2)"}))


@pytest.mark.slow
def test_infinities_stagnation_and_turned_choices_are_placed():
    def overflowing(ar, x):
        big = ar.mul(x, x)
        return ar.sub(ar.add(big, big), big)

    report = analyse(overflowing, {"x": "uniform(15, 40)"}, "float8_e4m3fn", count=300)
    lost = {row.expression.text: row.nonfinite for row in report.blame()}
    assert lost["ar.mul(x, x)"] > 0
    assert lost["ar.mul(x, x)"] + lost["ar.add(big, big)"] == np.count_nonzero(~report.finite)
    ones = analyse(total, {"x": tuple(np.ones(10) for _ in range(300))})
    assert ones.blame()[0].stagnant == 10 * (300 - 256)
    assert ones.error[0] == 256 - 300


def test_what_choose_leaves_out_has_no_effect():
    """A quotient by zero has none on the number that is chosen beside it."""

    def guarded(ar, x, y):
        return ar.choose(ar.neg(ar.abs(y)), ar.mul(x, 0.3), ar.div(x, y))

    report = analyse(guarded, {"x": [1.0, 1.0], "y": [0.0, 3.0]}, truth=0)
    assert report.error == pytest.approx(report.computed - [0.3, 1 / 3], rel=1e-12)
    assert np.isfinite([report.columns[name] for name in ("condition", "first order", "running")]).all()
    overflowed = analyse(lambda ar, x: ar.choose(ar.mul(x, x), x, 1.0), {"x": [2.0**70]}, truth=0)
    assert np.isnan(overflowed.error).all()


def test_no_share_explains_an_error_that_is_the_same_everywhere():
    """The variance is what rounds off in sums over inputs, of either sign."""
    for count in range(1000, 1010):
        report = analyse(lambda ar, x: ar.mul(ar.mul(x, 0.1), 0.3), {"x": np.full(count, 1.1)}, truth=0)
        assert all(row.rms > 0 and math.isnan(row.explains) for row in report.blame())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": {"x": "normal()*3", "z": "normal()"}}, "no operand 'z'"),
        ({"inputs": {}}, "has no inputs for x"),
        ({"inputs": {"x": "norml()*3"}}, "unknown sampler 'norml'.*normal"),
        ({"inputs": {"x": "uniform(1)*3"}}, "missing a required argument"),
        ({"inputs": {"x": "uniform(2, 1)*3"}}, "must not exceed"),
        ({"inputs": {"x": "__import__('os')"}}, "no sampler|unknown sampler"),
        ({"inputs": {"x": "values('nothing.npy')"}}, "no file nothing.npy"),
        ({"inputs": {"x": (np.ones(3), np.ones(4))}}, "one size, not 3 and 4"),
        ({"inputs": {"x": (np.array([np.nan]),)}}, "finite numbers"),
        ({"inputs": {"x": np.ones((3, 2, 2))}}, "a vector or, for a tuple, a matrix"),
        ({"inputs": {"x": (np.array([2**60 - 1]),)}}, "^x: element .* that binary64 does not hold"),
        ({"output": 3}, "no result 3"),
        ({"data": "none"}, "must be 'format' or 'real'"),
        ({"scalars": "float32"}, "scalars must be 'exact' or 'rounded'"),
        ({"count": 0}, "count"),
        ({"function": lambda ar: ar.add(1.0, 0.3), "inputs": {}}, "<lambda> has no operands"),
        ({"function": lambda ar, x: (ar.neg(x[0]), 5.0), "output": "sum"}, "'sum' of <lambda> has a number"),
        ({"function": lambda ar, x: (), "output": "sum"}, "<lambda> returns no result"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {"function": total, "inputs": {"x": "normal()*3"}} | change
    with pytest.raises(ValueError, match=message):
        analyse(**arguments)


def test_ranges_whose_ends_have_no_product_in_binary64_are_drawn():
    drawn = analyse(total, {"x": "logspace(-1e-200, -1e-150)*1"}, "float64", count=50, truth=0).computed
    assert -1.001e-150 < drawn.min() < drawn.max() < -0.999e-200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ma.array([[1.0, 2.0]], mask=[[False, True]]), "x is a masked array"),
        ([[1.0, True]], "x has a truth value in it"),
    ],
    ids=["masked", "truth"],
)
def test_tuples_of_columns_are_looked_at_as_single_arrays_are(given, message):
    with pytest.raises(TypeError, match=message):
        analyse(total, {"x": given})


@pytest.mark.parametrize("change", [{"inputs": [1, 2]}, {"options": 3}])
def test_what_has_no_names_is_refused(change):
    with pytest.raises(TypeError, match=f"{next(iter(change))} must be a mapping of names, not"):
        analyse(**{"function": total, "inputs": {"x": "normal()*3"}} | change)


@pytest.mark.parametrize("constant", [10**400, -(10**309), Fraction(1, 10**400), Fraction(-1, 2**1075)])
def test_constants_that_binary64_takes_for_infinity_or_zero_are_refused(constant):
    """Where one is a condition, its sign would be lost; beside one, errors would be nothing, or infinite."""
    for function in (
        lambda ar, x: ar.mul(x, constant),
        lambda ar, x: ar.maximum(constant, x),
        lambda ar, x: ar.choose(constant, x, 0.0),
        lambda ar, x: ar.choose(x, x, constant),
    ):
        with pytest.raises(ValueError, match=r"^test_attribution.py:\d+: .*beyond the range of binary64"):
            analyse(function, {"x": "uniform(1, 2)"}, count=5)


@pytest.mark.slow
def test_the_least_and_largest_constants_and_results_beyond_the_format_are_analysed():
    """The format takes a least constant for a zero, -0 included, and exact arithmetic for what it is."""
    for constant, error in ((Fraction(1, 2**1074), 0), (Fraction(-3, 2**1076), 2), (2**1023, 0)):
        report = analyse(lambda ar, x, s=constant: ar.choose(s, x, ar.neg(x)), {"x": "uniform(1, 2)"})
        assert (report.computed > 0).all()
        assert (report.error == error * report.computed).all()
    report = analyse(lambda ar, x: ar.maximum(x, math.inf), {"x": "uniform(1, 2)"}, count=5)
    assert np.isposinf(report.computed).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analyse(lambda ar, x: ar.exp(ar.mul(x, 1000.0)), {"x": "uniform(1, 2)"}, count=5)


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up"])
def test_intervals_hold_constants_that_are_chosen(rounding):
    def chosen(ar, x):
        return ar.choose(x, 7.7, x), ar.abs(-0.1), ar.choose(-0.3, x, 7.7)

    for output in range(3):
        for fmt in ("float8_e5m2", "bfloat16"):
            report = analyse(chosen, {"x": np.array([1.0, 2.0])}, fmt, rounding=rounding, output=output)
            assert not {row.name: row for row in report.bounds()}["interval"].exceeded


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero"])
def test_bounds_hold_constants_that_are_rounded_before_the_operation(rounding):
    """Against fractions, where the constant costs as much as the operation."""
    functions = {
        "div": lambda ar, x: ar.div(x, 0.001),
        "mul": lambda ar, x: ar.mul(x, 100.25),
        "add": lambda ar, x: ar.add(0.1, x),
        "choose": lambda ar, x: ar.choose(-1e-9, x, ar.neg(x)),
    }
    x = np.array([-1.25, 1.25, 1.75])
    for name, function in functions.items():
        report = analyse(function, {"x": x}, "float8_e4m3fn", rounding=rounding, scalars="rounded")
        exact = {
            "div": [Fraction(t) / Fraction(0.001) for t in x],
            "mul": [Fraction(t) * Fraction(100.25) for t in x],
            "add": [Fraction(t) + Fraction(0.1) for t in x],
            "choose": [-Fraction(t) for t in x],
        }[name]
        errors = [
            abs(Fraction(a) - b) if np.isfinite(a) else 0 for a, b in zip(report.computed, exact, strict=True)
        ]
        for bound in (report.widths, report.columns["running"]):
            assert all(np.isinf(b) or e <= Fraction(b) for e, b in zip(errors, bound, strict=True))


def test_a_function_that_branches_is_refused():
    def larger(ar, x, y):
        return x if x > y else y

    with pytest.raises(TypeError):
        analyse(larger, {"x": "normal()", "y": "normal()"})
    assert isinstance(question(total, {"x": "normal()*2"}).block(0), Attribution)


def test_a_small_difference_is_not_taken_for_zero():
    """At 128 bits nothing is left of 2**-130 beside 1, and at 256 bits all of it is."""
    report = analyse(lambda ar, x, y: ar.sub(ar.add(x, y), x), {"x": np.ones(3), "y": np.full(3, 2.0**-130)})
    assert report.truth.compared == 3
    assert report.truth.off == 0
    falling = truth(lambda ar, x: ar.exp(-float(ar.precision)), [np.ones(1)])
    assert (falling.nearest[0], falling.bits) == (0, 1 << 13)
