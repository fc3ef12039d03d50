"""Training as one process does it, and as several do, which have parts of a batch and of the model."""

# ruff: noqa: E402

import itertools
import sys
import warnings
from functools import partial
from pathlib import Path

import torch

HAS_COMPILER = "torch._dynamo" in sys.modules
import mcfsim as mcf
from mcfsim.torch import AdamW, OutsideWriteWarning, host_loop, step_in_backward, watch

mcf.arithmetic("bfloat16", backend="torch").add(torch.ones(2), 1.0)
#: Whether the package imports PyTorch's compiler, which takes two seconds.
IMPORTS_COMPILER = not HAS_COMPILER and "torch._dynamo" in sys.modules

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.shared.kinds import QUANTISED

STEPS, SAVED = 2, 1
PLACED = ("collage-plus", "stochastic", "split-master")


def model(strategy, seed=0):
    """Return a model with vectors of 3 and of 1, which two processes cannot share evenly.

    Where groups of 128 or 256 share a scale, each has whole groups.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = (5, 512, 1) if strategy in QUANTISED else (5, 16, 3, 1)
    layers = [torch.nn.Linear(*pair, bias=pair != (512, 1)) for pair in itertools.pairwise(sizes)]
    made = torch.nn.Sequential(*layers).to(dtype_of(strategy))
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return made


def dtype_of(strategy):
    return getattr(torch, mcf.strategy(strategy).parameter.format.name)


def optimizer_of(given, strategy):
    """Return an optimizer of two groups."""
    weights, biases = ([p for p in given.parameters() if p.ndim == n] for n in (2, 1))
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 3e-2}]
    return AdamW(groups, 1e-2, weight_decay=0.1, strategy=strategy)


def loss_of(given, step, rank, strategy):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * step + rank))
    return given(x.to(dtype_of(strategy))).square().mean()


def train(given, optimizer, steps, strategy, rank):
    for step in steps:
        optimizer.zero_grad()
        loss_of(given, step, rank, strategy).backward()
        optimizer.step()


def train_alone(given, optimizer, steps, strategy, world):
    """Train as one process, which has the parts of the batch one after the other, and averages gradients."""
    for step in steps:
        found = []
        for rank in range(world):
            optimizer.zero_grad()
            loss_of(given, step, rank, strategy).backward()
            found.append([p.grad for p in given.parameters()])
        for p, *parts in zip(given.parameters(), *found, strict=True):
            p.grad = sum(parts) / world
        optimizer.step()


def whole(x, name=""):
    x = x.detach().full_tensor() if isinstance(x, DTensor) else x.detach().clone()
    bits = name == "remainder" and x.dtype == torch.bfloat16  # which may be those of a NaN
    return x.view(torch.int16) if bits else x


def described(given, optimizer):
    """Return all numbers of a model and its optimizer, put together from all processes."""
    found = {}
    for name, p in given.named_parameters():
        name = name.removeprefix("module.")
        found[name] = whole(p)
        found[f"{name} represented"] = whole(optimizer.represented(p))
        found |= {f"{name} {key}": whole(x, key) for key, x in optimizer.state[p].items() if key != "step"}
    return found


def save(given, optimizer, path):
    weights, state = get_state_dict(given, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)


def load(given, optimizer, path):
    weights, state = get_state_dict(given, optimizer)
    kept = {"model": weights, "optimizer": state}
    dcp.load(kept, checkpoint_id=path)
    set_state_dict(given, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])


def hand_on(options, given, optimizer, other, another):
    """Let a model and its optimizer go on from the state of others, in the same processes."""
    weights, state = get_state_dict(given, optimizer, options=options)
    set_state_dict(other, another, model_state_dict=weights, optim_state_dict=state, options=options)


def hand_on_from_the_first(given, optimizer, other, another):
    """Let others go on from a state that the first process has whole, on the CPU, and hands to all."""
    kept = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(given, optimizer, options=kept)
    told = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, weights, options=told)
    set_optimizer_state_dict(other, another, state, options=told)


#: Other ways in which PyTorch hands a state on: put together in each process, under one name an entry, or
#: first in one process.
HANDED_ON = {
    "whole": partial(hand_on, StateDictOptions(full_state_dict=True)),
    "flat": partial(hand_on, StateDictOptions(flatten_optimizer_state_dict=True)),
    "from the first": hand_on_from_the_first,
}


def sharded(strategy, seed=0, *, offloaded=False):
    given = model(strategy, seed)
    policy = CPUOffloadPolicy(pin_memory=False) if offloaded else OffloadPolicy()
    for layer in given:
        fully_shard(layer, offload_policy=policy)
    return fully_shard(given, offload_policy=policy)


def tensors(dtype, step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(7, 5, generator=generator).to(dtype) for _ in range(4)]


def placed(strategy, mesh=None):
    """Move four tensors, of which processes have rows, columns, and all; gradients come as sums of parts.

    Without a mesh one process has all of them. What is seen of the last step is returned, too.
    """
    dtype = dtype_of(strategy)
    placements = [Shard(0), Shard(1), Replicate(), Shard(1)]
    given = tensors(dtype, 0)
    if mesh is not None:
        given = [distribute_tensor(x, mesh, [how]) for x, how in zip(given, placements, strict=True)]
    given = [torch.nn.Parameter(x) for x in given]
    optimizer = AdamW(given, 1e-2, strategy=strategy)
    watched = watch(optimizer, 2)
    for step in range(1, 3):
        for p, x in zip(given, tensors(dtype, step), strict=True):
            p.grad = x if mesh is None else DTensor.from_local(x / mesh.size(), mesh, [Partial()])
        optimizer.step()
    found = {str(place): whole(p) for place, p in enumerate(given)}
    return found, [tuple(x) for x in watched.seen]


#: Of parameters whose groups of 128 lie in rows, over rows, and in columns, and how they are spread.
GROUPED = (
    ((4, 256), Shard(0)),
    ((3, 256), Shard(0)),
    ((8, 96), Shard(0)),
    ((1, 64), Shard(0)),
    ((5, 256), Shard(1)),
    ((3, 100), Replicate()),
    ((295, 32), Shard(0)),
    ((640,), Replicate()),
)  # fmt: skip


def grouped(mesh=None):
    """Move parameters whose moments share scales; return them and their state, put together."""
    generator = torch.Generator().manual_seed(5)
    given = [torch.randn(shape, generator=generator).bfloat16() for shape, _ in GROUPED]
    gradients = [[torch.randn(x.shape, generator=generator).bfloat16() for x in given] for _ in range(2)]
    places = [how for _, how in GROUPED]
    if mesh is not None:
        given = [distribute_tensor(x, mesh, [how]) for x, how in zip(given, places, strict=True)]
        gradients = [
            [distribute_tensor(x, mesh, [how]) for x, how in zip(step, places, strict=True)]
            for step in gradients
        ]
    given = [torch.nn.Parameter(x) for x in given]
    optimizer = AdamW(given, 1e-2, strategy="fp8-moments")
    for step in gradients:
        for p, x in zip(given, step, strict=True):
            p.grad = x
        optimizer.step()
    found = {f"{place}": whole(p) for place, p in enumerate(given)}
    for place, p in enumerate(given):
        found |= {f"{place} {key}": whole(x) for key, x in optimizer.state[p].items() if key != "step"}
    return found


def written(rank):
    """Return what is told of steps, before and after others write; whether what was written is then meant."""
    given = sharded("fp32-master")
    optimizer, told = optimizer_of(given, "fp32-master"), []
    for change in (lambda: None, lambda: [p.mul_(2.0) for p in given.parameters()]):
        with torch.no_grad():
            change()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            train(given, optimizer, range(2), "fp32-master", rank)
        told.append(sum(issubclass(x.category, OutsideWriteWarning) for x in found))
    with torch.no_grad():
        for p in given.parameters():
            p.mul_(3.0)
    optimizer.resync()
    return told, [torch.equal(whole(optimizer.represented(p)), whole(p).double()) for p in given.parameters()]


def begun(given, strategy):
    return given, optimizer_of(given, strategy)


def in_backward(strategy, rank, folder):
    """Move parameters in the backward pass."""
    given, optimizer = begun(sharded(strategy), strategy)
    step_in_backward(optimizer)
    for step in range(STEPS):
        loss_of(given, step, rank, strategy).backward()
    return given, optimizer


def from_file(source, strategy, rank, folder):
    """Go on from what one process saved, or all did."""
    other = begun(sharded(strategy, seed=1), strategy)
    load(*other, Path(folder) / f"{strategy} of {source}")
    train(*other, range(SAVED, STEPS), strategy, rank)
    return other


def handed_on(hand, strategy, rank, folder):
    """Go on from a state that PyTorch hands on."""
    given, other = (begun(sharded(strategy, seed), strategy) for seed in (0, 1))
    train(*given, range(SAVED), strategy, rank)
    hand(*given, *other)
    train(*other, range(SAVED, STEPS), strategy, rank)
    return other


def from_the_start(make, strategy, rank, folder):
    other = begun(make(strategy), strategy)
    train(*other, range(STEPS), strategy, rank)
    return other


#: How a model is trained in several processes: parts of it in each, or copies.
WAYS = {
    **{f"from {source}": partial(from_file, source) for source in ("one", "many")},
    **{way: partial(handed_on, hand) for way, hand in HANDED_ON.items()},
    "offloaded": partial(from_the_start, partial(sharded, offloaded=True)),
    "replicated": partial(from_the_start, lambda strategy: DistributedDataParallel(model(strategy))),
    "in the backward pass": in_backward,
}


def runs(strategy, ways, rank, folder):
    """Yield how a model is trained in several processes, and what came of it."""
    whole = begun(sharded(strategy), strategy)
    train(*whole, range(SAVED), strategy, rank)
    save(*whole, Path(folder) / f"{strategy} of many")
    train(*whole, range(SAVED, STEPS), strategy, rank)
    yield "sharded", described(*whole)
    for way in ways:
        yield way, described(*WAYS[way](strategy, rank, folder))


def work(rank, world, folder, asked):
    """Do what one of several processes does, and write what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    found = {(name, way): x for name, ways in asked.items() for way, x in runs(name, ways, rank, folder)}
    mesh = init_device_mesh("cpu", (world,))
    for strategy in PLACED:
        found[strategy, "placed"] = placed(strategy, mesh)
    found["grouped"], found["written"] = grouped(mesh), written(rank)
    for shape in ((250,), (3, 320)):
        given = torch.nn.Parameter(distribute_tensor(torch.zeros(shape).bfloat16(), mesh, [Shard(0)]))
        try:
            AdamW([given], strategy="fp8-moments")
        except ValueError as problem:
            found["cut", shape] = str(problem)
    torch.save(found, Path(folder) / f"found by {rank}")
    dist.destroy_process_group()


