"""Kernels by instructions of GPUs have the bits of their algorithms; wrong instructions are found.

What they do is said here, by their specification, without code of the package but its oracle: casts as of
ml_dtypes and NumPy, operations on bfloat16 exact in integers and rounded once, NaN as a GPU makes it.
"""

import itertools
import re
from functools import partial
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.compile import launch, trace
from mcfsim.compile.kernel import Kernel
from mcfsim.compile.launch import (
    InstructionError,
    Launcher,
    check_instructions,
    first_difference,
    trials,
)
from mcfsim.compile.triton_source import INSTRUCTIONS
from mcfsim.formats import get_format
from mcfsim.kernels.element import gpu_verbs
from mcfsim.kernels.element.element_rounding import round_element
from mcfsim.kernels.element.machine import F32, F64, recorded, run
from mcfsim.oracle import operate_integers
from mcfsim.rounding import DETERMINISTIC, Overflow, Rounding, Underflow
from mcfsim.torch import step
from tests.pytorch.runs import assert_same_states, first, made, step_both
from tests.pytorch.test_kernel import hard, launched
from tests.shared.algorithms import every
from tests.shared.kinds import PLAIN

pytest.importorskip("triton", reason="Triton is not installed")

CPU, UPPER = torch.device("cpu"), np.uint32(0xFFFF0000)
BFLOAT16 = get_format("bfloat16")


def cast(number, dtype):
    """Return the codes of 16 bits of binary32 numbers, rounded to nearest even."""
    with np.errstate(all="ignore"):
        codes = number.astype(dtype).view(np.uint16)
    return np.where(np.isnan(number), np.uint16(0x7FFF), codes)


def fma(*codes):
    numbers = [x.view(ml_dtypes.bfloat16).astype(np.float64) for x in codes]
    return cast(operate_integers("fma", *numbers, fmt=BFLOAT16).astype(np.float32), ml_dtypes.bfloat16)


def fma_of_pairs(*values):
    """Return the same for codes that lie two in a register."""
    values = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*values)]
    return joined(*(fma(*((x >> np.uint32(at)).astype(np.uint16) for x in values)) for at in (0, 16)))


def cast_pair(high, low, dtype):
    return joined(*(cast(np.atleast_1d(x).view(np.float32), dtype) for x in (low, high)))


def joined(low, high):
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


#: What instructions make of registers.
MADE = {
    "mov.b32": lambda x: x,
    "fma.rn.bf16x2": fma_of_pairs,
    "cvt.rn.bf16x2.f32": partial(cast_pair, dtype=ml_dtypes.bfloat16),
    "cvt.rn.f16x2.f32": partial(cast_pair, dtype=np.float16),
    "cvt.rn.f16.f32": lambda x: cast(x.view(np.float32), np.float16).astype(np.uint32),
    "cvt.f32.f16": lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32),
}


def execute(ptx, given):
    """Return what PTX makes of registers of 32 bits; of anything unknown a ValueError."""
    registers = {f"${place}": np.asarray(x).view(np.uint32) for place, x in enumerate(given, 1)}

    def read(name):
        if name.startswith(("0x", "0f")):
            return np.uint32(int(name[2:], 16))
        return registers[name]

    for row in filter(None, (row.strip() for row in ptx.strip("{} ").split(";"))):
        if row.startswith(".reg"):
            continue
        if match := re.fullmatch(r"mov\.b32 \{(\w+), (\w+)\}, (\S+)", row):
            whole = read(match[3])
            registers[match[1]], registers[match[2]] = (whole & 0xFFFF), whole >> np.uint32(16)
            continue
        name, operands = row.split(" ", 1)
        result, *taken = operands.split(", ")
        if name not in MADE:
            raise ValueError(f"{name} is not known here")
        with np.errstate(all="ignore"):
            registers[result] = MADE[name](*map(read, taken))
    return registers["$0"]


@pytest.fixture
def with_instructions(monkeypatch):
    from triton.runtime import interpreter

    def create(self, ptx, constraints, values, types, pure, pack):
        dtype = interpreter._get_np_dtype(types[0].scalar)
        made = np.broadcast_to(execute(ptx, [x.data for x in values]), values[0].data.shape)
        handle = interpreter.TensorHandle(np.ascontiguousarray(made).view(dtype), types[0].scalar)
        return SimpleNamespace(get_result=lambda place: handle)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", create)


def carried_out(test):
    """Mark a test of kernels whose instructions are carried out."""
    return pytest.mark.slow(pytest.mark.usefixtures("interpreted", "with_instructions")(test))


BY_FLOAT16 = "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.f32.f16 $0, h; }"


