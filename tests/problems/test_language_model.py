"""The language model against one in mpmath, activations rounded by the judge; batches, start and corpus."""

import dataclasses
import hashlib
import math
import sysconfig
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim import FORMATS
from mcfsim.oracle import operate
from mcfsim.training.problems import Corpus, LanguageModel, Llama, language_model
from mcfsim.training.problems._transformer import as_integers
from tests.problems.test_problems import EXACT, EXAMPLES, TEXT, assert_derivative, generic

DEFAULT, SMALL, ROUNDED = LanguageModel(), EXACT[-1], EXAMPLES[-1]


def mp_loss(model, parameters, window):
    """Write the model down a second time, plainly, for one sequence of numbers of mpmath."""
    tokens, targets = window[:-1], window[1:]
    positions, width, depth = range(len(tokens)), model.width, model.width // model.heads

    def norm(row, gain):
        return row / mpmath.sqrt(row @ row / width + mpmath.mpf(1e-5)) * gain

    def turned(row, position):
        """Multiply complex numbers, of a column of the first half and one of the second, by exp(i angle)."""
        if not isinstance(model, Llama):
            return row
        half = depth // 2
        powers = [mpmath.mpf(10_000) ** (mpmath.mpf(-i) / half) for i in range(half)]
        pairs = [mpmath.mpc(row[i], row[half + i]) * mpmath.expj(position * powers[i]) for i in range(half)]
        return np.array([z.real for z in pairs] + [z.imag for z in pairs])

    def activation(hidden):
        if not isinstance(model, Llama):
            return np.maximum(hidden, 0) ** 2
        gate, up = np.split(hidden, 2)
        return np.array([a / (1 + mpmath.exp(-a)) for a in gate]) * up

    stream = [parameters["embedding"][tokens[i]] for i in positions]
    if "positions" in parameters:
        stream = [stream[i] + parameters["positions"][i] for i in positions]
    for layer in range(model.layers):
        own = f"layer{layer}."
        part = {name.removeprefix(own): p for name, p in parameters.items() if name.startswith(own)}
        qkv = [norm(row, part["attention.gain"]) @ part["attention.qkv"] for row in stream]
        for i in positions:
            gathered = []
            for head in range(0, width, depth):
                query, key, value = ([row[k + head :][:depth] for row in qkv] for k in (0, width, 2 * width))
                query, key = ([turned(row, j) for j, row in enumerate(rows)] for rows in (query, key))
                scores = [mpmath.exp(query[i] @ key[j] / mpmath.sqrt(depth)) for j in range(i + 1)]
                gathered += list(np.array(scores) @ np.array(value[: i + 1]) / sum(scores))
            stream[i] = stream[i] + np.array(gathered) @ part["attention.out"]
            hidden = norm(stream[i], part["mlp.gain"]) @ part["mlp.up"]
            stream[i] = stream[i] + activation(hidden) @ part["mlp.down"]
    losses = []
    for i in positions:
        logits = parameters.get("head", parameters["embedding"]) @ norm(stream[i], parameters["gain"])
        losses.append(mpmath.log(sum(map(mpmath.exp, logits))) - logits[targets[i]])
    return sum(losses) / len(losses)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "width"), [(LanguageModel, 4), (Llama, 8)])
@pytest.mark.sampled(2, each=False)
def test_loss_and_gradient_against_an_independent_model_in_mpmath(kind, width):
    model = kind(TEXT, layers=1, width=width, heads=2, context=3, batch=1)
    parameters = generic(model)
    loss, gradient = model.loss_and_gradient(parameters, step=0, seed=0)
    (window,) = model.training_batch(step=0, seed=0).tolist()
    with mpmath.workdps(50):
        exact = {name: (p.astype(object) + mpmath.mpf(0)) for name, p in parameters.items()}
        assert abs(loss - mp_loss(model, exact, window)) < 1e-15 * loss
        h = mpmath.mpf(10) ** -15
        assert_derivative(lambda x: mp_loss(model, x, window), exact, gradient, h, 1e-14)


