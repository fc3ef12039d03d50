"""Problems of one's own: what they return is checked before a step is made of it, and what they are given."""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.state import State, Step
from tests.training.problems import Made

CONSTANT = mcf.Schedule(0.125, warmup=0, final=1.0)
ONES = np.ones(2)
MASKED = np.ma.masked_equal([1.0, 2.0], 2.0)


def squares(x, step):
    return x


class Own(Made):
    """A problem whose methods return what is given, where it is given, and count the gradients."""

    def __init__(self, gradient=squares, **returned):
        super().__init__(gradient)
        self.returned, self.steps = returned, 0

    def settings(self):
        return self.returned.get("settings", super().settings())

    def initial_parameters(self, seed):
        return self.returned.get("start", super().initial_parameters(seed))

    def loss_and_gradient(self, parameters, step, seed):
        self.steps += 1
        if "found" in self.returned:
            return self.returned["found"]
        return 1.0, {name: self.gradient(x, step) for name, x in parameters.items()}

    def validation_loss(self, parameters):
        return self.returned.get("held_out", 1.0)


def train(problem, strategies="plain", steps=3, **options):
    return mcf.simulate(problem, "sgd", strategies, steps, CONSTANT, progress=False, **options)


# -- what is returned -------------------------------------------------------------------------------------
def found(loss=1.0, gradient=ONES, name="x"):
    return {"found": (loss, {name: gradient})}


def starts(**tensors):
    return {"start": tensors}


LOSS, HELD_OUT = (
    "loss_and_gradient of problem 'made': the loss must be one",
    "validation_loss of problem 'made'",
)
GRADIENT, START = "gradient of 'x'", "initial_parameters of problem 'made'"
PAIR = "loss_and_gradient of problem 'made' must return a loss and a mapping of names to arrays"
NAMES = "a name in a file has no NUL, no surrogate, and at most 32,000 bytes"
TYPES = [
    *((found(loss), LOSS) for loss in (None, np.ones(1), [1.0], "1", 1j, {}, np.array("1"), True)),
    *(({"held_out": loss}, f"{HELD_OUT}: the loss must be one") for loss in (None, np.ones(1), "1")),
    *((found(gradient=x), f"{GRADIENT} must be an array, not") for x in ([1.0, 1.0], 1.0, None, "ab")),
    (found(gradient=MASKED), f"{GRADIENT} must be an array, not a masked array"),
    *((found(gradient=ONES.astype(x)), "hold real numbers") for x in ("c16", "bool", "m8[s]", "U1", "O")),
    *(({"found": x}, PAIR) for x in (None, 1.0, (1.0,), ({"x": ONES}, 1.0), (1.0, ONES))),
    *(({"start": x}, f"{START} must return a mapping") for x in (None, [ONES], ONES)),
    ({"start": {3: ONES}}, f"{START} must name tensors by strings, not 3"),
    (starts(x=MASKED), "tensor 'x' of initial_parameters of problem 'made' is a masked array"),
    (starts(x=None), "does not hold real numbers"),
    *(({"settings": {"data": x}}, r"^problem\.data is ") for x in (ONES, {1.0}, Path("x"), b"x", 10**5000)),
    ({"settings": {"data": [1, Fraction(1, 2)]}}, r"^problem\.data\[1\] is Fraction"),
    ({"settings": {(1, 2): 3}}, r"^a name in problem is \(1, 2\)"),
]
VALUES = [
    (found(10**400), "the loss is an integer beyond binary64"),
    ({"held_out": 10**400}, f"{HELD_OUT}: the loss is an integer beyond binary64"),
    (found(name="y"), r"expected the tensors \['x'\], not \['y'\]"),
    (found(gradient=np.ones((1, 2))), r"gradient of 'x' must have shape \(2,\), not \(1, 2\)"),
    *((starts(**{name: ONES, "b": ONES}), NAMES) for name in ("a\0", "w.npy", "\ud800", "é" * 16_001)),
]
ROWS = [(*row, error) for error, rows in ((TypeError, TYPES), (ValueError, VALUES)) for row in rows]


@pytest.mark.parametrize("reduction", [None, "2"])
def test_what_no_run_can_use_is_refused_at_the_first_step(reduction):
    for returned, message, error in ROWS:
        problem = Own(**returned)
        with pytest.raises(error, match=message):
            train(problem, reduction=reduction)
        assert problem.steps <= 1, message


