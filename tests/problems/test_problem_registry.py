import json

import numpy as np
import pytest

from mcfsim.problems import (
    Corpus,
    Digits,
    LanguageModel,
    LogisticRegression,
    Problem,
    Quadratic,
    Rosenbrock,
    get_problem,
)
from mcfsim.problems.registry import PROBLEMS

TEXT = Corpus.from_bytes(bytes(range(250)) * 8, "counting")
EXAMPLES = [
    Quadratic(5, 1e3, seed=4),
    Rosenbrock(3),
    LogisticRegression(l2=0.3),
    Digits(hidden=4, batch=8, format="posit8", loss_format="posit16", sums="each"),
    LanguageModel(layers=1, width=6, heads=3, context=4, batch=2),
]


@pytest.mark.parametrize("problem", EXAMPLES, ids=lambda problem: problem.name)
def test_settings_make_an_equal_problem(problem):
    assert isinstance(problem, Problem)
    settings = json.loads(json.dumps(problem.settings()))
    again = get_problem(settings)
    assert type(again) is type(problem)
    assert again.settings() == problem.settings() == settings
    parameters = problem.initial_parameters(seed=1)
    assert problem.decayed <= parameters.keys()
    assert again.initial_parameters(seed=1).keys() == parameters.keys()
    loss, gradient = problem.loss_and_gradient(parameters, step=2, seed=1)
    loss_again, gradient_again = again.loss_and_gradient(again.initial_parameters(seed=1), step=2, seed=1)
    assert type(loss) is float
    assert loss_again == loss
    for name in parameters:
        np.testing.assert_array_equal(gradient_again[name], gradient[name])
    assert again.validation_loss(parameters) == problem.validation_loss(parameters)


def test_examples_are_all_problems():
    assert {problem.name for problem in EXAMPLES} == set(PROBLEMS)


def test_name_and_arguments():
    assert get_problem("quadratic", dimension=3, condition_number=7).settings() == {
        "kind": "quadratic",
        "dimension": 3,
        "condition_number": 7.0,
        "seed": 0,
    }
    assert get_problem({"kind": "rosenbrock", "dimension": 3}, dimension=4).settings()["dimension"] == 4
    assert get_problem("language-model", corpus=TEXT, context=8).settings()["corpus"] == TEXT.settings()


@pytest.mark.parametrize("unknown", ["cubic", {"kind": "cubic"}, {}])
def test_unknown_names_list_the_known_ones(unknown):
    with pytest.raises(
        ValueError, match="known problems: quadratic, rosenbrock, logistic, digits, language-model"
    ):
        get_problem(unknown)


def test_another_text_than_the_recorded_one_is_refused():
    settings = LanguageModel(context=4).settings()
    with pytest.raises(ValueError, match="the text differs"):
        get_problem(settings, corpus=TEXT)
    settings["corpus"] = settings["corpus"] | {"digest": "0" * 64}
    with pytest.raises(ValueError, match="the text differs: the settings name a corpus with digest 0000"):
        get_problem(settings)


def test_a_text_of_ones_own_has_to_be_passed():
    settings = LanguageModel(TEXT, context=8).settings()
    with pytest.raises(ValueError, match="pass it as corpus="):
        get_problem(settings)
    assert get_problem(settings, corpus=TEXT).settings() == settings
