"""Objects in memory without LLVM: the code that LLVM would run, in memory that is not written; refusals."""

from __future__ import annotations

import ctypes
import re
import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

from mcfsim.compile import elf, objects, trace
from mcfsim.compile.loops import Loop
from mcfsim.eft import two_sum

pytestmark = pytest.mark.skipif(not elf.is_known(), reason="objects of another system")

#: A function that calls the C library, and one with constants.
CALLS = """
declare ptr @memset(ptr, i32, i64)
define i32 @loop(ptr %x, i64 %x.size) {
  %y = call ptr @memset(ptr %x, i32 1, i64 %x.size)
  ret i32 0
}
"""
CONSTANT = (
    "define double @number(double %x) {\n  %y = fadd double %x, 0x400921FB54442D18\n  ret double %y\n}\n"
)


def object_of(text):
    machine = objects._machine()
    return machine.emit_object(objects.compiled(text, machine))


def test_a_function_has_its_constants():
    loaded = elf.Loaded(object_of(CONSTANT))
    address = loaded.get_function_address("number")
    number = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)
    assert number(1.0) == 1.0 + np.pi


def test_its_memory_is_executable_and_not_writable():
    loaded = elf.Loaded(object_of(CONSTANT))
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(x, 16) for x in re.match(r"(\w+)-(\w+)", line).groups())
        if start <= loaded._base < end:
            assert line.split()[1].startswith("r-x")
            return
    raise AssertionError("it is nowhere")


def test_what_calls_others_is_left_to_llvm(cache_folder):
    code = object_of(CALLS)
    with pytest.raises(elf.UnknownObjectError, match="refers to a symbol outside it"):
        elf.Loaded(code)
    objects._keep(objects.path_of(CALLS), code)
    engine = objects._engine(CALLS)
    assert not isinstance(engine, elf.Loaded)
    x = np.zeros(9, np.uint8)
    fill = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("loop")
    )
    assert fill(x.ctypes.data, 9) == 0
    assert x.tolist() == [1] * 9


@pytest.mark.slow
def test_no_object_and_unknown_relocations_are_refused():
    code = object_of(Loop(trace(two_sum, "bfloat16", "up", lines=False)).source([]))
    for other in (b"", b"\x7fELF", b"\xcf\xfa\xed\xfe" + code[4:]):
        with pytest.raises(elf.UnknownObjectError):
            elf.Loaded(other)
    sections = elf._sections(code)
    table = next(x for x in sections if x.type == elf._RELOCATIONS and x.size)
    changed = bytearray(code)
    struct.pack_into("<I", changed, table.offset + 8, 99)
    with pytest.raises(elf.UnknownObjectError, match="relocation of type 99"):
        elf.Loaded(bytes(changed))


@pytest.mark.parametrize("mode", ["nearest_even", "up", "to_odd"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "tf32", "posit16", "int8"])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_loops_have_the_bits_of_llvms_own_memory(fmt, mode, cache_folder, monkeypatch, assert_same):
    program, found = trace(two_sum, fmt, mode, lines=False), []
    x = [np.random.default_rng(seed).integers(-60, 60, 1000).astype(np.float32) for seed in (1, 2)]
    for known in (False, True):
        objects._engine.cache_clear()
        monkeypatch.setattr(elf, "is_known", lambda known=known: known)
        loop = Loop(program)
        loop.with_scalars({})
        objects._engine.cache_clear()  # from the file
        loop = Loop(program)
        bound = loop.with_scalars({})
        assert isinstance(bound._loop._engine, elf.Loaded) == known
        found.append([np.empty(1000, np.float32) for _ in bound.results])
        assert bound(x, found[-1])
    for one, other in zip(*found, strict=True):
        assert_same(one, other)
