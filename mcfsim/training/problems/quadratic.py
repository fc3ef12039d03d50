"""A convex quadratic of given condition number."""

from __future__ import annotations

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
    check_memory,
    check_number,
    check_size,
    check_tensors,
    generator,
)


class Quadratic(DescribedProblem):
    """``f(x) = (x - x*)' A (x - x*) / 2`` with eigenvalues of A from 1 down to 1 / condition_number.

    The eigenvalues are in geometric progression, the eigenvectors and the minimiser x* random. With
    mpmath parameters A and x* are the same float64 numbers, taken exactly.

    Parameters
    ----------
    dimension : int, optional
        Number of unknowns, at least 2.
    condition_number : float, optional
        Between 1 and 1e12. Rounding A to float64 moves its eigenvalues by a small multiple of 1e-16. With a
        larger condition number this would matter for the smallest ones.
    seed : int, optional
        Chooses A and x*. The last bits of A also depend on the LAPACK that orthogonalises the eigenvectors.

    Attributes
    ----------
    matrix : ndarray
        A, symmetric to the last bit.
    minimiser : ndarray
        x*, where the loss and its gradient are exactly zero.
    """

    name = "quadratic"
    exact_capable = True
    decayed = frozenset({"x"})

    def __init__(self, dimension: int = 100, condition_number: float = 1000.0, seed: int = 0) -> None:
        self.dimension = check_size("dimension", dimension, least=2)
        self.condition_number = check_number("condition_number", condition_number)
        if not 1 <= self.condition_number <= 1e12:
            raise ValueError(f"condition_number = {condition_number} must lie between 1 and 1e12")
        self.seed = check_size("seed", seed, least=0)
        # Eigenvectors, scaled eigenvectors, their product, A, and the workspace of the factorisation.
        check_memory(f"dimension = {dimension}", 5 * dimension**2)
        random = generator(seed, DataStream.DATA)
        eigenvectors, _ = np.linalg.qr(random.standard_normal((dimension, dimension)))
        eigenvalues = np.geomspace(1.0, 1.0 / self.condition_number, dimension)
        product = (eigenvectors * eigenvalues) @ eigenvectors.T
        self.matrix = (product + product.T) / 2
        self._matrix = DataMatrix(self.matrix)
        self.minimiser = random.standard_normal(dimension)

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return a standard normal point."""
        return {"x": generator(seed, DataStream.PARAMETERS).standard_normal(self.dimension)}

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, parameters: Tensors, step: int = 0, seed: int = 0) -> LossAndGradient:
        """Return the objective and its gradient A (x - x*); step and seed are ignored."""
        check_tensors(parameters, {"x": (self.dimension,)}, np.float64, np.object_)
        error = parameters["x"] - self.minimiser  # mpmath takes a float operand exactly
        gradient = self._matrix @ error
        return as_scalar(error @ gradient / 2), {"x": gradient}

    def validation_loss(self, parameters: Tensors) -> float:
        """Return the objective."""
        return self.loss_and_gradient(parameters)[0]
