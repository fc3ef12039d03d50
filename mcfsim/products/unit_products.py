"""Matrix products by a matrix unit: the operands, checked and prepared, and the order of the groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import product
from operator import add
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import check_threads, is_tensor, real_array
from mcfsim.compile.contraction import Contraction
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.blocks import on_threads
from mcfsim.kernels.element.machine import run
from mcfsim.kernels.real_numbers import same_integers
from mcfsim.products.accumulator import spread_addend
from mcfsim.products.unit_lines import TERM, group_line, operand_line, scale_line
from mcfsim.products.units import Unit, UnitSums, get_unit
from mcfsim.scaled import Scaled

Array = NDArray[Any]
Index = Any

#: How many rows and columns of the result, or how many dot products, are computed at a time.
_ROWS, _COLUMNS, _DOTS = 256, 128, 1 << 12
#: Bits of a binary32 number that TF32 lacks.
_CUT_BITS = 0x1FFF


@dataclass(frozen=True, eq=False)
class UnitOperand:
    """An operand of a unit: numbers in binary64 and their format, and for blocks scales and their format."""

    numbers: Array
    format: Format
    scale: Array | None = None
    of_scale: Format | None = None
    block: int = 0
    tensor_scale: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.numbers.ndim

    def __getitem__(self, index: Index) -> UnitOperand:
        scale = None if self.scale is None else self.scale[index]
        return replace(self, numbers=self.numbers[index], scale=scale)

    def turned(self) -> UnitOperand:
        """Return the operand with its last two axes exchanged."""
        scale = None if self.scale is None else self.scale.swapaxes(-1, -2)
        return replace(self, numbers=self.numbers.swapaxes(-1, -2), scale=scale)


class UnitProducts:
    """Matrix products by a unit.

    Parameters
    ----------
    unit : Unit or str
    promote_every : int or None
        Products after which a sum is added to a float32 number, and begins again.
    split_k : int
        Parts of the contracted axis.
    contraction : object, optional
        An object that does what a `Contraction` does, for example on another device.
    tile : tuple of int, optional
        Rows and columns of the result that are computed at a time.
    """

    def __init__(
        self,
        unit: Unit | str,
        promote_every: int | None,
        split_k: int,
        contraction: Any = None,
        tile: tuple[int, int] = (_ROWS, _COLUMNS),
    ) -> None:
        self.unit = unit = get_unit(unit)
        self._contraction: Contraction = contraction or _contraction(unit)
        self._size = tile
        unit.check_parts(promote_every, split_k)
        self._split, self._promoted = split_k, promote_every
        self._parted = promote_every is not None or split_k > 1

    # -- operands -----------------------------------------------------------------------------------------
    def operand(self, x: ArrayLike | Scaled, label: str, axis: int) -> UnitOperand:
        """Return an operand whose contracted axis, counted from the end, is given; a vector has only one."""
        unit = self.unit
        if isinstance(x, Scaled):
            return self._scaled(x, label, axis)
        if unit.scales:
            raise TypeError(f"{label} has no scales; {unit} takes {taken_blocks(unit)}: see mcfsim.quantize")
        own = str(x.dtype).removeprefix("torch.") if is_tensor(x) else ""  # type: ignore[union-attr]
        array = real_array(x, label)
        own = own or array.dtype.name
        fmt = FORMATS[own] if own in FORMATS and FORMATS[own] in unit.inputs else unit.input
        taken = FORMATS["float32"] if unit.cut else fmt
        numbers = self._values(array, taken, label, known=own == taken.name)
        if unit.cut:  # before a processor quiets a NaN
            with np.errstate(all="ignore"):
                given = array.astype(np.float32, copy=False)
                kept = given.view(np.uint32) & np.uint32(~_CUT_BITS & 0xFFFFFFFF)
                numbers = kept.view(np.float32).astype(np.float64)
        return UnitOperand(numbers, fmt)

    def _scaled(self, x: Scaled, label: str, axis: int) -> UnitOperand:
        unit, fmt = self.unit, x.format
        if not unit.scales:
            raise TypeError(f"{label}: {unit} takes no scales; dequantize() gives numbers")
        if fmt.element not in unit.inputs or fmt.scale not in unit.scales or fmt.block not in unit.blocks:
            raise ValueError(
                f"{label} has blocks of {fmt.block} {fmt.element} and scales of {fmt.scale}; {unit} takes "
                f"{taken_blocks(unit)}"
            )
        assert isinstance(fmt.block, int)
        contracted = max(x.elements.ndim + axis, 0)
        if x.axis != contracted:
            raise ValueError(
                f"{label} has its blocks along axis {x.axis}, not along the contracted {contracted}"
            )
        with np.errstate(over="ignore"):
            if x.tensor_scale is not None and np.float32(x.tensor_scale) != np.float64(x.tensor_scale):
                raise ValueError(f"{label} has the tensor scale {x.tensor_scale}, no number of float32")
        numbers = self._values(x.elements, fmt.element, label, known=False)
        scale = self._values(x.scale, fmt.scale, f"the scale of {label}", known=False)
        if (scale < 0).any():
            raise ValueError(f"the scale of {label} is negative somewhere, and {unit} takes no sign there")
        return UnitOperand(numbers, fmt.element, scale, fmt.scale, fmt.block, x.tensor_scale)

    def added(self, c: ArrayLike, shape: tuple[int, ...]) -> Array:
        """Return the addend c, broadcast to the result's shape, in the carrier."""
        fmt = FORMATS["float32"] if self._parted else self.unit.added
        array = real_array(c, "c")
        numbers = self._values(array, fmt, "c", known=array.dtype.name == fmt.name)
        if self.unit.flush and not self._parted:  # else the unit does not add it
            numbers = np.where(np.abs(numbers) < float(fmt.smallest_normal), 0.0, numbers)
        with np.errstate(all="ignore"):
            numbers = numbers.astype(self._contraction.carried)
        return spread_addend(numbers, shape)

    def _values(self, array: Array, fmt: Format, label: str, *, known: bool) -> Array:
        """Return numbers in binary64, or raise if a format lacks one."""
        with np.errstate(all="ignore"):
            numbers = array.astype(np.float64)
        long = array.dtype.kind in "iu" and array.dtype.itemsize == 8
        if long and bool((np.abs(numbers) >= 2.0**53).any()):
            same = same_integers(array, numbers)
            if not same.all():
                self._refuse(array, ~same, fmt, label)
        if not known and fmt != FORMATS["float64"]:
            given = array if array.dtype == np.float32 else numbers
            same = np.asarray(round_to(given, fmt)) == given
            # Blocks have NaN by overflow, whatever the elements' format.
            wrong = ~(same | (np.isnan(numbers) & (fmt.has_nan or bool(self.unit.scales))))
            if wrong.any():
                self._refuse(array, wrong, fmt, label)
        return numbers

    def _refuse(self, array: Array, wrong: Array, fmt: Format, label: str) -> None:
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        # Operands to be cut are read as binary32; blocks state their format; a custom format has no dtype.
        own = label != "c" and not self.unit.cut and not self.unit.scales
        others = [x for x in map(str, self.unit.inputs) if own and x != str(fmt) and x in FORMATS]
        also = f"; arrays of dtype {' or '.join(others)} are taken, too" if others else ""
        raise ValueError(
            f"{label}{list(index)} = {array[index]!s} is no number of {fmt}, which {self.unit} takes: "
            f"round it first{also}"
        )

    def _packed(self, operand: UnitOperand) -> Array:
        """Return what the unit's line takes of an operand: all of a group, then all of the next one."""
        unit, (*outer, _) = self.unit, operand.shape
        groups = self._groups(operand)

        def filled(x: Array, size: int, by: float) -> Array:
            made = np.full((*outer, size), by)
            made[..., : x.shape[-1]] = x[..., :size]
            return made

        full = groups * unit.k
        given = {"x": filled(operand.numbers, full, 0.0)}
        shares: tuple[Array, ...] = ()
        if operand.scale is not None:
            assert operand.of_scale is not None
            least = 0.0 if operand.of_scale.zero else float(operand.of_scale.smallest_subnormal)
            if unit.sums is UnitSums.ALIGNED_SUMS:
                spread = np.repeat(operand.scale, operand.block // TERM, axis=-1)[..., : full // TERM]
                line, results = scale_line(operand.of_scale)
                shares = run(line, results, scale=filled(spread, full // TERM, least))
            else:
                spread = np.repeat(operand.scale, operand.block, axis=-1)[..., :full]
                given["scale"] = filled(spread, full, least)
        aligned = unit.sums is UnitSums.ALIGNED
        line, results = operand_line(unit, operand.format, operand.of_scale if aligned else None)
        found = run(line, results, **given)
        contraction = self._contraction
        lengths = [x.shape[-1] // groups for x in (*found, *shares)]
        parts = [x.reshape(*outer, groups, n) for x, n in zip((*found, *shares), lengths, strict=True)]
        packed = np.concatenate(parts, axis=-1).reshape(*outer, groups * contraction.parts)
        return packed.astype(contraction.given, copy=False)

    def _groups(self, operand: UnitOperand) -> int:
        """Return how many groups the last axis has; if it is empty, one of zeros."""
        return max(1, -(-operand.shape[-1] // self.unit.k))

    # -- products -----------------------------------------------------------------------------------------
    def multiply(
        self, a: UnitOperand, b: UnitOperand, c: Array | None, stack: tuple[int, ...], threads: int
    ) -> Array:
        """Return matrix products, of shape ``(number, m, n)``, each accumulated onto its part of ``c``."""
        check_threads(threads)
        scales = [x for x in (a.tensor_scale, b.tensor_scale) if x is not None]
        if scales and c is not None:
            raise ValueError(
                "c cannot join products of operands with tensor scales, which come last: add it to the result"
            )
        m, n, groups = a.shape[-2], b.shape[-1], self._groups(a)
        left, right = self._packed(a), self._packed(b.turned()).swapaxes(-1, -2)
        if right.ndim == 2 and len(stack):  # one matrix serves the whole stack: stack its rows
            m, left, stack = math.prod(stack) * m, left.reshape(-1, left.shape[-1]), ()
        contraction = self._contraction
        out = np.zeros((math.prod(stack), m, n), contraction.carried)
        if c is not None:
            out[...] = c.reshape(out.shape)
        lefts = np.broadcast_to(left, (*stack, m, left.shape[-1]))
        rights = np.broadcast_to(right, (*stack, right.shape[-2], n))

        def run_dots(start: int) -> None:
            some = np.arange(start, min(start + _DOTS, len(out)))
            index: tuple[Any, ...] = np.unravel_index(some, stack)
            given = np.ascontiguousarray(lefts[(*index, 0)].T)
            other = np.ascontiguousarray(rights[(*index, slice(None), 0)].T)
            own = out[some, 0].T.copy()
            with np.errstate(all="ignore"):
                out[some, 0] = self._tile(given, other, own, groups, c is not None, paired=True).T

        def run_tile(tile: tuple[int, int, int]) -> None:
            number, row, column = tile
            index: tuple[Any, ...] = np.unravel_index(number, stack) if stack else ()
            rows, columns = slice(row, row + self._size[0]), slice(column, column + self._size[1])
            given = np.ascontiguousarray(lefts[(*index, rows)])
            other = np.ascontiguousarray(rights[(*index, slice(None), columns)])
            own = np.ascontiguousarray(out[number, rows, columns])
            with np.errstate(all="ignore"):
                out[number, rows, columns] = self._tile(given, other, own, groups, c is not None)

        if m == n == 1 and stack:
            on_threads(run_dots, range(0, len(out), _DOTS), threads)
        else:
            tiles = product(range(len(out)), range(0, m, self._size[0]), range(0, n, self._size[1]))
            on_threads(run_tile, tiles, threads)
        if scales:
            with np.errstate(all="ignore"):
                out *= np.multiply.reduce(np.array(scales, np.float32))
        out[np.isnan(out)] = _nan(self.unit)
        return out

    def _tile(
        self, left: Array, right: Array, out: Array, groups: int, given: bool, *, paired: bool = False
    ) -> Array:
        """Return one tile of the result, to whose elements in ``out`` the products are added."""
        contraction = self._contraction
        if not self._parted:
            contraction.add(left, right, out, 0, groups, paired=paired)
            return out

        def promoted(places: tuple[int, int]) -> Array:
            own = np.zeros_like(out)
            contraction.add(left, right, own, *places, paired=paired)
            return own

        total: Array = reduce(add, (reduce(add, map(promoted, part)) for part in self._parts(groups)))
        return out + total if given else total

    def _parts(self, groups: int) -> Iterator[list[tuple[int, int]]]:
        """Return the parts of the contracted axis, each as ranges of groups that are summed separately."""
        each = max(1, -(-groups // self._split))
        for start in range(0, groups, each):
            stop = min(start + each, groups)
            step = each if self._promoted is None else self._promoted // self.unit.k
            yield [(x, min(x + step, stop)) for x in range(start, stop, step)]


@lru_cache(maxsize=64)
def _contraction(unit: Unit) -> Contraction:
    return Contraction(group_line(unit))


def taken_blocks(unit: Unit) -> str:
    """Return, in words, which blocks a unit with scales takes."""
    lengths, scales = (" or ".join(map(str, x)) for x in (unit.blocks, unit.scales))
    return f"blocks of {lengths} of {', '.join(map(str, unit.inputs))} with scales of {scales}"


def _nan(unit: Unit) -> Any:
    """Return the NaN of a unit: the usual quiet one, or a code of binary32 if its sums are aligned."""
    if unit.sums not in (UnitSums.ALIGNED, UnitSums.ALIGNED_SUMS):
        return np.nan
    code = 0x7FFFE000 if unit.output == FORMATS["float16"] else 0x7FFFFFFF
    return np.uint32(code).view(np.float32)
