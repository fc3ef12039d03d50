"""Recordings: every bit as it was recorded, or, of what anyone may have made or damaged, a named error."""

import json
import os
import shutil
from collections import namedtuple

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.recording import open_recording
from mcfsim.models.weights import open_weights
from tests.models.files import (
    DTYPES,
    KINDS,
    SHAPES,
    checkpoint,
    gradients,
    header_of,
    rate,
    raw_safetensors,
    recorded,
    weights,
    with_header,
)
from tests.shared.mutations import damaged

STEPS = 3


def foreign(directory, steps=STEPS):
    """Write the same tensors without a recorder."""
    directory.mkdir()
    dtypes = {"matrix": "BF16", "bias": "F32", "scale": "F64"}
    raw_safetensors(directory / "weights.safetensors", {name: ("F32", x) for name, x in weights().items()})
    for step in range(1, steps + 1):
        tensors = {name: (dtypes[name], x) for name, x in gradients(step).items()}
        raw_safetensors(directory / f"step-{step}.safetensors", tensors)
    return directory


def content(recording):
    """Return all numbers of a recording, and its rates."""
    files = (recording.weights, *recording.steps)
    return [[(name, x.dtype.str, x.tolist()) for name, x in file.read().items()] for file in files] + [
        [step.rate for step in recording.steps]
    ]


def test_all_is_read_as_it_was_recorded_or_written_by_others(tmp_path):
    """Files of no recorder hold the same numbers and no rates."""
    recording, theirs = (
        open_recording(recorded(tmp_path / "r", STEPS)),
        open_recording(foreign(tmp_path / "f")),
    )
    assert recording.size == 16
    assert recording.rates() == tuple(rate(step) for step in range(1, STEPS + 1))
    expected = [weights(), *map(gradients, range(1, STEPS + 1))]
    for file, tensors in zip((recording.weights, *recording.steps), expected, strict=True):
        found = file.read()
        assert {name: x.shape for name, x in found.items()} == SHAPES
        for name, x in tensors.items():
            np.testing.assert_array_equal(found[name], x.astype(np.float64))
    assert content(theirs)[:-1] == content(recording)[:-1]
    assert theirs.digest() == recording.digest()
    with pytest.raises(ValueError, match=r"step-1\.safetensors: has no learning rate, so a schedule must be"):
        theirs.rates()


def test_steps_that_are_missing_at_the_end_are_missed(tmp_path):
    folder = recorded(tmp_path / "r", STEPS)
    (folder / "steps.json").write_text(json.dumps({"format": "mcfsim-recording-1", "steps": STEPS - 1}))
    assert len(open_recording(folder).steps) == STEPS  # one was written, and not yet counted
    (folder / "steps.json").write_text(json.dumps({"format": "mcfsim-recording-1", "steps": STEPS}))
    for left in range(STEPS - 1, -1, -1):
        (folder / f"step-{left + 1:08d}.safetensors").unlink()
        text = f"has {left} steps, and steps.json says that {STEPS} were recorded" if left else "has no step"
        for opened in (open_recording, mcf.replay):
            with pytest.raises(ValueError, match=text):
                opened(folder)
        assert not left or len(open_recording(folder, steps=left).steps) == left


def test_a_step_is_no_weights(tmp_path):
    folder = recorded(tmp_path / "r", STEPS)
    for taken in (lambda: open_weights(folder / STEP_2), lambda: open_recording(folder, folder / STEP_2)):
        with pytest.raises(ValueError, match="has the gradients of step 2 of a recording"):
            taken()
    assert open_weights(folder / "weights.safetensors").keys() == SHAPES.keys()


def test_the_digest_is_of_every_bit_name_and_shape(tmp_path):
    base = {"a": np.ones((2, 2), np.float32), "b": np.zeros(1)}
    others = [
        base,
        {**base, "a": np.ones((4, 1), np.float32)},
        {**base, "b": -np.zeros(1)},
        {"a": base["a"], "c": base["b"]},
        {**base, "a": np.nextafter(base["a"], np.float32(2))},
        {**base, "a": np.ones((2, 2))},
    ]
    found = []
    for number, tensors in enumerate(others):
        mcf.record(tensors, tmp_path / str(number)).step(tensors)
        found.append(open_recording(tmp_path / str(number)).digest())
    assert len(set(found)) == len(others)


