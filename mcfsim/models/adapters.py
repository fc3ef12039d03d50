"""Low-rank adapters: what their configuration says, and how they start before there are weights."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mcfsim.checks import finite_number, whole_number
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import TensorKind, kind_of
from mcfsim.storage.files import Pathlike, read_text
from mcfsim.storage.sealed import parse
from mcfsim.storage.tensors import FileOfTensorsError

#: The file that PEFT writes next to an adapter's weights, and the most bytes that it may have.
CONFIG, _LONGEST = "adapter_config.json", 1 << 24
#: Matrices that get no adapters unless they are named: embeddings and heads.
_ENDS = re.compile(r"embed|(^|\.)(wte|wpe|positions|lm_head|head)(\.weight)?$|^output\.weight$")
#: What follows the name of the adapted module.
_FACTOR = re.compile(r"\.lora_.*$")
_PREFIX = "base_model.model."
Number = TypeVar("Number", int, float)


# -- the configuration ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AdapterConfig:
    """Ranks of adapters, and the scales of their products.

    Parameters
    ----------
    r : int
        The rank.
    alpha : float
        ``W + s B A`` has s = alpha / r.
    rank_stabilised : bool
        Whether s = alpha / sqrt(r) instead (Kalajdzievski, arXiv 2312.03732).
    ranks, alphas : mapping of str to number
        Others, by the end of a module's name, which is a regular expression.

    Raises
    ------
    TypeError, ValueError
        If a rank is no whole number above 0, an alpha no finite number, or an expression cannot be read.
    """

    r: int
    alpha: float
    rank_stabilised: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def __post_init__(self) -> None:
        for label, rank in (("r", self.r), *self.ranks.items()):
            whole_number(f"rank {label}", rank, least=1)
        for label, alpha in (("lora_alpha", self.alpha), *self.alphas.items()):
            finite_number(label, alpha)
        for pattern in (*self.ranks, *self.alphas):
            try:
                re.compile(_at_end(pattern))
            except re.error as problem:
                raise ValueError(f"{pattern!r} is no regular expression: {problem}") from None

    def rank(self, tensor: str) -> int:
        """Return the rank of the adapter that a tensor belongs to."""
        return _of(tensor, self.ranks, self.r)

    def scale(self, tensor: str) -> float:
        """Return the number by which the product of the factors is multiplied."""
        rank, alpha = self.rank(tensor), _of(tensor, self.alphas, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _of(tensor: str, others: Mapping[str, Number], usual: Number) -> Number:
    """Return the value for a tensor's module: that of the first expression that its name ends with."""
    module = _FACTOR.sub("", tensor.removeprefix(_PREFIX))
    found = (item for pattern, item in others.items() if re.match(_at_end(pattern), module))
    return next(found, usual)


def _at_end(pattern: str) -> str:
    """Return the expression of names that end with one of an expression."""
    return rf"(.*\.)?({pattern})$"


def config_beside(weights: Pathlike) -> Path:
    """Return the path of an adapter's configuration, by the file or folder of its weights."""
    weights = Path(weights)
    return (weights if weights.is_dir() else weights.parent) / CONFIG


def read_config(weights: Pathlike) -> AdapterConfig | None:
    """Return the configuration next to an adapter's weights; None if there is none.

    Parameters
    ----------
    weights : path
        The file of the weights, or its folder.

    Raises
    ------
    FileOfTensorsError
        If the file is damaged, is not of LoRA, or lacks a rank or alpha; a `ValueError`.
    """
    path = config_beside(weights)
    if not path.exists():
        return None
    try:
        data = parse(read_text(path, _LONGEST))
    except ValueError as problem:
        raise FileOfTensorsError(path, f"is no JSON, or damaged: {problem}") from problem
    if not isinstance(data, dict):
        raise FileOfTensorsError(path, "is no JSON object")
    if data.get("peft_type", "LORA") != "LORA":
        raise FileOfTensorsError(path, f"peft_type is {data['peft_type']!r}; an audit knows LORA alone")
    if missing := [label for label in ("r", "lora_alpha") if label not in data]:
        raise FileOfTensorsError(path, f"does not say {' and '.join(missing)}")
    others = [data.get(label) or {} for label in ("rank_pattern", "alpha_pattern")]
    if not all(isinstance(item, dict) for item in others):
        raise FileOfTensorsError(path, "rank_pattern and alpha_pattern must be objects")
    try:
        return AdapterConfig(data["r"], data["lora_alpha"], data.get("use_rslora") is True, *others)
    except (TypeError, ValueError) as problem:
        raise FileOfTensorsError(path, str(problem)) from problem


