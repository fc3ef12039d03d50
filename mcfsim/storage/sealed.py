"""Checks on file headers: JSON of the annotated types, a digest for each tensor, a seal for the header.

Anyone may have altered a file. A digest shows a changed byte of its tensor, the seal one of the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike, read_text, write_text
from mcfsim.storage.tensors import FileOfTensorsError, Tensor


# -- JSON, checked against annotated types ----------------------------------------------------------------
def without_nan(data: Any) -> Any:
    """Return data for JSON: tuples become lists, NaN and infinities null, and NumPy's numbers Python's."""
    if isinstance(data, Mapping):
        return {key: without_nan(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [without_nan(item) for item in data]
    if isinstance(data, np.generic):
        data = data.item()
    return None if isinstance(data, float) and not math.isfinite(data) else data


def parse(text: str) -> Any:
    """Parse JSON text.

    Raises
    ------
    ValueError
        If it is not JSON, repeats a name in an object, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def build(kind: Any, data: Any, place: str) -> Any:
    """Convert JSON data to the type that an annotation names.

    Parameters
    ----------
    kind : annotation
        A dataclass, built field by field; ``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]``, ``X | None``,
        a Literal of strings, int, float, str, bool, or Any.
    data : JSON data
        A float must be finite; a bool is no int.
    place : str
        Name of the data in errors; empty for a whole file.

    Raises
    ------
    ValueError
        If something is missing, has another type, or is not known; or if a dataclass refuses its fields.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, UnionType):
        (other,) = (item for item in inner if item is not NoneType)
        return None if data is None else build(other, data, place)
    if origin is Literal:
        _demand(isinstance(data, str) and data in inner, data, place, f"one of {', '.join(inner)}")
        return data
    if is_dataclass(kind):
        return _built(kind, data, place)
    if origin is tuple:
        _demand(isinstance(data, list), data, place, "a list")
        if inner[-1] is not Ellipsis:
            _demand(len(data) == len(inner), data, place, f"a list of {len(inner)}")
        kinds = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(
            build(item, x, f"{place}[{i}]") for i, (item, x) in enumerate(zip(kinds, data, strict=True))
        )
    if origin is dict:
        _demand(isinstance(data, dict), data, place, "an object")
        return {name: build(inner[1], x, f"{place}.{name}") for name, x in data.items()}
    if kind is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        _demand(number and abs(data) <= sys.float_info.max, data, place, "a finite number")
    else:
        _demand(type(data) is kind, data, place, f"of type {kind.__name__}")
    return data


def _built(kind: Any, data: Any, place: str) -> Any:
    hints = _hints(kind)
    _demand(isinstance(data, dict), data, place or "the whole", "an object")
    within = f" in {place}" if place else ""
    _check_names(data, hints, within)
    prefix = place and f"{place}."
    built = {name: build(field, data[name], f"{prefix}{name}") for name, field in hints.items()}
    try:
        return kind(**built)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{problem}{within}") from problem


def _check_names(given: Iterable[str], wanted: Iterable[str], within: str) -> None:
    """Raise ValueError unless the names given are those wanted."""
    given, wanted = list(given), list(wanted)
    if missing := [name for name in wanted if name not in given]:
        raise ValueError(f"{missing[0]!r} is missing{within}")
    if stray := [name for name in given if name not in wanted]:
        raise ValueError(f"{shortened(stray[0])} is not known{within}")


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _demand(met: bool, data: Any, place: str, wanted: str) -> None:
    if not met:
        raise ValueError(f"{place} must be {wanted}, not {shortened(data)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shortened(max(names, key=names.count))} is named twice")
    return made


# -- records in JSON files, with a digest -------------------------------------------------------------------
#: Longest description of a problem, in characters: a file may have pages in place of a number.
_SAID = 300


class SealedRecord:
    """A frozen dataclass that is kept as a JSON file, with a summary for readers and a digest of the fields.

    Attributes
    ----------
    layout : str
        Version of the file's layout.
    kind : str
        What the file is, for errors.
    largest : int
        Largest size of a file, in bytes.
    """

    layout: ClassVar[str]
    kind: ClassVar[str]
    largest: ClassVar[int]

    @property
    def digest(self) -> str:
        """SHA-256 of all fields that count in comparisons."""
        counted = {item.name for item in fields(self) if item.compare}  # type: ignore[arg-type]
        content = {name: x for name, x in asdict(self).items() if name in counted}  # type: ignore[call-overload]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return the file's further data, which must agree with the fields."""
        return {}

    def check(self) -> None:
        """Raise ValueError for content that no record can have."""

    def save(self, path: Pathlike) -> None:
        """Write the record as JSON; replace an old file only when all is written."""
        about = asdict(self)  # type: ignore[call-overload]
        about = {"layout": self.layout, **about, **self.summary(), "digest": self.digest}
        write_text(path, json.dumps(about, indent=1) + "\n")

    @classmethod
    def load(cls, path: Pathlike) -> Self:
        """Return the record that `save` wrote.

        Raises
        ------
        ValueError
            If the file is no such record, or its digest does not match its content.
        """
        try:
            about = parse(read_text(path, cls.largest))
            if not isinstance(about, dict):
                raise ValueError("it is no JSON object")
            if about.get("layout") != cls.layout:
                raise ValueError(f"its layout is not {cls.layout!r} but {about.get('layout')!r}")
            own = {item.name for item in fields(cls)}  # type: ignore[arg-type]
            record: Self = build(cls, {name: x for name, x in about.items() if name in own}, "")
            record.check()
            summary = record.summary()
            _check_names(sorted(about.keys() - own), ("layout", *summary, "digest"), "")
            for name, x in summary.items():
                if json.dumps(about[name]) != json.dumps(x):
                    raise ValueError(f"{name} {shortened(about[name])}, but its parts say {x}")
        except (ValueError, ZeroDivisionError) as problem:
            said = str(problem) if len(str(problem)) <= _SAID else f"{str(problem)[:_SAID]}..."
            raise ValueError(f"{os.fspath(path)} is no {cls.kind}: {said}") from problem
        if record.digest != about["digest"]:
            raise ValueError(f"{os.fspath(path)} was changed: its digest is not that of its content")
        return record


