"""Findings on products as rows: written and read back, summed up, and layers chosen against all choices."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.models.product_rows import (
    LayerCost,
    ProductRow,
    layer_costs,
    layers_to_keep,
    read_rows,
    summary,
    write_rows,
)
from mcfsim.report.audits import product_table


def row(step=1, layer="a", recipe="mxfp8", product="forward", operand="x", **changed):
    numbers = {"calls": 1, "macs": 100, "error": 0.25, "operand_error": 0.1, "underflow": 0.0}
    return ProductRow(
        step, layer, recipe, product, operand, **numbers | {"saturation": 0.5, "outliers": 0.0} | changed
    )


def test_rows_are_read_back_as_they_were(tmp_path):
    rows = [
        row(error=0.1 + 0.2, operand_error=5e-324),
        row(step=None, layer='odd, "name"\nin two lines', macs=10**15, error=math.inf),
        row(step=2, layer="a.é", outliers=math.nan),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    found = read_rows(tmp_path / "rows.csv")
    assert repr(found) == repr(rows)
    write_rows(tmp_path / "none.csv", [])
    assert read_rows(tmp_path / "none.csv") == []


def test_files_that_hold_something_else_are_refused(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, [row(), row(step=2)])
    text = path.read_text()
    for data in (b"\xff\xfe", b"\0" + text.encode()):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="no file of products"):
            read_rows(path)
    for other, message in (
        ("", "no file of products"),
        ("step,group,lost,edq\n", "no file of products"),
        (text.replace("0.25", "much"), "line 2: could not convert string to float: 'much'"),
        (text + "3,a\n", "line 4: it has 2 cells, and rows have 12"),
        (text + "\n", "line 4: it has 0 cells"),
        (text.replace("\n2,", "\ntwo,"), "line 3"),
    ):
        path.write_text(other)
        with pytest.raises(ValueError, match=message):
            read_rows(path)


def test_summaries_are_means_over_steps():
    rows = [row(error=3.0, underflow=math.nan), row(step=2, error=4.0, underflow=0.5), row(layer="b")]
    first, second = summary(rows)
    assert first == row(None, calls=2, macs=200, error=math.sqrt(12.5), underflow=0.5)
    assert second == row(None, layer="b")
    assert math.isnan(summary([row(error=math.nan), row(2)])[0].error)
    assert summary([]) == []


def test_costs_count_each_product_once():
    both = [row(operand=name, product=of) for of in ("forward", "dgrad") for name in ("x", "weight")]
    other = row(layer="b", error=math.nan)
    costs = layer_costs([*both, other, row(recipe="nvfp4")], "mxfp8")
    assert costs == {"a": LayerCost(200, 0.125, 2), "b": LayerCost(100, math.inf, 1)}
    with pytest.raises(ValueError, match="'quartet' was not measured; measured: mxfp8"):
        layer_costs(both, "quartet")
    with pytest.raises(ValueError, match="no step was measured"):
        layer_costs([], "quartet")


# -- which layers stay high ---------------------------------------------------------------------------------
def drawn(rng):
    """Return costs of a few layers, many of them equal."""
    count = int(rng.integers(1, 7))
    sizes, lost = rng.integers(1, 9, count), rng.integers(0, 9, count) / 64
    lost[rng.random(count) < 0.1] = math.inf
    return {f"l{k}": LayerCost(int(sizes[k]), float(lost[k]), 3) for k in range(count)}


def outcomes(costs):
    """Yield every choice of layers, with what it takes and what it loses; None where that is infinite."""
    for kept in itertools.product((False, True), repeat=len(costs)):
        pairs = list(zip(kept, costs.values(), strict=True))
        macs = sum(item.macs for keep, item in pairs if keep)
        low = [item.lost for keep, item in pairs if not keep]
        lost = None if math.inf in low else sum(map(Fraction, low), Fraction(0))
        yield [name for name, keep in zip(costs, kept, strict=True) if keep], macs, lost


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.sampled(3, each=False)
def test_layers_kept_are_the_best_of_all_choices(seed):
    costs = drawn(np.random.default_rng(seed))
    every = list(outcomes(costs))
    of = {tuple(names): (macs, lost) for names, macs, lost in every}
    whole = sum(item.macs for item in costs.values())
    for share in (0, 0.16, 0.5, 1):
        able = [lost for _, macs, lost in every if lost is not None and macs <= Fraction(share) * whole]
        if not able:
            with pytest.raises(ValueError, match="is too small"):
                layers_to_keep(costs, share=share)
            continue
        macs, lost = of[tuple(layers_to_keep(costs, share=share))]
        assert macs <= Fraction(share) * whole
        assert lost == min(able)
    for error in (0, 0.05, 0.125, 0.3):
        limit = Fraction(error) ** 2 * 3 * len(costs)
        macs, lost = of[tuple(layers_to_keep(costs, error=error))]
        assert lost <= limit
        assert macs == min(macs for _, macs, lost in every if lost is not None and lost <= limit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either share="),
        ({"share": 0.1, "error": 0.1}, "either share="),
        ({"share": 1.5}, "must lie in"),
        ({"share": math.nan}, "share"),
        ({"error": -1}, "must not be negative"),
    ],
)
def test_budgets_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layers_to_keep({"a": LayerCost(1, 0.5, 3)}, **options)


def test_tables_show_the_largest_errors_first():
    rows = [row(), row(layer="b", error=0.5), row(layer="c", error=math.nan), row(recipe="bf16", error=9.0)]
    table = product_table(rows)
    assert [line["layer"] for line in table] == ["c", "b", "a", "a"]
    assert [line["error"] for line in table] == ["-", "0.5000", "0.2500", "9.0000"]
