"""Where the gradients of a run come from: a problem computes them, or a recording has them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.arguments import lacks
from mcfsim.problems import Problem, get_problem
from mcfsim.problems.base import Tensors


class Source(Protocol):
    """A start, and one gradient a step, the same for the same arguments."""

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""

    @property
    def has_losses(self) -> bool:
        """Whether a loss comes with each gradient."""

    def check_exact(self) -> None:
        """Raise ValueError if there are no gradients for weights in mpmath's numbers."""

    def settings(self) -> dict[str, Any]:
        """Return what a run's settings say of it, JSON data, under its name."""

    def start(self, seed: int) -> Tensors:
        """Return the weights before the first step."""

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss, None without one, and the gradient of a step, by tensor."""

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return what there is to say of the weights after the last step."""

    def fingerprint(self, seed: int) -> str:
        """Return a digest of data that the settings need not name."""


@dataclass(frozen=True)
class ComputedGradients:
    """Gradients that a problem computes, in its own precision, at the weights that it is given.

    Parameters
    ----------
    problem : Problem
        The objective.
    """

    problem: Problem
    has_losses = True

    @classmethod
    def of(cls, given: Any) -> ComputedGradients:
        """Look up a problem by its name; raise TypeError for what is none."""
        problem = get_problem(given) if isinstance(given, str) else given
        if isinstance(problem, type) or lacks(problem, Problem):
            raise TypeError(f"problem must be a Problem, as mcfsim.get_problem('quadratic'), not {problem!r}")
        return cls(problem)

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the tensors that weight decay applies to."""
        return self.problem.decayed

    def check_exact(self) -> None:
        """Raise ValueError if the problem does not compute with mpmath's numbers."""
        if not self.problem.exact_capable:
            raise ValueError(
                f"problem {self.problem.name!r} cannot be trained in exact arithmetic; leave out 'exact'"
            )

    def settings(self) -> dict[str, Any]:
        """Return the problem's settings."""
        return {"problem": self.problem.settings()}

    def start(self, seed: int) -> Tensors:
        """Return the problem's starting point."""
        return self.problem.initial_parameters(seed)

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[float | None, Tensors]:
        """Return the loss and the gradient at these weights."""
        return self.problem.loss_and_gradient(self._taken(weights), step, seed)

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return the validation loss."""
        return {"validation_loss": float(self.problem.validation_loss(self._taken(weights)))}

    def fingerprint(self, seed: int) -> str:
        """Return a SHA-256 of what the problem computes at its start.

        It is of the start, the loss on the first batch and its gradient, and the validation loss, with
        names, shapes and all bits.
        """
        start = self.start(seed)
        weights = {name: np.asarray(tensor).astype(self._dtype) for name, tensor in start.items()}
        loss, gradients = self.problem.loss_and_gradient(weights, 1, seed)
        losses = np.array([loss, self.problem.validation_loss(weights)], dtype=np.float64)
        digest = hashlib.sha256()
        for part in (start, gradients, {"losses": losses}):
            for name in sorted(part):
                array = np.asarray(part[name])
                digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
                digest.update(array.tobytes())
        return digest.hexdigest()

    @property
    def _dtype(self) -> Any:
        """What the problem computes in."""
        return np.float64 if self.problem.exact_capable else np.float32

    def _taken(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """Return weights in the dtype that the problem computes in; numbers of mpmath as they are."""
        return {name: x if x.dtype == object else x.astype(self._dtype) for name, x in weights.items()}
