"""Training as one process does it, and as several do, which have parts of a batch and of the model."""

# ruff: noqa: E402

import itertools
import json
import sys
import warnings
from functools import partial
from pathlib import Path

import torch

HAS_COMPILER = "torch._dynamo" in sys.modules
import mcfsim as mcf
from mcfsim.torch import (
    AdamW,
    OutsideWriteWarning,
    adopt,
    changes,
    release,
    step_in_backward,
    straight_step,
    watch,
    whole_step,
)

mcf.arithmetic("bfloat16", backend="torch").add(torch.ones(2), 1.0)
#: Whether the package imports PyTorch's compiler, which takes two seconds.
IMPORTS_COMPILER = not HAS_COMPILER and "torch._dynamo" in sys.modules

import torch._dynamo  # once for all processes, which are copies of this one
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.pytorch import reduced
from tests.pytorch.runs import EVERY, dtype_of
from tests.shared.kinds import QUANTISED

STEPS, SAVED = 2, 1
#: How many processes have a part of a batch: as many as leave no doubt how gradients are summed and divided.
WITH_BATCH = 2
#: Rows that two and three processes share by multiples of 256.
WIDE = 1536


def kind_of(name):
    """Return the optimizer of a name, as ``muon plain``, and its strategy; alone that is of AdamW."""
    *kind, strategy = name.split()
    return EVERY[kind[0] if kind else "adamw"], strategy


