"""Optimizers for torch beside those of arrays that begin alike: their parameters, states and steps."""

import copy
import inspect
from contextlib import nullcontext

import numpy as np
import torch

import mcfsim as mcf
from mcfsim.optim.declaration import optimizers
from tests.pytorch import runs
from tests.pytorch.runs import give

#: Rows with whole groups of 128 and without, none, one element, and such as lie otherwise in memory.
SHAPES = {
    "matrix": (7, 5), "rows": (3, 128), "scalar": (), "empty": (0, 3),
    "turned": (6, 4), "strided": (9,), "odd": (3, 65), "vector": (200,),
}  # fmt: skip
DECAYED = ("matrix", "rows", "scalar", "empty")
NUMBERS = {"beta1": 0.8, "beta2": 0.99, "epsilon": 2.0**-10, "momentum": 0.75, "weight_decay": 0.1}


def start(dtype):
    """Return parameters by name, of which two do not lie element by element."""
    generator = torch.Generator().manual_seed(0)
    found = {name: runs.hard(shape, dtype, generator) for name, shape in SHAPES.items()}
    found["turned"] = found["turned"].t().contiguous().t()
    found["strided"] = torch.stack([found["strided"]] * 2, dim=1)[:, 0]
    return {name: torch.nn.Parameter(x) for name, x in found.items()}


def both(optimizer, strategy, low="bfloat16", **options):
    """Return an optimizer of tensors, these by name, and the one of arrays that begins alike."""
    declared = optimizers()[optimizer]
    given = {name: NUMBERS[name] for name in inspect.signature(declared).parameters if name in NUMBERS}
    chosen = mcf.strategy(strategy, low)
    params = start(getattr(torch, chosen.parameter.format.name))
    decayed = [(name, params[name]) for name in DECAYED]
    rest = [(name, p) for name, p in params.items() if name not in DECAYED]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    ours = runs.EVERY[optimizer](groups, 1e-2, strategy=strategy, low=low, **given, **options)
    weights = {name: p.detach().float().numpy().copy() for name, p in params.items()}
    if chosen.parameter.grid:
        ours.start()
    return ours, params, mcf.Optimizer(declared(**given), chosen, weights, DECAYED, **options)


def compared(ours, params, theirs):
    """Yield what is stored, meant and seen of parameters, and what it should be."""
    split, parts = theirs.layout.split, theirs.parts
    with np.errstate(all="ignore"):
        meant = sum(x.astype(float) for x in reversed(theirs.represented()))
    weights, meant = theirs.weights(), split(meant)
    for name, p in params.items():
        found, expected = runs.array(p), weights[name]
        if theirs.strategy.name == "mcf-3":  # whose sum has no negative zero
            found, expected = found + 0.0, expected + 0.0
        yield name, found, expected
        yield f"{name} represented", runs.array(ours.represented(p)), meant[name]
        state, stores = ours.state[p], ours.steps_of(ours.param_groups[0]).stores
        slots = ours._slots(p, ours.group_of(p))
        for slot in ("m", "v") if state else ():
            names = getattr(stores.names, slot)
            for key, vector in zip(names, getattr(theirs.state, slot), strict=True):
                expected = vector[parts[slot].tensor(name)]
                yield f"{name} {key}", runs.array(stores.numbers(state, key, slots)), expected


def compare(ours, params, theirs, within=nullcontext, steps=3):
    """Compare both before the first step and after each; tensors are moved in a context."""
    runs.assert_all_same(compared(ours, params, theirs))
    for step in range(steps):
        give(params.values(), step)
        with within():
            ours.step()
        theirs.step(theirs.receive({name: p.grad.float().numpy() for name, p in params.items()}), 1e-2)
        found = ((f"step {step}: {what}", *pair) for what, *pair in compared(ours, params, theirs))
        runs.assert_all_same(found)


def assert_one_graph(net, x):
    """Assert that a model compiles into whole graphs, whose outputs and gradients are its own."""
    other = copy.deepcopy(net)
    torch.compiler.reset()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        expected, found = net(x), compiled(x)
        assert torch.equal(found, expected)
        expected.sum().backward()
        found.sum().backward()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
