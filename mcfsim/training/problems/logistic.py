"""Logistic regression on real data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.training.problems.base import (
    DataMatrix,
    DataStream,
    DescribedProblem,
    LossAndGradient,
    Tensors,
    as_scalar,
    check_number,
    check_tensors,
    generator,
    labelled,
)


class LogisticRegression(DescribedProblem):
    """Mean logistic loss over the breast-cancer data of scikit-learn, plus ``l2 / 2 |weights|^2``.

    Every fifth sample is held out. The 30 features are standardised by their mean and standard deviation
    over the other samples. With mpmath parameters the standardised float64 features are taken exactly.

    Parameters
    ----------
    l2 : float, optional
        Strength of the penalty on the weights; the bias is free, and the validation loss has none.

    Raises
    ------
    ImportError
        If scikit-learn, which ships the data, is missing.
    """

    name = "logistic"
    exact_capable = True
    decayed = frozenset({"weights", "bias"})

    def __init__(self, l2: float = 1e-4) -> None:
        self.l2 = check_number("l2", l2)
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"l2 = {l2} must be finite and not negative")
        features, labels, held_out = labelled(self.name, "load_breast_cancer")
        signs = np.where(labels == 1, 1.0, -1.0)
        mean, deviation = features[~held_out].mean(axis=0), features[~held_out].std(axis=0)
        # A last column of ones makes the bias one more weight. A row times its sign gives the margin.
        rows = np.column_stack([(features - mean) / deviation, np.ones(len(signs))]) * signs[:, None]
        self._training = DataMatrix(rows[~held_out])
        self._columns = DataMatrix(rows[~held_out].T)
        self._validation = DataMatrix(rows[held_out])
        self._shapes = {"weights": (features.shape[1],), "bias": (1,)}

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return normal weights of standard deviation 0.1 and a zero bias."""
        weights = generator(seed, DataStream.PARAMETERS).normal(scale=0.1, size=self._shapes["weights"])
        return {"weights": weights, "bias": np.zeros(1)}

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, parameters: Tensors, step: int = 0, seed: int = 0) -> LossAndGradient:
        """Return the penalised mean loss over the training data and its gradient; there are no batches."""
        losses, misfits = self._losses(parameters, self._training)
        weights = parameters["weights"]
        gradient = self._columns @ misfits / -len(losses)
        loss = losses.sum() / len(losses) + self.l2 * (weights @ weights) / 2
        return as_scalar(loss), {"weights": gradient[:-1] + self.l2 * weights, "bias": gradient[-1:]}

    @np.errstate(over="ignore", invalid="ignore")
    def validation_loss(self, parameters: Tensors) -> float:
        """Return the mean loss over the held-out samples, without the penalty."""
        losses, _ = self._losses(parameters, self._validation)
        return as_scalar(losses.sum() / len(losses))

    def _losses(self, parameters: Tensors, rows: DataMatrix) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ``log(1 + exp(-m))`` and ``1 / (1 + exp(m))`` of every row's margin m."""
        check_tensors(parameters, self._shapes, np.float64, np.object_)
        theta = np.concatenate([parameters["weights"], parameters["bias"]])
        margins = rows @ theta
        exp, log1p = _exp_log1p(theta)
        tail = exp(-abs(margins))  # never overflows, whichever the sign
        return log1p(tail) + np.maximum(-margins, 0), np.where(margins >= 0, tail, 1) / (1 + tail)


def _exp_log1p(like: NDArray[Any]) -> tuple[Any, Any]:
    """Return exp and log1p for float64 arrays, or for arrays of numbers of an mpmath context."""
    if like.dtype != object:
        return np.exp, np.log1p
    context = like[0].context
    return np.frompyfunc(context.exp, 1, 1), np.frompyfunc(context.log1p, 1, 1)
