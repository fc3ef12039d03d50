"""Weights as they are read from files, compared with what was written there by other code."""

import io
import json
import os
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from mcfsim.models.weights import open_tensors, open_weights
from mcfsim.storage import tensors as storage_tensors
from mcfsim.storage.shards import write_file
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError
from tests.models.files import FLOATING, checkpoint, header_of, raw_safetensors, some_tensors, with_header
from tests.shared.mutations import changed, damaged


def parts(weight, *pieces):
    """Return what is read of a weight: the whole, all by blocks, and each piece, in binary64."""
    found = [weight.read(), np.concatenate([*weight.blocks(3)]), *(weight.read(*piece) for piece in pieces)]
    return [x.astype(np.float64) for x in found]


def test_every_dtype_is_read_as_it_was_written(tmp_path, assert_same):
    made = some_tensors()
    raw_safetensors(tmp_path / "m.safetensors", made)
    weights = open_weights(tmp_path / "m.safetensors")
    assert list(weights) == [f"layer.{dtype}" for dtype in FLOATING]
    assert weights.left_out.keys() == {"layer.I64", "layer.U8"}
    for name, weight in weights.items():
        expected = made[name].astype(np.float64)
        assert weight.shape == expected.shape
        whole, blocks, piece, none = parts(weight, (1, 4), (10_000, 20_000))
        assert_same(whole, expected.ravel())
        assert_same(blocks, expected.ravel())
        assert_same(piece, expected.ravel()[1:4])
        assert none.size == 0


def test_what_is_written_is_read_by_the_library_and_by_us(tmp_path):
    made, path = some_tensors(1), tmp_path / "out.safetensors"
    dtypes = {name: name.removeprefix("layer.") for name in made}
    written = {name: (dtypes[name], x.view(ELEMENTS[dtypes[name]])) for name, x in made.items()}
    os.umask(mask := os.umask(0))
    write_file(path, written, {"a": "b"})
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    there, by_library = open_tensors(path), dict(deserialize(path.read_bytes()))
    expected = {name: (dtypes[name], x.shape, x.tobytes()) for name, x in made.items()}
    assert {name: (x.dtype, x.shape, x.read().tobytes()) for name, x in there.items()} == expected
    found = {name: (x["dtype"], tuple(x["shape"]), bytes(x["data"])) for name, x in by_library.items()}
    assert found == expected


# -- shards --------------------------------------------------------------------------------------------------
@pytest.fixture
def sharded(tmp_path):
    made, index = some_tensors(2), {}
    names = sorted(made)
    for place, kept in (("model-1.safetensors", names[:3]), ("model-2.safetensors", names[3:])):
        raw_safetensors(tmp_path / place, {name: made[name] for name in kept})
        index |= dict.fromkeys(kept, place)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return tmp_path, made, index


def test_shards_are_one_model(sharded, assert_same):
    folder, made, _ = sharded
    for path in (folder, folder / "model.safetensors.index.json"):
        weights = open_weights(path)
        for name, weight in weights.items():
            assert_same(weight.read().astype(np.float64), made[name].astype(np.float64).ravel())
    path.unlink()
    assert open_weights(folder).keys() == weights.keys()


