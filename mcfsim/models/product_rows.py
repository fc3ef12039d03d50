"""Findings on the products of a model's linear layers as rows: CSV, summaries, and which layers stay high."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from mcfsim.checks import finite_number
from mcfsim.models.assignment import Choices, by_sensitivity
from mcfsim.storage.files import Pathlike, read_text, write_text

#: The largest file of rows that is read.
_MOST_BYTES = 1 << 30


class ProductRow(NamedTuple):
    """What a recipe did to an operand of a product of a layer in a step.

    Attributes
    ----------
    step : int or None
        The number of the step, from 1; None for all steps together.
    layer, recipe : str
        Their names.
    product : str
        ``forward``, ``dgrad`` or ``wgrad``.
    operand : str
        ``x``, ``weight`` or ``dy``.
    calls : int
        How many products were measured.
    macs : int
        Multiplications and additions of these products.
    error : float
        Relative error of the product in the Frobenius norm, against the product in binary64 of what was
        given; the same for both operands. NaN or infinite if a number is.
    operand_error : float
        The same of the operand as it entered the product, against the operand as given.
    underflow, saturation : float
        Shares of nonzero numbers that become zero, and that are clipped to the largest number of their block;
        NaN if all are zero.
    outliers : float
        The share of blocks whose largest magnitude is at least four times the second largest; NaN if there
        are no blocks. See `mcfsim.recipes.OperandFinding`.
    """

    step: int | None
    layer: str
    recipe: str
    product: str
    operand: str
    calls: int
    macs: int
    error: float
    operand_error: float
    underflow: float
    saturation: float
    outliers: float


_NUMBERS = {"step": int, "calls": int, "macs": int} | dict.fromkeys(ProductRow._fields[7:], float)


def write_rows(path: Pathlike, rows: Iterable[ProductRow]) -> None:
    """Write rows as CSV, whole or not at all; `read_rows` gives the same numbers back.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ProductRow._fields)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    write_text(path, text.getvalue())


def read_rows(path: Pathlike) -> list[ProductRow]:
    """Return the rows of a file that `write_rows` wrote.

    Raises
    ------
    ValueError
        If it is not such a file; the message names the line.
    OSError
        If it cannot be read.
    """
    try:
        lines = list(csv.reader(io.StringIO(read_text(path, _MOST_BYTES), newline="")))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{path} is no file of products: {problem}") from problem
    if not lines or tuple(lines[0]) != ProductRow._fields:
        raise ValueError(
            f"{path} is no file of products: its first line must be {','.join(ProductRow._fields)}"
        )
    found = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            if len(line) != len(ProductRow._fields):
                raise ValueError(f"it has {len(line)} cells, and rows have {len(ProductRow._fields)}")
            cells = dict(zip(ProductRow._fields, line, strict=True))
            found.append(ProductRow(**{name: _cell(name, text) for name, text in cells.items()}))
        except ValueError as problem:
            raise ValueError(f"{path}, line {number}: {problem}") from problem
    return found


def _cell(name: str, text: str) -> Any:
    return None if name == "step" and not text else _NUMBERS.get(name, str)(text)


def summary(rows: Iterable[ProductRow]) -> list[ProductRow]:
    """Return a row for each layer, recipe, product and operand: errors and shares over all steps.

    Errors are root mean squares over steps, NaN or infinite if one is. Shares are means over the steps in
    which they are numbers. Calls and macs are sums.
    """
    groups: dict[tuple[str, ...], list[ProductRow]] = {}
    for row in rows:
        groups.setdefault(row[1:5], []).append(row)
    return [
        of[0]._replace(
            step=None,
            calls=sum(row.calls for row in of),
            macs=sum(row.macs for row in of),
            error=_root(row.error for row in of),
            operand_error=_root(row.operand_error for row in of),
            underflow=_mean(row.underflow for row in of),
            saturation=_mean(row.saturation for row in of),
            outliers=_mean(row.outliers for row in of),
        )
        for of in groups.values()
    ]


def _root(numbers: Iterable[float]) -> float:
    """Return a root mean square."""
    return math.sqrt(fmean(number * number for number in numbers))


def _mean(numbers: Iterable[float]) -> float:
    """Return the mean of the numbers that are not NaN; NaN if there are none."""
    there = [number for number in numbers if not math.isnan(number)]
    return fmean(there) if there else math.nan


# -- which layers stay in high precision ------------------------------------------------------------------
#: Two ways to compute a layer.
_WAYS = (SimpleNamespace(name="by the recipe"), SimpleNamespace(name="in high precision"))
#: The place of the second one.
_HIGH = 1


