"""The command `verify`: statements, formats, modes and devices, certificates, journal and exit status."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.compile import kernel
from mcfsim.formats import get_format
from mcfsim.rounding import Mode, Rounding
from mcfsim.sweeps.journal import VERSION, Journal
from mcfsim.theorems import THEOREMS, Certificate, catalogue, device, verification
from mcfsim.theorems.selection import Selection

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the journal out of the user's folder."""
    monkeypatch.setattr("typer.get_app_dir", lambda name: str(tmp_path / name))
    return tmp_path


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_verdicts_are_printed_and_certificates_saved(folder: Path) -> None:
    out = folder / "certificates"
    out.mkdir()
    text = call("two_sum", "fast_two_sum_unordered", "--format", "e5m2", "--output", str(out))
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:] if line.strip()}
    assert rows["two_sum"][:5] == ["two_sum", "float8_e5m2", "nearest_even", "verified", "holds"]
    assert rows["fast_two_sum_unordered"][3:5] == ["refuted", "fails"]
    assert sorted(path.name for path in out.iterdir()) == [
        "fast_two_sum_unordered-float8_e5m2-nearest_even.json",
        "two_sum-float8_e5m2-nearest_even.json",
    ]
    for path in out.iterdir():
        certificate = Certificate.load(path)
        assert certificate.tried == 248**2
        about = json.loads(path.read_text())
        assert (about["tried"], about["digest"]) == (certificate.tried, certificate.digest)
        assert about["versions"].keys() >= {"mcfsim", "numpy", "python", "machine"}


def test_workers_resumed_runs_and_single_ones_give_the_same_certificates(folder: Path) -> None:
    digests = []
    for i, options in enumerate(((), ("--workers", "2", "--fresh"), ("--resume",), ())):
        out = folder / str(i)
        out.mkdir()
        call("two_sum", "dw_plus_fp", "--format", "float6_e3m2fn", *options, "--output", str(out))
        digests.append({path.name: Certificate.load(path).digest for path in out.iterdir()})
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(digests[0]) == 2


def test_modes_can_be_chosen() -> None:
    text = call("two_sum", "--format", "e5m2", "--rounding", "up", "--rounding", "every")
    assert [line.split()[2] for line in text.splitlines()[2:]] == ["up", "nearest_even", "nearest_away"]
    # Not claimed upward, and refuted there: that is no failure.
    assert "open" in text


