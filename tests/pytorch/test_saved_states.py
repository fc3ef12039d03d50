"""States as torch saves them, in which anyone may have altered anything: read or refused in one line."""

from __future__ import annotations

import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mcfsim as mcf
from mcfsim.models.known import SavedState
from mcfsim.models.plan import Plan
from mcfsim.models.samples import TensorSample, places_of, scan
from mcfsim.models.torch_state import Numbered, by_order
from mcfsim.models.weights import open_weights
from mcfsim.storage.tensors import FileOfTensorsError
from mcfsim.torch import AdamW
from mcfsim.torch.state_layout import summed
from tests.cli.runner import refused
from tests.models.files import raw_safetensors
from tests.pytorch.runs import dtype_of, net, of, parameters, run
from tests.shared.kinds import STORED
from tests.shared.mutations import NASTY, _places, damaged

SHAPES: dict[str, tuple[int, ...]] = {"matrix": (5, 3), "bias": (3,), "gain": (), "other": (4, 2)}


def saved(path: Path, *, named: bool) -> dict[str, Any]:
    """Write the weights of a model; return what torch would save of its optimizer after two steps."""
    torch.manual_seed(0)
    params = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    optimizer = torch.optim.AdamW(params.items() if named else params.values(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p**3).sum() for p in params.values()).backward()
        optimizer.step()
    raw_safetensors(path, {name: ("F32", p.detach().numpy()) for name, p in params.items()})
    return {"optimizer": optimizer.state_dict(), "epoch": 3}


def odd_tensors() -> list[torch.Tensor]:
    """Return tensors of every sort that a file may hold in another's place."""
    x = torch.arange(15.0).reshape(5, 3)
    return [
        *(x.double(), x.bfloat16(), x.to(torch.float8_e4m3fn), x.to(torch.complex64), x.int(), x > 3),
        *(x.t(), x.t().contiguous().t(), x[:1].expand(5, 3), x[0], x[0, 0], x[:0], x.to_sparse(), -x),
        *(x.to_sparse_csr(), x.to("meta"), x * float("nan"), x / 0, x * 1e300, torch.nn.Parameter(x)),
        *(torch.tensor(x) for x in (3, [3.0], [3.0, 4.0], True, 1j)),
        *(torch.tensor(x) for x in (float("inf"), -1, 0, [[2]])),
        *(torch.nested.nested_tensor([x, x[0:2]]), torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)),
    ]


#: Keys that a dictionary may have, too.
KEYS = 0, 1, -1, None, True, 2.5, (), (1, 2), "", "matrix", "exp_avg", "step", "state", "params", "optimizer"