def model(strategy, seed=0):
    """Return a model with vectors of 3 and of 1, which two processes cannot share evenly.

    Where groups of 128 or 256 share a scale, each of two or three processes has whole groups, unless a step
    is of whole parameters.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = (5, WIDE, 1) if strategy in QUANTISED else (5, 3, 1)
    layers = [torch.nn.Linear(*pair, bias=pair != (WIDE, 1)) for pair in itertools.pairwise(sizes)]
    made = torch.nn.Sequential(*layers).to(dtype_of(kind_of(strategy)[1]))
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return made


def loss_of(given, step, rank, strategy):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * step + rank))
    loss = given(x.to(dtype_of(kind_of(strategy)[1]))).square().mean()
    return loss if rank < WITH_BATCH else 0 * loss


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


def described(named, optimizer):
    """Return all numbers of parameters and their states, put together from all processes."""
    found = {}
    for name, p in named:
        name = name.removeprefix("module.")
        found |= {name: whole(p), f"{name} represented": whole(optimizer.represented(p))}
        found |= {f"{name} {key}": whole(x, key) for key, x in optimizer.state[p].items() if key != "step"}
    return found


def of_model(given, optimizer):
    return described(given.named_parameters(), optimizer)


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
    state_dict.set_model_state_dict(other, weights, options=told)
    state_dict.set_optimizer_state_dict(other, another, state, options=told)


def sharded(strategy, seed=0, *, offloaded=False):
    given = model(strategy, seed)
    policy = CPUOffloadPolicy(pin_memory=False) if offloaded else OffloadPolicy()
    for layer in given:
        fully_shard(layer, offload_policy=policy)
    return fully_shard(given, offload_policy=policy)


def spread(given, mesh, places):
    return [distribute_tensor(x, mesh, [how]) for x, how in zip(given, places, strict=True)]


def moved(strategy, shapes, places, mesh, summed):
    """Move tensors that processes have parts of, or without a mesh one has whole.

    Gradients come as sums of parts, or lie as the tensors do. What is seen of the last step is returned, too,
    and which elements have changed, with those that returned and without.
    """
    kind, strategy = kind_of(strategy)
    generator, dtype = torch.Generator().manual_seed(5), dtype_of(strategy)
    draws = [[torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for _ in range(3)]
    given, *gradients = draws
    if mesh is not None:
        given = spread(given, mesh, places)
        if summed:
            parts = [[x / mesh.size() for x in step] for step in gradients]
            gradients = [[DTensor.from_local(x, mesh, [Partial()]) for x in step] for step in parts]
        else:
            gradients = [spread(step, mesh, places) for step in gradients]
    given = [torch.nn.Parameter(x) for x in given]
    optimizer = kind(given, 1e-2, strategy=strategy)
    watched, recorder = watch(optimizer, 2), changes(optimizer, before=True)
    for step in gradients:
        for p, x in zip(given, step, strict=True):
            p.grad = x
        optimizer.step()
    named = ((str(place), p) for place, p in enumerate(given))
    changed = [[recorder.indices(p, returned=x) for x in (True, False)] for p in given]
    return described(named, optimizer), [*map(tuple, watched.seen)], changed


def all_moved(strategies, mesh=None):
    """Return what comes of rows, columns and copies, by strategies; or of groups of 128 that share scales.

    These lie in rows, over rows, and in columns.
    """
    shapes = ((4, 256), (3, 256), (8, 96), (1, 64), (295, 32), (5, 256), (3, 100), (640,))
    places = [*[Shard(0)] * 5, Shard(1), Replicate(), Replicate()]
    grouped = shapes, places, mesh, False
    single = [(7, 5)] * 4, [Shard(0), Shard(1), Replicate(), Shard(1)], mesh, True
    return {name: moved(name, *(grouped if name == "fp8-moments" else single)) for name in strategies}


def written(rank):
    """Return what is told of steps, before and after others write; whether what was written is then meant."""
    (given, optimizer), told = begun(sharded("fp32-master"), "fp32-master"), []
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


def adopted(mesh):
    """Return why steps of whole parameters are not taken over where these are cut, nor given back."""
    told = []
    for name, change in (("muon plain", lambda x: adopt(x, "plain")), ("dqt-int8", release)):
        kind, strategy = kind_of(name)
        whole = torch.zeros(4, 2).to(dtype_of(strategy))
        optimizer = kind([torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(1)]))], strategy=strategy)
        try:
            change(optimizer)
        except ValueError as problem:
            told.append(str(problem))
    return told


def begun(given, strategy):
    weights, biases = ([p for p in given.parameters() if p.ndim == n] for n in (2, 1))
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 3e-2}]
    kind, strategy = kind_of(strategy)
    optimizer = kind(groups, 1e-2, weight_decay=0.1, strategy=strategy)
    if mcf.strategy(strategy).parameter.grid:
        optimizer.start()
    return given, optimizer


def in_backward(strategy, rank, folder):
    given, optimizer = begun(sharded(strategy), strategy)
    step_in_backward(optimizer)
    for step in range(STEPS):
        loss_of(given, step, rank, strategy).backward()
    return given, optimizer


def from_file(source, strategy, rank, folder):
    other = begun(sharded(strategy, seed=1), strategy)
    load(*other, Path(folder) / f"{strategy} of {source}")
    train(*other, range(SAVED, STEPS), strategy, rank)
    return other


def handed_on(hand, strategy, rank, folder):
    given, other = (begun(sharded(strategy, seed), strategy) for seed in (0, 1))
    train(*given, range(SAVED), strategy, rank)
    hand(*given, *other)
    train(*other, range(SAVED, STEPS), strategy, rank)
    return other


def from_the_start(make, strategy, rank, folder):
    other = begun(make(strategy), strategy)
    train(*other, range(STEPS), strategy, rank)
    return other


def replicated(strategy):
    """Return a model of which each process has a copy; gradients are added first, and then divided."""
    made = DistributedDataParallel(model(strategy))

    def averaged(_, bucket):
        added = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return added.then(lambda found: found.value()[0].div_(dist.get_world_size()))

    made.register_comm_hook(None, averaged)
    return made


#: How a model is trained in several processes: parts of it in each, or copies. A state that is handed on is
#: put together in each process, has one name an entry, or lies first in one process.
WAYS = {
    **{f"from {source}": partial(from_file, source) for source in ("one", "many")},
    "whole": partial(handed_on, partial(hand_on, StateDictOptions(full_state_dict=True))),
    "flat": partial(handed_on, partial(hand_on, StateDictOptions(flatten_optimizer_state_dict=True))),
    "from the first": partial(handed_on, hand_on_from_the_first),
    "offloaded": partial(from_the_start, partial(sharded, offloaded=True)),
    "replicated": partial(from_the_start, replicated),
    "in the backward pass": in_backward,
}


def runs(strategy, ways, rank, folder):
    whole = begun(sharded(strategy), strategy)
    train(*whole, range(SAVED), strategy, rank)
    save(*whole, Path(folder) / f"{strategy} of many")
    train(*whole, range(SAVED, STEPS), strategy, rank)
    yield "sharded", of_model(*whole)
    for way in ways:
        yield way, of_model(*WAYS[way](strategy, rank, folder))


def work(rank, world, folder, asked, strategies, ready):
    """Do what one of several processes does, and write what came of it."""
    torch.set_num_threads(1)
    ready.wait()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    found = {(name, way): x for name, ways in asked.items() for way, x in runs(name, ways, rank, folder)}
    mesh = init_device_mesh("cpu", (world,))
    found["written"] = written(rank)
    found["moved"] = all_moved(strategies, mesh)
    for shape in ((250,), (3, 320)) if world == 2 else ():
        given = torch.nn.Parameter(distribute_tensor(torch.zeros(shape).bfloat16(), mesh, [Shard(0)]))
        try:
            AdamW([given], strategy="fp8-moments")
        except ValueError as problem:
            found["cut", shape] = str(problem)
    found["adopted"] = adopted(mesh)
    torch.save(found, Path(folder) / f"found by {rank}")
    dist.destroy_process_group()


def alone(strategy, folder, world, source=None):
    """Do what all processes do as one, or go on from what these have saved."""
    given = begun(model(strategy, seed=0 if source is None else 1), strategy)
    if source is None:
        train_alone(*given, range(SAVED), strategy, world)
        save(*given, Path(folder) / f"{strategy} of one")
    else:
        load(*given, Path(folder) / f"{strategy} of {source}")
    train_alone(*given, range(SAVED, STEPS), strategy, world)
    return of_model(*given)


def main(world, folder, asked):
    """Write what one process comes to, and what several do, which are copies of it.

    Asked are strategies, each with its ways; strategies of tensors that are moved; and sizes of rings.
    """
    global WITH_BATCH
    world = int(world)
    WITH_BATCH = 2 if world == 2 else 1
    asked, strategies, rings = json.loads(asked)
    torch.set_num_threads(1)
    straight_step.AHEAD = whole_step.AHEAD = 0  # so that nothing is compiled, in each of them
    for ranks in rings:
        torch.multiprocessing.start_processes(reduced.work, (folder, ranks), ranks, start_method="fork")
    ready = torch.multiprocessing.get_context("fork").Event()
    # Copies of a process that has computed share locks that threads hold: now and then one of them crashed.
    copies = torch.multiprocessing.start_processes(
        work, (world, folder, asked, strategies, ready), world, join=False, daemon=True, start_method="fork"
    )
    expected = {strategy: alone(strategy, folder, world) for strategy in asked}
    expected["moved"] = all_moved(strategies)
    ready.set()
    while not copies.join():
        pass
    expected |= {(name, "from many"): alone(name, folder, world, "many") for name in asked}
    torch.save(expected | {"imports compiler": IMPORTS_COMPILER}, Path(folder) / "expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
