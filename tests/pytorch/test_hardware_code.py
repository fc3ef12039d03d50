"""What compilers make of kernels by instructions of GPUs: these and nothing else; and traps are noticed."""

import random
import re

import pytest

from experiments.machine_code.device_code import faults
from mcfsim.compile import trace
from mcfsim.compile.triton_source import INSTRUCTIONS
from tests.pytorch import test_device_code
from tests.pytorch.test_device_code import assert_noticed, code_of, device_code, rounding, step, written
from tests.shared.algorithms import every
from tests.shared.kinds import PLAIN

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark, compiled = test_device_code.pytestmark, test_device_code.compiled


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.sampled(8, each=False)
def test_every_operation_is_by_just_the_instructions_asked_for(fmt, packed, capability):
    options = {"packed": packed, "checked": True, "hardware": True}
    source, lowered, code = code_of(trace(every, fmt), capability, **options)
    assert faults(code, lowered, hardware=True) == []
    asked = {verb for verb in INSTRUCTIONS if f"= {verb}(" in source}
    assert f"round_{fmt}" in asked
    assert "fma_bfloat16" in asked or not packed or fmt == "float16"
    assert faults(code, lowered) != []


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("strategy", PLAIN)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.sampled(64, each=False)
@pytest.mark.costly("Triton compiles, and machine code is read")
def test_every_step_is_by_just_the_instructions_asked_for(optimizer, strategy, capability):
    _, lowered, code = code_of(step(optimizer, strategy), capability, packed=True, hardware=True)
    assert faults(code, lowered, hardware=True) == []


CAST, ROUNDED, FMA = r"cvt\.rn\.bf16x2", r"= round_bfloat16\((\w+)\)", r"fma\.rn(\.bf16x2 \$0, \$1, \$2, \$3)"
DOWN = 'fp_downcast_rounding="rtz"'
#: What a writer of kernels would do, and compilers might: a pattern, what is there instead, and what is said.
TRAPS = {
    "a rounding toward zero": (CAST, "cvt.rz.bf16x2", "cvt.rz"),
    "a rounding without signs": (CAST, "cvt.rn.relu.bf16x2", "relu"),
    "a rounding to float16": (CAST, "cvt.rn.f16x2", "f16x2"),
    "an fma without signs": (FMA, r"fma.rn.relu\1", "relu"),
    "another constant": (r"0x3f803f80", "0x3f003f00", "0x3f003f00"),
    "a zero of the other sign": (r"0x80008000", "0x00000000", "0x00000000"),
    "a cast": (ROUNDED, r"= \1.to(tl.bfloat16).to(tl.float32)", "arith.truncf"),
    "a cast toward zero": (ROUNDED, rf"= \1.to(tl.bfloat16, {DOWN}).to(tl.float32)", "cvt.rz"),
    "a cast by float16": (ROUNDED, r"= \1.to(tl.float16).to(tl.float32)", "arith.truncf"),
    "a cast by float8": (ROUNDED, r"= round_bfloat16(\1.to(tl.float8e5).to(tl.float32))", "tt.fp_to_fp"),
    "no rounding": (ROUNDED, r"= \1 * 1.0", "round_bfloat16"),
    "a rounding twice": (ROUNDED, r"= round_bfloat16(round_bfloat16(\1) * 3.0)", "round_bfloat16"),
    "an operation in the wide format": (r"= sub_bfloat16\((\w+), (\w+)\)", r"= \1 - \2", "sub_bfloat16"),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.sampled(13, each=False)
def test_traps_are_noticed(trap):
    pattern, instead, told = TRAPS[trap]
    kernel = written(trace(every, "bfloat16"), packed=True, hardware=True)
    assert_noticed(told, *kernel, pattern, instead, hardware=True)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(60, each=False)
def test_another_instruction_is_noticed(seed):
    rng = random.Random(seed)
    program = step(rng.choice(["adamw", "sgd"]), rng.choice(["plain", "collage-plus", "kahan"]))
    source, lowered = written(program, packed=True, hardware=True)
    calls = list(re.finditer(r"= (\w+_bfloat16)\(([^()]*)\)", source))
    chosen = rng.choice(calls)
    verb, operands = chosen[1], chosen[2].split(", ")
    others = sorted({call[1] for call in calls} - {verb})
    same = [x for x in others if INSTRUCTIONS[x].operands == len(operands)]
    instead = f"{rng.choice(same)}({chosen[2]})" if same and rng.random() < 0.6 else operands[0]
    changed = f"{source[: chosen.start()]}= {instead}{source[chosen.end() :]}"
    assert faults(device_code(changed, lowered), lowered, hardware=True) != []


def test_a_rounding_of_numbers_is_one_instruction():
    _, lowered, code = code_of(rounding("bfloat16"), hardware=True, packed=True)
    assert faults(code, lowered, hardware=True) == []
    row = next(row for row in code.ptx.splitlines() if "cvt.rn.bf16x2" in row)
    twice = code._replace(ptx=code.ptx.replace(row, f"{row}\n{row}"))
    assert faults(twice, lowered, hardware=True) == ["PTX: 2 of round_bfloat16, not 1"]
    found = code.instructions()
    assert found["F2FP"] == 1
    assert not found["F2F"]
    _, lowered, longer = code_of(rounding("bfloat16"), packed=True)
    assert faults(longer, lowered) == []
    assert sum(longer.instructions().values()) > sum(found.values())
