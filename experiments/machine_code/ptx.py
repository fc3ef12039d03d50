"""NVIDIA's virtual instructions (PTX) as values: which of them make what is there already.

Of what is alike in a long text LLVM makes vectors, and then has some sums twice: of absolute values that are
widened, and of widened numbers whose sign is dropped.
"""

from __future__ import annotations

import re
from typing import Any

#: An instruction with one result that depends on its operands alone: no addresses, nothing conditional.
_PLAIN = re.compile(
    r"\s*((?:abs|add|and|cvt|div|mul|neg|not|or|selp|setp|shl|shr|sqrt|sub|xor|mov)\.[\w.]+)"
    r"\s+(%\w+),\s*([^{}\[\]]+);\s*"
)
_REGISTER = re.compile(r"%\w+")
_JUMP = re.compile(r"\b(?:bra|brx|call)\b")


def without_repeats(text: str) -> str:
    """Return PTX without the instructions whose value one before them has made; with jumps, as it is.

    Two make the same if they do the same to the same values. Nothing is calculated.
    """
    if _JUMP.search(text):
        return text
    values, kept = _Values(), []
    for row in text.splitlines():
        found = _PLAIN.fullmatch(row)
        if found is None:
            values.forget(_REGISTER.findall(row))  # it may have written them
        if found is None or values.is_new(found[1], found[2], re.split(r"\s*,\s*", found[3].strip())):
            kept.append(row)
    return "\n".join(kept)


class _Values:
    """What registers hold, each value by a number of its own."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._known: dict[Any, int] = {}
        self._held: dict[str, Any] = {}
        self._instructed: set[int] = set()

    def forget(self, registers: list[str]) -> None:
        """Take it that registers hold something else now."""
        for register in registers:
            self._held[register] = self._number("unknown", (len(self._made),))  # as no other is

    def is_new(self, name: str, result: str, operands: list[str]) -> bool:
        """Note the value of an instruction; return whether none before has it."""
        given = tuple(self._of(operand) for operand in operands)
        if name.startswith("mov."):
            self._held[result] = given[0]
            return True
        self._held[result] = value = self._number(name, given)
        new = value not in self._instructed
        self._instructed.add(value)
        return new

    def _of(self, operand: str) -> Any:
        """Return the value of a register, or a constant as it is written."""
        if operand.startswith("%") and operand not in self._held:
            self.forget([operand])
        return self._held.get(operand, operand)

    def _number(self, name: str, given: tuple[Any, ...]) -> int:
        if name == "cvt.f64.f32" and isinstance(
            given[0], int
        ):  # exact: signs may as well be changed after it
            before, of = self._made[given[0]]
            if before in ("abs.f32", "neg.f32"):
                return self._number(before.replace("f32", "f64"), (self._number(name, of),))
        if name.startswith(("add.", "mul.")):
            given = tuple(sorted(given, key=str))
        if (name, given) not in self._known:
            self._known[name, given] = len(self._made)
            self._made.append((name, given))
        return self._known[name, given]
