"""Averages of weights: those of PyTorch in low formats, bit for bit, and those that do not stall."""

import copy
import io
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.optim import swa_utils

import mcfsim as mcf
import mcfsim.torch
from mcfsim.analysis.moving_average import MovingAverage
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction

SWA = {"torch_lerp": swa_utils.get_ema_multi_avg_fn, "torch_avg_fn": swa_utils.get_ema_avg_fn}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def with_weights(numbers, dtype):
    """Return a module of one parameter."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.from_numpy(np.array(numbers, np.float32)).to(dtype))
    return module


def averaged_model(form, decay, module):
    kind = "multi_avg_fn" if form == "torch_lerp" else "avg_fn"
    model = swa_utils.AveragedModel(module, **{kind: SWA[form](decay)})
    model.update_parameters(module)  # which copies
    return model


# -- PyTorch's own ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", SWA)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.slow
def test_an_averaged_model_has_the_bits_of_its_form(form, name, assert_same):
    random = np.random.default_rng(5)
    for decay in (0.9, 0.99, 0.999, 0.9999):
        start = mcf.round_to(random.standard_normal(500) * 2.0 ** random.integers(-6, 6, 500), name)
        module = with_weights(start, DTYPES[name])
        model, average, s = averaged_model(form, decay, module), MovingAverage(name, decay, form), start
        for step in range(10):
            far = 2.0 ** random.integers(-6, 6, 500)
            weights = mcf.round_to(start + (0.1 if step % 2 else far) * random.standard_normal(500), name)
            with torch.no_grad():
                module.weight.copy_(torch.from_numpy(np.float32(weights)))
            model.update_parameters(module)
            s = average.step(s, weights)
            assert_same(model.module.weight.detach().float().numpy(), s)


@pytest.mark.parametrize(
    ("form", "name", "end"),
    [
        ("torch_lerp", "bfloat16", 1.09375),
        ("torch_avg_fn", "bfloat16", 2.0),
        ("torch_lerp", "float32", None),
        ("torch_avg_fn", "float32", None),
    ],
)
@pytest.mark.sampled(3, each=False)
def test_where_an_averaged_model_stalls(form, name, end):
    """From 1 to 5 at decay .999: where the rule says in bf16, and near 5 in float32."""
    model = averaged_model(form, 0.999, with_weights([1.0], DTYPES[name]))
    module = with_weights([5.0], DTYPES[name])
    for _ in range(5000 if end is None else 400):
        model.update_parameters(module)
    found = model.module.weight.item()
    if end is None:
        assert abs(found - (5 - 4 * 0.999**5000)) < 1e-3
    else:
        assert found == end == MovingAverage(name, 0.999, form).stalls_at(1.0, 5.0)


# -- averages of what is represented ----------------------------------------------------------------------
def trained(strategy="collage-plus", *, groups=False, device="cpu"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 6))
    model = model.to(device, torch.bfloat16)
    given = list(model.parameters())
    if groups:
        given = [{"params": given[1::2], "weight_decay": 0.0}, {"params": given[::2]}]
    return model, mcfsim.torch.AdamW(given, lr=1e-2, strategy=strategy)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(4, 6, dtype=torch.bfloat16)
        model(x.to(next(model.parameters()).device)).float().square().mean().backward()
        optimizer.step()


def exactly(tensor):
    return [Fraction(x) for x in tensor.double().reshape(-1).tolist()]


@pytest.mark.parametrize(
    ("strategy", "low", "components"),
    [
        ("collage-plus", None, 2),
        ("plain", None, 1),
        ("fp32-master", None, 3),
        ("kahan", "float16", 2),
        ("collage-plus", "float32", 1),
        ("collage-light", "float8_e5m2", 2),
    ],
)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_updates_have_the_bits_of_the_emulator_and_keep_the_bound(
    strategy, low, components, device, assert_same
):
    """By NumPy's binary64, rounded into components; and beside the average in fractions."""
    decay, wide = 0.97, mcf.arithmetic("float64")
    model, optimizer = trained(strategy, device=device)
    averaged = mcfsim.torch.average(optimizer, decay=decay, low=low, components=components)
    parameters, fmt = list(model.parameters()), averaged.low
    ar = mcf.arithmetic(fmt)
    weights = [optimizer.represented(p) for p in parameters]
    exact, largest = [exactly(x) for x in weights], 0

    def split(numbers):
        return np.array([mcf.expand(ar, float(x), components) for x in numbers.reshape(-1)]).T

    stored = [split(x.cpu().numpy()) for x in weights]
    for step in range(10):
        train(model, optimizer)
        averaged.update()
        for i, p in enumerate(parameters):
            w = optimizer.represented(p)
            so_far = stored[i][::-1].sum(axis=0)
            apart = wide.sub(w.cpu().numpy().reshape(-1), so_far)
            stored[i] = split(wide.add(so_far, wide.mul(apart, 1.0 - decay)))
            found = averaged.state_dict()["stored"][i]
            for part, expected in zip(found, stored[i], strict=True):
                assert_same(part.double().cpu().numpy().reshape(-1), expected)
            gain = 1 - Fraction(decay)
            exact[i] = [a + gain * (x - a) for a, x in zip(exact[i], exactly(w), strict=True)]
            reached = exactly(averaged.represented()[i])
            largest = max([largest, *map(abs, exactly(w)), *map(abs, reached)])
            bound = (fmt.unit_roundoff**components + Fraction(1, 2**50)) * largest / gain
            tiny = fmt.smallest_subnormal / gain  # where components underflow
            assert all(abs(a - x) <= bound + tiny for a, x in zip(exact[i], reached, strict=True)), step
    assert averaged.count == 10
    for p, x, rounded in zip(parameters, averaged.represented(), averaged.weights(), strict=True):
        nearest = [round_fraction(y, mcf.get_format("bfloat16")) for y in exactly(x)]
        assert rounded.dtype == p.dtype
        assert_same(rounded.double().cpu().numpy().reshape(-1), nearest)


