"""The guide to training: its examples run, one after the other, and end as it says."""

import pytest
import torch

import mcfsim.torch
from experiments.common import ROOT
from tests.experiments.test_readme import EXAMPLE

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = EXAMPLE.findall((ROOT / "docs/train.md").read_text())
    assert len(examples) == 8
    names = {}
    for code in examples:
        exec(compile(code, "docs/train.md", "exec"), names)
    assert type(names["fp32"]) is torch.optim.AdamW
    assert names["scheduler"].optimizer is names["fp32"]
    assert all(p.dtype == torch.float32 for p in names["run"].parameters())
    model, optimizer = names["model"], names["optimizer"]
    assert all(p.grad is None for p in model.parameters())
    assert {state["step"] for state in optimizer.state.values()} == {1}
    assert (tmp_path / "seen.csv").read_text() == "step,group,lost,edq\n"
    module = names["InLightning"]()
    module.parameters = model.parameters
    assert isinstance(module.configure_optimizers(), mcfsim.torch.AdamW)
