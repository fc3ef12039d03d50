"""Functions in the language of LLVM: arguments, variables, loops, and verbs (machine operations)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from mcfsim.kernels.element.machine import F32, F64, I32, I64, TRUTH, Type, Value

#: LLVM's types of registers, and of elements in memory by their dtypes.
REGISTERS: Mapping[Type, str] = {F32: "float", F64: "double", I32: "i32", I64: "i64", TRUTH: "i1"}
_MEMORY = {"float32": "float", "float64": "double", "bool": "i8"}
#: LLVM's instructions for verbs on numbers and on integers.
_ON_FLOATS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "neg": "fneg"}
_ON_INTEGERS = {
    **{x: x for x in ("add", "sub", "mul", "and", "or", "xor", "shl")},
    **{"sar": "ashr", "shr": "lshr"},
}
_CASTS = {
    **{"bits": "bitcast", "number": "bitcast", "widen": "fpext", "narrow": "fptrunc"},
    **{"extend": "sext", "cut": "trunc", "count": "zext"},
}
#: Verbs of `mcfsim.kernels.element.gpu_verbs` that processors have, too, if they have binary16.
HALF = ("round_float16", "encode_float16", "decode_float16")
_DECLARED = """
declare float @llvm.fabs.f32(float)
declare double @llvm.fabs.f64(double)
declare i32 @llvm.abs.i32(i32, i1)
declare i64 @llvm.abs.i64(i64, i1)
declare float @llvm.sqrt.f32(float)
declare double @llvm.sqrt.f64(double)
declare i64 @llvm.smin.i64(i64, i64)
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.umin.i32(i32, i32)
"""


#: Marks a loop; the nodes that describe it follow in parentheses.
_LOOP = "!loop"
#: The nodes: not to unroll a loop; a group of accesses to memory; these depend on no other iterations; to
#: work on four vectors at a time.
_ROLLED, _GROUP, _INDEPENDENT, _FOURFOLD = "!0", "!1", "!2", "!3"
_NODES = f"""{_ROLLED} = !{{!"llvm.loop.unroll.disable"}}
{_GROUP} = distinct !{{}}
{_INDEPENDENT} = !{{!"llvm.loop.parallel_accesses", {_GROUP}}}
{_FOURFOLD} = !{{!"llvm.loop.interleave.count", i32 4}}
"""
#: From this many statements on, a loop over many elements works on four vectors at a time. A processor looks
#: some hundred instructions ahead: in such a loop it sees one vector, whose operations wait for each other.
#: Shorter loops LLVM interleaves by itself.
_LONG = 24


def module(about: str, *functions: Function) -> str:
    """Return functions as the text of a module; `about` says what they are."""
    entries = [_entry(x) for x in functions if not x.private]
    text, *rest = "\n".join(map(str, (*functions, *entries))).split(_LOOP)
    nodes = _NODES if rest else ""
    for place, after in enumerate(rest, 4):
        said, after = after.removeprefix("(").split(")", 1)
        text += f"!llvm.loop !{place}{after}"
        nodes += f"!{place} = distinct !{{!{place}, {said}}}\n"
    return f"; {about}\n{_DECLARED}\n{text}{nodes}"


def element(dtype: np.dtype) -> str:
    """Return LLVM's type of an element of an array."""
    return _MEMORY.get(dtype.name, f"i{8 * dtype.itemsize}")


def constant(value: Value) -> str:
    """Return a constant as LLVM writes it."""
    if not value.type.is_float:
        return str(value.constant)
    assert isinstance(value.constant, int | float)
    return number(value.constant)


def number(x: float) -> str:
    """Return a number of binary32 or binary64 as LLVM writes it, by the bits of binary64."""
    return "0x" + struct.pack(">d", x).hex().upper()


