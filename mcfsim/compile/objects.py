"""Machine code of LLVM's sources: compiled, kept as object files, and called."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from mcfsim.checks import check_processor
from mcfsim.compile import llvm_text
from mcfsim.compile.elf import Loaded, UnknownObjectError
from mcfsim.compile.llvm_text import OTHER_KIND
from mcfsim.compile.sources import folder
from mcfsim.storage.files import replacing


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Return whether LLVM is installed; nothing is imported."""
    return find_spec("llvmlite") is not None


# -- files ------------------------------------------------------------------------------------------------
#: How sources are compiled: part of the names of files, so that those compiled otherwise are not used.
_HOW = b"O3, whole vectors, 2"


def path_of(text: str) -> Path:
    """Return the path of the object of a source, for this kind of processor."""
    digest = hashlib.sha256(_HOW + repr(_host()).encode() + text.encode()).hexdigest()
    return folder() / f"{digest[:24]}.object"


@lru_cache(maxsize=1)
def _host() -> tuple[str, ...]:
    """Return LLVM's version and the kind of processor: hosts that share a folder need not share files."""
    import platform

    found = find_spec("llvmlite")  # to ask for its version takes ten times as long
    folder = None if found is None or found.origin is None else Path(found.origin).parents[1]
    installed = "" if folder is None else "".join(sorted(x.name for x in folder.glob("llvmlite-*")))
    about = installed, platform.system(), platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return *about, platform.processor()
    said = ("model name", "flags", "Features", "CPU part")
    return *about, *sorted({x for x in lines if x.startswith(said)})


@lru_cache(maxsize=1)
def has_half() -> bool:
    """Return whether the processor converts to binary16 and back, as far as can be told without LLVM."""
    *_, machine = _host()[:3]
    flags = next((x for x in _host() if x.startswith("flags")), "")
    return machine in ("aarch64", "arm64") or "f16c" in flags.split()


def is_saved(text: str) -> bool:
    """Return whether a source was compiled before on this machine; nothing is imported."""
    return path_of(text).exists()


def _kept(path: Path) -> bytes | None:
    """Return the object in a file; None if there is none, or the file is damaged or another user's."""
    try:
        if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
            return None
        digest, code = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    return code if hashlib.sha256(code).hexdigest().encode() == digest else None


def _keep(path: Path, code: bytes) -> None:
    with suppress(OSError), replacing(path) as file:  # as on a full disk
        file.write(f"{hashlib.sha256(code).hexdigest()}\n".encode() + code)


# -- LLVM -------------------------------------------------------------------------------------------------
#: The LLVM versions known to have the option below: one without it would end the process.
_KNOWN = (20, 21, 22)


@lru_cache(maxsize=1)
def _llvm() -> Any:
    """Return LLVM, ready."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if binding.llvm_version_info[0] in _KNOWN:
        # A loop over ten vectors and ten results needs 145 tests that they do not overlap. Beyond 128 tests,
        # its default, LLVM does not vectorize the loop, which is then ten times slower.
        binding.set_option("mcfsim", "--vectorize-memory-check-threshold=1000")
    return binding


@lru_cache(maxsize=1)
def _check_arrays() -> None:
    """Raise an error unless NumPy's arrays are laid out as loops read them."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def at(offset: int, kind: Any) -> Any:
        return kind.from_address(id(x) + offset).value

    known = sys.implementation.name == "cpython" and (
        at(llvm_text.DATA, ctypes.c_void_p) == x.ctypes.data
        and at(llvm_text.DIMENSIONS, ctypes.c_int) == x.ndim
        and (ctypes.c_int64 * 2).from_address(at(llvm_text.SHAPE, ctypes.c_void_p))[:] == [2, 3]
        and at(llvm_text.DTYPE, ctypes.c_void_p) == id(x.dtype)
        and at(llvm_text.FLAGS, ctypes.c_int) & llvm_text.GOOD_FLAGS == llvm_text.GOOD_FLAGS
    )
    if not known:
        raise RuntimeError(f"arrays of NumPy {np.__version__} are not laid out as loops read them")


def _machine() -> Any:
    binding = _llvm()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        binding.get_host_cpu_name(), features, opt=3, codemodel="jitdefault", jit=True
    )


def compiled(text: str, machine: Any = None) -> Any:
    """Return LLVM's module of a source, with all its passes done.

    Raises
    ------
    RuntimeError
        If LLVM refuses the source.
    """
    binding, machine = _llvm(), machine or _machine()
    module = binding.parse_assembly(text)
    module.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.loop_interleaving = True
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return module


