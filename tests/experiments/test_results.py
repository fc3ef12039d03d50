"""Committed results are what the code gives: what is cheap is computed again, to the last digit."""

import json
import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments import (
    beta2_expansion,
    common,
    every_p,
    fast_two_sum_map,
    grow_error,
    long_sums,
    lost_update_phase,
    posit_quire,
    precision_curves,
    sr_random_bits,
    theorems,
)
from experiments.common import ROOT, read_result
from experiments.common import _shorten as shorten
from mcfsim.formats import Format

pytestmark = pytest.mark.slow

#: So few cases take a fraction of a second.
FEW = 70_000
CERTIFICATES = [item for item in read_result("theorems")["certificates"] if item["cases"] <= FEW]
CONSTANTS = read_result("worst_constants")["statements"]


def name_of(item):
    """Return a name for a certificate's summary."""
    return f"{item['theorem']}-{item['format']}-{item['rounding']}"


@pytest.mark.parametrize("item", CERTIFICATES, ids=name_of)
@pytest.mark.sampled(18, each=False)
def test_certificates(item):
    """Try the operands again, and compare everything that is kept, the digest among it."""
    again = mcf.verify(item["theorem"], item["format"], item["rounding"])
    assert shorten(theorems.summary(again)) == item


@pytest.mark.parametrize("name", [*every_p.ALGORITHMS, *every_p.OTHERS])
@pytest.mark.sampled(2, each=False)
def test_worst_constants_of_three_bits(name):
    (row,) = (row for row in CONSTANTS[name]["worst"] if row["p"] == 3)
    assert row["exhaustive"]
    if row["tried"]["core"] > FEW:
        pytest.skip("takes longer")
    fmt = Format(precision=3, emin=-100, emax=100)
    certificate = mcf.verify(name, fmt, "nearest_even", limit=every_p.LIMIT, samples=1)
    again = every_p._row(3, certificate)
    kept = ("constant", "decimal", "bound", "exhaustive", "core", "verdict")
    assert {key: again[key] for key in kept} == {key: row[key] for key in kept}
    assert again["tried"]["core"] == row["tried"]["core"]


def test_where_fast_two_sum_is_exact():
    result = read_result("fast_two_sum_map")
    for mode in fast_two_sum_map.PANELS:
        assert shorten(fast_two_sum_map.shares(mode).sum(axis=1).tolist()) == result["exact"][mode]


@pytest.mark.parametrize("octave", [-12, -1, 0, 1, 12])
@pytest.mark.sampled(2, each=False)
def test_errors_of_grow(octave):
    result, bins = read_result("grow_error"), grow_error.BINS
    ratio, found = grow_error.errors(octave)
    place = np.floor(bins * (np.log2(ratio) - octave)).astype(int)
    for form, error in found.items():
        for kind, of in (("worst", np.max), ("mean", np.mean)):
            again = [float(of(error[place == i])) for i in range(bins)]
            start = bins * grow_error.OCTAVES.index(octave)
            assert shorten(again) == result["errors_in_u2"][form][kind][start : start + bins]


@pytest.mark.parametrize("task", range(3))
@pytest.mark.parametrize("fmt", precision_curves.FORMATS)
@pytest.mark.sampled(8, each=False)
def test_errors_by_the_number_of_components(fmt, task):
    ar, result = mcf.arithmetic(fmt), read_result("precision_curves")["median_relative_error"]
    compute = (precision_curves.total, precision_curves.moving_average, precision_curves.update)[task]
    rows = list(result.values())[task][fmt]
    assert [shorten(precision_curves.error(*compute(ar, n))) for n in (1, 2)] == rows[:2]


def test_errors_of_long_sums(monkeypatch):
    few = [n for n in long_sums.TERMS if n <= 64]
    monkeypatch.setattr(long_sums, "TERMS", few)
    result = read_result("long_sums")["error_over_u_S"]["positive"]
    for name, error in long_sums.errors("positive").items():
        again = np.percentile(error, long_sums.QUARTILES, axis=1).T.tolist()
        assert shorten(again) == result[name][: len(few)]


