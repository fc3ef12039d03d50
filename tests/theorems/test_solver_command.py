"""`mcfsim verify --upper`: what it prints, its exit status, and what it refuses."""

import re
import sys

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.theorems.solver import ASSUMED


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", "--upper", *arguments])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.slow
def test_proofs_are_printed_with_what_they_assume() -> None:
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    first, second, assumed = call("grow_zero_high", "--seconds", "200").splitlines()
    assert re.fullmatch(r"fast_two_sum_multiple: proved for every p >= 2, [\d.]+ s", first)
    assert re.fullmatch(
        r"grow_zero_high: proved for every p >= 2, after fast_two_sum_multiple, [\d.]+ s", second
    )
    assert assumed == f"Assumed: {ASSUMED}. What is not proved need not be false."
    assert ASSUMED.startswith("radix 2, rounding to nearest, ties by any rule if none is said")


@pytest.mark.slow
def test_a_false_statement_is_not_proved_which_is_right() -> None:
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    assert call("fast_two_sum_unordered").startswith("fast_two_sum_unordered: not proved for every p >= 2")


@pytest.mark.slow
def test_the_status_is_one_where_time_runs_out() -> None:
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    assert "two_sum: no answer" in call("two_sum", "--seconds", "1", status=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "and none is given: two_sum, fast_two_sum"),
        (["two_sun"], "unknown theorem 'two_sun' (did you mean 'two_sum'"),
        (["dw_times_dw1"], "products, quotients, roots, signs and other formats have no linear facts"),
        (["two_sum", "--format", "bfloat16"], "speaks of every precision: --format is no use"),
        (["two_sum", "--output", "."], "--output is no use"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    assert message in call(*arguments, status=2)


def test_without_the_solver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    assert "need z3: pip install 'mcfsim[solver]'" in call("two_sum", status=2)