def altered(data: Any, random: np.random.Generator, odd: list[torch.Tensor]) -> Any:
    """Return data with up to three entries put in others' place, left out, renamed, or added."""
    whole, values = with_its_tensors(data), (*NASTY, *odd)
    for _ in range(int(random.integers(1, 4))):
        if not (places := list(_places(whole))):
            break
        (parent, key), (other, there) = (places[int(i)] for i in random.integers(len(places), size=2))
        new, value = KEYS[int(random.integers(len(KEYS)))], values[int(random.integers(len(values)))]
        match random.integers(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[new] = with_its_tensors(value)
            case 2:  # another entry of the same tree
                parent[key] = with_its_tensors(other[there])
            case 3 if isinstance(parent, dict):
                parent[new] = parent.pop(key)
            case _:
                parent[key] = with_its_tensors(value)
    return whole


def with_its_tensors(data: Any) -> Any:
    """Return new dictionaries and lists with the same in them."""
    if isinstance(data, dict):
        return {key: with_its_tensors(item) for key, item in data.items()}
    return [with_its_tensors(item) for item in data] if isinstance(data, list) else data


def refusal(path: Path, samples: list[TensorSample]) -> str | None:
    """Return the one line by which a state is refused, None if it is not: then all its numbers are finite."""
    try:
        rows(path, samples)
    except FileOfTensorsError as error:
        said = str(error)
    else:
        return None
    assert str(path) in said
    assert "\n" not in said
    return said


def rows(path: Path, samples: list[TensorSample]) -> list[list[float]]:
    plan = Plan(mcf.AdamW(), mcf.Schedule(1e-3), 10, (mcf.strategy("plain"),))
    found = SavedState(path).directions(samples, plan).at(1)
    assert np.isfinite(found).all()
    return found.tolist()


def save(data: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kinds of tensors that torch means to give up
        torch.save(data, path)


@pytest.fixture(params=[True, False], ids=["named", "numbered"])
def state(request, tmp_path):
    data = saved(tmp_path / "w.safetensors", named=request.param)
    return data, scan(open_weights(tmp_path / "w.safetensors"), 16), tmp_path / "s.pt"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about the same kinds of tensors
@pytest.mark.parametrize("cases", [60, pytest.param(1250, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way", ["altered", "damaged"])
@pytest.mark.sampled(4, each=False)
def test_altered_and_damaged_states_are_refused_or_read(way, state, cases):
    """Of a damaged one what is read is as it was."""
    data, samples, path = state
    save(data, path)
    whole, expected = path.read_bytes(), rows(path, samples)
    random, odd, refused = np.random.default_rng(cases), odd_tensors(), 0
    for _ in range(cases):
        if way == "altered":
            save(altered(data, random, odd), path)
        else:
            path.write_bytes(damaged(whole, random))
        if refusal(path, samples) is not None:
            refused += 1
        elif way == "damaged":
            assert rows(path, samples) == expected
    assert cases // 4 < refused < cases + (way == "damaged")


@pytest.mark.slow
def test_a_number_that_is_damaged_is_not_taken(state):
    data, samples, path = state
    save(data, path)
    whole = bytearray(path.read_bytes())
    moment = data["optimizer"]["state"][0]["exp_avg"].numpy().tobytes()
    whole[whole.index(moment)] ^= 1
    path.write_bytes(whole)
    assert "does not have its checksum" in refusal(path, samples)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("s/data.pkl", bytes(1 << 20))
    assert "it is compressed" in refusal(path, samples)


of_first, of_group = partial(of, "state", 0), partial(of, "param_groups", 0)


MATRIX, NAN = torch.ones(5, 3), torch.tensor(np.nan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (of_first(exp_avg=[1.0]), "exp_avg of 'matrix' is no tensor: list"),
        (of_first(exp_avg_sq=MATRIX.int()), "no floating numbers as they are: it is of torch.int32"),
        (of_first(exp_avg_sq=MATRIX.to("meta")), "no floating numbers as they are"),
        (of_first(exp_avg_sq=MATRIX[:4]), "has shape (4, 3), and its weight (5, 3)"),
        (of_first(exp_avg_sq=-MATRIX), "has a negative second moment"),
        (of_first(exp_avg_sq=MATRIX / 0), "matrix.exp_avg_sq: 0 NaN, 15 infinite"),
        *((of_first(step=x), "how many steps were made of 'matrix'") for x in (torch.ones(2), "2", True)),
        *(
            (of_first(step=x), "steps were made; their number must be whole, and at least one")
            for x in (2.5, 10**400, NAN)
        ),
        (lambda it: it["state"].update({0: 3}), "the state of 'matrix' is no dict: 3"),
        (lambda it: it.update(param_groups=3), "'param_groups' is no list: 3"),
        (lambda it: it.update(param_groups=[3]), "group 0 is no dict: 3"),
        (of_group(params=None), "'params' of group 0 is no list: None"),
        (of_group(param_names="abcd"), "'param_names' of group 0 is no list: 'abcd'"),
        (of_group(param_names=["matrix"]), "group 0 has 4 parameters and 1 names of them"),
        (of_group(param_names=["matrix", "bias", "gain", "gain"]), "has two states of tensor 'gain'"),
        (of_group(param_names=["matrix", "bias", "gain", 3]), "a name of group 0 is no str: 3"),
        (of_group(params=[0, 1, 1, 2]), "has two names of parameter 1"),
        (of_group(params=[0, 1, 2, None]), "a parameter of group 0 is no int: None"),
        (of_group(param_names=["matrix", "bias", "gain", "x\n" * 999]), "has no state of tensor 'other'"),
        (lambda it: it.pop("state"), "it has no entry 'state'"),
    ],
)
def test_what_is_wrong_is_said(alter, said, tmp_path):
    weights, path = tmp_path / "w.safetensors", tmp_path / "s.pt"
    data = saved(weights, named=True)
    alter(data["optimizer"])
    save(data, path)
    found = refusal(path, scan(open_weights(weights), 16))
    assert found is not None
    assert said in found
    if "has no" in said:
        assert refused("audit", weights, "--state", path) == f"Error: {found}\n"


@pytest.mark.slow
def test_any_floating_dtype_layout_and_way_to_count_is_read(tmp_path):
    data, path = saved(tmp_path / "w.safetensors", named=True), tmp_path / "s.pt"
    samples = scan(open_weights(tmp_path / "w.safetensors"), 16)
    state, found, m = data["optimizer"]["state"], [], MATRIX * 0.5
    moments = [m.to(x) for x in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn)]
    moments += [m, m.t().contiguous().t(), m[:1].expand(5, 3)]
    for step in (2, 2.0, torch.tensor(2), torch.tensor([2.0]), torch.tensor(2.0, dtype=torch.bfloat16)):
        for moment in moments:
            state[0].update(step=step, exp_avg=moment, exp_avg_sq=MATRIX)
            save(data, path)
            found.append(rows(path, samples))
    names = data["optimizer"]["param_groups"][0]["param_names"]
    named = {name: state[i] for i, name in enumerate(names)}
    save({"state": named, "param_groups": [{"params": names}]}, path)
    assert all(x == rows(path, samples) for x in found)


# -- states by their order -----------------------------------------------------------------------------------
def directions(weights: Path, state: Path) -> dict[str, list[float]]:
    samples = scan(open_weights(weights), 64)
    return dict(zip([sample.name for sample in samples], rows(state, samples), strict=True))


def of_files(model: Any, state: Any, folder: Path, kind: str = "safetensors") -> dict[str, list[float]]:
    weights, arrays = folder / f"w.{kind}", {name: p.detach() for name, p in model.items()}
    if kind == "npz":
        np.savez(weights, **{name: x.numpy() for name, x in arrays.items()})
    else:
        save_file(arrays, weights)
    torch.save(state, folder / "o.pt")
    return directions(weights, folder / "o.pt")


def expected(m: torch.Tensor, v: torch.Tensor, step: int) -> np.ndarray:
    m, v = (x.reshape(-1).double().numpy() for x in (m, v))
    found = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return found[places_of(found.size, 64)]


# -- states of mcfsim.torch ----------------------------------------------------------------------------------
@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(2, each=False)
def test_a_state_of_this_package_is_read(strategy, tmp_path):
    """With names and without, in turn."""
    model = dict(zip("wb", parameters(((30, 20), (20,)), dtype_of(strategy)), strict=True))
    named = STORED.index(strategy) % 2
    optimizer = AdamW(model.items() if named else model.values(), strategy=strategy)
    run(optimizer, [0, 2, 4])  # of which all gradients are finite
    found = of_files(model, optimizer.state_dict(), tmp_path)
    stores = optimizer.steps_of(optimizer.param_groups[0]).stores
    for name, p in model.items():
        m, v = (
            summed([stores.numbers(optimizer.state[p], part) for part in parts])
            for parts in (stores.names.m, stores.names.v)
        )
        np.testing.assert_array_equal(found[name], expected(m, v, 3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (of_group(strategy="mine"), "of strategy 'mine', which has none"),
        (of_group(strategy="plain"), "of strategy 'plain', which has none"),
        (of_first(m_scales=torch.ones(3)), r"scales of shape \(3,\), and its weight"),
        (of_first(m=torch.ones(30, 20)), "has codes of shape"),
        (of_first(m_scales="x"), "is damaged"),
        (lambda x: x["state"][0].pop("v"), "'v'.* 'w'|v of 'w' is no tensor|is damaged"),
    ],
)
def test_codes_and_scales_that_do_not_fit_are_refused(change, text, tmp_path):
    w = torch.nn.Parameter(torch.ones(30, 20).bfloat16())
    optimizer = AdamW([w], strategy="fp8-moments")
    run(optimizer, [0])
    state = optimizer.state_dict()
    change(state)
    with pytest.raises(FileOfTensorsError, match=text):
        of_files({"w": w}, state, tmp_path)


# -- states of torch without names ---------------------------------------------------------------------------
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "o"):
            setattr(self, name, torch.nn.Linear(6, 6))


MODELS = {
    "three layers": (lambda: net(*[6] * 4, 2), True),
    "twelve layers": (lambda: net(*[6] * 13, 2), True),
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
    model = make()
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrices] for matrices in (True, False)]
    optimizer = torch.optim.AdamW([{"params": x} for x in parts] if grouped else model.parameters())
    run(optimizer, [0, 2])
    weights, state = dict(model.named_parameters()), {"optimizer": optimizer.state_dict()}
    state |= {"model": model.state_dict()} if kept == "beside" else {}
    if kept == "safetensors" and not told_by_numbers:
        said = "does not tell which is which: no order of them is known"
        with pytest.raises(FileOfTensorsError, match=said):
            of_files(weights, state, tmp_path)
        return
    found = of_files(weights, state, tmp_path, "npz" if kept == "npz" else "safetensors")
    for name, p in weights.items():
        state = optimizer.state[p]
        np.testing.assert_array_equal(found[name], expected(state["exp_avg"], state["exp_avg_sq"], 2))


def sample(name: str, shape: tuple[int, ...]) -> TensorSample:
    return TensorSample(name, shape, "F32", np.zeros(16), 0.0, 0.0)


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
