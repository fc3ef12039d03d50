"""Adapters and gains in audits: kinds, configurations, starts, thresholds; adapters merged, in fractions."""

import itertools
import json
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.adapters import CONFIG, adapters_at_start, describe, read_config
from mcfsim.models.audit import audit
from mcfsim.models.forecast import TensorRows, forecast
from mcfsim.models.plan import Steady
from mcfsim.models.samples import TensorSample, scan
from mcfsim.models.tensor_findings import TensorKind, kind_of
from mcfsim.models.weights import open_weights
from mcfsim.oracle import round_fraction
from mcfsim.report.audits import kind_table
from mcfsim.storage.shards import write_file
from mcfsim.storage.tensors import FileOfTensorsError
from tests.cli import runner
from tests.models.pages import BFLOAT16, plan

PEFT = "base_model.model.model.layers.0.self_attn"
A, B, GAIN, OTHER = (TensorKind(x) for x in ("adapter A", "adapter B", "gain", "other"))


# -- kinds ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "shape", "number", "kind"),
    [
        (f"{PEFT}.q_proj.lora_A.weight", (8, 64), 0.1, A),
        (f"{PEFT}.q_proj.lora_B.weight", (64, 8), 0.0, B),
        (f"{PEFT}.q_proj.lora_A.default.weight", (8, 64), 0.1, A),
        (f"{PEFT}.q_proj.lora_B.default.weight", (64, 8), 1.0, B),
        ("layers.0.attn.q_proj.lora_a.weight", (8, 64), 0.1, A),
        ("layers.0.attn.q_proj.lora_b.weight", (64, 8), 0.0, B),
        ("base_model.model.embed.lora_embedding_A", (8, 99), 0.0, A),
        ("base_model.model.embed.lora_embedding_B.default", (64, 8), 1.0, B),
        ("conv.lora_A.weight", (8, 3, 3, 3), 0.1, A),
        (f"{PEFT}.q_proj.lora_B.bias", (64,), 0.0, OTHER),
        (f"{PEFT}.q_proj.lora_magnitude_vector", (64,), 3.0, TensorKind.MAGNITUDE),
        (f"{PEFT}.q_proj.lora_magnitude_vector.default.weight", (1, 64), 3.0, TensorKind.MAGNITUDE),
        ("model.layers.0.input_layernorm.weight", (64,), 0.2, GAIN),
        ("model.norm.weight", (64,), 0.0, GAIN),  # multiplies by 1 + w
        ("transformer.h.0.ln_1.weight", (64,), 5.0, GAIN),
        ("blocks.0.ln2.weight", (64,), 5.0, GAIN),
        ("layer0.mlp.gain", (64,), 5.0, GAIN),
        ("seq.1.weight", (64,), 1.2, GAIN),  # by its numbers
        ("seq.1.weight", (64,), 2.0, OTHER),
        ("seq.1.weight", (64,), 0.49, OTHER),
        ("transformer.h.0.ln_1.bias", (64,), 1.0, OTHER),
        ("bn.running_var", (64,), 1.0, OTHER),
        ("conformal.norm_proj.weight", (64, 64), 1.0, OTHER),
        ("walnut.weight", (64,), 9.0, OTHER),
        ("explora_A.weight", (8, 64), 1.0, OTHER),
        ("logit_scale", (), 1.0, OTHER),
    ],
)
def test_kinds_are_known_by_names_shapes_and_numbers(name, shape, number, kind):
    assert kind_of(name, shape, np.full(5, number)) is kind


