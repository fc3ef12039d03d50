"""Weights and states in files: what other code reads in them, and that steps go on to the same bits."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize

import mcfsim as mcf
from mcfsim.models.known import SavedState
from mcfsim.models.plan import Plan
from mcfsim.models.samples import places_of, scan
from mcfsim.models.saving import load_state, save_state, save_weights
from mcfsim.models.weights import open_tensors, open_weights
from mcfsim.optim.adafactor import MomentumAdafactor
from mcfsim.optim.lion import Lion
from mcfsim.optim.vectors import read
from mcfsim.storage.files import OutputError
from mcfsim.storage.sealed import STATE, digest, sealed
from mcfsim.storage.shards import read_metadata, write_file
from mcfsim.storage.tensors import FileOfTensorsError
from tests.optim.stored import bits
from tests.shared.kinds import STORED, UNPACKED

HYPER = mcf.AdamW(beta2=0.95)
SHAPES = {"w": (30, 40), "b": (40,), "scalar": ()}


def numbers(rng):
    return {label: np.asarray(rng.standard_normal(shape)) for label, shape in SHAPES.items()}


def made(name="collage-plus", low="bfloat16", hyper=HYPER, **options):
    start = numbers(np.random.default_rng(0))
    return mcf.Optimizer(hyper, mcf.strategy(name, low), start, ["w"], **options)


def go(optimizer, steps, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        optimizer.step(optimizer.receive(numbers(rng)), 1e-2)
    return optimizer


def not_loaded(optimizer, path, text):
    """Try to load a state, which must be refused and change nothing."""
    before = bits(optimizer)
    with pytest.raises(FileOfTensorsError, match=text):
        load_state(optimizer, path)
    assert bits(optimizer) == before


FORMATS = ("float16", "float8_e4m3fn", "float8_e5m2", "tf32", "posit16", "e6m9")


@pytest.mark.parametrize(
    ("name", "low", "packed", "hyper"),
    [
        *((name, "bfloat16", False, HYPER) for name in (*STORED, "dqt-int4", "bitnet")),
        *((name, "bfloat16", True, HYPER) for name in STORED if name not in UNPACKED),
        *(("plain", low, packed, HYPER) for low in FORMATS for packed in (False, True)),
        ("collage-plus", "bfloat16", False, MomentumAdafactor()),
        ("fp8-moments", "bfloat16", True, MomentumAdafactor()),
    ],
)
@pytest.mark.sampled(6, each=False)
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_a_state_goes_on_to_the_same_bits(tmp_path, name, low, packed, hyper):
    drawn = {"random": mcf.RandomWords(5)} if "stochastic" in name else {}
    options = {"packed": packed, "hyper": hyper} | drawn
    first = go(made(name, low, **options), 3)
    save_state(first, tmp_path / "s.safetensors")
    other = made(name, low, **options)
    load_state(other, tmp_path / "s.safetensors")
    assert bits(other) == bits(first)
    assert bits(go(other, 2, 7)) == bits(go(first, 2, 7))
    if hyper is not HYPER:
        kept = "w.exp_avg_sq.rows" + ".codes" * packed
        assert {kept, kept.replace("rows", "columns")} < set(open_tensors(tmp_path / "s.safetensors"))


@pytest.mark.parametrize("packed", [False, True])
def test_weights_are_read_by_other_code(tmp_path, packed):
    optimizer = go(made(packed=packed), 2)
    save_weights(optimizer, tmp_path / "w.safetensors")
    found = dict(deserialize((tmp_path / "w.safetensors").read_bytes()))
    assert found.keys() == SHAPES.keys()
    for name, x in optimizer.weights().items():
        assert (found[name]["dtype"], tuple(found[name]["shape"])) == ("BF16", SHAPES[name])
        assert bytes(found[name]["data"]) == np.asarray(x).astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("shard_bytes", [1, 100, 2000, 1e9])
def test_shards_hold_what_one_file_does(tmp_path, shard_bytes):
    optimizer = go(made(packed=True), 2)
    for save, place in ((save_weights, "w"), (save_state, "s")):
        save(optimizer, tmp_path / f"{place}.safetensors")
        save(optimizer, tmp_path / place, shard_bytes=shard_bytes)
        one, many = open_tensors(tmp_path / f"{place}.safetensors"), open_tensors(tmp_path / place)
        found = [{name: (x.dtype, x.shape, x.read().tobytes()) for name, x in y.items()} for y in (one, many)]
        assert found[0] == found[1]
        index = json.loads((tmp_path / place / "model.safetensors.index.json").read_text())
        by_file = {}
        for name, file in index["weight_map"].items():
            if name != "step":
                by_file.setdefault(file, []).append(one[name].bytes)
        assert all(len(sizes) == 1 or sum(sizes) <= shard_bytes for sizes in by_file.values())
        assert shard_bytes > 1 or len(by_file) >= len(SHAPES)


@pytest.mark.parametrize(("packed", "shard_bytes"), [(False, 1000), (True, None)])
@pytest.mark.parametrize("name", ["plain", "collage-plus", "mcf-3", "split-master", "fp8-moments"])
@pytest.mark.sampled(2)
def test_an_audit_reads_a_state(tmp_path, name, packed, shard_bytes):
    optimizer, place = go(made(name, packed=packed), 4), tmp_path / ("s" if shard_bytes else "s.safetensors")
    save_weights(optimizer, tmp_path / "w.safetensors")
    save_state(optimizer, place, shard_bytes=shard_bytes)
    samples = scan(open_weights(tmp_path / "w.safetensors"), 64)
    plan = Plan(HYPER, mcf.Schedule(), 10, (mcf.strategy("plain"),))
    rows = SavedState(place).directions(samples, plan).at(1)
    pairs = zip((optimizer.state.m, optimizer.state.v), optimizer.formats[1:3], strict=True)
    m, v = (sum(read(x, fmt).astype(float) for x in vectors) for vectors, fmt in pairs)
    expected = m / (1 - 0.9**4) / (np.sqrt(v / (1 - 0.95**4)) + 1e-8)
    for row, sample in zip(rows, samples, strict=True):
        whole = expected[optimizer.layout.slices[sample.name]]
        np.testing.assert_array_equal(row, whole[places_of(whole.size, 64)])


@pytest.mark.parametrize(("place", "shard_bytes"), [("s.safetensors", None), ("s", 1000)])
def test_packed_moments_lie_in_files_as_codes_and_scales(tmp_path, place, shard_bytes):
    optimizer = go(made("fp8-moments", packed=True), 2)
    save_state(optimizer, tmp_path / place, shard_bytes=shard_bytes)
    tensors = open_tensors(tmp_path / place)
    for moment, (vector,) in (("exp_avg", optimizer.state.m), ("exp_avg_sq", optimizer.state.v)):
        codes, scales = (tensors[f"w.{moment}.{part}"] for part in ("codes", "scales"))
        assert [codes.dtype, codes.shape, scales.dtype, scales.shape] == ["F8_E4M3", (30, 40), "F32", (10,)]
        elements = codes.read().view(ml_dtypes.float8_e4m3fn).astype(float)
        numbers = elements * np.repeat(scales.read().astype(float), 128)[:1200]
        kept = vector[optimizer.layout.slices["w"]].numbers()
        np.testing.assert_array_equal(numbers.astype(np.float32), kept)
    load_state(other := made("fp8-moments", packed=True), tmp_path / place)
    assert bits(other) == bits(optimizer)


# -- what is refused -----------------------------------------------------------------------------------------
def altered(optimizer, path, name, item):
    """Write a state with a tensor that is another, altered in place, or left out; sealed as if right."""
    save_state(optimizer, path)
    tensors = {name: (t.dtype, t.read().reshape(t.shape)) for name, t in open_tensors(path).items()}
    if callable(item):
        item(tensors[name][1])
    else:
        tensors[name] = item
    kept = {name: item for name, item in tensors.items() if item is not None}
    forms = {name: (dtype, x.shape) for name, (dtype, x) in kept.items()}
    digests = {name: digest(np.ascontiguousarray(x)) for name, (_, x) in kept.items()}
    others = {name: read_metadata(path)[name] for name in ("optimizer", "strategy")}
    write_file(path, kept, sealed(STATE, forms, digests, others))
    return path


def spoilt(place, number):
    return lambda x: x.flat.__setitem__(place, number)


PACKED, SCALES = {"name": "fp8-moments", "packed": True}, "w.exp_avg_sq.scales"
TF32 = {"name": "plain", "low": "tf32"}
LONGER, NEW = ("BF16", np.zeros(41, np.uint16)), ("BF16", np.zeros(40, np.uint16))
WIDER = ("F32", np.zeros(40, np.float32))
WRONG = [
    ({}, "w.exp_avg", None, r"'w\.exp_avg' must be BF16 of shape \(30, 40\), and it is not there"),
    ({}, "b.v1", LONGER, r"'b\.v1' must be BF16 of shape \(40,\), and it is BF16 \(41,\)"),
    ({}, "b.v1", WIDER, r"and it is F32 \(40,\)"),
    *(({}, "step", x, "how many steps") for x in (None, ("I64", np.array(-1)), ("F32", np.float32(3)))),
    ({}, "b.v2", NEW, "the tensor 'b.v2', which this"),
    # The last tensor has such a number: those before it stay as they are, too.
    (TF32, "w.exp_avg_sq", spoilt(-1, 0.1), r"'w\.exp_avg_sq' has a number that is none of tf32"),
    *((PACKED, SCALES, spoilt(7, x), rf"'{SCALES}' has a negative or infinite") for x in (-0.0, np.inf)),
]


@pytest.mark.parametrize(("kind", "name", "item", "text"), WRONG)
def test_states_that_do_not_fit_change_nothing(tmp_path, kind, name, item, text):
    path = altered(go(made(**kind), 2), tmp_path / "s.safetensors", name, item)
    optimizer = go(made(**kind), 1)
    not_loaded(optimizer, path, text)
    go(optimizer, 1)


@pytest.mark.slow
@pytest.mark.parametrize("shard_bytes", [None, 60])
@pytest.mark.sampled(2, each=False)
def test_a_state_of_which_a_byte_is_another_is_refused(tmp_path, shard_bytes):
    """Bytes of a small state, each with one bit changed: what is loaded is what was saved, or nothing."""

    def small():
        start = {"w": np.linspace(-1, 1, 12).reshape(3, 4), "b": np.ones(2)}
        return mcf.Optimizer(mcf.AdamW(), mcf.strategy("collage-light"), start, packed=True)

    first = small()
    first.step(first.receive({"w": np.ones((3, 4)), "b": np.ones(2)}), 0.01)
    path = tmp_path / ("s.safetensors" if shard_bytes is None else "s")
    save_state(first, path, shard_bytes=shard_bytes)
    saved, files = bits(first), [path] if shard_bytes is None else sorted(path.iterdir())
    rng, refused = np.random.default_rng(0), 0
    for file in files:
        whole = file.read_bytes()
        for place in range(0, len(whole), 9):
            bit = bytes([whole[place] ^ 1 << rng.integers(8)])
            file.write_bytes(whole[:place] + bit + whole[place + 1 :])
            other = small()
            before = bits(other)
            try:
                load_state(other, path)
            except (ValueError, OSError):
                refused += 1
                assert bits(other) == before
                other.weights()
            else:
                assert bits(other) == saved  # a blank of the header, say
        file.write_bytes(whole)
    assert refused > 100


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        ({"name": "split-truncated", "packed": True}, {"name": "split-master", "packed": True}, "strategy"),
        ({"name": "fp32-optim"}, {"name": "eco"}, "strategy 'fp32-optim', and not of 'eco'"),
        ({"hyper": mcf.SGD()}, {"hyper": Lion()}, "optimizer 'SGD', and not of 'Lion'"),
        (PACKED, PACKED | {"packed": False}, r"'w\.exp_avg' must be F32 .* not there"),
        (PACKED | {"packed": False}, PACKED, r"'w\.exp_avg\.codes' must"),
    ],
)
def test_a_state_of_another_kind_is_refused(tmp_path, theirs, ours, text):
    """Also where tensors are of the same names and shapes: what they mean is not."""
    save_state(made(**theirs), tmp_path / "s.safetensors")
    not_loaded(go(made(**ours), 1), tmp_path / "s.safetensors", text)


@pytest.mark.slow
def test_a_state_is_not_taken_for_weights_nor_the_other_way_round(tmp_path):
    optimizer = go(made(), 1)
    save_weights(optimizer, tmp_path / "w.safetensors")
    save_state(optimizer, tmp_path / "s.safetensors")
    save_state(optimizer, tmp_path / "s", shard_bytes=1000)
    for place in ("s.safetensors", "s", "s/model.safetensors.index.json"):
        with pytest.raises(FileOfTensorsError, match="has an optimizer's state, whose moments"):
            open_weights(tmp_path / place)
        load_state(made(), tmp_path / place)
    np.savez(tmp_path / "w.npz", w=np.ones((30, 40)))
    shutil.copy(tmp_path / "w.npz", tmp_path / "w.NPZ")
    for place in ("w.safetensors", "w.npz", "w.NPZ"):
        not_loaded(made(), tmp_path / place, "is no state that mcfsim")


def test_places_that_will_not_do_are_refused(tmp_path):
    optimizer, exact = made(), made("exact")
    named = mcf.Optimizer(HYPER, mcf.strategy("plain", "bfloat16"), {"__metadata__": np.ones(2, "f4")})
    save_weights(optimizer, tmp_path / "there", shard_bytes=1e6)
    there = r"has model-00001-of-00001\.safetensors already"
    for save, given, place, options, error, text in (
        (save_weights, optimizer, "w", {}, OutputError, "must end in"),
        (save_weights, optimizer, "w", {"shard_bytes": 0}, ValueError, "shard_bytes = 0 must be positive"),
        (save_weights, optimizer, "there", {"shard_bytes": 1e6}, OutputError, there),
        (save_weights, named, "x.safetensors", {}, OutputError, "no tensor in a file is named '__meta"),
        (save_weights, exact, "x.safetensors", {}, ValueError, "exact numbers"),
        (save_state, exact, "x.safetensors", {}, ValueError, "exact numbers"),
    ):
        with pytest.raises(error, match=text):
            save(given, tmp_path / place, **options)
