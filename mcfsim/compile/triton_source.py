"""Source of Triton kernels for lines of machine operations (verbs): a statement or instruction for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mcfsim.compile.lowering import Lowered
from mcfsim.compile.sources import CASTS, INFIX, KEY, indented, module_head, statements, table_name
from mcfsim.kernels.element.machine import BITS_OF, F32, F64, I32, I64, TRUTH, Type, Value, recorded
from mcfsim.kernels.element.philox import word_element
from mcfsim.random import word_bits

if TYPE_CHECKING:
    import torch


# -- instructions of NVIDIA's GPUs, from sm_80 on ---------------------------------------------------------
#: The first GPUs that have them, as major and minor compute capability. `experiments.machine_code` does not
#: examine the machine code of older ones, either.
LEAST_CAPABILITY = 8, 0


def check_gpu(device: torch.device) -> None:
    """Raise ValueError for a device that kernels do not support.

    Raises
    ------
    ValueError
        If it is not an NVIDIA GPU of compute capability 8.0 or higher.
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
    """A GPU instruction that performs a verb.

    Attributes
    ----------
    ptx : str
        The code in NVIDIA's virtual instructions; ``$0`` is the result, ``$1`` and so on are the operands.
    operands : int
        The number of operands.
    result : Type
        The type of the result.
    about : str
        What it does, for the reader of a kernel.
    """

    ptx: str
    operands: int
    result: Type
    about: str


def _fused(constant: int, operands: str) -> str:
    """Return an operation as a fused multiply-add with the same constant in both halves."""
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


def functions_source(values: Iterable[Value]) -> str:
    """Return the source of the functions through which a kernel uses the instructions for some values."""
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


# -- the source -------------------------------------------------------------------------------------------
_TYPES = {F32: "tl.float32", F64: "tl.float64", I32: "tl.int32", I64: "tl.int64", TRUTH: "tl.int1"}
_UNSIGNED = {I32: "tl.uint32", I64: "tl.uint64"}
_EXPRESSIONS = {**INFIX, "abs": "tl.abs({})", "select": "tl.where({}, {}, {})"}
#: The types of vectors in memory: numbers or codes.
_LYING = {("f", 4): "tl.float32", ("f", 8): "tl.float64", ("u", 1): "tl.int8", ("u", 2): "tl.int16"}
_LYING |= {("b", 1): "tl.int8", ("i", 4): "tl.int32", ("i", 8): "tl.int64"}
#: Place of the first address in a row of a table, after the first element, the count, and the first instance.
FIRST_ADDRESS = 3
#: Vectors are read and written 16 bytes at a time where addresses, in bytes, and sizes are multiples of this.
ALIGNMENT = 16

IMPORTS = """import triton
import triton.language as tl
"""


def kernel_source(lowered: Lowered, about: str, *, many: bool = False, hardware: bool = False) -> str:
    """Return the source of a module with a function ``kernel``.

    It takes pointers to operands and results, vectors of `size` elements. Where needed, pointers follow to an
    integer that becomes 1 if an element is strange (no value of its format), to the binary32 numbers, to the
    binary64 numbers, to the random key: the seed's lower and upper half, the step, and the place of each
    word; and to each table. All are in device memory, so that a captured graph takes new ones. Last come the
    number of the first element, the size, and the number of elements per instance. Codes are stored in signed
    or unsigned integers, truth values in bytes.

    Parameters
    ----------
    lowered : Lowered
        The operations on each element.
    about : str
        What the module is, for its reader.
    many : bool, optional
        Whether it processes many sets of vectors at once. Instead of operands and results it then takes a
        pointer to a table (`mcfsim.compile.kernel`), which also has the first element and the size.
    hardware : bool, optional
        Whether GPU instructions replace the verbs that they perform (`mcfsim.compile.triton_source`). The
        interpreter does not know them.
    """
    outputs = [f"out{number}" for number in range(len(lowered.results))]
    masks = {x: 2 ** (8 * dtype.itemsize) - 1 for x, dtype in lowered.packed.items()}
    bits = list(lowered.draws.values())

    def read(value: Value) -> str:
        if value in lowered.words:
            place = lowered.words.index(value)
            words = f"words{word_bits(bits[place])}"
            return f"{words}(start + i, seed_low, seed_high, step, tl.load(key + {3 + place}))"
        loaded = f"tl.load({value.constant} + i, mask=inside, other=0)"
        return f"{loaded}.to(tl.int32) & {masks[value]}" if value in masks else loaded

    constants, body, made = statements(lowered, lowered.asked, read, expression, hardware=hardware)
    by_hardware = functions_source(lowered.line.needed(lowered.asked, hardware=hardware))
    numbers = {kind: [x for x in lowered.numbers if x.type is kind] for kind in (F32, F64)}
    loads = [
        # As vectors: Triton's interpreter mistakes the type of a comparison of two scalars.
        f"{x.constant} = tl.broadcast_to(tl.load(numbers{kind.bits} + {place}), (ELEMENTS,))"
        for kind, found in numbers.items()
        for place, x in enumerate(found)
    ]
    if lowered.words:
        loads += [f"{name} = tl.load(key + {place})" for place, name in enumerate(KEY[:3])]
    for output, result, name in zip(outputs, lowered.results, made, strict=False):
        short = result in lowered.packed or result.type is TRUTH
        kept = f"{name}.to(tl.int{8 * lowered.dtype(result).itemsize})" if short else name
        body.append(f"tl.store({output} + i, {kept}, mask=inside)")
    if lowered.strange is not None:
        body.append(f"tl.store(found + i * 0, 1, mask={made[-1]} & inside)")  # all write the same
    vectors = {str(x.constant): x for x in lowered.operands}
    vectors |= zip(outputs, lowered.results, strict=True)
    pointers = [
        *(["table", "owners"] if many else vectors),
        *([] if lowered.strange is None else ["found"]),
        *(f"numbers{kind.bits}" for kind, found in numbers.items() if found),
        *(["key"] if lowered.words else []),
        *map(table_name, lowered.tables),
    ]
    if many:
        place, fixed = _looked_up({name: lowered.dtype(x) for name, x in vectors.items()}), ["ALIGNED"]
    else:
        place, fixed = ["i = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)"], []
    first = [*typed(constants), *place, "inside = i < size"]
    drawn = "".join(_words_source(size) for size in sorted(set(map(word_bits, bits))))
    variable = [] if many else ["start", "size"]
    fixed = [f"{name}: tl.constexpr" for name in ("ELEMENTS", *fixed)]
    decorator = "triton.jit" if many else 'triton.jit(do_not_specialize=["start"])'
    return (
        f"{module_head(about, IMPORTS)}{drawn}{by_hardware}"
        f"\n@{decorator}\ndef kernel({', '.join([*pointers, *variable, *fixed])}):\n"
        f"{indented([*first, *loads, *body])}"
    )


