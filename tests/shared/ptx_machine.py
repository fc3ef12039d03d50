"""NVIDIA's virtual instructions (PTX), carried out by NumPy for all threads at once, by their specification.

It knows what kernels of lines are made of, and refuses anything else: branches, and what is fused, flushed,
approximated, or rounded in another way than to nearest even. Registers hold bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = Any
#: Threads of a block.
THREADS = 128
_ROW = re.compile(r"\s*(?:@(!?)(%p\d+)\s+)?([a-z]\w*(?:\.\w+)*(?:\.[\w.:]+)?)\s+(.*);\s*")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_BESIDE = re.compile(r"\s*(?://.*|\.\w.*|[{})(]|\$?\w+:|.*\.param .*)?\s*|\s*ret;\s*")
_COMPARED = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
}
_ROUNDED = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
_LOGICAL = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_WHOLE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def size_of(kind: str) -> int:
    """Return how many bits a type has."""
    return int(kind[1:])


def as_type(bits: Array, kind: str) -> Array:
    """Return registers' bits as numbers or integers of a type."""
    size, letter = size_of(kind) // 8, {"b": "u", "s": "i"}.get(kind[0], kind[0])
    return bits.astype(f"u{size}").view(f"{letter}{size}")


def as_bits(x: Array) -> Array:
    """Return numbers or integers as registers hold them; a NaN has all bits set but the sign."""
    if x.dtype.kind == "f":
        whole = np.ascontiguousarray(x).view(f"u{x.itemsize}")
        x = np.where(np.isnan(x), np.iinfo(f"i{x.itemsize}").max, whole).astype(whole.dtype)
    return x.view(f"u{x.itemsize}").astype(np.uint64)


