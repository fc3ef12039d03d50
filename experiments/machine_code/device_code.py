"""What the compilers for NVIDIA's GPUs make of a kernel, and whether that is what its line says.

Triton compiles for any GPU on any machine: to its own intermediate text, to PTX, and by NVIDIA's assembler to
machine code (SASS). Each is looked at. What works on numbers must be an instruction that is known, with all
that its name says: so nothing is fused, flushed to zero, saturated or approximated, and all is rounded to
nearest. Of those of PTX that round there may be no more than the line has; what is there twice counts once.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.machine_code.ptx import without_repeats
from mcfsim.compile.kernel import check_triton
from mcfsim.compile.launch import EXACT, WARPS, function
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.sources import table_name
from mcfsim.compile.triton_source import INSTRUCTIONS
from mcfsim.kernels.element.machine import F32, F64, Value

#: Elements that are looked at: one a thread.
_ELEMENTS = 32 * WARPS

#: What an operation on numbers is in Triton's text, by type.
_IN_TRITON = {
    **{(verb, kind): f"arith.{verb}f" for verb in ("add", "sub", "mul") for kind in (F32, F64)},
    **{("div", F32): "tt.precise_divf", ("div", F64): "arith.divf"},
    **{("sqrt", F32): "tt.precise_sqrt", ("sqrt", F64): "math.sqrt"},
    **{("widen", F64): "arith.extf", ("narrow", F32): "arith.truncf"},
}
#: Other operations of it that a line asks for, or that only move and compare numbers.
_OTHERS_IN_TRITON = {
    *("math.absf", "arith.cmpf", "arith.select", "arith.constant"),
    *("tt.bitcast", "tt.splat", "tt.addptr", "tt.load", "tt.store", "tt.get_program_id", "tt.make_range"),
    *("tt.int_to_ptr", "tt.elementwise_inline_asm"),
}
#: What a line asks for by an instruction of its own, in Triton's text.
_ASKED_IN_TRITON = re.compile(r'tt\.elementwise_inline_asm "([^"]*)"')

#: An instruction of PTX, and a part of its name that says that it works on floating-point numbers.
_IN_PTX, _OF_FLOATS = (
    re.compile(r"\b[a-z]\w*(?:[.:]+\w+)+"),
    re.compile(r"b?f\d+(?:x\d)?|tf32\S*|u?e\d+m\d+\S*"),
)
#: A choice of the larger of two numbers becomes `max` where LLVM has shown that neither is NaN.
_EXACT_IN_PTX = re.compile(
    r"(?:abs|neg|min|max|copysign|selp|setp\.(?:num|nan|eq|ne|[lg][te]|equ|neu|[lg][te]u))\.f(?:32|64)|cvt\.f64\.f32"
)
_ROUNDED_IN_PTX = re.compile(r"(?:(?:add|sub|mul|div|sqrt)\.rn\.f(?:32|64)|cvt\.rn\.f32\.f64)")
_LEFT_OPEN = re.compile(r"(?:add|sub|mul|div|sqrt|fma)\.(?:b?f16|f32|f64)\S*")

#: An instruction of a GPU: its name and operands.
_IN_SASS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.MULTILINE)
#: Those that work on floating-point numbers, by how their names begin (FLO and DEPBAR do not).
_ON_NUMBERS = re.compile(r"U?(?:F(?!LO\b)|D(?!EPBAR\b)|H|Q|MUFU|I2F|RRO|\w*MMA)")
_EXACT_IN_SASS = re.compile(r"[FD]SETP\.[A-Z]+\.(?:AND|OR|XOR)|FSEL|FMNMX(?:\.NAN)?|F2F\.F64\.F32")
#: Some that fuse are but a way to write a constant.
_WRITES_CONSTANT = re.compile(r"HFMA2(?:\.MMA)?\s+R\d+, -RZ, RZ,")
#: Different names of what does the same, on different GPUs: by one of them.
_ALIKE = {
    "HFMA2.BF16_V2": re.compile(r"H(?:FMA2(?:\.MMA)?|ADD2|MUL2)\.BF16_V2"),
    "F2FP.BF16.PACK_AB": re.compile(r"F2FP\.BF16(?:\.F32)?\.PACK_AB"),
    "F2FP.F16.PACK_AB": re.compile(r"F2FP(?:\.F16\.F32)?\.PACK_AB"),
}
#: What each instruction of PTX, or one that a line asks for, becomes: how many of which. Quotients and roots
#: are the assembler's sequences, which call functions near the ends of the range.
_BECOMES: dict[str, dict[str, int]] = {
    **{name: {"FADD": 1} for name in ("add.rn.f32", "sub.rn.f32", "abs.f32", "neg.f32")},
    **{name: {"DADD": 1} for name in ("add.rn.f64", "sub.rn.f64", "abs.f64", "neg.f64")},
    **{"mul.rn.f32": {"FMUL": 1}, "mul.rn.f64": {"DMUL": 1}, "cvt.rn.f32.f64": {"F2F.F32.F64": 1}},
    "div.rn.f32": {"MUFU.RCP": 1, "FCHK": 1, "FFMA": 5},
    "sqrt.rn.f32": {"MUFU.RSQ": 1, "FMUL.FTZ": 2, "FFMA": 2},
    "div.rn.f64": {"MUFU.RCP64H": 1, "DFMA": 7, "DMUL": 1, "FFMA": 1},
    "sqrt.rn.f64": {"MUFU.RSQ64H": 1, "DFMA": 5, "DMUL": 3},
    **{f"{verb}_bfloat16": {"HFMA2.BF16_V2": 1} for verb in ("add", "sub", "mul", "fma")},
    "round_bfloat16": {"F2FP.BF16.PACK_AB": 1},
    "round_float16": {"F2FP.F16.PACK_AB": 1, "HADD2.F32": 1},
    "encode_float16": {"F2FP.F16.PACK_AB": 1},
    "decode_float16": {"HADD2.F32": 1},
}
#: Those that only such sequences have; others may be there twice, for the assembler makes some values anew.
_OF_SEQUENCES = re.compile(r"MUFU\..*|FCHK|[FD]FMA|FMUL\.FTZ")
#: Those functions, by the instruction of PTX that calls them.
_FUNCTIONS = {
    "div.rn.f32": re.compile(r"\$__internal_\d+_\$__cuda_sm\w+_div_rn_noftz_f32_slowpath"),
    "sqrt.rn.f32": re.compile(r"\$__internal_\d+_\$__cuda_sm\w+_sqrt_rn_f32_slowpath"),
    "div.rn.f64": re.compile(r"\$__internal_\d+_\$__cuda_sm\w+_div_rn_f64_full"),
    "sqrt.rn.f64": re.compile(r"\$__internal_\d+_\$__cuda_sm\w+_dsqrt_rn_f64_mediumpath_v\d"),
}


class DeviceCode(NamedTuple):
    """A kernel as compiled for a GPU.

    Attributes
    ----------
    triton, ptx, sass : str
        Triton's text, NVIDIA's virtual instructions, and those of the GPU.
    """

    triton: str
    ptx: str
    sass: str

    def instructions(self) -> Counter[str]:
        """Return how many instructions of each name a thread has, without their suffixes.

        Functions that it calls are left out: these divide and take roots near the ends of the range.
        """
        own, _ = self.parts()
        return Counter(name.split(".")[0] for name, _ in _IN_SASS.findall(own))

    def parts(self) -> tuple[str, dict[str, str]]:
        """Return the GPU's instructions: the kernel's own, and those of functions that it calls, by name."""
        own, *functions = re.split(r"^\s*\.weak\s", self.sass, flags=re.MULTILINE)
        return own, {text.split(maxsplit=1)[0]: text for text in functions}


def device_code(
    source: str,
    lowered: Lowered,
    capability: int = 90,
    *,
    many: bool = False,
    elements: int = _ELEMENTS,
    aligned: bool = False,
    **options: Any,
) -> DeviceCode:
    """Compile a kernel for a GPU, which need not be there.

    Parameters
    ----------
    source : str
        The module of a kernel, see `mcfsim.compile.triton_source`.
    lowered : Lowered
        Its line.
    capability : int, optional
        80 for Ampere, 90 for Hopper.
    many : bool, optional
        Whether it is a kernel on a table of vectors.
    elements : int, optional
        How many an instance works on; by default one a thread, whose instructions then are those of one.
    aligned : bool, optional
        Whether all addresses and the size are known to be multiples of 16, as Triton notices at a launch.
    **options
        In place of those that make it exact: so it can be seen what they prevent.

    Raises
    ------
    ImportError
        If Triton is not installed, or too old.
    """
    check_triton()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = _signature(lowered, many=many)
    multiples = [
        place
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name == "size"
    ]
    made = triton.compile(
        ASTSource(
            fn=function(source, interpreted=False),
            signature=signature,
            constexprs={"ELEMENTS": elements, **({"ALIGNED": aligned} if many else {})},
            attrs={(place,): [["tt.divisibility", 16]] for place in multiples} if aligned else None,
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": WARPS, **EXACT, **options},
    )
    return DeviceCode(made.asm["ttir"], made.asm["ptx"], _disassembled(made.asm["cubin"]))


def faults(code: DeviceCode, lowered: Lowered, *, hardware: bool = False) -> list[str]:
    """Return what of a kernel's code is not what its line says; nothing if it is as it should be.

    Parameters
    ----------
    code : DeviceCode
    lowered : Lowered
        The line of the kernel.
    hardware : bool, optional
        Whether the kernel is by instructions of GPUs (`mcfsim.compile.triton_source.kernel_source`).
    """
    values = list(lowered.line.needed(lowered.asked, hardware=hardware))
    asked = Counter(x.verb for x in values if x.verb in INSTRUCTIONS)
    wanted = _operations(x for x in values if x.verb not in INSTRUCTIONS)
    by_one = any(_multiplies_by(1.0, x) for x in values)
    doubled = Counter(x.type for x in values if _multiplies_by(2.0, x))  # which may become x + x
    ptx, strange = _without_asked(code.ptx, asked, by_one=by_one)
    there = Counter(_IN_PTX.findall(ptx))
    return [
        *_asked_in_triton(code.triton, asked, by_one=by_one),
        *_in_triton(code.triton, wanted, by_one=by_one),
        *strange,
        *_in_ptx(ptx, there, wanted, doubled),
        *_in_sass(*code.parts(), there + asked, doubled),
    ]


def _operations(values: Iterable[Value]) -> Counter[tuple[str, Any]]:
    """Return how many operations on numbers a line has, by verb and type; a sign is changed by a product."""
    names = {"neg": "mul"}
    return Counter((names.get(x.verb, x.verb), x.type) for x in values if x.type.is_float)


def _multiplies_by(factor: float, value: Value) -> bool:
    return value.verb == "mul" and any(x.verb == "constant" and x.constant == factor for x in value.operands)


def _in_triton(text: str, wanted: Counter[tuple[str, Any]], *, by_one: bool) -> Iterator[str]:
    """Yield how Triton's text differs: operation stands for operation, but for products with one.

    These it leaves out, and then what is there twice.
    """
    found = Counter(re.findall(r"= ((?:arith|math|tt)\.\w+)", text))
    for name in sorted(set(_IN_TRITON.values())):
        meant = sum(wanted[key] for key, own in _IN_TRITON.items() if own == name)
        if found[name] != meant and not (by_one and found[name] < meant):
            yield f"Triton: {found[name]} of {name}, not {meant}"
    known = _OTHERS_IN_TRITON.union(_IN_TRITON.values())
    for name in sorted(found.keys() - known):
        if re.fullmatch(r"arith\.(\w+f|\w*fp\w*)|(?:math|tt)\.\w+", name):
            yield f"Triton: {name}, which no line asks for"


def _asked_in_triton(text: str, asked: Counter[str], *, by_one: bool) -> Iterator[str]:
    """Yield how the instructions that Triton's text asks for differ from those that a line does."""
    found = Counter(_ASKED_IN_TRITON.findall(text))
    meant = {INSTRUCTIONS[verb].ptx: count for verb, count in asked.items()}
    for ptx in sorted(found.keys() | meant.keys()):
        if found[ptx] != meant.get(ptx, 0) and not (by_one and found[ptx] < meant.get(ptx, 0)):
            yield f"Triton: {found[ptx]} of {ptx!r}, not {meant.get(ptx, 0)}"


