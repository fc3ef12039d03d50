"""What every registered problem is asked: its gradient, its settings, its refusals, and how it diverges."""

import json

import numpy as np
import pytest

from mcfsim import get_problem
from mcfsim.formats import Format, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.training.problems import (
    PROBLEMS,
    Corpus,
    Digits,
    LanguageModel,
    Llama,
    LogisticRegression,
    Problem,
    Quadratic,
    Rosenbrock,
)

TEXT = Corpus.from_bytes(np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes(), "random")
EXACT = [Quadratic(6, 1e4, seed=4), Rosenbrock(5), LogisticRegression(l2=0.01), Digits(hidden=5, batch=7)]
EXACT += [kind(TEXT, layers=2, width=8, heads=2, context=5, batch=3) for kind in (Llama, LanguageModel)]
#: Those whose gradient is not that of their rounded loss, too, and one of the standard library's text.
EXAMPLES = [
    *EXACT,
    Digits(hidden=4, batch=8, format="posit8", loss_format="posit16", sums="each"),
    Digits(hidden=3, batch=2, format="float8_e4m3fn"),
    Digits(hidden=3, batch=2, calculation="float8_e4m3fn,bfloat16,float32,4"),
    Digits(hidden=3, batch=2, calculation="nvfp4"),
    LanguageModel(layers=1, width=6, heads=3, context=4, batch=2),
    Llama(TEXT, layers=1, width=4, heads=2, context=3, batch=2, calculation="bfloat16,bfloat16,float32,16"),
    LanguageModel(TEXT, layers=1, width=4, heads=2, context=3, batch=2, calculation="bfloat16"),
    LanguageModel(TEXT, layers=1, width=4, heads=2, context=3, batch=2, calculation="quartet"),
    Llama(TEXT, layers=1, width=4, heads=2, context=3, batch=2, calculation="mxfp8,bfloat16,float32,blas"),
    Llama(TEXT, layers=1, width=8, heads=2, context=5, batch=3, activation_bits=8),
    LanguageModel(TEXT, layers=2, width=8, heads=2, context=5, batch=3, activation_bits=8),
]


def label(problem):
    return f"{problem.name}-{getattr(problem, 'layers', '')}-{getattr(problem, 'format', '')}"


def generic(problem, seed=1):
    """Return float64 parameters far from any special point, gains included."""
    random = np.random.default_rng(seed)
    start = problem.initial_parameters(0).items()
    return {name: random.normal(1 if name.endswith("gain") else 0, 0.4, x.shape) for name, x in start}


def assert_derivative(loss, parameters, gradient, h, room, count=1):
    """Compare a gradient with differences of the loss along random directions, tensor by tensor."""
    random = np.random.default_rng(2)
    for name, g in gradient.items():
        for direction in random.standard_normal((count, *g.shape)):
            low, high = (loss(parameters | {name: parameters[name] + t * direction}) for t in (-h, h))
            bound = room * np.linalg.norm(g) * np.linalg.norm(direction)
            assert abs((high - low) / (2 * h) - np.vdot(g, direction)) < bound, name


def test_examples_are_of_all_problems():
    assert {problem.name for problem in EXACT} == {problem.name for problem in EXAMPLES} == set(PROBLEMS)


@pytest.mark.parametrize("problem", EXACT, ids=label)
def test_gradients_of_every_tensor_against_finite_differences(problem):
    parameters = generic(problem)
    _, gradient = problem.loss_and_gradient(parameters, 3, 4)
    assert_derivative(lambda x: problem.loss_and_gradient(x, 3, 4)[0], parameters, gradient, 1e-5, 1e-8, 5)


