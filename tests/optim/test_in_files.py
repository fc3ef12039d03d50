"""Steps in blocks, on threads, and of a state that lies in files: the bits of the plain step."""

import errno
import importlib.util
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode
from mcfsim.compile import choice, loops
from mcfsim.models.weights import DTYPE_OF, open_weights
from mcfsim.optim import optimizer as stepping
from mcfsim.optim import start as starting
from mcfsim.optim import stripes
from mcfsim.optim.memory import read
from mcfsim.optim.strategies import Stored
from mcfsim.storage.files import OutputError
from mcfsim.storage.shards import write_file
from tests.optim.stored import Stretches
from tests.shared.kinds import UNPACKED

#: Strategies, and whether vectors are packed.
STORED = [(name, packed) for name in mcf.STRATEGIES for packed in (False, True)]
STORED = [(name, packed) for name, packed in STORED if name != "exact" and not (packed and name in UNPACKED)]
MATRIX, GAIN = (61, 71), (1013,)
needs_numba = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("numba", "platformdirs")),
    reason="Numba is not installed",
)
#: How a step is carried out on NumPy: by its operations, or, as there are many to come, as a list of calls.
ON_NUMPY = {"operations": {"compiled": False}, "calls": {"steps": 10**6}}


def hostile(rng, shape):
    """Return numbers of all sizes, with zeros, subnormals, infinities and NaN among them."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 1, shape)
    hard = [0.0, -0.0, 1e-40, -2e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-38, 65504, 6e-8]
    x.flat[: 8 * len(hard)] = np.tile(hard, 8)
    return rng.permuted(x.astype(np.float32))


def tensors(seed):
    rng = np.random.default_rng(seed)
    return {
        "gain": hostile(rng, GAIN),
        "matrix": hostile(rng, MATRIX),
        "scalar": np.array(0.7),
        "none": np.ones(0),
    }


def stored(given):
    return {name: Stretches(x) for name, x in given.items()}


def trained(name, mode, *, take=dict, keep=True, **options):
    """Return the numbers that two steps leave, and those that they ask for."""
    if mode == "stochastic":
        options["random"] = mcf.RandomWords(3)
    start = take(tensors(0))
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), start, ["matrix", "none"], mode, **options)
    asked = []
    for step in (1, 2):
        gradient = optimizer.receive(take(tensors(step)))
        if keep:
            asked.append(read(optimizer.step(gradient, 1e-3), optimizer.roles.update.format))
        else:
            optimizer.advance(gradient, 1e-3)
    assert optimizer.count == 2
    pairs = zip(optimizer.state, optimizer.formats, strict=True)
    return [read(x, fmt) for items, fmt in pairs for x in items], asked


@pytest.fixture
def small_blocks(monkeypatch):
    """Let blocks be of sizes that divide nothing."""

    def cut():
        monkeypatch.setattr(stepping, "BLOCK", 190)
        monkeypatch.setattr(loops, "AT_ONCE", 77)
        monkeypatch.setattr(loops, "BLOCK", 91)
        monkeypatch.setattr(stripes, "_STRIPE", 1000)
        monkeypatch.setattr(starting, "AT_ONCE", 513)

    return cut


def compare(name, mode, folder, cut, assert_same, **options):
    """Take steps in all ways; blocks cross the borders of tensors and the edge of weight decay."""
    if "collage" in name and mode != "nearest_even":
        pytest.skip("expansions are for nearest modes")
    expected, updates = trained(name, mode, compiled=False)
    cut()
    ways = {
        "blocks": {},
        "threads": {"threads": 3},
        "no update": {"keep": False},
        "stored": {"take": stored},
        "files": {"folder": folder, "threads": 2, "take": stored, "keep": False},
    }
    for way, chosen in ways.items():
        found, asked = trained(name, mode, **options, **chosen)
        assert len(asked) == (2 if chosen.get("keep", True) else 0), way
        for mine, other in zip([*found, *asked], [*expected, *updates], strict=False):
            assert_same(mine, other)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "packed"), STORED)
@pytest.mark.parametrize("how", ON_NUMPY)
@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.sampled(18, each=False)
def test_all_ways_have_the_bits_of_the_plain_step(
    name, mode, how, packed, small_blocks, assert_same, tmp_path, monkeypatch
):
    monkeypatch.setattr(choice, "is_available", lambda: False)
    compare(name, mode, tmp_path / "files", small_blocks, assert_same, packed=packed, **ON_NUMPY[how])


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize(("name", "packed"), STORED)
@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.sampled(120, each=False)
def test_all_ways_have_the_same_bits_compiled(name, mode, packed, small_blocks, assert_same, tmp_path):
    compare(name, mode, tmp_path / "files", small_blocks, assert_same, packed=packed, compiled=True)


def test_all_of_a_state_lies_in_its_folder(tmp_path):
    folder = tmp_path / "state"
    optimizer = mcf.Optimizer(
        mcf.AdamW(), mcf.strategy("collage-plus"), {"w": np.linspace(-1, 1, 999)}, packed=True, folder=folder
    )
    gradient = optimizer.receive({"w": np.ones(999)})
    optimizer.advance(gradient, 0.1)
    names = ["gradient", "m0", "parameter0", "parameter1", "v0", "v1"]
    assert sorted(os.listdir(folder)) == [f"{name}.npy" for name in names]
    vectors = [gradient, *optimizer.state.m, *optimizer.state.parameter, *optimizer.state.v]
    for name, vector in zip(names, vectors, strict=True):
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), vector)
        about = (folder / f"{name}.npy").stat()
        assert about.st_blocks * 512 >= about.st_size  # the disk has room for all of it
    assert optimizer.receive({"w": np.zeros(999)}) is gradient


@pytest.mark.parametrize("packed", [False, True])
def test_a_gradient_is_received_where_one_says(packed, assert_same):
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), {"w": np.ones(99)}, packed=packed)
    gradient = {"w": np.linspace(-1, 1, 99)}
    out = np.empty(99, np.uint16 if packed else np.float32)
    assert optimizer.receive(gradient, out) is out
    assert_same(read(out, mcf.get_format("bfloat16")), mcf.round_to(gradient["w"], "bfloat16"))
    closed = out.copy()
    closed.flags.writeable = False
    for wrong, error in (
        (closed, ValueError),
        (out[1:], ValueError),
        (np.empty(99), TypeError),
        ([], TypeError),
    ):
        with pytest.raises(error, match="out must be"):
            optimizer.receive(gradient, wrong)
    with pytest.raises(ValueError, match="tensor 'w' must have shape"):
        optimizer.receive({"w": np.zeros(98)}, out)
    assert_same(read(out, mcf.get_format("bfloat16")), mcf.round_to(gradient["w"], "bfloat16"))


def test_exact_numbers_lie_in_no_file(tmp_path):
    with pytest.raises(ValueError, match="exact numbers lie in no file"):
        mcf.Optimizer(mcf.SGD(), mcf.strategy("exact"), {"w": np.ones(3)}, folder=tmp_path / "state")
    exact = mcf.Optimizer(mcf.SGD(), mcf.strategy("exact"), {"w": np.ones(3)})
    with pytest.raises(ValueError, match="out is for formats"):
        exact.receive({"w": np.ones(3)}, np.empty(3))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"end": 700}, r"tensor 'w' gives an array of shape \(\d+,\) for its elements 513 to 1026"),
        (
            {"end": 700, "problem": OSError("lost the disk")},
            "tensor 'w' cannot be read from .* 513 on: lost the disk",
        ),
        ({"end": 0, "problem": KeyError()}, "tensor 'w' cannot be read from element 0 on: KeyError"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_named_and_leaves_nothing(fault, text, there, tmp_path, small_blocks):
    small_blocks()
    folder = tmp_path / "state"
    if there:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    start = {"b": np.ones(5), "w": Stretches(np.ones(2000), **fault)}
    with pytest.raises(ValueError, match=text):
        mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), start, ["w"], folder=folder)
    assert [path.name for path in tmp_path.rglob("*")] == (["state", "notes.txt"] if there else [])
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), {"b": np.ones(5), "w": np.ones(2000)}, ["w"])
    before = optimizer.state.parameter[0].copy()
    with pytest.raises(ValueError, match=text):
        optimizer.receive(start)
    np.testing.assert_array_equal(optimizer.state.parameter[0], before)


def test_stored_tensors_are_read_a_stretch_at_a_time(small_blocks):
    small_blocks()
    given = stored(tensors(0))
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain"), given)
    optimizer.receive(given)
    assert max(tensor.longest for tensor in given.values()) == 513


@pytest.mark.parametrize("low", ["bfloat16", "float8_e5m2"])
def test_weights_of_a_model_are_taken_from_their_files_as_codes(low, tmp_path):
    """All codes but those of NaN come back as they were; a cut file leaves nothing and is named."""
    fmt = mcf.get_format(low)
    codes = np.arange(1 << fmt.bits).astype(f"u{fmt.bits // 8}")
    codes = codes[np.isfinite(decode(codes, fmt))]
    tensors = {
        "model.w": (DTYPE_OF[fmt], codes[:-50].reshape(2, -1)),
        "model.b": (DTYPE_OF[fmt], codes[-50:]),
    }
    write_file(tmp_path / "model.safetensors", tensors)
    weights = open_weights(tmp_path / "model.safetensors")
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain", fmt), weights, weights, packed=True)
    for name, part in optimizer.layout.slices.items():
        np.testing.assert_array_equal(optimizer.state.parameter[0][part], tensors[name][1].ravel())
        np.testing.assert_array_equal(optimizer.receive(weights)[part], tensors[name][1].ravel())
    os.truncate(weights.path, weights.path.stat().st_size - 30)
    with pytest.raises(ValueError, match=r"tensor 'model\.[bw]' cannot be read from .*model.safetensors"):
        mcf.Optimizer(mcf.SGD(), mcf.strategy("plain", fmt), weights, folder=tmp_path / "state")
    assert os.listdir(tmp_path) == ["model.safetensors"]


def refused(folder, text, parameters=None):
    with pytest.raises(OutputError, match=text):
        mcf.Optimizer(
            mcf.AdamW(), mcf.strategy("plain"), parameters or {"w": np.ones(1000)}, packed=True, folder=folder
        )


def test_places_where_no_folder_can_be(tmp_path):
    refused(tmp_path / "no" / "state", "there is no folder .*no")
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file", "file is no folder")
    refused(tmp_path / "file" / "state", "there is no folder .*file")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "m0.npy").write_bytes(b"mine")
    refused(taken, "has m0.npy: name a new one")
    (taken / "gradient.npy").symlink_to(tmp_path / "elsewhere")
    refused(taken, "has m0.npy, gradient.npy|has gradient.npy, m0.npy")
    assert sorted(os.listdir(taken)) == ["gradient.npy", "m0.npy"]
    assert (taken / "m0.npy").read_bytes() == b"mine"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write anywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    refused(tmp_path / "state", "cannot write .*state: Permission denied")
    refused(tmp_path, "cannot write .*parameter0.npy: Permission denied")


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8000))
    refused(tmp_path / "state", "[0-9]+ bytes are needed, and 8000 are free")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="places cannot be reserved")
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    reserve = os.posix_fallocate

    def full(handle, start, count):
        if len(os.listdir(tmp_path / "state")) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(handle, start, count)

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(tmp_path / "state", "cannot write .*npy: No space left on device")
    assert os.listdir(tmp_path) == []


def test_where_no_place_can_be_reserved_zeros_are_written(tmp_path, monkeypatch, assert_same):
    def unsupported(handle, start, count):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    start = {"w": np.linspace(-1, 1, 5000)}
    found = [
        mcf.Optimizer(mcf.AdamW(), mcf.strategy("fp32-master"), start, folder=folder)
        for folder in (None, tmp_path / "state")
    ]
    for item in found:
        item.step(item.receive(start), 0.1)
    for mine, other in zip(*([x for part in item.state for x in part] for item in found), strict=True):
        assert_same(mine, other)
        assert other.size == 5000
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_names_and_shapes_are_refused_before_anything_is_made(tmp_path):
    for parameters, error in (({}, ValueError), ({"w": np.ma.masked_less([1.0, 2.0], 1.5)}, TypeError)):
        with pytest.raises(error):
            mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain"), parameters, folder=tmp_path / "no" / "state")
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_without_zero_starts_from_nan_in_files_too(packed, tmp_path):
    """Where zero is not the code of all zeros, which a new file holds."""
    declared = mcf.Strategy("no zero", v=Stored("float8_e8m0fnu"))
    optimizer = mcf.Optimizer(
        mcf.AdamW(), mcf.strategy(declared), {"w": np.ones(5)}, packed=packed, folder=tmp_path / "state"
    )
    assert np.isnan(read(optimizer.state.v[0], mcf.get_format("float8_e8m0fnu"))).all()
    assert not any(optimizer.state.m[0])


@pytest.mark.parametrize("steps", [1, 10**6])
def test_a_gradient_need_not_be_contiguous(steps, monkeypatch, assert_same):
    monkeypatch.setattr(choice, "is_available", lambda: False)
    wide = np.random.default_rng(0).standard_normal((5000, 2), dtype=np.float32)
    updates = []
    for gradient in (wide[:, 1].copy(), wide[:, 1], wide[:, 1].astype(">f4")):
        optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain"), {"w": wide[:, 0]}, steps=steps, threads=2)
        updates.append(optimizer.step(gradient, 0.1))
        assert_same(
            optimizer.weights()["w"], mcf.round_to(mcf.round_to(wide[:, 0], "bf16") + updates[0], "bf16")
        )
    assert_same(updates[1], updates[0])
    assert_same(updates[2], updates[0])
