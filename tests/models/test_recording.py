"""Recordings: every bit as it was recorded, or, of what anyone may have made or damaged, a named error."""

import os
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.recording import open_recording
from mcfsim.models.saving import save_state
from mcfsim.models.weights import open_weights
from tests.models import files
from tests.models.files import SHAPES, checkpoint, gradients, rate, raw_safetensors, recorded, weights
from tests.shared.mutations import damaged

STEPS = 3


def foreign(directory, steps=STEPS):
    """Write the same tensors without a recorder."""
    directory.mkdir()
    raw_safetensors(directory / "weights.safetensors", weights())
    for step in range(1, steps + 1):
        raw_safetensors(directory / f"step-{step}.safetensors", gradients(step))
    return directory


def content(recording):
    """Return all numbers of a recording, and its rates."""
    read = [file.read() for file in (recording.weights, *recording.steps)]
    numbers = [[(name, x.dtype.str, x.tolist()) for name, x in tensors.items()] for tensors in read]
    return [*numbers, [step.rate for step in recording.steps]]


def test_all_is_read_as_it_was_recorded_or_written_by_others(tmp_path):
    """Files of no recorder hold the same numbers and no rates."""
    recording = open_recording(recorded(tmp_path / "r", STEPS))
    theirs = open_recording(foreign(tmp_path / "f"))
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
    _count(f"{FORMAT}{STEPS - 1}}}")(folder)
    assert len(open_recording(folder).steps) == STEPS  # one was written, and not yet counted
    _count(f"{FORMAT}{STEPS}}}")(folder)
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
    ones, zero = np.ones((2, 2), np.float32), np.zeros(1)
    others = [{"a": ones, "b": zero}, {"a": np.ones((4, 1), np.float32), "b": zero}, {"a": ones, "b": -zero}]
    others += [{"a": ones, "c": zero}, {"a": np.nextafter(ones, np.float32(2)), "b": zero}]
    others += [{"a": np.ones((2, 2)), "b": zero}]
    found = set()
    for number, tensors in enumerate(others):
        mcf.record(tensors, tmp_path / str(number)).step(tensors)
        found.add(open_recording(tmp_path / str(number)).digest())
    assert len(found) == len(others)


def test_the_first_steps_alone_and_tensors_in_their_own_order(tmp_path):
    labels = ["b", "c", "a", "d"]
    recorder = mcf.record(dict.fromkeys(labels, np.zeros(2)), tmp_path / "order")
    recorder.step({name: np.zeros(2) for name in reversed(labels)})
    found = open_recording(tmp_path / "order")
    assert [list(file.read()) for file in (found.weights, found.steps[0])] == [labels, labels[::-1]]
    recorded(tmp_path, 5)
    (tmp_path / "step-00000005.safetensors").write_bytes(b"never read")
    assert [step.rate for step in open_recording(tmp_path, steps=4).steps] == [*map(rate, range(1, 5))]
    for wrong, text in ((6, r"steps = 6: .* has 5"), (0, "steps = 0 must be at least 1")):
        with pytest.raises(ValueError, match=text):
            open_recording(tmp_path, steps=wrong)


def test_another_start(tmp_path):
    recorded(tmp_path / "r", STEPS)
    moved = {name: x + 1 for name, x in weights().items()}
    more = {"not trained": np.ones(5, np.float32), "count": np.arange(3)}
    biases = {"bad": {"bias": np.full(3, np.nan)}, "whole": {"bias": np.arange(3)}}
    for name, tensors in ({"start": more} | biases).items():
        np.savez(tmp_path / f"{name}.npz", **moved | tensors)
    recording = open_recording(tmp_path / "r", tmp_path / "start.npz")
    found = recording.weights.read()
    assert {name: x.tolist() for name, x in found.items()} == {name: x.tolist() for name, x in moved.items()}
    assert recording.digest() != open_recording(tmp_path / "r").digest()
    checkpoint(tmp_path / "other.safetensors")
    for name, text in (
        ("other.safetensors", r"step-00000001\.safetensors: has the tensor 'scale', which .*other"),
        ("bad.npz", r"bad\.npz: has numbers that are not finite: bias: 3 NaN"),
        ("whole.npz", r"whole\.npz: tensor 'bias' has whole numbers"),
    ):
        with pytest.raises(ValueError, match=text):
            open_recording(tmp_path / "r", tmp_path / name)


def _tensors(**tensors):
    """Return what writes step 2 without a recorder, with some tensors altered, or left out by None."""
    whole = {name: x for name, x in {**gradients(2), **tensors}.items() if x is not None}
    return lambda folder: raw_safetensors(folder / STEP_2, whole)


def _cut(end):
    return lambda f: (f / STEP_2).write_bytes((f / STEP_2).read_bytes()[:end])


def _count(text):
    return lambda folder: (folder / "steps.json").write_text(text)


