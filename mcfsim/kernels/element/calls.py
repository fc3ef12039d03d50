"""A line as calls of NumPy's functions: one a verb, on blocks, in memory that is used again.

What only one side of a selection needs is computed only if some element takes that side, and where few do,
for these alone: a guard for each block, which follows from the text. So a line that puts right what overflows
or is no number pays for looking whether there is any.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.choices import Choice, Side, blend, foreseen
from mcfsim.kernels.element.forms import SELECTIONS, VIEWS, Form, Forms, Operand
from mcfsim.kernels.element.machine import TRUTH, Value
from mcfsim.kernels.element.on_numpy import DTYPES
from mcfsim.storage.buffers import BLOCK, scratch

Array = NDArray[Any]


def _cast(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def _greatest(a: Array, b: Array, out: Array) -> None:
    np.maximum(a, b, out=out)


def _least(a: Array, b: Array, out: Array) -> None:
    np.minimum(a, b, out=out)


#: What carries out a verb, the memory of the result last.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt},
    **{"neg": np.negative, "abs": np.absolute, "lt": np.less, "le": np.less_equal, "eq": np.equal},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert},
    **{"shl": np.left_shift, "sar": np.right_shift, "shr": np.right_shift, "select": blend},
    **{"clip": np.clip, "greatest": _greatest, "least": _least},
    **dict.fromkeys(("widen", "narrow", "extend", "cut", "count"), _cast),
}
#: Verbs from which on it pays to look whether any element takes a side of a selection.
_WORTH_A_LOOK = 3
#: No size, and no memory for it.
_NOTHING: tuple[int, list[Any]] = -1, []


class _Memory(NamedTuple):
    """What a value is in: an operand, a result, a constant, a single number, or a buffer of an item size."""

    kind: str
    number: int
    size: int = 0


class Calls:
    """A line, or part of one, as calls of NumPy's functions.

    Parameters
    ----------
    results : sequence of Value
        What is to be computed.
    given : sequence of Value
        From what: inputs of the line, or other values of it.
    singles : collection of Value, optional
        Those of `given` that are the same for all elements, arrays without axes.
    apart : bool, optional
        Whether results share no memory with operands. Otherwise there is one result alone, which may be in
        the memory of an operand.
    depth : int, optional
        How many other calls are under way while these are made: each has memory of its own.

    Raises
    ------
    ValueError
        If a result needs an input that is not given.
    """

    def __init__(
        self,
        results: Sequence[Value],
        given: Sequence[Value],
        singles: Collection[Value] = (),
        *,
        apart: bool = True,
        depth: int = 0,
    ) -> None:
        self._depth, self._apart = depth, apart
        self._slots: dict[tuple[_Memory, np.dtype[Any]], int] = {}
        self._constants: list[Array] = []
        self._calls: list[tuple[Callable[..., Any], Callable[[list[Any]], tuple[Any, ...]]]] = []
        self._kept = threading.local()
        forms = Forms(results, given)
        self._singles = {x.number for x in singles}
        for number, form in forms.made.items():
            if all(x.number in self._singles for x in form.values):
                self._singles.add(number)
        self._write(forms, self._choices(forms), results, given)
        slots = [(slot, memory, dtype) for (memory, dtype), slot in self._slots.items()]
        self._buffers = [slot for slot, memory, _ in slots if memory.kind == "buffer"]
        self._external = [
            (slot, memory.kind == "result", memory.number, dtype)
            for slot, memory, dtype in slots
            if memory.kind in ("operand", "result")
        ]
        self._alone = self._single(slots)

    def _single(
        self, slots: Sequence[tuple[int, _Memory, np.dtype[Any]]]
    ) -> tuple[Any, tuple[int, ...]] | None:
        """Return the only function, and the places of the operands that it takes, if that is all there is.

        Inside other calls operands are memory of any dtype.
        """
        outside = all(
            memory.kind in ("operand", "result") and dtype.kind == "f" for _, memory, dtype in slots
        )
        if self._depth or len(self._calls) != 1 or not outside:
            return None
        function, pick = self._calls[0]
        if not isinstance(function, np.ufunc):
            return None
        *operands, _ = pick([memory.number for _, memory, _ in sorted(slots)])
        return function, tuple(operands)

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self, given: Sequence[Array], out: Sequence[Array]) -> None:
        """Fill results from operands, vectors of one length; the caller ignores floating-point errors."""
        size = out[0].size
        if not size:
            return
        if self._alone is not None:
            function, places = self._alone
            function(*[given[place] for place in places], out[0])
            return
        kept: tuple[int, list[Any]] = self._kept.__dict__.get("bound", _NOTHING)
        slots = kept[1].copy() if kept[0] == size else self._bound(size)
        for slot, is_result, number, dtype in self._external:
            array = out[number] if is_result else given[number]
            slots[slot] = array if array.dtype is dtype else array.view(dtype)
        for function, pick in self._calls:
            function(*pick(slots))

    # -- memory ----------------------------------------------------------------------------------------------
    def _bound(self, size: int) -> list[Any]:
        """Return all memory for blocks of a size, but for operands and results."""
        if size > BLOCK:
            return self._memory(size)
        if not hasattr(self._kept, "whole"):
            self._kept.whole = self._memory(BLOCK)
        slots: list[Any] = self._kept.whole.copy()
        for slot in self._buffers:
            slots[slot] = slots[slot][:size]
        self._kept.bound = size, slots
        return slots.copy()

    def _memory(self, size: int) -> list[Any]:
        singles: dict[int, Array] = {}
        slots: list[Any] = []
        for memory, dtype in self._slots:
            match memory.kind:
                case "constant":
                    slots.append(self._constants[memory.number].view(dtype))
                case "single":
                    slots.append(singles.setdefault(memory.number, np.empty((), dtype)).view(dtype))
                case "buffer":
                    place = f"calls {self._depth} {memory.number}"
                    slots.append(scratch(place, size, np.dtype(f"u{memory.size}")).view(dtype))
                case _:
                    slots.append(None)
        return slots

    # -- selections ------------------------------------------------------------------------------------
    def _choices(self, forms: Forms) -> dict[int, Choice]:
        """Take out of forms what only one side of a selection needs; return these selections as functions."""
        found: dict[int, Choice] = {}
        for number in sorted(forms.made, reverse=True):
            form = forms.made.get(number)
            if form is not None and form.verb == "select":
                choice = self._choice(form, forms)
                if choice is not None:
                    found[number] = choice
        return found

    def _choice(self, form: Form, forms: Forms) -> Choice | None:
        condition = form.operands[0]
        if not isinstance(condition, Value) or condition.number in self._singles:
            return None
        look = foreseen(condition)
        if look is not None and not (condition.number in forms.made and forms.has(look[1])):
            look = None
        kept = () if look is None else (look[1].number,)
        parts = [forms.alone(x, form, kept) for x in form.operands]
        if look is None:
            parts[0] = set()  # needed in any case
        work = sum(forms.made[x].verb not in VIEWS for part in parts[1:] for x in part)
        if look is None and work < _WORTH_A_LOOK:
            return None
        operands: list[Operand] = []
        sides: list[Side] = []
        for part, result in zip(parts, form.operands, strict=True):
            taken: list[Operand] = [result]
            compute = None
            if isinstance(result, Value) and part:
                values = forms.sources(part)
                singles = [x for x in values if x.number in self._singles]
                compute = _Later([result], values, singles, apart=self._apart, depth=self._depth + 1)
                taken = [*values]
            sides.append(Side(tuple(range(len(operands), len(operands) + len(taken))), compute))
            operands += taken
        watched = len(operands)
        operands += [] if look is None else [look[1]]
        forms.replace(Form(form.value, "choice", tuple(operands)))
        by, yes, no = sides
        return Choice(by, yes, no, look and look[0], watched, f"choice {self._depth}")

    # -- written ------------------------------------------------------------------------------------
    def _write(
        self, forms: Forms, choices: Mapping[int, Choice], results: Sequence[Value], given: Sequence[Value]
    ) -> None:
        """Write the calls, each value in the memory of one that is needed no more if there is any."""
        truths = forms.truths()
        roots = {x.number: x.number for x in given}  # of values that share the memory of others
        for number, form in forms.made.items():
            shares = form.verb in VIEWS or number in truths
            roots[number] = roots[form.values[0].number] if shares else number
        steps = [form for number, form in forms.made.items() if roots[number] == number]
        last = {roots[x.number]: place for place, form in enumerate(steps) for x in form.values}
        ends = {place: roots[x.number] for place, x in enumerate(results) if x.number in roots}
        last |= dict.fromkeys(ends.values(), len(steps))
        memory = {x.number: _Memory("operand", place) for place, x in enumerate(given)}
        vectors = [last.get(x.number, -1) for x in given if x.number not in self._singles]
        begin = -1 if self._apart else max(vectors, default=-1)  # when results may be written
        ready = {form.value.number: _ready(form, choices, roots) for form in steps}
        sizes = {form.value.number: DTYPES[form.value.type].itemsize for form in steps}
        meant = {root: _Memory("result", place) for place, root in reversed(ends.items())}
        for place, form in reversed([*enumerate(steps)]):
            # What is needed for a result alone had better be made where that goes.
            number = form.value.number
            passed = [x for x in ready[number] if last[x] == place and sizes.get(x) == sizes[number]]
            if number in meant and passed:
                meant.setdefault(passed[0], meant[number])
        free: dict[int, list[_Memory]] = defaultdict(list)
        made: dict[int, int] = defaultdict(int)

        def slot(x: Operand, *, unsigned: bool = False) -> int:
            if isinstance(x, Value):
                kind, place = DTYPES[TRUTH if x.number in truths else x.type], memory[roots[x.number]]
            else:
                kind, place = x.dtype, _Memory("constant", len(self._constants))
                self._constants.append(x)
            return self._slot(place, np.dtype(f"u{kind.itemsize}") if unsigned else kind)

        for place, form in enumerate(steps):
            value, number, unsigned = form.value, form.value.number, form.verb == "shr"
            taken = [slot(x, unsigned=unsigned) for x in form.operands]
            size = sizes[number]
            used = dict.fromkeys(roots[x.number] for x in form.values)
            dying = [memory[x] for x in used if last[x] == place and memory[x].kind == "buffer"]
            fitting = [x for x in (memory[x] for x in ready[number]) if x in dying and x.size == size]
            if number in self._singles:
                target = _Memory("single", number)
            elif number in meant and place >= begin:
                target = meant[number]
            elif fitting:
                target = fitting[0]
                dying.remove(target)
            elif free[size]:
                target = free[size].pop()
            else:
                target = _Memory("buffer", made[size], size)
                made[size] += 1
            memory[number] = target
            for old in dying:
                free[old.size].append(old)
            function = choices[number] if number in choices else _FUNCTIONS[form.verb]
            self._calls.append((function, itemgetter(*taken, slot(value, unsigned=unsigned))))
        for place, x in enumerate(results):
            end = _Memory("result", place)
            if place not in ends or memory[ends[place]] != end:
                source = slot(forms.constants.get(x.number, x))
                self._calls.append((_cast, itemgetter(source, self._slot(end, DTYPES[x.type]))))

    def _slot(self, memory: _Memory, dtype: np.dtype[Any]) -> int:
        return self._slots.setdefault((memory, dtype), len(self._slots))


class _Later:
    """Calls that are made when they are first carried out: most lines have sides that no element takes."""

    def __init__(self, *line: Any, **options: Any) -> None:
        self._line, self._options = line, options

    @cached_property
    def _made(self) -> Calls:
        return Calls(*self._line, **self._options)

    def __call__(self, given: Sequence[Array], out: Sequence[Array]) -> None:
        self._made(given, out)


def _ready(form: Form, choices: Mapping[int, Choice], roots: Mapping[int, int]) -> list[int]:
    """Return the roots of the operands that a value may overwrite: of a selection, sides that are there."""
    if form.verb not in SELECTIONS:
        return [*dict.fromkeys(roots[x.number] for x in form.values)]
    choice = choices.get(form.value.number)
    there, read = ((2, 1), (0,)) if choice is None else choice.places()
    sides, busy = (
        [roots[x.number] for x in (form.operands[place] for place in places) if isinstance(x, Value)]
        for places in (there, read)
    )
    return [x for x in sides if x not in busy]
