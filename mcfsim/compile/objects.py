"""Machine code of compiled loops as object files, which LLVM loads without Numba in a tenth of the time."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.storage.files import replacing

#: The types by which Numba's calling convention takes numbers.
_NUMBERS = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
#: What code may call: functions of the C library that every process of Python has.
_CALLED = {"sqrt", "sqrtf"}
#: An argument: the name of its dtype, and its dimensions; 0 for a number.
Kind = tuple[str, int]


def kinds_of(arguments: Sequence[Any]) -> tuple[Kind, ...] | None:
    """Return what arguments are; None if one is neither a NumPy array nor a number that objects take."""
    if not all(isinstance(x, np.ndarray | np.generic) for x in arguments):
        return None
    found = tuple((x.dtype.name, x.ndim) for x in arguments)
    return found if all(dimensions or name in _NUMBERS for name, dimensions in found) else None


def path_of(source: Path, name: str, kinds: Sequence[Kind]) -> Path:
    """Return the path of the object of a function, by its module's path, its arguments, and the processor."""
    digest = hashlib.sha256(repr((name, tuple(kinds), _host())).encode()).hexdigest()
    return source.with_suffix(f".{digest[:20]}.object")


@lru_cache(maxsize=1)
def _host() -> tuple[str, ...]:
    """Return LLVM's version and the kind of processor: hosts that share a folder need not share files."""
    import platform
    from importlib.metadata import version

    about = version("llvmlite"), platform.system(), platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return *about, platform.processor()
    said = ("model name", "flags", "Features", "CPU part")
    return *about, *sorted({x for x in lines if x.startswith(said)})


def _processor() -> tuple[str, str]:
    """Return LLVM's name of the processor, and the features that it has."""
    from llvmlite import binding

    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def _target() -> str:
    """Return what LLVM compiles for: its version, the system, the processor and its features."""
    import llvmlite
    from llvmlite import binding

    return " ".join((llvmlite.__version__, binding.get_default_triple(), *_processor()))


def save(path: Path, function: Any, arguments: Sequence[Any]) -> bool:
    """Save the machine code of a function that Numba compiled in this process; return whether it was.

    It is not if Numba loaded the function from its own cache, if it was told to compile for another
    processor, or if the code calls what only Numba has, as it does to allocate arrays.

    Parameters
    ----------
    path : Path
    function : Dispatcher
        Numba's, called with the arguments before.
    arguments : sequence of array or NumPy scalar
    """
    from llvmlite import binding
    from numba import typeof
    from numba.core.registry import cpu_target

    signature = tuple(map(typeof, arguments))
    compiled = function.overloads.get(signature)
    processor = _processor()
    if compiled is None or cpu_target.target_context.codegen().magic_tuple()[1] != processor[0]:
        return False
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        text = function.inspect_llvm(signature)
    if told:  # it came from Numba's cache, which has no text
        return False
    entry, module = compiled.fndesc.llvm_func_name, binding.parse_assembly(text)
    for other in module.functions:
        if other.name != entry and not other.is_declaration:
            other.linkage = "internal"
    machine = _machine(*processor)
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(0)))
    outside = {x.name for x in module.functions if x.is_declaration and not x.name.startswith("llvm.")}
    if outside - _CALLED:
        return False
    code = machine.emit_object(module)
    head = f"{_target()}\n{entry}\n{hashlib.sha256(code).hexdigest()}\n"
    with replacing(path) as file:
        file.write(head.encode() + code)
    return True


def load(path: Path, kinds: Sequence[Kind]) -> Callable[..., int] | None:
    """Return a function from its object; None if there is none for this processor, or its file is damaged."""
    try:
        target, entry, digest, code = path.read_bytes().split(b"\n", 3)
    except (OSError, ValueError):
        return None
    if hashlib.sha256(code).hexdigest().encode() != digest or target != _target().encode():
        return None
    return MachineCode(entry.decode(), code, kinds)


class MachineCode:
    """A function in machine code, called as Numba calls it.

    Parameters
    ----------
    entry : str
        Its name in the object.
    code : bytes
        The object.
    kinds : sequence of Kind
        What its arguments are: C-contiguous arrays, and numbers.
    """

    def __init__(self, entry: str, code: bytes, kinds: Sequence[Kind]) -> None:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        word, address = ctypes.c_int64, ctypes.c_void_p
        types: list[Any] = [address, address]  # of the result, and of an exception
        for name, dimensions in kinds:
            # Memory's owner, object, elements, bytes of one, memory, shape, strides.
            array = [address, address, word, word, address, *[word] * (2 * dimensions)]
            types += array if dimensions else [_NUMBERS[name]]
        self._kinds = [(np.dtype(name), dimensions) for name, dimensions in kinds]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(self._engine.get_function_address(entry))

    def __call__(self, *arguments: Any) -> int:
        """Call it; the interpreter's lock is free meanwhile.

        Raises
        ------
        TypeError
            If an argument is of another kind.
        """
        given: list[Any] = []
        for (dtype, dimensions), x in zip(self._kinds, arguments, strict=True):
            if not dimensions:
                given.append(dtype.type(x).item())
                continue
            if x.dtype != dtype or x.ndim != dimensions or not x.flags.c_contiguous:
                raise TypeError(f"takes a contiguous array of {dtype} in {dimensions} dimensions")
            memory = x.__array_interface__["data"][0]
            given += [None, None, x.size, dtype.itemsize, memory, *x.shape, *x.strides]
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        if self._call(ctypes.addressof(result), ctypes.addressof(exception), *given):
            raise RuntimeError("a compiled loop failed")
        return ctypes.c_int32(result.value).value


def _machine(name: str = "", features: str = "") -> Any:
    from llvmlite import binding

    target = binding.Target.from_default_triple()
    return target.create_target_machine(name, features, opt=3, codemodel="jitdefault", jit=True)
