"""What tests of the optimizers for torch share: parameters, gradients, runs, and comparisons."""

from functools import reduce
from itertools import pairwise
from operator import getitem

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.declaration import optimizers, straight_optimizers
from mcfsim.oracle import same
from mcfsim.random import RandomWords
from mcfsim.scaled import ScaledFormat
from tests.shared.kinds import STORED, feeds, rotating

#: The optimizers for torch, by their names; one of another module is made when it is asked for.
EVERY = {name: getattr(mcfsim.torch, item.__name__) for name, item in optimizers().items()}
#: Those whose steps are straight lines.
KINDS = {name: EVERY[name] for name in straight_optimizers()}
#: Of parameters: none, less and more elements than are read at once; of (6, 4) columns lie together.
SHAPES = ((7, 5), (11,), (), (0, 3), (33, 16), (6, 4), (1000,))


def no_triton(device):
    raise ImportError("there is no Triton")


def first(*cases):
    """Return cases of a test, of which all but the first are left to the exhaustive ones."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in cases[1:])]


def in_turn(strategies):
    """Return each strategy with one optimizer: in turn, of those that can do what it asks for."""
    fit = {strategy: [name for name in KINDS if feeds(name, strategy)] for strategy in strategies}
    return [(names[place % len(names)], strategy) for place, (strategy, names) in enumerate(fit.items())]


def dtype_of(strategy, low="bfloat16"):
    return getattr(torch, mcf.strategy(strategy, low).parameter.format.name)


def scaled(element, group=128):
    """Return a format whose groups share the scale that takes their largest number to the format's."""
    options = {"element": element, "block": group, "scale": "float32", "rule": "absmax"}
    return ScaledFormat(f"{element} in groups of {group}", **options)


