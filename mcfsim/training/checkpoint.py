"""Checkpoints of a simulation: everything that the next step depends on, and the series so far."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.optim.optimizer import Optimizer
from mcfsim.storage.archive import ArraySpec, Forms, read_archive, write_archive
from mcfsim.storage.files import check_outputs, check_space
from mcfsim.training.record import Run, check_kinds, check_versions
from mcfsim.training.setup import Setup
from mcfsim.training.trainer import Trainer

FORMAT = "mcfsim-checkpoint-2"

_KINDS = {"format": str, "settings": dict, "versions": dict, "problem": str, "step": int}
#: An exact number: an integer times a power of two, both in hexadecimal, for which Python has no limit on
#: digits.
_EXACT = re.compile(r"(-?)0x([0-9a-f]+)p(-?)([0-9a-f]+)")
_SPECIAL = ("inf", "-inf", "nan")


class _Kept(NamedTuple):
    """The state after a step: copies of the arrays, and how many numbers each series had."""

    step: int
    arrays: dict[str, NDArray[Any]]
    recorded: int


class Checkpoint:
    """The file from which an interrupted run continues.

    Parameters
    ----------
    path : path
        The file.
    run : Run
        Its settings and versions say which run it is.
    setup : Setup
        All that the run depends on.
    trainers : mapping of str to Trainer
        Trainers with the states to be saved; at the start of the run.
    measures : mapping of str to sequence of str
        The series that each of them records.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Run,
        setup: Setup,
        trainers: Mapping[str, Trainer],
        measures: Mapping[str, Sequence[str]],
    ) -> None:
        self.path, self.run, self.setup, self.trainers = path, run, setup, trainers
        self.recorded = setup.recorded
        self.problem = setup.fingerprint()
        self.measures = measures
        self._kept: _Kept
        self._saved: int | None = None
        self._found: tuple[int, ...] | None = None

    def resume(self) -> int:
        """Load the saved state into the trainers and return its step; if there is no file, save the start.

        From then on the path belongs to this run, and another run that uses it is refused at once.

        Raises
        ------
        ValueError
            If the file is of another run, or of other versions, whose bits might differ; if it is damaged, or
            holds data that no run saves. The trainers are not changed then.
        OutputError
            If the file cannot be written, or the disk has no room for it.
        """
        check_outputs({"checkpoint": self.path})
        self.keep(0)
        check_space(self.path, sum(array.nbytes for array in self._kept.arrays.values()))
        self._found = _signature(self.path)
        if self._found is None:
            try:
                self.save()
                return 0
            except FileExistsError:  # another run made it meanwhile
                self._found = _signature(self.path)
        about, arrays = read_archive(self.path, self._check)
        step = int(about["step"])
        try:
            values = self._values(arrays, step)
        except ValueError as problem:
            raise ValueError(f"{os.fspath(self.path)} {problem}") from problem
        for trainer in self.trainers.values():
            trainer.enter(step, self.setup)
        for key, array in self._states(step).items():
            array[...] = values[key]
        for name, trainer in self.trainers.items():
            trainer.optimizer.count = step
            if self.recorded(step):
                trainer.series = {
                    measure: arrays[f"{name}|series|{measure}"].tolist() for measure in self.measures[name]
                }
        self.keep(step)
        self._saved = step
        return step

    def keep(self, step: int) -> None:
        """Copy the state after a step for `save`, which may be called in the middle of the next step."""
        arrays = {key: array.copy() for key, array in self._states(step).items()}
        self._kept = _Kept(step, arrays, self.recorded(step))

    def save(self) -> None:
        """Write the state that was kept last; replace an older file at once.

        Raises
        ------
        ValueError
            If another run has meanwhile written to the path.
        OutputError
            If the file cannot be written.
        """
        step, states, recorded = self._kept
        found = _signature(self.path)
        if self._saved == step and found == self._found:
            return
        if found is not None and found != self._found:
            read_archive(self.path, self._check)  # a file of the same run is replaced, another one refused
        arrays = {key: _pack(array) for key, array in states.items()}
        if recorded:
            for name, trainer in self.trainers.items():
                for measure, numbers in trainer.series.items():
                    arrays[f"{name}|series|{measure}"] = np.array(numbers[:recorded], dtype=np.float64)
        about = {
            "format": FORMAT,
            "settings": self.run.settings,
            "versions": self.run.versions,
            "problem": self.problem,
            "step": step,
        }
        write_archive(self.path, about, arrays, exclusive=found is None)
        self._saved, self._found = step, _signature(self.path)

    def _check(self, about: dict[str, Any], forms: Forms) -> None:
        """Raise ValueError unless JSON data and forms of arrays are those of a checkpoint of this run."""
        if about.get("format") != FORMAT:
            raise ValueError(f"is no checkpoint of a simulation, {FORMAT!r}")
        check_kinds(about, _KINDS)
        check_versions(about["versions"])
        for how in self._differences(about):
            raise ValueError(f"is of another run: {how}; remove it or choose another path")
        step, last = about["step"], self.run.settings["steps"]
        if not 0 <= step <= last:
            raise ValueError(f"has a state after step {step:#x} of a run of {last} steps")
        expected = {key: _form(array) for key, array in self._states(step).items()}
        if recorded := self.recorded(step):
            for name, measures in self.measures.items():
                series = ArraySpec(np.dtype("<f8"), (recorded,))
                expected |= {f"{name}|series|{measure}": series for measure in measures}
        if differing := sorted(expected.keys() ^ forms.keys()):
            raise ValueError(f"lacks the array {differing[0]!r}, or has it although the run does not")
        for key, wanted in expected.items():
            dtype, shape = forms[key]
            text = dtype.kind == wanted.dtype.kind == "U"  # only its writer knows its length
            if shape != wanted.shape or not (text or dtype == wanted.dtype):
                raise ValueError(f"has {key!r} as {dtype} of shape {shape}, unlike the run")

    def _differences(self, about: Mapping[str, Any]) -> Iterator[str]:
        """Yield how the run of a file differs from this one."""
        for part in ("settings", "versions"):
            ours, theirs = getattr(self.run, part), about[part]
            differing = [
                key for key in sorted({*ours, *theirs}) if _plain(ours.get(key)) != _plain(theirs.get(key))
            ]
            if differing:
                yield f"{part} differ in {', '.join(differing)}"
        if about["problem"] != self.problem:
            yield "what the problem, or a custom optimizer, computes at the start differs"

    def _optimizers(self, step: int) -> dict[str, Optimizer]:
        """Return the optimizers, those of the phases of a step, by name."""
        return {name: trainer.optimizer_at(step, self.setup) for name, trainer in self.trainers.items()}

    def _states(self, step: int) -> dict[str, NDArray[Any]]:
        """Return every array that the step after one reads, by strategy and name.

        Loading fills them in place, once the trainers have entered the phase of that step.
        """
        named: dict[str, NDArray[Any]] = {}
        for name, optimizer in self._optimizers(step).items():
            trainer = self.trainers[name]
            parts = {**optimizer.state._asdict(), "average": trainer.averages.values()}
            if optimizer.grid is not None and len(trainer.phases.phases) > 1:  # or it follows from the start
                parts["grid"] = optimizer.grid.kept
            named |= {f"{name}|{part}{i}": x for part, items in parts.items() for i, x in enumerate(items)}
            named[f"{name}|diverged_at"] = trainer.diverged_at
        return named

    def _values(self, arrays: Mapping[str, NDArray[Any]], step: int) -> dict[str, NDArray[Any]]:
        """Return the states saved; refuse numbers that are not values of the format they are stored in."""
        values, optimizers = {}, self._optimizers(step)
        for key, array in self._states(step).items():
            name, _, part = key.partition("|")
            optimizer = optimizers[name]
            stored = optimizer.strategy.tensors.get(part.rstrip("0123456789"))
            values[key] = arrays[key]
            if array.dtype == object:
                values[key] = _unpack(arrays[key], optimizer.roles.moments)
            elif stored is not None and stored.format is not None:  # averages may be any binary64 numbers
                _check_values(arrays[key], stored.format, key)
        return values