@pytest.mark.parametrize("problem", EXAMPLES, ids=label)
@pytest.mark.sampled(13, each=False)
def test_settings_make_an_equal_problem_that_leaves_its_parameters_alone(problem):
    assert isinstance(problem, Problem)
    settings = json.loads(json.dumps(problem.settings()))
    own = {"corpus": TEXT} if getattr(problem, "corpus", None) == TEXT else {}
    again = get_problem(settings, **own)
    assert type(again) is type(problem)
    assert again.settings() == problem.settings() == settings
    start, there = problem.initial_parameters(seed=1), again.initial_parameters(seed=1)
    assert problem.decayed <= start.keys()
    loss, gradient = problem.loss_and_gradient(start, step=2, seed=1)
    held_out = problem.validation_loss(start)
    assert type(loss) is float
    assert list(gradient) == list(start) == list(there)
    for name, x in start.items():
        np.testing.assert_array_equal(x, there[name])  # and nothing was written to it
        assert (gradient[name].dtype, gradient[name].flags.c_contiguous) == (x.dtype, True)
        assert not any(np.shares_memory(g, x) for g in gradient.values())
    found, other = again.loss_and_gradient(there, step=2, seed=1)
    assert (found, again.validation_loss(there)) == (loss, held_out)
    for name, g in gradient.items():
        np.testing.assert_array_equal(other[name], g)


@pytest.mark.parametrize("problem", EXAMPLES, ids=label)
@pytest.mark.sampled(4, each=False)
def test_a_diverged_run_gives_no_warning(problem):
    start = problem.initial_parameters(seed=0)
    for number in (np.nan, np.inf, -1e200 if problem in EXACT[:3] else 1e30):
        bad = {name: np.full_like(x, number) for name, x in start.items()}
        loss, gradient = problem.loss_and_gradient(bad, 0, 0)
        # Where terms overflow to either side, the order of the sum decides between infinity and NaN.
        assert np.isfinite(number) or not np.isfinite(loss)
        assert np.isfinite(number) or any(np.isnan(g).any() for g in gradient.values())
        assert problem not in EXACT[:3] or np.isnan(loss) or loss > 1e100
        assert {g.dtype for g in gradient.values()} == {x.dtype for x in start.values()}


@pytest.mark.parametrize("problem", EXAMPLES, ids=label)
def test_wrong_parameters_are_refused(problem):
    good = problem.initial_parameters(seed=0)
    name, first = next(iter(good.items()))
    two = "float32 or all float64" if first.dtype == np.float32 else "float64 or all object"
    other = np.float64 if first.dtype == np.float32 else np.float32
    for change, error, text in (
        ({name: None}, ValueError, "expected the tensors"),
        ({"more": first}, ValueError, "expected the tensors"),
        ({name: np.zeros(99, first.dtype)}, ValueError, rf"'{name}' must have shape .*, not \(99,\)"),
        ({key: x.astype(np.float16) for key, x in good.items()}, TypeError, f"all {two}, not float16"),
        ({name: first.astype(other)}, TypeError, rf"all {two}, not float32(, float64)?$"),
    ):
        given = {key: x for key, x in (good | change).items() if x is not None}
        for call in (problem.validation_loss, lambda x: problem.loss_and_gradient(x, 0, 0)):
            with pytest.raises(error, match=text):
                call(given)


