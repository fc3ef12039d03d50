"""Python that Numba compiles: verbs (machine operations) as expressions, and modules as cached files."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcfsim.compile.sources import CASTS, INFIX, forget, imported, kept, path_of, table_name
from mcfsim.kernels.element.machine import TRUTH, Value

#: Verbs as expressions of their operands, without the conversion to the type of the result.
_EXPRESSIONS = {
    **INFIX,
    **{"div": "{} / {}", "neg": "-{}", "abs": "abs({})", "sqrt": "sqrt({})", "select": "select({}, {}, {})"},
    **dict.fromkeys(CASTS, "{}"),
}

NJIT = '@njit(error_model="numpy", fastmath=False, nogil=True, boundscheck=False, cache=True)\n'


def constants_of(constants: Mapping[str, Value], tables: Iterable[str] = ()) -> str:
    """Return the statements that define constants, and tables with given keys."""
    read = [f"{table_name(key)} = table_of({key!r})\n" for key in tables]
    head = ["from mcfsim.kernels.elementary import table_of\n"] if read else []
    return "".join([*head, *(f"{name} = {_constant(x)}\n" for name, x in constants.items()), *read])


def _constant(value: Value) -> str:
    number = value.constant
    assert isinstance(number, int | float)
    text = repr(number)
    if not math.isfinite(number):
        text = "np.nan" if number != number else "np.inf" if number > 0 else "-np.inf"
    return f"{value.type}({text})"


def expression(value: Value, given: list[str]) -> str:
    """Return a verb as an expression of exactly its type: Numba would widen integers and mixed numbers."""
    verb, kind = value.verb, value.type
    if verb == "look_up":
        return f"{table_name(value.constant)}[{given[0]}]"
    if verb in ("bits", "number"):
        return f"{verb}{kind.bits}({given[0]})"
    if verb == "shr":
        text = f"u{kind.bits}({given[0]}) >> u{kind.bits}({given[1]})"
    elif verb == "not":
        text = f"not {given[0]}" if kind is TRUTH else f"~{given[0]}"
    else:
        text = _EXPRESSIONS[verb].format(*given)
    exact = verb == "select" or (verb in ("neg", "abs", "sqrt") and kind.is_float)
    return text if exact or kind is TRUTH else f"{kind}({text})"


# -- compiled functions -----------------------------------------------------------------------------------
def is_available() -> bool:
    """Return whether Numba is installed and not switched off by NUMBA_DISABLE_JIT; nothing is imported."""
    if "numba" in sys.modules:
        return not sys.modules["numba"].config.DISABLE_JIT
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0") and find_spec("numba") is not None


def is_cached(text: str) -> bool:
    """Return whether a source was compiled before on this machine."""
    path = _path_of(text)
    return path.exists() and any(x.suffix == ".nbi" for x in kept(path))


def called(text: str, name: str, *arguments: Any) -> Callable[..., Any]:
    """Return a function of a generated module after a first call, in which Numba compiles or loads it.

    Parameters
    ----------
    text : str
        The source of the module.
    name : str
        The name of the function.
    *arguments
        Arguments of the first call, which should give the function nothing to do.
    """
    path = _path_of(text)

    def call() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(imported(text, path), name)
        function(*arguments)
        return function

    try:
        return call()
    except Exception:  # what Numba kept may be damaged
        forget(path)
        return call()


def _path_of(text: str) -> Path:
    return path_of(text, _called_functions())


@lru_cache(maxsize=1)
def _called_functions() -> bytes:
    """Return the source of the functions that generated sources call: Numba caches their code, too."""
    return (files("mcfsim.analysis") / "intrinsics.py").read_bytes()
