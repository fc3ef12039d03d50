"""What an audit recommends: of all that are tried, in one way for all tensors or in one for each."""

from __future__ import annotations

import json
import math
from itertools import product
from operator import ge

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.formats import FORMATS
from mcfsim.models.audit import Audit, AuditedTensor, Found
from mcfsim.models.freezes import frozen_share
from mcfsim.models.plan import Plan, forecast_in
from mcfsim.report.audits import mix_offered, tensor_table
from tests.models.files import checkpoint, raw_safetensors

LOW = mcf.get_format("bfloat16")


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


def made(seed: int, strategies: tuple[mcf.Strategy, ...], beta2: float) -> Audit:
    """Return an audit of tensors of which anything was found."""
    rng = np.random.default_rng(seed)
    tensors = []
    for place in range(rng.integers(1, 6)):
        size = int(rng.integers(1, 1000))
        found = {}
        for item in strategies:
            edq = float(rng.choice([0.0, 0.5, 0.949, 0.95, 1.0, 1.0001, math.nan]))
            beyond = 3 if rng.random() < 0.1 else None
            found[item.name] = Found(0.0, edq, None, None, beyond, size * item.bytes_per_parameter, (), ())
        tensors.append(AuditedTensor(f"t{place}", (size,), "F32", True, 1.0, 0.0, 1.0, (), found))
    return Audit(Plan(mcf.AdamW(beta2=beta2), mcf.Schedule(), 5, strategies), LOW, (1, 5), tuple(tensors))


@pytest.mark.parametrize("seed", range(200))
def test_the_recommendation_and_the_mix_are_the_cheapest_by_trying_all(seed):
    rng = np.random.default_rng([seed, 1])
    chosen = rng.choice(14, rng.integers(1, 15), replace=False)
    strategies = tuple(item for place, item in enumerate(forecast_in(LOW)) if place in chosen)
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
    if math.prod(map(len, of_each)) < 1000:
        assert bytes_ == min(
            sum(size * one for (size, _), one in zip(pairs, way, strict=True))
            for way in product(*(each for _, each in pairs))
        )
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
    audit = made(seed, forecast_in(LOW), 0.999)
    shown = [item.strategy.name for item in audit.shown()]
    assert shown[0] == audit.totals()[0].strategy.name
    best, _ = audit.recommended()
    assert best is None or best.strategy.name in shown
    merits = {
        item.strategy.name: (
            -1.0 if item.of_worst.beyond is not None
            else 1.0 if math.isnan(item.of_worst.edq) else min(1.0, item.of_worst.edq),
            -item.frozen,
        )
        for item in audit.totals()
    }  # fmt: skip
    costs = {item.strategy.name: item.bytes for item in audit.totals()}
    for name in merits.keys() - set(shown):
        cheaper = [merits[other] for other in shown if costs[other] <= costs[name]]
        assert any(all(map(ge, merit, merits[name])) for merit in cheaper)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_by_default_nothing_cheaper_does_than_what_is_recommended(tmp_path):
    """Updates that 16 bits beyond bfloat16 keep, and no second component does: 14 bytes do, not 16."""
    raw_safetensors(tmp_path / "m.safetensors", {"gain": ("F32", np.linspace(1, 1.9, 64).astype(np.float32))})
    out = tmp_path / "out.json"
    run(
        "audit",
        tmp_path / "m.safetensors",
        "--lr",
        2.0**-17,
        "--steps",
        3,
        "--schedule",
        "constant",
        "--json",
        out,
    )
    found = json.loads(out.read_text())
    assert found["recommended"] == "split-master"
    assert {item["name"]: item["sufficient"] for item in found["strategies"]}["fp32-master"]


def test_audits_assignments_and_simulations_begin_with_the_same_hyperparameters(tmp_path):
    checkpoint(tmp_path / "m.safetensors")
    for command in ("audit", "assign"):
        out = tmp_path / f"{command}.json"
        run(command, tmp_path / "m.safetensors", "--steps", 2, "--samples", 16, "--json", out)
        found = json.loads(out.read_text())["optimizer"]
        assert mcf.AdamW(**{name: found[name] for name in found if name != "name"}) == mcf.AdamW()
