"""The benchmark of kernels runs through on a CPU, in miniature, and writes nothing."""

import pytest

import mcfsim as mcf
from experiments import common
from experiments import gpu as table
from experiments.common import write_result
from tests.benchmarks import gpu

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.slow
@pytest.mark.costly("the whole benchmark, its kernels interpreted")
def test_it_runs_through_in_miniature(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("sys.argv", ["gpu", "--size", "2", "--device", "cpu"])
    monkeypatch.setattr(gpu, "write_result", None)
    few = {name: mcf.STRATEGIES[name] for name in ("collage-plus", "exact")}
    monkeypatch.setattr(mcf, "STRATEGIES", few)
    kept, measured = [], gpu.measured
    monkeypatch.setattr(gpu, "measured", lambda *given: kept.extend(measured(*given)) or kept)
    gpu.main()
    printed = capsys.readouterr().out
    assert all(x in printed for x in ("copy", "float32 to bfloat16", "two_sum, bfloat16")), printed
    assert all(x in printed for x in ("AdamW, collage-plus", "2 tensors of 16")), printed
    for module in (common, table):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert table.measured() == table.NOT_MEASURED
    write_result("gpu", kept[-1])
    shown = table.measured()
    assert "a CPU, in miniature; torch" in shown
    assert shown.count("| AdamW, ") == len(few)
    assert "collage-plus " in shown.partition("Parameters that are not the exact first step")[2]