def _without_asked(text: str, asked: Counter[str], *, by_one: bool) -> tuple[str, list[str]]:
    """Return the instructions of PTX but those that a line asks for, and how these differ from the line's.

    In their places stand the registers that they write.
    """
    text = "\n".join(row.split("//")[0] for row in text.splitlines() if not row.strip().startswith("."))
    strange = []
    for verb, count in sorted(asked.items()):
        pattern = re.sub(r"\\\$0", r"(%r\\d+)", re.escape(INSTRUCTIONS[verb].ptx))
        pattern = re.sub(r"\\\$\d", r"%r\\d+", pattern)
        text, found = re.subn(rf"^\s*{pattern}\s*$", r"asked \1;", text, flags=re.MULTILINE)
        if found != count and not (by_one and found < count):
            strange.append(f"PTX: {found} of {verb}, not {count}")
    return text, strange


def _in_ptx(
    text: str, there: Counter[str], wanted: Counter[tuple[str, Any]], doubled: Counter[Any]
) -> Iterator[str]:
    for name in sorted(there):
        if _EXACT_IN_PTX.fullmatch(name) or _ROUNDED_IN_PTX.fullmatch(name):
            continue
        if _LEFT_OPEN.fullmatch(name):
            yield f"PTX: {name}, whose rounding is left open"
        elif name.startswith("call") or any(map(_OF_FLOATS.fullmatch, re.split(r"[.:]+", name))):
            yield f"PTX: {name}, which no line asks for"
    found = Counter(_ROUNDED_IN_PTX.findall(without_repeats(text)))
    for kind in (F32, F64):
        sums = found[f"add.rn.{kind}"] + found[f"sub.rn.{kind}"]
        if sums > wanted["add", kind] + wanted["sub", kind] + doubled[kind]:
            yield f"PTX: {sums} sums of {kind}, more than the line has"
        for verb in ("mul", "div", "sqrt"):
            if found[f"{verb}.rn.{kind}"] > wanted[verb, kind]:
                yield f"PTX: {found[f'{verb}.rn.{kind}']} of {verb}.{kind}, not {wanted[verb, kind]}"
    if found["cvt.rn.f32.f64"] > wanted["narrow", F32]:
        yield f"PTX: {found['cvt.rn.f32.f64']} numbers are narrowed, not {wanted['narrow', F32]}"