@lru_cache(maxsize=512)  # a module's functions share it
def _engine(text: str) -> Any:
    """Return the engine that holds the machine code of a source, loaded from its file or compiled."""
    path = path_of(text)
    code = _kept(path)
    if code is not None:
        with suppress(UnknownObjectError, OSError):
            return Loaded(code)
    binding, machine = _llvm(), _machine()
    if code is None:
        code = machine.emit_object(compiled(text, machine))
        _keep(path, code)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


# -- calls ------------------------------------------------------------------------------------------------
#: How numbers are packed, by their dtypes.
_NUMBERS = {"int32": "i", "int64": "q", "float32": "f", "float64": "d"}


def called(text: str, name: str, *arguments: Any) -> MachineCode:
    """Return a function of a source, compiled now or before on this machine.

    Parameters
    ----------
    text : str
        The source of a module.
    name : str
        The name of the function.
    *arguments : array or NumPy scalar
        Arguments of the kinds that it takes.

    Raises
    ------
    ImportError
        If llvmlite is not installed.
    RuntimeError
        If LLVM refuses the source, or NumPy's arrays are not laid out as loops read them.
    """
    _check_arrays()
    return MachineCode(_engine(text), name, [(x.dtype, x.ndim) for x in arguments])


class MachineCode:
    """A function in machine code.

    Parameters
    ----------
    engine : ExecutionEngine
        Holds the code.
    name : str
    kinds : sequence of (dtype, int)
        What its arguments are: C-contiguous, aligned arrays by dtype and dimensions; numbers have none.
    """

    def __init__(self, engine: Any, name: str, kinds: Sequence[tuple[np.dtype[Any], int]]) -> None:
        self._engine, self._kinds = engine, tuple(kinds)
        self._are_arrays = [dimensions > 0 for _, dimensions in kinds]
        self._dtypes = [id(np.dtype(dtype.name)) for dtype, dimensions in kinds if dimensions]
        packed = "".join("Q" if dimensions else _NUMBERS[dtype.name] for dtype, dimensions in kinds)
        self._pack = struct.Struct(f"={packed}{len(self._dtypes)}Q").pack
        address = engine.get_function_address(f"{name}.call")
        self._call: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(address)

    def __call__(self, *arguments: Any) -> int:
        """Call it; the interpreter's lock is free meanwhile.

        Raises
        ------
        TypeError
            If an argument is of another kind.
        """
        found = self._run(arguments)
        return self._again(arguments) if found == OTHER_KIND else found

    def _run(self, arguments: Sequence[Any]) -> int:
        pairs = zip(self._are_arrays, arguments, strict=True)
        return self._call(self._pack(*[id(x) if is_array else x for is_array, x in pairs], *self._dtypes))

    def _again(self, arguments: Sequence[Any]) -> int:
        """Call it with arrays whose dtypes equal the usual ones, but are distinct objects."""
        given = list(arguments)
        for place, ((dtype, dimensions), x) in enumerate(zip(self._kinds, arguments, strict=True)):
            if not dimensions:
                continue
            good = isinstance(x, np.ndarray) and x.dtype == dtype and x.ndim == dimensions
            if not (good and x.flags.c_contiguous and x.flags.aligned):
                raise TypeError(f"takes a contiguous array of {dtype} in {dimensions} dimensions")
            given[place] = x.view(np.dtype(dtype.name))
        found = self._run(given)
        if found == OTHER_KIND:
            raise TypeError("a result is a read-only array")
        return found


# -- functions that are compiled one by one, each once it has been called so often that this pays ----------
#: Elements after which loading compiled loops pays, and after which compiling them does.
_WORTH_LOADING, _WORTH_COMPILING = 1 << 20, 1 << 22


class NamedLoops(ABC):
    """Compiled functions by name, each of which is compiled when it is first called."""

    def __init__(self) -> None:
        self._done = Counter[str]()
        self._made: dict[str, Callable[..., int]] = {}
        self._source = cache(self._written)
        self._lock = Lock()

    def pays(self, size: int, name: str) -> bool:
        """Return whether compiling or loading a function pays once `size` more elements are processed."""
        self._done[name] += size
        if name in self._made:
            return True
        if not is_available():
            return False
        done = self._done[name]
        return done >= _WORTH_COMPILING or (done >= _WORTH_LOADING and is_saved(self._source(name)))

    def _run(self, name: str, *given: Any) -> None:
        check_processor()
        with self._lock:  # so that threads do not compile it twice
            if name not in self._made:
                self._made[name] = called(self._source(name), name, *self._examples(name))
        self._made[name](*given)

    @abstractmethod
    def _written(self, name: str) -> str:
        """Return the source of a module with a function."""

    @abstractmethod
    def _examples(self, name: str) -> Sequence[Any]:
        """Return arguments of the kinds that a function takes."""