class LayerCost(NamedTuple):
    """What a layer costs and loses.

    Attributes
    ----------
    macs : int
        Multiplications and additions of its products.
    lost : float
        The sum of squares of the relative errors of its products; infinite if one is NaN or infinite.
    products : int
        How many products were measured: three, fewer for those that training does not make.
    """

    macs: int
    lost: float
    products: int


def layer_costs(rows: Iterable[ProductRow], recipe: str) -> dict[str, LayerCost]:
    """Return what each layer costs in high precision and loses by a recipe, in the order of the rows.

    Raises
    ------
    ValueError
        If no row is of the recipe.
    """
    found: dict[str, dict[str, ProductRow]] = {}
    measured = summary(rows)
    for row in measured:
        if row.recipe == recipe:
            found.setdefault(row.layer, {})[row.product] = row
    if not found:
        known = ", ".join(dict.fromkeys(row.recipe for row in measured)) or "none, since no step was measured"
        raise ValueError(f"recipe {recipe!r} was not measured; measured: {known}")
    costs = {}
    for layer, products in found.items():
        lost = math.fsum(row.error**2 for row in products.values())
        macs = sum(row.macs for row in products.values())
        costs[layer] = LayerCost(macs, lost if math.isfinite(lost) else math.inf, len(products))
    return costs


def layers_to_keep(
    costs: Mapping[str, LayerCost], *, share: float | None = None, error: float | None = None
) -> list[str]:
    """Return the names of the layers that are to stay in high precision.

    Parameters
    ----------
    costs : mapping of LayerCost by name
        See `layer_costs`.
    share : float, optional
        At most this share of all multiplications stays in high precision, chosen so that the loss is least:
        the sum of squares of the relative errors of the other layers' products.
    error : float, optional
        Bound on the root mean square of the relative errors of all products, where those in high precision
        count as exact: the fewest multiplications that keep it stay in high precision.

    Returns
    -------
    list of str
        In the order of the layers. Layers with an error that is NaN or infinite stay high in any case.

    Raises
    ------
    ValueError
        If not exactly one of `share` and `error` is given, it is out of range, or layers that must stay high
        exceed the share.
    RuntimeError
        If the solver finds nothing in its time.

    Notes
    -----
    The layers are chosen by the integer program of `mcfsim.models.assignment`, whose result is added up
    exactly. That errors of layers add up in the square is a rule of thumb: it holds to first order for
    independent errors, and does not say how sensitive the loss is to a layer.
    """
    if (share is None) == (error is None):
        raise ValueError("give either share=, of multiplications in high precision, or error=, a budget")
    names, layers = tuple(costs), list(costs.values())
    if share is not None:
        if not 0 <= finite_number("share", share) <= 1:
            raise ValueError(f"share = {share} must lie in [0, 1]")
        # The share that must stay in high precision; 0 where nothing is multiplied.
        infinite = sum(item.macs for item in layers if math.isinf(item.lost))
        needed = Fraction(infinite, sum(item.macs for item in layers) or 1)
        if needed > Fraction(share):
            raise ValueError(
                f"share = {share} is too small: layers whose products are not finite by the recipe take "
                f"{float(needed):.4g} of the multiplications"
            )
        # A multiplication counts 1 by the recipe, and 2 in high precision.
        each = ((Fraction(1), Fraction(2)),) * len(names)
        sizes = tuple(max(item.macs, 1) for item in layers)
        lost = np.array([[item.lost, 0.0] for item in layers])
        chosen = by_sensitivity(Choices(names, sizes, _WAYS, each, lost), 1 + Fraction(share))
    else:
        if finite_number("error", error) < 0:
            raise ValueError(f"error = {error} must not be negative")
        # Here losses are the costs, in units of the largest, and multiplications are the losses.
        finite = [Fraction(item.lost) if math.isfinite(item.lost) else Fraction(0) for item in layers]
        unit = max(finite) or Fraction(1)
        each = tuple((1 + number / unit, Fraction(1)) for number in finite)
        kept = np.array([[item.lost if math.isinf(item.lost) else 0.0, item.macs] for item in layers])
        most = Fraction(error or 0) ** 2 * sum(item.products for item in layers)
        choices = Choices(names, (1,) * len(names), _WAYS, each, kept)
        chosen = by_sensitivity(choices, 1 + most / unit / len(names))
    return [name for name, way in zip(names, chosen, strict=True) if way == _HIGH]
