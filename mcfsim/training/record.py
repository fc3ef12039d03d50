"""The record of a simulation: settings, versions and series in one self-describing file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.archive import ArraySpec, Forms, read_archive, write_archive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "mcfsim-run-2"

_STEPS = "steps"


@dataclass(eq=False, repr=False)
class Run:
    """The record of a simulation.

    Attributes
    ----------
    settings : dict
        JSON data from which the run can be repeated: problem (with its corpus digest), optimizer,
        strategies, steps, schedule, seed and so on.
    versions : dict of str to str
        Versions of this package, Python, NumPy and so on. ``blas`` names the library for matrix products and
        its kernel; the last bits of losses and gradients depend on them.
    steps : array of int
        The recorded steps, counted from 1.
    series : dict of str to dict of str to array
        ``series[strategy][measure]``, one number per recorded step. A measure of one tensor has the name
        ``measure/tensor``.
    results : dict of str to dict of str to float
        ``results[strategy][name]``: numbers of the whole run, such as ``validation_loss``. Only a strategy
        that diverged has ``diverged_at``, the first step that met or left a number that is not finite.

    Notes
    -----
    Runs are equal if all of these are equal. NaN equals NaN, and lists equal tuples, as in JSON.
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

        An existing file is replaced at once when all is written, so a file is never half written.

        Raises
        ------
        ValueError
            If a series does not have one number per recorded step, or other data contradict the attributes.
        OutputError
            If no file can be written at the path, see `mcfsim.storage.files.destination`.
        """
        about = {
            "format": FORMAT,
            "settings": self.settings,
            "versions": self.versions,
            "results": self.results,
        }
        arrays = {_STEPS: np.asarray(self.steps, dtype=np.int64)}
        for strategy, by_measure in self.series.items():
            if "|" in strategy:
                raise ValueError(f"the run has a strategy {strategy!r}, whose name must not have a '|'")
            for measure, numbers in by_measure.items():
                arrays[f"{strategy}|{measure}"] = np.asarray(numbers, dtype=np.float64)
        try:
            _check(about, {name: ArraySpec(array.dtype, array.shape) for name, array in arrays.items()})
            _check_steps(self.settings, arrays[_STEPS])
        except ValueError as problem:
            raise ValueError(f"the run {problem}") from None
        write_archive(path, about, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read what `save` wrote, all of it or nothing.

        Raises
        ------
        ValueError
            If the file is not one that `save` wrote, is damaged, or does not hold a valid record of a run.
        OSError
            If it is missing or cannot be read.
        """
        about, arrays = read_archive(path, _check)
        run = cls(about["settings"], about["versions"], arrays.pop(_STEPS), results=about["results"])
        try:
            _check_steps(run.settings, run.steps)
        except ValueError as problem:
            raise ValueError(f"{os.fspath(path)} {problem}") from None
        for key, numbers in arrays.items():
            strategy, measure = key.split("|", 1)
            run.series.setdefault(strategy, {})[measure] = numbers
        return run

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the run, and write the figure to a path if one is given, see `mcfsim.plot`."""
        figure: Figure = import_module("mcfsim").plot(self, path)  # figures are made in a higher layer
        return figure

    def late(self, strategy: str, measure: str, share: float = 0.2) -> float:
        """Return the mean of a series over the last share of its recorded steps.

        A step at rate 0, with which a cosine may end, asks for no update: its NaN does not count.
        """
        series = self.series[strategy]
        count = max(1, round(share * series[measure].size))
        numbers = series[measure][-count:]
        if "rate" in series:
            numbers = numbers[(series["rate"][-count:] != 0) | ~np.isnan(numbers)]
        return float(np.mean(numbers)) if numbers.size else math.nan


def _same(a: Any, b: Any) -> bool:
    """Return whether nested dicts, lists, arrays and numbers are equal; NaN equals NaN, a tuple a list."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return bool(a == b or (a != a and b != b))


def check_kinds(about: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise unless JSON data have exactly these parts, each of its kind.

    Raises
    ------
    ValueError
        The message says what is wrong with the file, as "lacks 'step'".
    """
    for name, kind in kinds.items():
        if name not in about:
            raise ValueError(f"lacks {name!r}")
        if not isinstance(about[name], kind) or isinstance(about[name], bool):
            raise ValueError(f"has {name!r} = {_short(about[name])}, which is no {kind.__name__}")
    if stray := sorted(about.keys() - kinds.keys()):
        raise ValueError(f"has {stray[0]!r}, which is unknown")


def check_versions(texts: Mapping[str, Any]) -> None:
    """Raise ValueError unless all versions are strings."""
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"has version {_short(text)} of {name}")


def _check(about: Mapping[str, Any], forms: Forms) -> None:
    """Raise ValueError unless JSON data and forms of arrays are those of a record of a run."""
    if about.get("format") != FORMAT:
        raise ValueError(f"holds {_short(about.get('format'))}, not {FORMAT!r}")
    check_kinds(about, {"format": str, "settings": dict, "versions": dict, "results": dict})
    check_versions(about["versions"])
    strategies = _strategies(about["settings"])
    for strategy, numbers in about["results"].items():
        _check_strategy(strategy, strategies)
        if not isinstance(numbers, dict):
            raise ValueError(f"has results {_short(numbers)} of {strategy!r}")
        for name, number in numbers.items():
            if not isinstance(number, int | float) or isinstance(number, bool):
                raise ValueError(f"has {_short(number)} for {name!r} of {strategy!r}")
    if _STEPS not in forms or forms[_STEPS].dtype != np.int64 or len(forms[_STEPS].shape) != 1:
        raise ValueError("has no list of the steps recorded")
    for key, form in forms.items():
        strategy, bar, measure = key.partition("|")
        if key == _STEPS:
            continue
        if not bar or not strategy or not measure:
            raise ValueError(f"has an array {_short(key)}, which is no series")
        _check_strategy(strategy, strategies)
        if form.dtype != np.float64 or form.shape != forms[_STEPS].shape:
            raise ValueError(
                f"has series {key!r} of {form.dtype} and shape {form.shape}; "
                f"it must have one float64 for each of {forms[_STEPS].shape[0]} recorded steps"
            )


def _check_steps(settings: Mapping[str, Any], steps: NDArray[np.int64]) -> None:
    """Raise ValueError unless recorded steps increase and lie between 0 and the run's length."""
    last = settings.get("steps", np.iinfo(np.int64).max)
    if type(last) is not int or last < 0:
        raise ValueError(f"has settings of {_short(last)} steps")
    if steps.size and not (steps[0] >= 0 and steps[-1] <= last and (steps[1:] > steps[:-1]).all()):
        raise ValueError(f"has recorded steps that do not increase, or do not lie within 0 to {last}")


def _strategies(settings: Mapping[str, Any]) -> set[str] | None:
    """Return the names of the strategies in the settings; None if the settings do not have them."""
    given = settings.get("strategies")
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) for item in given
    ):
        raise ValueError("has settings whose strategies have no names")
    return {item["name"] for item in given}


def _check_strategy(name: str, known: set[str] | None) -> None:
    if known is not None and name not in known:
        raise ValueError(f"has numbers of {name!r}, which is none of its strategies")


def _short(value: Any) -> str:
    """Return a value as text, cut if it is long."""
    text = (
        repr(value) if not isinstance(value, int) else f"{value:#x}" if abs(value) >= 10**20 else str(value)
    )
    return text if len(text) <= 80 else f"{text[:77]}..."