def _looked_up(vectors: dict[str, np.dtype[Any]]) -> list[str]:
    """Return the statements by which an instance finds its vectors and elements in a table."""
    found = [
        f"{name} = tl.load(row + {place}).to(tl.pointer_type({_LYING[dtype.kind, dtype.itemsize]}))"
        for place, (name, dtype) in enumerate(vectors.items(), FIRST_ADDRESS)
    ]
    return [
        f"row = table + tl.load(owners + tl.program_id(0)).to(tl.int64) * {FIRST_ADDRESS + len(vectors)}",
        "start = tl.load(row)",
        "size = tl.load(row + 1)",
        *found,
        "if ALIGNED:",
        f"    size = tl.multiple_of(size, {ALIGNMENT})",
        *(f"    {name} = tl.multiple_of({name}, {ALIGNMENT})" for name in vectors),
        "i = (tl.program_id(0).to(tl.int64) - tl.load(row + 2)) * ELEMENTS + tl.arange(0, ELEMENTS)",
    ]


def _words_source(size: int) -> str:
    """Return the source of a function that draws a word of `size` bits for an index."""
    kinds = dict.fromkeys(("index", *KEY), I64)
    line, results = recorded(lambda *given: word_element(*given, bits=size), **kinds)
    inputs = {str(value.constant): value for value in line.values if value.verb == "input"}
    lowered = Lowered(line, numbers=tuple(inputs[name] for name in kinds))
    constants, body, made = statements(lowered, results, str, expression)
    return (
        f"\n@triton.jit\ndef words{size}({', '.join(kinds)}):\n"
        f'    """Return a word of Philox4x32-10, of {size} bits."""\n'
        f"{indented([*typed(constants), *body, f'return {made[0]}'])}\n"
    )


def typed(constants: dict[str, Value]) -> list[str]:
    """Return the definitions of constants as scalars of exactly their types."""
    return [f"{name} = {_full(value)}" for name, value in constants.items()]


def _full(value: Value) -> str:
    kind, x = value.type, value.constant
    if isinstance(x, float) and (str(x) == "-0.0" or not math.isfinite(x)):
        # By its bits: Triton takes -0 for 0, as they are equal, and a global NaN for a number that changed.
        code = np.array(x, f"f{kind.bits // 8}").view(f"i{kind.bits // 8}")
        return _as(f"tl.full((), {code}, {_TYPES[BITS_OF[kind]]})", _TYPES[kind])
    return f"tl.full((), {x!r}, {_TYPES[kind]})"


def expression(value: Value, given: list[str]) -> str:
    """Return a verb as an expression that no compiler replaces by another operation."""
    verb, kind = value.verb, value.type
    if verb in INSTRUCTIONS:
        return f"{verb}({', '.join(given)})"
    if verb == "look_up":
        place = f"tl.broadcast_to({given[0]}, (ELEMENTS,))"  # it may be the same for all
        return f"tl.load({table_name(value.constant)} + {place}, mask=inside, other=0)"
    if verb == "div":
        return f"tl.math.div_rn({given[0]}, {given[1]})" if kind is F32 else f"{given[0]} / {given[1]}"
    if verb == "sqrt":
        return f"tl.math.sqrt_rn({given[0]})" if kind is F32 else f"tl.sqrt({given[0]})"
    if verb == "neg":  # Triton's own is a subtraction from zero
        return f"{given[0]} * -1.0" if kind.is_float else f"{given[0]} * -1"
    if verb == "not":
        return f"{given[0]} == 0" if kind is TRUTH else f"{given[0]} ^ -1"
    if verb == "shr":
        shifted = f"{_as(given[0], _UNSIGNED[kind])} >> {_as(given[1], _UNSIGNED[kind])}"
        return _as(f"({shifted})", _TYPES[kind])
    if verb in ("bits", "number"):
        return _as(given[0], _TYPES[kind])
    if verb in CASTS:
        return f"{given[0]}.to({_TYPES[kind]})"
    return _EXPRESSIONS[verb].format(*given)


def _as(text: str, kind: str) -> str:
    """Return an expression for the bits of a value as another type of its size."""
    return f"{text}.to({kind}, bitcast=True)"
