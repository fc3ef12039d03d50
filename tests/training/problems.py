"""Problems of one's own for the tests of training, and a problem that is watched and interrupted."""

import numpy as np

from mcfsim.training.problems import Corpus, LanguageModel, Quadratic


def tiny_model():
    corpus = Corpus.from_bytes(bytes(range(32, 127)) * 20, "ascii")
    return LanguageModel(corpus, layers=1, width=8, heads=2, context=8, batch=2)


class Made:
    """A problem from functions of the weights and the step: of its gradient, and of its loss."""

    name, exact_capable, decayed = "made", True, frozenset()

    def __init__(self, gradient, loss=lambda x, step: 1.0, start=(1.0, 1.0)):
        self.gradient, self.loss, self.start = gradient, loss, np.array(start, dtype=float)

    def settings(self):
        return {"kind": self.name}

    def initial_parameters(self, seed):
        return {"x": self.start.copy()}

    def loss_and_gradient(self, parameters, step, seed):
        with np.errstate(all="ignore"):
            return self.loss(parameters["x"], step), {"x": self.gradient(parameters["x"], step)}

    def validation_loss(self, parameters):
        with np.errstate(all="ignore"):
            return float(self.loss(parameters["x"], 0))


class Scripted(Made):
    """A gradient of ones, but at one step for one element of the second tensor; and so the loss."""

    def __init__(self, at=0, gradient=1.0, loss=1.0):
        self.at, self.element, self.special = at, gradient, loss

    def settings(self):
        return {"kind": self.name, "at": self.at}

    def initial_parameters(self, seed):
        return {"a": np.ones(3), "b": np.ones(2)}

    def loss_and_gradient(self, parameters, step, seed):
        gradients = {name: 0 * x + 1.0 for name, x in parameters.items()}
        if step == self.at:
            gradients["b"][1] = gradients["b"][1] * self.element
        return self.special if step == self.at else 1.0, gradients

    def validation_loss(self, parameters):
        return 1.0


class Folded(Quadratic):
    """A quadratic whose point is a matrix and a vector."""

    decayed = frozenset({"w"})

    def __init__(self):
        super().__init__(dimension=14, condition_number=10.0)

    def initial_parameters(self, seed):
        return self.folded(super().initial_parameters(seed)["x"])

    def loss_and_gradient(self, parameters, step=0, seed=0):
        whole = np.concatenate([parameters["w"].ravel(), parameters["b"]])
        loss, gradient = super().loss_and_gradient({"x": whole})
        return loss, self.folded(gradient["x"])

    def validation_loss(self, parameters):
        return self.loss_and_gradient(parameters)[0]

    @staticmethod
    def folded(x):
        return {"w": x[:12].reshape(3, 4), "b": x[12:]}


class Watched:
    """A problem that notes its calls and the final weights, and may be interrupted in a gradient."""

    def __init__(self, problem, at=None, gradient=0, error=KeyboardInterrupt):
        self.problem, self.at, self.nth, self.error = problem, at, gradient, error
        self.calls, self.finals, self.tried = [], [], False

    def __getattr__(self, name):
        return getattr(self.problem, name)

    @property
    def steps(self):
        return [step for step, _, _ in self.calls]

    def loss_and_gradient(self, parameters, step, seed):
        if step == self.at and len(self.calls) > 1 and self.steps[1:].count(step) == self.nth:
            raise self.error
        self.calls.append((step, seed, {name: x.copy() for name, x in parameters.items()}))
        return self.problem.loss_and_gradient(parameters, step, seed)

    def validation_loss(self, parameters):
        if self.tried:  # once before the first step
            self.finals.append({name: x.tolist() for name, x in parameters.items()})
        self.tried = True
        return self.problem.validation_loss(parameters)


def assert_same_run(run, expected):
    """Assert that runs are equal to the last bit, and say in what they are not."""
    assert run.settings == expected.settings
    assert repr(run.results) == repr(expected.results)  # of NaN, too
    assert {name: list(series) for name, series in run.series.items()} == {
        name: list(series) for name, series in expected.series.items()
    }
    for name, series in expected.series.items():
        for measure, numbers in series.items():
            np.testing.assert_array_equal(run.series[name][measure], numbers, err_msg=f"{name} {measure}")
    assert run == expected
