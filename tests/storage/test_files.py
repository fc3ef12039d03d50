"""Output files: written whole, only where they may be; links and permissions stay, nothing is left."""

import contextlib
import itertools
import multiprocessing
import os
import re
import shutil
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import Run
from mcfsim.report.plotting import save, subplots
from mcfsim.storage.buffers import LARGE_BLOCK, scratch
from mcfsim.storage.files import (
    OutputError,
    check_outputs,
    check_space,
    open_regular,
    read_text,
    replacing,
    write_text,
)
from mcfsim.storage.shards import write_file
from mcfsim.training.problems import Quadratic
from tests.shared.places import KINDS, look, no_file, no_room
from tests.shared.refusals import check, refused

pytestmark = pytest.mark.slow


@cache
def certificate():
    return mcf.verify("sterbenz", "float4_e2m1fn")


def figure(path):
    with subplots() as (drawn, _):
        save(drawn, path.with_suffix(""))


TRAINED = Quadratic(2, 1.0), "sgd", ["plain"], 1
#: Every writer, and the name's end where it sets it.
WRITERS = {
    "text": (lambda path: write_text(path, "new"), ""),
    "run": (lambda path: Run({"seed": 1}, {}).save(path), ".npz"),
    "checkpoint": (lambda path: mcf.simulate(*TRAINED, checkpoint=path, clip=None), ".npz"),
    "certificate": (lambda path: certificate().save(path), ".json"),
    "figure": (figure, ".svg"),
    "tensors": (lambda path: write_file(path, {"x": ("F64", np.ones(9))}), ".safetensors"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.sampled(3)
def test_what_is_no_file_to_be_replaced_is_refused_and_left_as_it_is(writer, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, suffix = WRITERS[writer]
    path = tmp_path / f"out{suffix}"
    no_file(kind, path)
    before = look(tmp_path)
    with pytest.raises(ValueError, match=r"cannot write .*out"):
        write(path)
    assert look(tmp_path) == before


@pytest.mark.parametrize("label", ["output", "checkpoint"])
def test_an_empty_path_is_refused_before_the_first_step(label, monkeypatch):
    monkeypatch.setattr(Quadratic, "loss_and_gradient", lambda *_: pytest.fail("training has begun"))
    with pytest.raises(OutputError, match=r"^cannot write to '': the path of the file is empty$"):
        mcf.simulate(*TRAINED, **{label: ""})


@pytest.mark.parametrize("writer", WRITERS)
def test_links_stay_and_permissions_are_kept(writer, tmp_path):
    """Also of a link that leads nowhere yet."""
    write, suffix = WRITERS[writer]
    target, link, other = (tmp_path / name for name in ("target", f"link{suffix}", f"other{suffix}"))
    (tmp_path / "folder").mkdir()
    other.symlink_to("folder/new")
    write(other)
    assert os.readlink(other) == "folder/new"
    new = tmp_path / "folder" / "new"
    if writer == "checkpoint":  # what is replaced must be one
        shutil.copy(new, target)
    else:
        target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("middle")
    (tmp_path / "middle").symlink_to(target)
    write(link)
    assert os.readlink(link) == "middle"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.read_bytes() == new.read_bytes()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("other", "there"),
    [*itertools.product(("a", "x/../a", "link", "folder/a"), (True, False)), ("hard", True)],
)
@pytest.mark.parametrize("relative", [False, True])
def test_two_outputs_in_one_file_are_refused(other, there, relative, tmp_path, monkeypatch):
    """However it is spelled, and looking at them changes nothing."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a"
    if there:
        path.write_text("old")
        (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").symlink_to(".")
    before = look(tmp_path)
    with pytest.raises(ValueError, match="one and the same file"):
        check_outputs({"--checkpoint": path, "--output": other if relative else tmp_path / other})
    check_outputs({"--checkpoint": path, "--output": tmp_path / "b", "--other": None})
    for name in ("a\0b", "x" * 300, "missing/file"):
        with pytest.raises((ValueError, OSError)):
            check_outputs({"it": tmp_path / name})
    assert look(tmp_path) == before


@pytest.mark.skipif(sys.platform != "linux", reason="it has folders in which not even root creates a file")
def test_a_folder_that_takes_no_file_is_refused_before_work_is_done():
    with pytest.raises(OutputError, match=r"^cannot write /proc/self/it: "):
        check_outputs({"--output": "/proc/self/it"})
    with pytest.raises(OutputError, match=r"^cannot write /proc/self/it: "):
        write_text("/proc/self/it", "new")


@pytest.mark.parametrize(
    ("size", "free", "text"),
    [
        (10**9, 10**9, "it takes 1 GB, and the disk has 1 GB left"),
        (2_500_000, 65_536, "it takes 2.5 MB, and the disk has 65.5 kB left"),
        (0, 999, "it takes 0 bytes, and the disk has 999 bytes left"),
        (999_999, 999_499, "it takes 1 MB, and the disk has 999 kB left"),
        (10**9, 10**9 + 2**16, None),
    ],
)
def test_a_disk_without_room_is_refused(size, free, text, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "sub" / "new")
    monkeypatch.setattr(shutil, "disk_usage", {tmp_path / "sub": SimpleNamespace(free=free)}.get)
    told = pytest.raises(OSError, match=re.escape(f"cannot write {link}: {text}"))
    with told if text else contextlib.nullcontext():
        check_space(link, size)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("size", [0, 1, 64])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.sampled(3)
def test_a_disk_that_becomes_full_leaves_the_old_file_and_is_told_by_name(writer, size, there, tmp_path):
    write, suffix = WRITERS[writer]
    path = tmp_path / f"it{suffix}"
    if there and writer != "checkpoint":  # one that is whole is not written again
        write(path)
    before = look(tmp_path)
    told = pytest.raises(OutputError, match=re.escape(f"cannot write {path}: "))
    with told, no_room(0 if writer == "text" else size):
        write(path)
    assert look(tmp_path) == before


def test_what_a_writer_keeps_to_itself_is_no_whole_file(tmp_path):
    def keep_it() -> None:
        with replacing(tmp_path / "it") as file:
            with contextlib.suppress(OSError):
                file.write(bytes(100_000))
            file.write(b"the rest")

    with pytest.raises(OutputError, match="it is not whole"), no_room(100):
        keep_it()
    assert look(tmp_path) == {}


def test_only_one_of_many_comes_first(tmp_path):
    def try_it(number):
        with contextlib.suppress(FileExistsError):
            with replacing(tmp_path / "it", exclusive=True) as file:
                file.write(b"%d" % number)
            return True

    with ThreadPoolExecutor(20) as pool:
        won = [number for number, first in enumerate(pool.map(try_it, range(20))) if first]
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert [(tmp_path / "it").read_text()] == list(map(str, won))


@pytest.mark.parametrize("writer", ["certificate", "run"])
def test_threads_write_one_file(writer, tmp_path):
    write, suffix = WRITERS[writer]
    path = tmp_path / f"it{suffix}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, [path] * 60))
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


FORKING = multiprocessing.get_context("fork")


def write_for_ever(path):
    for i in itertools.count(1):
        Run({"seed": i}, {}, np.arange(2000), {"plain": {"loss": np.full(2000, float(i))}}).save(path)


@pytest.mark.parametrize("kills", [12, pytest.param(50, marks=pytest.mark.exhaustive)])
@pytest.mark.costly("a process of its own")
def test_a_killed_writer_leaves_a_whole_file_and_what_it_strands_goes(kills, tmp_path):
    path, stranded, seeds = tmp_path / "run.npz", 0, set()
    Run({"seed": 0}, {}, np.arange(1), {"plain": {"loss": np.zeros(1)}}).save(path)
    random = np.random.default_rng(1)
    for count in range(20 * kills):
        if count >= kills and stranded and max(seeds):
            break  # where a machine is busy, few are killed as they write
        process = FORKING.Process(target=write_for_ever, args=(path,))
        process.start()
        time.sleep(random.uniform(0.02, 0.1))
        process.kill()
        process.join()
        run = Run.load(path)
        assert (run.series["plain"]["loss"] == run.settings["seed"]).all()
        seeds.add(run.settings["seed"])
        left = len(list(tmp_path.iterdir())) - 1
        assert left <= 1  # the next one has removed what the one before left
        stranded += left
    assert stranded > 0 < max(seeds)  # or nothing was tried
    run.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["run.npz"]


def test_what_is_being_written_is_not_taken_for_stranded(tmp_path):
    with replacing(tmp_path / "slow") as file:
        for i in range(3):
            write_text(tmp_path / "quick", str(i))
        process = FORKING.Process(target=write_text, args=(tmp_path / "other", "x"))
        process.start()
        process.join()
        file.write(b"whole")
    assert (tmp_path / "slow").read_text() == "whole"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["other", "quick", "slow"]


def test_files_of_others_are_never_removed(tmp_path):
    names = (".mcfsim-x.partial", ".mcfsim-" + "0" * 32 + ".partial.bak", "a.partial", ".run.npz.tmp")
    for name in names:
        (tmp_path / name).write_text("mine")
    left = tmp_path / (".mcfsim-" + "0" * 32 + ".partial")
    left.write_text("half")
    write_text(tmp_path / "out", "text")
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([*names, "out"])


@pytest.mark.parametrize("failure", [OSError("no space left on device"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_leaves_the_old_file(failure, tmp_path):
    path = tmp_path / "it"
    path.write_text("old")

    def fail():
        with replacing(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(type(failure)):
        fail()
    assert look(tmp_path) == {"it": (path.stat().st_mode, None, b"old")}


def test_what_is_no_file_and_more_of_a_text_than_it_may_have_are_not_read(tmp_path):
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_text("x" * 11)
    for reader in (open_regular, Run.load, partial(read_text, limit=10)):
        check(refused(ValueError, "not a regular file", reader, pipe, tmp_path, "/dev/zero"))
    check(refused(ValueError, "more than 10 bytes", read_text, (long, 10)))


def test_memory_of_large_blocks_is_not_kept():
    for size, kept in ((LARGE_BLOCK, True), (LARGE_BLOCK + 1, False)):
        assert np.shares_memory(*(scratch("here", size, "u1") for _ in range(2))) == kept
