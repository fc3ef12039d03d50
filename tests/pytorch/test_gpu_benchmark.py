"""The benchmark of kernels runs through on a CPU, in miniature, and writes nothing."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

from tests.benchmarks import gpu  # noqa: E402


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_it_runs_through_in_miniature(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("sys.argv", ["gpu", "--size", "20", "--device", "cpu"])
    monkeypatch.setattr(gpu, "write_result", None)
    gpu.main()
    printed = capsys.readouterr().out
    for what in (
        "copy",
        "float32 to bfloat16",
        "two_sum, bfloat16",
        "AdamW, collage-plus",
        "20 tensors of 16",
    ):
        assert what in printed