def alone(strategy, folder, world):
    """Do what all processes do as one."""
    given = begun(model(strategy), strategy)
    train_alone(*given, range(SAVED), strategy, world)
    save(*given, Path(folder) / f"{strategy} of one")
    train_alone(*given, range(SAVED, STEPS), strategy, world)
    return described(*given)


def alone_from_many(strategy, folder, world):
    given = begun(model(strategy, seed=1), strategy)
    load(*given, Path(folder) / f"{strategy} of many")
    train_alone(*given, range(SAVED, STEPS), strategy, world)
    return described(*given)


def main(world, folder, *asked):
    """Write what one process comes to, and what several do, which are copies of it.

    Asked are strategies, each with its ways.
    """
    world = int(world)
    asked = {name: ways.split(",") for name, _, ways in (x.partition(":") for x in asked)}
    torch.set_num_threads(1)
    host_loop.AHEAD = 0  # so that nothing is compiled, in each of them
    expected = {strategy: alone(strategy, folder, world) for strategy in asked}
    expected |= {(strategy, "placed"): placed(strategy) for strategy in PLACED} | {"grouped": grouped()}
    torch.multiprocessing.start_processes(work, (world, folder, asked), world, start_method="fork")
    expected |= {(name, "from many"): alone_from_many(name, folder, world) for name in asked}
    torch.save(expected | {"imports compiler": IMPORTS_COMPILER}, Path(folder) / "expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
