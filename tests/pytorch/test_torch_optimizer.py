"""The optimizers for torch make the very steps of `mcfsim.Optimizer`, and what torch asks of an optimizer."""

import itertools

import numpy as np
import pytest

import mcfsim as mcf

torch = pytest.importorskip("torch")

from mcfsim.optim import compiled_step  # noqa: E402
from mcfsim.storage.buffers import BLOCK  # noqa: E402
from mcfsim.torch import SGD, AdamW  # noqa: E402
from tests.pytorch.steps import assert_same_states  # noqa: E402

STRATEGIES = (
    "plain",
    "kahan",
    "collage-light",
    "collage-plus",
    "fp32-optim",
    "fp32-master",
    "split-master",
    "fp8-moments",
    "stochastic-parameter",
    "stochastic",
    "fp32",
)
#: A strategy and a low format that do not go together.
SPLIT_HALF = ("split-master", "float16")
SHAPES = {"matrix": (7, 5), "vector": (11,), "scalar": (), "empty": (0, 3), "turned": (6, 4), "strided": (9,)}
STEPS = 40
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def parameter(values, name):
    """Return a leaf of the name's memory layout."""
    if name == "turned":
        return torch.nn.Parameter(values.t().contiguous().t())
    if name == "strided":
        return torch.nn.Parameter(torch.stack([values, values], dim=1)[:, 0])
    return torch.nn.Parameter(values)


def start(shapes, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: parameter(torch.randn(shape, generator=generator).to(dtype), name)
        for name, shape in shapes.items()
    }


def give_gradients(parameters, step):
    generator = torch.Generator().manual_seed(1000 + step)
    for p in parameters.values():
        p.grad = (torch.randn(p.shape, generator=generator) * 10.0 ** (-(step % 5))).to(p.dtype)


def arrays(tensors):
    return {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}


def assert_same_weights(parameters, reference, assert_same):
    for name, weight in reference.weights().items():
        assert_same(parameters[name].detach().float().numpy(), weight)


def numbers(state, name):
    """Return what is stored under a name; of codes of float8_e4m3fn in groups of 128, times their scales."""
    if f"{name}_scales" not in state:
        return state[name]
    by_code = state[name].view(torch.float8_e4m3fn).double().reshape(-1)
    scales = state[f"{name}_scales"].double().repeat_interleave(128)[: by_code.numel()]
    return (by_code * scales).float().view(state[name].shape)


def compare(optimizer, parameters, reference, assert_same, steps=STEPS, rate=1e-2):
    for step in range(steps):
        give_gradients(parameters, step)
        optimizer.step()
        gradients = arrays({name: p.grad for name, p in parameters.items()})
        reference.step(reference.receive(gradients), rate)
    assert_same_weights(parameters, reference, assert_same)
    components = [reference.layout.split(item) for item in reference.represented()]
    for name, p in parameters.items():
        exact = sum(part[name].astype(np.float64) for part in components)
        assert_same(optimizer.represented(p).numpy(), exact)
    split = reference.layout.split
    for key, vectors in (("m", reference.state.m), ("v", reference.state.v)):
        for k, vector in enumerate(vectors):
            for name, expected in split(vector).items():
                stored = numbers(optimizer.state[parameters[name]], f"{key}_{k}" if k else key)
                assert_same(stored.float().numpy(), expected)


