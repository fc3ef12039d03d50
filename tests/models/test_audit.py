"""Audits: what they say of tensors whose fate is known, and what they recommend: for all, or for each."""

import json
import math
from dataclasses import replace
from operator import ge

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.models.audit import EDGES, Audit, audit
from mcfsim.models.forecast import frozen_share
from mcfsim.models.known import SavedState
from mcfsim.models.plan import NoiseModel, Plan, forecast_in
from mcfsim.models.samples import TensorSample, scan
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding, TensorKind
from mcfsim.models.weights import open_weights
from mcfsim.report.audits import audit_json, mix_offered, strategy_table, tensor_table, update_model
from tests.models import pages
from tests.models.files import checkpoint, raw_safetensors
from tests.models.pages import BFLOAT16

RECOMMENDED = [(0.95, 0.0, "kahan"), (0.998, 0.9453125, "collage-plus")]
NAMES = ("plain", "kahan", "collage-light", "collage-plus", "fp32-optim", "fp32-master", "fp32")


def plan(strategies=NAMES, rate=3e-4, steps=10, **rest):
    return pages.plan(strategies, "bfloat16", (rate, 0, 1.0), steps, **rest)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    checkpoint(path)
    return scan(open_weights(path), 256)


# -- known freezes, from files -------------------------------------------------------------------------------
@pytest.mark.parametrize(("product", "idle"), [(2.0**-9 * 0.99, 1.0), (2.0**-8 * 1.01, 0.0)])
@pytest.mark.slow
def test_decay_in_a_file_does_nothing_below_two_to_the_minus_nine(samples, product, idle):
    matrix, bias, gain = audit(samples, plan(rate=1e-2, decay=product / 1e-2), BFLOAT16).tensors
    found = {name: matrix.found[name].idle for name in ("plain", "collage-plus", "fp32-master")}
    assert found == {"plain": idle, "collage-plus": 0, "fp32-master": 0}
    assert bias.found["plain"].idle is None is gain.found["plain"].idle
    assert (matrix.decayed, bias.decayed, gain.decayed) == (True, False, False)


@pytest.mark.parametrize(("beta2", "frozen", "chosen"), RECOMMENDED)
@pytest.mark.slow
def test_why_a_strategy_is_recommended_and_what_does_not_do(samples, beta2, frozen, chosen):
    found = audit(samples, plan(beta2=beta2), BFLOAT16)
    totals = {item.strategy.name: item for item in found.totals()}
    assert (totals["plain"].frozen, totals["plain"].worst) == (frozen, "gain")
    best, why = found.recommended()
    assert best.strategy.name == chosen
    assert best.bytes == found.size * best.strategy.bytes_per_parameter
    assert "plain does not do: EDQ of gain is 0.000" in why
    expected = {name: "yes" if item.sufficient else "no" for name, item in totals.items()}
    assert expected["plain"] == expected["fp32-optim"] == "no"
    enough = {row["strategy"]: row["enough"] for row in strategy_table(found)}
    assert enough == expected | {chosen: "recommended"}
    best, why = (none := audit(samples, plan(["plain", "fp32-optim"]), BFLOAT16)).recommended()
    assert best is None is audit_json(none, {})["recommended"]
    assert all(f"{name} does not do" in why for name in ("plain", "fp32-optim")), why


def test_the_largest_rate_of_a_run_that_ends_within_its_warm_up_is_its_last(samples):
    """An eighth of a peak that it does not reach."""
    within, constant = (pages.plan(["plain"], "bfloat16", x, 8) for x in ((2**-6, 64, 1.0), (2**-9, 0, 1.0)))
    found, other = (audit(samples, plan, BFLOAT16).tensors for plan in (within, constant))
    for one, two in zip(found, other, strict=True):
        assert one.histogram == two.histogram
        assert one.found["plain"].at_first == two.found["plain"].at_first
        assert one.found["plain"].idle == two.found["plain"].idle


@pytest.mark.slow
def test_where_nothing_is_asked_nothing_is_said(tmp_path):
    zeros, path = np.zeros((3, 4), np.float32), tmp_path / "m.safetensors"
    raw_safetensors(path, {"x": zeros})
    raw_safetensors(tmp_path / "s.safetensors", {"x.m": zeros, "x.v": zeros, "step": np.array([5])})
    updates = SavedState(tmp_path / "s.safetensors")
    found = audit(scan(open_weights(path), 16), plan(updates=updates), BFLOAT16)
    plain = found.tensors[0].found["plain"]
    assert math.isnan(plain.edq)
    assert plain.stops is None
    data = json.loads(json.dumps(audit_json(found, {}), allow_nan=False))
    assert data["tensors"][0]["strategies"]["plain"]["edq"] is None
    assert strategy_table(found)[0]["EDQ"] == tensor_table(found, 5)[0]["EDQ"] == "-"


