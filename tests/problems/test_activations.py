"""Activations as integers: rows by the judge, and gradients that pass as if nothing were rounded."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim import FORMATS, get_problem
from mcfsim.oracle import operate
from mcfsim.problems import Corpus, LanguageModel, language_model
from mcfsim.problems._transformer import as_integers

TEXT = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes()
CORPUS = Corpus.from_bytes(TEXT, "random bytes")


def model(bits=8):
    return LanguageModel(CORPUS, layers=2, width=8, heads=2, context=5, batch=3, activation_bits=bits)


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


@pytest.mark.slow
def test_gradients_pass_straight_through(monkeypatch):
    """Those of a model that adds what rounding did as constants, against finite differences."""
    random, whole = np.random.default_rng(1), model()
    parameters = {
        name: random.normal(1 if name.endswith("gain") else 0, 0.4, shape)
        for name, shape in whole.shapes.items()
    }
    added = []

    def noted(x, bits):
        rounded = as_integers(x, bits)
        added.append(rounded - x)
        return rounded

    monkeypatch.setattr(language_model, "as_integers", noted)
    loss, gradient = whole.loss_and_gradient(parameters, step=0, seed=0)
    assert len(added) == 8
    assert loss != model(0).loss_and_gradient(parameters, step=0, seed=0)[0]

    def at(moved):
        constants = iter(added)
        monkeypatch.setattr(language_model, "as_integers", lambda x, bits: x + next(constants))
        return whole.loss_and_gradient(moved, step=0, seed=0)[0]

    assert abs(at(parameters) - loss) < 1e-14
    for name, tensor in parameters.items():
        direction = random.standard_normal(tensor.shape)
        h = 1e-5
        high, low = (at(parameters | {name: tensor + t * direction}) for t in (h, -h))
        scale = np.linalg.norm(gradient[name]) * np.linalg.norm(direction)
        assert abs(np.vdot(gradient[name], direction) - (high - low) / (2 * h)) < 1e-8 * scale, name


def test_settings_make_it_again_and_leave_it_out_where_it_is_not():
    assert get_problem(model().settings(), corpus=CORPUS).activation_bits == 8
    assert "activation_bits" not in model(0).settings()


@pytest.mark.parametrize("bits", [1, 17, -1, True, 8.0, "8"])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises((TypeError, ValueError), match="activation_bits"):
        model(bits)
