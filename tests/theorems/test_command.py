"""The command `verify`: statements, formats, modes and devices, certificates, journal and exit status."""

import json
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from mcfsim.compile import kernel
from mcfsim.formats import get_format
from mcfsim.rounding import Mode, Rounding
from mcfsim.storage.sweeps.journal import VERSION, Journal
from mcfsim.theorems import THEOREMS, Certificate, catalogue, device, identity, verification
from mcfsim.theorems.parts import Selection
from tests.cli import runner

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep the journal out of the user's folder, and modules that are imported out of this process."""
    monkeypatch.setattr("typer.get_app_dir", lambda name: str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def call(*arguments, status=0):
    return runner.call("verify", *arguments, status=status).output


# -- certificates -------------------------------------------------------------------------------------------
def test_verdicts_are_printed_and_certificates_saved(folder):
    text = call("two_sum", "fast_two_sum_unordered", "--format", "e5m2", "--output", folder)
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:] if line.strip()}
    assert rows["two_sum"][:5] == ["two_sum", "float8_e5m2", "nearest_even", "verified", "holds"]
    assert rows["fast_two_sum_unordered"][3:5] == ["refuted", "fails"]
    for name in ("fast_two_sum_unordered", "two_sum"):
        path = folder / f"{name}-float8_e5m2-nearest_even.json"
        certificate, about = Certificate.load(path), json.loads(path.read_text())
        assert certificate.tried == about["tried"] == 248**2
        assert about["digest"] == certificate.digest == replace(certificate, seconds=0.0).digest
        assert about["versions"].keys() >= {"mcfsim", "numpy", "python", "machine"}


def test_all_ways_give_the_same_certificate_and_what_is_kept_is_not_tried_again(folder):
    journal, digests = folder / "journal", set()
    given = ("two_sum", "--format", "float6_e3m2fn", "--journal", journal, "--output", folder)
    two, again = ("--workers", "2", "--fresh"), ("--resume",)
    for options, resumed in (((), False), ((), True), (("--fresh",), False), (two, False), (again, True)):
        text = call(*given, *options)
        assert (f"cases are from the journal {journal}" in text) == resumed
        digests.add(Certificate.load(folder / "two_sum-float6_e3m2fn-nearest_even.json").digest)
    assert len(digests) == 1


def test_modes_can_be_chosen():
    text = call("two_sum", "--format", "e5m2", "--rounding", "up", "--rounding", "every")
    assert [line.split()[2] for line in text.splitlines()[2:]] == ["up", "nearest_even", "nearest_away"]
    # Not claimed upward, and refuted there: that is no failure.
    assert "open" in text


def test_by_default_all_statements_are_tried_on_four_formats_each_in_a_mode_of_its_own():
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
    # Long work is shared by all cores unasked.
    assert verification.workers_for(checks) == len(os.sched_getaffinity(0))
    assert verification.workers_for(verification.plan(["two_sum"], ["e4m3fn", "e5m2"])) == 1
    assert len(verification.plan(["two_sum", "sterbenz"], ["e4m3fn", "e5m2"], iter(["up"]))) == 4
    assert verification.workers_for([]) == 1


def test_statements_are_listed():
    text = call("--list")
    assert "Sterbenz" in text
    assert all(name in text for name in THEOREMS)


REFUSED = {
    "nosuch": "two_sum --format nosuch",
    "sideways": "two_sum --rounding sideways",
    "/nosuch": "two_sum --output /nosuch",
    "some": "two_sum --extent some",
    "float32": "two_sum --format float32 --extent all",
    "/nowhere": "--check /nowhere",
    "leave out workers": "two_sum --device cuda --workers 2",
    "'two_sum' has no family of operands that are polynomials in u": "two_sum --every-p",
    "did you mean 'dw_plus_fp'": "dw_plus_pf --every-p",
    "--format is no use": "grow --every-p --format bfloat16",
    "upwards": "grow --every-p --rounding upwards",
    "--workers is no use": "grow --every-p --workers 2",
    "--seed is no use": "grow --every-p --seed 2",
    "--fresh is no use": "grow --every-p --fresh",
    "--list tries nothing: --format is no use": "--list two_sum --format bfloat16",
    "--list tries nothing: --every-p is no use": "--list two_sum --every-p",
    "an ID is no use": "two_sum --check /nowhere",
    "what they are of: --extent is no use": "--check /nowhere --extent all",
    "of --upper, and needs it": "two_sum --seconds 5",
    "it must be a folder that exists": "grow --every-p --output nowhere",
}


@pytest.mark.parametrize(("problem", "arguments"), REFUSED.items(), ids=range(len(REFUSED)))
def test_wrong_arguments_are_refused_in_one_line(arguments, problem):
    assert problem in runner.refused("verify", *arguments.split())


