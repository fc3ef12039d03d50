"""The instructions of NVIDIA's GPUs, from sm_80 on, that some verbs of lines are carried out by.

They are asked for as such, in PTX: of a cast, and of an operation in between, compilers make what they like.
A value of bfloat16 lies in the upper half of a register, as binary32 has it, above a half that is zero. So
instructions on pairs of bfloat16 numbers work on it as it is, and make a zero of both lower halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mcfsim.kernels.element.machine import F32, I32, Type, Value

if TYPE_CHECKING:
    import torch

#: The first GPUs that have them, as major and minor compute capability. The machine code of older ones is not
#: looked at, either (`experiments.machine_code`).
LEAST_CAPABILITY = 8, 0


def check_gpu(device: torch.device) -> None:
    """Refuse a device that kernels are not made for.

    Raises
    ------
    ValueError
        If it is no GPU of NVIDIA of compute capability 8.0 or higher.
    """
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        raise ValueError(f"kernels are for NVIDIA's GPUs, and device {str(device)!r} is none")
    if (found := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        least, own = (".".join(map(str, x)) for x in (LEAST_CAPABILITY, found))
        raise ValueError(
            f"kernels need a GPU of compute capability {least}, and device {str(device)!r} has {own}"
        )


class Instruction(NamedTuple):
    """How a verb is carried out.

    Attributes
    ----------
    ptx : str
        In NVIDIA's virtual instructions; ``$0`` is the result, those after it are the operands.
    operands : int
        How many these are.
    result : Type
        Of what type the result is.
    about : str
        What it does, for the reader of a kernel.
    """

    ptx: str
    operands: int
    result: Type
    about: str


def _fused(constant: int, operands: str) -> str:
    """Return an operation as a fused one with the same constant in both halves."""
    return f"{{ .reg .b32 c; mov.b32 c, 0x{constant:04x}{constant:04x}; fma.rn.bf16x2 $0, {operands}; }}"


#: By verb. Products with 1 and -1 are exact, and so is a sum with -0, which keeps the sign of zero. The lower
#: halves are 0 * 1 + 0, 0 * -1 + 0 and 0 * 0 - 0, all of which are +0.
INSTRUCTIONS: Mapping[str, Instruction] = {
    "round_bfloat16": Instruction(
        "cvt.rn.bf16x2.f32 $0, $1, 0f00000000;", 1, F32, "Round a number to bfloat16, above a zero."
    ),
    "add_bfloat16": Instruction(
        _fused(0x3F80, "$1, c, $2"), 2, F32, "Return a * 1 + b of bfloat16, rounded once."
    ),
    "sub_bfloat16": Instruction(
        _fused(0xBF80, "$2, c, $1"), 2, F32, "Return b * -1 + a of bfloat16, rounded once."
    ),
    "mul_bfloat16": Instruction(
        _fused(0x8000, "$1, $2, c"), 2, F32, "Return a * b - 0 of bfloat16, rounded once."
    ),
    "fma_bfloat16": Instruction(
        "fma.rn.bf16x2 $0, $1, $2, $3;", 3, F32, "Return a * b + c of bfloat16, rounded once."
    ),
    "round_float16": Instruction(
        "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.f32.f16 $0, h; }", 1, F32, "Round a number to float16."
    ),
    "encode_float16": Instruction(
        "cvt.rn.f16x2.f32 $0, 0f00000000, $1;", 1, I32, "Return the code of a float16 value."
    ),
    "decode_float16": Instruction(
        "{ .reg .b16 h, z; mov.b32 {h, z}, $1; cvt.f32.f16 $0, h; }", 1, F32, "Return the value of a code."
    ),
}

_TYPES = {F32: "tl.float32", I32: "tl.int32"}


def functions_source(values: Iterable[Value]) -> str:
    """Return the source of the functions by which a kernel asks for what some values are made by."""
    made = []
    for verb in sorted({value.verb for value in values} & INSTRUCTIONS.keys()):
        instruction = INSTRUCTIONS[verb]
        given = ", ".join("abc"[: instruction.operands])
        registers = ",".join(["=r", *["r"] * instruction.operands])
        made.append(
            f"\n@triton.jit\ndef {verb}({given}):\n"
            f'    """{instruction.about}"""\n'
            "    return tl.inline_asm_elementwise(\n"
            f'        "{instruction.ptx}",\n        "{registers}",\n        [{given}],\n'
            f"        dtype={_TYPES[instruction.result]},\n        is_pure=True,\n        pack=1,\n"
            "    )\n\n"
        )
    return "".join(made)
