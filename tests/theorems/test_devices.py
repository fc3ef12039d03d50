"""Names of devices on which statements are judged: others are refused before anything is tried."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.compile import kernel
from mcfsim.theorems import device, verification, verify
from mcfsim.theorems.device import find_device


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "prepare", lambda *_: pytest.fail("a check was made"))


def test_the_cpu_is_no_device() -> None:
    assert find_device("cpu", workers=4, dask="tcp://nowhere:1") is None


@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "mps", "meta"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown device .*; allowed: 'cpu', 'cuda', or 'cuda:N'"):
        verify("two_sum", device=name)


@pytest.mark.parametrize("name", [None, 0, b"cuda"])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(TypeError, match="device must be a str"):
        verify("two_sum", device=name)


@pytest.mark.parametrize("options", [{"workers": 2}, {"dask": "tcp://nowhere:1"}])
def test_one_process_works_with_a_device(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one process works with device 'cuda': leave out workers and dask"):
        verify("two_sum", device="cuda", **options)


def test_without_pytorch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"device 'cuda' needs PyTorch: pip install 'mcfsim\[torch\]'"):
        verify("two_sum", device="cuda")


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "kernels need Triton"), ("3.5.1", "Triton 3.5.1 divides inexactly.*need 3.6 or newer")],
)
def test_without_a_triton_that_divides_exactly_it_is_said_too(
    version: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda _: object())
    monkeypatch.setattr(kernel, "_triton", lambda: version)
    with pytest.raises(ImportError, match=f"device 'cuda' cannot be used: {said}"):
        verify("two_sum", device="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--device", "gpu"], ["--device", "cuda", "--workers", "2"]])
def test_the_command_refuses_in_one_line(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["verify", "two_sum", *arguments])
    assert done.exit_code == 2
    assert done.output.startswith("Error: ")
    assert done.output.count("\n") == 1
