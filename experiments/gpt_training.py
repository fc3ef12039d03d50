"""The training of a small GPT in PyTorch under one storage strategy, and what its steps lose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import mcfsim as mcf
from experiments.collage_options import LATE
from experiments.gpt import GPT, SIZES, text
from mcfsim.checks import whole_number
from mcfsim.models.forecast import stop_of
from mcfsim.torch import AdamW, Seen, watch
from mcfsim.training.problems.base import DataStream, generator

SCHEDULE = mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
#: The norm to which gradients are clipped, and the standard deviation of matrices at the start.
CLIP, DEVIATION = 1.0, 0.02
#: Batches of held-out text.
VALIDATION = 16
#: Sums and products of forward and backward pass, whose weights are bfloat16 in either case.
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: Below this EDQ a tensor counts as stopped.
STOPPED = 0.5


@dataclass(frozen=True)
class Settings:
    """All that a training is a function of, on one machine.

    Parameters
    ----------
    strategy : str
        A name of `mcfsim.STRATEGIES`.
    beta2 : float
    seed : int
        Of the start and of the batches.
    steps : int
    size : str
        A name of `SIZES`.
    precision : str
        A name of `PRECISIONS`.
    device : str
        Of PyTorch.
    every : int
        Measures are taken at the first step, at multiples of this, and at the last.

    Raises
    ------
    TypeError, ValueError
        If a number is none, or too small, or a size or precision unknown.
    """

    strategy: str
    beta2: float
    seed: int
    steps: int
    size: str = "116k"
    precision: str = "float32"
    device: str = "cpu"
    every: int = 20

    def __post_init__(self) -> None:
        for label, least in (("seed", 0), ("steps", 1), ("every", 1)):
            whole_number(label, getattr(self, label), least=least)
        for label, known in (("size", SIZES), ("precision", PRECISIONS)):
            if getattr(self, label) not in known:
                raise ValueError(f"unknown {label} {getattr(self, label)!r}; known: {', '.join(known)}")


def model_of(settings: Settings) -> GPT:
    """Return the model at its start: matrices normal, gains 1, biases 0, all rounded to bfloat16."""
    model = GPT(text(SIZES[settings.size].modules).vocabulary, SIZES[settings.size])
    random = generator(settings.seed, DataStream.PARAMETERS)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.from_numpy(random.standard_normal(p.shape, dtype=np.float32)) * DEVIATION)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(p)
    return model.to(settings.device, torch.bfloat16)


def loss_of(model: GPT, weights: Mapping[str, torch.Tensor], windows: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the mean cross entropy of windows, a sequence a row; the softmax in binary32."""
    device = next(iter(weights.values())).device
    rows = torch.from_numpy(windows.astype(np.int64)).to(device)
    scores = functional_call(model, dict(weights), (rows[:, :-1],)).float()
    return functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())


def set_gradients(model: GPT, windows: np.ndarray[Any, Any], precision: str) -> float:
    """Set the parameters' gradients: clipped as the backward pass gives them, then rounded to bfloat16."""
    dtype = PRECISIONS[precision]
    weights = {name: p.detach().to(dtype).requires_grad_() for name, p in model.named_parameters()}
    loss = loss_of(model, weights, windows)
    loss.backward()
    clip_grad_norm_(list(weights.values()), CLIP)
    for name, p in model.named_parameters():
        p.grad = weights[name].grad.to(p.dtype)
    return float(loss.detach())


@torch.no_grad()
def validation_loss(model: GPT, settings: Settings) -> float:
    """Return the mean loss of evenly spaced windows of held-out text."""
    size, corpus = SIZES[settings.size], text(SIZES[settings.size].modules).corpus
    windows = corpus.validation_windows(VALIDATION * size.batch, size.context + 1)
    weights = {name: p.to(PRECISIONS[settings.precision]) for name, p in model.named_parameters()}
    batches = np.split(windows, VALIDATION)
    return float(np.mean([float(loss_of(model, weights, batch)) for batch in batches]))


def optimizer_of(model: GPT, settings: Settings, rate: float) -> AdamW:
    """Return the optimizer, with a group for each tensor: weight decay on matrices alone."""
    groups = [{"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in model.parameters()]
    return AdamW(groups, rate, (0.9, settings.beta2), 1e-8, strategy=settings.strategy)


def watched_step(model: GPT, optimizer: AdamW) -> dict[str, Seen]:
    """Make a step, and return what was observed: for all tensors under "", for each under its name."""
    watched = watch(optimizer, 1)
    optimizer.step()
    watched.remove()
    names = [name for name, _ in model.named_parameters()]
    return {"" if seen.group is None else names[seen.group]: seen for seen in watched.seen}


def train(settings: Settings) -> dict[str, Any]:
    """Train a model, and return the results as JSON data.

    Returns
    -------
    dict
        ``validation_loss``; ``lost`` and ``normalized_edq``, means over the recorded steps, and of the last
        fifth of them with ``late_`` before; ``stops``, by tensor the step from which on its EDQ stays below
        `STOPPED`, of those where it does; ``batches`` and ``weights``, SHA-256 of all training batches and of
        the weights at the end.
    """
    size, corpus = SIZES[settings.size], text(SIZES[settings.size].modules).corpus
    model = model_of(settings)
    optimizer = optimizer_of(model, settings, SCHEDULE.rate(1, settings.steps))
    batches = hashlib.sha256()
    steps: list[int] = []
    found: list[dict[str, Seen]] = []
    for step in range(1, settings.steps + 1):
        windows = corpus.training_windows(size.batch, size.context + 1, step=step, seed=settings.seed)
        batches.update(windows.tobytes())
        set_gradients(model, windows, settings.precision)
        for group in optimizer.param_groups:
            group["lr"] = SCHEDULE.rate(step, settings.steps)
        if step in (1, settings.steps) or step % settings.every == 0:
            steps.append(step)
            found.append(watched_step(model, optimizer))
        else:
            optimizer.step()
    edq = {name: [row[name].edq for row in found] for name, _ in model.named_parameters()}
    result: dict[str, Any] = {"validation_loss": validation_loss(model, settings)}
    for measure, field in (("lost", "lost"), ("normalized_edq", "edq")):
        series = np.array([getattr(row[""], field) for row in found])
        late = series[-max(1, round(LATE * series.size)) :]
        result |= {measure: float(series.mean()), f"late_{measure}": float(late.mean())}
    stops = {name: stop_of(steps, series, STOPPED) for name, series in edq.items()}
    stopped = {name: step for name, step in stops.items() if step is not None}
    return {**result, "stops": stopped, "batches": batches.hexdigest(), "weights": digest(model)}


def digest(model: GPT) -> str:
    """Return the SHA-256 of the weights, in hexadecimal."""
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().cpu().contiguous().view(torch.int16).numpy().tobytes())
    return found.hexdigest()
