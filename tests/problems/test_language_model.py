import math

import mpmath
import numpy as np
import pytest

from mcfsim.problems import Corpus, LanguageModel

pytestmark = pytest.mark.slow

TEXT = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes()
CORPUS = Corpus.from_bytes(TEXT, "random bytes")
DEFAULT = LanguageModel()


def small_model():
    return LanguageModel(CORPUS, layers=2, width=8, heads=2, context=5, batch=3)


def generic_parameters(model, seed=1):
    """Return float64 parameters far from any special point, gains included."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(1 if name.endswith("gain") else 0, 0.4, shape)
        for name, shape in model.shapes.items()
    }


def directions(gradient, count, seed=2):
    random = np.random.default_rng(seed)
    return [(name, random.standard_normal(g.shape)) for name, g in gradient.items() for _ in range(count)]


def test_gradient_of_every_tensor_against_finite_differences():
    model = small_model()
    parameters = generic_parameters(model)
    _, gradient = model.loss_and_gradient(parameters, step=0, seed=0)
    h = 1e-5

    for name, direction in directions(gradient, count=5):

        def loss(t, name=name, direction=direction):
            moved = parameters | {name: parameters[name] + t * direction}
            return model.loss_and_gradient(moved, step=0, seed=0)[0]

        numeric = (loss(h) - loss(-h)) / (2 * h)
        scale = np.linalg.norm(gradient[name]) * np.linalg.norm(direction)
        assert abs(np.vdot(gradient[name], direction) - numeric) < 1e-8 * scale, name


def mp_loss(model, parameters, window):
    """Write the model down a second time, plainly, for one sequence of numbers of mpmath."""
    mpf, fsum = mpmath.mpf, mpmath.fsum
    tokens, targets = window[:-1], window[1:]
    positions, width, depth = range(len(tokens)), model.width, model.width // model.heads

    def times(row, matrix):
        return [mpmath.fdot(row, column) for column in zip(*matrix, strict=True)]

    def norm(row, gain):
        root = mpmath.sqrt(mpmath.fdot(row, row) / width + mpf(1e-5))
        return [r / root * g for r, g in zip(row, gain, strict=True)]

    def add(row, other):
        return [r + o for r, o in zip(row, other, strict=True)]

    stream = [add(parameters["embedding"][tokens[i]], parameters["positions"][i]) for i in positions]
    for layer in range(model.layers):
        part = {
            name.split(".", 1)[1]: p for name, p in parameters.items() if name.startswith(f"layer{layer}.")
        }
        qkv = [times(norm(row, part["attention.gain"]), part["attention.qkv"]) for row in stream]
        for i in positions:
            gathered = []
            for head in range(model.heads):
                query, key, value = (
                    [row[k * width + head * depth : k * width + (head + 1) * depth] for row in qkv]
                    for k in range(3)
                )
                scores = [
                    mpmath.exp(mpmath.fdot(query[i], key[j]) / mpmath.sqrt(depth)) for j in range(i + 1)
                ]
                for d in range(depth):
                    gathered.append(mpmath.fdot(scores, [v[d] for v in value[: i + 1]]) / fsum(scores))
            stream[i] = add(stream[i], times(gathered, part["attention.out"]))
        for i in positions:
            hidden = times(norm(stream[i], part["mlp.gain"]), part["mlp.up"])
            stream[i] = add(stream[i], times([max(h, 0) ** 2 for h in hidden], part["mlp.down"]))
    losses = []
    for i in positions:
        normal = norm(stream[i], parameters["gain"])
        logits = [mpmath.fdot(normal, row) for row in parameters["embedding"]]
        losses.append(mpmath.log(fsum(map(mpmath.exp, logits))) - logits[targets[i]])
    return fsum(losses) / len(losses)


def test_loss_and_gradient_against_an_independent_model_in_mpmath():
    model = LanguageModel(CORPUS, layers=1, width=4, heads=2, context=3, batch=1)
    parameters = generic_parameters(model)
    loss, gradient = model.loss_and_gradient(parameters, step=0, seed=0)
    (window,) = model.training_batch(step=0, seed=0).tolist()

    with mpmath.workdps(50):
        exact = {name: (p.astype(object) + mpmath.mpf(0)) for name, p in parameters.items()}
        assert abs(loss - mp_loss(model, exact, window)) < 1e-15 * loss
        h = mpmath.mpf(10) ** -15
        for name, direction in directions(gradient, count=3):
            low, high = (mp_loss(model, exact | {name: exact[name] + t * direction}, window) for t in (-h, h))
            numeric = (high - low) / (2 * h)
            scale = np.linalg.norm(gradient[name]) * np.linalg.norm(direction)
            assert abs(np.vdot(gradient[name], direction) - numeric) < 1e-14 * scale, name


def test_float32_gradient_is_close_to_the_float64_one():
    narrow = DEFAULT.initial_parameters(seed=0)
    wide = {name: p.astype(np.float64) for name, p in narrow.items()}
    loss32, gradient32 = DEFAULT.loss_and_gradient(narrow, step=0, seed=0)
    loss64, gradient64 = DEFAULT.loss_and_gradient(wide, step=0, seed=0)
    assert abs(loss32 - loss64) < 1e-7 * loss64
    for name, exact in gradient64.items():
        assert exact.dtype == np.float64
        assert gradient32[name].dtype == np.float32
        assert np.linalg.norm(gradient32[name] - exact) < 2e-6 * np.linalg.norm(exact), name


def test_same_bits_again_and_parameters_left_alone():
    parameters = DEFAULT.initial_parameters(seed=3)
    before = {name: p.copy() for name, p in parameters.items()}
    loss, gradient = DEFAULT.loss_and_gradient(parameters, step=7, seed=3)
    held_out = DEFAULT.validation_loss(parameters)
    for name, p in parameters.items():
        np.testing.assert_array_equal(p, before[name])
        assert gradient[name].flags.c_contiguous
        assert not any(np.shares_memory(g, p) for g in gradient.values())

    again = LanguageModel()
    loss_again, gradient_again = again.loss_and_gradient(again.initial_parameters(seed=3), step=7, seed=3)
    assert loss_again == loss
    assert list(gradient_again) == list(gradient) == list(parameters)
    for name in gradient:
        np.testing.assert_array_equal(gradient_again[name], gradient[name])
    assert again.validation_loss(parameters) == held_out


def test_batches_depend_on_seed_and_step_alone():
    batch = DEFAULT.training_batch(step=5, seed=1)
    assert batch.shape == (16, 65)
    np.testing.assert_array_equal(batch, LanguageModel(width=8).training_batch(step=5, seed=1))
    for other in ({"step": 6, "seed": 1}, {"step": 5, "seed": 2}, {"step": 1, "seed": 5}):
        assert (DEFAULT.training_batch(**other) != batch).any(axis=1).all()


def test_initial_parameters_depend_on_the_seed():
    one, two = (DEFAULT.initial_parameters(seed)["embedding"] for seed in (1, 2))
    assert np.mean(one == two) < 1e-3


def test_later_bytes_do_not_change_earlier_logits():
    parameters = DEFAULT.initial_parameters(seed=0)
    tokens = DEFAULT.training_batch(step=0, seed=0)[:, :-1]
    changed = tokens.copy()
    changed[:, 40] ^= 1
    logits, others = (DEFAULT.logits(parameters, t) for t in (tokens, changed))
    assert logits.shape == (16, 64, 256)
    np.testing.assert_array_equal(logits[:, :40], others[:, :40])
    assert (logits[:, 40:] != others[:, 40:]).any(axis=-1).all()


def test_shorter_sequences_give_the_same_logits():
    model = small_model()
    parameters = generic_parameters(model)
    tokens = model.training_batch(step=0, seed=0)[:, :-1]
    whole = model.logits(parameters, tokens)
    np.testing.assert_allclose(model.logits(parameters, tokens[:, :3]), whole[:, :3], rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="rows of 1 to 5 bytes"):
        model.logits(parameters, model.training_batch(step=0, seed=0))


def test_size_and_loss_at_the_start():
    parameters = DEFAULT.initial_parameters(seed=0)
    assert sum(p.size for p in parameters.values()) == 119_104
    assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
    for loss in (DEFAULT.loss_and_gradient(parameters, 0, 0)[0], DEFAULT.validation_loss(parameters)):
        assert abs(loss - math.log(256)) < 0.2
    blind = parameters | {"embedding": np.zeros_like(parameters["embedding"])}
    assert abs(DEFAULT.loss_and_gradient(blind, 0, 0)[0] - math.log(256)) < 1e-6


def test_standard_deviations_at_the_start():
    parameters = DEFAULT.initial_parameters(seed=0)
    for name in DEFAULT.decayed:
        expected = 0.01 if name.endswith(("out", "down")) else 0.02  # 0.02 / sqrt(2 * 2 layers)
        assert np.std(parameters[name]) == pytest.approx(expected, rel=0.05), name
    assert all((parameters[name] == 1).all() for name in parameters.keys() - DEFAULT.decayed)


@pytest.mark.parametrize("name", ["layer0.attention.qkv", "gain"])
def test_large_scores_do_not_overflow_the_softmax(name):
    parameters = DEFAULT.initial_parameters(seed=0)
    parameters[name] = parameters[name] * np.float32(1000)
    loss, gradient = DEFAULT.loss_and_gradient(parameters, 0, 0)
    assert math.isfinite(loss)
    assert all(np.isfinite(g).all() for g in gradient.values())


def test_weight_decay_is_for_matrices():
    gains = {name for name in DEFAULT.shapes if name.endswith("gain")}
    assert len(gains) == 5
    assert DEFAULT.decayed == DEFAULT.shapes.keys() - gains


def test_validation_loss_is_the_mean_over_held_out_windows():
    model = small_model()
    parameters = generic_parameters(model)
    windows = CORPUS.validation_windows(16 * 3, 6)
    logits = model.logits(parameters, windows[:, :-1])
    chosen = np.take_along_axis(logits, windows[:, 1:, None].astype(int), axis=-1)
    expected = np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen[..., 0])
    assert model.validation_loss(parameters) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("size", [1e20, np.inf])
def test_a_diverged_model_has_no_finite_loss_and_no_warning(size):
    parameters = DEFAULT.initial_parameters(seed=0)
    parameters["layer0.mlp.up"] = parameters["layer0.mlp.up"] * np.float32(size)
    assert not math.isfinite(DEFAULT.loss_and_gradient(parameters, 0, 0)[0])
    assert not math.isfinite(DEFAULT.validation_loss(parameters))


@pytest.mark.parametrize("argument", ["layers", "width", "heads", "context", "batch"])
def test_sizes_must_be_positive_ints(argument):
    with pytest.raises(ValueError, match=f"{argument} = 0 must be at least 1"):
        LanguageModel(CORPUS, **{argument: 0})
    with pytest.raises(TypeError, match=f"{argument} must be an int"):
        LanguageModel(CORPUS, **{argument: 2.0})


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="heads = 3 must divide width = 64"):
        LanguageModel(CORPUS, heads=3)
    with pytest.raises(ValueError, match="context = 400 needs longer texts than one of 400 bytes"):
        LanguageModel(CORPUS, context=400)
    longest = LanguageModel(CORPUS, layers=1, width=4, heads=1, context=399, batch=1)
    assert math.isfinite(longest.validation_loss(longest.initial_parameters(seed=0)))


def test_wrong_parameters_are_refused():
    model = small_model()
    good = model.initial_parameters(seed=0)
    with pytest.raises(ValueError, match="expected the tensors"):
        model.loss_and_gradient({name: p for name, p in good.items() if name != "gain"}, 0, 0)
    with pytest.raises(ValueError, match=r"'gain' must have shape \(8,\), not \(9,\)"):
        model.loss_and_gradient(good | {"gain": np.ones(9, np.float32)}, 0, 0)
    with pytest.raises(TypeError, match="all float32 or all float64, not float32, float64"):
        model.validation_loss(good | {"gain": np.ones(8)})
    with pytest.raises(TypeError, match="not float16"):
        model.validation_loss({name: p.astype(np.float16) for name, p in good.items()})
