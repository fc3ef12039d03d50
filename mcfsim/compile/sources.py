"""Generated sources: a straight line of machine operations as statements, and modules as cached files.

They are files because Numba's and Triton's own caches work for files, which can be read and debugged.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import Value
from mcfsim.storage.files import write_text

# -- statements, one a verb -------------------------------------------------------------------------------
#: Verbs that all languages of the sources write alike, and those that convert to the type of the result.
INFIX = {
    **{"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "and": "{} & {}", "or": "{} | {}"},
    **{"xor": "{} ^ {}", "shl": "{} << {}", "sar": "{} >> {}"},
    **{"lt": "{} < {}", "le": "{} <= {}", "eq": "{} == {}"},
}
CASTS = ("widen", "narrow", "extend", "cut", "count")
#: The arguments on which random words depend, besides the index.
KEY = ("seed_low", "seed_high", "step", "place")


class Statements(NamedTuple):
    """The statements of a line.

    Attributes
    ----------
    constants : dict of str to Value
        The constants that they use, by name.
    body : list of str
        Statements and notes, in order.
    results : list of str
        The names of the requested values.
    """

    constants: dict[str, Value]
    body: list[str]
    results: list[str]


def table_name(key: Any) -> str:
    """Return the name in a source of the table with a key."""
    return f"T{hashlib.sha256(str(key).encode()).hexdigest()[:12]}"


def module_head(about: str, imports: str) -> str:
    """Return the first lines of a module's source: its docstring and its imports."""
    return (
        f'"""{about}\n\n'
        "Made by mcfsim: what it says of itself holds as long as the text does that it was made from.\n"
        f'"""\n\n{imports}\n'
    )


def indented(body: Iterable[str], depth: int = 1) -> str:
    """Return statements as lines of source, indented by `depth` levels."""
    return "".join(f"{'    ' * depth}{statement}\n" for statement in body)


def noted(lowered: Lowered, values: Iterable[Value]) -> Iterator[tuple[Value, str]]:
    """Yield values in order, each with the note of the operation that begins with it; empty if none does."""
    notes, last = sorted(lowered.notes.items(), reverse=True), ""
    for value in values:
        if value.verb in ("input", "constant"):
            yield value, ""
            continue
        while notes and notes[-1][0] <= value.number:
            last = notes.pop()[1]
        yield value, last
        last = ""


def statements(
    lowered: Lowered,
    results: Sequence[Value],
    read: Callable[[Value], str],
    expression: Callable[[Value, list[str]], str],
    *,
    hardware: bool = False,
) -> Statements:
    """Return a line as statements, one per verb (machine operation).

    Parameters
    ----------
    lowered : Lowered
        The line. Its numbers, the same for all elements, keep their names.
    results : sequence of Value
        The requested values.
    read : callable
        Returns the expression that reads an input: an operand, a word, or the number of the element.
    expression : callable
        Returns a verb as an expression, given a value and the names of its operands.
    hardware : bool, optional
        Whether to use the verbs of `mcfsim.kernels.element.gpu_verbs` where they were noted.
    """
    constants: dict[str, Value] = {}
    numbers = set(lowered.numbers)

    def name(value: Value) -> str:
        if value in numbers:
            return str(value.constant)
        if value.verb == "constant":
            constants[f"c{value.number}"] = value
            return f"c{value.number}"
        return f"r{value.number}"

    body: list[str] = []
    for value, note in noted(lowered, lowered.line.needed(tuple(results), hardware=hardware)):
        body += [f"# {note}"] if note else []
        if value.verb not in ("input", "constant"):
            body.append(f"{name(value)} = {expression(value, [name(x) for x in value.operands])}")
        elif value.verb == "input" and value not in numbers:
            body.append(f"{name(value)} = {read(value)}")
    return Statements(constants, body, [name(value) for value in results])


# -- files in the cache -----------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mcfsim-"))


def folder() -> Path:
    """Return the folder of generated sources: the user's, or one of this process if that is not writable."""
    from platformdirs import user_cache_path

    found = Path(user_cache_path("mcfsim")) / "loops"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _own_folder()
    return found if os.access(found, os.W_OK | os.X_OK) else _own_folder()


def path_of(text: str, depends: bytes = b"") -> Path:
    """Return the path of a generated source, which may depend on other sources."""
    return folder() / f"loop_{hashlib.sha256(depends + text.encode()).hexdigest()[:20]}.py"


def imported(text: str, path: Path | None = None) -> ModuleType:
    """Import a generated module anew, writing its file if it does not exist.

    If that fails, Python's cached files of it are deleted, and it is imported again: a crash of the machine
    leaves files that are empty or truncated.
    """
    path = path_of(text) if path is None else path
    try:
        return _imported(text, path)
    except Exception:
        forget(path)
        return _imported(text, path)


def kept(path: Path) -> list[Path]:
    """Return the files that Python and Numba keep of a source."""
    return list((path.parent / "__pycache__").glob(f"{path.stem}.*"))


def forget(path: Path) -> None:
    """Delete the files that Python and Numba keep of a source."""
    for found in kept(path):
        found.unlink(missing_ok=True)


def _imported(text: str, path: Path) -> ModuleType:
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