class Kernel:
    """A kernel's PTX on memory: named vectors and numbers, in the order of its parameters."""

    def __init__(self, ptx: str, given: Mapping[str, Any], blocks: int) -> None:
        self._memory = list(given.values())
        self._count = blocks * THREADS
        self._held: dict[str, Array] = {}
        self._threads = np.arange(self._count, dtype=np.uint64)
        body = ptx[ptx.index(".entry") :]
        for row in body.splitlines()[1:]:
            found = _ROW.fullmatch(row)
            if found is not None and found[3] != "ret":
                guard = np.ones(self._count, bool)
                if found[2] is not None:
                    guard = self._held[found[2]] ^ (found[1] == "!")
                self._execute(found[3], _OPERAND.findall(found[4]), guard)
            elif _BESIDE.fullmatch(row) is None:
                raise ValueError(f"{row.strip()} is not known")

    # -- operands --------------------------------------------------------------------------------------------
    def _read(self, name: str) -> Array:
        if name == "%tid.x":
            return self._threads % THREADS
        if name == "%ctaid.x":
            return self._threads // THREADS
        if name.startswith("%"):
            return self._held[name]
        number = int(name[2:], 16) if name[:2] in ("0f", "0d") else int(name, 0)
        return np.full(self._count, number % 2**64, np.uint64)

    def _address(self, text: str) -> tuple[Any, Array]:
        """Return the vector that lies at addresses, and the bytes from its begin."""
        base, _, offset = text.strip("[] ").partition("+")
        address = self._read(base.strip()) + np.uint64(int(offset or 0))
        (place,) = set((address >> np.uint64(40)).tolist())
        return self._memory[int(place) - 1], address & np.uint64(2**40 - 1)

    # -- instructions ----------------------------------------------------------------------------------------
    def _execute(self, name: str, operands: list[str], guard: Array) -> None:
        verb, *how = name.split(".")
        if verb == "st":
            vector, at = self._address(operands[0])
            place = (at // np.uint64(vector.itemsize)).astype(np.int64)
            bits = self._read(operands[1].strip("{} "))
            assert how == ["global", f"b{8 * vector.itemsize}"]
            vector.view(f"u{vector.itemsize}")[place[guard]] = bits[guard].astype(f"u{vector.itemsize}")
            return
        results = [x.strip() for x in operands[0].strip("{}").split(",")]
        made = [self._made(name, verb, how, operands[1:], guard)]
        if len(results) == 2:  # halves, the lower one first
            half = np.uint64(size_of(how[-1]) // 2)
            made = [made[0] & (np.uint64(1) << half) - np.uint64(1), made[0] >> half]
        for result, bits in zip(results, made, strict=True):
            kept = self._held.get(result)
            self._held[result] = bits if guard.all() or kept is None else np.where(guard, bits, kept)

    def _made(self, name: str, verb: str, how: list[str], operands: list[str], guard: Array) -> Array:
        kind = how[-1]
        if verb == "ld" and how[0] == "param":
            place = int(operands[0].strip("[]").rpartition("_")[2])
            given = self._memory[place]
            address = (place + 1) << 40 if isinstance(given, np.ndarray) else int(given) % 2**64
            return np.full(self._count, address, np.uint64)
        if verb == "ld" and how[0] == "global":
            vector, at = self._address(operands[0])
            assert kind == f"b{8 * vector.itemsize}"
            place = np.where(guard, at // np.uint64(vector.itemsize), 0).astype(np.int64)
            return vector.view(f"u{vector.itemsize}")[place].astype(np.uint64)
        x, *rest = map(self._read, operands)
        if verb == "mov":
            return x
        if kind == "pred":
            return ~x if verb == "not" else _LOGICAL[verb](x, *rest)
        if verb == "selp":
            return np.where(rest[1], x, rest[0])
        if verb == "setp":
            return self._compared(how[0], *(as_type(y, kind) for y in (x, *rest)))
        if verb == "cvt":
            return self._converted(name, as_type(x, kind), how)
        if verb in ("mul", "mad") and how[0] == "wide" and size_of(kind) < 64:
            wide = np.dtype("i8" if kind[0] == "s" else "u8")
            product = as_bits(as_type(x, kind).astype(wide) * as_type(rest[0], kind).astype(wide))
            return product + rest[1] if verb == "mad" else product
        if verb in ("shl", "shr"):
            return self._shifted(verb, as_type(x, kind), rest[0] & np.uint64(0xFFFFFFFF))
        values = [as_type(y, kind) for y in (x, *rest)]
        if kind[0] == "f" and verb in _ROUNDED and how == ["rn", kind]:
            return as_bits(_ROUNDED[verb](*values))
        if kind[0] == "f" and verb in ("min", "max") and how == [kind]:
            return as_bits(self._least(*values) if verb == "min" else -self._least(*(-y for y in values)))
        if kind[0] == "f" and verb in ("abs", "neg") and how == [kind]:
            sign = np.uint64(1 << (size_of(kind) - 1))
            return x & ~sign if verb == "abs" else x ^ sign
        if kind[0] != "f" and (how == [kind] or (verb == "mul" and how == ["lo", kind])):
            return self._whole(name, verb, kind, values)
        raise ValueError(f"{name} is not known")

    def _whole(self, name: str, verb: str, kind: str, values: list[Array]) -> Array:
        if verb in _LOGICAL:
            return as_bits(_LOGICAL[verb](*values))
        if verb in ("not", "neg"):
            return as_bits(~values[0] if verb == "not" else np.negative(values[0]))
        if verb == "bfe" and kind[0] == "u":
            x, first, count = values
            return as_bits((x >> first) & ((np.ones_like(x) << count) - x.dtype.type(1)))
        if verb in _WHOLE:
            return as_bits(_WHOLE[verb](*values))
        raise ValueError(f"{name} is not known")

    def _least(self, a: Array, b: Array) -> Array:
        """Return the lesser of two numbers: of zeros the negative one, beside NaN the other."""
        less = (a < b) | ((a == b) & np.signbit(a)) | np.isnan(b)
        return np.where(less, a, b)

    def _compared(self, how: str, a: Array, b: Array) -> Array:
        ordered = ~(np.isnan(a) | np.isnan(b)) if a.dtype.kind == "f" else np.ones(a.shape, bool)
        if how in ("num", "nan"):
            return ordered ^ (how == "nan")
        if how in _COMPARED:
            return _COMPARED[how](a, b) & ordered
        if a.dtype.kind == "f" and how[-1] == "u" and how[:-1] in _COMPARED:
            return _COMPARED[how[:-1]](a, b) | ~ordered
        raise ValueError(f"setp.{how} is not known")

    def _converted(self, name: str, x: Array, how: list[str]) -> Array:
        if how in (["f64", "f32"], ["rn", "f32", "f64"]):
            return as_bits(x.astype(f"f{size_of(how[-2]) // 8}"))
        target, source = how[-2:]
        if len(how) == 2 and "f" not in target + source:
            return as_bits(x.astype(f"{'i' if target[0] == 's' else 'u'}{size_of(target) // 8}"))
        raise ValueError(f"{name} is not known")

    def _shifted(self, verb: str, x: Array, count: Array) -> Array:
        """Shift; by as many bits as there are or more, all are shifted out."""
        size = 8 * x.itemsize
        short = np.minimum(count, size - 1).astype(x.dtype)
        made = x << short if verb == "shl" else x >> short
        gone = -(x < 0).astype(x.dtype) if verb == "shr" and x.dtype.kind == "i" else x.dtype.type(0)
        return as_bits(np.where(count < size, made, gone).astype(x.dtype))