def test_batches_and_starts_depend_on_seed_and_step_alone():
    batch = DEFAULT.training_batch(step=5, seed=1)
    assert batch.shape == (16, 65)
    np.testing.assert_array_equal(batch, LanguageModel(width=8).training_batch(step=5, seed=1))
    for other in ({"step": 6, "seed": 1}, {"step": 5, "seed": 2}, {"step": 1, "seed": 5}):
        assert (DEFAULT.training_batch(**other) != batch).any(axis=1).all()
    one, two = (DEFAULT.initial_parameters(seed)["embedding"] for seed in (1, 2))
    assert np.mean(one == two) < 1e-3


def test_later_bytes_do_not_change_earlier_logits_and_held_out_windows_give_their_mean():
    parameters = generic(SMALL)
    tokens = SMALL.training_batch(step=0, seed=0)[:, :-1]
    changed = tokens.copy()
    changed[:, 3] ^= 1
    whole, others = SMALL.logits(parameters, tokens), SMALL.logits(parameters, changed)
    np.testing.assert_array_equal(whole[:, :3], others[:, :3])
    assert (whole[:, 3:] != others[:, 3:]).any(axis=-1).all()
    np.testing.assert_allclose(SMALL.logits(parameters, tokens[:, :3]), whole[:, :3], rtol=0, atol=1e-13)
    for wrong in (SMALL.training_batch(step=0, seed=0), np.array([[-1, 2]])):  # too long, and no bytes
        with pytest.raises(ValueError, match="rows of 1 to 5 bytes"):
            SMALL.logits(parameters, wrong)
    windows = TEXT.validation_windows(16 * 3, 6)
    logits = SMALL.logits(parameters, windows[:, :-1])
    chosen = np.take_along_axis(logits, windows[:, 1:, None].astype(int), axis=-1)
    expected = np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen[..., 0])
    assert SMALL.validation_loss(parameters) == pytest.approx(expected, rel=1e-13)
    longest = LanguageModel(TEXT, layers=1, width=4, heads=1, context=399, batch=1)
    assert math.isfinite(longest.validation_loss(longest.initial_parameters(seed=0)))


@pytest.mark.slow
def test_the_start():
    parameters = DEFAULT.initial_parameters(seed=0)
    gains = {name for name in DEFAULT.shapes if name.endswith("gain")}
    assert (len(gains), sum(p.size for p in parameters.values())) == (5, 119_104)
    assert DEFAULT.decayed == DEFAULT.shapes.keys() - gains
    assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
    assert all((parameters[name] == 1).all() for name in gains)
    for name in DEFAULT.decayed:
        expected = 0.01 if name.endswith(("out", "down")) else 0.02  # 0.02 / sqrt(2 * 2 layers)
        assert np.std(parameters[name]) == pytest.approx(expected, rel=0.05), name
    blind = parameters | {"embedding": np.zeros_like(parameters["embedding"])}
    assert abs(DEFAULT.loss_and_gradient(blind, 0, 0)[0] - math.log(256)) < 1e-6


@pytest.mark.parametrize("name", ["layer0.attention.qkv", "gain", "layer0.mlp.up"])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_large_scores_do_not_overflow_and_what_does_gives_no_warning(name):
    parameters, finite = DEFAULT.initial_parameters(seed=0), name != "layer0.mlp.up"
    parameters[name] = parameters[name] * np.float32(1000 if finite else 1e20)
    loss, gradient = DEFAULT.loss_and_gradient(parameters, 0, 0)
    assert math.isfinite(loss) == math.isfinite(DEFAULT.validation_loss(parameters)) == finite
    assert not finite or all(np.isfinite(g).all() for g in gradient.values())