@pytest.mark.parametrize(
    "change", [{"algorithm": lambda ar, a, b: (ar.add(a, b), a)}, {"holds": False}], ids=list
)
def test_what_comes_out_unexpectedly_ends_with_status_one(change, monkeypatch):
    """A claim that fails, and a false statement that holds."""
    monkeypatch.setattr(catalogue, "THEOREMS", {"two_sum": replace(THEOREMS["two_sum"], **change)})
    monkeypatch.setattr(identity, "DIGEST", f"with another {next(iter(change))}")
    assert "unexpected" in call("two_sum", "--format", "e5m2", status=1)


@pytest.mark.costly("all operands of a format")
def test_nothing_to_try_is_refused():
    few = ("--format", "e5m3", "--limit", "1", "--samples", "0")
    text = " ".join(call("dw_div_dw3", "two_sum", *few, status=1).split())
    told = "nothing would be tried: limit = 1 leaves no core, and samples = 0"
    assert f"refused: dw_div_dw3, e5m3, nearest_even: {told}" in text
    assert "two_sum" in text


def test_certificates_are_checked_alone(folder):
    call("fast_two_sum_unordered", "--format", "e5m2", "--output", folder)
    (path,) = folder.glob("*.json")
    text = call("--check", path, "--samples", "100")
    assert "every witness gives the recorded results" in text
    assert "tried again: every operand of float8_e5m2: 100 of 61,504 cases by the oracle, all by the" in text
    # Violations hidden, and a digest made anew.
    certificate = Certificate.load(path)
    parts = tuple(replace(part, violations=0) for part in certificate.parts)
    forged = folder / "forged.json"
    replace(certificate, parts=parts, witnesses=(), simplest=None).save(forged)
    assert "verified contradicts the catalogue" in call("--check", forged, status=1)
    path.write_text(path.read_text().replace('"violations": 26896', '"violations": 26895'))
    call("--check", path, status=2)


def test_every_precision_is_proved_saved_and_checked(folder):
    text = call("dw_times_dw1", "grow", "dw_times_fp2", "--every-p", "--output", folder)
    assert "limit: 5, bound: 5, sharp" in text
    assert "|error| in u^2: 2 / (1 + 2 u + 2 u^2)" in text
    assert "dw_times_fp2, every p = 2 n + 1 >= " in text
    even = "-nearest_even.json"
    paths = [folder / f"{name}{even}" for name in ("dw_times_dw1-every_p", "grow-every_p")]
    others = (folder / f"dw_times_fp2-every_{x}_p{even}" for x in ("even", "odd"))
    assert {*folder.glob("*.json")} == {*paths, *others}
    text = call("--check", paths[0], "--check", paths[1])
    assert text.count("nothing is wrong: proved again, and the same at every p up to 60") == 2
    paths[0].write_text(json.dumps({**json.loads(paths[0].read_text()), "limit": "6"}))
    assert "its digest is not that of its content" in call("--check", paths[0], status=2)
    text = call("dw_times_dw2_ties_away", "--every-p", "--rounding", "every", "--rounding", "up")
    assert [line.split()[5] for line in text.splitlines() if "every p" in line] == ["nearest_away:", "up:"]


# -- the journal ------------------------------------------------------------------------------------------
#: Of a row of 26,896 violations in 61,504 cases: what else it may not say, by what is told of it.
OTHER_ROWS = {
    "violations of .* are impossible": [
        *({"violations": number} for number in (-5, 10**9)),
        *({"applicable": number} for number in (61_505, -1)),
        {"violations": 26_895, "applicable": 26_894},
    ],
    "are not the first ones of 26896": [{"witnesses": x} for x in ([], [1] * 8, [8, 7, 6, 5, 4, 3, 2, 1])],
    "are not all in the range": [{"witnesses": [*range(1, 8), 61_504]}, {"witnesses": [*range(-1, 7)]}],
    "must be|not known": [
        *({"applicable": number} for number in (1.5, True, "26896")),
        *({"witnesses": None}, {"worst": "none"}, {"more": 1}, {"seconds": float("nan")}),
    ],
    "the statement does not measure": [{"worst": ["1", "2", 3]}],
    "took -1.0 seconds": [{"seconds": -1.0}],
}
#: Of the worst error in the first 100 cases of another statement.
OTHER_ERRORS = {"must be": [{"worst": [1, 2]}], "not all in the range": [{"worst": ["1", "1", 100]}]}
OTHER_ERRORS |= {"no fraction": [{"worst": ["1", "0", 3]}, {"worst": ["1e9", "1", 3]}]}


