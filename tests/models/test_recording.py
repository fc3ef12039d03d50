"""Recordings that anyone may have made or damaged: the numbers recorded, or an error that names the file."""

import json
import os
import shutil

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.recording import open_recording
from mcfsim.models.weights import open_weights
from tests.models.files import checkpoint, header_of, raw_safetensors, with_header
from tests.models.recordings import SHAPES, gradients, rate, recorded, weights
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
