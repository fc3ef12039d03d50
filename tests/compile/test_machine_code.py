"""The machine code of compiled loops: whole vectors, no fused multiply-add, no call for a square root."""

from __future__ import annotations

import platform
import re

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

from llvmlite import binding

import mcfsim as mcf
from mcfsim.compile import objects, trace
from mcfsim.compile.loops import Loop
from mcfsim.compile.program import Register
from mcfsim.formats import get_format
from mcfsim.optim.step_programs import record_step

MACHINE = platform.machine().lower()
PROCESSOR = {"amd64": "x86_64", "arm64": "aarch64"}.get(MACHINE, MACHINE)
#: By processor: what adds, subtracts, multiplies or divides several numbers at once; what fuses.
PACKED = {
    "x86_64": r"\s(?:v?(?:add|sub|mul|div)p[sd]|v?p(?:add|sub)[dq]|vcvtps2ph\s.*%[yz]mm.*)\s",
    "aarch64": r"\s(?:fadd|fsub|fmul|fdiv|add|sub|fcvtn)(?:\.(?:4s|4h|2d)\s|\s+v\d+\.(?:4s|4h|2d))",
}
FUSED = {"x86_64": r"\s(?:vfn?m(?:add|sub)\w*)\s", "aarch64": r"\s(?:fml[as]\w*|fn?m(?:add|sub))(?:\.\w+)?\s"}
#: The function as a symbol; instructions are called otherwise.
ROOT = r"(?<![.\w])_?sqrtf?(?!\w)"

pytestmark = [
    pytest.mark.skipif(PROCESSOR not in PACKED, reason=f"the instructions of {PROCESSOR} are not known here")
]


def inspected(code):
    """Return what a text of machine code has of packed and fused instructions, and of square roots' calls."""
    lines = [f" {line.strip()} " for line in code.splitlines() if not line.strip().startswith(("#", "//"))]
    found = {"packed": PACKED[PROCESSOR], "fused": FUSED[PROCESSOR], "root": ROOT}
    return {name: [line for line in lines if re.search(text, line)] for name, text in found.items()}


def code_of(source):
    """Return the machine code of a source."""
    machine = objects._machine()
    return machine.emit_assembly(objects.compiled(source, machine))


def step():
    hyper, stored = mcf.AdamW(), mcf.strategy("plain", "bfloat16")
    roles = mcf.Optimizer(hyper, stored, {"w": np.zeros(4)}).roles
    return record_step(hyper, stored, roles, hyper.scalars(roles, stored, 1, 1e-3, decayed=True))


SINGLE = Register("x", get_format("float32"))
PAIRS = ("a", "b"), ("c", "d")
PROGRAMS = {
    "two_sum, up": lambda: trace(mcf.two_sum, "bfloat16", "up"),
    "fast_two_sum": lambda: trace(mcf.fast_two_sum, "float16"),
    "two_prod_fma": lambda: trace(mcf.two_prod_fma, "bfloat16"),
    "dw_times_dw2": lambda: trace(mcf.double_word.dw_times_dw2, "bfloat16", operands=PAIRS),
    **{
        f"rounding to {name}": lambda name=name: trace(lambda ar, x: ar.round(x), name, operands=(SINGLE,))
        for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "posit8")
    },
    "a step of AdamW": step,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3, each=False)
def test_loops_take_whole_vectors_and_fuse_nothing(name, packed):
    program = PROGRAMS[name]()
    found = inspected(code_of(Loop(program, packed=packed).source(program.reals())))
    assert found["packed"]
    assert not found["fused"]
    assert not found["root"]


# -- would it be noticed? -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_fused_multiply_add_and_one_number_at_a_time_are_noticed():
    if PROCESSOR == "x86_64" and not binding.get_host_cpu_features().get("fma"):
        pytest.skip("this processor has no fused multiply-add")
    program = trace(lambda ar, a, b, c: ar.add(ar.mul(a, b), c), "float32")
    source = Loop(program).source([])
    assert "fmul float" in source
    contracted = source.replace("fmul float", "fmul contract float").replace(
        "fadd float", "fadd contract float"
    )
    singly = re.sub(r"ptr %out0, i64 %i\d+", "ptr %x0, i64 12", source)  # read by what follows
    assert not inspected(code_of(source))["fused"]
    assert inspected(code_of(source))["packed"]
    assert inspected(code_of(contracted))["fused"]
    assert singly != source
    assert not inspected(code_of(singly))["packed"]


#: By processor and what an instruction is.
INSTRUCTIONS = {
    ("x86_64", "fused"): ["vfmadd213ps\t%zmm1, %zmm2, %zmm0", "vfnmsub231ss %xmm1, %xmm2, %xmm0"],
    ("x86_64", "root"): ["movabsq\t$sqrtf, %rax"],
    ("x86_64", "packed"): ["vaddps\t%ymm1, %ymm2, %ymm0", "vpaddd %zmm1, %zmm2, %zmm0"],
    ("x86_64", None): ["vsqrtps\t%ymm0, %ymm0", "vaddss\t%xmm1, %xmm2, %xmm0"],
    ("aarch64", "fused"): [*("fmla\tv0.4s, v1.4s, v2.4s", "fmla.4s\tv0, v1, v2", "fmadd\ts0, s1, s2, s3")],
    ("aarch64", "root"): ["bl\tsqrtf"],
    ("aarch64", "packed"): ["fadd\tv0.4s, v1.4s, v2.4s", "add.2d\tv0, v1, v2"],
    ("aarch64", None): ["fsqrt\tv0.4s, v1.4s", "fadd\ts0, s1, s2"],
}


@pytest.mark.parametrize(("processor", "kind"), INSTRUCTIONS)
def test_instructions_of_either_processor_are_told_apart(monkeypatch, processor, kind):
    monkeypatch.setattr(f"{__name__}.PROCESSOR", processor)
    for line in INSTRUCTIONS[processor, kind]:
        found = {name for name, lines in inspected(f"\t{line}").items() if lines}
        assert found == {kind} - {None}


@pytest.mark.skipif(binding.llvm_version_info[0] not in objects._KNOWN, reason="another LLVM")
@pytest.mark.slow
def test_loops_over_many_vectors_are_vectors_too():
    """As a step has whose parameter and moments have three components each."""
    operands = tuple(Register(f"x{place}", get_format("float32")) for place in range(10))
    loop = Loop(trace(lambda ar, *x: tuple(ar.add(y, x[0]) for y in x), "float32", operands=operands))
    assert inspected(code_of(loop.source([])))["packed"]
