"""The pages keep their word: tables are those of the results, links lead somewhere, examples run."""

import ast
import math
import re

import numpy as np
import pytest

import mcfsim as mcf
from experiments import own_rates
from experiments.common import ROOT, read_result
from experiments.tables import PAGES, fill
from tests.shared.pages import examples, page

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()


def fitting(page):
    """Return a page as a case; to fit the tables of one, by the law for precision, takes its time."""
    return pytest.param(page, id=page.name, marks=pytest.mark.exhaustive if page.stem == "strategies" else ())


@pytest.mark.parametrize("page", [fitting(page) for page in PAGES])
def test_tables_are_made_from_the_results(page):
    assert fill(page.read_text()) == page.read_text()


def test_links_and_figures_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)|`(docs/[\w/]+\.md)`", README)
    assert len(targets) > 5
    assert [target for target in targets if not (ROOT / "".join(target)).exists()] == []


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
    name: [code for code in examples(name) if "mcfsim.torch" not in code]
    for name in ("README", "optimizers", "own_optimizer", "emulator", "dqt")
}
#: What is said of an example besides.
SAID = {("own_optimizer", 0): three_components, ("optimizers", 0): rates}


def training(case):
    """Return an example as a case; one trains for seconds."""
    return pytest.param(*case, marks=pytest.mark.exhaustive if case == ("own_optimizer", 0) else ())


CASES = [(page, number) for page, shown in EXAMPLES.items() for number in range(len(shown))]


@pytest.mark.parametrize(("page", "number"), [training(case) for case in CASES])
@pytest.mark.sampled(5, each=False)
def test_an_example_runs_and_does_not_diverge(page, number):
    """And what comments of the README begin with is printed."""
    code, names = EXAMPLES[page][number], {}
    for statement, said in statements(code):
        text = ast.unparse(statement)
        if said is None or page != "README":
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
    said = [comment for code in EXAMPLES["README"] for _, comment in statements(code)]
    assert len(said) - said.count(None) >= 2


def test_numbers_in_the_text():
    assert f"{own_rates.MODEL.parameters:,}".replace(",", " ") in README
    ar = mcf.arithmetic("bfloat16")
    assert (
        f"{100 * (1 - ar.round(1 - 0.9) / (1 - ar.round(0.9))):.2f} % short" in page("findings").read_text()
    )
    rows = {line.split()[0]: line.split() for line in read_result("real_audit")["printed"] if line}
    heads = ["strategy", "bytes", "GiB", "lost", "EDQ"]
    plain = dict(zip(heads, rows["plain"], strict=False))
    lost, arrives = (f"{100 * float(plain[name]):.0f} %" for name in ("lost", "EDQ"))
    assert f"{lost} of the updates are lost, and {arrives} of what" in README
    assert [rows[name][1] for name in ("collage-plus", "fp32-master")] == ["12", "16"]
