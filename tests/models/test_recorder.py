"""Gradients as a loop records them: every bit as it was, whole files, and nothing that is not meant."""

from collections import namedtuple

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.recording import open_recording
from tests.models.files import DTYPES, header_of
from tests.models.recordings import KINDS, gradients, rate, recorded, weights

FLOATING = {name: kind for name, kind in DTYPES.items() if name not in ("I64", "U8")}


def names(folder):
    """Return the names of all files but the one that counts the others."""
    return sorted(item.name for item in folder.iterdir() if item.name != "steps.json")


@pytest.mark.parametrize("dtype", FLOATING)
def test_bits_lie_in_the_file_as_they_were(dtype, tmp_path):
    """Also of other strides; and another order of bytes is no other number."""
    codes = np.dtype(f"u{np.dtype(FLOATING[dtype]).itemsize}")
    x = np.arange(60).astype(codes).view(FLOATING[dtype]).reshape(3, 20)
    order = ">" if dtype in ("F64", "F32", "F16") else "="
    mcf.record({"x": x}, tmp_path).step({"x": x[::-1].astype(x.dtype.newbyteorder(order))})
    for name, expected in (("weights", x), ("step-00000001", x[::-1])):
        header, data = header_of((tmp_path / f"{name}.safetensors").read_bytes())
        assert data == expected.tobytes()
        assert header["x"] == {"dtype": dtype, "shape": [3, 20], "data_offsets": [0, len(data)]}
    numbers = open_recording(tmp_path).steps[0].read()["x"]
    np.testing.assert_array_equal(numbers, x[::-1].astype(numbers.dtype))


def test_a_step_says_its_number_and_rate(tmp_path):
    recorder = mcf.record(weights(), tmp_path / "made" / "here")
    recorder.step(gradients(1), 0.1)
    recorder.step(gradients(2), np.float32(0.1))
    recorder.step(gradients(3))
    assert recorder.count == 3
    found = open_recording(recorder.directory)
    assert [step.rate for step in found.steps] == [0.1, float(np.float32(0.1)), None]
    assert names(recorder.directory) == [
        *(f"step-0000000{number}.safetensors" for number in (1, 2, 3)),
        "weights.safetensors",
    ]


@pytest.mark.parametrize(
    ("altered", "error", "text"),
    [
        ({"bias": [1.0, 2.0, 3.0]}, TypeError, "'bias' must be an array of floating numbers.*not list"),
        ({"bias": np.arange(3)}, TypeError, "'bias' must be an array .* not int64"),
        ({"bias": np.zeros(3, np.longdouble)}, TypeError, "'bias' must be an array"),
        ({"bias": np.ma.masked_array(np.zeros(3, np.float32))}, TypeError, "'bias' is a masked array"),
        ({"bias": np.zeros(4, np.float32)}, ValueError, r"'bias' has shape \[4\], and \[3\] in "),
        ({"bias": np.zeros(3, np.float16)}, ValueError, "'bias' is of dtype F16, and of F32 in"),
        ({"bias": np.array([1, np.nan, np.nan], np.float32)}, ValueError, "bias: 2 NaN, 0 infinite"),
        ({"matrix": np.full((4, 3), -np.inf, KINDS["matrix"])}, ValueError, "matrix: 0 NaN, 12 inf"),
        ({"more": np.zeros(3)}, ValueError, "has the tensor 'more', which weights.safetensors lacks"),
        ({"matrix": None}, ValueError, "lacks the tensor 'matrix', which weights"),
        ({3: np.zeros(3)}, TypeError, "names of tensors must be texts, not 3"),
        (-0.1, ValueError, "rate"),
        (np.nan, ValueError, "rate"),
        ("0.1", TypeError, "rate"),
    ],
)
def test_what_is_no_gradient_and_no_rate_is_refused_and_nothing_is_written(altered, error, text, tmp_path):
    recorder = mcf.record(weights(), tmp_path)
    recorder.step(gradients(1))
    before, given = names(tmp_path), gradients(2) | (altered if isinstance(altered, dict) else {})
    given = {name: x for name, x in given.items() if x is not None}
    with pytest.raises(error, match=text):
        recorder.step(given, *(() if isinstance(altered, dict) else (altered,)))
    assert (names(tmp_path), recorder.count) == (before, 1)
    recorder.step(gradients(2))
    assert len(open_recording(tmp_path).steps) == 2


