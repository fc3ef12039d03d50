"""What tests of the optimizers for torch share: parameters, gradients, runs, and comparisons."""

import numpy as np
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.oracle import same
from mcfsim.scaled import ScaledFormat
from tests.pytorch.steps import codes, hard
from tests.shared.kinds import feeds

#: The optimizers for torch, by their names; one of another module is made when it is asked for.
KINDS = {name: getattr(mcfsim.torch, item.__name__) for name, item in straight_optimizers().items()}


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


def parameters(shapes=((5, 3), (7,), ()), dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give(given, step, skip=()):
    """Give gradients of a step, with numbers of all kinds at each second one, to all but some parameters."""
    generator = torch.Generator().manual_seed(100 + step)
    for place, p in enumerate(given):
        x = torch.randn(p.shape, generator=generator) * 10.0 ** -(step % 5)
        gradient = (hard(p.shape, p.dtype, generator) if step % 2 else x).to(p.dtype)
        p.grad = None if place in skip else gradient


def run(optimizer, steps):
    for step in steps:
        give(listed(optimizer), step)
        optimizer.step()


def listed(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


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


def states(optimizer, given=None):
    """Return bits of parameters and of their states, and counts, by their names and places."""
    found = {}
    for place, p in enumerate(listed(optimizer) if given is None else given):
        for name, x in {"parameter": p, **optimizer.state.get(p, {})}.items():
            tensor = isinstance(x, torch.Tensor)
            found[f"{name} of {place}"] = (
                (x.dtype, *codes(x.detach().clone(), name)) if tensor else (type(x), x, 0)
            )
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
