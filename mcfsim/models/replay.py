"""Replay of recorded gradients under several strategies side by side, and what each strategy loses."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from mcfsim.formats import Format
from mcfsim.models.recording import Recording, open_recording
from mcfsim.optim.declaration import Declaration
from mcfsim.rounding import Rounding
from mcfsim.storage.shards import check_apart
from mcfsim.training.problems.base import Tensors
from mcfsim.training.record import Run
from mcfsim.training.schedule import RecordedRates, Schedule
from mcfsim.training.setup import Setup
from mcfsim.training.simulate import DEFAULT_STRATEGIES, Trained, carry_out


class RecordedGradients:
    """A source of gradients that come from a recording and do not depend on the weights.

    Parameters
    ----------
    recording : Recording
        The files.
    decayed : collection of str, optional
        The tensors that weight decay applies to; by default those of at least two dimensions.
    """

    has_losses = False

    def __init__(self, recording: Recording, decayed: Collection[str] | None = None) -> None:
        shapes = recording.weights.shapes
        if decayed is None:
            decayed = [name for name, shape in shapes.items() if len(shape) > 1]
        elif isinstance(decayed, str) or not isinstance(decayed, Collection):
            raise TypeError(f"decayed must be a collection of names, not {decayed!r}")
        if unknown := sorted(set(decayed) - shapes.keys()):
            raise ValueError(
                f"decayed has {unknown[0]!r}, and the tensors are {', '.join(sorted(shapes)[:10])}"
            )
        self.recording, self.decayed = recording, frozenset(decayed)
        self._read: tuple[int, Tensors] | None = None

    def check_exact(self) -> None:
        """Do nothing: exact arithmetic takes recorded numbers, too."""

    def settings(self) -> dict[str, Any]:
        """Return the recording's size and digest, and which of its tensors decay."""
        return {
            "recording": {
                "parameters": self.recording.size,
                "sha256": self.recording.digest(),
                "decayed": sorted(self.decayed),
            }
        }

    def start(self, seed: int) -> Tensors:
        """Return the recorded weights; the seed is ignored."""
        return self.recording.weights.read()

    def gradient(self, weights: Tensors, step: int, seed: int) -> tuple[None, Tensors]:
        """Return the recorded gradient of a step; keep it in memory until another step is asked for."""
        if self._read is None or self._read[0] != step:
            self._read = None
            self._read = step, self.recording.steps[step - 1].read()
        return None, self._read[1]

    def try_out(self, seed: int) -> None:
        """Do nothing: there are no results."""

    def results(self, weights: Tensors) -> dict[str, float]:
        """Return an empty dict: there is no objective."""
        return {}

    def fingerprint(self, seed: int) -> str:
        """Return the recording's digest."""
        return self.recording.digest()


def replay(
    directory: str | os.PathLike[str],
    optimizer: Declaration | str = "adamw",
    strategies: Sequence[Trained] | Trained = DEFAULT_STRATEGIES,
    schedule: Schedule | Sequence[float] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    decayed: Collection[str] | None = None,
    seed: int = 0,
    low: Format | str = "bfloat16",
    clip: float | None = None,
    rounding: Rounding | str = "nearest_even",
    scalars: str = "exact",
    record_every: int = 10,
    truth_sample: int = 16,
    precision: int = 400,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 100,
    output: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Run:
    """Feed recorded gradients to several strategies, each from the same start.

    The loop is open: a gradient belongs to the weights of the recorded training, not to those that a strategy
    has reached. So strategies differ by their arithmetic alone. A replay does not say how the losses of
    separate trainings would differ. The start is rounded to the low format for all.

    Parameters
    ----------
    directory : path
        A recording, see `mcfsim.record` and `mcfsim.torch.record`.
    optimizer, strategies
        As for `mcfsim.simulate`.
    schedule : Schedule or sequence of float, optional
        Learning rates, or one a step; by default those recorded.
    weights : path, optional
        Another start: a model's safetensors file or folder, or ``.npz`` file.
    steps : int, optional
        How many steps to make, from the first on; by default all.
    decayed : collection of str, optional
        The tensors that weight decay applies to; by default those of at least two dimensions.
    seed : int, optional
        Seed of stochastic rounding and of the sample.
    clip : float or None, optional
        Largest norm of the gradient, if it was not clipped before it was recorded.
    low, rounding, scalars, record_every, truth_sample, precision
        As for `mcfsim.simulate`; the exact update from the same state is computed unless `truth_sample` is 0.
    checkpoint, checkpoint_every, output, progress
        As for `mcfsim.simulate`.

    Returns
    -------
    Run
        As `mcfsim.simulate` returns it, without losses: a recording has no objective.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of range; if the recording cannot be used, see
        `mcfsim.models.recording.open_recording`, or has no learning rates and no schedule is given; if a
        tensor is damaged, or holds NaN or infinity; if the checkpoint or the output would overwrite an input;
        or for the checkpoint, as `mcfsim.simulate` says.
    OSError
        If a file is missing or cannot be read.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or a learning rate is zero in the format that it is used in.
    """
    check_apart({"checkpoint": checkpoint, "output": output}, {"directory": directory, "weights": weights})
    recording = open_recording(directory, weights, steps)
    setup = Setup.of(
        source=RecordedGradients(recording, decayed),
        optimizer=optimizer,
        strategies=strategies,
        steps=len(recording.steps),
        schedule=RecordedRates(recording.rates()) if schedule is None else schedule,
        seed=seed,
        low=low,
        clip=clip,
        rounding=rounding,
        scalars=scalars,
        record_every=record_every,
        truth_sample=truth_sample,
        precision=precision,
    )
    return carry_out(setup, checkpoint, checkpoint_every, output, progress, "replaying")
