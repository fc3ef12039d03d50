"""What is suggested for a name that there is not: of statements, formats, strategies, options and others."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.checks.names import hint, nearest
from mcfsim.cli import app
from mcfsim.problems.registry import PROBLEMS
from mcfsim.rounding import Mode
from mcfsim.theorems import THEOREMS

KNOWN = {
    "format": [*mcf.FORMATS],
    "scaled": [*mcf.SCALED],
    "strategy": [*mcf.STRATEGIES],
    "theorem": [*THEOREMS],
    "problem": [*PROBLEMS],
    "mode": [*map(str, Mode)],
}


#: That takes some ten seconds.
EVERY_THEOREM = pytest.param("theorem", 1, marks=pytest.mark.exhaustive)


def slips(name: str) -> set[str]:
    """Return the name with a letter left out, doubled or exchanged with the next, or written differently."""
    found = {name.upper(), name.replace("_", ""), name.replace("_", "-"), name.title().replace("_", "")}
    for i in range(2, len(name) - 1):
        found |= {name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]}
        found.add(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return found - {name}


@pytest.mark.parametrize(
    ("kind", "every"), [*((kind, 9 if kind == "theorem" else 1) for kind in KNOWN), EVERY_THEOREM]
)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_every_slip_of_every_name_brings_a_suggestion_and_mostly_that_name(kind: str, every: int) -> None:
    names = KNOWN[kind]
    total = meant = 0
    for name in names[::every]:
        if len(name) < 4:
            continue
        for slip in slips(name) - set(names):
            found = nearest(slip, names, 3)
            assert found or kind == "mode", slip
            total += 1
            meant += name in found
    assert meant > 0.9 * total


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("fast2sum", "fast_two_sum"),
        ("Fast2Sum", "fast_two_sum"),
        ("2sum", "two_sum"),
        ("TwoSum", "two_sum"),
        ("twoSumm", "two_sum"),
        ("2prod", "two_prod"),
        ("2ProdFMA", "two_prod_fma"),
        ("DWTimesDW2", "dw_times_dw2"),
        ("dw_mul_dw2", "dw_times_dw2"),
        ("dw_add_fp", "dw_plus_fp"),
        ("dot_two", "dot2"),
    ],
)
def test_numbers_and_words_are_the_same(written: str, meant: str) -> None:
    assert nearest(written, THEOREMS)[0] == meant
    with pytest.raises(ValueError, match=f"unknown theorem '{written}' \\(did you mean '{meant}'"):
        mcf.verify(written)


def test_the_text() -> None:
    assert hint("q", ["two_sum"]) == ""
    assert hint("", ["two_sum"]) == ""
    assert hint("tow_sum", ["two_sum", "xyz"]) == " (did you mean 'two_sum'?)"
    assert hint("sum", ["two_sum", "dw_sum"], most=2) == " (did you mean 'two_sum' or 'dw_sum'?)"
    assert hint("nearest_evn", Mode) == " (did you mean 'nearest_even'?)"


@pytest.mark.parametrize("name", [name for name in mcf.SCALED if name.startswith(("mx", "nv"))])
def test_a_scaled_format_in_place_of_one_of_single_numbers(name: str) -> None:
    for given in (name, name.upper(), f" {name} "):
        with pytest.raises(ValueError, match=r"is a scaled format, .*: use mcfsim\.quantize"):
            mcf.get_format(given)
    with pytest.raises(ValueError, match=f"did you mean '{name}', a scaled format, .*: use mcfsim.quantize"):
        mcf.get_format(name[:3] + "x" + name[3:])


@pytest.mark.parametrize("name", ["bf16", "bfloat16", "posit8", "int16", "e4m3fn", "binary8p3"])
def test_a_format_of_single_numbers_in_place_of_a_scaled_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown scaled format '{name}': it is a format of single numbers"):
        mcf.get_scaled_format(name)


@pytest.mark.parametrize(
    "name", [*mcf.FORMATS, *(name for name in mcf.SCALED if name.startswith(("int", "tern")))]
)
def test_names_that_both_have_stay_formats(name: str) -> None:
    assert mcf.get_format(name).name == name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("formats", "mxfp4"), "'mxfp4' is a scaled format"),
        (("inspect", "1", "--format", "mxfp4"), "'mxfp4' is a scaled format"),
        (("memory", "1e9", "--low", "nvfp4"), "'nvfp4' is a scaled format"),
        (("simulate", "--problem", "quadratic", "--low", "mxfp8_e4m3"), "'mxfp8_e4m3' is a scaled format"),
        (("verify", "two_sum", "--format", "mxfp4"), "'mxfp4' is a scaled format"),
        (("verify", "fast2sum"), "did you mean 'fast_two_sum'"),
        (("verify", "--list", "fast2sum"), "did you mean 'fast_two_sum'"),
        (("verify", "--list", "nothing_such"), "no statement matches 'nothing_such'"),
        (("simulate", "--problem", "quadratc"), "did you mean 'quadratic'"),
        (("simulate", "--problem", "languagemodel"), "did you mean 'language-model'"),
        (("simulate", "--optimizer", "adam"), "did you mean 'adamw'"),
        (("simulate", "--problem", "quadratic", "--strategy", "colage-plus"), "did you mean 'collage-plus'"),
        (("simulate", "--problem", "quadratic", "--strategy", "fp32_master"), "did you mean 'fp32-master'"),
        (("inspect", "1", "--rounding", "nearest-even"), "did you mean 'nearest_even'"),
        (("inspect", "1", "--fromat", "bf16"), "'--fromat' is no option (did you mean '--format'?)"),
        (("inspect", "--fromat", "bf16"), "'--fromat' is no number and no option (did you mean '--format'?)"),
        (("inspect", "1", "2"), "'2' is no option"),
    ],
)
def test_at_the_command_line(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert re.fullmatch(r"Error: .*\n", result.stderr)


@pytest.mark.parametrize("option", ["--formt", "--smaples", "--outptu"])
def test_options_of_a_command(option: str) -> None:
    result = CliRunner().invoke(app, ["verify", option, "x"])
    assert result.exit_code == 2
    assert re.search(r"Did you mean|Possible options", result.output)