@pytest.mark.slow
def test_weights_that_leave_the_range_are_not_averaged_away(samples):
    found = audit(samples, plan(["plain", "fp32"], rate=1e37, decay=0.0, steps=500), BFLOAT16)
    assert 1 < found.tensors[0].found["plain"].beyond <= 500
    best, why = found.recommended()
    assert best is None
    assert "leave the range of bfloat16 at step" in why
    assert tensor_table(found, 3)[0]["stops at"].startswith("beyond at")
    narrow = pages.plan(["plain"], "float8_e4m3fn", (1.0, 0, 1.0), 3, updates=NoiseModel(600.0), decay=0.01)
    found = audit(samples, narrow, mcf.get_format("float8_e4m3fn"))
    assert found.tensors[0].found["plain"].beyond == 1


def test_updates_of_a_vector_beyond_the_range_have_no_place_among_ulps():
    """And no decay, whose product with an infinite weight NumPy would warn of."""
    far = TensorSample("bias", (4,), "F32", np.full(4, 1e5), 1e5, 0.0)
    found = audit([far], pages.plan(["plain"], "float16"), pages.FLOAT16).tensors[0]
    assert found.found["plain"].beyond == 1
    assert not any(found.histogram)


@pytest.mark.parametrize("size", [1e-170, 1e160, 1e307])
def test_squares_beyond_binary64_are_no_matter(size, tmp_path):
    """Not of the weights, and not of the updates, of which decay asks for as much."""
    found = {}
    for scale in (1.0, size):
        x = np.random.default_rng(0).standard_normal((8, 16)) * scale
        np.savez(tmp_path / "m.npz", x=x)
        read = scan(open_weights(tmp_path / "m.npz"), 128)
        made = pages.plan(["plain", "kahan"], "float64", decay=0.1)
        found[scale] = audit(read, made, mcf.get_format("float64"))
    (one,), (far,) = found[1.0].tensors, found[size].tensors
    if size > 1:
        assert far.rms == pytest.approx(one.rms * size, rel=1e-12)
    assert [item.edq for item in far.found.values()] == pytest.approx([1.0, 1.0])
    assert found[size].recommended()[0].strategy.name == "plain"


@pytest.mark.slow
def test_totals_are_weighed_by_size_and_a_histogram_is_of_updates_in_units_of_ulp(samples):
    """That of the matrix by NumPy alone: frexp gives the ulp of a normal number."""
    found = audit(samples, plan(["plain"], decay=30.0), BFLOAT16)
    (total,), sizes, matrix = found.totals(), [item.size for item in found.tensors], found.tensors[0]
    for label in ("edq", "lost"):
        parts = [getattr(item.found["plain"], label) for item in found.tensors]
        assert getattr(total, label) == pytest.approx(np.average(parts, weights=sizes), rel=1e-12)
    assert "noise" in update_model(found)
    assert "0.3, as given" in update_model(audit(samples, plan(["plain"], updates=NoiseModel(0.3)), BFLOAT16))
    rows = NoiseModel().directions(samples, found.plan).at(1)
    stored = mcf.round_to(samples[0].values, "bfloat16")
    spacing = np.ldexp(1.0, np.frexp(stored)[1] - 8)
    asked = 3e-4 * np.abs(rows[0] + 30.0 * stored)
    counts, _ = np.histogram(np.clip(np.log2(asked / spacing), -16, 7.999), EDGES)
    assert matrix.histogram == pytest.approx(counts / 256)
    assert sum(matrix.histogram) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"strategies": []}, ValueError, "at least one"),
        ({"strategies": ["plain", "plain"]}, ValueError, "named once"),
        ({"strategies": ["exact"]}, ValueError, "stores exact numbers"),
        ({"steps": 0}, ValueError, "steps"),
        ({"steps": 1.5}, TypeError, "steps"),
        ({"steps": 10**8 + 1}, ValueError, "steps = 100000001 must be at most 100000000"),
        ({"threshold": 0.0}, ValueError, "threshold"),
        ({"stopped": 1.5}, ValueError, "stopped"),
        ({"stopped": math.nan}, ValueError, "stopped"),
    ],
)
def test_plans_that_make_no_sense_are_refused(given, error, text):
    with pytest.raises(error, match=text):
        plan(**given)


# -- what is recommended -------------------------------------------------------------------------------------
@pytest.mark.parametrize("low", FORMATS)
def test_all_that_can_be_had_in_a_format_are_tried(low):
    names = [item.name for item in forecast_in(mcf.get_format(low))]
    assert {"fp32"} <= set(names) <= mcf.STRATEGIES.keys()
    fmt = FORMATS[low]
    if type(fmt) is mcf.Format and fmt.signed and fmt.zero:
        assert {"plain", "fp32-master"} <= set(names)
    assert not {"stochastic", "fp8-moments", "exact"} & set(names)
    if low == "bfloat16":
        assert len(names) == 14


