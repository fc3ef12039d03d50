"""Audits: what they say of tensors whose fate is known, and what they recommend: for all, or for each."""

import json
import math
from operator import ge

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.models.audit import Audit, AuditedTensor, Found
from mcfsim.models.auditing import EDGES, audit
from mcfsim.models.freezes import frozen_share
from mcfsim.models.plan import Plan, forecast_in
from mcfsim.models.saved_state import SavedState
from mcfsim.models.scan import scan
from mcfsim.models.updates import Model
from mcfsim.models.weights import open_weights
from mcfsim.report.audits import as_json, mix_offered, strategy_table, tensor_table, update_model
from tests.models.files import checkpoint, raw_safetensors

NAMES = ("plain", "kahan", "collage-light", "collage-plus", "fp32-optim", "fp32-master", "fp32")
BFLOAT16 = mcf.get_format("bfloat16")


def plan(strategies=NAMES, *, rate=3e-4, steps=10, updates=None, beta2=0.95, **rest):
    return Plan(
        hyper=mcf.AdamW(beta2=beta2, weight_decay=rest.pop("decay", 0.1)),
        schedule=mcf.Schedule(rate, warmup=0, final=1.0),
        steps=steps,
        strategies=tuple(mcf.strategy(name, "bfloat16") for name in strategies),
        updates=updates or Model(),
        **rest,
    )


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    checkpoint(path)
    return scan(open_weights(path), 256)


# -- known freezes, from files -------------------------------------------------------------------------------


@pytest.mark.parametrize(("product", "idle"), [(2.0**-9 * 0.99, 1.0), (2.0**-8 * 1.01, 0.0)])
def test_decay_in_a_file_does_nothing_below_two_to_the_minus_nine(samples, product, idle):
    found = audit(samples, plan(rate=1e-2, decay=product / 1e-2), BFLOAT16)
    matrix, bias, gain = found.tensors
    assert matrix.found["plain"].idle == idle
    assert matrix.found["collage-plus"].idle == 0
    assert matrix.found["fp32-master"].idle == 0
    assert bias.found["plain"].idle is None is gain.found["plain"].idle
    assert (matrix.decayed, bias.decayed, gain.decayed) == (True, False, False)


@pytest.mark.parametrize(
    ("beta2", "frozen", "chosen"), [(0.95, 0.0, "kahan"), (0.998, 0.9453125, "collage-plus")]
)
@pytest.mark.slow
def test_why_a_strategy_is_recommended_and_what_does_not_do(samples, beta2, frozen, chosen):
    found = audit(samples, plan(beta2=beta2), BFLOAT16)
    totals = {item.strategy.name: item for item in found.totals()}
    assert (totals["plain"].frozen, totals["plain"].worst) == (frozen, "gain")
    best, why = found.recommended()
    assert best.strategy.name == chosen
    assert best.bytes == found.size * best.strategy.bytes_per_parameter
    assert "plain does not do: EDQ of gain is 0.000" in why
    enough = {row["strategy"]: row["enough"] for row in strategy_table(found)}
    expected = {name: "yes" if item.sufficient else "no" for name, item in totals.items()}
    assert expected["plain"] == expected["fp32-optim"] == "no"
    assert enough == expected | {chosen: "recommended"}
    best, why = (none := audit(samples, plan(["plain", "fp32-optim"]), BFLOAT16)).recommended()
    assert best is None is as_json(none, {})["recommended"]
    assert "plain does not do" in why
    assert "fp32-optim does not do" in why


def test_where_nothing_is_asked_nothing_is_said(tmp_path):
    raw_safetensors(tmp_path / "m.safetensors", {"x": ("F32", np.zeros((3, 4), np.float32))})
    zeros = np.zeros((3, 4), np.float32)
    made = {"x.m": ("F32", zeros), "x.v": ("F32", zeros), "step": ("I64", np.array([5]))}
    raw_safetensors(tmp_path / "s.safetensors", made)
    kept = scan(open_weights(tmp_path / "m.safetensors"), 16)
    found = audit(kept, plan(updates=SavedState(tmp_path / "s.safetensors")), BFLOAT16)
    (tensor,) = found.tensors
    assert math.isnan(tensor.found["plain"].edq)
    assert tensor.found["plain"].stops is None
    data = json.loads(json.dumps(as_json(found, {}), allow_nan=False))
    assert data["tensors"][0]["strategies"]["plain"]["edq"] is None
    assert strategy_table(found)[0]["EDQ"] == "-"
    assert tensor_table(found, 5)[0]["EDQ"] == "-"


@pytest.mark.slow
def test_weights_that_leave_the_range_are_not_averaged_away(samples):
    found = audit(samples, plan(["plain", "fp32"], rate=1e37, decay=0.0, steps=500), BFLOAT16)
    matrix = found.tensors[0].found["plain"]
    assert matrix.beyond is not None
    assert 1 < matrix.beyond <= 500
    assert found.recommended()[0] is None
    assert "leave the range of bfloat16 at step" in found.recommended()[1]
    assert tensor_table(found, 3)[0]["stops at"].startswith("beyond at")
    low = mcf.get_format("float8_e4m3fn")
    narrow = Plan(mcf.AdamW(), mcf.Schedule(1.0, 0, 1.0), 3, (mcf.strategy("plain", low),), Model(600.0))
    assert audit(samples, narrow, low).tensors[0].found["plain"].beyond == 1


