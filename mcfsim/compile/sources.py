"""Generated sources: a straight line of machine operations as statements, and modules as cached files.

They are real files because Numba's own cache works for files, and files can be read and debugged.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from mcfsim.compile import objects
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


def statements(
    lowered: Lowered,
    results: Sequence[Value],
    read: Callable[[Value], str],
    expression: Callable[[Value, list[str]], str],
    *,
    hardware: bool = False,
    values: Iterable[Value] | None = None,
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
    values : iterable of Value, optional
        The values to write, in order; by default all that the results need.
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
    notes = sorted(lowered.notes.items())
    for value in lowered.line.needed(tuple(results), hardware=hardware) if values is None else values:
        if value.verb not in ("input", "constant"):
            begun = [note for start, note in notes if start <= value.number]
            body += [f"# {note}" for note in begun[-1:]]
            notes = notes[len(begun) :]
            body.append(f"{name(value)} = {expression(value, [name(x) for x in value.operands])}")
        elif value.verb == "input" and value not in numbers:
            body.append(f"{name(value)} = {read(value)}")
    return Statements(constants, body, [name(value) for value in results])


# -- files in the cache -----------------------------------------------------------------------------------
Made = TypeVar("Made")


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


#: What is kept of a source, so that files of versions that kept less are not taken.
_KEPT = b"objects"


def path_of(text: str) -> Path:
    """Return the path of a generated source; equal sources that call equal functions share a file."""
    digest = hashlib.sha256(_called_functions() + _KEPT + text.encode()).hexdigest()
    return folder() / f"loop_{digest[:20]}.py"


@lru_cache(maxsize=1)
def _called_functions() -> bytes:
    """Return the source of the functions that generated sources call: Numba caches their code, too."""
    return (files("mcfsim.compile") / "intrinsics.py").read_bytes()


def is_cached(text: str) -> bool:
    """Return whether a source was compiled before on this machine."""
    path = path_of(text)
    return path.exists() and any(path.suffix == ".nbi" for path in _kept(path))


def _kept(path: Path) -> list[Path]:
    """Return the files that Numba and Python keep of a source, but for its objects."""
    return list((path.parent / "__pycache__").glob(f"{path.stem}.*"))


def is_switched_off() -> bool:
    """Return whether NUMBA_DISABLE_JIT switches compiling off, without importing Numba."""
    if "numba" in sys.modules:
        return bool(sys.modules["numba"].config.DISABLE_JIT)
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def called(text: str, name: str, *arguments: Any) -> Callable[..., Any]:
    """Return a function of a generated module after a first call, in which Numba compiles or loads it.

    If there is an object of it, that is loaded instead, and Numba is not imported. What Numba compiles is
    saved as an object, if that is possible.

    Parameters
    ----------
    text : str
        The source of the module.
    name : str
        The name of the function.
    *arguments
        Arguments of the first call, which should leave it nothing to do.

    Raises
    ------
    ImportError
        If Numba is not installed.
    RuntimeError
        If NUMBA_DISABLE_JIT switches compiling off.
    """
    kept = object_of(text, name, arguments)
    if kept is not None and "numba" not in sys.modules and not is_switched_off():
        loaded = objects.load(*kept)
        if loaded is not None:
            loaded(*arguments)
            return loaded
        if kept[0].exists():  # damaged, or of another LLVM: what Numba kept gives no object anew
            _forget(text)
    import numba  # noqa: F401

    if is_switched_off():
        raise RuntimeError("Numba is told to compile nothing (NUMBA_DISABLE_JIT)")

    def call() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(_loaded(text), name)
        function(*arguments)
        return function

    function = _with_what_is_kept(text, call)
    if kept is not None and not kept[0].exists():
        with suppress(OSError):  # as on a full disk
            objects.save(kept[0], function, arguments)
    return function


def is_saved(text: str, name: str, *arguments: Any) -> bool:
    """Return whether a function has an object on this machine, as `called` takes it; nothing is imported."""
    kept = object_of(text, name, arguments)
    return kept is not None and kept[0].exists()


def object_of(text: str, name: str, arguments: Sequence[Any]) -> tuple[Path, tuple[objects.Kind, ...]] | None:
    """Return the path of a function's object, and what it takes; None if no object can take that."""
    kinds = objects.kinds_of(arguments)
    return None if kinds is None else (objects.path_of(path_of(text), name, kinds), kinds)


def imported(text: str) -> ModuleType:
    """Import a generated module anew, writing its file if it does not exist."""
    return _with_what_is_kept(text, lambda: _imported(text))


def _with_what_is_kept(text: str, make: Callable[[], Made]) -> Made:
    """Return the result of `make`; if it fails, delete the cached files of a source and try again.

    A crash of the machine leaves files that are empty or truncated.
    """
    try:
        return make()
    except Exception:
        _forget(text)
        return make()


def _forget(text: str) -> None:
    """Delete what Numba and Python keep of a source, and its objects."""
    source = path_of(text)
    for path in (*_kept(source), *source.parent.glob(f"{source.stem}.*.object")):
        path.unlink(missing_ok=True)
    _loaded.cache_clear()


@lru_cache(maxsize=256)
def _loaded(text: str) -> ModuleType:
    return _imported(text)


def _imported(text: str) -> ModuleType:
    path = path_of(text)
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