def test_a_recording_is_not_begun_where_there_is_one_and_one_recorder_alone_writes_a_step(tmp_path):
    first = mcf.record(weights(), tmp_path)
    second = mcf.record(weights(), tmp_path, after=0)
    first.step(gradients(1))
    with pytest.raises(FileExistsError):
        second.step(gradients(2))
    np.testing.assert_array_equal(open_recording(tmp_path).steps[0].read()["bias"], gradients(1)["bias"])
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(OSError, match=r"has a recording; go on with it by after=\.\.\., or name another"):
        mcf.record(weights(), tmp_path)
    assert names(tmp_path) == ["step-00000001.safetensors"]


@pytest.mark.parametrize("after", range(6))
def test_a_recording_goes_on_after_any_step(after, tmp_path):
    whole = open_recording(recorded(tmp_path / "whole"))
    recorded(tmp_path / "again")
    moved = {name: x + 1 for name, x in weights().items()}  # by then they have
    recorder = mcf.record(moved, tmp_path / "again", after=after)
    assert len(names(tmp_path / "again")) == after + 1
    for step in range(after + 1, 6):
        recorder.step(gradients(step), rate(step))
    assert open_recording(tmp_path / "again").digest() == whole.digest()


def test_weights_that_no_run_can_start_from_are_refused(tmp_path):
    names = ("", "a\0", "__metadata__", "\ud800", "a.npy", "a" * 1001)
    arrays = (np.zeros((2, 0)), np.array([0.0, np.inf]))
    for given in ({}, *({name: np.zeros(2)} for name in names), *({"x": x} for x in arrays)):
        with pytest.raises(ValueError):
            mcf.record(given, tmp_path / "new")
    with pytest.raises(TypeError):
        mcf.record([np.zeros(3)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_no_recording_of_these_tensors_does_not_go_on(tmp_path):
    with pytest.raises(FileNotFoundError):
        mcf.record(weights(), tmp_path, after=0)
    recorded(tmp_path)
    before = names(tmp_path)
    for given, after, text in (
        ({}, 6, "after = 6: .* has 5 steps"),
        ({}, -1, "after = -1 must not be negative"),
        ({"more": np.zeros(3)}, 2, "lacks the tensor 'more', which the model has"),
        ({"bias": np.zeros(4)}, 2, r"'bias' has shape \[3\], and \[4\] in the model"),
    ):
        with pytest.raises(ValueError, match=text):
            mcf.record(weights() | given, tmp_path, after=after)
        assert names(tmp_path) == before
    recorder = mcf.record(weights(), tmp_path, after=5)
    with pytest.raises(ValueError, match="'bias' is of dtype F64, and of F32"):
        recorder.step(gradients(6) | {"bias": np.zeros(3)})


def test_a_full_disk_and_a_failure_in_the_middle_leave_whole_files(tmp_path, monkeypatch):
    recorder = mcf.record({"x": np.zeros(10_000)}, tmp_path)
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 79_999)

    def fail(specs, name, metadata):
        name.write_bytes(b"half")
        raise OSError("no space left on device")

    for name, broken, text in (
        ("shutil.disk_usage", lambda _: usage, "it takes 80 kB, and the disk has 80 kB"),
        ("safetensors.serialize_file", fail, "no space left"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, broken)
            with pytest.raises(OSError, match=text):
                recorder.step({"x": np.zeros(10_000)})
        assert (names(tmp_path), recorder.count) == (["weights.safetensors"], 0)
    recorder.step({"x": np.zeros(10_000)})
    assert len(open_recording(tmp_path).steps) == 1