@pytest.mark.slow
def test_two_components_arrive_where_pytorchs_average_stalls():
    module = with_weights([1.0], torch.bfloat16)
    optimizer = mcfsim.torch.AdamW(module.parameters(), lr=1e-3, strategy="plain")
    averaged, left = mcfsim.torch.average(optimizer, decay=0.999), 4.0
    with torch.no_grad():
        module.weight.fill_(5.0)
    for _ in range(600):
        averaged.update()
        left *= 0.999
    error = abs(averaged.represented()[0].item() - (5 - left))
    assert error < averaged.resolution
    assert averaged.weights()[0].item() > 2.5


@pytest.mark.slow
def test_a_copy_of_the_model_gets_the_averages():
    for groups in (False, True):
        model, optimizer = trained(groups=groups)
        averaged, other = mcfsim.torch.average(optimizer, 0.9), copy.deepcopy(model)
        train(model, optimizer, 3)
        averaged.update()
        averaged.copy_to(other, model)
        order = [p for group in optimizer.param_groups for p in group["params"]]
        expected = dict(zip(order, averaged.weights(), strict=True))
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(q, expected[p])
            assert not torch.equal(p, q)
        if not groups:
            again = copy.deepcopy(model)
            averaged.copy_to(again)
            assert all(map(torch.equal, again.parameters(), other.parameters()))
            continue
        with pytest.raises(ValueError, match="in 2 groups cannot be matched by their order"):
            averaged.copy_to(other)
    with pytest.raises(ValueError, match="4 parameters of the optimizer, the first of shape"):
        averaged.copy_to(other, other)
    wrong = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 7))
    before = [p.clone() for p in wrong.parameters()]
    with pytest.raises(ValueError, match="a parameter of shape"):
        averaged.copy_to(wrong, model)
    assert all(map(torch.equal, before, wrong.parameters()))


def test_a_saved_average_goes_on_with_the_same_bits():
    model, optimizer = trained()
    first = mcfsim.torch.average(optimizer, 0.95)
    train(model, optimizer, 2)
    first.update()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = mcfsim.torch.average(optimizer, 0.95)
    state = torch.load(file, weights_only=True)
    for x in state["stored"]:
        for part in x:
            part.requires_grad_()
    second.load_state_dict(state)
    train(model, optimizer)
    for averaged in (first, second):
        averaged.update()
    assert first.count == second.count == 2
    for x, y in zip(first.state_dict()["stored"], second.state_dict()["stored"], strict=True):
        assert all(map(torch.equal, x, y))


