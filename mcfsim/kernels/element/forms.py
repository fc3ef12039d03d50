"""The values of a line as NumPy is to make them: what is constant, what needs what, and nothing else does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.machine import Value
from mcfsim.kernels.element.on_numpy import DTYPES, carried_out

#: A value, or a constant.
Operand = Value | NDArray[Any]

#: Verbs that leave the bits as they are.
VIEWS = ("bits", "number")
SELECTIONS = ("select", "choice")
#: Verbs that take a truth value for an integer.
_TAKE_TRUTH = {"add", "sub", "and", "or", "xor"}


@dataclass(slots=True)
class Form:
    """How a value is made.

    Attributes
    ----------
    value : Value
    verb : str
        One of a machine's; or ``clip``, ``least``, ``greatest``, of integers; or ``choice``, a selection
        whose sides are computed with it.
    operands : tuple of Value or array
    values : list of Value
        The operands that are no constants.
    """

    value: Value
    verb: str
    operands: tuple[Operand, ...]
    values: list[Value] = field(init=False)

    def __post_init__(self) -> None:
        self.values = [x for x in self.operands if isinstance(x, Value)]


class Forms:
    """How the values are made that results need, from others that are given.

    Parameters
    ----------
    results, given : sequence of Value

    Attributes
    ----------
    made : dict of int to Form
        By the values' numbers, in order.
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
        """Return whether a value is given or made."""
        return value.number in self.made or value.number in self._there

    def alone(self, root: Operand, user: Form, kept: Collection[int] = ()) -> set[int]:
        """Return the numbers of the values that are needed for one operand of a selection, and nothing else.

        Values with the numbers in `kept` are needed elsewhere.
        """
        kept = self._results.union(kept)
        if not isinstance(root, Value) or root.number not in self.made or root.number in kept:
            return set()
        if self._users[root.number] != [user.value.number]:
            return set()
        found, waiting = {root.number}, [-x.number for x in self.made[root.number].values]
        heapify(waiting)
        while waiting:  # from the last on, so that all users of a value are known
            number = -heappop(waiting)
            if number not in self.made or number in found or number in kept:
                continue
            if all(x in found for x in self._users[number]):
                found.add(number)
                for x in self.made[number].values:
                    heappush(waiting, -x.number)
        return found

    def sources(self, part: Collection[int]) -> list[Value]:
        """Return what a part is computed from; what is one step from given values is computed again."""
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
        """Make a value in another way, and leave out what is then needed no more."""
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
        """Return the integers that may stay truth values, as NumPy takes these beside an integer."""
        found: set[int] = set()
        for number in sorted(self.made, reverse=True):
            serves = all(
                (form.verb in _TAKE_TRUTH and sum(map(_is_count, form.operands)) == 1)
                or form.value.number in found
                for form in map(self.made.__getitem__, self._users[number])
            )
            if _is_count(self.made[number].value) and number not in self._results and serves:
                found.add(number)
        # Of an integer that is one nothing is a truth value.
        return {x for x in found if self.made[x].verb == "count" or self.made[x].values[0].number in found}

    def _is_near(self, form: Form) -> bool:
        """Return whether a value is one step from given values, views apart."""
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
    """Return the lesser or the greater of two integers: beside a constant by clipping, which is faster."""
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