# -- configurations ------------------------------------------------------------------------------------------
def adapter(folder, rank=8, config=None):
    """Write an adapter as PEFT does, of two modules and a norm; return the folder."""
    folder.mkdir(exist_ok=True)
    tensors = {f"{PEFT}.input_layernorm.weight": np.ones(64, np.float32)}
    for place, module in enumerate(("q_proj", "v_proj")):
        rows = np.random.default_rng(place).uniform(-1 / 8, 1 / 8, (rank, 64))
        tensors[f"{PEFT}.{module}.lora_A.weight"] = rows.astype(np.float32)
        tensors[f"{PEFT}.{module}.lora_B.weight"] = np.zeros((32, rank), np.float32)
    write_file(folder / "adapter_model.safetensors", {name: ("F32", x) for name, x in tensors.items()})
    if config is not None:
        (folder / CONFIG).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_ranks_and_scales_are_those_of_the_configuration(tmp_path):
    """Those of modules by the ends of their names; of the file as of its folder."""
    patterns = {"rank_pattern": {"v_proj": 4, "q_proj": 16}, "alpha_pattern": {"self_attn.v_proj": 6}}
    adapter(tmp_path, 8, {"peft_type": "LORA", "r": 8, "lora_alpha": 12, **patterns})
    names = [f"{PEFT}.{module}.lora_A.weight" for module in ("q_proj", "v_proj", "o_proj", "xv_proj")]
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        config = read_config(path)
        assert [config.rank(name) for name in names] == [16, 4, 8, 8]
        assert [config.scale(name) for name in names] == [12 / 16, 6 / 4, 12 / 8, 12 / 8]
    adapter(tmp_path, 8, {"r": 8, "lora_alpha": 12, "use_rslora": True})
    assert read_config(tmp_path).scale(names[0]) == 12 / math.sqrt(8)
    samples = scan(open_weights(tmp_path), 16)
    assert describe(tmp_path, samples) == {"ranks": {"8": 4}, "scales": {"4.24264": 4}}
    least = adapter(tmp_path / "least", 1, {"r": 1, "lora_alpha": 1})
    assert describe(least, scan(open_weights(least), 16)) == {"ranks": {"1": 4}, "scales": {"1": 4}}
    (tmp_path / CONFIG).unlink()
    assert describe(tmp_path, samples) == {"ranks": {"8": 4}, "scales": None}
    assert describe(tmp_path, samples[:1]) is None


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "is no JSON, or damaged"),
        ("[]", "is no JSON object"),
        ({"r": 8}, "does not say lora_alpha"),
        ({}, "does not say r and lora_alpha"),
        ({"peft_type": "LOHA", "r": 8, "lora_alpha": 8}, "peft_type is 'LOHA'; an audit knows LORA alone"),
        ({"r": 0, "lora_alpha": 8}, "rank r = 0"),
        ({"r": 8.5, "lora_alpha": 8}, "rank r"),
        ({"r": 8, "lora_alpha": "8"}, "lora_alpha"),
        ({"r": 8, "lora_alpha": 8, "rank_pattern": [1]}, "must be objects"),
        ({"r": 8, "lora_alpha": 8, "rank_pattern": {"(": 4}}, "'(' is no regular expression"),
        ({"r": 8, "lora_alpha": 8, "alpha_pattern": {"(?i)q": 4}}, "'(?i)q' is no regular expression"),
        ({"r": 4, "lora_alpha": 8}, f"lora_A.weight' is of rank 8, and {CONFIG} says 4"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_its_name(tmp_path, config, text):
    folder = adapter(tmp_path, 8, config)
    with pytest.raises(FileOfTensorsError) as problem:
        describe(folder, scan(open_weights(folder), 16))
    assert text in str(problem.value)
    assert str(tmp_path) in str(problem.value)


# -- starts and thresholds -----------------------------------------------------------------------------------
def lost_of_signs(values, rate):
    """Return the share of numbers that steps of one rate, half of them up, leave where they are."""
    signs = np.where(np.arange(values.size) % 2, 1.0, -1.0)
    rows = TensorRows(np.array([values]), Steady(np.array([signs]), 0.9), np.array([False]))
    once = np.array([1]), np.array([rate])
    return forecast(rows, mcf.AdamW(), mcf.strategy("plain"), *once).lost[0, 0]


@pytest.mark.parametrize("width", [64, 4096, 5000])
@pytest.mark.parametrize("rate", [3e-5, 1e-4, 2.5e-4])
def test_a_at_its_start_loses_what_fractions_and_its_uniform_distribution_say(width, rate):
    """Number by number; and from a power of two on, 2**e, no step is lost but those up to 2**(e - 8)."""
    first, second = adapters_at_start({"x.weight": (24, width)}, 8, 512)
    assert (first.name, first.shape) == ("x.lora_A.weight", (8, width))
    assert (second.name, second.shape) == ("x.lora_B.weight", (24, 8))
    length, lost = Fraction(round_fraction(Fraction(rate), BFLOAT16)), 0
    for place, value in enumerate(first.values.tolist()):
        before = Fraction(round_fraction(Fraction(value), BFLOAT16))
        lost += round_fraction(before + (-length if place % 2 else length), BFLOAT16) == before
    assert lost_of_signs(first.values, rate) == lost / 512
    assert lost_of_signs(second.values, rate) == 0.0
    least = next(Fraction(2) ** e for e in range(-30, 9) if length <= Fraction(2) ** (e - 8))
    assert lost / 512 == pytest.approx(max(0.0, 1.0 - float(least) * math.sqrt(width)), abs=2**-8)
    assert first.rms == pytest.approx(np.sqrt(np.mean(first.values**2)), rel=1e-5)
    assert (second.rms, second.zeros) == (0.0, 1.0)


def test_a_gain_at_one_stays_below_two_to_the_minus_nine_downward_and_minus_eight_upward():
    """At a middle it stays, too: 1 is the even one."""
    ones = np.ones(8)
    rates = {2**-9: 1.0, 2**-9 * 1.01: 0.5, 2**-8: 0.5, 2**-8 * 1.01: 0.0}
    assert {rate: lost_of_signs(ones, rate) for rate in rates} == rates
    assert lost_of_signs(np.zeros(8), 1e-30) == 0.0  # as 1 + w has them


@pytest.mark.slow
def test_an_audit_says_below_which_rate_each_kind_stays():
    """The rates are those at which forecasts of steps of one rate change."""
    shapes = {"model.q.weight": (64, 256), "embed.weight": (100, 64), "lm_head.weight": (100, 64)}
    samples = adapters_at_start(shapes, 8, 256)
    assert [x.name for x in samples] == ["model.q.lora_A.weight", "model.q.lora_B.weight"]
    samples.append(TensorSample("norm.weight", (64,), "float32", np.ones(256), 1.0, 0.0))
    found = audit(samples, plan(["plain", "kahan"], schedule=(1e-4, 0, 1.0), decay=0.0), BFLOAT16)
    first, second, gain = found.tensors
    assert [x.kind for x in found.tensors] == [A, B, GAIN]
    assert gain.stays_below == (2**-9, 2**-8)
    assert second.stays_below[0] < 1e-40
    assert first.stays_below[0] == first.stays_below[1] == 2.0**-13  # half of it lies in [1/32, 1/16)
    assert lost_of_signs(samples[0].values, 2.0**-13 * 0.99) >= 0.5
    assert lost_of_signs(samples[0].values, 2.0**-13 * 1.01) < 0.5
    plain = [x.found["plain"] for x in found.tensors]
    assert (plain[1].at_first, plain[2].at_first, plain[2].stops) == (0.0, 1.0, 1)
    assert 0.0 < plain[0].at_first < 1.0
    rows = {row["kind"]: row for row in kind_table(found)}
    assert list(rows) == ["adapter A", "adapter B", "gain"]
    assert rows["gain"]["stays below"] == "0.00195 to 0.00391"
    assert rows["gain"]["cheapest that does"] == "kahan"
    assert [rows[x]["lost at first"] for x in rows] == [f"{x.at_first:.4f}" for x in plain]
    parts = found.by_kind()
    assert sum(part.size for part in parts.values()) == found.size
    assert [x.name for x in parts[GAIN].tensors] == ["norm.weight"]


def test_embeddings_and_heads_get_adapters_only_by_their_names():
    names = ("model.embed_tokens", "transformer.wte", "lm_head", "output", "layers.0.attn.output", "fc")
    shapes = {f"{name}.weight": (16, 16) for name in names} | {"norm.weight": (16,), "matrix": (16, 16)}

    def adapted(*targets):
        return [x.name.removesuffix(".lora_A.weight") for x in adapters_at_start(shapes, 2, 16, targets)[::2]]

    assert adapted() == ["layers.0.attn.output", "fc", "matrix"]
    assert adapted("output", "wte") == ["transformer.wte", "output", "layers.0.attn.output"]


def test_the_rates_that_the_page_names():
    """Of A with 4096 columns, and of normal numbers, as B of an adapter of embeddings has them."""
    start, _ = adapters_at_start({"q.weight": (4096, 4096)}, 8, 1024)
    normal = np.random.default_rng(0).standard_normal(1024)
    made = [start, TensorSample("embed.lora_embedding_B", (64, 16), "float32", normal, 1.0, 0.0)]
    found = audit(made, plan(["plain"]), BFLOAT16).tensors
    assert [x.stays_below[1] for x in found] == [2**-15, 2**-9]


@pytest.mark.parametrize(
    ("shapes", "rank", "targets", "error", "text"),
    [
        ({"q.weight": (64, 64)}, 65, (), ValueError, "rank = 65 is beyond that of q, 64 x 64"),
        ({"q.weight": (64, 64)}, 0, (), ValueError, "rank"),
        ({"q.weight": (64, 64)}, 8.0, (), TypeError, "rank"),
        ({"embed.weight": (64, 64)}, 8, (), ValueError, "no matrix to adapt"),
        ({"q.weight": (64, 64)}, 8, ("q", "v_proj"), ValueError, "no matrix's name ends in 'v_proj'"),
        ({"xq.weight": (64, 64)}, 8, ("q",), ValueError, "no matrix's name ends in 'q'"),
    ],
)
def test_adapters_that_cannot_be_are_refused(shapes, rank, targets, error, text):
    with pytest.raises(error, match=text):
        adapters_at_start(shapes, rank, 16, targets)


# -- by the command line -------------------------------------------------------------------------------------
PLAN = "--lr 1e-4 --steps 20 --samples 64 --strategy plain --strategy kahan --betas 0.9 0.95"


@pytest.mark.slow
def test_an_adapter_is_audited_as_any_other_file(tmp_path, monkeypatch):
    monkeypatch.chdir(adapter(tmp_path, 8, {"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
    words = [*PLAN.split(), "--json", "x.json"]
    for path in ("adapter_model.safetensors", "."):
        text = runner.call("audit", path, *words, status=0).stdout
        assert "adapters of rank 8; by adapter_config.json B A is multiplied by 2\n" in text
        data = json.loads((tmp_path / "x.json").read_text())
        assert data["adapters"] == {"ranks": {"8": 4}, "scales": {"2": 4}}
        assert [row["kind"] for row in data["kinds"]] == ["adapter A", "adapter B", "gain"]
        assert {x["kind"] for x in data["tensors"]} == {"adapter A", "adapter B", "gain"}
    before = (tmp_path / CONFIG).read_bytes()
    given = itertools.product(["audit"], ["--json", "--html", "--checkpoint"])
    for command, option in [*given, ("assign", "--json"), ("assign", "--csv")]:
        told = runner.refused(command, path, *PLAN.split(), option, CONFIG)
        assert f"{option} would take the place of what is read (WEIGHTS)" in told
        assert (tmp_path / CONFIG).read_bytes() == before
    (tmp_path / CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 16}))
    assert "is of rank 8, and adapter_config.json says 4" in runner.refused("audit", path, *words)
    (tmp_path / CONFIG).unlink()
    text = runner.call("audit", path, *words, status=0).stdout
    assert "adapters of rank 8; no adapter_config.json says their scale\n" in text


@pytest.mark.slow
def test_adapters_are_audited_before_there_are_any(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shapes = {"model.q_proj.weight": (32, 64), "model.v_proj.weight": (16, 64), "lm_head.weight": (99, 64)}
    write_file(tmp_path / "m.safetensors", {name: ("F32", np.zeros(x, "f4")) for name, x in shapes.items()})
    words = ["m.safetensors", *PLAN.split(), "--json", "x.json"]
    text = runner.call("audit", *words, "--rank", "8", status=0).stdout
    assert "m.safetensors: 1,408 parameters in 4 tensors" in text
    assert "; adapters of rank 8 as they start\n" in text
    text = runner.call("audit", *words, "--rank", "8", "--target", "v_proj", status=0).stdout
    names = [x["name"] for x in json.loads((tmp_path / "x.json").read_text())["tensors"]]
    assert names == ["model.v_proj.lora_A.weight", "model.v_proj.lora_B.weight"]
    for more, told in (
        ("--target v_proj", "--target needs --rank"),
        ("--rank 8 --checkpoint c.npz", "--rank reads no weights"),
        ("--rank 8 --target k_proj", "no matrix's name ends in 'k_proj'"),
    ):
        assert told in runner.refused("audit", *words, *more.split())


# -- merged --------------------------------------------------------------------------------------------------
def factors(seed, fmt, size):
    """Return W in a format, and A and B in bfloat16, B of this size."""
    rng = np.random.default_rng(seed)
    weight = mcf.round_to(rng.standard_normal((6, 5)) * 0.05, fmt)
    a = mcf.round_to(rng.uniform(-0.4, 0.4, (3, 5)), "bfloat16")
    b = mcf.round_to(rng.standard_normal((6, 3)) * size, "bfloat16")
    b[0] = 0.0
    return weight, a, b


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("scale", [2.0, 0.3, 16 / math.sqrt(3), 0.0])
@pytest.mark.parametrize(("fmt", "size"), [("bfloat16", 1e-4), ("bfloat16", 1e-2), ("float16", 1e-3)])
def test_a_merge_is_that_of_fractions(fmt, size, scale, stepwise, assert_same):
    """Each weight by definition: an exact sum, rounded once; or product, multiple and sum, each rounded."""
    low = mcf.get_format(fmt)
    weight, a, b = factors(1, fmt, size)
    found = mcf.merge_adapter(weight, a, b, scale, fmt, stepwise=stepwise)
    expected, changed, asked, kept = np.empty(weight.shape), 0, 0, 0
    mixed = squares = off = Fraction(0)
    for row, column in product(range(6), range(5)):
        before = Fraction(float(weight[row, column]))
        exact = sum(Fraction(float(b[row, k])) * Fraction(float(a[k, column])) for k in range(3))
        update = Fraction(scale) * exact
        if stepwise:
            rounded = Fraction(round_fraction(exact, low))
            after = round_fraction(before + Fraction(round_fraction(Fraction(scale) * rounded, low)), low)
        else:
            after = round_fraction(before + update, low)
        expected[row, column] = after
        move = Fraction(after) - before
        changed += move != 0
        asked += update != 0
        kept += update != 0 and move == 0
        mixed, squares, off = mixed + update * move, squares + update**2, off + (move - update) ** 2
    assert_same(np.asarray(found.weights, float), expected)
    assert found.changed == changed
    if not asked:
        assert all(map(math.isnan, (found.lost, found.edq, found.error)))
        return
    assert found.lost == kept / asked
    assert found.edq == pytest.approx(float(mixed / squares), rel=1e-12)
    assert found.error == pytest.approx(math.sqrt(off / squares), rel=1e-9)


def test_a_zero_that_loses_its_sign_has_another_code():
    """An adapter that has not moved yet changes negative zeros alone; as `Delta` counts codes."""
    weight, a, b = factors(1, "bfloat16", 0.0)
    weight[1:3] = -0.0
    found = mcf.merge_adapter(weight, abs(a), abs(b), 2.0)  # products are positive zeros
    assert found.changed == mcf.Delta.between(weight.astype(np.float32), found.weights).places.size == 10
    assert math.isnan(found.lost)


def test_what_is_not_finite_passes_into_the_merged_weights():
    weight, a, b = factors(2, "bfloat16", 1e-2)
    a[0, 0] = np.nan
    found = mcf.merge_adapter(weight, a, b, 2.0)
    assert np.isnan(found.weights[:, 0]).all()
    assert np.isfinite(found.weights[:, 1:]).all()
    assert all(map(math.isnan, (found.lost, found.edq, found.error)))


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.7, -0.1, 16 / math.sqrt(3), 0.0])
@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("of", ["weight", "a", "b"])
def test_an_infinity_stays_one_whatever_the_bits_of_the_scale(of, stepwise, scale):
    given = {"weight": np.ones((2, 2)), "a": np.ones((1, 2)), "b": np.ones((2, 1))}
    given[of][0, 0] = np.inf
    found = mcf.merge_adapter(**given, scale=scale, stepwise=stepwise)
    update = np.inf * scale if of != "weight" else np.inf
    assert np.array_equal(found.weights[0, 0], update, equal_nan=True)
    assert np.isfinite(found.weights[1, 1])
    assert all(map(math.isnan, (found.lost, found.edq, found.error)))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"a": np.zeros((2, 5))}, ValueError, "shapes of weight, a and b"),
        ({"b": np.zeros(6)}, ValueError, "shapes of weight, a and b"),
        ({"a": np.zeros((3, 4))}, ValueError, "shapes of weight, a and b"),
        ({"weight": np.full((6, 5), 0.1)}, ValueError, "weight holds numbers that are no values of bfloat16"),
        ({"a": np.full((3, 5), 0.1)}, ValueError, "a holds numbers that are no values of float32"),
        ({"scale": math.inf}, ValueError, "scale"),
        *(({"scale": x}, ValueError, "scale = .* between 2.*-100 and") for x in (1e200, -1e31, 1e-200)),
        ({"scale": "2"}, TypeError, "scale"),
        ({"b": np.zeros((6, 3), complex)}, TypeError, "b"),
    ],
)
def test_merges_that_make_no_sense_are_refused(change, error, text):
    weight, a, b = factors(3, "bfloat16", 1e-2)
    with pytest.raises(error, match=text):
        mcf.merge_adapter(**{"weight": weight, "a": a, "b": b, "scale": 2.0} | change)