def test_an_index_and_its_shards_must_agree(sharded):
    folder, _, index = sharded
    first, ninth = min(index), "model-9.safetensors"
    for wrong, text, name in (
        (index | {first: ninth}, f"{ninth}, which tensor .* is not there", "model"),
        (index | {first: "../model-1.safetensors"}, "is no name of a file", "model"),
        (index | {first: "model-2.safetensors"}, "has (no tensor of that name|a tensor)", "model"),
        (index | {"ghost": "model-1.safetensors"}, "'ghost' is said to lie in model-1.safetensors", "model"),
        ({name: index[name] for name in index if name != first}, "does not name there", "model"),
        (index | {first: 3}, 'no "weight_map"', "model"),
        (index, "several indexes", "other"),
    ):
        (folder / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(FileOfTensorsError, match=text):
            open_weights(folder)
    for path in folder.iterdir():
        path.unlink()
    for name in "ab":
        checkpoint(folder / f"{name}.safetensors")
    with pytest.raises(FileOfTensorsError, match=r"a\.safetensors and b\.safetensors both have 'matrix'"):
        open_weights(folder)


# -- NumPy's archives ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_are_read_in_rows(tmp_path, save, assert_same):
    x = np.random.default_rng(3).standard_normal((4, 6, 5))
    made = {"rows": x.astype(np.float32), "columns": np.asfortranarray(x), "big": x.astype(">f4")}
    made |= {"half": x.astype(np.float16), "whole": np.arange(5), "one": np.float64(0.5)}
    save(tmp_path / "m.npz", **made)
    weights = open_weights(tmp_path / "m.npz")
    assert weights.left_out == {"whole": "whole numbers (I64)"}
    starts = 50, 20, 119
    for name, weight in weights.items():
        expected = np.asarray(made[name], np.float64).ravel()
        wanted = [expected, expected, *(expected[start : start + 9] for start in starts)]
        for found, part in zip(parts(weight, *((x, x + 9) for x in starts)), wanted, strict=True):
            assert_same(found, part)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", "CF")
def test_an_archive_is_listed_once_and_each_array_read_once(save, order, tmp_path, monkeypatch):
    """However many arrays and blocks there are: the list, and an array in columns, are long to go through."""
    made = {f"t{number}": np.full((5, 7), number, np.float32, order) for number in range(10)}
    save(tmp_path / "m.npz", **made)
    listed, read, stream, opened = [], [], storage_tensors._MemberStream.read, zipfile.ZipFile
    monkeypatch.setattr(storage_tensors, "ZipFile", lambda *file: listed.append(file) or opened(*file))
    monkeypatch.setattr(
        storage_tensors._MemberStream, "read", lambda it, *x: read.append(x[1] - x[0]) or stream(it, *x)
    )
    tensors = open_tensors(tmp_path / "m.npz")
    for _ in range(2):
        read.clear()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(np.concatenate([*tensor.blocks(4)]), made[name].ravel())
        assert sum(read) == 10 * 35
    assert len(listed) == 1


def test_an_archive_that_is_open_is_closed_with_the_last_of_its_tensors(tmp_path):
    save = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(tmp_path / "m.npz", a=save, b=save)
    held = Path("/proc/self/fd")
    if not held.is_dir():
        pytest.skip("the system does not list open files")

    def open_files():
        return sum(os.path.realpath(link) == str(tmp_path / "m.npz") for link in held.iterdir())

    tensors = open_tensors(tmp_path / "m.npz")
    assert open_files() == 1
    alone = tensors.pop("b")
    tensors.clear()
    assert alone.read(1, 3).tolist() == [1, 2]
    assert open_files() == 1
    del alone
    assert open_files() == 0


def test_files_that_are_damaged_meanwhile_are_refused(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.ones(1000), b=np.asfortranarray(np.ones((30, 40))))
    tensors = open_tensors(tmp_path / "m.npz")
    (tmp_path / "m.npz").write_bytes(bytes(300))
    for tensor in tensors.values():
        with pytest.raises(FileOfTensorsError, match="is damaged"):
            tensor.read(3, 9)
    path = tmp_path / "m.safetensors"
    checkpoint(path)
    weights = open_weights(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(FileOfTensorsError, match="tensor 'gain' is cut off"):
        weights["gain"].read()
    assert weights["matrix"].read().size == 768


def test_archives_with_what_is_no_numbers_are_refused(tmp_path):
    path = tmp_path / "m.npz"
    for x, text in (
        (np.array([None]), "unknown dtype object|dtype object"),
        (np.array(["a"]), "dtype <U1"),
        (np.zeros(2, np.complex64), "dtype complex64"),
        (np.zeros(2, [("a", "f4")]), "dtype"),
        (np.arange(3), "no tensor of floating numbers"),
    ):
        np.savez(path, x=x)
        with pytest.raises(FileOfTensorsError, match=text):
            open_weights(path)
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (-2, -3)}  # whose product is right
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(24))
    with pytest.raises(FileOfTensorsError, match=r"or damaged: its shape is \(-2, -3\)"):
        open_weights(path)
    for name in ("x.npy", "x.txt"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"")
        with pytest.raises(FileOfTensorsError, match=rf"'{name.removesuffix('.npy')}' is no array"):
            open_weights(path)


