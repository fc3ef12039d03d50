"""What is suggested for a name that there is not: of statements, formats, strategies and others."""

from __future__ import annotations

import pytest

import mcfsim as mcf
from mcfsim.checks.names import hint, nearest
from mcfsim.problems.registry import PROBLEMS
from mcfsim.rounding import Mode

KNOWN = {"format": [*mcf.FORMATS], "scaled": [*mcf.SCALED], "strategy": [*mcf.STRATEGIES]}
KNOWN |= {"theorem": [*mcf.THEOREMS], "problem": [*PROBLEMS], "mode": [*map(str, Mode)]}
EVERY = [(kind, {"theorem": 27, "strategy": 3}.get(kind, 1)) for kind in KNOWN]


def slips(name):
    """Return the name with a letter left out, doubled or exchanged with the next, or written differently."""
    found = {name.upper(), name.replace("_", ""), name.replace("_", "-"), name.title().replace("_", "")}
    for i in range(2, len(name) - 1):
        found |= {name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]}
        found.add(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return found - {name}


@pytest.mark.parametrize(
    ("kind", "every"), [*EVERY, pytest.param("theorem", 3, marks=pytest.mark.exhaustive)]
)
@pytest.mark.slow
@pytest.mark.sampled(4, each=False)
def test_every_slip_of_every_name_brings_a_suggestion_and_mostly_that_name(kind, every):
    names = KNOWN[kind]
    wrong = [(slip, name) for name in names[::every] if len(name) > 3 for slip in slips(name) - set(names)]
    found = [nearest(slip, names, 3) for slip, _ in wrong]
    assert kind == "mode" or all(found)
    assert sum(name in near for (_, name), near in zip(wrong, found, strict=True)) > 0.9 * len(wrong)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("fast2sum", "fast_two_sum"), ("2sum", "two_sum"), ("twoSumm", "two_sum"), ("dot_two", "dot2")),
        *(("2ProdFMA", "two_prod_fma"), ("DWTimesDW2", "dw_times_dw2"), ("dw_add_fp", "dw_plus_fp")),
    ],
)
def test_numbers_and_words_are_the_same(written, meant):
    with pytest.raises(ValueError, match=f"unknown theorem '{written}' \\(did you mean '{meant}'"):
        mcf.verify(written)


def test_the_text():
    assert hint("q", ["two_sum"]) == hint("", ["two_sum"]) == ""
    assert hint("tow_sum", ["two_sum", "xyz"]) == " (did you mean 'two_sum'?)"
    assert hint("sum", ["two_sum", "dw_sum"], most=2) == " (did you mean 'two_sum' or 'dw_sum'?)"
    assert hint("nearest_evn", Mode) == " (did you mean 'nearest_even'?)"


def test_names_of_formats_and_of_scaled_formats_are_told_apart():
    of_both = {*mcf.FORMATS, *(name for name in mcf.SCALED if name.startswith(("int", "tern")))}
    assert [mcf.get_format(name).name for name in of_both] == [*of_both]
    told = "a scaled format, .*: use mcfsim.quanti"
    for name in set(mcf.SCALED) - of_both:
        wrong = dict.fromkeys((name, name.upper(), f" {name} "), f"is {told}")
        wrong[name[:3] + "x" + name[3:]] = f"did you mean '{name}', {told}"
        for given, text in wrong.items():
            with pytest.raises(ValueError, match=text):
                mcf.get_format(given)
    with pytest.raises(ValueError, match="unknown scaled format 'bf16': it is a format of single numbers"):
        mcf.get_scaled_format("bf16")