# -- seals and digests ------------------------------------------------------------------------------------
#: The kinds of files that headers name: weights or one step of recorded gradients; an optimizer's state.
RECORDING, STATE = "mcfsim-recording-1", "mcfsim-state-1"
#: Dtype, as named in files, and shape of each tensor.
Forms = Mapping[str, tuple[str, tuple[int, ...]]]
#: Elements read at a time for a digest.
AT_ONCE = 1 << 20


def sealed(kind: str, forms: Forms, digests: Mapping[str, str], about: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a header, with digests of its tensors and a seal over all of it.

    Parameters
    ----------
    kind : str
        `RECORDING` or `STATE`.
    forms : mapping of str to (str, tuple of int)
        Dtype and shape of each tensor.
    digests : mapping of str to str
        SHA-256 of each tensor's bytes.
    about : mapping of str to str
        Further metadata.
    """
    said = {"format": kind, "tensors": json.dumps(dict(digests)), **about}
    return {**said, "sha256": _seal(forms, said)}


def unsealed(
    path: Pathlike, tensors: Mapping[str, Tensor], about: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Check a header's seal; return the digests of its tensors, in the header's order, and other metadata.

    Raises
    ------
    FileOfTensorsError
        If the header has been changed since it was written, or belongs to other tensors.
    """
    said = dict(about)
    forms = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if said.pop("sha256", None) != _seal(forms, said):
        raise FileOfTensorsError(path, "has a damaged header: its digest is not the one recorded")
    try:
        digests: dict[str, str] = build(dict[str, str], parse(said["tensors"]), "tensors")
    except (KeyError, ValueError) as problem:
        raise FileOfTensorsError(path, f"has a header that mcfsim did not write: {problem}") from problem
    if digests.keys() != tensors.keys():
        raise FileOfTensorsError(
            path, "has a header that mcfsim did not write: its digests are of other tensors"
        )
    return digests, said


def digest(elements: NDArray[Any]) -> str:
    """Return the SHA-256 of contiguous elements, as stored in a file, in hexadecimal."""
    return hashlib.sha256(_bytes(elements)).hexdigest()


def digest_of(tensor: Tensor, look: Any = None) -> str:
    """Return the SHA-256 of a tensor's bytes, read a block at a time; pass each block to `look`, if given."""
    whole = hashlib.sha256()
    for elements in tensor.blocks(AT_ONCE):
        whole.update(_bytes(elements))
        if look is not None:
            look(elements)
    return whole.hexdigest()


def check_digest(path: Pathlike, name: str, found: str, recorded: str) -> None:
    """Raise FileOfTensorsError unless a tensor has the digest recorded in its header."""
    if found != recorded:
        raise FileOfTensorsError(path, f"tensor {name!r} is damaged: its digest is not the one recorded")


def check_weights(path: Pathlike, about: Mapping[str, str]) -> None:
    """Raise FileOfTensorsError if a header says that its file holds no weights."""
    if about.get("format") == RECORDING and "step" in about:
        raise FileOfTensorsError(
            path, f"has the gradients of step {about['step']} of a recording, no weights"
        )
    if about.get("format") == STATE:
        raise FileOfTensorsError(path, "has an optimizer's state, whose moments are no weights")


def _bytes(elements: NDArray[Any]) -> memoryview:
    return np.ravel(elements).data.cast("B") if elements.size else memoryview(b"")


def _seal(forms: Forms, about: Mapping[str, str]) -> str:
    """Return the SHA-256 of the whole content of a header."""
    listed = [[name, dtype, list(shape)] for name, (dtype, shape) in sorted(forms.items())]
    return hashlib.sha256(json.dumps([listed, sorted(about.items())]).encode()).hexdigest()