STEP_2, STEP_3, WEIGHTS = "step-00000002.safetensors", "step-00000003.safetensors", "weights.safetensors"
NOT_FINITE = np.float32([1, np.nan, np.inf])
FORMAT = '{"format": "mcfsim-recording-1", "steps": '
SPOILT = [
    (lambda f: (f / "steps.json").unlink(), "lacks steps.json, which says how many steps were recorded"),
    (_count("3"), "says no number of steps: the whole must be an object"),
    (_count(FORMAT + '"3"}'), "steps must be of type int"),
    (_count('{"format": "another", "steps": 3}'), "format must be one of mcfsim-recording-1"),
    (_count("9" * 2000), "has more than 1,000 bytes"),
    (lambda f: [p.unlink() for p in f.glob("step-*")], "has no step; that of the first is named"),
    (lambda f: (f / STEP_2).unlink(), f"has {STEP_3}, and no step 2"),
    (lambda f: shutil.copy(f / STEP_2, f / "step-2.safetensors"), "has step 2 twice, in "),
    (lambda f: shutil.copy(f / STEP_2, f / "step-0.safetensors"), "and a step 0, and steps are "),
    (lambda f: shutil.copy(f / STEP_2, f / "step-x"), "has 'step-x'; files of steps are "),
    (lambda f: shutil.copy(f / STEP_2, f / STEP_3), "is step 2 by its"),
    (lambda f: shutil.copy(f / WEIGHTS, f / STEP_2), "is weights by its header, and step 2 by"),
    (lambda f: shutil.copy(f / STEP_2, f / WEIGHTS), "s.safetensors: has the gradients of step"),
    (_tensors(bias=None), f"{STEP_2}: lacks the tensor 'bias', which"),
    (_tensors(more=np.ones(2, "f4")), "has the tensor 'more', which"),
    (_tensors(bias=np.ones((3, 1), "f4")), r"tensor 'bias' has shape [3, 1], and [3] in"),
    (_tensors(bias=np.ones(3)), "'bias' is of dtype F64, and of F32"),
    (_tensors(bias=np.arange(3)), "'bias' is of dtype I64, which has"),
    (_tensors(bias=np.ones(0, "f4")), "'bias' of shape [0] has no"),
    (_tensors(**dict.fromkeys(SHAPES)), f"{STEP_2}: has no tensor"),
    (_tensors(bias=NOT_FINITE), f"{STEP_2}: has numbers that are not finite: bias: 1 NaN, 1 infinite"),
    *((_cut(end), f"{STEP_2}: no safetensors file, or damaged") for end in (100, 0, -1)),
    (lambda f: ((f / STEP_2).unlink(), os.mkfifo(f / STEP_2)), f"{STEP_2} is a pipe, not a regular"),
    (lambda f: (f / WEIGHTS).unlink(), WEIGHTS),
    (lambda f: checkpoint(f / WEIGHTS), "1.safetensors: lacks the tensor 'gain', which"),
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
    altered = {"rate": "0.5"}, {"rate": "nan"}, {"step": "3"}, {"tensors": "{}"}, {"sha256": ""}, {"new": ""}
    for about in altered:
        header, data = files.header_of(whole)
        header["__metadata__"] |= about
        path.write_bytes(files.with_header(header, data))
        with pytest.raises(ValueError, match=rf"{STEP_2}: has a damaged header: its digest is not the one"):
            open_recording(path.parent)


@pytest.mark.slow
def test_every_damaged_tensor_is_named_when_it_is_read(tmp_path):
    path = recorded(tmp_path / "r", STEPS) / STEP_2
    data = path.read_bytes()
    header, numbers = files.header_of(data)
    for name in SHAPES:
        for place in range(*header[name]["data_offsets"]):
            altered = bytearray(data)
            altered[len(data) - len(numbers) + place] ^= 1
            path.write_bytes(altered)
            step = open_recording(path.parent).steps[1]
            with pytest.raises(ValueError, match=rf"{STEP_2}: tensor '{name}' is damaged: its digest is not"):
                step.read()
    path.write_bytes(data)
    step = open_recording(path.parent).steps[1]
    path.write_bytes(data[:-8])
    with pytest.raises(ValueError, match=rf"{STEP_2}: tensor '\w+' is cut off"):
        step.read()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 20))])
def test_a_damaged_file_is_refused_or_holds_the_numbers_recorded(seed, tmp_path):
    folder = recorded(tmp_path / "r", STEPS)
    *numbers, rates = content(open_recording(folder))
    random, refused = np.random.default_rng(seed), 0
    for _ in range(100):
        path = sorted(folder.iterdir())[int(random.integers(STEPS + 1))]
        good = path.read_bytes()
        path.write_bytes(damaged(good, random))
        said = ""
        try:
            *found, told = content(open_recording(folder))
        except ValueError as problem:
            said = str(problem)
        refused += bool(said)
        if said:
            assert path.name in said
        else:  # and what no recorder seems to have written has no rates, and no order but its own
            assert [*map(sorted, found)] == [*map(sorted, numbers)]
            assert all(rate in (None, known) for rate, known in zip(told, rates, strict=True))
        path.write_bytes(good)
    assert refused > 75


