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


def statements(code):
    """Yield the statements of an example, each with the comment behind it if it is an expression."""
    for statement in ast.parse(code).body:
        _, mark, said = code.splitlines()[statement.end_lineno - 1].partition("  # ")
        yield statement, said if mark and isinstance(statement, ast.Expr) else None


def three_components(names):
    losses = {name: results["validation_loss"] for name, results in names["run"].results.items()}
    assert round(losses["three components"], 3) == 0.058
    assert (round(losses["plain"], 1), round(losses["exact"], 3)) == (1.3, 0.060)


def rates(names):
    found = [names["schedule"].rate(step, 100) for step in (1, 20, 60, 100)]
    assert found == pytest.approx([0.0005, 0.01, 0.0055, 0.001], rel=1e-12)


#: Of each page the examples, without those that need the extra torch, and a model.
EXAMPLES = {
    page: [code for code in EXAMPLE.findall((ROOT / page).read_text()) if "mcfsim.torch" not in code]
    for page in ("README.md", "docs/optimizers.md", "docs/emulator.md", "docs/dqt.md")
}
#: What is said of an example besides.
SAID = {("docs/optimizers.md", 0): three_components, ("docs/optimizers.md", 1): rates}


CASES = [(page, number) for page, examples in EXAMPLES.items() for number in range(len(examples))]
LONG = pytest.param(*CASES.pop(CASES.index(("docs/optimizers.md", 0))), marks=pytest.mark.costly("it trains"))


@pytest.mark.parametrize(("page", "number"), [*CASES, LONG])
@pytest.mark.sampled(5, each=False)
def test_an_example_runs_and_does_not_diverge(page, number):
    """And what comments of the README begin with is printed."""
    code, names = EXAMPLES[page][number], {}
    for statement, said in statements(code):
        text = ast.unparse(statement)
        if said is None or page != "README.md":
            exec(compile(text, page, "exec"), names)
        else:
            printed = repr(eval(text, names))
            assert re.match(re.escape(printed) + r"(?!\w|\.\d)", said), f"{text}: {printed}"
    runs = [thing for thing in names.values() if isinstance(thing, mcf.Run)]
    assert len(runs) >= code.count("mcf.simulate(")
    for run in runs:
        assert run.results
        for name, results in run.results.items():
            assert "diverged_at" not in results, name
            assert math.isfinite(results["validation_loss"])
            assert np.isfinite(run.series[name]["loss"]).all()
    SAID.get((page, number), lambda names: None)(names)


def test_there_are_examples_with_what_they_print():
    assert all(EXAMPLES.values())
    comments = [said for code in EXAMPLES["README.md"] for _, said in statements(code) if said is not None]
    assert len(comments) >= 5


OPTIONS = read_result("collage_options")
TABLE = OPTIONS["table"]


@pytest.mark.parametrize("beta2", ["0.999", "0.95"])
def test_what_the_options_show(beta2):
    """The sentences of the README about the committed result."""
    rows = TABLE[beta2]
    plain, light, plus = (rows[name] for name in ("plain", "collage-light", "collage-plus"))
    assert plain["difference"] > 10 * plain["spread"]
    assert abs(plus["difference"]) < 0.003
    assert plain["late_lost"] > 0.5
    assert plain["normalized_edq"] < 0.8
    for row in (light, plus):
        assert row["late_lost"] < 0.02
        for when in ("", "late_"):
            assert abs(row[f"{when}normalized_edq"] - 1) < 0.002
    assert abs(plus["late_v_ratio"] - 1) < 0.01


def test_light_lies_between_plain_and_plus_as_its_second_moment_cannot_decay():
    rows = TABLE["0.999"]
    losses = [rows[name]["validation_loss"] for name in ("collage-plus", "collage-light", "plain")]
    assert losses == sorted(losses)
    assert rows["collage-light"]["difference"] > rows["collage-light"]["spread"]
    assert rows["collage-light"]["late_v_ratio"] > 1.05
    assert OPTIONS["binary64_gap"] < 1e-13  # which serves as the reference


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
