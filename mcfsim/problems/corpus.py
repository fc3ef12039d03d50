"""Text to train a language model on."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import DataStream, check_size, generator

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Bytes of real text, of which the last tenth is held out.

    Corpora are equal if their bytes are, that is if their digests are equal.

    Attributes
    ----------
    training, validation : ndarray of uint8
        The first nine tenths and the rest, read-only.
    digest : str
        SHA-256 of all the bytes, in hexadecimal.
    description : str
        Where the text is from.
    modules : int, optional
        The argument of `from_standard_library`, if the text is from there.
    """

    training: Bytes = field(repr=False, compare=False)
    validation: Bytes = field(repr=False, compare=False)
    digest: str
    description: str = field(compare=False)
    modules: int | None = field(default=None, compare=False)

    @classmethod
    def from_bytes(cls, text: bytes, description: str, modules: int | None = None) -> Corpus:
        """Return a corpus of this text."""
        data = np.frombuffer(text, dtype=np.uint8)  # read-only, as bytes are
        cut = len(data) - len(data) // 10
        return cls(data[:cut], data[cut:], hashlib.sha256(text).hexdigest(), description, modules)

    @classmethod
    def from_standard_library(cls, modules: int = 60) -> Corpus:
        """Return the sources of the first top-level modules of Python's standard library, by name.

        Every machine with Python has them. They differ between versions of Python (and sometimes between
        distributors of one version), so results are comparable only where the digest is the same.

        Parameters
        ----------
        modules : int, optional
            How many modules, or all if there are fewer; unreadable ones do not count, nor does
            ``_sysconfigdata*``, which differs from build to build.
        """
        check_size("modules", modules)
        folder = Path(sysconfig.get_path("stdlib"))
        sources: list[bytes] = []
        for path in sorted(folder.glob("*.py"), key=lambda path: path.name):
            if path.name.startswith("_sysconfigdata"):
                continue
            try:
                sources.append(path.read_bytes())
            except OSError:
                continue
            if len(sources) == modules:
                break
        if not sources:
            raise FileNotFoundError(f"no sources of Python's standard library can be read in {folder}")
        description = f"{len(sources)} modules of the standard library of Python {platform.python_version()}"
        return cls.from_bytes(b"".join(sources), description, modules)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Corpus:
        """Return the corpus that `settings` described, or raise ValueError if this machine has another."""
        if settings["modules"] is None:
            raise ValueError(f"the corpus ({settings['description']}) cannot be rebuilt: pass it as corpus=")
        return cls.from_standard_library(settings["modules"]).require(settings)

    def settings(self) -> dict[str, object]:
        """Return JSON-able data that identify the text."""
        return {"modules": self.modules, "digest": self.digest, "description": self.description}

    def require(self, settings: Mapping[str, Any]) -> Corpus:
        """Return the corpus itself if it is the one of these settings, or raise ValueError."""
        if self.digest != settings["digest"]:
            raise ValueError(
                f"the text differs: the settings name a corpus with digest {settings['digest']} "
                f"({settings['description']}), but the one present has {self.digest} ({self.description})"
            )
        return self

    def training_windows(self, count: int, length: int, *, step: int, seed: int) -> Bytes:
        """Return windows of the training text, one a row, at offsets that (seed, step) alone choose."""
        last = len(self.training) - length
        offsets = generator(seed, DataStream.BATCH, step).integers(last, size=count, endpoint=True)
        return _windows(self.training, offsets, length)

    def validation_windows(self, count: int, length: int) -> Bytes:
        """Return evenly spaced windows of the held-out text, one a row."""
        offsets = np.arange(count) * (len(self.validation) - length) // max(count - 1, 1)
        return _windows(self.validation, offsets, length)


def _windows(text: Bytes, offsets: NDArray[np.int64], length: int) -> Bytes:
    windows: Bytes = text[offsets[:, None] + np.arange(length)]
    return windows