CODED = Format(precision=7, emin=-9, emax=9)
BEYOND = 0.99, 2e12, np.inf, np.nan
INTS = [(Quadratic, "dimension", 2), (Quadratic, "seed", 0), (Rosenbrock, "dimension", 2)]
INTS += [(Digits, name, 1) for name in ("hidden", "batch")]
INTS += [(LanguageModel, name, 1) for name in ("layers", "width", "heads", "context", "batch")]


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "text"),
    [
        *((kind, {x: low - 1}, ValueError, f"{x} = .* must be at least {low}") for kind, x, low in INTS),
        *((Quadratic, {"condition_number": x}, ValueError, "must lie between 1 and 1e12") for x in BEYOND),
        *((LogisticRegression, {"l2": bad}, ValueError, "finite and not neg") for bad in (-1e-9, np.nan)),
        (Digits, {"hidden": 10**12}, MemoryError, "hidden = 10"),
        *((Digits, {"batch": x}, ValueError, f"batch = {x} must be at most 1438") for x in (1439, 10**12)),
        (Digits, {"sums": "twice"}, ValueError, "unknown sums 'twice'; allowed: once, each"),
        (Digits, {"format": "posit7x"}, ValueError, "unknown format 'posit7x'"),
        (Digits, {"loss_format": "posit16"}, ValueError, "loss_format = posit16 needs a format"),
        (Digits, {"format": "posit32"}, UnsupportedFormatError, "posit32 has numbers that float32"),
        (Digits, {"format": "posit8", "loss_format": CODED}, ValueError, "is not the format of that name"),
        (LanguageModel, {"heads": 3}, ValueError, "heads = 3 must divide width = 64"),
        (Llama, {"width": 6, "heads": 2}, ValueError, "width / heads = 3 must be even"),
        (LanguageModel, {"context": 400}, ValueError, "context = 400 needs longer texts than one of 400"),
        *((LanguageModel, {"activation_bits": bad}, ValueError, "activation_bits") for bad in (1, 17)),
        *((LanguageModel, {"activation_bits": bad}, TypeError, "activation_bits") for bad in (True, 8.0)),
        *((get_problem, {"name_or_settings": x}, ValueError, ", ".join(PROBLEMS)) for x in ("cubic", {})),
        (get_problem, {"name_or_settings": 3}, TypeError, "made from its name or its settings, not from 3"),
    ],
)
def test_what_makes_no_sense_is_refused(kind, arguments, error, text):
    own = {LanguageModel: {"corpus": TEXT}, Quadratic: {"dimension": 3, "condition_number": 1.0}}
    with pytest.raises(error, match=text):
        kind(**{**own.get(kind, {}), **arguments})


# -- names and settings --------------------------------------------------------------------------------------
def test_a_name_with_arguments_and_settings_with_others():
    quadratic = {"kind": "quadratic", "dimension": 3, "condition_number": 7.0, "seed": 0}
    assert get_problem("quadratic", dimension=3, condition_number=7).settings() == quadratic
    assert get_problem({"kind": "rosenbrock", "dimension": 3}, dimension=4).settings()["dimension"] == 4
    settings = Digits(3, 2, Posit(8), "bf16", "each").settings()
    assert (settings["format"], settings["loss_format"], settings["sums"]) == ("posit8", "bfloat16", "each")
    again = get_problem(settings, hidden=4)
    assert again.loss.format == get_format("bfloat16")
    assert again.settings() == {**settings, "hidden": 4}
    assert "activation_bits" not in EXACT[4].settings()


def test_a_text_is_the_one_that_settings_name():
    settings = LanguageModel(context=4).settings()
    with pytest.raises(ValueError, match="the text differs"):
        get_problem(settings, corpus=TEXT)
    settings["corpus"] = settings["corpus"] | {"digest": "0" * 64}
    with pytest.raises(ValueError, match="the text differs: the settings name a corpus with digest 0000"):
        get_problem(settings)
    with pytest.raises(ValueError, match="pass it as corpus="):
        get_problem(LanguageModel(TEXT, context=8).settings())
    assert get_problem("language-model", corpus=TEXT, context=8).settings()["corpus"] == TEXT.settings()
    small = {"kind": "language-model", "layers": 1, "width": 4, "heads": 1, "context": 4, "batch": 1}
    assert get_problem({**small, "corpus": TEXT}).corpus is TEXT  # a corpus among the settings was ignored
    with pytest.raises(TypeError, match="corpus must be a Corpus"):
        get_problem({**small, "corpus": "text"})
    with pytest.raises(TypeError, match="corpus must be a Corpus"):
        get_problem({**small, "corpus": TEXT.settings()}, corpus=b"text")
    with pytest.raises(ValueError, match="settings of a corpus lack description, digest"):
        get_problem({**small, "corpus": {"modules": 3}})
