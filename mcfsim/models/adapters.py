"""Low-rank adapters: their configuration, how they start, and what is lost where they are merged."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import finite_number, real_array, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import TensorKind, kind_of
from mcfsim.products import Accumulator, matmul
from mcfsim.storage.files import Pathlike, read_text
from mcfsim.storage.sealed import parse
from mcfsim.storage.tensors import FileOfTensorsError
from mcfsim.training import metrics

#: The file that PEFT writes next to an adapter's weights, and the most bytes that it may have.
CONFIG, _LONGEST = "adapter_config.json", 1 << 24
#: Matrices that get no adapters unless they are named: embeddings and heads.
_ENDS = re.compile(r"embed|(^|\.)(wte|wpe|positions|lm_head|head)(\.weight)?$|^output\.weight$")
#: What follows the name of the adapted module.
_FACTOR = re.compile(r"\.lora_.*$")
_PREFIX = "base_model.model."
Array = NDArray[Any]
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
        Exceptions: a number for each regular expression that a module's name may end with.

    Raises
    ------
    TypeError, ValueError
        If a rank is not a whole number above 0, an alpha is not finite, or an expression cannot be read.
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
    """Return a regular expression for the names that end with a match of the given one."""
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
        ``ranks``: each with the number of factors that have it. ``scales``: the same for ``alpha / r``; None
        if there is no configuration.

    Raises
    ------
    FileOfTensorsError
        If the configuration cannot be used, or states another rank than that of a factor.
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
        Elements of each sample; for A they are the quantiles of its distribution.
    targets : collection of str, optional
        Ends of names of modules, as PEFT's ``target_modules``. By default all matrices but embeddings and
        heads, which are recognised by their names.

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


# -- the merge --------------------------------------------------------------------------------------------
#: The largest scale; the smallest is its inverse.
_LARGEST_SCALE = 2.0**100
#: The update is summed exactly, then rounded to this: no float32 factors make it vanish or overflow.
_WIDE = Format(precision=50, emin=-350, emax=400)
#: A scale's high part; its product with a float32 number is exact, and so is that of the rest.
_HIGH = Format(precision=26, emin=-350, emax=400)


@dataclass(frozen=True, eq=False)
class MergedAdapter:
    """The result of `merge_adapter`.

    Parameters
    ----------
    weights : array, shape (out, in)
        The merged weights, in the format's carrier.
    changed : int
        How many weights have a new code.
    lost : float
        Share of the weights that were to change, ``s (B A) != 0``, and did not; NaN if none was to.
    edq : float
        ``<D, E> / <D, D>`` of the update ``D = s B A`` and the change E: 1 if nothing is lost; NaN if D is 0.
    error : float
        ``||E - D|| / ||D||``; NaN if D is 0.
    """

    weights: Array
    changed: int
    lost: float
    edq: float
    error: float


def merge_adapter(
    weight: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    scale: float,
    format: Format | str = "bfloat16",
    *,
    stepwise: bool = False,
) -> MergedAdapter:
    """Return ``W + s B A``, rounded into a format, and what the merge changes and loses.

    Adapters with magnitudes (DoRA) are merged in another way.

    Parameters
    ----------
    weight : array_like, shape (out, in)
        W, values of the format.
    a, b : array_like, shapes (rank, in) and (out, rank)
        The factors, float32 numbers.
    scale : float
        s, which is alpha / r, or alpha / sqrt(r) of rank-stabilised adapters.
    format : Format or str, optional
        The format of W, before and after.
    stepwise : bool, optional
        By default the exact sum is rounded once. Otherwise B A is rounded into the format, then s times that,
        then the sum: as PEFT merges where the factors have the dtype of W, too.

    Returns
    -------
    MergedAdapter
        All rounding is to nearest even. A NaN or an infinity of an operand passes into the weights; then
        lost, edq and error are NaN.

    Raises
    ------
    TypeError
        If an operand holds no real numbers, or the scale is no number.
    ValueError
        If shapes do not match, the scale is beyond ``2**+-100`` and not zero, a factor holds numbers that
        float32 lacks, or W holds numbers that are no values of the format.

    References
    ----------
    Hu et al., LoRA, arXiv 2106.09685; ``get_delta_weight`` and ``merge`` of PEFT's LoRA layers.

    Examples
    --------
    >>> merged = merge_adapter([[1.0, 1.0]], [[2.0**-9, 2.0**-6]], [[1.0]], 1.0)
    >>> merged.weights.tolist(), merged.changed, merged.lost
    ([[1.0, 1.015625]], 1, 0.5)
    """
    fmt, scale = get_format(format), finite_number("scale", scale)
    if scale and not 1 / _LARGEST_SCALE <= abs(scale) <= _LARGEST_SCALE:
        raise ValueError(f"scale = {scale} must be zero, or between 2**-100 and 2**100 in magnitude")
    base, left, right = real_array(weight, "weight"), real_array(b, "b"), real_array(a, "a")
    shapes = base.shape, right.shape, left.shape
    fits = all(x.ndim == 2 for x in (base, left, right)) and right.shape[1] == base.shape[1]
    if not fits or left.shape != (len(base), len(right)):
        raise ValueError(f"shapes of weight, a and b are {shapes}; needed are (out, in), (r, in), (out, r)")
    for label, x, stored in (("weight", base, fmt), ("a", right, "float32"), ("b", left, "float32")):
        if not np.array_equal(round_to(x, stored), x, equal_nan=True):
            raise ValueError(f"{label} holds numbers that are no values of {stored}; round it first")
    before = round_to(base, fmt)
    # s B in parts, each exact in binary64, and of one sign, as infinite ones would else be NaN together.
    high = float(round_to(scale, _HIGH, "toward_zero"))
    shares = [high, scale - high] if scale != high else [scale]
    twice = np.vstack([right] * len(shares)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        parts = np.hstack([left.astype(np.float64) * share for share in shares])
        asked = matmul(parts, twice, Accumulator(_WIDE, block=None))
        if stepwise:
            ar = arithmetic(fmt)
            product = matmul(left, right, Accumulator(fmt, block=None))
            after = np.asarray(ar.add(before, ar.mul(product, scale)))
        else:
            after = matmul(parts, twice, Accumulator(fmt, block=None), c=before)
    moved = metrics.effective_update([before.ravel()], [after.ravel()])
    moved[~np.isfinite(before.ravel())] = np.nan  # what stays infinite would count as still
    other = (after != before) | (np.signbit(after) != np.signbit(before))
    return MergedAdapter(
        after,
        changed=int(np.count_nonzero(other & ~(np.isnan(after) & np.isnan(before)))),
        lost=metrics.lost_fraction(asked.ravel(), moved),
        edq=metrics.normalized_edq(asked.ravel(), moved),
        error=metrics.relative_error(moved, asked.ravel()),
    )