def test_by_default_all_statements_are_tried_on_four_formats_each_in_a_mode_of_its_own() -> None:
    checks = verification.plan()
    # Only what can say nothing of any of the formats is left out.
    for name in set(THEOREMS) - {check.theorem.name for check in checks}:
        for fmt in map(get_format, verification.FORMATS):
            assert not THEOREMS[name].possible(fmt, Rounding())
    assert all(check.domain().parts for check in checks[:: len(checks) // 8])
    assert {str(check.format) for check in checks} == set(verification.FORMATS)
    for check in checks:
        assert check.rounding.mode in check.theorem.modes
        assert check.rounding.mode is Mode.NEAREST_EVEN or Mode.NEAREST_EVEN not in check.theorem.modes


def test_statements_are_listed() -> None:
    text = call("--list")
    assert "Sterbenz" in text
    assert all(name in text for name in THEOREMS)


REFUSED = [
    (("nosuch",), "nosuch"),
    (("two_sum", "--format", "nosuch"), "nosuch"),
    (("two_sum", "--rounding", "sideways"), "sideways"),
    (("two_sum", "--output", "/nosuch"), "/nosuch"),
    (("two_sum", "--extent", "some"), "some"),
    (("two_sum", "--format", "float32", "--extent", "all"), "float32"),
    (("--check", "/nosuch"), "/nosuch"),
    (("two_sum", "--device", "gpu"), "gpu"),
    (("two_sum", "--device", "cuda", "--workers", "2"), "leave out workers"),
    (("two_sum", "--every-p"), "'two_sum' has no family of operands that are polynomials in u"),
    (("dw_plus_pf", "--every-p"), "did you mean 'dw_plus_fp'"),
    (("grow", "--every-p", "--format", "bfloat16"), "--format is no use"),
    (("grow", "--every-p", "--rounding", "upwards"), "upwards"),
    (("grow", "--every-p", "--output", "nowhere"), "it must be a folder that exists"),
]


@pytest.mark.parametrize(("arguments", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_wrong_arguments_are_refused_in_one_line(arguments: tuple[str, ...], problem: str) -> None:
    text = call(*arguments, status=2)
    assert text.startswith("Error: ")
    assert problem in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "change", [{"algorithm": lambda ar, a, b: (ar.add(a, b), a)}, {"holds": False}], ids=list
)
def test_what_comes_out_unexpectedly_ends_with_status_one(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that fails, and a false statement that holds."""
    monkeypatch.setattr(catalogue, "THEOREMS", {"two_sum": replace(THEOREMS["two_sum"], **change)})
    assert "unexpected" in call("two_sum", "--format", "e5m2", status=1)


def test_certificates_are_checked_alone(folder: Path) -> None:
    call("fast_two_sum_unordered", "--format", "e5m2", "--output", str(folder))
    (path,) = folder.glob("*.json")
    text = call("--check", str(path), "--samples", "100")
    assert "every witness gives what it says" in text
    assert "tried again: every operand of float8_e5m2: 100 of 61,504 cases by the oracle, all by the" in text
    # Violations hidden, and a digest made anew.
    certificate = Certificate.load(path)
    parts = tuple(replace(part, violations=0) for part in certificate.parts)
    forged = folder / "forged.json"
    replace(certificate, parts=parts, witnesses=(), simplest=None).save(forged)
    assert "verified contradicts the catalogue" in call("--check", str(forged), status=1)
    path.write_text(path.read_text().replace('"violations": 26896', '"violations": 26895'))
    call("--check", str(path), status=2)


def test_long_work_is_shared_by_all_cores_unasked() -> None:
    cores = len(os.sched_getaffinity(0))
    assert verification.workers_for(verification.plan()) == cores
    assert verification.workers_for(verification.plan(["two_sum"], ["e4m3fn", "e5m2"])) == 1
    assert verification.workers_for([]) == 1


# -- the journal ------------------------------------------------------------------------------------------
def test_it_goes_on_from_the_journal_unless_a_fresh_start_is_asked_for(folder: Path) -> None:
    journal = folder / "journal"
    for options, resumed in (((), False), ((), True), (("--fresh",), False), (("--resume",), True)):
        text = call("two_sum", "--format", "e5m2", "--journal", str(journal), *options)
        assert (f"61,504 cases are from the journal {journal}" in text) == resumed


def row(journal: Path) -> tuple[str, int, int, dict[str, Any]]:
    """Return the only row of a journal."""
    with closing(sqlite3.connect(journal)) as database:
        ((job, start, stop, text),) = database.execute("SELECT job, start, stop, result FROM units")
    return job, int(start), int(stop), json.loads(text)


@pytest.mark.parametrize(
    "change",
    [
        {"violations": -5},
        {"violations": 10**9},
        {"applicable": 61_505},
        {"applicable": -1},
        {"applicable": 1.5},
        {"applicable": True},
        {"applicable": "26896"},
        {"applicable": 10**30},
        {"violations": 26_895, "applicable": 26_894},
        {"witnesses": []},
        {"witnesses": [1] * 8},
        {"witnesses": [8, 7, 6, 5, 4, 3, 2, 1]},
        {"witnesses": [1, 2, 3, 4, 5, 6, 7, 61_504]},
        {"witnesses": [-1, 2, 3, 4, 5, 6, 7, 8]},
        {"witnesses": None},
        {"worst": ["1", "2", 3]},
        {"worst": "none"},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"more": 1},
    ],
    ids=str,
)
@pytest.mark.sampled(10, each=False)
def test_rows_that_no_check_gives_are_refused(change: dict[str, Any], folder: Path) -> None:
    journal = folder / "journal"
    arguments = ("fast_two_sum_unordered", "--format", "e5m2", "--journal", str(journal))
    call(*arguments)
    job, start, stop, data = row(journal)
    with Journal(journal) as opened:
        opened.record(job, start, stop, json.dumps(data | change))
    text = call(*arguments, status=2)
    assert text.startswith(f"Error: journal {journal} is damaged: its row of fast_two_sum_unordered")
    assert text.count("\n") == 1
    call(*arguments, "--fresh")
    assert row(journal)[3].keys() == data.keys()


def test_a_worst_error_that_is_none_is_refused() -> None:
    check = verification.prepare("dw_plus_fp", "float8_e5m2", "nearest_even", Selection(samples=10))
    data = check(0, 100)
    assert data["worst"] is not None
    for right in (data, data | {"worst": None}):
        check.validate(0, 100, json.loads(json.dumps(right)))
    for worst in ([1, 2], ["1", "0", 3], ["1e9", "1", 3]):
        with pytest.raises(ValueError, match="worst"):
            check.validate(0, 100, data | {"worst": worst})


@pytest.mark.parametrize("content", [b"Chapter 1. " * 40, b"{}", b"SQLite format 3\0" + bytes(4080)])
def test_a_file_that_is_no_journal_is_refused(content: bytes, folder: Path) -> None:
    (folder / "file").write_bytes(content)
    text = call("two_sum", "--format", "e5m2", "--journal", str(folder / "file"), status=2)
    assert str(folder / "file") in text
    assert (folder / "file").read_bytes() == content


@pytest.mark.parametrize("kind", ["no folder", "no place", "foreign", "in use"])
def test_without_a_place_for_its_own_journal_it_goes_on(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "mcfsim" / f"verify-{VERSION}.sqlite"
    if kind == "no folder":
        (folder / "mcfsim").touch()
    else:
        place.parent.mkdir()
    if kind == "no place":  # where nobody makes a folder, root neither
        monkeypatch.setattr("typer.get_app_dir", lambda name: f"/dev/null/{name}")
    if kind == "foreign":
        place.write_text("Chapter 1")
    with Journal(place) if kind == "in use" else nullcontext():
        text = call("two_sum", "--format", "e5m2")
    assert "No journal is kept (" in text
    assert "verified" in text
    assert kind != "foreign" or place.read_text() == "Chapter 1"


def test_what_is_interrupted_prints_the_command_that_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted by what Ctrl-C raises, after the first certificate."""
    journal, out = folder / "a journal", folder / "out"
    out.mkdir()
    arguments = ["verify", "two_sum", "fast_two_sum", "--format", "float6_e3m2fn"]
    arguments += ["--workers", "1", "--journal", str(journal), "--output", str(out)]
    save = Certificate.save

    def interrupted(*given: Any, **options: Any) -> None:
        save(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Certificate, "save", interrupted)
        patch.setattr(sys, "argv", ["mcfsim", *arguments, "--fresh"])
        text = call(*arguments[1:], "--fresh", status=130)
    again = text.splitlines()[-1].split(f"what is finished is in {journal}. To go on: ")[1]
    assert shlex.split(again) == ["mcfsim", *arguments]
    assert len(list(out.iterdir())) == 1
    assert "cases are from the journal" in call(*arguments[1:])
    assert len(list(out.iterdir())) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_prints_the_command_that_goes_on(workers: str, folder: Path) -> None:
    journal, out = folder / "a journal", folder / "out"
    out.mkdir()
    # Some seconds' work, a unit of which is soon finished.
    arguments = ["verify", "two_sum", "fma_via_float64_any", "--format", "e5m2", "--rounding", "nearest_even"]
    arguments += ["--workers", workers, "--journal", str(journal), "--output", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "mcfsim", *arguments, "--fresh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not list(out.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    again = err.splitlines()[-1].split(f"what is finished is in {journal}. To go on: ")[1]
    assert shlex.split(again) == ["mcfsim", *arguments]
    assert "cases are from the journal" in call(*arguments[1:])
    assert len(list(out.iterdir())) == 2


def test_every_precision_is_proved_saved_and_checked(folder: Path) -> None:
    text = call("dw_times_dw1", "grow", "--every-p", "--output", str(folder))
    assert "limit: 5, bound: 5, sharp" in text
    assert "|error| in u^2: 2 / (1 + 2 u + 2 u^2)" in text
    paths = sorted(folder.glob("*-every_p-*.json"))
    assert [path.name.split("-")[0] for path in paths] == ["dw_times_dw1", "grow"]
    text = call("--check", str(paths[0]), "--check", str(paths[1]))
    assert text.count("nothing is wrong: proved again, and the same at every p up to 60") == 2
    about = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps({**about, "limit": "6"}))
    assert "its digest is not that of its content" in call("--check", str(paths[0]), status=2)


def test_every_precision_of_all_statements_and_modes(folder: Path) -> None:
    text = call("dw_times_fp2", "--every-p", "--output", str(folder))
    assert "dw_times_fp2, every p = 2 n + 1 >= " in text
    paths = sorted(folder.glob("*.json"))
    assert [path.name.split("-")[1] for path in paths] == ["every_even_p", "every_odd_p"]
    text = call("dw_times_dw2_ties_away", "--every-p", "--rounding", "every", "--rounding", "up")
    assert [line.split()[5] for line in text.splitlines() if "every p" in line] == ["nearest_away:", "up:"]


@pytest.mark.exhaustive
def test_every_precision_of_all_statements() -> None:
    assert call("--every-p").count("obligations, all met from") > 20


# -- devices ------------------------------------------------------------------------------------------------
def test_the_cpu_is_no_device() -> None:
    assert device.find_device("cpu", workers=4, dask="tcp://nowhere:1") is None


NO_DEVICES: list[tuple[Any, str]] = [
    *(
        (name, "unknown device .*; allowed: 'cpu', 'cuda', or 'cuda:N'")
        for name in ("", "gpu", "CUDA", "mps", "meta")
    ),
    *((name, "unknown device .*; allowed") for name in ("cuda:", "cuda:x", "cuda:-1", "cuda:1:2")),
    *((name, "device must be a str") for name in (None, 0, b"cuda")),
    ("cuda", "one process works with device 'cuda': leave out workers and dask"),
]


@pytest.mark.parametrize("options", [{"workers": 2}, {"dask": "tcp://nowhere:1"}], ids=list)
@pytest.mark.parametrize(("name", "problem"), NO_DEVICES)
def test_devices_are_refused_before_anything_is_tried(
    name: Any, problem: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "prepare", lambda *_: pytest.fail("a check was made"))
    with pytest.raises(TypeError if "must be" in problem else ValueError, match=problem):
        verification.verify("two_sum", device=name, **options)


@pytest.mark.parametrize(
    ("found", "version", "problem"),
    [
        (None, None, r"device 'cuda' needs PyTorch: pip install 'mcfsim\[torch\]'"),
        (True, None, "device 'cuda' cannot be used: kernels need Triton"),
        (True, "3.5.1", "device 'cuda' cannot be used: Triton 3.5.1 divides inexactly.*need 3.6 or newer"),
    ],
)
def test_it_is_said_what_a_device_needs(
    found: Any, version: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda _: found)
    monkeypatch.setattr(kernel, "_triton", lambda: version)
    with pytest.raises(ImportError, match=problem):
        verification.verify("two_sum", device="cuda")
