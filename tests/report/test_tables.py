"""Rows of text as tables."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, get_format
from mcfsim.report import tables
from mcfsim.report.tables import run_table, tensor_table
from mcfsim.rounding import Rounding
from mcfsim.training.record import Run
from tests.cli.runner import call
from tests.shared.refusals import check, refused


def test_markdown():
    rows = [
        {"name": "a|b", "p": "8", "share": "-0.5 (-1 to +2)", "is": "open", "so": "yes", "long": "x" * 60},
        {"name": "c", "p": "1000", "share": "", "is": "", "so": "-", "long": "y"},
    ]
    assert tables.markdown_table(rows).splitlines() == [
        "| name |    p |           share | is   |  so | long |",
        "| :--- | ---: | --------------: | :--- | --: | :-- |",
        rf"| a\|b |    8 | -0.5 (-1 to +2) | open | yes | {60 * 'x'} |",
        "| c    | 1000 |                 |      |   - | y |",
    ]


@pytest.mark.parametrize("render", [tables.markdown_table, tables.terminal_table])
def test_rows_that_make_no_table(render):
    with pytest.raises(ValueError, match="at least one row"):
        render([])
    with pytest.raises(ValueError, match=r"row 1 has the headings \['b'\], but row 0 has \['a'\]"):
        render([{"a": "1"}, {"b": "2"}])


def test_numbers_as_text():
    assert tables.digits(Fraction(1, 3), 17) == "0.33333333333333333"
    assert tables.digits(Fraction(-1, 3) / 10**30, 5) == "-3.3333e-31"
    assert tables.digits(Fraction(10) ** 5000, 3) == "1.00e+5000"
    assert tables.decimal_text(0.1) == "0.1000000000000000055511151231257827021181583404541015625"
    special = -0.0, 0.0, float("inf"), float("-inf"), float("nan")
    assert [tables.decimal_text(x) for x in special] == ["-0", "0", "inf", "-inf", "nan"]
    read = {1.0: "0x1p+0", 0.999: "0x1.ff7ced916872bp-1", 20.0: "0x1.4p+4", 5e-324: "0x0.0000000000001p-1022"}
    for number, text in [*read.items(), (-0.0, "-0x0p+0"), (float("nan"), "nan")]:
        assert tables.hexadecimal_text(number) == text
    codes = [tables.code_text(1, FORMATS[name]) for name in ("bfloat16", "tf32", "float6_e3m2fn")]
    assert codes == ["0x0001", "0x00001", "0x01"]


def _run(**results):
    series = {"lost": np.array([0.5, 0.75]), "normalized_edq": np.array([1.0, 0.25])}
    return Run({}, {}, np.array([1, 2]), dict.fromkeys(results, series), dict(results))


def test_runs():
    run = _run(
        plain={"validation_loss": 2.0, "bytes_per_parameter": 8},
        **{"fp32-master": {"validation_loss": 1.5, "bytes_per_parameter": 16}},
        exact={"validation_loss": 1.25},
    )
    run.series["exact"] = {"loss": np.array([3.0, 2.0])}
    assert [tuple(row.values()) for row in run_table(run)] == [
        ("plain", "8", "2", "+0.5", "75.00%", "0.2500"),
        ("fp32-master", "16", "1.5", "+0", "75.00%", "0.2500"),
        ("exact", "-", "1.25", "-0.25", "-", "-"),
    ]
    headings = ["strategy", "bytes / parameter", "validation loss", "minus fp32-master"]
    assert [list(row) for row in run_table(run)] == [[*headings, "lost late", "EDQ late"]] * 3
    assert "minus fp32-master" not in run_table(_run(plain={"validation_loss": 2.0}))[0]
    assert list(run_table(_run(plain={}))[0]) == ["strategy", "bytes / parameter", "lost late", "EDQ late"]


def test_the_worst_tensors_of_runs():
    run = _run(plain={}, exact={})
    run.series["exact"] = {}
    qualities = {"good": 1.0, "short": 0.75, "none": np.nan, "long": 1.5, "lost\n": 0.0}
    for tensor, number in qualities.items():
        run.series["plain"][f"normalized_edq/{tensor}"] = np.full(2, number)
    expected = ["'lost\\n'", "long", "short", "good", "none"]
    for most in range(6):
        rows = tensor_table(run, most)
        assert [row["tensor"] for row in rows] == expected[:most]
        assert {row["strategy"] for row in rows} <= {"plain"}
    assert [row["EDQ late"] for row in rows] == ["0.0000", "1.5000", "0.7500", "1.0000", "nan"]
    assert tensor_table(_run(plain={}), 5) == []


@pytest.mark.parametrize(
    ("name", "rounding", "ways"),
    [
        ("bfloat16", "nearest_even", ["native"] * 5 + ["sticky"]),
        ("e4m3fn", "up", ["exact"] * 3 + ["sticky"] * 3),
        ("float32", "up", ["sticky"] * 2 + ["exact"] + ["sticky"] * 3),
        ("float64", "up", ["refused"] * 6),
        ("float64", "nearest_even", ["native"] * 5 + ["refused"]),
        # To round twice to nearest takes 2p + 2 bits: 52 of 53, and 24 of 24; and one more bit is too many.
        ("e8m24", "nearest_even", ["native"] * 5 + ["sticky"]),
        ("e8m25", "nearest_even", ["sticky"] * 2 + ["exact"] + ["sticky"] * 3),
        ("float16", "nearest_even", ["native"] * 5 + ["sticky"]),
        ("e5m11", "nearest_even", ["wide"] * 5 + ["sticky"]),
    ],
)
def test_the_plan_says_how_each_operation_is_carried_out(name, rounding, ways):
    fmt, policies = get_format(name), Rounding(rounding)
    rows = tables.plan_table(fmt, policies)
    assert [row["operation"] for row in rows] == ["add", "sub", "mul", "div", "sqrt", "fma"]
    assert [str(row["values"]) for row in rows] == ways
    ar = mcf.arithmetic(fmt, policies)
    for row, operands in zip(rows, [2, 2, 2, 2, 1, 3], strict=True):
        ones = [np.ones(1, ar.carrier)] * operands
        operation = getattr(ar, row["operation"])
        if row["values"] == "refused":
            check(refused(ValueError, re.escape(row["why"]), operation, tuple(ones)))
        else:
            assert operation(*ones)[0] in (0, 1, 2)


def test_the_plan_is_printed():
    out = call("inspect", "1", "--format", "tf32", "--plan", "--rounding", "up").stdout
    assert re.search(r"tf32 +sqrt +sticky +sticky +rounded to odd", out)
