"""States as torch saves them, in which anyone may have altered anything: read or refused in one line."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.models.samples import Sample
from mcfsim.models.saved_state import SavedState
from mcfsim.models.scan import scan
from mcfsim.models.weights import open_weights
from mcfsim.storage.tensors import FileOfTensorsError
from tests.models.files import raw_safetensors
from tests.shared.mutations import NASTY, damaged

pytestmark = pytest.mark.slow


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
KEYS = (
    *(0, 1, -1, None, True, 2.5, (), (1, 2), ""),
    *("matrix", "exp_avg", "step", "state", "params", "optimizer"),
)


def altered(data: Any, random: np.random.Generator, odd: list[torch.Tensor]) -> Any:
    """Return data with up to three entries put in others' place, left out, or added."""
    whole = _copied(data)
    for _ in range(int(random.integers(1, 4))):
        places = list(_places(whole))
        if not places:
            break
        parent, key = places[int(random.integers(len(places)))]
        pick = int(random.integers(len(NASTY) + len(odd)))
        value = _copied(NASTY[pick] if pick < len(NASTY) else odd[pick - len(NASTY)])
        match random.integers(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[KEYS[int(random.integers(len(KEYS)))]] = value
            case 2:  # another entry of the same tree
                other, from_there = places[int(random.integers(len(places)))]
                parent[key] = _copied(other[from_there])
            case 3 if isinstance(parent, dict):
                parent[KEYS[int(random.integers(len(KEYS)))]] = parent.pop(key)
            case _:
                parent[key] = value
    return whole


def _copied(data: Any) -> Any:
    """Return new dictionaries and lists with the same in them."""
    if isinstance(data, dict):
        return {key: _copied(item) for key, item in data.items()}
    return [_copied(item) for item in data] if isinstance(data, list) else data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])


def refusal(path: Path, samples: list[Sample]) -> str | None:
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


def rows(path: Path, samples: list[Sample]) -> list[list[float]]:
    found = SavedState(path).directions(samples, mcf.AdamW(), mcf.Schedule(1e-3), 10).at(1)
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


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about the same kinds of tensors
@pytest.mark.parametrize("cases", [60, pytest.param(1250, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way", ["altered", "damaged"])
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


def test_a_number_that_is_damaged_is_not_taken(state):
    data, samples, path = state
    save(data, path)
    whole = bytearray(path.read_bytes())
    moment = data["optimizer"]["state"][0]["exp_avg"].numpy().tobytes()
    whole[whole.index(moment)] ^= 1
    path.write_bytes(whole)
    assert "has not its checksum" in refusal(path, samples)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("s/data.pkl", bytes(1 << 20))
    assert "it is compressed" in refusal(path, samples)


def of_first(**entries: Any) -> Any:
    return lambda it: it["state"][0].update(entries)


def of_group(**entries: Any) -> Any:
    return lambda it: it["param_groups"][0].update(entries)


MATRIX = torch.ones(5, 3)


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
            (of_first(step=x), "steps were made; at least one must")
            for x in (2.5, 10**400, torch.tensor(np.nan))
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
    """By a command, too."""
    weights, path = tmp_path / "w.safetensors", tmp_path / "s.pt"
    data = saved(weights, named=True)
    alter(data["optimizer"])
    save(data, path)
    found = refusal(path, scan(open_weights(weights), 16))
    assert found is not None
    assert said in found
    if "has no" in said:
        result = CliRunner().invoke(app, ["audit", str(weights), "--state", str(path)])
        assert (result.exit_code, result.stderr) == (2, f"Error: {found}\n")


def test_any_floating_dtype_layout_and_way_to_count_is_read(tmp_path):
    data, path = saved(tmp_path / "w.safetensors", named=True), tmp_path / "s.pt"
    samples = scan(open_weights(tmp_path / "w.safetensors"), 16)
    state, found = data["optimizer"]["state"][0], []
    half, dtypes = MATRIX * 0.5, (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    for step in (2, 2.0, torch.tensor(2), torch.tensor([2.0]), torch.tensor(2.0, dtype=torch.bfloat16)):
        for m in (
            half,
            *(half.to(dtype) for dtype in dtypes),
            half.t().contiguous().t(),
            half[:1].expand(5, 3),
        ):
            state.update(step=step, exp_avg=m, exp_avg_sq=MATRIX)
            save(data, path)
            found.append(rows(path, samples))
    names = data["optimizer"]["param_groups"][0]["param_names"]
    named = {name: data["optimizer"]["state"][i] for i, name in enumerate(names)}
    save({"state": named, "param_groups": [{"params": names}]}, path)
    assert all(x == rows(path, samples) for x in found)