def test_beta2_in_two_components():
    for name, found in read_result("beta2_expansion")["expansions"].items():
        parts = mcf.expand(mcf.arithmetic("bfloat16"), Fraction(name), 2)
        assert shorten([*parts, float(sum(map(Fraction, parts)))]) == found


@pytest.mark.exhaustive
def test_the_second_moment():
    result = read_result("beta2_expansion")
    scale = beta2_expansion.SIGNIFICANDS.astype(np.float64) ** 2
    for name, v in beta2_expansion.follow("constant").items():
        ratio = v[-1] / scale
        again = [float(ratio.min()), float(np.median(ratio)), float(ratio.max())]
        assert shorten(again) == result["v_over_g_squared_at_the_end"]["constant"][name]


def test_the_runs_with_posits_are_those_that_are_asked_for():
    runs = read_result("posit_quire")["runs"]
    assert set(runs) == {posit_quire.key(*job) for job in posit_quire.jobs(runs)}


@pytest.mark.exhaustive
def test_a_training_with_posits():
    runs, settings = read_result("posit_quire")["runs"], posit_quire.Settings("posit8", "posit16", "posit16")
    rate = posit_quire.best(runs, settings)
    found = runs[posit_quire.key(settings, rate, "once", 1)]
    assert shorten(posit_quire.trained(settings, rate, "once", 1)) == found


OF_EXPERIMENTS = "import experiments.common; from mcfsim.training.record import blas; print(blas())"
OF_ITSELF = "from mcfsim.training.record import blas; print(blas())"


def kernel(code, asked):
    """Return the kernel of NumPy's OpenBLAS in a new interpreter, where one is asked for."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OPENBLAS_CORETYPE": asked},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[-1]


def test_a_result_is_written_again_where_more_than_versions_change(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    path = tmp_path / "some.json"
    first = {"versions": {"numpy": "2.0"}, "loss": math.nan, "table": {"plain": [0.1234567, 1]}}
    common.write_result("some", first)
    text = path.read_text()
    assert json.loads(text)["table"] == {"plain": [0.123457, 1]}
    common.write_result("some", {**first, "versions": {"numpy": "2.1", "mpmath": "1.4"}})
    assert path.read_text() == text
    common.write_result("some", {**first, "versions": {"numpy": "2.1"}, "loss": 2.0})
    again = json.loads(path.read_text())
    assert (again["versions"], again["loss"]) == ({"numpy": "2.1"}, 2.0)
    path.write_text(text[:20])
    common.write_result("some", first)
    assert path.read_text() == text


def test_experiments_multiply_matrices_by_one_kernel_whatever_the_processor():
    if kernel(OF_ITSELF, "Nehalem") != "Nehalem":
        pytest.skip("kernels are not OpenBLAS's for x86-64")
    assert kernel(OF_EXPERIMENTS, "Nehalem") == "Haswell"


# -- schemes of other systems --------------------------------------------------------------------------------
LONG = [
    pytest.param(name, marks=pytest.mark.exhaustive)
    for name in ("Kahan", "3 components", "remainder of 8 bits")
]


@pytest.mark.parametrize("name", ["nearest", *LONG])
def test_what_arrives_of_small_updates(name):
    low = "float8_e4m3fn"
    kept = read_result("lost_update_phase")["retained"][low][name]["mean"]
    assert shorten(lost_update_phase.retained(name, low, 0)) == kept


def test_small_updates_are_lost_where_the_formats_say():
    rows = {
        name: row["mean"] for name, row in read_result("lost_update_phase")["retained"]["bfloat16"].items()
    }
    assert rows["nearest"][9:] == [0.0] * 16
    assert rows["nearest"][8] > 0
    assert rows["Kahan"][9:] == rows["2 components"][9:]
    assert rows["split 16 + 16"] == rows["binary32 master"]
    apart = np.subtract(rows["remainder of 16 bits"], rows["binary32 master"])  # it misses some last bits
    assert 0 < np.abs(apart[:24]).max() < 1e-4
    assert rows["remainder of 8 bits"][17:] == [0.0] * 8
    assert rows["stochastic, 16 bits"][24] == 0.0 < rows["stochastic, 32 bits"][24]


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
