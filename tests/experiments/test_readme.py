"""The README keeps its word: tables are those of the results, examples run, and the claims hold in them."""

import ast
import math
import re

import numpy as np
import pytest

import mcfsim as mcf
from experiments import best_rates, paired
from experiments.common import ROOT, read_result
from experiments.tables import PAGES, fill
from mcfsim.problems import LanguageModel

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_made_from_the_results(page):
    assert fill(page.read_text()) == page.read_text()


def test_unknown_table_is_refused():
    with pytest.raises(ValueError, match="known tables: formats"):
        fill("<!-- table: nosuch -->\n<!-- end of table -->")


def test_links_and_figures_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)|`(docs/\w+\.md)`", README)
    assert targets
    for target in targets:
        assert (ROOT / "".join(target)).exists(), target


@pytest.mark.parametrize("page", ["README.md", "docs/optimizers.md", "docs/emulator.md", "docs/dqt.md"])
def test_examples_run_and_none_diverges(page):
    examples = [code for code in EXAMPLE.findall((ROOT / page).read_text()) if "mcfsim.torch" not in code]
    assert examples  # those of torch need the extra, and a model
    runs = []
    for code in examples:
        names: dict[str, object] = {}
        exec(compile(code, page, "exec"), names)
        runs += [thing for thing in names.values() if isinstance(thing, mcf.Run)]
    assert len(runs) >= code_of(page).count("mcf.simulate(")
    for run in runs:
        assert run.results
        for name, results in run.results.items():
            assert "diverged_at" not in results, (page, name)
            assert math.isfinite(results["validation_loss"])
            assert np.isfinite(run.series[name]["loss"]).all()


def code_of(page):
    """Return all examples of a page, as one text."""
    return "".join(EXAMPLE.findall((ROOT / page).read_text()))


def test_what_the_guide_says_of_rates_and_of_three_components():
    names: dict[str, object] = {}
    first, second, *_ = (code for code in EXAMPLE.findall((ROOT / "docs/optimizers.md").read_text()))
    exec(compile(first, "first", "exec"), names)
    losses = {name: results["validation_loss"] for name, results in names["run"].results.items()}
    assert round(losses["three components"], 3) == 0.058
    assert (round(losses["plain"], 1), round(losses["exact"], 3)) == (1.3, 0.060)
    exec(compile(second, "second", "exec"), names)
    rates = [names["schedule"].rate(step, 100) for step in (1, 20, 60, 100)]
    assert rates == pytest.approx([0.0005, 0.01, 0.0055, 0.001], rel=1e-12)


def test_a_comment_behind_an_expression_begins_with_what_it_prints():
    seen = 0
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        if "mcfsim.torch" in code:
            continue
        names = {}
        for statement in ast.parse(code).body:
            last = code.splitlines()[statement.end_lineno - 1]
            if isinstance(statement, ast.Expr) and "  # " in last:
                printed = repr(eval(ast.unparse(statement), names))
                assert re.match(re.escape(printed) + r"(?!\w|\.\d)", last.split("  # ")[1]), (
                    f"{last}: {printed}"
                )
                seen += 1
            else:
                exec(ast.unparse(statement), names)
    assert seen >= 5


OPTIONS = read_result("collage_options")
TABLE = OPTIONS["table"]


@pytest.mark.parametrize("beta2", ["0.999", "0.95"])
class TestWhatTheOptionsShow:
    """The sentences of the README about the committed result."""

    def test_plain_is_worse_by_more_than_ten_times_the_spread(self, beta2):
        plain = TABLE[beta2]["plain"]
        assert plain["difference"] > 10 * plain["spread"]

    def test_plus_is_as_good_as_master_weights(self, beta2):
        assert abs(TABLE[beta2]["collage-plus"]["difference"]) < 0.003

    def test_lost_arithmetic(self, beta2):
        assert TABLE[beta2]["plain"]["late_lost"] > 0.5
        for name in ("collage-light", "collage-plus"):
            assert TABLE[beta2][name]["late_lost"] < 0.02

    def test_descent_quality(self, beta2):
        assert TABLE[beta2]["plain"]["normalized_edq"] < 0.8
        for name in ("collage-light", "collage-plus"):
            for when in ("", "late_"):
                assert abs(TABLE[beta2][name][f"{when}normalized_edq"] - 1) < 0.002

    def test_second_moment_of_plus(self, beta2):
        assert abs(TABLE[beta2]["collage-plus"]["late_v_ratio"] - 1) < 0.01


def test_light_lies_between_plain_and_plus_as_its_second_moment_cannot_decay():
    rows = TABLE["0.999"]
    losses = [rows[name]["validation_loss"] for name in ("collage-plus", "collage-light", "plain")]
    assert losses == sorted(losses)
    assert rows["collage-light"]["difference"] > rows["collage-light"]["spread"]
    assert rows["collage-light"]["late_v_ratio"] > 1.05


def test_binary64_serves_as_the_reference():
    assert OPTIONS["binary64_gap"] < 1e-13


def test_a_plain_second_moment_stalls_and_an_expansion_does_not():
    ends = read_result("beta2_expansion")["v_over_g_squared_at_the_end"]
    low, _, high = ends["constant"]["bf16"]
    assert (round(low, 3), round(high, 3)) == (0.258, 0.512)
    for kind, by_curve in ends.items():
        median, exact = by_curve["bf16, 2 components"][1], by_curve["exact"][1]
        assert abs(median / exact - 1) < 0.01, kind
        assert abs(by_curve["bf16"][1] / exact - 1) > 0.5, kind


@pytest.mark.parametrize("beta2", ["0.999", "0.95"])
def test_the_length_of_a_first_moment_follows_one_ulp_of_beta1_and_the_loss_does_not(beta2):
    """What is changed is that ulp alone; so the length of m is not why Collage-plus ends below."""
    found = read_result("first_moment")["m_ratio_and_difference"]
    above, below = (np.array(found[label][beta2]).T for label in ("double(.9)", "the next double below"))
    assert round(100 * (above[0].mean() - 1), 2) in (0.06, 0.07)
    assert round(100 * (1 - below[0].mean()), 2) in (0.03, 0.04)
    assert paired.apart(above[0] - below[0])
    assert paired.apart(above[1])
    assert round(above[1].mean(), 4) in (-0.0003, -0.0004)
    assert not paired.apart(above[1] - below[1])


def test_the_gaps_of_the_first_table_are_those_of_a_rate_far_below_the_best():
    found = best_rates.differences()
    rate, same, own = found["plain"]
    assert (best_rates.RATES[0], rate, found["fp32-master"][0]) == (3e-4, 3e-3, 3e-3)
    assert same.mean() == pytest.approx(TABLE["0.999"]["plain"]["difference"], abs=1e-5)
    assert paired.apart(own)
    assert f"`plain` ends {own.mean():.3f} above".replace("0.", ".") in README
    assert not paired.apart(found["collage-plus"][2])


def test_numbers_in_the_text():
    size = sum(tensor.size for tensor in LanguageModel().initial_parameters(0).values())
    assert f"{size:,}".replace(",", " ") in README
    ar = mcf.arithmetic("bfloat16")
    short = 1 - ar.round(1 - 0.9) / (1 - ar.round(0.9))
    assert f"{100 * short:.2f} % short" in README