def test_the_first_steps_alone_and_tensors_in_their_own_order(tmp_path):
    labels = ["b", "c", "a", "d"]
    recorder = mcf.record(dict.fromkeys(labels, np.zeros(2)), tmp_path / "order")
    recorder.step({name: np.zeros(2) for name in reversed(labels)})
    found = open_recording(tmp_path / "order")
    assert list(found.weights.read()) == labels
    assert list(found.steps[0].read()) == labels[::-1]
    recorded(tmp_path, 5)
    (tmp_path / "step-00000005.safetensors").write_bytes(b"never read")
    assert [step.rate for step in open_recording(tmp_path, steps=4).steps] == [
        rate(step) for step in range(1, 5)
    ]
    for wrong, text in ((6, r"steps = 6: .* has 5"), (0, "steps = 0 must be at least 1")):
        with pytest.raises(ValueError, match=text):
            open_recording(tmp_path, steps=wrong)


def test_another_start(tmp_path):
    recorded(tmp_path / "r", STEPS)
    moved = {name: x + 1 for name, x in weights().items()}
    more = {"not trained": np.ones(5, np.float32), "count": np.arange(3)}
    np.savez(tmp_path / "start.npz", **moved, **more)
    recording = open_recording(tmp_path / "r", tmp_path / "start.npz")
    assert {name: x.tolist() for name, x in recording.weights.read().items()} == {
        name: x.tolist() for name, x in moved.items()
    }
    assert recording.digest() != open_recording(tmp_path / "r").digest()
    checkpoint(tmp_path / "other.safetensors")
    np.savez(tmp_path / "bad.npz", **{**moved, "bias": np.full(3, np.nan)})
    np.savez(tmp_path / "whole.npz", **{**moved, "bias": np.arange(3)})
    for name, text in (
        ("other.safetensors", r"step-00000001\.safetensors: has the tensor 'scale', which .*other"),
        ("bad.npz", r"bad\.npz: has numbers that are not finite: bias: 3 NaN"),
        ("whole.npz", r"whole\.npz: tensor 'bias' has whole numbers"),
    ):
        with pytest.raises(ValueError, match=text):
            open_recording(tmp_path / "r", tmp_path / name)


def _replace(folder, step, **tensors):
    """Write a step without a recorder, with some tensors altered, or left out by None."""
    good = {
        "matrix": ("BF16", gradients(step)["matrix"]),
        "bias": ("F32", gradients(step)["bias"]),
        "scale": ("F64", gradients(step)["scale"]),
    }
    whole = {name: item for name, item in {**good, **tensors}.items() if item is not None}
    raw_safetensors(folder / f"step-{step:08d}.safetensors", whole)


def _count(text):
    return lambda folder: (folder / "steps.json").write_text(text)


def _bias(dtype, x):
    return lambda folder: _replace(folder, 2, bias=(dtype, np.asarray(x)))


STEP_2 = "step-00000002.safetensors"
FORMAT = '{"format": "mcfsim-recording-1", "steps": '
SPOILT = [
    (lambda f: (f / "steps.json").unlink(), "lacks steps.json, which says how many steps were recorded"),
    (_count("3"), "says no number of steps: the whole must be an object"),
    (_count(FORMAT + '"3"}'), "steps must be of type int"),
    (_count('{"format": "another", "steps": 3}'), "format must be one of mcfsim-recording-1"),
    (_count("9" * 2000), "has more than 1000 bytes"),
    (lambda f: [p.unlink() for p in f.glob("step-*")], "has no step; that of the first is named"),
    (lambda f: (f / STEP_2).unlink(), "has step-00000003.safetensors, and no step 2"),
    (lambda f: shutil.copy(f / STEP_2, f / "step-2.safetensors"), "has step 2 twice, in "),
    (lambda f: shutil.copy(f / STEP_2, f / "step-0.safetensors"), "and a step 0, and steps are "),
    (lambda f: shutil.copy(f / STEP_2, f / "step-x"), "has 'step-x'; files of steps are "),
    (lambda f: shutil.copy(f / STEP_2, f / "step-00000003.safetensors"), "is step 2 by its"),
    (lambda f: shutil.copy(f / "weights.safetensors", f / STEP_2), "is weights by its header, and step 2 by"),
    (
        lambda f: shutil.copy(f / STEP_2, f / "weights.safetensors"),
        "s.safetensors: has the gradients of step",
    ),
    (lambda f: _replace(f, 2, bias=None), f"{STEP_2}: lacks the tensor 'bias', which"),
    (lambda f: _replace(f, 2, more=("F32", np.ones(2, "f4"))), "has the tensor 'more', which"),
    (_bias("F32", np.ones((3, 1), "f4")), r"tensor 'bias' has shape [3, 1], and [3] in"),
    (_bias("F64", np.ones(3)), "'bias' is of dtype F64, and of F32"),
    (_bias("I64", np.arange(3)), "'bias' is of dtype I64, which has"),
    (_bias("F32", np.ones(0, "f4")), "'bias' of shape [0] has no"),
    (lambda f: raw_safetensors(f / STEP_2, {}), f"{STEP_2}: has no tensor"),
    (
        _bias("F32", np.array([1, np.nan, np.inf], "f4")),
        f"{STEP_2}: has numbers that are not finite: bias: 1 NaN, 1 infinite",
    ),
    *(
        (lambda f, size=size: os.truncate(f / STEP_2, size), f"{STEP_2}: no safetensors file, or damaged")
        for size in (100, 0)
    ),
    (lambda f: os.truncate(f / STEP_2, (f / STEP_2).stat().st_size - 1), "no safetensors file, or damaged"),
    (lambda f: ((f / STEP_2).unlink(), os.mkfifo(f / STEP_2)), f"{STEP_2} is a pipe, and no regular"),
    (lambda f: (f / "weights.safetensors").unlink(), "weights.safetensors"),
    (lambda f: checkpoint(f / "weights.safetensors"), "1.safetensors: lacks the tensor 'gain', which"),
    (shutil.rmtree, "No such file or directory"),
]


