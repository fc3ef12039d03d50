"""What the compilers for NVIDIA's GPUs make of a kernel, and whether that is what its line says.

Triton compiles for any GPU on any machine: to its own intermediate text, to PTX, and by NVIDIA's assembler to
machine code (SASS). Each is looked at: nothing fused, nothing flushed to zero, nothing approximated, every
operation rounded to nearest, and no more operations than the line has; what PTX has twice counts once.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mcfsim.compile.hardware import INSTRUCTIONS
from mcfsim.compile.kernel import check_triton
from mcfsim.compile.launch import EXACT, WARPS, function
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.ptx import without_repeats
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
#: What a compiler may offer in the place of an exact operation, and a line never asks for.
_INEXACT = r"\.ftz|approx|div\.full|\b(?:fma|mad)\.\S*(?:f16|f32|f64)|\b(?:ex2|lg2|sin|cos|tanh|rsqrt|rcp)\."
_UNROUNDED = r"\b(?:add|sub|mul|div|sqrt)\.(?:bf16|f16|f32|f64)\S*"
_ROUNDED = r"\b(add|sub|mul|div|sqrt)\.rn\.(f32|f64)\b"
#: An instruction of a GPU. Of those that fuse some are but a way to write a constant.
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.MULTILINE
)
_FUSED, _WRITES_CONSTANT = re.compile(r"[FDH]FMA"), re.compile(r"HFMA2(?:\.MMA)?(?=\s+R\d+, -RZ, RZ,)")
#: What a line asks for by an instruction of its own, in Triton's text, and what that is in machine code.
_ASKED_IN_TRITON = re.compile(r'tt\.elementwise_inline_asm "([^"]*)"')
_OF_BFLOAT16 = re.compile(r"HFMA2(?:\.MMA)?\.BF16_V2\s")
#: What nothing that is rounded to 16 bits may say.
_MODIFIED = re.compile(r"\.(?:SAT|RELU|FTZ|FMZ|R[ZPM]|MERGE\w*)\b")


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
        own = re.split(r"^\s*\.weak\s", self.sass, maxsplit=1, flags=re.MULTILINE)[0]
        return Counter(name.split(".")[0] for name, _ in _INSTRUCTION.findall(own))


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
    results = (*lowered.results, *(() if lowered.strange is None else (lowered.strange,)))
    values = list(lowered.line.needed(results, hardware=hardware))
    asked = Counter(x.verb for x in values if x.verb in INSTRUCTIONS)
    wanted = _operations(x for x in values if x.verb not in INSTRUCTIONS)
    by_one = any(_multiplies_by(1.0, x) for x in values)
    doubled = Counter(x.type for x in values if _multiplies_by(2.0, x))  # which may become x + x
    ptx, strange = _without_asked(code.ptx, asked, by_one=by_one)
    return [
        *_asked_in_triton(code.triton, asked, by_one=by_one),
        *_in_triton(code.triton, wanted, by_one=by_one),
        *strange,
        *_in_ptx(ptx, wanted, doubled),
        *_in_sass(code.sass, wanted, asked),
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
    known = {*_IN_TRITON.values(), "math.absf"}
    for name in sorted(found):
        if (
            name not in known
            and re.fullmatch(r"arith\.(\w+f|\w*fp\w*)|math\.\w+|tt\.fp_to_fp", name)
            and name != "arith.cmpf"
        ):
            yield f"Triton: {name}, which no line asks for"


def _asked_in_triton(text: str, asked: Counter[str], *, by_one: bool) -> Iterator[str]:
    """Yield how the instructions that Triton's text asks for differ from those that a line does."""
    found = Counter(_ASKED_IN_TRITON.findall(text))
    meant = {INSTRUCTIONS[verb].ptx: count for verb, count in asked.items()}
    for ptx in sorted(found.keys() | meant.keys()):
        if found[ptx] != meant.get(ptx, 0) and not (by_one and found[ptx] < meant.get(ptx, 0)):
            yield f"Triton: {found[ptx]} of {ptx!r}, not {meant.get(ptx, 0)}"


def _without_asked(text: str, asked: Counter[str], *, by_one: bool) -> tuple[str, list[str]]:
    """Return PTX without the instructions that a line asks for, and how their numbers differ from the line's.

    In their places stand the registers that they write. Nothing else may be of 16 bits.
    """
    strange = []
    for verb, count in sorted(asked.items()):
        pattern = re.sub(r"\\\$0", r"(%r\\d+)", re.escape(INSTRUCTIONS[verb].ptx))
        pattern = re.sub(r"\\\$\d", r"%r\\d+", pattern)
        text, found = re.subn(rf"^\s*{pattern}\s*$", r"asked \1;", text, flags=re.MULTILINE)
        if found != count and not (by_one and found < count):
            strange.append(f"PTX: {found} of {verb}, not {count}")
    strange += [f"PTX: {name}" for name in sorted(set(re.findall(r"\b\w+\.\S*\bb?f16\w*", text)))]
    return text, strange


def _in_ptx(text: str, wanted: Counter[tuple[str, Any]], doubled: Counter[Any]) -> Iterator[str]:
    body = "\n".join(line.split("//")[0] for line in text.splitlines() if not line.strip().startswith("."))
    for name in sorted(set(re.findall(_INEXACT, body))):
        yield f"PTX: {name}"
    for name in sorted(set(re.findall(_UNROUNDED, body))):
        yield f"PTX: {name}, whose rounding is left open"
    found = Counter(re.findall(_ROUNDED, without_repeats(body)))
    for kind in (F32, F64):
        sums = found["add", kind] + found["sub", kind]
        if sums > wanted["add", kind] + wanted["sub", kind] + doubled[kind]:
            yield f"PTX: {sums} sums of {kind}, more than the line has"
        for verb in ("mul", "div", "sqrt"):
            if found[verb, kind] > wanted[verb, kind]:
                yield f"PTX: {found[verb, kind]} of {verb}.{kind}, not {wanted[verb, kind]}"
    narrowed = re.findall(r"\bcvt\.(\S*)f32\.f64", body)
    if any(rounding != "rn." for rounding in narrowed):
        yield "PTX: binary64 is narrowed by another rounding"


def _in_sass(text: str, wanted: Counter[tuple[str, Any]], asked: Counter[str]) -> Iterator[str]:
    """Yield what instructions have that they should not, but for those that divide and take roots."""
    found = _INSTRUCTION.findall(text)
    if not found:
        yield "SASS: no instructions"
    of_bfloat16 = any(verb.endswith("_bfloat16") for verb in asked)
    for name, _ in found:
        if name.startswith(("F2F", "HADD2", "HMUL2", "HFMA2")) and _MODIFIED.search(name):
            yield f"SASS: {name}"
    if any(wanted[verb, kind] for verb in ("div", "sqrt") for kind in (F32, F64)):
        return
    for name, operands in found:
        if ".FTZ" in name or name.startswith("MUFU"):
            yield f"SASS: {name}"
        plain = of_bfloat16 and _OF_BFLOAT16.match(name + operands)
        if _FUSED.match(name) and not plain and not _WRITES_CONSTANT.match(name + operands):
            yield f"SASS: {name}{operands}"


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