# -- activations as integers ---------------------------------------------------------------------------------
def judged(row, bits):
    fmt, end = FORMATS["float32"], 2 ** (bits - 1)
    if not all(map(math.isfinite, row)):
        return None
    largest = max(*map(abs, row), float(np.float32(1e-5)))
    scale = operate("div", [float(end - 1), largest], fmt)
    near = [round(Fraction(operate("mul", [x, scale], fmt))) for x in row]
    return [operate("div", [float(min(max(k, -end), end - 1)), scale], fmt) for k in near]


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_rows_are_those_of_the_judge(bits):
    random = np.random.default_rng(bits)
    rows = random.standard_normal((30, 17)) * 2.0 ** random.integers(-40, 40, (30, 1))
    rows[0], rows[1] = 0.0, [1e-6, *np.zeros(16)]
    rows[2] = np.arange(17) / 2.0  # ties
    rows[3, 5], rows[4, 6] = np.inf, np.nan
    x = rows.astype(np.float32)
    given = x.copy()
    with np.errstate(all="ignore"):
        found = as_integers(x, bits)
    assert found.dtype == np.float32
    assert np.array_equal(x, given, equal_nan=True)
    for row, mine in zip(x.tolist(), found.tolist(), strict=True):
        expected = judged(row, bits)
        assert any(map(math.isnan, mine)) if expected is None else mine == expected


def test_gradients_pass_straight_through(monkeypatch):
    """Those of a model that adds what rounding did as constants, against finite differences."""
    parameters, added = generic(ROUNDED), []

    def noted(x, bits):
        rounded = as_integers(x, bits)
        added.append(rounded - x)
        return rounded

    monkeypatch.setattr(language_model, "as_integers", noted)
    loss, gradient = ROUNDED.loss_and_gradient(parameters, step=0, seed=0)
    assert len(added) == 8
    assert loss != SMALL.loss_and_gradient(parameters, step=0, seed=0)[0]

    def at(moved):
        constants = iter(added)
        monkeypatch.setattr(language_model, "as_integers", lambda x, bits: x + next(constants))
        return ROUNDED.loss_and_gradient(moved, step=0, seed=0)[0]

    assert abs(at(parameters) - loss) < 1e-14
    assert_derivative(at, parameters, gradient, 1e-5, 1e-8)


# -- the corpus -------------------------------------------------------------------------------------------
def test_the_last_tenth_is_held_out_and_windows_reach_both_ends_or_are_spread_evenly():
    corpus = Corpus.from_bytes(bytes(range(100)), "counting")
    assert corpus.training.tolist() == list(range(90))
    assert corpus.validation.tolist() == list(range(90, 100))
    windows = corpus.training_windows(2000, 5, step=0, seed=0)
    assert (np.diff(windows, axis=1) == 1).all()
    assert set(windows[:, 0]) == set(range(86))
    assert corpus.validation_windows(3, 2).tolist() == [[90, 91], [94, 95], [98, 99]]
    assert corpus.validation_windows(1, 10).tolist() == [list(range(90, 100))]
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.digest = ""
    with pytest.raises(ValueError, match="read-only"):
        corpus.training[0] = 1


def test_standard_library_is_the_same_at_every_call():
    corpus, again = Corpus.from_standard_library(), Corpus.from_standard_library()
    text = np.concatenate([corpus.training, corpus.validation]).tobytes()
    assert corpus == again
    assert corpus.digest == hashlib.sha256(text).hexdigest()
    assert corpus.modules == 60
    assert len(text) > 500_000
    assert text.count(b"\ndef ") > 100
    assert Corpus.from_standard_library(modules=59) != corpus


def test_which_modules_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no sources"):
        Corpus.from_standard_library()
    with pytest.raises(ValueError, match="must be at least 1"):
        Corpus.from_standard_library(modules=0)
    for name in ("b.py", "a.py", "d.py", "e.py", "_sysconfigdata_x.py", "notes.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "c.py").mkdir()  # cannot be read as a file
    corpus = Corpus.from_standard_library(modules=3)
    assert corpus == Corpus.from_bytes(b"a.py\nb.py\nd.py\n", "expected")
    assert corpus.description.startswith("3 modules of the standard library of Python 3.")
