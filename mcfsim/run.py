"""The record of a simulation: settings, versions and series in one self-describing file."""

from __future__ import annotations

import json
import os
import platform
import zlib
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

FORMAT = "mcfsim-run-1"


@dataclass(eq=False, repr=False)
class Run:
    """What a simulation recorded.

    Attributes
    ----------
    settings : dict
        JSON data from which the run can be repeated: problem (with its corpus digest), optimizer,
        strategies, steps, schedule, seed and so on.
    versions : dict of str to str
        Of this package, Python, NumPy and so on.
    steps : array of int
        The recorded steps, counted from 1.
    series : dict of str to dict of str to array
        ``series[strategy][measure]``, one number a recorded step. A measure of one tensor has the name
        ``measure/tensor``.
    results : dict of str to dict of str to float
        ``results[strategy][name]``: numbers of the whole run, as ``validation_loss``; ``diverged_at`` is the
        first step that met or left a number that is not finite, of a strategy that diverged.

    Notes
    -----
    Runs are equal if all of these are, with NaN equal to NaN, and lists to tuples as JSON has it.
    """

    settings: dict[str, Any]
    versions: dict[str, str]
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    series: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    results: dict[str, dict[str, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [f"{self.settings['steps']} steps"] if "steps" in self.settings else []
        parts = [*self._names("problem", "kind"), *self._names("optimizer", "name"), *parts]
        ends = [
            f"{name}: diverged at step {found['diverged_at']}" if "diverged_at" in found else name
            for name, found in self.results.items()
        ]
        return f"<Run of {', '.join(parts) or 'nothing'}; {', '.join(ends) or 'no results'}>"

    def _names(self, label: str, key: str) -> list[str]:
        described = self.settings.get(label)
        return [str(described[key])] if isinstance(described, dict) and key in described else []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return all(_same(getattr(self, part.name), getattr(other, part.name)) for part in fields(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to an ``.npz`` file: arrays ``strategy|measure``, and JSON text ``about``.

        The file is replaced at once when all of it is written, so none is ever half there.
        """
        about = {
            "format": FORMAT,
            "settings": self.settings,
            "versions": self.versions,
            "results": self.results,
        }
        arrays = {
            f"{strategy}|{measure}": numbers
            for strategy, by_measure in self.series.items()
            for measure, numbers in by_measure.items()
        }
        write_arrays(path, about, {"steps": self.steps, **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If the file is none of ours.
        """
        about, arrays = read_arrays(path)
        if about.get("format") != FORMAT:
            raise ValueError(f"{os.fspath(path)} holds {about.get('format')!r}, not {FORMAT!r}")
        run = cls(about["settings"], about["versions"], arrays.pop("steps"), results=about["results"])
        for key, numbers in arrays.items():
            strategy, measure = key.split("|", 1)
            run.series.setdefault(strategy, {})[measure] = numbers
        return run

    def late(self, strategy: str, measure: str, share: float = 0.2) -> float:
        """Return the mean of a series over the last share of its recorded steps."""
        numbers = self.series[strategy][measure]
        return float(np.mean(numbers[-max(1, round(share * numbers.size)) :]))


def _same(a: Any, b: Any) -> bool:
    """Whether nested dicts, lists, arrays and numbers are equal, NaN to NaN, and tuples to lists."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return bool(a == b or (a != a and b != b))


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("mcfsim", "numpy", "mpmath"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_arrays(
    path: str | os.PathLike[str], about: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    """Write arrays and JSON data to one ``.npz`` file, replacing an old one only when all is written."""
    target = Path(path)
    text = np.array(json.dumps(about))
    scratch = target.with_name(f".{target.name}.{uuid4().hex}.npz")
    try:
        with open(scratch, "xb") as file:
            np.savez_compressed(file, allow_pickle=False, about=text, **arrays)
        os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `write_arrays` wrote.

    Raises
    ------
    ValueError
        If it is no such file.
    """
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        if not isinstance(about, dict):
            raise ValueError(f"{about!r} describes nothing")
    except (KeyError, ValueError, EOFError, TypeError, BadZipFile, zlib.error) as problem:
        raise ValueError(f"{os.fspath(path)} is no file of mcfsim: {problem}") from problem
    return about, arrays
