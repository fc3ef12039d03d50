"""Committed results are what the code gives: what is cheap is computed again, to the last digit."""

import json
import math
import os
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments import (
    beta2_expansion,
    common,
    dqt_bits,
    dqt_tensors,
    every_p,
    fast_two_sum_map,
    fpbench_errors,
    gemm_group,
    grow_error,
    long_sums,
    lost_update_phase,
    posit_quire,
    precision_curves,
    sr_random_bits,
    stalled_averages,
    theorems,
)
from experiments.common import ROOT, read_result
from experiments.common import _shorten as shorten
from experiments.published_bounds import PUBLISHED
from mcfsim.analysis.samplers import inputs_of
from mcfsim.formats import Format
from mcfsim.storage.files import write_text
from mcfsim.storage.sweeps.installed import DIGEST, blas, versions
from mcfsim.training.problems import LanguageModel

pytestmark = pytest.mark.slow

#: So few cases take a fraction of a second.
FEW = 70_000
CERTIFICATES = [item for item in read_result("theorems")["certificates"] if item["cases"] <= FEW]
CONSTANTS = read_result("worst_constants")["statements"]


def of_three_bits(name):
    (row,) = (row for row in CONSTANTS[name]["worst"] if row["p"] == 3)
    return row


LOST = read_result("lost_update_phase")["retained"]
DQT = read_result("dqt_bits")


@pytest.mark.parametrize("item", CERTIFICATES, ids=lambda x: f"{x['theorem']}-{x['format']}-{x['rounding']}")
@pytest.mark.sampled(18, each=False)
def test_certificates(item):
    """Try the operands again, and compare everything that is kept, the digest among it."""
    again = mcf.verify(item["theorem"], item["format"], item["rounding"])
    assert shorten(theorems.summary(again)) == item


@pytest.mark.parametrize(
    "name", [x for x in (*every_p.ALGORITHMS, *every_p.OTHERS) if of_three_bits(x)["tried"]["core"] <= FEW]
)
@pytest.mark.sampled(2, each=False)
def test_worst_constants_of_three_bits(name):
    row = of_three_bits(name)
    assert row["exhaustive"]
    fmt = Format(precision=3, emin=-100, emax=100)
    again = every_p._row(3, mcf.verify(name, fmt, "nearest_even", limit=every_p.LIMIT, samples=1))
    for key in ("constant", "decimal", "bound", "exhaustive", "core", "verdict"):
        assert again[key] == row[key], key
    assert again["tried"]["core"] == row["tried"]["core"]


@pytest.mark.parametrize("octave", [-12, -1, 0, 1, 12])
@pytest.mark.sampled(2, each=False)
def test_errors_of_grow(octave):
    result, bins = read_result("grow_error")["errors_in_u2"], grow_error.BINS
    ratio, found = grow_error.errors(octave)
    place = np.floor(bins * (np.log2(ratio) - octave)).astype(int)
    start = bins * grow_error.OCTAVES.index(octave)
    for form, error in found.items():
        for kind, of in (("worst", np.max), ("mean", np.mean)):
            again = [float(of(error[place == i])) for i in range(bins)]
            assert shorten(again) == result[form][kind][start : start + bins]


@pytest.mark.parametrize("name", gemm_group.PANELS)
def test_the_bits_of_a_group_that_are_drawn_as_kept_make_its_result(name):
    rows, total, made = gemm_group.group(name)
    assert gemm_group.kept(total.value, total.cut) == made
    assert sum(row.value for row in rows) > made
    assert all(row.last >= gemm_group.LAST for row in rows)
    assert all(row.value % Fraction(2) ** row.last == 0 for row in rows)


def median_error(task, fmt, k):
    """Return the median error on the experiment's inputs: the emulator against fractions."""
    function, inputs, options, _ = precision_curves.TASKS[task]
    drawn = inputs_of(function, inputs, {**options, "k": k}, precision_curves.COUNT, 0)
    columns = [mcf.round_to(x, fmt) for x in drawn.block(0)]
    given = iter(columns)
    operands = [next(given) if isinstance(x, str) else tuple(next(given) for _ in x) for x in drawn.shape]
    parts = function(mcf.arithmetic(fmt), *operands, **options, k=k)
    errors = []
    for place in range(precision_curves.COUNT):
        terms, exact = [Fraction(float(x[place])) for x in columns], Fraction(0)
        for x in terms:
            beta = options.get("beta", 1)
            exact = beta * exact + ((1 - beta) if options else 1) * x
        found = sum(Fraction(float(np.broadcast_to(x, len(columns[0]))[place])) for x in parts)
        errors.append(float(abs(found / exact - 1)))
    return shorten(float(np.median(errors)))