def test_states_of_other_averages_are_refused():
    _, optimizer = trained()
    averaged = mcfsim.torch.average(optimizer, 0.95)
    state, before = averaged.state_dict(), averaged.represented()
    for change, problem in (
        ({"decay": 0.9}, "the state has decay = 0.9, and this average 0.95"),
        ({"components": 1}, "the state has components = 1"),
        ({"low": "float16"}, "the state has low = float16"),
        ({"stored": state["stored"][1:]}, "other shapes"),
        ({"stored": [[x.float() for x in parts] for parts in state["stored"]]}, "another dtype"),
        ({"stored": None}, "other shapes"),
        ({"stored": [None] * len(state["stored"])}, "other shapes"),
        ({"count": -1}, "count = -1"),
    ):
        with pytest.raises(ValueError, match=problem):
            averaged.load_state_dict({**state, **change})
    absent = [[x.to("meta") for x in parts] for parts in state["stored"]]
    for change, error in (({"count": "9"}, TypeError), ({"count": 9, "stored": absent}, NotImplementedError)):
        with pytest.raises(error):
            averaged.load_state_dict({**state, **change})
    assert averaged.count == state["count"]
    with pytest.raises(ValueError, match="no state of an average"):
        averaged.load_state_dict({"decay": 0.95})
    with pytest.raises(ValueError, match="parameters are none"):
        mcfsim.torch.average(mcfsim.torch.AdamW([{"params": []}]), 0.95)
    assert all(map(torch.equal, before, averaged.represented()))


def test_parameters_of_another_time_are_refused():
    _, optimizer = trained()
    averaged = mcfsim.torch.average(optimizer, 0.95)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]})
    with pytest.raises(ValueError, match="other parameters than when the average began"):
        averaged.update()
    _, optimizer = trained()
    averaged = mcfsim.torch.average(optimizer, 0.95)
    before = averaged.represented()
    p = optimizer.param_groups[0]["params"][-1]
    p.grad, p.data = None, p.data[:1].clone()
    optimizer.state.clear()
    with pytest.raises(ValueError, match=r"shape \(1,\) had shape .* when the average began"):
        averaged.update()
    assert all(map(torch.equal, averaged.represented(), before))


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"decay": 1.0}, ValueError, "decay = 1.0 must lie between 0 and 1"),
        ({"decay": 0.0}, ValueError, "decay = 0.0 must lie between 0 and 1"),
        ({"decay": "slow"}, TypeError, "decay must be a real number"),
        ({"decay": 0.9, "components": 0}, ValueError, "components = 0"),
        ({"decay": 0.9, "components": 1.5}, TypeError, "components must be an int"),
        ({"decay": 0.9, "low": "bf17"}, ValueError, "bf17"),
        ({"decay": 0.9, "low": "posit16"}, UnsupportedFormatError, "posit16"),
    ],
)
def test_averages_that_are_none(options, error, problem):
    with pytest.raises(error, match=problem):
        mcfsim.torch.average(trained()[1], **options)


def test_optimizers_that_are_none():
    model, _ = trained()
    with pytest.raises(TypeError, match=r"one of mcfsim\.torch, not SGD"):
        mcfsim.torch.average(torch.optim.SGD(model.parameters(), lr=0.1), 0.9)
    other = {"params": [torch.nn.Parameter(torch.ones(2))], "strategy": "fp32"}
    optimizer = mcfsim.torch.AdamW([other, {"params": model.parameters()}], lr=0.1)
    with pytest.raises(ValueError, match=r"several dtypes, torch\.bfloat16, torch\.float32"):
        mcfsim.torch.average(optimizer, 0.9)
    averaged = mcfsim.torch.average(optimizer, 0.9, low="bfloat16")
    assert [x.dtype for x in averaged.weights()] == [torch.float32, *[torch.bfloat16] * 4]
