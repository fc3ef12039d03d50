"""States as torch saves them, in which anyone may have altered anything: read or refused in one line."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.models.samples import Sample
from mcfsim.models.saved_state import SavedState
from mcfsim.models.scan import scan
from mcfsim.models.weights import open_weights
from mcfsim.storage.tensors import FileOfTensorsError
from tests.shared.mutations import damaged

torch = pytest.importorskip("torch")

from tests.pytorch.states import altered, odd_tensors, saved  # noqa: E402

pytestmark = pytest.mark.slow


def rows(path: Path, samples: list[Sample]) -> list[list[float]]:
    """Return the directions of a state; all of them are numbers."""
    found = SavedState(path).directions(samples, mcf.AdamW(), mcf.Schedule(1e-3), 10).at(1)
    assert np.isfinite(found).all()
    return found.tolist()


def refusal(path: Path, samples: list[Sample]) -> str | None:
    """Return the one line by which a state is refused, None if it is not."""
    try:
        rows(path, samples)
    except FileOfTensorsError as error:
        said = str(error)
    else:
        return None
    assert str(path) in said
    assert "\n" not in said
    return said


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
def test_altered_states_are_read_or_refused(state, cases):
    data, samples, path = state
    random, odd, refused = np.random.default_rng(cases), odd_tensors(), 0
    for _ in range(cases):
        save(altered(data, random, odd), path)
        refused += refusal(path, samples) is not None
    assert cases // 4 < refused < cases


@pytest.mark.parametrize("cases", [60, pytest.param(1250, marks=pytest.mark.exhaustive)])
def test_damaged_states_are_refused_or_read_as_they_were(state, cases):
    data, samples, path = state
    save(data, path)
    whole, expected = path.read_bytes(), rows(path, samples)
    random, refused = np.random.default_rng(cases), 0
    for _ in range(cases):
        path.write_bytes(damaged(whole, random))
        if refusal(path, samples) is None:
            assert rows(path, samples) == expected
        else:
            refused += 1
    assert refused > cases // 4


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
        (of_first(exp_avg_sq=MATRIX.to_sparse()), "no floating numbers as they are"),
        (of_first(exp_avg_sq=MATRIX.to("meta")), "no floating numbers as they are"),
        (of_first(exp_avg_sq=MATRIX[:4]), "has shape (4, 3), and its weight (5, 3)"),
        (of_first(exp_avg_sq=-MATRIX), "has a negative second moment"),
        (of_first(exp_avg_sq=MATRIX / 0), "matrix.exp_avg_sq: 0 NaN, 15 infinite"),
        (of_first(step=torch.tensor([2.0, 2.0])), "how many steps were made of 'matrix': Tensor"),
        (of_first(step="2"), "how many steps were made of 'matrix': '2'"),
        (of_first(step=True), "how many steps were made of 'matrix': True"),
        (of_first(step=2.5), "says that 2.5 steps were made; at least one must have been"),
        (of_first(step=10**400), "steps were made; at least one must have been, and a whole number"),
        (of_first(step=torch.tensor(float("nan"))), "says that nan steps were made"),
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
    data, path = saved(tmp_path / "w.safetensors", named=True), tmp_path / "s.pt"
    alter(data["optimizer"])
    save(data, path)
    samples = scan(open_weights(tmp_path / "w.safetensors"), 16)
    found = refusal(path, samples)
    assert found is not None
    assert said in found
    result = CliRunner().invoke(app, ["audit", str(tmp_path / "w.safetensors"), "--state", str(path)])
    assert result.exit_code == 2
    assert result.stderr == f"Error: {found}\n"


def test_any_floating_dtype_layout_and_way_to_count_is_read(tmp_path):
    data, path = saved(tmp_path / "w.safetensors", named=True), tmp_path / "s.pt"
    samples = scan(open_weights(tmp_path / "w.safetensors"), 16)
    state = data["optimizer"]["state"][0]
    state["exp_avg"], state["exp_avg_sq"] = MATRIX * 0.5, MATRIX
    for step in (2, 2.0, torch.tensor(2), torch.tensor([2.0]), torch.tensor(2.0, dtype=torch.bfloat16)):
        state["step"] = step
        save(data, path)
        expected = rows(path, samples)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            state["exp_avg"] = (MATRIX * 0.5).to(dtype)
            save(data, path)
            assert rows(path, samples) == expected
    state["exp_avg"] = (MATRIX * 0.5).t().contiguous().t()
    state["exp_avg_sq"] = MATRIX[:1].expand(5, 3)
    save(data, path)
    assert rows(path, samples) == expected
    with_names = {
        "state": {
            name: data["optimizer"]["state"][i]
            for i, name in enumerate(data["optimizer"]["param_groups"][0]["param_names"])
        }
    }
    save({**with_names, "param_groups": [{"params": list(with_names["state"])}]}, path)
    assert rows(path, samples) == expected
