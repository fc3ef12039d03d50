"""Problems whose linear layers follow a recipe: which layers, by which products and random words."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mcfsim import AdamW, Schedule, get_problem, round_to, simulate
from mcfsim.random import RandomWords
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe, linear
from mcfsim.training.problems import Calculation, Digits, LanguageModel, Llama
from mcfsim.training.problems._rounded_transformer import RecipeMultiplier
from mcfsim.training.problems.base import DataStream, generator
from tests.problems.test_problems import TEXT

DRAWN = OperandRecipe("mxfp4", "stochastic")
#: One of one's own, whose forward product draws random words, too.
OWN = Recipe("own", **dict.fromkeys(("forward", "dgrad", "wgrad"), ProductRecipe(DRAWN, DRAWN, output=None)))


def model(kind=LanguageModel, calculation="nvfp4", layers=2, **more):
    shape = {"layers": layers, "width": 32, "heads": 2, "context": 9, "batch": 2, **more}
    return kind(TEXT, calculation=calculation, **shape)


def recorded(problem, monkeypatch, step=3, seed=4, dtype=np.float32):
    """Return what multiplied in a step: operands, results and gradients of each layer by its name."""
    found, call = {}, RecipeMultiplier.__call__

    def watched(self, x, weight, name):
        # In their layout, by which BLAS chooses a kernel.
        taken = x.copy("K"), weight.copy("K")
        y, back = call(self, x, weight, name)
        kept = y.copy()  # which the model may overwrite

        def backward(dy):
            given = dy.copy("K")
            gradients = back(dy)
            found[name] = (*taken, kept, given, *(x.copy() for x in gradients))
            return gradients

        return y, backward

    with monkeypatch.context() as patched:
        patched.setattr(RecipeMultiplier, "__call__", watched)
        start = problem.initial_parameters(0)
        problem.loss_and_gradient({name: x.astype(dtype) for name, x in start.items()}, step, seed)
    return found


def words_of(problem, name, step=3, seed=4):
    key = int(generator(seed, DataStream.CALCULATION).integers(2**64, dtype=np.uint64))
    return RandomWords(key, step, list(problem.shapes).index(name))


@pytest.mark.parametrize("kind", [LanguageModel, Llama])
@pytest.mark.parametrize("recipe", [*RECIPES.values(), OWN], ids=str)
@pytest.mark.sampled(3, each=False)
def test_layers_have_the_bits_of_the_recipe(kind, recipe, monkeypatch):
    problem = model(kind, recipe)
    found = recorded(problem, monkeypatch)
    branches = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    inside = {f"layer{layer}.{name}" for layer in (0, 1) for name in branches}
    assert found.keys() == inside | {"embedding" if kind is LanguageModel else "head"}
    for name, (x, weight, y, dy, dx, dweight) in found.items():
        if name in inside:
            right, back = linear(recipe, x, weight.T, words_of(problem, name))
            first, second = back(dy)
        else:
            right, first, second = x @ weight, dy @ weight.T, (x.T @ dy).T
        for ours, judged in ((y, right), (dx, first), (dweight.T, second)):
            np.testing.assert_array_equal(ours, judged, err_msg=name)
    assert any((item[2] != item[0] @ item[1]).any() for item in found.values())


@pytest.mark.slow
def test_random_words_are_those_of_seed_step_and_layer_alone(monkeypatch):
    monkeypatch.setattr("mcfsim.training.problems.language_model.VALIDATION_BATCHES", 2)
    problem = model(calculation=OWN)
    names = [name for name in problem.shapes if name.endswith(("qkv", "out", "up", "down"))]
    places = [(name, step, seed) for name in names for step in (1, 2) for seed in (0, 1)]
    streams = [words_of(problem, *place) for place in places]
    assert len({(x.seed, x.step, x.stream) for x in streams}) == len(places)
    assert not {x.seed for x in streams} & {0, 1}  # the optimizer's keys
    start = problem.initial_parameters(0)
    assert problem.validation_loss(start) == problem.validation_loss(start)
    losses = {problem.loss_and_gradient(start, 1, 0)[0] for _ in range(2)}
    assert len(losses) == 1
    batch = problem.training_batch(1, 0)
    monkeypatch.setattr(LanguageModel, "training_batch", lambda self, step, seed: batch)
    losses |= {problem.loss_and_gradient(start, *place)[0] for place in ((2, 0), (1, 1))}
    assert len(losses) == 3


@pytest.mark.slow
def test_shares_of_blocks_and_patterns_of_names_stay_in_high_precision(monkeypatch):
    quarter = replace(RECIPES["nvfp4"], high=("layer1.mlp.*",))
    found = recorded(model(calculation=quarter, layers=4), monkeypatch)
    plain = {name for name, (x, weight, y, *_) in found.items() if np.array_equal(y, x @ weight)}
    last = {f"layer3.{name}" for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}
    assert plain == {"embedding", "layer1.mlp.up", "layer1.mlp.down", *last}


@pytest.mark.parametrize("kind", [LanguageModel, Llama])
def test_all_layers_in_high_precision_have_the_bits_of_no_calculation(kind):
    recipe = replace(RECIPES["nvfp4"], high=("*",))
    given, plain = model(kind, recipe), model(kind, None)
    assert "calculation" not in plain.settings()
    start = given.initial_parameters(1)
    loss, gradient = given.loss_and_gradient(start, 1, 2)
    right, judged = plain.loss_and_gradient(start, 1, 2)
    assert (loss, given.validation_loss(start)) == (right, plain.validation_loss(start))
    for name, x in gradient.items():
        np.testing.assert_array_equal(x, judged[name])


@pytest.mark.slow
def test_a_recipe_within_a_format_takes_and_gives_its_values(monkeypatch):
    problem = model(calculation="quartet2,bfloat16,float32,blas", width=8, layers=1)
    found = recorded(problem, monkeypatch)
    for name, item in found.items():
        for operand in (item[0], item[1], item[3]):
            np.testing.assert_array_equal(operand, round_to(operand, "bfloat16"), err_msg=name)
    gradient = problem.loss_and_gradient(problem.initial_parameters(0), 3, 4)[1]
    for name, x in gradient.items():
        np.testing.assert_array_equal(x, round_to(x, "bfloat16"), err_msg=name)
    assert (found["layer0.mlp.up"][5] != gradient["layer0.mlp.up"]).any()  # rounded after the recipe


def test_parameters_in_float64_keep_their_dtype(monkeypatch):
    found = recorded(model(calculation="mxfp8"), monkeypatch, dtype=np.float64)
    assert {x.dtype for item in found.values() for x in item} == {np.dtype(np.float64)}
    x, weight, y, *_ = found["layer0.mlp.up"]
    np.testing.assert_array_equal(y, linear("mxfp8", x.astype(np.float32), weight.T.astype(np.float32))[0])


@pytest.mark.parametrize("text", ["fp4-all", "fp4-all,bfloat16,float32,blas"])
@pytest.mark.slow
def test_the_hidden_layer_of_digits_follows_a_recipe(text, monkeypatch):
    problem = Digits(hidden=5, batch=16, calculation=text)
    found = recorded(problem, monkeypatch)
    (x, weight, y, dy, _, dweight), start = found.pop("hidden.weight"), problem.initial_parameters(0)
    assert not found  # the output layer is no layer of the recipe
    right, back = linear("fp4-all", x, weight.T, words_of(problem, "hidden.weight"))
    np.testing.assert_array_equal(y, right)
    np.testing.assert_array_equal(dweight, back(dy)[1].T)
    gradient = problem.loss_and_gradient(start, 3, 4)[1]
    divided = dweight / 16 if "," not in text else round_to(dweight, "bfloat16")
    np.testing.assert_array_equal(gradient["hidden.weight"], divided)
    plain = Digits(hidden=5, batch=16, calculation=replace(RECIPES["fp4-all"], high=("*",)))
    loss, _ = plain.loss_and_gradient(start, 3, 4)
    assert loss == pytest.approx(Digits(hidden=5, batch=16).loss_and_gradient(start, 3, 4)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("given", "data"),
    [
        ("nvfp4", "nvfp4"),
        ("bf16", "bf16"),
        (RECIPES["quartet"], "quartet"),
        ({"recipe": "mxfp8"}, "mxfp8"),
        (Calculation("float16", products="blas", recipe="nvfp4"), "nvfp4"),
        ("nvfp4,float16,float32,blas", "nvfp4"),
        (OWN, None),
        (replace(RECIPES["nvfp4"], high=("*.qkv",)), None),
    ],
    ids=str,
)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_settings_make_the_same_recipe(given, data):
    problem = model(calculation=given)
    settings = json.loads(json.dumps(problem.settings()))
    again = get_problem(settings, corpus=TEXT)
    assert again.calculation == problem.calculation == Calculation.of(settings["calculation"])
    named = settings["calculation"]["recipe"]
    assert named == data if data else isinstance(named, dict)
    assert again.settings() == problem.settings()
    start = problem.initial_parameters(0)
    assert problem.loss_and_gradient(start, 1, 0)[0] == again.loss_and_gradient(start, 1, 0)[0]
    assert Calculation.of("bfloat16").settings().keys() == {"format", "reductions", "products"}


class Stop(Exception):
    """What ends a run."""


@pytest.mark.parametrize("calculation", ["nvfp4", OWN], ids=str)
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(calculation, tmp_path, monkeypatch):
    path, whole = tmp_path / "checkpoint.npz", LanguageModel.loss_and_gradient
    monkeypatch.setattr("mcfsim.training.problems.language_model.VALIDATION_BATCHES", 1)

    def run(**kept):
        problem = model(calculation=calculation, layers=1)
        made = simulate(problem, AdamW(), "stochastic", 5, Schedule(1e-2), 7, progress=False, **kept)
        return repr([made.results, {name: x.tolist() for name, x in made.series["stochastic"].items()}])

    def stopping(self, parameters, step, seed):
        if step == 4:
            raise Stop
        return whole(self, parameters, step, seed)

    right = run()
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModel, "loss_and_gradient", stopping)
        with pytest.raises(Stop):
            run(checkpoint=path, checkpoint_every=2)
    assert run(checkpoint=path, checkpoint_every=2) == right