@pytest.mark.parametrize(
    ("name", "many", "others"),
    [("fast_two_sum_unordered", 61_504, OTHER_ROWS), ("dw_plus_fp", 100, OTHER_ERRORS)],
)
def test_what_no_check_gives_is_no_row(name, many, others):
    check = verification.prepare(name, "float8_e5m2", "nearest_even", Selection(samples=10))
    data = json.loads(json.dumps(check(0, many)))
    for right in (data, data | {"worst": None}):
        check.validate(0, many, right)
    for problem, changes in others.items():
        for change in changes:
            with pytest.raises(ValueError, match=problem):
                print(change, check.validate(0, many, data | change))


def test_a_row_that_no_check_gives_is_refused_and_tried_afresh(folder):
    journal = folder / "journal"
    arguments = ("fast_two_sum_unordered", "--format", "e5m2", "--journal", journal)
    call(*arguments)
    key = verification.plan(["fast_two_sum_unordered"], ["e5m2"])[0].key
    with Journal(journal) as opened:
        ((unit, text),) = opened.results(key).items()
        opened.record(key, *unit, json.dumps(json.loads(text) | {"violations": -5}))
    said = runner.refused("verify", *arguments)
    assert said.startswith(f"Error: journal {journal} is damaged: its row of fast_two_sum_unordered")
    call(*arguments, "--fresh")
    with Journal(journal) as opened:
        assert json.loads(opened.results(key)[unit])["violations"] == 26_896


@pytest.mark.parametrize("kind", ["no folder", "no place", "foreign", "in use"])
def test_without_a_place_for_its_own_journal_it_goes_on(kind, folder, monkeypatch):
    place = folder / "mcfsim" / f"verify-{VERSION}.sqlite"
    if kind == "no folder":
        (folder / "mcfsim").touch()
    else:
        place.parent.mkdir()
    if kind == "no place":  # where nobody makes a folder, root neither
        monkeypatch.setattr("typer.get_app_dir", lambda name: f"/dev/null/{name}")
    if kind == "foreign":
        place.write_text("Chapter 1")
    monkeypatch.setattr("mcfsim.storage.sweeps.journal._PATIENCE", 0.1)
    with Journal(place) if kind == "in use" else nullcontext():
        text = call("two_sum", "--format", "e5m2")
    assert "No journal is kept (" in text
    assert "verified" in text
    assert kind != "foreign" or place.read_text() == "Chapter 1"


def test_what_is_interrupted_prints_the_command_that_goes_on(folder, monkeypatch):
    journal, out, save = folder / "a journal", folder / "out", Certificate.save
    out.mkdir()
    arguments = ["verify", "two_sum", "fast_two_sum", "--format", "float6_e3m2fn"]
    arguments += ["--workers", "1", "--journal", str(journal), "--output", str(out)]

    def interrupted(*given, **options):
        save(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Certificate, "save", interrupted)
        patch.setattr(sys, "argv", ["mcfsim", *arguments, "--fresh"])
        told = call(*arguments[1:], "--fresh", status=130)
    again = told.splitlines()[-1].split(f"what is finished is in {journal}. To go on: ")[1]
    assert shlex.split(again) == ["mcfsim", *arguments]
    assert len(list(out.iterdir())) == 1
    assert "cases are from the journal" in call(*arguments[1:])
    assert len(list(out.iterdir())) == 2


# -- own statements ---------------------------------------------------------------------------------------
MODULE = """
import mcfsim as mcf
from fractions import Fraction
from mcfsim.theorems.symbolic import families, family, u
from mcfsim.theorems import Theorem, claim, exact_sum, relative_error, value
from mcfsim.theorems.claims import sum_of
from mcfsim.theorems.hypotheses import not_largest, sum_in_range

PAIR = [value("a"), value("b")]
mine = Theorem("mine", mcf.two_sum, PAIR, exact_sum(), where=[sum_in_range("a", "b"), not_largest("a")])
half = Theorem("half", lambda ar, a, b: (ar.mul(a, 0.5), b), PAIR, exact_sum())
drawn = Theorem("drawn", mcf.two_sum, PAIR, claim("c", lambda t: t.finite | bool(open)))
number = 3
"""
#: Texts of modules.
MODULES = {
    "statements": MODULE,
    "others": MODULE.replace('"mine", mcf.two_sum', '"mine", mcf.fast_two_sum'),
    "more": MODULE.replace('"mine"', '"two_sum"'),
    "every": MODULE
    + """
near = relative_error(1, sum_of("a", "b"), unit=1)
mine = Theorem("mine", lambda ar, a, b: ar.add(a, b), PAIR, near, families=families(family(a=1, b=u)))
""",
    "broken": "1 / 0\n",
    "lacking": "import nowhere_at_all\n",
    "empty": "",
}
SAVED = "mine-float8_e4m3fn-nearest_even.json"


