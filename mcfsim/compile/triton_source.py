"""A line as the source of a kernel for Triton: one statement a verb, each vector read and written once.

What Triton offers by default is not exact: it fuses products and sums, divides and takes roots by
approximation, and its unary minus is a subtraction. So a kernel asks by name for what it needs, and is
compiled without fusing (`mcfsim.compile.kernel`). Tests look at what came of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mcfsim.compile.hardware import INSTRUCTIONS, functions_source
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.statements import module_head, statements
from mcfsim.kernels.element.machine import BITS_OF, F32, F64, I32, I64, TRUTH, Value, recorded
from mcfsim.kernels.element.philox import word_element
from mcfsim.random import word_bits

_TYPES = {F32: "tl.float32", F64: "tl.float64", I32: "tl.int32", I64: "tl.int64", TRUTH: "tl.int1"}
_UNSIGNED = {I32: "tl.uint32", I64: "tl.uint64"}
_SIGNS = {
    **{"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"},
    **{"shl": "<<", "sar": ">>", "lt": "<", "le": "<=", "eq": "=="},
}
_CASTS = ("widen", "narrow", "extend", "cut", "count")
#: As what vectors lie in memory: numbers, or codes.
_LYING = {("f", 4): "tl.float32", ("f", 8): "tl.float64", ("u", 1): "tl.int8", ("u", 2): "tl.int16"}
#: A row of a table: the number of the first element, how many there are, which instance begins, addresses.
FIRST_ADDRESS = 3
#: Vectors are read and written 16 bytes at a time where addresses, in bytes, and sizes are multiples of this.
ALIGNMENT = 16

#: What words are a function of, besides the index.
_KEY = ("seed_low", "seed_high", "step", "place")

_IMPORTS = """import triton
import triton.language as tl
"""


def kernel_source(lowered: Lowered, about: str, *, many: bool = False, hardware: bool = False) -> str:
    """Return the source of a module with a function ``kernel``.

    It takes pointers to operands and results, vectors of `size` elements; then, where they are needed, to an
    integer that becomes 1 if some element is strange, to the numbers of binary32, to those of binary64, and
    to the random key: the seed's lower and upper half, the step, and the place of each word. All lie in the
    device's memory, so that a captured graph takes new ones. Then the number of the first element, the size,
    and how many elements an instance has. Codes lie in signed or unsigned integers, truth values in bytes.

    Parameters
    ----------
    lowered : Lowered
        What is to be done for each element.
    about : str
        What the module is, for its reader.
    many : bool, optional
        Whether it works on many sets of vectors at once. In the place of operands and results it then takes a
        pointer to a table (`mcfsim.compile.vector_tables`), which has the first element and the size, too.
    hardware : bool, optional
        Whether instructions of GPUs stand in for what they make, too (`mcfsim.compile.hardware`). The
        interpreter does not know them.
    """
    outputs = [f"out{number}" for number in range(len(lowered.results))]
    strange = () if lowered.strange is None else (lowered.strange,)
    masks = {x: 2 ** (8 * dtype.itemsize) - 1 for x, dtype in lowered.packed.items()}
    bits = list(lowered.draws.values())

    def read(value: Value) -> str:
        if value in lowered.words:
            place = lowered.words.index(value)
            words = f"words{word_bits(bits[place])}"
            return f"{words}(start + i, seed_low, seed_high, step, tl.load(key + {3 + place}))"
        loaded = f"tl.load({value.constant} + i, mask=inside, other=0)"
        return f"{loaded}.to(tl.int32) & {masks[value]}" if value in masks else loaded

    asked = (*lowered.results, *strange)
    constants, body, made = statements(lowered, asked, read, _expression, hardware=hardware)
    by_hardware = functions_source(lowered.line.needed(asked, hardware=hardware))
    numbers = {kind: [x for x in lowered.numbers if x.type is kind] for kind in (F32, F64)}
    loads = [
        # As vectors: Triton's interpreter mistakes the type of what compares two scalars.
        f"{x.constant} = tl.broadcast_to(tl.load(numbers{kind.bits} + {place}), (ELEMENTS,))"
        for kind, found in numbers.items()
        for place, x in enumerate(found)
    ]
    if lowered.words:
        loads += [f"{name} = tl.load(key + {place})" for place, name in enumerate(_KEY[:3])]
    for output, result, name in zip(outputs, lowered.results, made, strict=False):
        short = result in lowered.packed or result.type is TRUTH
        kept = f"{name}.to(tl.int{8 * lowered.dtype(result).itemsize})" if short else name
        body.append(f"tl.store({output} + i, {kept}, mask=inside)")
    if strange:
        body.append(f"tl.store(found + i * 0, 1, mask={made[-1]} & inside)")  # all write the same
    vectors = {str(x.constant): x for x in lowered.operands} | dict(
        zip(outputs, lowered.results, strict=True)
    )
    pointers = [
        *(["table", "owners"] if many else vectors),
        *(["found"] if strange else []),
        *(f"numbers{kind.bits}" for kind, found in numbers.items() if found),
        *(["key"] if lowered.words else []),
    ]
    if many:
        place, fixed = _looked_up({name: lowered.dtype(x) for name, x in vectors.items()}), ["ALIGNED"]
    else:
        place, fixed = ["i = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)"], []
    first = [*_typed(constants), *place, "inside = i < size"]
    drawn = "".join(_words_source(size) for size in sorted(set(map(word_bits, bits))))
    variable = [] if many else ["start", "size"]
    fixed = [f"{name}: tl.constexpr" for name in ("ELEMENTS", *fixed)]
    decorator = "triton.jit" if many else 'triton.jit(do_not_specialize=["start"])'
    return (
        f"{module_head(about, _IMPORTS)}{drawn}{by_hardware}"
        f"\n@{decorator}\ndef kernel({', '.join([*pointers, *variable, *fixed])}):\n"
        f"{_indented([*first, *loads, *body])}"
    )


def _looked_up(vectors: dict[str, np.dtype[Any]]) -> list[str]:
    """Return how an instance finds its vectors and elements in a table, see `vector_tables`."""
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
    """Return the source of a function that draws a word of so many bits for an index."""
    kinds = dict.fromkeys(("index", *_KEY), I64)
    line, results = recorded(lambda *given: word_element(*given, bits=size), **kinds)
    inputs = {str(value.constant): value for value in line.values if value.verb == "input"}
    lowered = Lowered(line, (), tuple(inputs[name] for name in kinds), (), results, None)
    constants, body, made = statements(lowered, results, str, _expression)
    return (
        f"\n@triton.jit\ndef words{size}({', '.join(kinds)}):\n"
        f'    """Return a word of Philox4x32-10, of {size} bits."""\n'
        f"{_indented([*_typed(constants), *body, f'return {made[0]}'])}\n"
    )


def _indented(rows: list[str]) -> str:
    return "".join(f"    {row}\n" for row in rows)


def _typed(constants: dict[str, Value]) -> list[str]:
    """Return constants as scalars of just their types."""
    return [f"{name} = {_full(value)}" for name, value in constants.items()]


def _full(value: Value) -> str:
    kind, x = value.type, value.constant
    if isinstance(x, float) and (str(x) == "-0.0" or not math.isfinite(x)):
        # By its bits: Triton takes 0 for all that equals it, and a global NaN for a number that changed.
        code = np.array(x, f"f{kind.bits // 8}").view(f"i{kind.bits // 8}")
        return _as(f"tl.full((), {code}, {_TYPES[BITS_OF[kind]]})", _TYPES[kind])
    return f"tl.full((), {x!r}, {_TYPES[kind]})"


def _expression(value: Value, given: list[str]) -> str:
    """Return a verb as an expression that no compiler takes for another."""
    verb, kind = value.verb, value.type
    if verb in INSTRUCTIONS:
        return f"{verb}({', '.join(given)})"
    if verb in _SIGNS:
        return f"{given[0]} {_SIGNS[verb]} {given[1]}"
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
    if verb in _CASTS:
        return f"{given[0]}.to({_TYPES[kind]})"
    return {"abs": "tl.abs({})", "select": "tl.where({}, {}, {})"}[verb].format(*given)


def _as(text: str, kind: str) -> str:
    """Return the bits of a value as another type of its size."""
    return f"{text}.to({kind}, bitcast=True)"