# -- what is no file of tensors ------------------------------------------------------------------------------
def test_other_things_are_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    raw_safetensors(tmp_path / "c.safetensors", {"c": np.zeros(2, np.complex64)})
    for name, error, text in (
        ("a.txt", FileOfTensorsError, "is no .safetensors file"),
        ("empty.safetensors", FileOfTensorsError, "no safetensors file, or damaged"),
        ("sub", FileOfTensorsError, "has no file"),
        ("pipe.safetensors", ValueError, "is a pipe"),
        ("none.safetensors", FileNotFoundError, "none.safetensors"),
        ("none", FileNotFoundError, "none is not there"),
        ("none.npz", FileNotFoundError, "none.npz"),
        ("c.safetensors", FileOfTensorsError, "tensor 'c' is of dtype C64, which is not known"),
    ):
        with pytest.raises(error, match=text):
            open_weights(tmp_path / name)


# -- mutated files -------------------------------------------------------------------------------------------
def mutated(data, rng):
    """Return a file that is damaged anywhere, in its header, or of which the header says something else."""
    end = 8 + int.from_bytes(data[:8], "little")
    match rng.integers(4):
        case 0:
            return damaged(data, rng)
        case 1:
            return damaged(data[:end], rng) + data[end:]
        case 2:
            length = int(rng.choice([0, 1, 7, 2**31, 2**40, 2**63, len(data)]))
            return length.to_bytes(8, "little") + data[8:]
        case _:
            header, numbers = header_of(data)
            return with_header(changed(header, rng), numbers)


def answer(path):
    """Return all that we read of a file; None if it is refused in words."""
    try:
        return {name: b"".join(x.tobytes() for x in t.blocks(7)) for name, t in open_tensors(path).items()}
    except FileOfTensorsError:
        return None


def try_mutants(folder, count, seed):
    """Read mutated files; return how many were refused, and how many read as the libraries read them."""
    rng, tensors = np.random.default_rng(seed), some_tensors(5)
    good, archive, refused = folder / "good.safetensors", folder / "good.npz", 0
    raw_safetensors(good, tensors)
    floats = {name: x for name, x in tensors.items() if x.dtype.char in "dfe"}
    for turn in range(count):
        if turn % 3:
            path = folder / "m.safetensors"
            path.write_bytes(mutated(good.read_bytes(), rng))
        else:
            path = folder / "m.npz"
            (np.savez if turn % 2 else np.savez_compressed)(archive, **floats)
            path.write_bytes(damaged(archive.read_bytes(), rng))
        found = answer(path)
        if found is None:
            refused += 1
        elif path.suffix == ".npz":
            expected = {name: x.tobytes() for name, x in floats.items()}
            with suppress(ValueError), np.load(path) as whole:  # one that does not start as one is refused
                expected = {name: np.ascontiguousarray(whole[name]).tobytes() for name in whole.files}
            assert found == expected
        else:
            assert found == {name: bytes(x["data"]) for name, x in deserialize(path.read_bytes())}
    return refused, count - refused


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_mutated_files_are_refused_or_read_as_libraries_read_them(count, tmp_path):
    tracemalloc.start()
    try:
        refused, read = try_mutants(tmp_path, count, count)
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()
    assert refused > 0.3 * count
    assert read > 0.05 * count