@pytest.fixture
def modules(folder):
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_an_own_statement_is_verified_and_its_certificate_checked():
    said = call("statements:mine", "two_sum", "--format", "float8_e4m3fn", "--output", ".")
    assert said.count("verified") == 2
    assert "all by the emulator" in call("--check", SAVED, "--theorem", "statements:mine")
    assert "nothing is wrong" not in call("--check", SAVED, "--theorem", "others:mine", status=1)
    call("--every-p", "every:mine", "--output", ".")
    (every,) = Path().glob("mine-every*.json")
    for path, module, problem in (
        (SAVED, "statements", "'mine', not of 'half'"),
        (every.name, "every", "not about 'half'"),
    ):
        assert "nothing is wrong" in call("--check", path, "--theorem", f"{module}:mine")
        assert "'mine' is not in the catalogue" in call("--check", path, status=2)
        assert problem in call("--check", path, "--theorem", f"{module}:half", status=2)


WRITE = "names no statement: write module:NAME"
UNNAMED = [
    ("nowhere:mine", "no module 'nowhere' in "),
    ("nowhere.inner:mine", "no module 'nowhere' in "),
    ("statements:missing", "module 'statements' has no 'missing'; it has drawn, half, mine"),
    ("statements:number", "statements:number is of type int, not a Theorem; it has drawn, half, mine"),
    ("empty:mine", "module 'empty' has no 'mine'; it has no Theorem"),
    ("broken:mine", "module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
    ("lacking:mine", "module 'lacking' cannot be imported: No module named 'nowhere_at_all'"),
    ("statements.py:mine", "no module 'statements.py' in "),
    *((name, WRITE) for name in ("./statements:mine", "statements:", ":mine", "statements:mine:mine")),
]


@pytest.mark.parametrize(("name", "problem"), UNNAMED)
@pytest.mark.usefixtures("modules")
def test_what_names_no_statement_is_refused(name, problem):
    ways = (name,), ("--check", "x.json", "--theorem", name), ("--every-p", name)
    assert problem in runner.refused("verify", *ways[len(name) % 3])


@pytest.mark.usefixtures("modules")
def test_names_that_do_not_fit_and_statements_without_an_identity():
    said = call("statements:drawn", "--format", "float4_e2m1fn")
    assert "No journal is kept: " in said
    assert "which may read anything" in said
    place = ("--format", "float4_e2m1fn", "--output", ".")
    for problem, *words in (
        ("give --check", "two_sum", "--theorem", "statements:mine"),
        ("two statements for the certificate two_sum-float4_e2m1fn-near", "two_sum", "more:mine", *place),
        ("cannot be kept in a journal", "statements:drawn", "--journal", "j", *place),
    ):
        assert problem in call(*words, status=2)


# -- devices ------------------------------------------------------------------------------------------------
def test_devices_are_refused_before_anything_is_tried(monkeypatch):
    monkeypatch.setattr(verification, "prepare", lambda *_: pytest.fail("a check was made"))
    unknown = "unknown device .*; allowed: 'cpu', 'cuda', or 'cuda:N'"
    for name, error, problem in (
        *((name, ValueError, unknown) for name in ("", "gpu", "CUDA", "mps", "meta")),
        *((name, ValueError, unknown) for name in ("cuda:", "cuda:x", "cuda:-1", "cuda:1:2")),
        *((name, TypeError, "device must be a str") for name in (None, 0, b"cuda")),
        ("cuda", ValueError, "one process works with device 'cuda': leave out workers and dask"),
    ):
        for options in ({"workers": 2}, {"dask": "tcp://nowhere:1"}):
            with pytest.raises(error, match=problem):
                verification.verify("two_sum", device=name, **options)
    assert device.find_device("cpu", workers=4, dask="tcp://nowhere:1") is None  # which is no device


@pytest.mark.parametrize(
    ("found", "version", "problem"),
    [
        (None, None, r"device 'cuda' needs PyTorch: pip install 'mcfsim\[torch\]'"),
        (True, None, "device 'cuda' cannot be used: kernels need Triton"),
        (True, "3.5.1", "device 'cuda' cannot be used: Triton 3.5.1 divides inexactly.*need 3.6 or newer"),
    ],
)
def test_it_is_said_what_a_device_needs(found, version, problem, monkeypatch):
    monkeypatch.setattr(device, "find_spec", lambda _: found)
    monkeypatch.setattr(kernel, "_triton", lambda: version)
    with pytest.raises(ImportError, match=problem):
        verification.verify("two_sum", device="cuda")