# -- recorders -----------------------------------------------------------------------------------------------
def names(folder):
    """Return the names of all files but the one that counts the others."""
    return sorted(item.name for item in folder.iterdir() if item.name != "steps.json")


@pytest.mark.parametrize("dtype", files.FLOATING)
def test_bits_lie_in_the_file_as_they_were(dtype, tmp_path):
    """Also of other strides; and another order of bytes is no other number."""
    kind = np.dtype(files.DTYPES[dtype])
    x = np.arange(60).astype(f"u{kind.itemsize}").view(kind).reshape(3, 20)
    order = ">" if dtype in ("F64", "F32", "F16") else "="
    mcf.record({"x": x}, tmp_path).step({"x": x[::-1].astype(kind.newbyteorder(order))})
    for name, expected in (("weights", x), ("step-00000001", x[::-1])):
        header, data = files.header_of((tmp_path / f"{name}.safetensors").read_bytes())
        assert data == expected.tobytes()
        assert header["x"] == {"dtype": dtype, "shape": [3, 20], "data_offsets": [0, len(data)]}
    numbers = open_recording(tmp_path).steps[0].read()["x"]
    np.testing.assert_array_equal(numbers, x[::-1].astype(numbers.dtype))


def test_a_step_says_its_number_and_rate(tmp_path):
    recorder = mcf.record(weights(), tmp_path / "made" / "here")
    for step, *given in ((1, 0.1), (2, np.float32(0.1)), (3,)):
        recorder.step(gradients(step), *given)
    assert recorder.count == 3
    found = open_recording(recorder.directory)
    assert [step.rate for step in found.steps] == [0.1, float(np.float32(0.1)), None]
    assert names(recorder.directory) == ["step-00000001.safetensors", STEP_2, STEP_3, WEIGHTS]


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
        ({"matrix": np.full((4, 3), -np.inf, files.KINDS["matrix"])}, ValueError, "matrix: 0 NaN, 12 inf"),
        ({"more": np.zeros(3)}, ValueError, "has the tensor 'more', which weights.safetensors lacks"),
        ({"matrix": None}, ValueError, "lacks the tensor 'matrix', which weights"),
        ({3: np.zeros(3)}, TypeError, "names of tensors must be texts, not 3"),
        *((rate, ValueError, "rate") for rate in (-0.1, np.nan)),
        ("0.1", TypeError, "rate"),
    ],
)
def test_what_is_no_gradient_and_no_rate_is_refused_and_nothing_is_written(altered, error, text, tmp_path):
    recorder = mcf.record(weights(), tmp_path)
    recorder.step(gradients(1))
    given, rest = (altered, ()) if isinstance(altered, dict) else ({}, (altered,))
    given = {name: x for name, x in (gradients(2) | given).items() if x is not None}
    with pytest.raises(error, match=text):
        recorder.step(given, *rest)
    assert (names(tmp_path), recorder.count) == (["step-00000001.safetensors", WEIGHTS], 1)
    recorder.step(gradients(2))
    assert len(open_recording(tmp_path).steps) == 2


def test_a_recording_is_not_begun_where_there_is_one_and_one_recorder_alone_writes_a_step(tmp_path):
    first = mcf.record(weights(), tmp_path)
    second = mcf.record(weights(), tmp_path, after=0)
    first.step(gradients(1))
    with pytest.raises(OSError, match="has 1 steps, and this recorder is after step 0: another one"):
        second.step(gradients(2))
    np.testing.assert_array_equal(open_recording(tmp_path).steps[0].read()["bias"], gradients(1)["bias"])
    mcf.record(weights(), tmp_path, after=0)
    with pytest.raises(OSError, match="has 0 steps, and this recorder is after step 1: another one"):
        first.step(gradients(2))  # which would leave a hole before it
    mcf.record(weights(), tmp_path, after=0).step(gradients(1))
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(OSError, match=r"has a recording; continue it with after=\.\.\., or name another"):
        mcf.record(weights(), tmp_path)
    assert names(tmp_path) == ["step-00000001.safetensors"]


def test_no_name_is_not_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain", "bfloat16"), weights())
    for write in (partial(mcf.record, weights()), partial(save_state, optimizer, shard_bytes=1e6)):
        with pytest.raises(OSError, match="cannot write to '': the path of the folder is empty"):
            write("")
    assert names(tmp_path) == []


@pytest.mark.parametrize("after", range(6))
@pytest.mark.slow
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
    recorder, usage = mcf.record({"x": np.zeros(10_000)}, tmp_path), SimpleNamespace(free=79_999)

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
        assert (names(tmp_path), recorder.count) == ([WEIGHTS], 0)
    recorder.step({"x": np.zeros(10_000)})
    assert len(open_recording(tmp_path).steps) == 1