def by_instructions(kernel):
    """Return a launcher of a kernel by instructions, whatever the device."""
    launcher = kernel.with_numbers([])
    return Launcher(launcher.lowered, launcher._numbers, launcher.by_hardware)


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
@pytest.mark.slow
def test_a_rounding_beside_which_an_instruction_is_noted_is_that_of_the_instruction(name, dtype, assert_same):
    """At all upper halves of binary32 codes, and lower ones next to which either format's ties lie."""
    line, (result,) = recorded(lambda x: round_element(x, get_format(name), Rounding()), x=F32)
    assert line.noted(result).verb == f"round_{name}"
    lower = np.array(launch._LOWER, np.uint32)
    x = ((np.arange(2**16, dtype=np.uint32) << 16)[:, None] | lower).reshape(-1).view(np.float32)
    (rounded,) = run(line, (result,), x=x)
    with np.errstate(all="ignore"):
        assert_same(rounded, cast(x, dtype).view(dtype).astype(np.float32), x)


def test_no_instruction_is_noted_beside_another_rounding():
    policies = (Overflow.IEEE, Overflow.SATURATE), (Underflow.GRADUAL, Underflow.FLUSH_AFTER)
    roundings = [Rounding(x, y, underflow=z) for x, y, z in itertools.product(DETERMINISTIC, *policies)]
    cases = [(name, rounding, F32) for name in ("bfloat16", "float16") for rounding in roundings[1:]]
    cases += [(name, Rounding(), F32) for name in ("tf32", "float8_e5m2", "posit16", "float32")]
    cases += [(name, Rounding(), F64) for name in ("bfloat16", "float16")]
    assert roundings[0] == Rounding()
    for name, rounding, kind in cases:
        fmt = get_format(name)
        line, (result,) = recorded(lambda x, f=fmt, r=rounding: round_element(x, f, r), x=kind)
        assert line.noted(result) is None, (name, rounding, kind)


def test_every_verb_is_tried_and_none_is_where_none_is_asked_for():
    assert trials().keys() == INSTRUCTIONS.keys()
    for verb, trial in trials().items():
        assert f"= {verb}(" in trial.instruction
        assert "asm" not in trial.text
    kernel = Kernel(trace(every, "bfloat16"), packed=True)
    assert not {x.verb for x in kernel.line([]).line.needed(kernel.line([]).results)} & INSTRUCTIONS.keys()
    assert "asm" not in kernel.source([])


@carried_out
@pytest.mark.costly("Triton compiles, and machine code is read")
def test_instructions_that_are_as_said_pass():
    check_instructions(CPU)


