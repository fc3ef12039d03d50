"""Own statements: the tutorial keeps its word, what is wrong with one is said, the command takes them."""

import doctest
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.theorems import Theorem, claim, double_word, exact_sum, hypothesis, relative_error, value, verify
from mcfsim.theorems.claims import sum_of
from mcfsim.theorems.hypotheses import ordered

DOCS = Path(__file__).parents[2] / "docs"
#: Pages of examples, and how many these have at least.
PAGES = {"own_theorems.md": 50, "every_p.md": 18, "every_bound.md": 14}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.sampled(3, each=False)
@pytest.mark.costly("the solver proves")
def test_the_tutorials_show_real_output(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    runner, text = doctest.DocTestRunner(), (DOCS / page).read_text()
    if "theorems.solver" in text:
        pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        examples = doctest.DocTestParser().get_doctest(block, {}, page, None, None)
        assert examples.examples
        examples.globs = names
        runner.run(examples, clear_globs=False)
    failed, attempted = runner.summarize()
    assert not failed, capsys.readouterr().out
    assert attempted >= PAGES[page]


# -- what is wrong with a statement -------------------------------------------------------------------------
def theorem(algorithm=mcf.two_sum, **facts):
    facts = {"operands": (value("a"), value("b")), "claim": exact_sum(), **facts}
    return Theorem("mine", algorithm, **facts)


@pytest.mark.parametrize(
    ("algorithm", "error", "problem"),
    [
        (lambda ar, a, b: None, TypeError, "result 1 of the algorithm is None of type NoneType"),
        (lambda ar, a, b: [ar.add(a, b), a], TypeError, r"result 1 of the algorithm is \[.* of type list"),
        (lambda ar, a, b: (a, ar.round(0.5)), TypeError, r"result 2 of the algorithm is 0\.5 of type float"),
        (lambda ar, a, b: (a, (a, a[:1])), TypeError, r"result 3 .* is an array of float32, shape \(1,\)"),
        (lambda ar, a, b: (a, a == b), TypeError, r"result 2 .* array of bool, shape \(\d+,\); it must be a"),
        (lambda ar, a, b: (), TypeError, "the algorithm returns no results"),
        (lambda ar, a, b: ar.addd(a, b), ValueError, "the algorithm raised AttributeError: .*'addd'"),
        (lambda ar, a: (a, a), ValueError, "the algorithm raised TypeError: .*positional argument"),
        (
            lambda ar, a, b: mcf.double_word.dw_plus_fp(ar, (a,), b),
            ValueError,
            "the algorithm raised ValueError: a double word is a tuple",
        ),
    ],
    ids=range(9),
)
def test_what_an_algorithm_does_wrong(algorithm, error, problem):
    with pytest.raises(error, match=f"^'mine': {problem}") as raised:
        verify(theorem(algorithm), "float4_e2m1fn")
    assert not isinstance(raised.value, UnsupportedFormatError)
    assert error is TypeError or raised.value.__cause__ is not None


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers_say_the_same(kind):
    with pytest.raises(Exception, match="'mine': the algorithm raised ZeroDivisionError"):
        verify(theorem(lambda ar, a, b: ar.add(a, 1 / 0)), "float4_e2m1fn", workers=2, kind=kind)


@pytest.mark.parametrize(
    ("test", "given"),
    [
        (lambda t: None, "gave None of type NoneType"),
        (lambda t: True, "gave True of type bool"),
        (lambda t: t["a"], r"gave an array of float32, shape \(2,\)"),
        (lambda t: (t["a"] > 0)[:1], r"gave an array of bool, shape \(1,\)"),
        (lambda t: np.all(t["a"] > 0), r"gave np.False_ of type bool"),
        (lambda t: t["x"] == 0, r"raised KeyError: .*no operand 'x'; operands: a, b"),
        (lambda t: t["a"] > 1 / 0, "raised ZeroDivisionError: division by zero"),
        (ordered("x", "b").said, "raised KeyError"),
    ],
    ids=range(8),
)
def test_what_a_predicate_does_wrong(test, given):
    raises = given.startswith("raised")
    error = ValueError if raises else TypeError
    must = "" if raises else "; its test must return a block of 2 truth values, one a case"
    said, named = (("odd", test), "odd") if callable(test) else ((test,), r"\|b\| <= \|x\|")
    with pytest.raises(error, match=f"^'mine': the claim '{named}' {given}{must}"):
        verify(theorem(claim=claim(*said)), "float4_e2m1fn")
    with pytest.raises(error, match=f"^'mine': the hypothesis '{named}' {given}{must}"):
        verify(theorem(where=[hypothesis(*said)]), "float4_e2m1fn")


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        # Of the statement, ...
        ({"algorithm": "two_sum"}, TypeError, "the algorithm must be callable, not 'two_sum'"),
        ({"operands": ["a", "b"]}, TypeError, "operands must be several of type Operand, not ['a', 'b']"),
        ({"operands": []}, ValueError, "has the operands"),
        ({"operands": [value("a"), value("a")]}, ValueError, "of distinct names"),
        ({"claim": lambda t: t["a"] == 0}, TypeError, "the claim must be a Claim, not <function"),
        ({"where": ordered("a", "b")}, TypeError, "several of type Hypothesis, not Hypothesis("),
        ({"where": [len]}, TypeError, "where must be several of type Hypothesis, not [<built-in"),
        ({"modes": ["sideways"]}, ValueError, "'sideways' is not a valid Mode"),
        ({"modes": "up"}, TypeError, "modes must be several of type str, not 'up'"),
        ({"scaling": "any"}, ValueError, "'any' is not a valid Scaling"),
        ({"range": "any"}, ValueError, "unknown range 'any'; known ranges: bounded, unbounded"),
        # ... and of its verification.
        ({"extent": "some"}, ValueError, "unknown extent 'some'; known extents: core, all"),
        ({"extent": "all", "format": "float32"}, ValueError, "cannot all be tried: too many"),
        ({"limit": 0}, ValueError, "limit = 0 must be at least 1"),
        ({"samples": 0.5}, TypeError, "samples must be an int, not 0.5"),
        ({"seed": True}, TypeError, "seed must be an int, not True"),
        ({"format": "bfloat17"}, ValueError, "bfloat17"),
        ({"rounding": "sideways"}, ValueError, "allowed: nearest_even"),
        ({"theorem": "three_sum"}, ValueError, "unknown theorem 'three_sum'"),
        ({"theorem": "nosuch"}, ValueError, "known theorems: sterbenz"),
        (
            {"theorem": mcf.two_sum},
            TypeError,
            "a theorem is a Theorem or the id of one, not <function two_sum",
        ),
    ],
    ids=range(21),
)
def test_statements_and_verifications_that_are_none(given, error, problem):
    of_statement = given.keys() <= {"algorithm", "operands", "claim", "where", "modes", "scaling", "range"}
    with pytest.raises(error, match=re.escape(problem)):
        theorem(**given) if of_statement else verify(
            **{"theorem": theorem(), "format": "float4_e2m1fn", **given}
        )


