"""Loops compiled by Numba: written as real files into a cache folder, so that Numba's own cache serves."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.checks.processor import check_subnormals
from mcfsim.compile.lowering import Lowered, lower
from mcfsim.compile.numba_source import source, types
from mcfsim.compile.program import Program, flat
from mcfsim.kernels.element.on_numpy import DTYPES
from mcfsim.storage.files import write_text


class Loop:
    """A program compiled to one loop over elements.

    Parameters
    ----------
    program : Program

    Raises
    ------
    ImportError
        If Numba is not installed.
    UnsupportedFormatError
        If an operation of the program has no exact path in binary64.
    """

    def __init__(self, program: Program) -> None:
        self.lowered: Lowered = lower(program)
        self.program = program
        self.source = source(
            self.lowered.line,
            self.lowered.results,
            tuple(x.name for x in program.inputs),
            program.scalars,
            f"{program.name}, {len(program.steps)} operations.",
        )
        self._loop = _loaded(self.source)
        self._types = types(self.lowered.line)

    def __call__(self, *operands: Any, **scalars: Any) -> Any:
        """Carry the program out on arrays.

        Parameters
        ----------
        *operands : array or (nested) tuple of arrays
            As the text takes them: values of their formats, which is not checked, in the carriers;
            one-dimensional, contiguous and of one length.
        **scalars : float
            The real scalars, by name.

        Returns
        -------
        array or (nested) tuple of arrays
            As the text returns them.
        """
        check_subnormals()
        arrays = list(flat(operands))
        for x, array in zip(self.program.inputs, arrays, strict=True):
            if array.dtype != DTYPES[self._types[x.name]] or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(f"{x.name} must be a contiguous vector of {DTYPES[self._types[x.name]]}")
            if array.size != arrays[0].size:
                raise ValueError(f"{x.name} has {array.size} elements, not {arrays[0].size}")
        numbers = self.lowered.check_scalars({name: scalars[name] for name in self.program.scalars})
        results = [np.empty(arrays[0].size, DTYPES[result.type]) for result in self.lowered.results]
        self._loop(*arrays, *numbers.values(), *results)
        rest = iter(results)
        return _filled(self.program.results, rest)


def _filled(nested: Any, rest: Any) -> Any:
    return tuple(_filled(item, rest) for item in nested) if isinstance(nested, tuple) else next(rest)


def folder() -> Path:
    """Return the folder of generated sources."""
    from platformdirs import user_cache_path

    return Path(user_cache_path("mcfsim")) / "loops"


@lru_cache(maxsize=256)
def _loaded(text: str) -> Callable[..., None]:
    """Return the function of a generated module, which is written if it is not there."""
    name = f"loop_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    path = folder() / f"{name}.py"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    loop: Callable[..., None] = module.loop
    return loop