@carried_out
@pytest.mark.parametrize("verb", INSTRUCTIONS)
@pytest.mark.sampled(len(INSTRUCTIONS), each=False)
def test_operands_are_tried_by_number(verb, monkeypatch):
    monkeypatch.setattr(launch, "_BLOCK", 1000)
    total = trials()[verb].tuples
    for start in {0, total // 3, total // 2, total - 2500} if total > 2**16 else {0}:
        assert first_difference(verb, CPU, start, start + 2500) is None


def alter(monkeypatch, old, new):
    true = execute

    def altered(ptx, given):
        return new(true, ptx, given) if old in ptx else true(ptx, given)

    monkeypatch.setattr(f"{__name__}.execute", altered)


def flushed(true, ptx, given):
    made = true(ptx, given)
    return np.where(made & 0x7FFFFFFF < 0x00800000, made & np.uint32(0x80000000), made)


def saturated(true, ptx, given):
    made = true(ptx, given)
    return np.where((made & 0x7FFFFFFF) == 0x7F800000, made - np.uint32(0x10000), made)


def subnormals_lost(true, ptx, given):
    made = true(ptx, given)
    return np.where(made & 0x7C00, made, made & np.uint32(0x8000))


def signs_lost(true, ptx, given):
    return true(ptx.replace("0x80008000", "0x0"), given)


def ties_away(true, ptx, given):
    rounded = (given[0].view(np.uint32) + np.uint32(0x8000)) & UPPER
    return np.where(np.isnan(given[0]), np.uint32(0x7FFF0000), rounded)


def rounded_twice(true, ptx, given):
    one = "{ .reg .b32 c; mov.b32 c, 0x80008000; fma.rn.bf16x2 $0, $1, $2, c; }"
    other = "{ .reg .b32 c; mov.b32 c, 0x3f803f80; fma.rn.bf16x2 $0, $1, c, $2; }"
    return true(other, [true(one, given[:2]), given[2]])


FALSE = {
    "a rounding truncates": ("cvt.rn.bf16x2", lambda true, ptx, given: given[0].view(np.uint32) & UPPER),
    "a rounding flushes subnormal numbers": ("cvt.rn.bf16x2", flushed),
    "a rounding saturates": ("cvt.rn.bf16x2", saturated),
    "ties go away from zero": ("cvt.rn.bf16x2", ties_away),
    "a rounding is to float16": ("cvt.rn.bf16x2", lambda true, ptx, given: true(BY_FLOAT16, given)),
    "an operation flushes": ("fma.rn.bf16x2", flushed),
    "an operation saturates": ("fma.rn.bf16x2", saturated),
    "a product loses the sign of zero": ("0x80008000", signs_lost),
    "an fma rounds twice": ("fma.rn.bf16x2 $0, $1, $2, $3", rounded_twice),
    "codes of float16 flush": ("cvt.rn.f16x2", subnormals_lost),
}


@carried_out
@pytest.mark.parametrize("name", FALSE)
@pytest.mark.sampled(5, each=False)
def test_instructions_that_are_not_as_said_are_refused(name, monkeypatch):
    alter(monkeypatch, *FALSE[name])
    with pytest.raises(InstructionError, match=r"cpu: its \w+ instruction differs from the algorithm at "):
        check_instructions(CPU)


def hidden_nan(count):
    """Return NaN whose upper halves are infinity's."""
    codes = np.array([0x7F800001, 0xFF80FFFF, 0x7F808000], np.uint32)
    return np.resize(codes, count).view(np.float32)


@carried_out
def test_numbers_from_elsewhere_are_rounded_before_instructions_take_them(monkeypatch):
    """Not so, a NaN would be taken for infinity."""

    def sums():
        kernel = Kernel(trace(lambda ar, a, b: ar.add(ar.add(a, b), b), "bfloat16"), hardware=True)
        return launched(by_instructions(kernel), [hidden_nan(300), np.ones(300, np.float32)])[0][0]

    assert np.isnan(sums()).all()
    monkeypatch.setattr(gpu_verbs, "_is_upper_half", lambda x: True)
    assert np.isinf(sums()).any()


@carried_out
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_kernels_by_instructions_have_the_bits_of_numpy(fmt, packed, assert_same):
    """Codes, NaN's too; and numbers, also where only the lower half of a NaN's code shows that it is none."""
    kernel = Kernel(trace(every, fmt), packed=packed, checked=True, hardware=True)
    given = hard(get_format(fmt))
    if not packed:
        given[1][::17] = hidden_nan(given[1][::17].size)
    taken = [mcf.codec.encode(x, fmt) for x in given] if packed else given
    found, good = launched(by_instructions(kernel), taken)
    assert good
    for mine, other in zip(found, every(mcf.arithmetic(fmt, compiled=False), *given), strict=True):
        if packed:
            np.testing.assert_array_equal(mine, mcf.codec.encode(other, fmt))
        else:
            assert_same(mine, other, *given)


@carried_out
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("strategy", first("plain", *([x] for x in PLAIN if x != "plain")))
@pytest.mark.costly("Triton's interpreter takes a second for the kernels of a few steps")
def test_steps_by_instructions_have_the_bits_of_numpy(strategy, monkeypatch):
    """On codes, in place, from states with zeros, subnormal and huge numbers, infinities and NaN."""
    asked = []
    monkeypatch.setattr(launch, "_has_good_instructions", lambda device: asked.append(device) or True)
    both = [made("adamw", strategy, shapes=((40, 30), (17,))) for _ in range(2)]
    step_both(*both, range(3), lambda on: monkeypatch.setattr(step, "_is_host", lambda device: not on))
    assert_same_states(*both)
    assert asked or strategy not in ("plain", "collage-plus")


def test_instructions_are_taken_where_a_device_has_them_and_they_are_as_said(monkeypatch):
    def refused(device):
        raise InstructionError("its instruction")

    def failing(device):
        raise RuntimeError("out of memory")

    kernel = Kernel(trace(mcf.two_sum, "bfloat16"), packed=True, hardware=True)
    launcher, device = kernel.with_numbers([]), torch.device("cuda", 0)
    plain = Kernel(trace(mcf.two_sum, "bfloat16"), packed=True)
    assert plain.with_numbers([]).by_hardware is None
    assert launcher.source == plain.source([]) != launcher.by_hardware == kernel.source([])
    assert launcher.text_on(CPU) == launcher.source
    monkeypatch.setattr(launch, "check_instructions", lambda device: None)
    for found, hip, taken in (((8, 0), None, True), ((7, 5), None, False), ((9, 0), "6", False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
        monkeypatch.setattr(torch.version, "hip", hip)
        launch._has_good_instructions.cache_clear()
        assert (launcher.text_on(device) == launcher.by_hardware) is taken
    monkeypatch.setattr(launch, "check_gpu", lambda device: None)
    monkeypatch.setattr(launch, "check_instructions", refused)
    launch._has_good_instructions.cache_clear()
    with pytest.warns(RuntimeWarning, match="its instruction; kernels on it do not use"):
        assert launcher.text_on(CPU) == launcher.source
    assert launcher.text_on(CPU) == launcher.source  # asked once
    launch._has_good_instructions.cache_clear()
    monkeypatch.setattr(launch, "check_instructions", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        launcher.text_on(CPU)


@pytest.mark.gpu
@pytest.mark.parametrize("verb", INSTRUCTIONS)
@pytest.mark.exhaustive
def test_all_operands_on_a_gpu(verb, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert first_difference(verb, torch.device("cuda")) is None
