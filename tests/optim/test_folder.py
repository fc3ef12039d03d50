"""Vectors of an optimizer that lie in files, or start from files: what is there, and what is refused."""

import errno
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim import start as starting
from mcfsim.optim.strategies import Stored
from mcfsim.optim.vectors import read
from mcfsim.storage.files import OutputError
from tests.optim.stored import Stretches, held, made


@pytest.mark.parametrize(
    ("strategy", "rest"),
    [("collage-plus", ["parameter1", "v1"]), ("fp8-moments", ["extra0", "m0_scales", "v0_scales"])],
)
def test_all_of_a_state_lies_in_its_folder(strategy, rest, tmp_path, assert_same):
    folder = tmp_path / "state"
    optimizer = made({"w": np.linspace(-1, 1, 999)}, strategy, packed=True, folder=folder)
    gradient = optimizer.receive({"w": np.ones(999)})
    optimizer.advance(gradient, 0.1)
    names = {"gradient", "m0", "v0", "parameter0", *rest}
    assert {*os.listdir(folder)} == {f"{name}.npy" for name in names}
    held = {f"{label}{i}": x for label, xs in optimizer.state._asdict().items() for i, x in enumerate(xs)}
    for name, vector in ({"gradient": gradient} | held).items():
        stored = np.load(folder / f"{name}.npy")
        if f"{name}_scales" in names:
            assert_same(np.load(folder / f"{name}_scales.npy"), vector.scales)
            vector = vector.codes
        assert_same(stored, vector)
    for name in names:
        about = (folder / f"{name}.npy").stat()
        assert about.st_blocks * 512 >= about.st_size  # the disk has room for all of it
    assert optimizer.receive({"w": np.zeros(999)}) is gradient


@pytest.mark.parametrize("packed", [False, True])
def test_a_gradient_is_received_where_one_says(packed, assert_same):
    optimizer = made(99, packed=packed)
    gradient = {"w": np.linspace(-1, 1, 99)}
    out = np.empty(99, np.uint16 if packed else np.float32)
    assert optimizer.receive(gradient, out) is out
    assert_same(read(out, mcf.get_format("bfloat16")), mcf.round_to(gradient["w"], "bfloat16"))
    closed = out.copy()
    closed.flags.writeable = False
    values = [(x, ValueError) for x in (closed, out[1:])]
    for wrong, error in [*values, (np.empty(99), TypeError), ([], TypeError)]:
        with pytest.raises(error, match="out must be"):
            optimizer.receive(gradient, wrong)
    with pytest.raises(ValueError, match="tensor 'w' must have shape"):
        optimizer.receive({"w": np.zeros(98)}, out)
    assert_same(read(out, mcf.get_format("bfloat16")), mcf.round_to(gradient["w"], "bfloat16"))


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"end": 700}, r"tensor 'w' gives an array of shape \(\d+,\) for its elements 513 to 1026"),
        ({"end": 700, "problem": OSError("lost it")}, "tensor 'w' cannot be read from .* 513 on: lost it"),
        ({"end": 0, "problem": KeyError()}, "tensor 'w' cannot be read from element 0 on: KeyError"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_named_and_leaves_nothing(fault, text, there, tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "AT_ONCE", 513)
    folder = tmp_path / "state"
    if there:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    start = {"b": np.ones(5), "w": Stretches(np.ones(2000), **fault)}
    with pytest.raises(ValueError, match=text):
        made(start, decayed=["w"], folder=folder)
    assert [path.name for path in tmp_path.rglob("*")] == (["state", "notes.txt"] if there else [])
    optimizer = made({"b": np.ones(5), "w": np.ones(2000)}, decayed=["w"])
    before = optimizer.state.parameter[0].copy()
    with pytest.raises(ValueError, match=text):
        optimizer.receive(start)
    np.testing.assert_array_equal(optimizer.state.parameter[0], before)


def refused(folder, text):
    with pytest.raises(OutputError, match=text):
        made(1000, packed=True, folder=folder)


def test_what_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    ones = {"w": np.ones(3)}
    with pytest.raises(ValueError, match="exact numbers are not stored in files"):
        made(ones, "exact", folder=tmp_path / "state")
    with pytest.raises(ValueError, match="out is for formats"):
        made(ones, "exact").receive(ones, np.empty(3))
    for parameters, error in (({}, ValueError), ({"w": np.ma.masked_less([1.0, 2.0], 1.5)}, TypeError)):
        with pytest.raises(error):
            made(parameters, folder=tmp_path / "no" / "state")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8000))
    refused(tmp_path / "state", "[0-9]+ bytes are needed, and 8000 are free")
    assert os.listdir(tmp_path) == []


def test_places_where_no_folder_can_be(tmp_path):
    refused("", "the path of the folder is empty")  # the working folder otherwise
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
    start, found = {"w": np.linspace(-1, 1, 5000)}, []
    for folder in (None, tmp_path / "state"):
        item = made(start, "fp32-master", folder=folder)
        item.step(item.receive(start), 0.1)
        found.append(held(item))
    assert_same(np.array(found[0]), np.array(found[1]))
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_blocks * 512 >= path.stat().st_size


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_without_zero_starts_from_nan_in_files_too(packed, tmp_path):
    """Where zero is not the code of all zeros, which a new file holds."""
    declared = mcf.Strategy("no zero", v=Stored("float8_e8m0fnu"))
    optimizer = made(5, declared, packed=packed, folder=tmp_path / "state")
    assert np.isnan(read(optimizer.state.v[0], mcf.get_format("float8_e8m0fnu"))).all()
    assert not any(optimizer.state.m[0])
