"""Short trainings of the language model as the cells of a sweep, which resumes, and runs on Dask too."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import ROOT, WORKERS
from mcfsim.formats import Format
from mcfsim.optim.strategy import VanishingScalarWarning
from mcfsim.rounding import get_rounding
from mcfsim.storage.sweeps.installed import blas
from mcfsim.storage.sweeps.reached import digest
from mcfsim.storage.sweeps.sweep import Job, Sweep
from mcfsim.training.problems import LanguageModel

#: The loss per byte, in nats, of a model that knows nothing; a run that diverged counts as this.
NOTHING = math.log(256)
#: Epsilon of AdamW: unlike 1e-8, it is not zero in float16.
EPSILON = 1e-6
#: What is kept of each seed's run.
MEASURES = ("loss", "edq", "lost")


@dataclass(frozen=True)
class Model:
    """A shape of the language model."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64

    def problem(self) -> LanguageModel:
        """Return the problem."""
        return LanguageModel(**asdict(self))

    @property
    def size(self) -> int:
        """Number of parameters without embeddings of bytes and positions, as scaling laws count them."""
        return 12 * self.layers * self.width**2 + (2 * self.layers + 1) * self.width

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(map(math.prod, self.problem().shapes.values()))


@dataclass(frozen=True)
class Cell:
    """One training with several seeds: all that its results depend on besides the source.

    Parameters
    ----------
    strategy : Strategy
        With its format put in.
    low : Format
        To which the start is rounded.
    model : Model
        What is trained.
    peak, beta2, steps
        Of the schedule and the optimizer.
    overflow : str
        Of all its operations.
    """

    strategy: mcf.Strategy
    low: Format
    model: Model = Model()
    peak: float = 3e-4
    beta2: float = 0.999
    steps: int = 200
    overflow: str = "ieee"

    @property
    def label(self) -> str:
        """For bars and errors."""
        return f"{self.strategy.name}, {self.low}, width {self.model.width}, rate {self.peak:g}"

    def __call__(self, start: int, stop: int) -> dict[str, Any]:
        """Train the seeds from start up to stop."""
        found: dict[str, Any] = {measure: [] for measure in MEASURES}
        for seed in range(start, stop):
            with warnings.catch_warnings():
                # Rates that vanish in float8 are among the effects to be measured.
                warnings.simplefilter("ignore", VanishingScalarWarning)
                run = mcf.simulate(
                    self.model.problem(),
                    mcf.AdamW(beta1=0.9, beta2=self.beta2, epsilon=EPSILON, weight_decay=0.1),
                    self.strategy,
                    self.steps,
                    mcf.Schedule(self.peak, warmup=self.steps // 10, final=0.1),
                    seed,
                    low=self.low,
                    rounding=get_rounding("nearest_even", self.overflow),
                    record_every=max(1, self.steps // 10),
                    progress=False,
                )
            (results,), (series,) = run.results.values(), run.series.values()
            numbers = {
                "loss": math.nan if "diverged_at" in results else results["validation_loss"],
                "edq": _mean(series["normalized_edq"]),
                "lost": _mean(series["lost"]),
            }
            for measure, number in numbers.items():
                found[measure].append(number if math.isfinite(number) else None)
            found["blas"] = run.versions["blas"]
        return found

    def check(self, start: int, stop: int, result: Any) -> None:
        """Raise ValueError unless a result is of these seeds, and of matrix products as this process has."""
        if not isinstance(result, dict) or result.keys() != {*MEASURES, "blas"}:
            raise ValueError("it has not the measures of a training")
        if result["blas"] != blas():
            raise ValueError(f"it multiplied matrices by {result['blas']}, unlike this process")
        for measure in MEASURES:
            if len(result[measure]) != stop - start:
                raise ValueError(f"{measure} has not one number a seed")

    def job(self, seeds: int) -> Job:
        """Return the sweep's job: one unit a seed."""
        key = digest([("the cell", self), ("the problem", self.model.problem().settings())])
        return Job(key, self.label, self, [(seed, seed + 1) for seed in range(seeds)], self.check)


def _mean(series: Any) -> float:
    """Return the mean of the finite numbers; NaN if there are none."""
    kept = np.asarray(series)[np.isfinite(series)]
    return float(kept.mean()) if kept.size else math.nan


def sweep_options(text: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every study takes."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="only draw what was found before")
    parser.add_argument(
        "--journal",
        type=Path,
        default=ROOT / "build" / f"{name}.journal",
        help="file from which an interrupted run goes on",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes")
    parser.add_argument("--dask", help="address of a Dask scheduler, whose workers are used instead")
    return parser


def train(cells: Sequence[Cell], seeds: int, given: argparse.Namespace) -> list[dict[str, list[float]]]:
    """Return the measures of each cell, one number a seed: NaN where there is none."""
    given.journal.parent.mkdir(exist_ok=True)
    with Sweep(given.workers, dask=given.dask, journal=given.journal, progress=True) as sweep:
        found = [results for _, results in sweep.run(cell.job(seeds) for cell in cells)]
    return [
        {
            measure: [math.nan if item[measure][0] is None else item[measure][0] for item in results]
            for measure in MEASURES
        }
        for results in found
    ]