def _in_sass(
    own: str, functions: dict[str, str], there: Counter[str], doubled: Counter[Any]
) -> Iterator[str]:
    """Yield what the GPU's instructions have that the virtual ones, and those asked for, do not become."""
    allowed = Counter({"FADD": doubled[F32], "DADD": doubled[F64]})
    for name, count in there.items():
        for instruction, each in _BECOMES.get(name, {}).items():
            allowed[instruction] += each * count
    found: Counter[str] = Counter()
    instructions = _IN_SASS.findall(own)
    for name, operands in instructions:
        if not _ON_NUMBERS.match(name) or _EXACT_IN_SASS.fullmatch(name):
            continue
        if not _WRITES_CONSTANT.match(name + operands):
            found[next((one for one, names in _ALIKE.items() if names.fullmatch(name)), name)] += 1
    if not instructions:
        yield "SASS: no instructions"
    for name in sorted(found):
        most = allowed[name] if _OF_SEQUENCES.fullmatch(name) or not allowed[name] else found[name]
        if found[name] > most:
            yield f"SASS: {found[name]} of {name}, not {most}"
    known = [names for name, names in _FUNCTIONS.items() if there[name]]
    for name in functions:
        if not any(names.fullmatch(name) for names in known):
            yield f"SASS: a function {name}, which no line asks for"