@pytest.mark.parametrize(("spoil", "text"), SPOILT, ids=[text for _, text in SPOILT])
def test_what_is_no_recording_is_refused_by_name_before_a_step(spoil, text, tmp_path):
    folder = recorded(tmp_path / "r", STEPS)
    spoil(folder)
    with pytest.raises((ValueError, OSError)) as refused:
        open_recording(folder)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_altered_header_is_noticed(tmp_path):
    path = recorded(tmp_path / "r", STEPS) / STEP_2
    whole = path.read_bytes()
    abouts = [{"rate": "0.5"}, {"rate": "nan"}, {"step": "3"}, {"tensors": "{}"}, {"sha256": ""}, {"new": ""}]
    for about in abouts:
        header, data = header_of(whole)
        header["__metadata__"] |= about
        path.write_bytes(with_header(header, data))
        with pytest.raises(ValueError, match=rf"{STEP_2}: has a damaged header: its digest is not the one"):
            open_recording(path.parent)
        path.write_bytes(whole)


def test_every_damaged_tensor_is_named_when_it_is_read(tmp_path):
    path = recorded(tmp_path / "r", STEPS) / STEP_2
    data = path.read_bytes()
    header, numbers = header_of(data)
    for name in SHAPES:
        for place in range(*header[name]["data_offsets"]):
            altered = bytearray(data)
            altered[len(data) - len(numbers) + place] ^= 1
            path.write_bytes(altered)
            recording = open_recording(path.parent)
            with pytest.raises(ValueError, match=rf"{STEP_2}: tensor '{name}' is damaged: its digest is not"):
                recording.steps[1].read()
    path.write_bytes(data)
    recording = open_recording(path.parent)
    path.write_bytes(data[:-8])
    with pytest.raises(ValueError, match=rf"{STEP_2}: tensor '\w+' is cut off"):
        recording.steps[1].read()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 20))])
def test_a_damaged_file_is_refused_or_holds_the_numbers_recorded(seed, tmp_path):
    folder = recorded(tmp_path / "r", STEPS)
    expected = content(open_recording(folder))
    random, refused = np.random.default_rng(seed), 0
    for _ in range(100):
        path = sorted(folder.iterdir())[int(random.integers(STEPS + 1))]
        good = path.read_bytes()
        path.write_bytes(damaged(good, random))
        told = ""
        try:
            found = content(open_recording(folder))
        except ValueError as problem:
            told = str(problem)
        if told:
            assert path.name in told
            refused += 1
        else:  # and what no recorder seems to have written has no rates, and no order but its own
            assert [*map(sorted, found[:-1])] == [*map(sorted, expected[:-1])]
            assert all(rate in (None, known) for rate, known in zip(found[-1], expected[-1], strict=True))
        path.write_bytes(good)
    assert refused > 75


# -- recorders -----------------------------------------------------------------------------------------------
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