def test_families_must_be_of_the_kind_of_the_operand():
    sums = theorem(
        mcf.double_word.dw_plus_fp,
        operands=(double_word("x"), value("y")),
        claim=relative_error(2, sum_of("x", "y")),
        scaling="common",
        families=lambda p: [(1, 1, 1)],
    )
    with pytest.raises(ValueError, match=r"'mine': .*x .*is no double word"):
        verify(sums, "bfloat16", limit=1, samples=1)


# -- at the command line ------------------------------------------------------------------------------------
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
def call(tmp_path, monkeypatch):
    """Return `mcfsim verify` in a folder of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("typer.get_app_dir", lambda _: str(tmp_path / "app"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)

    def called(*arguments, status=0):
        result = CliRunner().invoke(app, ["verify", *arguments])
        assert result.exit_code == status, result.output
        return " ".join(result.output.split())

    return called


@pytest.mark.slow
def test_an_own_statement_is_verified_and_its_certificate_checked(call):
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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere:mine", "no module 'nowhere' in "),
        ("nowhere.inner:mine", "no module 'nowhere' in "),
        ("statements:missing", "module 'statements' has no 'missing'; it has drawn, half, mine"),
        ("statements:number", "statements:number is of type int, and no Theorem; it has drawn, half, mine"),
        ("empty:mine", "module 'empty' has no 'mine'; it has no Theorem"),
        ("broken:mine", "module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
        ("lacking:mine", "module 'lacking' cannot be imported: No module named 'nowhere_at_all'"),
        ("statements.py:mine", "no module 'statements.py' in "),
        *(
            (name, "names no statement: write module:NAME")
            for name in ("./statements:mine", "statements:", ":mine", "statements:mine:mine")
        ),
    ],
)
def test_what_names_no_statement_is_refused(name, problem, call):
    ways = (name,), ("--check", "x.json", "--theorem", name), ("--every-p", name)
    assert problem in call(*ways[len(name) % 3], status=2)


def test_names_that_do_not_fit(call):
    assert "give --check" in call("two_sum", "--theorem", "statements:mine", status=2)
    twice = call("two_sum", "more:mine", "--format", "float4_e2m1fn", "--output", ".", status=2)
    assert "there are two statements for the certificate two_sum-float4_e2m1fn-nearest_even" in twice


def test_without_an_identity_no_journal_is_kept(call):
    said = call("statements:drawn", "--format", "float4_e2m1fn")
    assert "No journal is kept: " in said
    assert "which may read anything" in said
    refused = call("statements:drawn", "--format", "float4_e2m1fn", "--journal", "j", status=2)
    assert "can be kept in no journal" in refused
