"""A run that was saved, copied or pickled goes on to the same bits."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from mcfsim.torch import SGD, AdamW  # noqa: E402
from mcfsim.torch.saving import NAMES  # noqa: E402

STRATEGIES = (
    "plain",
    "kahan",
    "collage-light",
    "collage-plus",
    "fp32-optim",
    "fp32-master",
    "split-master",
    "stochastic-parameter",
    "stochastic",
    "fp32",
)


def make(name, kind=AdamW, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((4, 3), (5,), ())
    ]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.0, "lr": 3e-3}]
    return weights, kind(groups, lr=1e-2, weight_decay=0.1, strategy=name)


def run(weights, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for w in weights:
            w.grad = torch.randn(w.shape, generator=generator).to(w.dtype)
        optimizer.step()


def numbers(key, x):
    """Return what a tensor of the state holds; of a remainder its bits."""
    return x.view(torch.int16) if key == "remainder" else x


def assert_equal(weights, optimizer, others, other):
    for w, o in zip(weights, others, strict=True):
        assert torch.equal(w, o)
        mine, theirs = optimizer.state[w], other.state[o]
        assert mine.keys() == theirs.keys()
        assert mine["step"] == theirs["step"]
        for key in mine.keys() - {"step"}:
            assert mine[key].dtype == theirs[key].dtype
            assert torch.equal(numbers(key, mine[key]), numbers(key, theirs[key]))
        assert torch.equal(optimizer.represented(w), other.represented(o))


def through_a_file(object_):
    buffer = io.BytesIO()
    torch.save(object_, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("kind", [AdamW, SGD])
@pytest.mark.parametrize("name", STRATEGIES)
def test_saved_and_resumed(name, kind):
    weights, optimizer = make(name, kind)
    run(weights, optimizer, range(17))
    saved = through_a_file({"weights": [w.detach() for w in weights], "optimizer": optimizer.state_dict()})
    others, other = make(name, kind, seed=1)
    with torch.no_grad():
        for o, w in zip(others, saved["weights"], strict=True):
            o.copy_(w)
    other.load_state_dict(saved["optimizer"])
    assert_equal(weights, optimizer, others, other)
    assert other.param_groups[1]["weight_decay"] == 0.0
    run(weights, optimizer, range(17, 34))
    run(others, other, range(17, 34))
    assert_equal(weights, optimizer, others, other)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", STRATEGIES)
def test_copied(name, copied):
    weights, optimizer = make(name)
    run(weights, optimizer, range(9))
    others, other = copied((weights, optimizer))
    for mine, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {**theirs, "params": 0} == {**mine, "params": 0}
    run(weights, optimizer, range(9, 20))
    run(others, other, range(9, 20))
    assert_equal(weights, optimizer, others, other)


def test_loaded_state_is_not_shared():
    weights, optimizer = make("collage-plus")
    run(weights, optimizer, range(3))
    _, other = make("collage-plus")
    other.load_state_dict(optimizer.state_dict())
    before = optimizer.state[weights[0]]["m"].clone()
    other.param_groups[0]["params"][0].grad = torch.ones(4, 3, dtype=torch.bfloat16)
    other.step()
    assert torch.equal(optimizer.state[weights[0]]["m"], before)


def test_packed_sizes_are_those_of_the_strategy():
    for name in STRATEGIES:
        weights, optimizer = make(name)
        run(weights, optimizer, range(1))
        state = optimizer.state[weights[0]]
        tensors = [weights[0], weights[0].grad, *(item for key, item in state.items() if key != "step")]
        stored = sum(item.itemsize for item in tensors)
        assert stored == optimizer.param_groups[0]["strategy"].bytes_per_parameter


def test_states_of_something_else_are_refused():
    weights, optimizer = make("collage-plus")
    run(weights, optimizer, range(2))
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"the state is of .*'collage-plus'.* of .*'kahan'"):
        make("kahan")[1].load_state_dict(saved)
    with pytest.raises(ValueError, match="the state is of AdamW, and this optimizer is SGD"):
        make("collage-plus", SGD)[1].load_state_dict(saved)
    other = AdamW(make("plain")[0], rounding="up")
    with pytest.raises(ValueError, match="'up'"):
        other.load_state_dict(saved)
    _, same = make("collage-plus")
    groups = [
        {key: item for key, item in group.items() if key not in NAMES} for group in saved["param_groups"]
    ]
    foreign = {"state": saved["state"], "param_groups": groups}
    same.load_state_dict(foreign)
    foreign["state"] = {0: {**saved["state"][0], "m": saved["state"][0]["m"].float()}}
    with pytest.raises(ValueError, match=r"state of parameter 0: it has .*torch.float32"):
        same.load_state_dict(foreign)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        AdamW(make("plain")[0]).load_state_dict({**foreign, "state": {}})


def test_hooks_see_the_state_before_it_is_loaded():
    weights, optimizer = make("fp32-master")
    run(weights, optimizer, range(2))
    saved = optimizer.state_dict()
    others, other = make("fp32-master")

    def zeroed(_, given):
        state = {**given["state"], 0: {**given["state"][0], "m": torch.zeros(4, 3)}}
        return {**given, "state": state}

    other.register_load_state_dict_pre_hook(zeroed)
    other.load_state_dict(saved)
    assert not other.state[others[0]]["m"].any()
    assert other.state[others[0]]["m"].dtype == torch.float32
    assert torch.equal(other.state[others[1]]["m"], optimizer.state[weights[1]]["m"])
