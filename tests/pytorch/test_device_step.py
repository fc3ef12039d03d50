"""Steps of the optimizers on a GPU's tensors: the bits of the steps on the CPU's, in one launch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
import mcfsim.torch  # noqa: E402
from mcfsim.optim.declaration import optimizers  # noqa: E402
from mcfsim.random import RandomWords  # noqa: E402
from mcfsim.torch import device_step, step  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning"),
]
#: Of parameters: none, less and more elements than are read at once, and laid out otherwise.
SHAPES = ((7, 5), (11,), (), (0, 3), (33, 16), (6, 4), (1000,))


@pytest.fixture(params=["kernel", "operations"])
def on_device(request, monkeypatch):
    """Let tensors of the CPU be moved as a GPU's: by kernels, interpreted, or by PyTorch's operations."""
    if request.param == "kernel":
        request.getfixturevalue("own_cache")
        request.getfixturevalue("interpreted")
    else:
        monkeypatch.setattr(device_step, "check_triton", _no_triton)
    return lambda on: monkeypatch.setattr(step, "_is_host", lambda device: not on)


def _no_triton():
    raise ImportError("there is no Triton")


def hard(shape, dtype, generator):
    """Return numbers of all sizes, and the special ones of a dtype."""
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x * 2.0 ** torch.randint(-30, 30, shape, generator=generator)
    near = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = torch.where(torch.rand(shape, generator=generator) < 0.3, x, near)
    limits = torch.finfo(dtype)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), limits.max, limits.tiny, limits.tiny / 4]
    chosen = torch.tensor(special, dtype=torch.float64)[torch.randint(0, 8, shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, x).to(dtype)


def parameters(dtype, seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    made = [hard(shape, dtype, generator) for shape in shapes]
    made[5:6] = [x.t().contiguous().t() for x in made[5:6]]  # its columns lie together
    return [torch.nn.Parameter(x) for x in made]


def give_gradients(given, count, dtype=None):
    generator = torch.Generator().manual_seed(100 + count)
    for place, p in enumerate(given):
        gradient = hard(p.shape, dtype or p.dtype, generator)
        p.grad = None if place % 4 == count % 4 and count < 3 else gradient


def codes(tensor):
    """Return the bits of a tensor, all NaN alike."""
    bits = tensor.detach().contiguous().reshape(-1)
    if bits.dtype.is_floating_point:
        bits = torch.where(bits.isnan(), torch.zeros_like(bits), bits)
        bits = bits.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize])
    return bits.numpy(), tensor.detach().isnan().reshape(-1).numpy() if tensor.dtype.is_floating_point else 0


def assert_same_states(ours, theirs):
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for p, q in zip(mine["params"], other["params"], strict=True):
            assert ours.state[p].keys() == theirs.state[q].keys()
            pairs = [(p, q), *((ours.state[p][name], theirs.state[q][name]) for name in ours.state[p])]
            for x, y in pairs:
                if isinstance(x, torch.Tensor):
                    for found, expected in zip(codes(x), codes(y), strict=True):
                        np.testing.assert_array_equal(found, expected)
                else:
                    assert x == y


def strategies():
    lows = ("bfloat16", "float16", "float8_e5m2")
    for name in mcf.STRATEGIES:
        for low in lows if name in ("plain", "collage-plus", "stochastic") else lows[:1]:
            if name != "exact":
                yield name, low


def made(optimizer, strategy, low, rounding="nearest_even", seed=0):
    """Return an optimizer of parameters in two groups."""
    kind = getattr(mcfsim.torch, optimizers()[optimizer].__name__)
    chosen = mcf.strategy(strategy, low)
    dtype = getattr(torch, chosen.parameter.format.name)
    all_of_them = parameters(dtype, seed)
    words = {"random": RandomWords(2**40 + 1, stream=3)} if "stochastic" in rounding or chosen.draws else {}
    groups = [
        {"params": all_of_them[:3], "lr": 1e-3, "weight_decay": 0.1},
        {"params": all_of_them[3:], "lr": 3e-2, "weight_decay": 0.0},
    ]
    return kind(groups, strategy=strategy, low=low, rounding=rounding, **words), all_of_them


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "stochastic"])
@pytest.mark.parametrize(("strategy", "low"), list(strategies()))
@pytest.mark.parametrize("optimizer", list(optimizers()))
@pytest.mark.sampled(40)
def test_steps_have_the_bits_of_the_cpu(optimizer, strategy, low, rounding, on_device):
    if rounding != "nearest_even" and "collage" in strategy:
        return
    ours, moved = made(optimizer, strategy, low, rounding)
    theirs, others = made(optimizer, strategy, low, rounding)
    for count in range(3):
        for one, given, there in ((ours, moved, True), (theirs, others, False)):
            give_gradients(given, count)
            on_device(there)
            one.step()
    assert_same_states(ours, theirs)