# -- calls from Python ------------------------------------------------------------------------------------
#: Offsets of fields of NumPy's arrays (its C API's `PyArrayObject_fields`), after the head of every object.
_HEAD = object.__basicsize__
DATA, DIMENSIONS, SHAPE, DTYPE, FLAGS = (_HEAD + place for place in (0, 8, 16, 40, 48))
#: The flags of an array that is contiguous and aligned, and of one that may be written, too.
GOOD_FLAGS, WRITEABLE = 0x101, 0x501
#: What an entry returns if an array is of another kind.
OTHER_KIND = 2


class Taken(NamedTuple):
    """An argument as an entry takes it: its name, its type, and an array's number of dimensions; else 0."""

    name: str
    kind: str
    dimensions: int


def taken(arguments: Sequence[str]) -> list[Taken]:
    """Return the arguments of a function, each array with its shape as one."""
    found: list[Taken] = []
    for kind, name in map(str.split, arguments):
        if kind == "i64" and found and name.startswith(f"{found[-1].name}."):
            found[-1] = found[-1]._replace(dimensions=found[-1].dimensions + 1)
        else:
            found.append(Taken(name, kind, 0))
    return found


def _entry(function: Function) -> Function:
    """Return a function that calls another with arguments as bytes: addresses of NumPy's arrays, and numbers.

    The addresses of the arrays' dtypes follow. It returns `OTHER_KIND` if an array is not of its dtype and
    dimensions, contiguous and aligned, or is a result (by its name) and read-only.
    """
    entry = Function(f"{function.name}.call", ["ptr %given"], wide=False)
    sizes = {"ptr": 8, "i64": 8, "double": 8, "i32": 4, "float": 4}
    arguments = taken(function.arguments)
    place, dtypes = 0, sum(sizes[x.kind] for x in arguments)

    def read(kind: str, pointer: str, offset: int) -> str:
        at = entry.made(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        return entry.made(f"load {kind}, ptr {at}, align 1")

    passed, good = list[str](), "true"
    for x in arguments:
        own = read(x.kind, "%given", place)
        place += sizes[x.kind]
        if x.kind == "ptr":
            wanted = WRITEABLE if x.name.startswith("%out") else GOOD_FLAGS
            flags = entry.made(f"and i32 {read('i32', own, FLAGS)}, {wanted}")
            for check in (
                f"ptr {read('ptr', own, DTYPE)}, {read('ptr', '%given', dtypes)}",
                f"i32 {read('i32', own, DIMENSIONS)}, {x.dimensions}",
                f"i32 {flags}, {wanted}",
            ):
                good = entry.made(f"and i1 {good}, {entry.made(f'icmp eq {check}')}")
            dtypes += 8
            passed.append(f"ptr {read('ptr', own, DATA)}")
            shape = read("ptr", own, SHAPE)
            passed += [f"i64 {read('i64', shape, 8 * n)}" for n in range(x.dimensions)]
        else:
            passed.append(f"{x.kind} {own}")
    entry.do(f"br i1 {good}, label %fits, label %other")
    entry.do("other:")
    entry.returns(f"{OTHER_KIND}")
    entry.do("fits:")
    entry.returns(entry.made(f"call i32 @{function.name}({', '.join(passed)})"))
    return entry


class Function:
    """A function in the making, which returns an integer of 32 bits.

    Parameters
    ----------
    name : str
    arguments : sequence of str
        Their types, each followed by its name.
    private : bool, optional
        Whether only functions of its module call it.
    wide : bool, optional
        Whether to prefer the widest vectors: on some machines LLVM's default is half as wide.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, private: bool = False, wide: bool = True
    ) -> None:
        kept = "internal " if private else ""
        self.name, self.arguments, self.private = name, arguments, private
        preferring = ' "prefer-vector-width"="512"' if wide else ""
        self._head = f"define {kept}i32 @{name}({', '.join(arguments)}) nounwind{preferring} {{"
        self._variables: list[str] = []
        self._body: list[str] = []
        self._named = 0
        self._block = "entry"
        self._independent = False

    def __str__(self) -> str:
        body = "".join(line if line.endswith(":\n") else f"  {line}" for line in self._body)
        return f"{self._head}\nentry:\n{''.join(f'  {x}' for x in self._variables)}{body}}}\n"

    # -- statements ---------------------------------------------------------------------------------------
    def do(self, text: str) -> None:
        """Append an instruction without a result, or a note."""
        self._body.append(f"{text}\n")

    def made(self, text: str) -> str:
        """Append an instruction; return the name of its result."""
        name = self._name("v")
        self.do(f"{name} = {text}")
        return name

    def variable(self, kind: str, count: int = 1) -> str:
        """Return a pointer to memory of the function for elements of a type."""
        name = self._name("m")
        self._variables.append(f"{name} = alloca {kind}, i64 {count}, align 64\n")
        return name

    def load(self, kind: str, pointer: str, place: str = "") -> str:
        """Return what is in memory, at a place after a pointer if one is given."""
        return self.made(f"load {kind}, ptr {self.at(kind, pointer, place)}{self._group(place)}")

    def store(self, kind: str, x: str, pointer: str, place: str = "") -> None:
        """Write to memory, at a place after a pointer if one is given."""
        self.do(f"store {kind} {x}, ptr {self.at(kind, pointer, place)}{self._group(place)}")

    def _group(self, place: str) -> str:
        """Return the mark of an access to memory: of an array, not a variable, in an independent loop."""
        return f", !llvm.access.group {_GROUP}" if self._independent and place else ""

    def at(self, kind: str, pointer: str, place: str) -> str:
        """Return a pointer to the element at a place after a pointer."""
        return self.made(f"getelementptr {kind}, ptr {pointer}, i64 {place}") if place else pointer

    def converted(self, x: str, own: str, kind: str) -> str:
        """Return an integer, or a truth value, in another type: cut, or filled up with zeros."""
        if own == kind:
            return x
        how = "zext" if int(own[1:]) < int(kind[1:]) else "trunc"
        return self.made(f"{how} {own} {x} to {kind}")

    @contextmanager
    def loop(self, count: str, *, independent: bool = False, many: bool = False) -> Iterator[str]:
        """Return a context whose statements are done `count` times; it gives the number of each time.

        A loop whose count is a constant stays a loop: LLVM would unroll it first and then not vectorize it.
        An `independent` loop has another count and contains no loop. It writes nothing to an array that
        another iteration reads or writes, so LLVM need not find out whether arrays overlap. A long loop over
        `many` elements works on four vectors at a time.
        """
        i, following, more = self._name("i"), self._name("i"), self._name("i")
        each, after = (self._name(part)[1:] for part in ("each", "after"))
        some = self.made(f"icmp sgt i64 {count}, 0")
        before = self._block
        self.do(f"br i1 {some}, label %{each}, label %{after}")
        self._begin(each)
        phi = len(self._body)
        self._independent = independent
        yield i
        self._independent = False
        self._body.insert(phi, f"{i} = phi i64 [0, %{before}], [{following}, %{self._block}]\n")
        self.do(f"{following} = add nuw nsw i64 {i}, 1")
        self.do(f"{more} = icmp slt i64 {following}, {count}")
        told = [] if count.startswith("%") or independent else [_ROLLED]
        if independent:
            told.append(_INDEPENDENT)
        if many and len(self._body) - phi > _LONG:
            told.append(_FOURFOLD)
        said = f", {_LOOP}({', '.join(told)})" if told else ""
        self.do(f"br i1 {more}, label %{each}, label %{after}{said}")
        self._begin(after)

    def returns(self, x: str) -> None:
        """Append the return of a result."""
        self.do(f"ret i32 {x}")

    def verb(self, value: Value, known: dict[Value, str], tables: Mapping[str, str]) -> None:
        """Append a verb unless its value is known; `known` has the names of values, inputs included."""
        own = value.line.values[value.number]  # `value` may be a verb noted for it
        if value.verb == "constant":
            known[own] = constant(value)
        elif own not in known:
            given = [known[x] if x in known else constant(x) for x in value.operands]
            known[own] = self._verb(value, given, tables)

    def _verb(self, value: Value, given: list[str], tables: Mapping[str, str]) -> str:
        verb, kind = value.verb, REGISTERS[value.type]
        own = REGISTERS[value.operands[0].type]
        is_float = value.operands[0].type.is_float
        if verb in _CASTS:
            return self.made(f"{_CASTS[verb]} {own} {given[0]} to {kind}")
        if verb == "select":
            return self.made(f"select i1 {given[0]}, {kind} {given[1]}, {kind} {given[2]}")
        if verb in ("lt", "le", "eq"):
            how = f"fcmp o{verb}" if is_float else f"icmp {verb if verb == 'eq' else f's{verb}'}"
            return self.made(f"{how} {own} {', '.join(given)}")
        if verb in HALF:
            return self._half(verb, given[0])
        if verb == "look_up":
            return self._look_up(given[0], tables[str(value.constant)])
        if verb == "not":
            return self.made(f"xor {kind} {given[0]}, {'true' if value.type is TRUTH else -1}")
        if verb in ("abs", "sqrt") and is_float:
            called = "fabs" if verb == "abs" else "sqrt"
            return self.made(f"call {kind} @llvm.{called}.f{value.type.bits}({kind} {given[0]})")
        if verb == "abs":
            return self.made(f"call {kind} @llvm.abs.{kind}({kind} {given[0]}, i1 false)")
        if verb == "neg" and not is_float:
            return self.made(f"sub {kind} 0, {given[0]}")
        return self.made(f"{(_ON_FLOATS if is_float else _ON_INTEGERS)[verb]} {kind} {', '.join(given)}")

    def _half(self, verb: str, x: str) -> str:
        """Append a verb by the processor's conversions from and to binary16, with NaN as the verb has it."""
        if verb == "decode_float16":
            half = self.made(f"bitcast i16 {self.made(f'trunc i32 {x} to i16')} to half")
        else:
            half = self.made(f"fptrunc float {x} to half")
        if verb == "encode_float16":
            code = self.made(f"zext i16 {self.made(f'bitcast half {half} to i16')} to i32")
            return self.made(f"select i1 {self.made(f'fcmp ord float {x}, {x}')}, i32 {code}, i32 {0x7E00}")
        number = self.made(f"fpext half {half} to float")
        # The test for NaN is on x: for a test on the number, LLVM compares in binary16, which is slow.
        if verb == "decode_float16":
            code, kept = self.made(f"bitcast float {number} to i32"), 0x7FC00000
            code = self.made(f"and i32 {code}, {-(2**31)}")
            is_number = self.made(f"icmp ule i32 {self.made(f'and i32 {x}, {0x7FFF}')}, {0x7C00}")
        else:
            code, kept = self.made(f"bitcast float {x} to i32"), 0x400000
            is_number = self.made(f"fcmp ord float {x}, {x}")
        nan = self.made(f"bitcast i32 {self.made(f'or i32 {code}, {kept}')} to float")
        return self.made(f"select i1 {is_number}, float {number}, float {nan}")

    def _look_up(self, place: str, table: str) -> str:
        """Return the number at a place of a table; a place outside it becomes its last place."""
        last = self.made(f"sub i64 {table}.size, 1")
        last = self.made(f"trunc i64 {last} to i32")
        inside = self.made(f"call i32 @llvm.umin.i32(i32 {place}, i32 {last})")
        return self.load("double", table, self.made(f"zext i32 {inside} to i64"))

    def _begin(self, block: str) -> None:
        self._body.append(f"{block}:\n")
        self._block = block

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"%{kind}{self._named}"