def _form(array: NDArray[Any]) -> ArraySpec:
    """Return dtype and shape of an array in a file, where exact numbers are texts."""
    dtype = np.dtype(np.str_) if array.dtype == object else array.dtype
    return ArraySpec(dtype.newbyteorder("<"), array.shape)


def _signature(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return numbers that change when another file takes a file's place; None if there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_values(saved: NDArray[Any], fmt: Format, label: str) -> None:
    """Raise ValueError unless rounding numbers to a format changes none of them."""
    with np.errstate(all="ignore"):
        rounded = round_to(saved, fmt)
    same = (rounded == saved) & (np.signbit(rounded) == np.signbit(saved))
    if not (same | (np.isnan(rounded) & np.isnan(saved))).all():
        strange = saved[~same][0]
        raise ValueError(f"has {strange!r} in {label!r}, which is no value of {fmt}")


def _pack(array: NDArray[Any]) -> NDArray[Any]:
    """Return a plain array: exact numbers become text."""
    if array.dtype != object:
        return array
    return np.array([_text(number) for number in array], dtype=np.str_)


def _text(number: Any) -> str:
    """Return an mpf as text like ``-0x1afp-3``, with all its bits and an exponent of any length."""
    if number - number != 0:  # NaN or infinite
        return str(float(number))
    mantissa, exponent = (int(part) for part in number.man_exp)  # of the magnitude
    signs = ["-" if negative else "" for negative in (number < 0, exponent < 0)]
    return f"{signs[0]}0x{mantissa:x}p{signs[1]}{abs(exponent):x}"


def _unpack(texts: NDArray[Any], arithmetic: Any) -> NDArray[Any]:
    """Return exact numbers from their texts; raise ValueError unless `_text` writes each one so."""
    numbers = np.empty(texts.shape, dtype=object)
    for i, text in enumerate(map(str, texts)):
        if text in _SPECIAL:
            numbers[i] = arithmetic.context.mpf(text)
            continue
        parts = _EXACT.fullmatch(text)
        if parts is None:
            raise ValueError(f"has {text[:40]!r}, which is no exact number")
        negative, mantissa, below, exponent = parts.groups()
        signed = (int(mantissa, 16) * (-1 if negative else 1), int(exponent, 16) * (-1 if below else 1))
        numbers[i] = arithmetic.context.mpf(signed)  # rounded to the precision, which shows in the text
        if _text(numbers[i]) != text:
            raise ValueError(f"has {text[:40]!r}, which is no number of {arithmetic.precision} bits")
    return numbers


def _plain(value: Any) -> str:
    """Return a value as JSON text, in which NaN equals NaN."""
    return json.dumps(value, sort_keys=True)
