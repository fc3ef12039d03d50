"""A small transformer that predicts the next byte of a text, with gradients written by hand."""

from __future__ import annotations

import hashlib
import math
import platform
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.recipes import Recipe
from mcfsim.recipes.named_recipes import recipe_from
from mcfsim.training.problems._rounded_transformer import RecipeMultiplier, RoundedPieces
from mcfsim.training.problems._transformer import Array, TransformerPieces, as_integers
from mcfsim.training.problems.base import (
    DataStream,
    DescribedProblem,
    LossAndGradient,
    Tensors,
    check_memory,
    check_size,
    check_tensors,
    generator,
)
from mcfsim.training.problems.calculation import Calculation

# -- text to train on -------------------------------------------------------------------------------------
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """A corpus: bytes of real text, with the last tenth held out.

    Corpora are equal if their bytes are equal, that is if their digests are.

    Attributes
    ----------
    training, validation : ndarray of uint8
        The first nine tenths and the rest, read-only.
    digest : str
        SHA-256 of all the bytes, in hexadecimal.
    description : str
        The origin of the text.
    modules : int, optional
        The argument of `from_standard_library`, if the text is from there.
    """

    training: Bytes = field(repr=False, compare=False)
    validation: Bytes = field(repr=False, compare=False)
    digest: str
    description: str = field(compare=False)
    modules: int | None = field(default=None, compare=False)

    @classmethod
    def from_bytes(cls, text: bytes, description: str, modules: int | None = None) -> Corpus:
        """Return a corpus of this text."""
        data = np.frombuffer(text, dtype=np.uint8)  # read-only, as bytes are
        cut = len(data) - len(data) // 10
        return cls(data[:cut], data[cut:], hashlib.sha256(text).hexdigest(), description, modules)

    @classmethod
    def from_standard_library(cls, modules: int = 60) -> Corpus:
        """Return the sources of the first top-level modules of Python's standard library, by name.

        Every machine with Python has them. They differ between versions of Python (and sometimes between
        distributors of one version), so results are comparable only where the digest is the same.

        Parameters
        ----------
        modules : int, optional
            How many modules, or all if there are fewer. Unreadable ones do not count, and neither does
            ``_sysconfigdata*``, which differs from build to build.
        """
        check_size("modules", modules)
        folder = Path(sysconfig.get_path("stdlib"))
        sources: list[bytes] = []
        for path in sorted(folder.glob("*.py"), key=lambda path: path.name):
            if path.name.startswith("_sysconfigdata"):
                continue
            try:
                sources.append(path.read_bytes())
            except OSError:
                continue
            if len(sources) == modules:
                break
        if not sources:
            raise FileNotFoundError(f"no sources of Python's standard library can be read in {folder}")
        description = f"{len(sources)} modules of the standard library of Python {platform.python_version()}"
        return cls.from_bytes(b"".join(sources), description, modules)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Corpus:
        """Return the corpus that `settings` described, or raise ValueError if this machine has another."""
        if settings["modules"] is None:
            raise ValueError(f"the corpus ({settings['description']}) cannot be rebuilt: pass it as corpus=")
        return cls.from_standard_library(settings["modules"]).require(settings)

    def settings(self) -> dict[str, object]:
        """Return JSON-able data that identify the text."""
        return {"modules": self.modules, "digest": self.digest, "description": self.description}

    def require(self, settings: Mapping[str, Any]) -> Corpus:
        """Return the corpus itself if these settings describe it, or raise ValueError."""
        if self.digest != settings["digest"]:
            raise ValueError(
                f"the text differs: the settings name a corpus with digest {settings['digest']} "
                f"({settings['description']}), but the one present has {self.digest} ({self.description})"
            )
        return self

    def training_windows(self, count: int, length: int, *, step: int, seed: int) -> Bytes:
        """Return windows of the training text, one per row, at offsets that (seed, step) alone choose."""
        last = len(self.training) - length
        offsets = generator(seed, DataStream.BATCH, step).integers(last, size=count, endpoint=True)
        return _windows(self.training, offsets, length)

    def validation_windows(self, count: int, length: int) -> Bytes:
        """Return evenly spaced windows of the held-out text, one per row."""
        offsets = np.arange(count) * (len(self.validation) - length) // max(count - 1, 1)
        return _windows(self.validation, offsets, length)