@pytest.mark.parametrize("task", precision_curves.TASKS)
@pytest.mark.parametrize("fmt", [*precision_curves.FORMATS, 4, 8, 14])
@pytest.mark.sampled(8, each=False)
def test_errors_by_precision_and_components(fmt, task):
    found = read_result("precision_curves")[task]
    for k in (1, 2):
        if isinstance(fmt, str):
            rows, place = found["by_components"][fmt], k
        else:
            rows, place = found["by_precision"][str(k)], fmt
        kept = rows["median"][rows["at"].index(place)]
        given = fmt if isinstance(fmt, str) else Format(precision=fmt, emin=-400, emax=400)
        assert median_error(task, given, k) == kept


def exact_fast_two_sums(monkeypatch):
    kept = read_result("fast_two_sum_map")["exact"]
    for mode in fast_two_sum_map.PANELS:
        yield fast_two_sum_map.shares(mode).sum(axis=1).tolist(), kept[mode]


def errors_of_short_sums(monkeypatch):
    few = [n for n in long_sums.TERMS if n <= 64]
    monkeypatch.setattr(long_sums, "TERMS", few)
    for name, error in long_sums.errors().items():  # the first panel is that of positive terms
        again = np.percentile(error[:, 0], long_sums.QUARTILES, axis=1).T.tolist()
        yield again, read_result("long_sums")["error_over_u_S"]["positive"][name][: len(few)]


def expansions_of_beta2(monkeypatch):
    for name, found in read_result("beta2_expansion")["expansions"].items():
        parts = mcf.expand(mcf.arithmetic("bfloat16"), Fraction(name), 2)
        yield [*parts, float(sum(map(Fraction, parts)))], found


def averages_that_stall(monkeypatch):
    for row in read_result("stalled_averages")["constant"]:
        if row["format"] == "e5m2" and row["decay"] < 0.999:
            made = stalled_averages.constant("float8_e5m2", row["form"], row["decay"])
            yield {**made, **{name: row[name] for name in ("format", "form", "decay")}}, row
    monkeypatch.setattr(stalled_averages, "AVERAGED_STEPS", 400)  # by when two have stalled
    for name, kept in read_result("stalled_averages")["averaged"].items():
        if "bf16, `" in name:
            yield stalled_averages.averaged(stalled_averages.STORED[name], 0.999), kept["0.999"]


@pytest.mark.parametrize(
    "made",
    [
        errors_of_short_sums,
        expansions_of_beta2,
        averages_that_stall,
        pytest.param(exact_fast_two_sums, marks=pytest.mark.exhaustive),
    ],
)
def test_tables_of_numbers(made, monkeypatch):
    for again, kept in made(monkeypatch):
        assert shorten(again) == kept


@pytest.mark.exhaustive
def test_the_second_moment():
    kept = read_result("beta2_expansion")["v_over_g_squared_at_the_end"]["constant"]
    scale = beta2_expansion.SIGNIFICANDS.astype(np.float64) ** 2
    for name, v in beta2_expansion.follow()["constant"].items():
        assert shorten([float(of(v[-1] / scale)) for of in (np.min, np.median, np.max)]) == kept[name]


def test_the_runs_with_posits_are_those_that_are_asked_for():
    runs = read_result("posit_quire")["runs"]
    assert set(runs) == {posit_quire.key(*job) for job in posit_quire.jobs(runs)}


@pytest.mark.exhaustive
def test_a_training_with_posits():
    runs, settings = read_result("posit_quire")["runs"], posit_quire.Settings("posit8", "posit16", "posit16")
    rate = posit_quire.best(runs, settings)
    found = runs[posit_quire.key(settings, rate, "once", 1)]
    assert shorten(posit_quire.trained(settings, rate, "once", 1)) == found


