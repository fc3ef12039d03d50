"""The chained Rosenbrock function, a curved valley."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.training.problems.base import (
    DescribedProblem,
    LossAndGradient,
    Tensors,
    as_scalar,
    check_memory,
    check_size,
    check_tensors,
)


class Rosenbrock(DescribedProblem):
    """The chained Rosenbrock function, ``sum(100 (x[i+1] - x[i]**2)**2 + (1 - x[i])**2)``.

    Its global minimum is zero, at the point of all ones. In 4 and more dimensions there is another, local
    minimum near ``x[0] = -1``.

    Parameters
    ----------
    dimension : int, optional
        Number of unknowns, at least 2.
    """

    name = "rosenbrock"
    exact_capable = True
    decayed = frozenset({"x"})

    def __init__(self, dimension: int = 2) -> None:
        self.dimension = check_size("dimension", dimension, least=2)
        check_memory(f"dimension = {dimension}", 5 * dimension)  # a point, its gradient, intermediate results

    def initial_parameters(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the customary start (-1.2, 1, -1.2, 1, ...); the seed is ignored."""
        return {"x": np.resize([-1.2, 1.0], self.dimension)}

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, parameters: Tensors, step: int = 0, seed: int = 0) -> LossAndGradient:
        """Return the objective and its gradient; step and seed are ignored."""
        check_tensors(parameters, {"x": (self.dimension,)}, np.float64, np.object_)
        x = parameters["x"]
        curve = x[1:] - x[:-1] ** 2
        slope = 1 - x[:-1]
        gradient = np.zeros_like(x)
        gradient[:-1] = -400 * x[:-1] * curve - 2 * slope
        gradient[1:] += 200 * curve
        return as_scalar(100 * (curve @ curve) + slope @ slope), {"x": gradient}

    def validation_loss(self, parameters: Tensors) -> float:
        """Return the objective."""
        return self.loss_and_gradient(parameters)[0]