def _windows(text: Bytes, offsets: NDArray[np.int64], length: int) -> Bytes:
    windows: Bytes = text[offsets[:, None] + np.arange(length)]
    return windows


# -- the model --------------------------------------------------------------------------------------------
VOCABULARY = 256
VALIDATION_BATCHES = 16

#: The tensors of each branch of a layer: a gain, and two matrices.
_BRANCHES = {"attention": ("gain", "qkv", "out"), "mlp": ("gain", "up", "down")}
#: The names of the matrices that may be the head, which stays in high precision under a recipe.
_HEADS = ("embedding", "head")
#: The backward pass of a branch: it adds its parameters' gradients and returns that of its input.
BranchBack = Callable[[Array, dict[str, Array]], Array]


class LanguageModel(DescribedProblem):
    """A decoder-only transformer over bytes; the loss is the cross entropy in nats per byte.

    Every layer adds two branches to the residual stream: causal multi-head attention, then a perceptron of
    four times the width with squared ReLU. Both act on the normalised stream (RMS, with gains). Positions are
    learned, the head is the token embedding, and there are no biases.

    Forward and backward pass compute in the dtype of the parameters: float32, or float64 to check gradients.
    The same arguments give the same bits on the same machine, NumPy and number of BLAS threads. One thread
    is best: the matrices are small.

    Parameters
    ----------
    corpus : Corpus, optional
        The text; by default ``Corpus.from_standard_library()``.
    layers, width, heads : int, optional
        The model's shape; heads must divide width.
    context, batch : int, optional
        A batch has `batch` sequences of `context` predictions.
    activation_bits : int, optional
        If not 0, the activations that the layers' matrices multiply are rounded to integers of this many
        bits, 2 to 16, with one scale per token; gradients pass unchanged. The head's input is not rounded.
    calculation : Calculation or Recipe or mapping or str, optional
        A format, with infinities, into which every result of forward and backward pass is rounded, parameters
        first, and accumulators of reductions and matrix products: as an object, as data or as text
        (``"bfloat16"``, ``"float16,float32,blas"``), see
        `mcfsim.training.problems.calculation.Calculation.of`. The bits are the same on every machine, unless
        ``blas`` multiplies. A recipe (``"nvfp4"``), alone or before a format, computes the products with the
        layers' matrices, except the head; products within attention do not follow the recipe. Random words
        depend on seed, step and layer; all batches of the validation loss have the same. By default only
        NumPy rounds.
    """

    name = "language-model"
    exact_capable = False

    def __init__(
        self,
        corpus: Corpus | None = None,
        layers: int = 2,
        width: int = 64,
        heads: int = 4,
        context: int = 64,
        batch: int = 16,
        activation_bits: int = 0,
        calculation: Calculation | Recipe | Mapping[str, Any] | str | None = None,
    ) -> None:
        self.layers = check_size("layers", layers)
        self.width = check_size("width", width)
        self.heads = check_size("heads", heads)
        self.context = check_size("context", context)
        self.batch = check_size("batch", batch)
        self.activation_bits = check_size("activation_bits", activation_bits, least=0)
        if activation_bits not in (0, *range(2, 17)):
            raise ValueError(f"activation_bits = {activation_bits} must be 2 to 16, or 0 for no rounding")
        self.calculation = Calculation.of(calculation)
        if self.calculation is not None:
            linear_alone = self.calculation.format is None and self.calculation.recipe is not None
            if not (linear_alone or getattr(self.calculation.format, "has_infinity", False)):
                raise ValueError(
                    f"calculation in {self.calculation.format}: attention needs a format with infinities"
                )
            if activation_bits:
                raise ValueError(f"activation_bits = {activation_bits} and a calculation exclude each other")
        if width % heads:
            raise ValueError(f"heads = {heads} must divide width = {width}")
        if not isinstance(corpus, Corpus | None):
            raise TypeError(f"corpus must be a Corpus, as from Corpus.from_bytes, not {corpus!r}")
        self.corpus = Corpus.from_standard_library() if corpus is None else corpus
        available = min(len(self.corpus.training), len(self.corpus.validation))
        if available <= context:
            raise ValueError(f"context = {context} needs longer texts than one of {available} bytes")
        # Weights, gradient and two more such vectors; names; what the forward pass of a batch stores.
        weights = (VOCABULARY + context) * width + layers * 12 * width**2
        on_the_way = batch * context * (VOCABULARY + layers * (16 * width + heads * context))
        check_memory("a model of this shape", 4 * weights + 300 * layers + on_the_way, 4)
        self.shapes = self._shapes()
        self.decayed = frozenset(name for name, shape in self.shapes.items() if len(shape) == 2)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (VOCABULARY, width),
            "positions": (self.context, width),
        }
        for layer in range(self.layers):
            shapes |= {
                f"layer{layer}.attention.gain": (width,),
                f"layer{layer}.attention.qkv": (width, 3 * width),
                f"layer{layer}.attention.out": (width, width),
                f"layer{layer}.mlp.gain": (width,),
                f"layer{layer}.mlp.up": (width, 4 * width),
                f"layer{layer}.mlp.down": (4 * width, width),
            }
        return shapes | {"gain": (width,)}

    def settings(self) -> dict[str, Any]:
        """Return the kind, the shape, and what identifies the corpus."""
        found = super().settings() | {"corpus": self.corpus.settings()}
        if not self.activation_bits:
            del found["activation_bits"]
        return found

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return float32 parameters: gains of 1, and normal matrices of standard deviation 0.02.

        Matrices that write to the residual stream are smaller by ``sqrt(2 layers)``, so that the stream's
        variance does not grow with the number of layers.
        """
        random = generator(seed, DataStream.PARAMETERS)
        parameters: dict[str, NDArray[Any]] = {}
        for name, shape in self.shapes.items():
            if name.endswith("gain"):
                parameters[name] = np.ones(shape, np.float32)
            else:
                writes = name.endswith(("attention.out", "mlp.down"))
                deviation = np.float32(0.02 / math.sqrt(2 * self.layers) if writes else 0.02)
                parameters[name] = random.standard_normal(shape, dtype=np.float32) * deviation
        return parameters

    def training_batch(self, step: int, seed: int) -> NDArray[np.uint8]:
        """Return the batch of (seed, step): one sequence per row, a byte longer than the context."""
        return self.corpus.training_windows(self.batch, self.context + 1, step=step, seed=seed)

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, parameters: Tensors, step: int, seed: int) -> LossAndGradient:
        """Return the mean loss over the batch of (seed, step), and its gradient."""
        check_tensors(parameters, self.shapes, np.float32, np.float64)
        windows, pieces = self.training_batch(step, seed), self._pieces(step, seed)
        logits, back = self._forward(pieces, parameters, windows[:, :-1])
        loss, loss_back = pieces.cross_entropy(logits, windows[:, 1:].ravel())
        gradients = back(loss_back())
        return loss, {name: x.astype(parameters[name].dtype, copy=False) for name, x in gradients.items()}

    @np.errstate(over="ignore", invalid="ignore")
    def validation_loss(self, parameters: Tensors) -> float:
        """Return the mean loss over 16 batches of evenly spaced held-out windows, always the same."""
        check_tensors(parameters, self.shapes, np.float32, np.float64)
        windows = self.corpus.validation_windows(VALIDATION_BATCHES * self.batch, self.context + 1)
        losses, pieces = [], self._pieces(0, 0)
        for start in range(0, len(windows), self.batch):
            batch = windows[start : start + self.batch]
            logits, _ = self._forward(pieces, parameters, batch[:, :-1])
            losses.append(pieces.cross_entropy(logits, batch[:, 1:].ravel())[0])
        return math.fsum(losses) / len(losses)

    def logits(self, parameters: Tensors, tokens: NDArray[np.uint8]) -> Array:
        """Return the scores of every next byte, of shape (sequences, length, 256).

        Parameters
        ----------
        parameters : mapping of str to ndarray
            All float32 or all float64.
        tokens : ndarray of uint8
            One sequence per row, not longer than the context.
        """
        check_tensors(parameters, self.shapes, np.float32, np.float64)
        if tokens.dtype != np.uint8 or tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.context:
            raise ValueError(
                f"tokens must be rows of 1 to {self.context} bytes (uint8), not {tokens.dtype} of shape "
                f"{tokens.shape}"
            )
        return self._forward(self._pieces(0, 0), parameters, tokens)[0].reshape(*tokens.shape, VOCABULARY)

    def _pieces(self, step: int, seed: int) -> TransformerPieces:
        """Return the pieces of the forward and backward pass, for a step."""
        given = self.calculation
        if given is None:
            return TransformerPieces()
        pieces = TransformerPieces() if given.format is None else RoundedPieces(given)
        if given.recipe is not None:
            tensors = tuple(self.shapes)
            pieces.multiplier = RecipeMultiplier(
                recipe_from(given.recipe), tensors, self.layers, _HEADS, step, seed, pieces.multiplier
            )
        return pieces

    def _forward(
        self, pieces: TransformerPieces, given: Tensors, tokens: NDArray[np.uint8]
    ) -> tuple[Array, Callable[[Array], dict[str, Array]]]:
        """Return the logits, one row per token, and the function from their gradient to the parameters'."""
        sequences, length = tokens.shape
        parameters = pieces.entered(given)
        table = parameters["embedding"]
        stream, embedding_back = pieces.embedding(tokens.ravel(), table)
        if "positions" in self.shapes:
            by_sequence = stream.reshape(sequences, length, self.width)
            stream = pieces.add(by_sequence, parameters["positions"][:length]).reshape(stream.shape)

        backs: list[BranchBack] = []
        for layer in range(self.layers):
            for kind, middle in self._middles(pieces, sequences, length).items():
                change, back = self._branch(pieces, parameters, layer, kind, stream, middle)
                stream = pieces.add(stream, change)
                backs.append(back)
        normal, norm_back = pieces.rms_norm(stream, parameters["gain"])
        head = "head" if "head" in self.shapes else "embedding"
        logits, head_back = pieces.linear(normal, parameters[head].T, head)

        def backward(dlogits: Array) -> dict[str, Array]:
            gradients: dict[str, Array] = {}
            dnormal, dhead = head_back(dlogits)
            dstream, gradients["gain"] = norm_back(dnormal)
            for back in reversed(backs):
                dstream = pieces.add(dstream, back(dstream, gradients))
            if "positions" in self.shapes:
                dpositions = np.zeros_like(parameters["positions"])
                dpositions[:length] = pieces.total(dstream.reshape(sequences, length, self.width))
                gradients["positions"] = dpositions
            gradients["embedding"] = embedding_back(dstream)
            if "head" in self.shapes:
                gradients["head"] = np.ascontiguousarray(dhead.T)
            else:
                gradients["embedding"] = pieces.add(gradients["embedding"], dhead.T)
            return {name: gradients[name] for name in self.shapes}

        return logits, backward

    def _middles(
        self, pieces: TransformerPieces, sequences: int, length: int
    ) -> dict[str, Callable[[Array], Any]]:
        """Return the function between the two matrices of each branch, for a batch of this shape."""
        attention = partial(pieces.causal_attention, sequences=sequences, heads=self.heads)
        return {"attention": attention, "mlp": pieces.squared_relu}

    def _branch(
        self,
        pieces: TransformerPieces,
        parameters: Tensors,
        layer: int,
        kind: str,
        stream: Array,
        middle: Callable[[Array], Any],
    ) -> tuple[Array, BranchBack]:
        """Return a branch's change of the stream: a matrix, a function between, and another matrix."""
        gain, into, out = (f"layer{layer}.{kind}.{name}" for name in _BRANCHES[kind])
        normal, norm_back = pieces.rms_norm(stream, parameters[gain])
        inside, into_back = pieces.linear(self._multiplied(normal), parameters[into], into)
        mixed, mix_back = middle(inside)
        change, out_back = pieces.linear(self._multiplied(mixed), parameters[out], out)

        def backward(dchange: Array, gradients: dict[str, Array]) -> Array:
            dmixed, gradients[out] = out_back(dchange)
            dnormal, gradients[into] = into_back(mix_back(dmixed))
            dstream, gradients[gain] = norm_back(dnormal)
            return dstream

        return change, backward

    def _multiplied(self, rows: Array) -> Array:
        """Return the activations that a layer's matrix multiplies: rows, rounded to integers if asked."""
        return as_integers(rows, self.activation_bits) if self.activation_bits else rows