def made(seed, strategies, beta2):
    """Return an audit of tensors of which anything was found."""
    rng, tensors = np.random.default_rng(seed), []
    for place in range(rng.integers(1, 6)):
        size, found = int(rng.integers(1, 1000)), {}
        for item in strategies:
            edq = float(rng.choice([0.0, 0.5, 0.949, 0.94996, 0.95, 1.0, 1.0001, math.nan]))
            beyond = 3 if rng.random() < 0.1 else None
            found[item.name] = TensorFinding(
                0.0, edq, 0.0, None, None, beyond, 0.0, size * item.bytes_per_parameter, (), ()
            )
        tensors.append(
            AuditedTensor(
                f"t{place}", (size,), "F32", TensorKind.OTHER, True, 1.0, 0.0, 1.0, (0.0, 0.0), (), found
            )
        )
    made = Plan(mcf.AdamW(beta2=beta2), mcf.Schedule(), 5, strategies)
    return Audit(made, BFLOAT16, (1, 5), tuple(tensors))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(5, each=False)
@pytest.mark.slow
def test_the_recommendation_and_the_mix_are_the_cheapest_by_trying_all(seed):
    rng = np.random.default_rng([seed, 1])
    chosen = rng.choice(14, rng.integers(1, 15), replace=False)
    strategies = tuple(item for place, item in enumerate(forecast_in(BFLOAT16)) if place in chosen)
    beta2 = float(rng.choice([0.95, 0.999]))
    audit = made(seed, strategies, beta2)

    def good(tensor, item):
        found = tensor.found[item.name]
        arrives = found.beyond is None and (math.isnan(found.edq) or found.edq >= 0.95)
        return arrives and frozen_share(item, beta2) == 0

    of_each = {tensor.name: [item for item in strategies if good(tensor, item)] for tensor in audit.tensors}
    suffice = [item for item in strategies if all(item in each for each in of_each.values())]
    least = min((item.bytes_per_parameter for item in suffice), default=None)
    found, why = audit.recommended()
    assert (None if found is None else found.strategy.bytes_per_parameter) == least
    assert found is None or found.strategy in suffice
    assert (f"the {len(strategies)} tried" if len(strategies) > 1 else "the one tried") in why
    least = {x: min((item.bytes_per_parameter for item in of_each[x]), default=math.inf) for x in of_each}
    bytes_, mix = sum(tensor.size * least[tensor.name] for tensor in audit.tensors), audit.mixed()
    if bytes_ == math.inf or (found is not None and found.bytes <= bytes_):
        assert mix is None
        assert mix_offered(audit) == ""
        return
    assert mix.bytes == bytes_
    assert all(mix.strategies[name] in each for name, each in of_each.items())
    assert f"Mixed, {bytes_ / audit.size:.6g} bytes a parameter suffice" in mix_offered(audit)
    assert tensor_table(audit, 9)[0]["in the mix"] in {item.name for item in strategies}


@pytest.mark.parametrize(
    ("edq", "said"),
    [
        ([math.nan, math.nan], "fp32 is the cheapest of the one tried whose updates arrive: none is asked"),
        ([math.nan, 1.25], "EDQ of every tensor is at least 0.95 (the least, 1.2500, is that of t1)"),
    ],
)
def test_the_least_edq_is_that_of_a_tensor_with_updates(edq, said):
    audit = made(0, (mcf.strategy("fp32"),), 0.95)
    tensor = audit.tensors[0]
    found = [replace(tensor.found["fp32"], edq=x, beyond=None) for x in edq]
    tensors = tuple(replace(tensor, name=f"t{k}", found={"fp32": x}) for k, x in enumerate(found))
    assert said in replace(audit, tensors=tensors).recommended()[1]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(3, each=False)
def test_what_is_shown_leaves_out_only_what_another_beats(seed):
    audit = made(seed, forecast_in(BFLOAT16), (0.999, 0.95)[seed % 2])
    shown, totals = [item.strategy.name for item in audit.shown()], audit.totals()
    assert shown[0] == totals[0].strategy.name
    best, _ = audit.recommended()
    assert best is None or best.strategy.name in shown

    def merits(total):
        edq = 1.0 if math.isnan(total.of_worst.edq) else round(min(1.0, total.of_worst.edq), 4)
        return (-1.0 if total.of_worst.beyond is not None else edq), -total.frozen

    kept = [(item.bytes, merits(item)) for item in totals if item.strategy.name in shown]
    for item in totals:
        cheaper = [merit for cost, merit in kept if cost <= item.bytes]
        assert any(all(map(ge, merit, merits(item))) for merit in cheaper), item.strategy.name
