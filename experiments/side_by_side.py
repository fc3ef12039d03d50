"""Steps of a training as `mcfsim.simulate` makes them, and one training with a strategy for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from mcfsim.training.problems.base import Problem
from mcfsim.training.schedule import clipped

Tensors = dict[str, NDArray[np.float32]]


def rounded_start(problem: Problem, seed: int) -> dict[str, NDArray[Any]]:
    """Return the start of a seed in bf16, from which `mcfsim.simulate` starts all options."""
    return {name: mcf.round_to(x, "bfloat16") for name, x in problem.initial_parameters(seed).items()}


def weights_of(optimizer: mcf.Optimizer) -> Tensors:
    """Return the weights as the model takes them."""
    return {name: x.astype(np.float32) for name, x in optimizer.weights().items()}


def clipped_gradients(problem: Problem, weights: Tensors, step: int, seed: int) -> dict[str, NDArray[Any]]:
    """Return the gradients of a step, of norm 1 at most."""
    return clipped(problem.loss_and_gradient(weights, step, seed)[1], 1.0)[0]


def make_steps(
    problem: Problem, optimizer: mcf.Optimizer, schedule: mcf.Schedule, steps: int, seed: int
) -> None:
    """Make all steps of a training."""
    for step in range(1, steps + 1):
        gradients = clipped_gradients(problem, weights_of(optimizer), step, seed)
        optimizer.step(optimizer.receive(gradients), schedule.rate(step, steps))


def train(
    problem: Problem,
    hyper: Any,
    chosen: Mapping[str, mcf.Strategy],
    start: Tensors,
    schedule: mcf.Schedule,
    steps: int,
    seed: int,
    keep: Callable[[Tensors, float], None] | None = None,
) -> float:
    """Return the validation loss at the end; each step's gradients and rate are handed to `keep`.

    Tensors of one strategy share an optimizer. Strategies that draw use the random words of the seed.
    """
    parts = []
    for one in dict.fromkeys(chosen.values()):
        tensors = {name: x for name, x in start.items() if chosen[name] == one}
        words = mcf.RandomWords(seed) if one.draws else None
        decayed = [name for name in problem.decayed if name in tensors]
        parts.append(mcf.Optimizer(hyper, one, tensors, decayed, steps=steps, random=words))

    def weights() -> Tensors:
        found = {name: x for part in parts for name, x in weights_of(part).items()}
        return {name: found[name] for name in start}

    for step in range(1, steps + 1):
        gradients = clipped_gradients(problem, weights(), step, seed)
        rate = schedule.rate(step, steps)
        if keep is not None:
            keep({name: np.asarray(x, np.float32) for name, x in gradients.items()}, rate)
        for part in parts:
            part.step(part.receive({name: gradients[name] for name in part.layout.slices}), rate)
    return float(problem.validation_loss(weights()))
