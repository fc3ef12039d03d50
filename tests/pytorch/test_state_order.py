"""States of torch's optimizers and of ours, with names and without: read as they are, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mcfsim as mcf
from mcfsim.models.samples import Sample, places_of
from mcfsim.models.saved_state import SavedState
from mcfsim.models.scan import scan
from mcfsim.models.state_order import Numbered, by_order
from mcfsim.models.weights import open_weights
from mcfsim.storage.tensors import FileOfTensorsError
from mcfsim.torch import AdamW
from mcfsim.torch.moved import summed
from tests.pytorch.runs import dtype_of, parameters, run
from tests.shared.kinds import STORED

RUN = mcf.Schedule(), 10


def directions(weights: Path, state: Path, **betas: float) -> dict[str, np.ndarray]:
    samples = scan(open_weights(weights), 64)
    rows = SavedState(state).directions(samples, mcf.AdamW(**betas), *RUN).at(1)
    return dict(zip([sample.name for sample in samples], rows, strict=True))


def expected(m: torch.Tensor, v: torch.Tensor, step: int) -> np.ndarray:
    m, v = (x.reshape(-1).double().numpy() for x in (m, v))
    found = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return found[places_of(found.size, 64)]


# -- states of mcfsim.torch ----------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", STORED)
def test_a_state_of_this_package_is_read(strategy, tmp_path):
    """With names and without, in turn."""
    model = dict(zip("wb", parameters(((30, 20), (20,)), dtype_of(strategy)), strict=True))
    named = STORED.index(strategy) % 2
    optimizer = AdamW(model.items() if named else model.values(), strategy=strategy)
    run(optimizer, [0, 2, 4])  # of which all gradients are finite
    save_file({name: p.detach() for name, p in model.items()}, tmp_path / "w.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    found = directions(tmp_path / "w.safetensors", tmp_path / "o.pt")
    stores = optimizer.steps_of(optimizer.param_groups[0]).stores
    for name, p in model.items():
        state = optimizer.state[p]
        m, v = (
            summed([stores.numbers(state, part) for part in parts])
            for parts in (stores.names.m, stores.names.v)
        )
        np.testing.assert_array_equal(found[name], expected(m, v, 3))


def of_group(**entries):
    return lambda saved: saved["param_groups"][0].update(entries)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (of_group(strategy="mine"), "of strategy 'mine', which has none"),
        (of_group(strategy="plain"), "of strategy 'plain', which has none"),
        (lambda x: x["state"][0].update(m_scales=torch.ones(3)), r"scales of shape \(3,\), and its weight"),
        (lambda x: x["state"][0].update(m=x["state"][0]["m"].float()), "has codes of shape"),
        (lambda x: x["state"][0].update(m_scales="x"), "is damaged"),
        (lambda x: x["state"][0].pop("v"), "'v'.* 'w'|v of 'w' is no tensor|is damaged"),
    ],
)
def test_codes_and_scales_that_do_not_fit_are_refused(change, text, tmp_path):
    w = torch.nn.Parameter(torch.ones(30, 20).bfloat16())
    optimizer = AdamW([w], strategy="fp8-moments")
    w.grad = torch.ones_like(w)
    optimizer.step()
    saved = optimizer.state_dict()
    change(saved)
    save_file({"w": w.detach()}, tmp_path / "w.safetensors")
    torch.save(saved, tmp_path / "o.pt")
    with pytest.raises(FileOfTensorsError, match=text):
        directions(tmp_path / "w.safetensors", tmp_path / "o.pt")


# -- states of torch without names ---------------------------------------------------------------------------
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "o"):
            setattr(self, name, torch.nn.Linear(6, 6))


def layers(count: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(count)), torch.nn.Linear(6, 2))


MODELS = {
    "three layers": (lambda: layers(3), True),
    "twelve layers": (lambda: layers(12), True),
    "attention": (Attention, False),
    "a norm": (lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)), False),
}


@pytest.mark.parametrize("kept", ["safetensors", "npz", "beside"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.sampled(3)
def test_a_state_without_names_is_that_of_its_tensors_or_refused(kind, grouped, kept, tmp_path):
    """Safetensors files list tensors by name; .npz files, and models beside the state, as the model does."""
    make, told_by_numbers = MODELS[kind]
    torch.manual_seed(0)
    model = make()
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrices] for matrices in (True, False)]
    optimizer = torch.optim.AdamW([{"params": x} for x in parts] if grouped else model.parameters())
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    weights = tmp_path / ("w.npz" if kept == "npz" else "w.safetensors")
    if kept == "npz":
        np.savez(weights, **{name: p.detach().numpy() for name, p in model.named_parameters()})
    else:
        save_file(model.state_dict(), weights)
    beside = {"model": model.state_dict()} if kept == "beside" else {}
    torch.save({"optimizer": optimizer.state_dict(), **beside}, tmp_path / "o.pt")
    if kept == "safetensors" and not told_by_numbers:
        with pytest.raises(
            FileOfTensorsError, match="does not tell which is which: no order of them is known"
        ):
            directions(weights, tmp_path / "o.pt")
        return
    found = directions(weights, tmp_path / "o.pt")
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        np.testing.assert_array_equal(found[name], expected(state["exp_avg"], state["exp_avg_sq"], 2))


def sample(name: str, shape: tuple[int, ...]) -> Sample:
    return Sample(name, shape, "F32", np.zeros(16), 0.0, 0.0)


@pytest.mark.parametrize("part", range(3))
def test_no_tensor_ever_gets_the_state_of_another(part):
    """Of random models, whose layers are numbered in their order, in files of either order."""
    shapes = [(4, 4), (4, 8), (4,), (8,)]
    for seed in range(100 * part, 100 * part + 100):
        rng = np.random.default_rng(seed)
        parts = [(x, shapes[rng.integers(4)]) for x in rng.permutation(list("abcd"))[: rng.integers(1, 5)]]
        layers = range(rng.integers(1, 13))
        model = {f"layer.{layer}.{name}.weight": shape for layer in layers for name, shape in parts}
        grouped, by_name = rng.random() < 0.3, rng.random() < 0.5
        of = {name: len(shape) % 2 if grouped else 0 for name, shape in model.items()}
        numbered = sorted(model, key=of.__getitem__)
        states = [Numbered(number, of[name], model[name]) for number, name in enumerate(numbered)]
        listed = sorted(model) if by_name else list(model)
        try:
            found = by_order(Path("x"), states, [sample(name, model[name]) for name in listed])
        except FileOfTensorsError:
            # Nothing tells only where two tensors of a layer have one shape, and the file lists by name, or
            # where its order is another than that of the numbers.
            assert len({shape for _, shape in parts}) < len(parts), seed
            assert listed == sorted(model), seed
        else:
            assert found == {name: number for number, name in enumerate(numbered)}, seed


@pytest.mark.parametrize(
    ("groups", "names", "text"),
    [
        ([0, 0], "b a c", "has 2 states of shape .*, while the model has 3 tensors, 'b' first"),
        ([0, 1], "b a", "they are in several groups"),
        ([0, 0], "h.2 h.1", "where their file has 'h.2' their numbers have 'h.1'"),
        ([0, 0, 0], "h.0 h.2 h.1", "their file has 'h.2' their numbers have 'h.1'"),
        ([0, 0], "a b", "no order of them is known"),
    ],
)
def test_why_no_order_tells(groups, names, text):
    numbered = [Numbered(key, group, (3,)) for key, group in enumerate(groups)]
    with pytest.raises(FileOfTensorsError, match=text):
        by_order(Path("x"), numbered, [sample(name, (3,)) for name in names.split()])
