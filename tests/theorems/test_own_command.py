"""Statements of one's own at the command line: verified, and their certificates checked."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcfsim.cli.application import app

MODULE = """
import mcfsim as mcf
from fractions import Fraction
from mcfsim.symbolic import families, family, u
from mcfsim.theorems import Theorem, claim, exact_sum, relative_error, value
from mcfsim.theorems.claims import sum_of
from mcfsim.theorems.hypotheses import not_largest, sum_in_range

PAIR = [value("a"), value("b")]
mine = Theorem("mine", mcf.two_sum, PAIR, exact_sum(), where=[sum_in_range("a", "b"), not_largest("a")])
half = Theorem("half", lambda ar, a, b: (ar.mul(a, 0.5), b), PAIR, exact_sum())
drawn = Theorem("drawn", mcf.two_sum, PAIR, claim("c", lambda t: t.finite | bool(open)))
number, function = 3, mcf.two_sum
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("typer.get_app_dir", lambda _: str(tmp_path / "app"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    (tmp_path / "statements.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lacking.py").write_text("import nowhere_at_all\n")
    (tmp_path / "empty.py").write_text("")
    for name in ("statements", "broken", "lacking", "empty"):
        sys.modules.pop(name, None)
    return tmp_path


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == status, result.output
    return result.output


SAVED = "mine-float8_e4m3fn-nearest_even.json"


def test_an_own_statement_is_verified_and_its_certificate_checked(folder):
    said = call("statements:mine", "two_sum", "--format", "float8_e4m3fn", "--output", ".")
    assert said.count("verified") == 2
    again = call("--check", SAVED, "--theorem", "statements:mine")
    assert "nothing is wrong" in again
    assert "all by the emulator" in again
    assert "'mine' is not in the catalogue" in call("--check", SAVED, status=2)
    assert "'mine', not of 'half'" in call("--check", SAVED, "--theorem", "statements:half", status=2)


def test_what_is_wrong_with_an_own_certificate_is_told(folder):
    call("statements:mine", "--format", "float8_e4m3fn", "--output", ".")
    (folder / "others.py").write_text(MODULE.replace('"mine", mcf.two_sum', '"mine", mcf.fast_two_sum'))
    assert "nothing is wrong" not in call("--check", SAVED, "--theorem", "others:mine", status=1)


def test_a_certificate_of_an_own_statement_for_every_p(folder):
    (folder / "every.py").write_text(f"""{MODULE}
near = relative_error(1, sum_of("a", "b"), unit=1)
mine = Theorem("mine", lambda ar, a, b: ar.add(a, b), PAIR, near, families=families(family(a=1, b=u)))
""")
    call("--every-p", "every:mine", "--output", ".")
    (path,) = folder.glob("mine-every*.json")
    assert "nothing is wrong" in call("--check", str(path), "--theorem", "every:mine")
    assert "'mine' is not in the catalogue" in call("--check", str(path), status=2)
    assert "not about 'half'" in call("--check", str(path), "--theorem", "every:half", status=2)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere:mine", "no module 'nowhere' in "),
        ("nowhere.inner:mine", "no module 'nowhere' in "),
        ("statements.inner:mine", "no module 'statements.inner' in "),
        ("statements:missing", "module 'statements' has no 'missing'; it has drawn, half, mine"),
        ("statements:number", "statements:number is of type int, and no Theorem; it has drawn, half, mine"),
        ("statements:function", "statements:function is of type function, and no Theorem"),
        ("empty:mine", "module 'empty' has no 'mine'; it has no Theorem"),
        ("broken:mine", "module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
        ("lacking:mine", "module 'lacking' cannot be imported: No module named 'nowhere_at_all'"),
        ("statements.py:mine", "no module 'statements.py' in "),
        ("./statements:mine", "names no statement: write module:NAME"),
        ("statements:", "names no statement: write module:NAME"),
        (":mine", "names no statement: write module:NAME"),
        ("statements:mine:mine", "names no statement: write module:NAME"),
    ],
)
def test_what_names_no_statement_is_refused(name, problem, folder):
    for arguments in ((name,), ("--check", "x.json", "--theorem", name), ("--every-p", name)):
        assert problem in " ".join(call(*arguments, status=2).split())


def test_names_that_do_not_fit(folder):
    assert "give --check" in call("two_sum", "--theorem", "statements:mine", status=2)
    (folder / "more.py").write_text(MODULE.replace('"mine"', '"two_sum"'))
    twice = call("two_sum", "more:mine", "--format", "float4_e2m1fn", "--output", ".", status=2)
    assert "there are two statements for the certificate two_sum-float4_e2m1fn-nearest_even" in twice


def test_without_an_identity_no_journal_is_kept(folder):
    said = call("statements:drawn", "--format", "float4_e2m1fn", status=0)
    assert "No journal is kept: " in said
    assert "which may read anything" in said
    assert "can be kept in no journal" in call(
        "statements:drawn", "--format", "float4_e2m1fn", "--journal", "j", status=2
    )