def test_totals_are_weighed_by_size_and_a_histogram_is_of_updates_in_units_of_ulp(samples):
    """That of the matrix by NumPy alone: frexp gives the ulp of a normal number."""
    found = audit(samples, plan(["plain"], decay=30.0), BFLOAT16)
    (total,), sizes, matrix = found.totals(), [item.size for item in found.tensors], found.tensors[0]
    for label in ("edq", "lost"):
        parts = [getattr(item.found["plain"], label) for item in found.tensors]
        assert getattr(total, label) == pytest.approx(np.average(parts, weights=sizes), rel=1e-12)
    assert "noise" in update_model(found)
    assert "0.3, as given" in update_model(audit(samples, plan(["plain"], updates=Model(0.3)), BFLOAT16))
    rows = Model().directions(samples, mcf.AdamW(), mcf.Schedule(), 100).at(1)
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
    rng = np.random.default_rng(seed)
    tensors = []
    for place in range(rng.integers(1, 6)):
        size = int(rng.integers(1, 1000))
        found = {}
        for item in strategies:
            edq = float(rng.choice([0.0, 0.5, 0.949, 0.94996, 0.95, 1.0, 1.0001, math.nan]))
            beyond = 3 if rng.random() < 0.1 else None
            found[item.name] = Found(0.0, edq, None, None, beyond, size * item.bytes_per_parameter, (), ())
        tensors.append(AuditedTensor(f"t{place}", (size,), "F32", True, 1.0, 0.0, 1.0, (), found))
    return Audit(
        Plan(mcf.AdamW(beta2=beta2), mcf.Schedule(), 5, strategies), BFLOAT16, (1, 5), tuple(tensors)
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(3, each=False)
def test_the_recommendation_and_the_mix_are_the_cheapest_by_trying_all(seed):
    rng = np.random.default_rng([seed, 1])
    chosen = rng.choice(14, rng.integers(1, 15), replace=False)
    strategies = tuple(item for place, item in enumerate(forecast_in(BFLOAT16)) if place in chosen)
    beta2 = float(rng.choice([0.95, 0.999]))
    audit = made(seed, strategies, beta2)

    def good(tensor, item):
        found = tensor.found[item.name]
        arrives = found.beyond is None and (math.isnan(found.edq) or found.edq >= 0.95)
        return arrives and frozen_share(item, "v", beta2) == 0

    suffice = [item for item in strategies if all(good(tensor, item) for tensor in audit.tensors)]
    least = min((item.bytes_per_parameter for item in suffice), default=None)
    found, why = audit.recommended()
    assert (None if found is None else found.strategy.bytes_per_parameter) == least
    assert found is None or found.strategy in suffice
    assert (f"the {len(strategies)} tried" if len(strategies) > 1 else "the one tried") in why
    of_each = [[item for item in strategies if good(tensor, item)] for tensor in audit.tensors]
    mix = audit.mixed()
    if not all(of_each):
        assert mix is None
        assert found is None
        return
    pairs = [(tensor.size, [item.bytes_per_parameter for item in each])
             for tensor, each in zip(audit.tensors, of_each, strict=True)]  # fmt: skip
    bytes_ = sum(size * min(each) for size, each in pairs)
    if found is not None and found.bytes <= bytes_:
        assert mix is None
        assert mix_offered(audit) == ""
        return
    assert mix is not None
    assert mix.bytes == bytes_
    for tensor, each in zip(audit.tensors, of_each, strict=True):
        assert mix.strategies[tensor.name] in each
    assert f"Mixed, {bytes_ / audit.size:.6g} bytes a parameter suffice" in mix_offered(audit)
    assert tensor_table(audit, 9)[0]["in the mix"] in {item.name for item in strategies}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_shown_leaves_out_only_what_another_beats(seed):
    audit = made(seed, forecast_in(BFLOAT16), (0.999, 0.95)[seed % 2])
    shown = [item.strategy.name for item in audit.shown()]
    assert shown[0] == audit.totals()[0].strategy.name
    best, _ = audit.recommended()
    assert best is None or best.strategy.name in shown
    merits = {
        item.strategy.name: (
            -1.0 if item.of_worst.beyond is not None
            else 1.0 if math.isnan(item.of_worst.edq) else round(min(1.0, item.of_worst.edq), 4),
            -item.frozen,
        )
        for item in audit.totals()
    }  # fmt: skip
    costs = {item.strategy.name: item.bytes for item in audit.totals()}
    for name in merits.keys() - set(shown):
        cheaper = [merits[other] for other in shown if costs[other] <= costs[name]]
        assert any(all(map(ge, merit, merits[name])) for merit in cheaper)