@pytest.mark.parametrize(
    ("name", "low"),
    [pair for pair in itertools.product(STRATEGIES, ["bfloat16", "float16"]) if pair != SPLIT_HALF],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.sampled(2)
def test_adamw_has_the_bits_of_the_simulated_optimizer(name, low, decay, assert_same):
    parameters = start(SHAPES, DTYPES["float32" if name == "fp32" else low])
    hyper = mcf.AdamW(0.9, 0.99, 1e-6, decay)
    reference = mcf.Optimizer(hyper, mcf.strategy(name, low), arrays(parameters), set(parameters))
    optimizer = AdamW(parameters.values(), 1e-2, (0.9, 0.99), 1e-6, decay, strategy=name, low=low)
    compare(optimizer, parameters, reference, assert_same)


@pytest.mark.parametrize("options", [{"rounding": "toward_zero"}, {"scalars": "rounded"}], ids=str)
def test_rounding_and_scalar_policy_are_handed_on(options, assert_same):
    parameters = start(SHAPES, torch.bfloat16)
    reference = mcf.Optimizer(
        mcf.AdamW(weight_decay=0.01), mcf.strategy("plain"), arrays(parameters), set(parameters), **options
    )
    optimizer = AdamW(parameters.values(), 1e-2, strategy="plain", **options)
    compare(optimizer, parameters, reference, assert_same)


@pytest.mark.parametrize("name", ["plain", "kahan", "collage-light", "fp32-master"])
def test_sgd_has_the_bits_of_the_simulated_optimizer(name, assert_same):
    parameters = start(SHAPES, torch.bfloat16)
    reference = mcf.Optimizer(mcf.SGD(0.8, 0.1), mcf.strategy(name), arrays(parameters), set(parameters))
    optimizer = SGD(parameters.values(), 1e-2, 0.8, 0.1, strategy=name)
    compare(optimizer, parameters, reference, assert_same)
    assert not any(key.startswith("v") for state in optimizer.state.values() for key in state)


def test_float8_state_and_three_components(assert_same):
    low = mcf.get_format("float8_e5m2")
    stored = type(mcf.STRATEGIES["plain"].parameter)
    mine = mcf.Strategy(
        "mine", parameter=stored(low, 3), m=stored(low, 2), v=stored(low, 2), gradient=stored(low),
        addition="grow",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    parameters = {"w": torch.nn.Parameter(torch.randn(50, generator=generator).to(torch.float8_e5m2))}
    hyper = mcf.AdamW(epsilon=2.0**-12, weight_decay=0.01)
    reference = mcf.Optimizer(hyper, mine, arrays(parameters), {"w"})
    optimizer = AdamW(parameters.values(), 1e-2, eps=2.0**-12, strategy=mine)
    compare(optimizer, parameters, reference, assert_same)
    assert np.isfinite(reference.state.parameter).all()
    assert mine.parameter.components == 3
    assert {"parameter_1", "parameter_2", "m_1"} <= optimizer.state[parameters["w"]].keys()


def test_tensors_longer_than_a_block(assert_same):
    shapes = {"small": (5,), "long": (BLOCK + 9,), "turned": (3, BLOCK // 2)}
    parameters = start(shapes, torch.bfloat16)
    reference = mcf.Optimizer(
        mcf.AdamW(weight_decay=0.01), mcf.strategy("collage-plus"), arrays(parameters), set(parameters)
    )
    compare(AdamW(parameters.values(), 1e-2), parameters, reference, assert_same, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("compiled", [True, None], ids=["numba", "calls"])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.sampled(16, each=False)
def test_loops_have_the_bits_of_operations(name, compiled, threads, one_thread, monkeypatch):
    """On tensors that lie as loops take them, and beside others that do not; numbers of all kinds."""
    if compiled:
        pytest.importorskip("numba")
    shapes = {"vector": (5,), "long": (9000,), "turned": (70, 80), "matrix": (90, 100), "strided": (4500,)}
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e30, 6e-8])
    dtype = DTYPES["float32" if name == "fp32" else "bfloat16"]
    both = [start(shapes, dtype) for _ in range(2)]
    made = [AdamW(given.values(), 1e-2, (0.9, 0.99), 1e-6, 0.1, strategy=name) for given in both]
    for step in range(4):
        for given, optimizer, how in zip(both, made, (compiled, False), strict=True):
            give_gradients(given, step)
            given["long"].grad[8 * step : 8 * step + 8] = special.to(dtype)
            monkeypatch.setattr(compiled_step, "how_compiled", lambda roles, how=how: how)
            torch.set_num_threads(threads if how is not False else 1)
            optimizer.step()
    assert_same_states(*made)


def test_gradients_of_another_dtype_are_rounded_once(assert_same):
    weight = torch.nn.Parameter(torch.ones(200, dtype=torch.bfloat16))
    weight.grad_dtype = None
    reference = mcf.Optimizer(mcf.AdamW(weight_decay=0.01), mcf.strategy("plain"), {"w": np.ones(200)}, {"w"})
    optimizer = AdamW([weight], 1e-2, strategy="plain")
    random = np.random.default_rng(0)
    for _ in range(5):
        gradient = random.standard_normal(200)
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        reference.step(reference.receive({"w": gradient}), 1e-2)
    assert_same_weights({"w": weight}, reference, assert_same)


def test_groups_have_their_own_hyperparameters(assert_same):
    parameters = start({"a": (30,), "b": (20,), "c": (10,)}, torch.bfloat16)
    groups = [{"params": [parameters["a"]]}, {"params": [parameters["b"]], "weight_decay": 0.0}]
    optimizer = AdamW(groups, lr=1e-2, weight_decay=0.1)
    optimizer.add_param_group({"params": parameters["c"], "lr": 1e-3, "betas": (0.8, 0.9), "eps": 1e-4})
    settings = {
        "a": (mcf.AdamW(weight_decay=0.1), 1e-2),
        "b": (mcf.AdamW(weight_decay=0.0), 1e-2),
        "c": (mcf.AdamW(0.8, 0.9, 1e-4, 0.1), 1e-3),
    }
    references = {
        name: mcf.Optimizer(hyper, mcf.strategy("collage-plus"), arrays({name: parameters[name]}), {name})
        for name, (hyper, _) in settings.items()
    }
    for step in range(STEPS):
        give_gradients(parameters, step)
        optimizer.step()
        for name, reference in references.items():
            gradient = arrays({name: parameters[name].grad})
            reference.step(reference.receive(gradient), settings[name][1])
    for name, reference in references.items():
        assert_same_weights({name: parameters[name]}, reference, assert_same)


def test_schedulers_change_the_rate(assert_same):
    parameters = start({"w": (40,)}, torch.bfloat16)
    optimizer = AdamW(parameters.values(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
    group = optimizer.param_groups[0]
    reference = mcf.Optimizer(
        mcf.AdamW(weight_decay=0.01), mcf.strategy("collage-plus"), arrays(parameters), {"w"}
    )
    rates = set()
    for step in range(STEPS - 1):
        give_gradients(parameters, step)
        reference.hyper = mcf.AdamW(*group["betas"], weight_decay=0.01)
        reference.step(reference.receive(arrays({"w": parameters["w"].grad})), float(group["lr"]))
        rates.add(float(group["lr"]))
        optimizer.step()
        scheduler.step()
    assert len(rates) > STEPS // 2
    assert_same_weights(parameters, reference, assert_same)


def test_a_missing_gradient_skips_the_parameter():
    first, second = (torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = AdamW([first, second], lr=0.1, weight_decay=0.5)
    first.grad = torch.ones(3, dtype=torch.bfloat16)
    optimizer.step()
    assert second.tolist() == [1.0] * 3
    assert second not in optimizer.state
    second.grad = first.grad.clone()
    optimizer.step()
    assert (optimizer.state[first]["step"], optimizer.state[second]["step"]) == (2, 1)
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.state[first]["step"] == 2


def test_the_closure_is_called_with_gradients_on():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == 3.0
    assert weight.max() < 1.0


def test_autograd_notices_the_step():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=0.1)
    loss = (weight * weight).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nan_and_infinity_stay():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    weight.grad = torch.tensor([float("nan"), float("inf"), 1.0], dtype=torch.bfloat16)
    AdamW([weight], lr=0.1, weight_decay=0.0).step()
    assert weight.isnan().tolist() == [True, True, False]


def test_represented_before_any_step():
    weight = torch.nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    for name in STRATEGIES[:-1]:
        assert AdamW([weight], strategy=name).represented(weight).tolist() == [1.5, -2.0]
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        AdamW([weight]).represented(torch.ones(2))


def leaf(**options):
    return torch.nn.Parameter(torch.zeros(2, **options), requires_grad=False)


@pytest.mark.parametrize(
    ("weight", "strategy", "message"),
    [
        (leaf(), "plain", r"stores parameters as torch.bfloat16, not torch.float32; convert .*\.to\("),
        (leaf(dtype=torch.bfloat16), "fp32", "stores parameters as torch.float32"),
        (leaf(dtype=torch.complex64), "plain", "not torch.complex64"),
        (leaf(dtype=torch.bfloat16, device="meta"), "plain", "has a shape, and no numbers"),
        (torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16).expand(3)), "plain", "share memory"),
    ],
)
def test_parameters_that_are_refused(weight, strategy, message):
    with pytest.raises(TypeError, match=message):
        AdamW([weight], strategy=strategy)
    good = torch.nn.Parameter(torch.zeros(2, dtype=torch.float32 if strategy == "fp32" else torch.bfloat16))
    optimizer = AdamW([good], strategy=strategy)
    with pytest.raises(TypeError, match=message):
        optimizer.add_param_group({"params": [weight]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr = -1.0 must not be negative"),
        ({"lr": float("inf")}, "lr = inf must be finite"),
        ({"lr": float("nan")}, "lr = nan must be finite"),
        ({"betas": (0.9, float("nan"))}, "beta2 = nan must be finite"),
        ({"eps": float("inf")}, "epsilon = inf must be finite"),
        ({"weight_decay": float("inf")}, "weight_decay = inf must be finite"),
        ({"betas": (1.0, 0.9)}, "beta1 = 1.0"),
        ({"eps": -1e-8}, "epsilon = -1e-08"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"strategy": "colage-plus"}, "did you mean 'collage-plus'"),
        ({"strategy": "exact"}, "exact numbers, which no tensor holds"),
        ({"low": "e6m9"}, "no torch dtype holds e6m9"),
        ({"rounding": "upward"}, "unknown rounding 'upward'"),
        ({"scalars": "float"}, "unknown scalar policy 'float'"),
    ],
    ids=str,
)
def test_settings_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AdamW([leaf(dtype=torch.bfloat16)], **options)


@pytest.mark.parametrize("lr", [float("inf"), float("nan"), -0.1])
def test_a_rate_that_a_scheduler_spoilt_changes_nothing(lr):
    first, second = (torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = AdamW([{"params": [first]}, {"params": [second]}])
    first.grad = second.grad = torch.ones(3, dtype=torch.bfloat16)
    optimizer.param_groups[1]["lr"] = lr
    with pytest.raises(ValueError, match="lr = "):
        optimizer.step()
    assert first.tolist() == second.tolist() == [1.0, 1.0, 1.0]
    assert not optimizer.state


def test_scalars_that_vanish_are_warned_of():
    weight = leaf(dtype=torch.float16)
    with pytest.warns(mcf.VanishingScalarWarning, match="epsilon = 1e-08 is zero in float16"):
        AdamW([weight], low="float16")
    optimizer = AdamW([weight], eps=1e-7, low="float16")
    with pytest.warns(mcf.VanishingScalarWarning, match="lr = 1e-08 is zero in float16"):
        optimizer.add_param_group({"params": [leaf(dtype=torch.float16)], "lr": 1e-8})
    AdamW([leaf(dtype=torch.bfloat16)])
    AdamW([leaf(dtype=torch.float16)], strategy="fp32-optim", low="float16")


# -- what torch's own AdamW does otherwise ---------------------------------------------------------------
def first_moments(dtype, beta1, steps, **how):
    """Return torch's m and ours after each step, ours made from torch's state before it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(20_000, dtype=dtype))
    theirs = torch.optim.AdamW([weight], lr=0.0, betas=(beta1, 0.999), weight_decay=0.0, **how)
    ar = mcf.arithmetic(str(dtype).removeprefix("torch."))
    single = mcf.arithmetic("float32")
    before, found = np.zeros(20_000, np.float32), []
    for _ in range(steps):
        weight.grad = torch.randn(20_000, generator=generator).to(dtype)
        theirs.step()
        g, m = weight.grad.float().numpy(), theirs.state[weight]["exp_avg"].float().numpy().copy()
        w = float(np.float32(1 - beta1))
        apart = single.sub(g, before)
        fused, separate = single.fma(apart, w, before), single.add(before, single.mul(apart, w))
        ours = ar.fma(g, 1 - beta1, ar.mul(before, beta1))
        found.append((m, ours, ar.round(fused), ar.round(separate)))
        before = m
    return found


@pytest.mark.parametrize(
    "how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"]
)
@pytest.mark.parametrize("beta1", [0.9, 0.95])
@pytest.mark.parametrize(
    ("dtype", "first", "later"), [(torch.float32, 0.20, 0.37), (torch.bfloat16, 0.0, 0.265)], ids=str
)
def test_torchs_first_moment_is_a_lerp_and_differs_as_documented(how, beta1, dtype, first, later):
    found = first_moments(dtype, beta1, 4, **how)
    # A processor without fused multiply-add rounds the product on its own.
    assert any(all((step[0] == step[i]).all() for step in found) for i in (2, 3))
    shares = [np.mean(m != ours) for m, ours, *_ in found]
    assert shares[0] == pytest.approx(first, abs=0.01)
    assert shares[1:] == pytest.approx([later] * 3, abs=0.025)


def test_a_refused_step_changes_nothing():
    dense, sparse = (torch.nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16)) for _ in range(2))
    dense.grad = torch.ones(3, 2, dtype=torch.bfloat16)
    sparse.grad = torch.ones(3, 2, dtype=torch.bfloat16).to_sparse()
    optimizer = AdamW([dense, sparse])
    with pytest.raises(TypeError, match="only dense ones are"):
        optimizer.step()
    assert dense.tolist() == [[1.0, 1.0]] * 3
    assert not optimizer.state