def describe(weights: Pathlike, samples: Iterable[TensorSample]) -> dict[str, Any] | None:
    """Return ranks and scales of a file's adapters, as JSON data; None if it has no adapters.

    Parameters
    ----------
    weights : path
        The file or folder.
    samples : iterable of TensorSample
        Its tensors.

    Returns
    -------
    dict or None
        ``ranks``: each with the number of factors that have it. ``scales``: the same of ``alpha / r``; None
        if there is no configuration.

    Raises
    ------
    FileOfTensorsError
        If the configuration cannot be used, or a factor has another rank than it says.
    """
    places = {TensorKind.ADAPTER_A: 0, TensorKind.ADAPTER_B: 1}
    factors = [(x.name, x.shape, kind_of(x.name, x.shape, x.values)) for x in samples]
    ranks = {name: shape[places[kind]] for name, shape, kind in factors if kind in places}
    if not ranks:
        return None
    config = read_config(weights)
    for name, rank in ranks.items():
        if config is not None and config.rank(name) != rank:
            raise FileOfTensorsError(
                weights, f"{name!r} is of rank {rank}, and {CONFIG} says {config.rank(name)}"
            )
    scales = None if config is None else _counts(map(config.scale, ranks))
    return {"ranks": _counts(ranks.values()), "scales": scales}


def _counts(numbers: Iterable[float]) -> dict[str, int]:
    found = [f"{number:g}" for number in numbers]
    return {text: found.count(text) for text in dict.fromkeys(found)}


# -- the start --------------------------------------------------------------------------------------------
def adapters_at_start(
    shapes: Mapping[str, Sequence[int]], rank: int, samples: int, targets: Collection[str] = ()
) -> list[TensorSample]:
    """Return samples of adapters as they start: A uniform within ``1 / sqrt(in)``, B zero.

    Parameters
    ----------
    shapes : mapping of str to sequence of int
        The tensors of the model that is adapted. Matrices are (out, in), as those of torch's Linear.
    rank : int
        The rank of all adapters.
    samples : int
        Elements of each sample: of A the quantiles of its distribution.
    targets : collection of str, optional
        Ends of names of modules, as PEFT's ``target_modules``. By default all matrices but embeddings and
        heads, which are known by their names.

    Returns
    -------
    list of TensorSample
        ``NAME.lora_A.weight`` of shape (rank, in) and ``NAME.lora_B.weight`` of shape (out, rank).

    Raises
    ------
    TypeError, ValueError
        If the rank is no whole number above 0 or exceeds a matrix's, or a target is missing.

    References
    ----------
    ``reset_lora_parameters`` of PEFT and torchtune's LoRALinear: ``kaiming_uniform_(A, a=sqrt(5))``, whose
    bound is ``sqrt(6 / ((1 + 5) in))``.
    """
    whole_number("rank", rank, least=1)
    modules = {name.removesuffix(".weight"): name for name, shape in shapes.items() if len(shape) == 2}
    chosen = [module for module, name in modules.items() if targets or not _ENDS.search(name)]
    if targets:
        ends = {target: [x for x in chosen if f".{x}".endswith(f".{target}")] for target in targets}
        if absent := [target for target, found in ends.items() if not found]:
            raise ValueError(f"no matrix's name ends in {absent[0]!r}")
        chosen = [module for module in chosen if any(module in found for found in ends.values())]
    if not chosen:
        raise ValueError("there is no matrix to adapt, embeddings and heads apart")
    spread = (2 * np.arange(samples) + 1) / samples - 1.0
    made = []
    for module in chosen:
        outputs, inputs = shapes[modules[module]]
        if rank > min(outputs, inputs):
            raise ValueError(f"rank = {rank} is beyond that of {module}, {outputs} x {inputs}")
        bound = 1.0 / math.sqrt(inputs)
        parts = (
            ("A", (rank, inputs), bound * spread, bound / math.sqrt(3.0)),
            ("B", (outputs, rank), np.zeros(samples), 0.0),
        )
        for factor, shape, values, rms in parts:
            name = f"{module}.lora_{factor}.weight"
            made.append(TensorSample(name, shape, "float32", values, rms, float(factor == "B")))
    return made
