"""`mcfsim memory`: bytes by strategy and tensor, of numbers, names and files."""

import json
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.models.memory import Model, footprint, footprints, get_model
from mcfsim.models.shapes import SHAPES
from mcfsim.optim.strategies import LOW, STRATEGIES, Stored, Strategy, strategy
from tests.shared.kinds import LEADING


def call(*arguments):
    return CliRunner(env={"COLUMNS": ""}).invoke(app, ["memory", *arguments])


def table(*arguments):
    """Return the cells of a Markdown table by strategy."""
    result = call(*arguments, "--markdown")
    assert result.exit_code == 0, result.output
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]
    return lines[0], {cells[0]: cells[1:] for cells in lines[2:]}


def test_the_bytes_of_each_tensor():
    headings, rows = table("1073741824", "--low", "float8_e4m3fn")
    tensors = ["parameter", "gradient", "m", "v", "components", "master"]
    counted = ["bytes / parameter", "saved against fp32-master", "1073741824, GiB"]
    assert headings == ["strategy", *tensors, *counted]
    assert rows["collage-plus"] == ["1", "1", "1", "1", "2", "-", "6", "57.1%", "6.00"]
    assert rows["kahan"] == ["1", "1", "1", "1", "1", "-", "5", "64.3%", "5.00"]
    assert rows["fp32-master"] == ["1", "1", "4", "4", "-", "4", "14", "0.0%", "14.00"]
    assert rows["fp32"][-3:] == ["16", "-14.3%", "16.00"]
    assert "exact" not in rows


@pytest.mark.parametrize("low", ["bfloat16", "float8_e5m2", "float6_e2m3fn"])
def test_the_parts_add_up_to_what_a_strategy_counts(low):
    found = footprints(low)
    left_out = {"exact"} if low == "bfloat16" else {"exact", *LEADING}
    assert [*found] == [name for name in STRATEGIES if name not in left_out]
    for name, stored in found.items():
        assert stored.total == Fraction(strategy(name, low).bytes_per_parameter)


def test_a_strategy_of_ones_own():
    mine = Strategy("mine", Stored(LOW, 3), m=Stored(LOW, 2), addition="grow").at(strategy("plain").m.format)
    stored = footprint(mine)
    assert (stored.parameter, stored.m, stored.components, stored.total) == (2, 2, 6, 14)
    assert stored.saving(footprint(strategy("fp32-master"))) == Fraction(1, 8)


def test_models_by_name_and_number_stand_side_by_side():
    headings, rows = table("gpt-1.3b", "7e9", "gpt-1.3b", "--strategy", "plain")
    assert headings[-2:] == ["gpt-1.3b, GiB", "7e9, GiB"]
    assert rows["plain"][-2:] == [f"{8 * size / 2**30:.2f}" for size in (SHAPES["gpt-1.3b"].size, 7e9)]


def test_strategies_by_name_in_the_order_given():
    _, rows = table("--strategy", "fp32", "--strategy", "kahan", "--strategy", "fp32")
    assert [*rows] == ["fp32", "kahan"]


def test_the_floating_numbers_of_files_count(tmp_path):
    tensors = {
        "a": np.zeros((3, 5), ml_dtypes.bfloat16),
        "b": np.zeros(7, np.float32),
        "step": np.zeros(1, np.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    np.savez(tmp_path / "model.npz", a=np.zeros((3, 5)), b=np.zeros(7, np.float16), step=np.array(1))
    index = {"weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (tmp_path, *tmp_path.iterdir()):
        assert get_model(str(path)) == Model(str(path), 22)
        headings, _ = table(str(path))
        assert headings[-1] == f"{path}, GiB"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("0",), "0 parameters: it must be a whole number from 1 to 1e+18"),
        (("2.5",), "2.5 parameters: it must be a whole number"),
        (("nan",), "nan parameters: it must be a whole number"),
        (("sNaN",), "sNaN parameters: it must be a whole number"),
        (("inf",), "inf parameters: it must be a whole number"),
        (("1e999999999",), "1e999999999 parameters: it must be a whole number"),
        (("1e-999999999",), "1e-999999999 parameters: it must be a whole number"),
        (("gpt-13b",), "no known shape (did you mean 'gpt-1.3b'?); known shapes: gpt-125m"),
        (("1e9", "missing.safetensors"), "'missing.safetensors' is no number, no file and no known shape"),
        (("--strategy", "exact"), "strategy 'exact' stores exact numbers, which have no fixed size"),
        (("--strategy", "kahn"), "unknown strategy 'kahn' (did you mean 'kahan'?)"),
        (("--low", "posit16", "--strategy", "collage-plus"), "posit16 is no format for several components"),
    ],
)
def test_what_is_refused(arguments, text):
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 40)
    result = call(str(path))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert str(path) in result.stderr
    assert call(str(tmp_path / "nothing.here")).exit_code == 2