def test_names_that_a_file_can_hold_are_taken(tmp_path):
    """That of a single tensor is no part of an array's name."""
    for names in (["w.npy"], ["", "a/b|c", "é" * 16_000]):
        run = train(Own(**starts(**dict.fromkeys(names, ONES))), output=tmp_path / "run.npz")
        assert mcf.Run.load(tmp_path / "run.npz") == run


def test_numbers_of_numpy_become_numbers_that_a_file_can_hold(tmp_path):
    given = {"n": np.int64(3), "x": np.float32(0.1), "flags": (np.True_, None), np.int8(1): [np.float16(2)]}
    phases = [mcf.Phase("plain"), mcf.Phase("fp32", np.int64(2))]
    run = train(Own(settings=given), mcf.PrecisionSchedule(phases), output=tmp_path / "run.npz")
    expected = {"n": 3, "x": float(np.float32(0.1)), "flags": [True, None], 1: [2.0]}
    assert run.settings["problem"] == expected
    assert mcf.Run.load(tmp_path / "run.npz").settings == json.loads(json.dumps(run.settings))


# -- what is given ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", [None, "2"])
def test_weights_changed_in_place_are_the_problem_s_own(reduction):
    """In every strategy, of every part of a reduction, and of the validation loss."""

    def changed(x, step):
        gradient = x * 0.5
        x -= 100
        return gradient

    names = ["exact", "fp32", "plain"]
    run = train(Own(changed), names, reduction=reduction, truth_sample=1)
    expected = train(Own(lambda x, step: x * 0.5), names, reduction=reduction, truth_sample=1)
    for name in names:
        assert run.series[name]["gradient_norm"].tolist() == expected.series[name]["gradient_norm"].tolist()


def test_a_buffer_that_a_problem_returns_again_is_read_each_time():
    buffer = np.empty(2)

    def into(x, step):
        buffer[...] = x * step
        return buffer

    norms = train(Own(into), "fp32", 1, reduction="2", clip=None).series["fp32"]["gradient_norm"]
    assert norms == pytest.approx(1.5 * 2**0.5)


def test_a_tensor_without_axes_is_trained(tmp_path):
    whole = {"a": np.array(2.0), "b": np.ones(2)}
    for reduction in (None, "2"):
        given = {"truth_sample": 2, "clip": 1.0, "reduction": reduction}
        run = train(Own(start=whole), ["exact", "fp32"], checkpoint=tmp_path / f"{reduction}.npz", **given)
        for name in ("exact", "fp32"):
            assert run.series[name]["gradient_norm"][0] == float(mpmath.sqrt(6))
        assert run.late("fp32", "distance") < 1e-7


def test_tensors_without_elements_have_a_share_of_nothing():
    run = train(Own(start={"a": np.ones(0)}), ["dqt-int3"])
    assert run.results["dqt-int3"]["clipped_at_start"] == 0


# -- optimizers -------------------------------------------------------------------------------------------
def descent(made, **fields):
    """Return an optimizer whose step returns what a function makes of the new state and the update."""

    class Descent(mcf.SGD):
        def step(self, roles, strategy, state, gradient, scalars):
            return made(*super().step(roles, strategy, state, gradient, scalars))

    return Descent(**fields)


@pytest.mark.parametrize("strategy", ["plain", "exact"])
def test_what_an_own_step_returns_is_checked(strategy):
    made = [
        *((lambda state, update, x=x: x, "Step") for x in (None, 3, ())),
        (lambda state, update: state, "Step"),
        (lambda state, update: Step(state, None), "Step"),
        (lambda state, update: Step(State((), *state[1:]), update), "a tuple of 1 for parameter"),
        (lambda state, update: Step(State(state[0][0], *state[1:]), update), "a tuple of 1 for parameter"),
    ]
    for result, what in made:
        with pytest.raises(TypeError, match=f"Descent.step must return {what}"):
            mcf.simulate("quadratic", descent(result), strategy, 2, CONSTANT, progress=False)


def test_fields_of_an_own_optimizer_are_written_or_refused(tmp_path):
    @dataclass(frozen=True)
    class Fields(mcf.SGD):
        own: object = None

    run = mcf.simulate("quadratic", Fields(own=np.float32(0.5)), "plain", 1, output=tmp_path / "run.npz")
    assert run.settings["optimizer"]["own"] == 0.5
    with pytest.raises(TypeError, match=r"^optimizer\.own is Fraction\(1, 3\), which cannot be written"):
        mcf.simulate("quadratic", Fields(own=Fraction(1, 3)), "plain", 1)