# -- parameters and gradients --------------------------------------------------------------------------------
def hard(shape, dtype, generator):
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x * 2.0 ** torch.randint(-30, 30, shape, generator=generator)
    near = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = torch.where(torch.rand(shape, generator=generator) < 0.3, x, near)
    limits = torch.finfo(dtype)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), limits.max, limits.tiny, limits.tiny / 4]
    chosen = torch.tensor(special, dtype=torch.float64)[torch.randint(0, 8, shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, x).to(dtype)


def parameters(shapes=((5, 3), (7,), ()), dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def hard_parameters(dtype, seed=0, shapes=SHAPES, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    made = [hard(shape, dtype, generator) for shape in shapes]
    made = [x.t().contiguous().t() if shape == (6, 4) else x for x, shape in zip(made, shapes, strict=True)]
    return [torch.nn.Parameter(x.to(device)) for x in made]


def give(given, step, skip=()):
    """Give gradients of a step, with numbers of all kinds at each second one, to all but some parameters."""
    generator = torch.Generator().manual_seed(100 + step)
    for place, p in enumerate(given):
        x = torch.randn(p.shape, generator=generator) * 10.0 ** -(step % 5)
        gradient = (hard(p.shape, p.dtype, generator) if step % 2 else x).to(p.dtype)
        p.grad = None if place in skip else gradient.to(p.device)


def give_hard(given, count):
    """Give gradients with numbers of all kinds; at the first three steps not to all parameters."""
    give(given, 2 * count + 1, range(count % 4, len(given), 4) if count < 3 else ())


def run(optimizer, steps):
    for step in steps:
        give(listed(optimizer), step)
        optimizer.step()


def step_both(ours, theirs, counts, move=lambda there: None):
    """Make steps of two optimizers, each after it is said whose tensors the next ones are taken for."""
    for count in counts:
        for optimizer, there in ((ours, True), (theirs, False)):
            give_hard(listed(optimizer), count)
            move(there)
            optimizer.step()


# -- models --------------------------------------------------------------------------------------------------
def net(*sizes, dtype=torch.float32, seed=0):
    """Return linear layers with a tangent after each but the last."""
    torch.manual_seed(seed)
    layers = [layer for pair in pairwise(sizes) for layer in (torch.nn.Linear(*pair), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1]).to(dtype)


def backward(model, step):
    """Make gradients of a step, of numbers of its own."""
    weight = next(model.parameters())
    x = torch.randn(8, weight.shape[1], generator=torch.Generator().manual_seed(step))
    model(x.to(weight.dtype)).float().square().mean().backward()


# -- optimizers ----------------------------------------------------------------------------------------------
def listed(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def of(*path, **entries):
    """Return a function that changes entries of what a path leads to in a state."""
    return lambda state: reduce(getitem, path, state).update(entries)


def put(optimizer, weights):
    with torch.no_grad():
        for p, x in zip(listed(optimizer), weights, strict=True):
            p.copy_(x)


def strategies():
    """Return optimizers and strategies in rotation, some of them with other low formats."""
    lows = ("bfloat16", "float16", "float8_e5m2")
    found = [(optimizer, name, "bfloat16") for optimizer, name in rotating(STORED)]
    return found + [("adamw", name, low) for name in ("plain", "collage-plus", "stochastic") for low in lows]


def made(optimizer, strategy, low="bfloat16", device="cpu", shapes=SHAPES, **options):
    given = hard_parameters(dtype_of(strategy, low), shapes=shapes, device=device)
    if "stochastic" in options.get("rounding", "") or mcf.strategy(strategy, low).draws:
        options["random"] = RandomWords(2**40 + 1, stream=3)
    half = len(shapes) // 2
    groups = [
        {"params": given[:half], "lr": 1e-3, "weight_decay": 0.1},
        {"params": given[half:], "lr": 3e-2, "weight_decay": 0.0},
    ]
    return KINDS[optimizer](groups, strategy=strategy, low=low, **options)


# -- comparisons ---------------------------------------------------------------------------------------------
def array(tensor):
    return tensor.detach().double().numpy()


def assert_all_same(triples):
    """Fail by the first of some arrays that is not as it should be: NaNs alike, and zeros of equal sign."""
    for what, found, expected in triples:
        found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
        assert found.shape == expected.shape, what
        wrong = np.flatnonzero(~same(found, expected))
        if wrong.size:
            one, other = found.flat[wrong[0]], expected.flat[wrong[0]]
            raise AssertionError(
                f"{what}: {wrong.size} of {found.size} differ; number {wrong[0]} is {one!r}, not {other!r}"
            )


def codes(tensor, name="parameter"):
    """Return the bits of a tensor, all NaN alike if it holds numbers, and where it has NaN."""
    tensor = tensor.detach().cpu()
    if name == "remainder":
        tensor = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.int8)
    bits = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    if bits.dtype.is_floating_point:
        bits = torch.where(bits.isnan(), torch.zeros_like(bits), bits)
        bits = bits.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize])
    return bits.numpy(), tensor.isnan().reshape(-1).numpy() if tensor.dtype.is_floating_point else 0


def states(optimizer, given=None):
    """Return bits of parameters and of their states, and counts, by their names and places."""
    found = {}
    for place, p in enumerate(listed(optimizer) if given is None else given):
        for name, x in {"parameter": p, **optimizer.state.get(p, {})}.items():
            tensor = isinstance(x, torch.Tensor)
            found[f"{name} of {place}"] = (x.dtype, *codes(x, name)) if tensor else (type(x), x, 0)
    return found


def frozen(optimizer):
    """Return all that an optimizer has, to be compared with what it has later."""
    return {**states(optimizer), "groups": (str, str(optimizer.param_groups), 0)}


def assert_same_states(ours, theirs):
    """Compare two optimizers, or what `states` has of them, bit for bit, NaNs alike."""
    mine, others = (x if isinstance(x, dict) else states(x) for x in (ours, theirs))
    assert mine.keys() == others.keys()
    for name, (kind, bits, nan) in mine.items():
        other, expected, nan_there = others[name]
        assert kind == other, (name, kind, other)
        wrong = np.flatnonzero((bits != expected) | (nan != nan_there))
        assert not wrong.size, f"{name}: {wrong.size} of {np.size(bits)} differ, number {wrong[0]} first"


# -- PyTorch itself ------------------------------------------------------------------------------------------
FUSED_IN_HARDWARE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
#: Of tests against PyTorch's own steps, some of whose operations it fuses where the processor does.
fused = pytest.mark.skipif(not FUSED_IN_HARDWARE, reason="PyTorch fuses by AVX2 and AVX-512 alone")


class RightRoots(TorchFunctionMode):
    """Where it is entered, roots of float32 are those of binary64, rounded: correctly rounded ones.

    On x86 PyTorch has them from Intel MKL, which rounds some wrongly.

    The root of a float32 number lies 2^-51 of itself or more from the middle between two of them; that of
    binary64 is wrong by a unit in the last place at most, 2^-52.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.sqrt, torch.Tensor.sqrt) and args[0].dtype == torch.float32:
            return args[0].double().sqrt().float()
        return function(*args, **(kwargs or {}))
