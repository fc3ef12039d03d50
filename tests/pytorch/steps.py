"""What the tests of steps on a device share: hard parameters, optimizers of them, comparisons."""

import numpy as np
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.random import RandomWords
from tests.shared.kinds import STORED, rotating

#: Of parameters: none, less and more elements than are read at once; of (6, 4) columns lie together.
SHAPES = ((7, 5), (11,), (), (0, 3), (33, 16), (6, 4), (1000,))


def no_triton(device):
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


def parameters(dtype, seed=0, shapes=SHAPES, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    made = [hard(shape, dtype, generator) for shape in shapes]
    made = [x.t().contiguous().t() if shape == (6, 4) else x for x, shape in zip(made, shapes, strict=True)]
    return [torch.nn.Parameter(x.to(device)) for x in made]


def give_gradients(given, count):
    generator = torch.Generator().manual_seed(100 + count)
    for place, p in enumerate(given):
        gradient = hard(p.shape, p.dtype, generator).to(p.device)
        p.grad = None if place % 4 == count % 4 and count < 3 else gradient


def codes(tensor, name="parameter"):
    """Return the bits of a tensor, all NaN alike if it holds numbers."""
    tensor = tensor.detach().cpu()
    if name == "remainder":
        tensor = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int8)
    bits = tensor.contiguous().reshape(-1)
    if bits.dtype.is_floating_point:
        bits = torch.where(bits.isnan(), torch.zeros_like(bits), bits)
        bits = bits.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize])
    return bits.numpy(), tensor.isnan().reshape(-1).numpy() if tensor.dtype.is_floating_point else 0


def assert_same_states(ours, theirs):
    for group, same in zip(ours.param_groups, theirs.param_groups, strict=True):
        for p, q in zip(group["params"], same["params"], strict=True):
            assert ours.state[p].keys() == theirs.state[q].keys()
            mine, other = {**ours.state[p], "parameter": p}, {**theirs.state[q], "parameter": q}
            for name, x in mine.items():
                y = other[name]
                if isinstance(x, torch.Tensor):
                    for found, expected in zip(codes(x, name), codes(y, name), strict=True):
                        np.testing.assert_array_equal(found, expected)
                else:
                    assert x == y


def strategies():
    """Return optimizers and strategies in rotation, some of them with other low formats."""
    lows = ("bfloat16", "float16", "float8_e5m2")
    found = [(optimizer, name, "bfloat16") for optimizer, name in rotating(STORED)]
    return found + [("adamw", name, low) for name in ("plain", "collage-plus", "stochastic") for low in lows]


def made(optimizer, strategy, low, rounding="nearest_even", device="cpu", shapes=SHAPES, **options):
    """Return an optimizer of parameters in two groups."""
    kind = getattr(mcfsim.torch, straight_optimizers()[optimizer].__name__)
    chosen = mcf.strategy(strategy, low)
    dtype = getattr(torch, chosen.parameter.format.name)
    all_of_them = parameters(dtype, shapes=shapes, device=device)
    options |= (
        {"random": RandomWords(2**40 + 1, stream=3)} if "stochastic" in rounding or chosen.draws else {}
    )
    half = len(shapes) // 2
    groups = [
        {"params": all_of_them[:half], "lr": 1e-3, "weight_decay": 0.1},
        {"params": all_of_them[half:], "lr": 3e-2, "weight_decay": 0.0},
    ]
    return kind(groups, strategy=strategy, low=low, rounding=rounding, **options), all_of_them
