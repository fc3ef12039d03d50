"""Loading of an object file's machine code without LLVM: on Linux and x86-64, if it calls no other code."""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from typing import NamedTuple

_SECTIONS, _SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<IIQQQQIIQQ")
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
#: Types of sections, and the flag of one that is loaded.
_SYMBOLS, _RELOCATIONS, _NO_BITS, _LOADED = 2, 4, 8, 2
#: Relocations: an address, and distances of 32 and 64 bits (System V ABI for AMD64, table 4.9).
_ADDRESS, _DISTANCES, _LONG_DISTANCE = 1, (2, 4), 24


class UnknownObjectError(ValueError):
    """An object that this module does not load."""


class Section(NamedTuple):
    """A section of an object, as its header has it."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class Loaded:
    """An object in memory that is executable and no longer writable.

    Parameters
    ----------
    code : bytes
        An object file.

    Raises
    ------
    UnknownObjectError
        If it is no object for this system and processor, refers to symbols outside it, or has relocations
        that are not known here.
    OSError
        If the system does not make memory executable.
    """

    def __init__(self, code: bytes) -> None:
        if not is_known() or code[:6] != b"\x7fELF\x02\x01":
            raise UnknownObjectError("no object for Linux on x86-64")
        self._code = code
        sections = _sections(code)
        names = sections[_SECTIONS.unpack_from(code)[3]]
        kept, size = dict[int, int](), 0
        for number, section in enumerate(sections):
            unwinding = _name(code, names.offset + section.name) == ".eh_frame"
            if section.flags & _LOADED and not unwinding:
                size += -size % max(1, section.alignment)
                kept[number] = size
                size += section.size
        self._memory = mmap.mmap(-1, max(1, size), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for number, place in kept.items():
            section = sections[number]
            if section.type != _NO_BITS:
                self._memory[place : place + section.size] = code[section.offset :][: section.size]
        self._addresses: dict[str, int] = {}
        for table in sections:
            if table.type == _SYMBOLS:
                strings = sections[table.link].offset
                for name, _, _, number, value, _ in _entries(code, table, _SYMBOL):
                    if number in kept:
                        self._addresses[_name(code, strings + name)] = self._base + kept[number] + value
        for table in sections:
            if table.type == _RELOCATIONS and table.info in kept:
                self._relocate(table, sections[table.link], kept)
        if _protect(self._base, max(1, size)):
            raise OSError("memory cannot be made executable")

    def get_function_address(self, name: str) -> int:
        """Return the address of a function."""
        return self._addresses[name]

    def _relocate(self, table: Section, symbols: Section, kept: dict[int, int]) -> None:
        entries = list(_entries(self._code, symbols, _SYMBOL))
        for offset, info, addend in _entries(self._code, table, _RELOCATION):
            _, _, _, number, value, _ = entries[info >> 32]
            if number not in kept:
                raise UnknownObjectError("refers to a symbol outside it")
            place, kind = kept[table.info] + offset, info & 0xFFFFFFFF
            target = self._base + kept[number] + value + addend
            distance = target - self._base - place
            if kind == _ADDRESS:
                struct.pack_into("<Q", self._memory, place, target)
            elif kind == _LONG_DISTANCE or (kind in _DISTANCES and -(2**31) <= distance < 2**31):
                struct.pack_into("<q" if kind == _LONG_DISTANCE else "<i", self._memory, place, distance)
            else:
                raise UnknownObjectError(f"has a relocation of type {kind}")


def is_known() -> bool:
    """Return whether objects of this system and processor are loaded here."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


def _sections(code: bytes) -> list[Section]:
    start, size, count, _ = _SECTIONS.unpack_from(code)
    return [Section(*_SECTION.unpack_from(code, start + size * number)) for number in range(count)]


def _entries(code: bytes, table: Section, entry: struct.Struct) -> list[tuple[int, ...]]:
    return list(entry.iter_unpack(code[table.offset : table.offset + table.size]))


def _name(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode()


def _protect(address: int, size: int) -> int:
    """Make memory executable and read-only; return 0 if that succeeds."""
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found: int = protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC)
    return found