def test_a_result_is_written_again_where_more_than_versions_change(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    path = tmp_path / "some.json"
    first = {"versions": {"numpy": "2.0"}, "loss": math.nan, "table": {"plain": [0.1234567, 1]}}
    common.write_result("some", first)
    text = path.read_text()
    written = json.loads(text)
    assert written["table"] == {"plain": [0.123457, 1]}
    assert written["versions"] == versions() | {"source": DIGEST, "blas": blas(), "numpy": "2.0"}
    common.write_result("some", first | {"versions": {"numpy": "2.1", "mpmath": "1.4"}})
    assert path.read_text() == text
    common.write_result("some", first | {"versions": {"numpy": "2.1"}, "loss": 2.0})
    again = json.loads(path.read_text())
    assert (again["versions"]["numpy"], again["loss"]) == ("2.1", 2.0)
    for lacking in written["versions"].keys() - {"source"}:
        fewer = {known: x for known, x in written["versions"].items() if known != lacking}
        path.write_text(json.dumps(written | {"versions": fewer}))
        common.write_result("some", first)
        assert path.read_text() == text, lacking
    path.write_text(text[:20])
    common.write_result("some", first)
    assert path.read_text() == text


#: What is exact on every machine, and from before results named their versions.
EXACT = {"family_search"}
#: What names the machine instead: times, what PyTorch trains, and a solver's answers.
BY_MACHINE = {"algorithms", "benchmarks", "calls", "gpu_h100", "gpu_h200", "sizes", "torch_steps"}
BY_PYTORCH = {"train_gpt", "train_gpt_100M"}
#: What is trained on digits, and on a quadratic.
OF_NO_TEXT = {"posit_quire", "rounding_points"}


@pytest.mark.parametrize("path", sorted(common.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_names_its_versions_and_a_training_its_seeds_and_text(path):
    result = read_result(path.stem)
    text, named = path.read_text(), result.get("versions", {}).keys()
    if path.stem in BY_MACHINE:
        assert {"python", "mcfsim", "numpy", "processor", "threads"} <= named
    elif path.stem in BY_PYTORCH:
        assert {"python", "mcfsim", "numpy", "torch"} <= named
    elif path.stem == "every_p_bounds":
        assert {"processor", "solver"} <= named
    elif path.stem not in EXACT:
        assert versions().keys() | {"blas"} <= named
    if any(f'"{word}"' in text for word in ("corpus", "loss", "trainings")):
        assert '"seeds"' in text or '"seed"' in text or path.stem == "posit_quire"  # whose keys name seeds
        assert re.search(r'"digest": "[0-9a-f]{64}"', text) or path.stem in OF_NO_TEXT


def test_experiments_multiply_matrices_by_one_kernel_whatever_the_processor():
    """That of NumPy's OpenBLAS, in a new interpreter where another one is asked for."""
    kernels = []
    for first in ("", "import experiments.common; "):
        code = f"{first}from mcfsim.storage.sweeps.installed import blas; print(blas())"
        options = {"env": {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}, "cwd": ROOT, "text": True}
        kernels.append(subprocess.check_output([sys.executable, "-c", code], **options).split()[-1])
    if kernels[0] != "Nehalem":
        pytest.skip("kernels are not OpenBLAS's for x86-64")
    assert kernels[1] == "Haswell"


# -- schemes of other systems -------------------------------------------------------------------------------
LONG = ("Kahan", "3 components", "remainder of 8 bits")


@pytest.mark.parametrize("name", ["nearest", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in LONG)])
def test_what_arrives_of_small_updates(name):
    low = "float8_e4m3fn"
    assert shorten(lost_update_phase.retained(name, low, 0)) == LOST[low][name]["mean"]


@pytest.mark.parametrize("rule", mcf.rounding.Rule)
def test_biases_of_few_random_bits(rule):
    rows = read_result("sr_random_bits")["rules"][rule]
    assert all(row["same"] for row in rows)
    for bits in (1, 4):
        found = sr_random_bits.biases(rule, bits)
        assert shorten(found) == {key: rows[bits - 1][key] for key in found}
    mean = [row["measured"][0] for row in rows]
    if rule == "truncate":
        assert np.allclose(mean, [2.0**-17 - 2.0 ** -(r + 1) for r in range(1, 17)], rtol=1e-5, atol=0)
    else:
        assert max(map(abs, mean)) == (0.0 if rule == "nearest_first" else pytest.approx(2.0**-17, rel=1e-5))


# -- weights on grids ---------------------------------------------------------------------------------------
DEAR = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("int3", "int8")]


@pytest.mark.parametrize("integers", ["ternary", *DEAR])
def test_first_steps_are_computed_again(integers):
    name, schedule = f"dqt-{integers}", mcf.Schedule(dqt_bits.RATE, 0, 1.0)
    (strategy,) = (item for item in dqt_bits.BITS if item.name == name)
    given = "language-model", dqt_bits.HYPER, [strategy], 1, schedule
    runs = [mcf.simulate(*given, seed, progress=False) for seed in dqt_bits.SEEDS]
    for measure in ("changed", "at_ends", f"changed/{dqt_bits.TENSOR}"):
        again = float(np.mean([run.series[name][measure][0] for run in runs]))
        assert shorten(again) == DQT["table"][name][measure][0]


@pytest.mark.costly("a training in miniature")
def test_all_tensors_on_grids_one_by_one_are_what_simulate_trains():
    """The loss of a sweep of tensors is the one that `dqt_long` and `dqt_bits` were trained to."""
    long = read_result("dqt_long")["table"]
    for strategy, losses in dqt_tensors.losses()["all", 64, dqt_bits.LONG].items():
        assert abs(np.mean(losses) - long[strategy]["validation_loss"]) < 1e-5  # each has six digits
    arguments = dqt_bits.HYPER, "dqt-int8", 3, dqt_tensors.SCHEDULE, 0
    run = mcf.simulate("language-model", *arguments, progress=False)
    assert dqt_tensors.loss("dqt-int8", "all", 64, 3, 0) == run.results["dqt-int8"]["validation_loss"]


@pytest.mark.parametrize("width", dqt_tensors.WIDTHS)
def test_logits_of_a_tied_embedding_that_cannot_grow_are_bounded(width):
    """By the width times the mean magnitude of the start, whatever the stream; and the loss from below."""
    problem, random = LanguageModel(width=width), np.random.default_rng(width)
    weights = problem.initial_parameters(0)
    reach = float(np.abs(weights["embedding"]).mean())
    wild = {name: 100 * random.standard_normal(x.shape).astype(np.float32) for name, x in weights.items()}
    signs = random.choice([-1, 1], weights["embedding"].shape).astype(np.float32)
    wild |= {"embedding": np.float32(reach) * signs, "gain": np.ones(width, np.float32)}
    tokens = random.integers(0, 256, (2, 8), dtype=np.uint8)
    assert float(np.abs(problem.logits(wild, tokens)).max()) <= width * reach
    bound = width * reach * (128 / 127) ** 2
    least = np.log(1 + 255 * np.exp(-2 * bound))  # of one logit at the bound, and the others at the other
    assert dqt_tensors.least_loss(width) == pytest.approx(least, rel=1e-12)
    found = dqt_tensors.losses()
    assert all(min(row["dqt-int8"]) > least for key, row in found.items() if key[:2] == ("all", width))
    if width == 64:  # the bound alone is above what BitNet loses
        assert least > max(found["all", 64, dqt_bits.LONG]["bitnet"])


@pytest.mark.parametrize("integers", dqt_bits.INTEGERS)
def test_the_share_that_changes_is_the_expected_one(integers):
    """In a tensor whose gradients are far above epsilon; where they are not, less is asked."""
    asked, row = DQT["asked"][integers], DQT["table"][f"dqt-{integers}"]
    assert shorten(float(np.mean([dqt_bits.asked(integers, seed) for seed in dqt_bits.SEEDS]))) == asked
    found = row[f"changed/{dqt_bits.TENSOR}"][0]
    assert abs(found / dqt_bits.expected(integers, asked) - 1) < 0.1
    draws = np.random.default_rng(0).standard_normal(3 * 10**5)
    made = mcf.Optimizer(mcf.SGD(), mcf.strategy(f"dqt-{integers}"), {"w": draws})
    weights = made.state.parameter[0]
    share = made.grid.measures(weights, weights, slice(0, draws.size))["at_ends"]
    assert abs(share - dqt_bits.at_ends(integers)) < 0.003
    assert abs(row["clipped_at_start"] - dqt_bits.clipped(integers)) < 0.005  # gains of 1 are not normal


def test_a_sweep_goes_on_where_it_was(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "WORKERS", 1)
    paths = [tmp_path / name for name in "ab"]
    jobs = [(str(path), "made") for path in paths]
    assert common.resumed("small", write_text, jobs[:1]) == [None]
    paths[0].unlink()
    assert common.resumed("small", write_text, jobs) == [None, None]
    assert [path.exists() for path in paths] == [False, True]


@pytest.mark.parametrize("name", ["doppler1", "verhulst", "i4", "himmilbeau"])
@pytest.mark.sampled(2, each=False)
def test_fpbench(name):
    made, kept = fpbench_errors.analysed(name), read_result(fpbench_errors.NAME)["benchmarks"][name]
    assert made["expression"] == kept["expression"]
    for key in ("median", "largest", "condition", "explains", "found"):
        assert shorten(made[key]) == pytest.approx(kept[key], rel=1e-5)
    assert kept["off"] < 1e-6


def test_fpbench_beside_published_bounds():
    kept = read_result(fpbench_errors.NAME)["absolute"]
    for source in PUBLISHED:
        for name, bound in source.values.items():
            assert 0 < kept[source.format][name]["found"] <= bound, (source.tool, name)
    made = fpbench_errors.largest_absolute("predatorPrey", "float64")
    assert shorten(made["found"]) == pytest.approx(kept["float64"]["predatorPrey"]["found"], rel=1e-5, abs=0)
    # By hand: the constant is a decimal, and its rounding counts.
    (x,) = made["at"].values()
    part, exact = x / 1.11, Fraction(x) / Fraction("1.11")
    computed = Fraction(4.0 * x * x / (1.0 + part * part))
    error = computed - 4 * Fraction(x) ** 2 / (1 + exact**2)
    assert made["found"] == pytest.approx(abs(float(error)), rel=1e-15, abs=0)
