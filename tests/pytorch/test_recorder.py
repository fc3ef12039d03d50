"""Gradients of a torch training loop, recorded: the bits that torch had, and replays of its own training."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mcfsim as mcf
from mcfsim.models.recording import open_recording
from mcfsim.torch import AdamW, record
from tests.pytorch.runs import backward, net

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 6


def recorded(model, folder, steps=STEPS, after=None, then=lambda step: None):
    recorder = record(model, folder, after=after)
    for step in range((after or 0) + 1, steps + 1):
        model.zero_grad()
        backward(model, step)
        recorder.step(0.1 / step)
        then(step)
    assert recorder.count == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradients_are_recorded_bit_for_bit(dtype, tmp_path):
    model, expected = net(6, 8, 2, dtype=dtype), []
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def keep(step):
        expected.append({name: p.grad.clone() for name, p in model.named_parameters()})

    recorded(model, tmp_path, then=keep)
    for path, tensors in zip(sorted(tmp_path.glob("*.safetensors")), [*expected, start], strict=True):
        found = load_file(path)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype
            assert torch.equal(found[name], tensor)
    whole = open_recording(tmp_path)
    assert whole.rates() == tuple(0.1 / step for step in range(1, STEPS + 1))
    recorded(model, tmp_path, after=2)  # a loop that went back goes on from there
    assert open_recording(tmp_path).digest() == whole.digest()


@pytest.mark.parametrize("strategy", ["plain", "collage-plus"])
def test_a_replay_makes_the_steps_that_were_trained(strategy, tmp_path):
    """The weights at the end are those of torch's model, which the same strategy trained."""
    model = net(6, 8, 2, dtype=torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.99), weight_decay=0.1, strategy=strategy)

    def then(step):
        optimizer.param_groups[0]["lr"] = 0.1 / step
        optimizer.step()

    recorded(model, tmp_path / "r", then=then)
    names = [name for name, _ in model.named_parameters()]
    hyper = mcf.AdamW(beta1=0.9, beta2=0.99, weight_decay=0.1)
    mcf.replay(tmp_path / "r", hyper, strategy, decayed=names, checkpoint=tmp_path / "kept.npz")
    with np.load(tmp_path / "kept.npz") as archive:
        final = archive[f"{strategy}|parameter0"]
    trained = torch.cat([p.detach().float().ravel() for p in model.parameters()])
    np.testing.assert_array_equal(final, trained.numpy())


def test_what_is_not_trained_is_left_out_and_what_is_shared_is_one(tmp_path):
    model = net(6, 6, 6)
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(3))
    record(model, tmp_path)
    assert [item.name for item in tmp_path.glob("*.safetensors")] == ["weights.safetensors"]
    with pytest.raises(ValueError, match="has no step"):
        open_recording(tmp_path)
    recorded(model, tmp_path, 1, after=0)
    assert set(open_recording(tmp_path).weights.shapes) == {"0.weight", "2.bias"}


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (None, r"1 parameters have no gradient, '2\.bias' first; exclude those untr"),
        (torch.zeros(2).to_sparse(), r"parameter '2\.bias': a tensor on device 'cpu' with layout"),
    ],
    ids=["none", "sparse"],
)
def test_what_is_refused_writes_nothing(gradient, message, tmp_path):
    model = net(6, 8, 2)
    recorder = record(model, tmp_path)
    backward(model, 1)
    model[2].bias.grad = gradient
    with pytest.raises((TypeError, ValueError), match=message):
        recorder.step()
    assert [item.name for item in tmp_path.glob("*.safetensors")] == ["weights.safetensors"]
    for wrong in (None, torch.nn.Tanh(), torch.nn.Linear(2, 2, dtype=torch.complex64)):
        with pytest.raises((TypeError, ValueError)):
            record(wrong, tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(mcf.__file__).parents[1] / "docs" / "replay.md").read_text()
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "torch" in code)
    exec(compile(code, "replay.md", "exec"), {})
    assert len(open_recording("recording").rates()) == 20
