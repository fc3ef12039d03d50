"""Translation of a line of machine operations to calls of NumPy's functions, with memory for each value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.calls import (
    FUNCTIONS,
    Call,
    Calls,
    Choice,
    Memory,
    Side,
    built_later,
    cast,
    foreseen,
    looking_up,
)
from mcfsim.kernels.element.machine import DTYPES, TRUTH, Value, carried_out

#: A value, or a constant.
Operand = Value | NDArray[Any]

#: Verbs (machine operations) that keep all bits.
VIEWS = ("bits", "number")
SELECTIONS = ("select", "choice")
#: Verbs that accept a truth value as an integer.
_TAKE_TRUTH = {"add", "sub", "and", "or", "xor"}


@dataclass(slots=True)
class Form:
    """The verb and the operands that compute a value.

    Attributes
    ----------
    value : Value
    verb : str
        A verb of the machine; or ``clip``, ``least`` or ``greatest`` on integers; or ``choice``, a selection
        that computes its sides.
    operands : tuple of Value or array
    values : list of Value
        The operands that are not constant.
    """

    value: Value
    verb: str
    operands: tuple[Operand, ...]
    values: list[Value] = field(init=False)

    def __post_init__(self) -> None:
        self.values = [x for x in self.operands if isinstance(x, Value)]


class Forms:
    """The forms of all values that results need, computed from given values.

    Parameters
    ----------
    results, given : sequence of Value

    Attributes
    ----------
    made : dict of int to Form
        By the numbers of the values, in order.
    constants : dict of int to array
        The values that are constant, by number.

    Raises
    ------
    ValueError
        If a result needs an input that is not given.
    """

    def __init__(self, results: Sequence[Value], given: Sequence[Value]) -> None:
        self._results = {x.number for x in results}
        self.constants: dict[int, NDArray[Any]] = {}
        forms: dict[int, Form] = {}
        self._there = there = {x.number for x in given}
        for value in _behind(results, lambda value: value.operands, there):
            if value.verb == "input":
                raise ValueError(f"the operand {value.constant} is not given")
            operands = tuple([self.constants.get(x.number, x) for x in value.operands])
            if any(isinstance(x, Value) for x in operands):
                forms[value.number] = _form(value, operands, forms)
            else:
                self.constants[value.number] = _constant(value, operands)
        varying = [x for x in results if x.number in forms]
        wanted = _behind(varying, lambda value: forms[value.number].values, there)
        self.made = {x.number: forms[x.number] for x in wanted}
        self._users: dict[int, list[int]] = defaultdict(list)
        for number, form in self.made.items():
            for x in form.values:
                self._users[x.number].append(number)

    def has(self, value: Value) -> bool:
        """Return whether a value is given or computed."""
        return value.number in self.made or value.number in self._there

    def alone(self, root: Operand, user: Form, kept: Collection[int] = ()) -> set[int]:
        """Return the numbers of the values that only one operand of a selection needs.

        Values with the numbers in `kept` are needed elsewhere.
        """
        kept = self._results.union(kept)
        if not isinstance(root, Value) or root.number not in self.made or root.number in kept:
            return set()
        if self._users[root.number] != [user.value.number]:
            return set()
        found, waiting = {root.number}, [-x.number for x in self.made[root.number].values]
        heapify(waiting)
        while waiting:  # in descending order, so that all users of a value are known
            number = -heappop(waiting)
            if number not in self.made or number in found or number in kept:
                continue
            if all(x in found for x in self._users[number]):
                found.add(number)
                for x in self.made[number].values:
                    heappush(waiting, -x.number)
        return found

    def sources(self, part: Collection[int]) -> list[Value]:
        """Return the values from which a part is computed; values one step from given ones are recomputed."""
        found: dict[int, Value] = {}
        waiting = [x for number in part for x in self.made[number].values]
        while waiting:
            x = waiting.pop()
            if x.number in part or x.number in found:
                continue
            if x.number in self.made and self._is_near(self.made[x.number]):
                waiting += self.made[x.number].values
            else:
                found[x.number] = x
        return [found[number] for number in sorted(found)]

    def replace(self, form: Form) -> None:
        """Replace the form of a value, and remove values that are then no longer needed."""
        number = form.value.number
        waiting = [(x, number) for x in self.made[number].values]
        self.made[number] = form
        for x in form.values:
            self._users[x.number].append(number)
        while waiting:
            x, user = waiting.pop()
            self._users[x.number].remove(user)
            if not self._users[x.number] and x.number in self.made and x.number not in self._results:
                waiting += [(y, x.number) for y in self.made.pop(x.number).values]

    def truths(self) -> set[int]:
        """Return the numbers of integers that may stay truth values, as NumPy takes these beside integers."""
        found: set[int] = set()
        for number in sorted(self.made, reverse=True):
            serves = all(
                (form.verb in _TAKE_TRUTH and sum(map(_is_count, form.operands)) == 1)
                or form.value.number in found
                for form in map(self.made.__getitem__, self._users[number])
            )
            if _is_count(self.made[number].value) and number not in self._results and serves:
                found.add(number)
        # An extended value can stay a truth value only if its operand does.
        return {x for x in found if self.made[x].verb == "count" or self.made[x].values[0].number in found}

    def _is_near(self, form: Form) -> bool:
        """Return whether a value is one step from given values, not counting views."""
        if form.verb in SELECTIONS:
            return False
        before = [self.made[x.number] for x in form.values if x.number in self.made]
        return all(x.verb in VIEWS and x.values[0].number not in self.made for x in before)


def _is_count(x: Operand) -> bool:
    return isinstance(x, Value) and (
        x.verb == "count" or (x.verb == "extend" and x.operands[0].verb == "count")
    )


def _behind(
    results: Iterable[Value], operands: Callable[[Value], Iterable[Value]], given: Collection[int]
) -> list[Value]:
    """Return the values that results need, in order."""
    found: dict[int, Value] = {}
    waiting = list(results)
    while waiting:
        value = waiting.pop()
        if value.number not in found and value.number not in given:
            found[value.number] = value
            waiting += operands(value)
    return [found[number] for number in sorted(found)]


def _constant(value: Value, operands: Sequence[Any]) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return np.asarray(carried_out(value, operands, {}))


def _form(value: Value, operands: tuple[Operand, ...], forms: dict[int, Form]) -> Form:
    if value.verb == "select" and value.type.is_integer and value.operands[0].verb == "lt":
        condition, yes, no = value.operands
        lesser, greater = condition.operands
        if (yes, no) in ((lesser, greater), (greater, lesser)):
            return _extreme(value, yes is lesser, operands[1:], forms)
    return Form(value, value.verb, operands)


def _extreme(value: Value, least: bool, operands: tuple[Operand, ...], forms: dict[int, Form]) -> Form:
    """Return the form of a minimum or maximum of integers: `clip` if one is constant, which is faster."""
    x, bound = operands if isinstance(operands[0], Value) else operands[::-1]
    if not isinstance(x, Value) or isinstance(bound, Value):
        return Form(value, "least" if least else "greatest", operands)
    info = np.iinfo(DTYPES[value.type])
    low, high = (info.min, int(bound)) if least else (int(bound), info.max)
    inner = forms.get(x.number)
    if inner is not None and inner.verb == "clip":
        y, *ends = inner.operands
        inner_low, inner_high = (int(end) for end in ends if not isinstance(end, Value))
        if low <= inner_high and inner_low <= high and isinstance(y, Value):
            x, low, high = y, max(low, inner_low), min(high, inner_high)
    return Form(value, "clip", (x, *(np.array(end, DTYPES[value.type]) for end in (low, high))))


# -- written as calls ---------------------------------------------------------------------------------------
def as_calls(
    results: Sequence[Value],
    given: Sequence[Value],
    singles: Collection[Value] = (),
    *,
    apart: bool = True,
    depth: int = 0,
) -> Calls:
    """Return a line, or part of one, as calls of NumPy's functions.

    Parameters
    ----------
    results : sequence of Value
        The values to compute.
    given : sequence of Value
        The values from which to compute them: inputs of the line, or other values of it.
    singles : collection of Value, optional
        Those of `given` that are the same for all elements, as arrays without axes.
    apart : bool, optional
        Whether results share no memory with operands. Otherwise there is only one result, which may share
        the memory of an operand.
    depth : int, optional
        How many other `Calls` are running meanwhile: each has memory of its own.

    Raises
    ------
    ValueError
        If a result needs an input that is not given.
    """
    forms = Forms(results, given)
    alike = {x.number for x in singles}
    for number, form in forms.made.items():
        if all(x.number in alike for x in form.values):
            alike.add(number)
    return _CallsWriter(forms, alike, apart, depth).calls(results, given)


#: The fewest verbs of a side of a selection for which it pays to test whether any element takes it.
_WORTH_A_LOOK = 3


@dataclass
class _CallsWriter:
    """The writer of calls behind `as_calls`, for one use; `singles` has the places of values without axes."""

    forms: Forms
    singles: set[int]
    apart: bool
    depth: int
    slots: dict[tuple[Memory, np.dtype[Any]], int] = field(default_factory=dict)
    constants: list[NDArray[Any]] = field(default_factory=list)

    def choices(self) -> dict[int, Choice]:
        """Remove values that only one side of a selection needs; return such selections as choices."""
        found: dict[int, Choice] = {}
        for number in sorted(self.forms.made, reverse=True):
            form = self.forms.made.get(number)
            if form is not None and form.verb == "select":
                choice = self._choice(form)
                if choice is not None:
                    found[number] = choice
        return found

    def _choice(self, form: Form) -> Choice | None:
        forms, condition = self.forms, form.operands[0]
        if not isinstance(condition, Value) or condition.number in self.singles:
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
                singles = [x for x in values if x.number in self.singles]
                options: Any = {"apart": self.apart, "depth": self.depth + 1}
                compute = built_later(partial(as_calls, [result], values, singles, **options))
                taken = [*values]
            sides.append(Side(tuple(range(len(operands), len(operands) + len(taken))), compute))
            operands += taken
        watched = len(operands)
        operands += [] if look is None else [look[1]]
        forms.replace(Form(form.value, "choice", tuple(operands)))
        by, yes, no = sides
        return Choice(by, (no, yes), look and look[0], watched, f"choice {self.depth}")

    def calls(self, results: Sequence[Value], given: Sequence[Value]) -> Calls:
        """Return the calls, each value in the memory of one that is no longer needed, if there is one."""
        choices, forms = self.choices(), self.forms
        calls: list[Call] = []
        truths = forms.truths()
        roots = {x.number: x.number for x in given}  # of values that share the memory of others
        for number, form in forms.made.items():
            shares = form.verb in VIEWS or number in truths
            roots[number] = roots[form.values[0].number] if shares else number
        steps = [form for number, form in forms.made.items() if roots[number] == number]
        last = {roots[x.number]: place for place, form in enumerate(steps) for x in form.values}
        ends = {place: roots[x.number] for place, x in enumerate(results) if x.number in roots}
        last |= dict.fromkeys(ends.values(), len(steps))
        memory = {x.number: Memory("operand", place) for place, x in enumerate(given)}
        vectors = [last.get(x.number, -1) for x in given if x.number not in self.singles]
        begin = -1 if self.apart else max(vectors, default=-1)  # when results may be written
        ready = {form.value.number: _ready(form, choices, roots) for form in steps}
        sizes = {form.value.number: DTYPES[form.value.type].itemsize for form in steps}
        meant = {root: Memory("result", place) for place, root in reversed(ends.items())}
        for place, form in reversed([*enumerate(steps)]):
            # A value that only a result needs is best computed in the memory of that result.
            number = form.value.number
            passed = [x for x in ready[number] if last[x] == place and sizes.get(x) == sizes[number]]
            if number in meant and passed:
                meant.setdefault(passed[0], meant[number])
        free: dict[int, list[Memory]] = defaultdict(list)
        made: dict[int, int] = defaultdict(int)

        def slot(x: Operand, *, unsigned: bool = False) -> int:
            if isinstance(x, Value):
                kind, place = DTYPES[TRUTH if x.number in truths else x.type], memory[roots[x.number]]
            else:
                kind, place = x.dtype, Memory("constant", len(self.constants))
                self.constants.append(x)
            return self._slot(place, np.dtype(f"u{kind.itemsize}") if unsigned else kind)

        for place, form in enumerate(steps):
            value, number, unsigned = form.value, form.value.number, form.verb == "shr"
            taken = [slot(x, unsigned=unsigned) for x in form.operands]
            size = sizes[number]
            used = dict.fromkeys(roots[x.number] for x in form.values)
            dying = [memory[x] for x in used if last[x] == place and memory[x].kind == "buffer"]
            fitting = [x for x in (memory[x] for x in ready[number]) if x in dying and x.size == size]
            if number in self.singles:
                target = Memory("single", number)
            elif number in meant and place >= begin:
                target = meant[number]
            elif fitting:
                target = fitting[0]
                dying.remove(target)
            elif free[size]:
                target = free[size].pop()
            else:
                target = Memory("buffer", made[size], size)
                made[size] += 1
            memory[number] = target
            for old in dying:
                free[old.size].append(old)
            if form.verb == "look_up":
                function = looking_up(str(value.constant))
            else:
                function = choices[number] if number in choices else FUNCTIONS[form.verb]
            calls.append((function, itemgetter(*taken, slot(value, unsigned=unsigned))))
        for place, x in enumerate(results):
            end = Memory("result", place)
            if place not in ends or memory[ends[place]] != end:
                source = slot(forms.constants.get(x.number, x))
                calls.append((cast, itemgetter(source, self._slot(end, DTYPES[x.type]))))
        return Calls(calls, self.slots, self.constants, depth=self.depth)

    def _slot(self, memory: Memory, dtype: np.dtype[Any]) -> int:
        return self.slots.setdefault((memory, dtype), len(self.slots))


def _ready(form: Form, choices: Mapping[int, Choice], roots: Mapping[int, int]) -> list[int]:
    """Return the roots of operands that a value may overwrite; for a selection, those that are its sides."""
    if form.verb not in SELECTIONS:
        return [*dict.fromkeys(roots[x.number] for x in form.values)]
    choice = choices.get(form.value.number)
    there, read = ((2, 1), (0,)) if choice is None else choice.places()
    sides, busy = (
        [roots[x.number] for x in (form.operands[place] for place in places) if isinstance(x, Value)]
        for places in (there, read)
    )
    return [x for x in sides if x not in busy]