def _signature(lowered: Lowered, *, many: bool) -> dict[str, str]:
    """Return the types of a kernel's arguments, in order."""
    names = {"float32": "*fp32", "float64": "*fp64", "uint8": "*i8", "uint16": "*i16", "bool": "*i8"}
    vectors = {str(x.constant): names[str(lowered.dtype(x))] for x in lowered.operands}
    vectors |= {f"out{place}": names[str(lowered.dtype(x))] for place, x in enumerate(lowered.results)}
    kinds = {x.type for x in lowered.numbers}
    fixed = ("ELEMENTS", "ALIGNED") if many else ("ELEMENTS",)
    return {
        **({"table": "*i64", "owners": "*i32"} if many else vectors),
        **({} if lowered.strange is None else {"found": "*i32"}),
        **({"numbers32": "*fp32"} if F32 in kinds else {}),
        **({"numbers64": "*fp64"} if F64 in kinds else {}),
        **({"key": "*i64"} if lowered.draws else {}),
        **{table_name(key): "*fp64" for key in lowered.tables},
        **({} if many else {"start": "i64", "size": "i64"}),
        **dict.fromkeys(fixed, "constexpr"),
    }


def _disassembled(cubin: bytes) -> str:
    """Return machine code as text, by the disassembler that comes with Triton."""
    from triton.backends import nvidia

    program = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True)
    return done.stdout
