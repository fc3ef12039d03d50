"""Handwritten digits, classified by a perceptron that computes in a format of choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import chosen
from mcfsim.formats import Format
from mcfsim.recipes import Recipe
from mcfsim.recipes.named_recipes import recipe_from
from mcfsim.training.problems._rounded_transformer import RecipeMultiplier, RoundedPieces
from mcfsim.training.problems._transformer import BackPair, cross_entropy
from mcfsim.training.problems.base import (
    DataStream,
    DescribedProblem,
    LossAndGradient,
    Tensors,
    check_memory,
    check_size,
    check_tensors,
    generator,
    labelled,
)
from mcfsim.training.problems.calculation import Array, Calculation, Sums, known

PIXELS, CLASSES = 64, 10


class Digits(DescribedProblem):
    """Cross entropy of a perceptron with one hidden layer on the handwritten digits of scikit-learn.

    The 1797 images have 64 pixels from 0 to 1 in steps of 1/16; every fifth image is held out. The hidden
    units are rectified linear. Without a format, forward and backward pass compute in binary64. With one,
    every result is rounded into it: weights and pixels; sums of products, with the bias, if any, as the first
    term; gradients summed over a batch, and these divided by its size. The format of the loss is used for an
    image's gradient d with respect to its scores z, which are rounded first::

        e = RN(exp(RN(z - max z)))
        s = RN(sum e)
        d = RN(e / s), and RN(RN(e - s) / s) for the image's own digit

    The loss itself, on which no gradient depends, is computed in binary64 from the scores. With a calculation
    loss and d are those of the language model, which divides d by the size of the batch before sums.

    Parameters
    ----------
    hidden : int, optional
        Number of hidden units.
    batch : int, optional
        Number of different images in a batch, at most the 1438 that are not held out.
    format, loss_format : Format or str or None, optional
        Formats of the forward and backward pass, and of the loss; by default the loss has that of the passes.
    sums : {"once", "each"}, optional
        How sums of products are rounded, see `mcfsim.training.problems.calculation.Sums`.
    calculation : Calculation or Recipe or mapping or str, optional
        In place of these three: the formats of elements, of reductions and of sums of products, as an object,
        as data or as text, see `mcfsim.training.problems.calculation.Calculation.of`. A recipe computes the
        products of the hidden layer, whose bias is added to its output; the output layer, like other heads,
        stays in high precision.

    Raises
    ------
    ImportError
        If scikit-learn, which ships the data, is missing.
    ValueError
        If a size or a name is not allowed, float32 does not hold a format, a format has the name of another
        one, only the loss has a format, or a format and a calculation are given.

    References
    ----------
    Raposo, Tomas, Roma, PositNN: Training deep neural networks with mixed low-precision posit, ICASSP 2021
    (arXiv 2105.00053). In the code released with it, posits of 8 bits go forward and backward, those of the
    loss and the optimizer have 16, and sums are those of quires; d for an image's own digit is rounded once
    there.
    """

    name = "digits"
    exact_capable = False
    decayed = frozenset({"hidden.weight", "output.weight"})

    def __init__(
        self,
        hidden: int = 32,
        batch: int = 64,
        format: Format | str | None = None,
        loss_format: Format | str | None = None,
        sums: Sums | str = Sums.ONCE,
        calculation: Calculation | Recipe | Mapping[str, Any] | str | None = None,
    ) -> None:
        self.hidden = check_size("hidden", hidden)
        self.batch = check_size("batch", batch)
        if format is None and loss_format is not None:
            raise ValueError(f"loss_format = {loss_format} needs a format of forward and backward pass, too")
        sums = chosen("sums", sums, Sums)
        self.calculation = Calculation.of(calculation)
        if self.calculation is not None and (format is not None or sums is not Sums.ONCE):
            raise ValueError(
                "a calculation says what format, loss_format and sums would; give the one or the other"
            )
        self.network = self.calculation or _calculation(format, sums)
        self.loss = self.network if loss_format is None else _calculation(loss_format, sums)
        # Formats are kept by their names.
        self.format = None if format is None else known(format).name
        self.loss_format = None if loss_format is None else known(loss_format).name
        self.sums = str(sums)
        pixels, digits, held_out = labelled(self.name, "load_digits")
        images, labels = pixels / 16, digits.astype(np.int64)
        self._training = images[~held_out], labels[~held_out]
        self._validation = images[held_out], labels[held_out]
        if batch > len(self._training[1]):
            raise ValueError(f"batch = {batch} must be at most {len(self._training[1])}, all images")
        # Weights and their gradients, and the intermediate results of a batch.
        check_memory(f"hidden = {hidden}", 2 * (PIXELS + CLASSES) * hidden + 3 * batch * hidden)
        self.shapes = {
            "hidden.weight": (PIXELS, hidden),
            "hidden.bias": (hidden,),
            "output.weight": (hidden, CLASSES),
            "output.bias": (CLASSES,),
        }

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return normal float32 weights, of variances 2 / 64 and ``1 / hidden``, and biases of zero."""
        random = generator(seed, DataStream.PARAMETERS)
        deviations = {"hidden.weight": (2 / PIXELS) ** 0.5, "output.weight": (1 / self.hidden) ** 0.5}
        return {
            name: (random.standard_normal(shape) * deviations.get(name, 0.0)).astype(np.float32)
            for name, shape in self.shapes.items()
        }

    @np.errstate(over="ignore", invalid="ignore")
    def loss_and_gradient(self, parameters: Tensors, step: int, seed: int) -> LossAndGradient:
        """Return the mean loss over the batch of (seed, step), and its gradient."""
        images, labels = self._training
        random = generator(seed, DataStream.BATCH, step)
        chosen = random.choice(len(labels), self.batch, replace=False)
        weights, inputs = self._rounded(parameters), self.network.round(images[chosen])
        active, scores, by_weight = self._forward(weights, inputs, step, seed)
        if self._rounds_errors:  # errors that are divided already
            loss, errors_of = RoundedPieces(self.network).cross_entropy(scores, labels[chosen])
            errors, count = errors_of(), 1
        else:
            loss, count = _mean_loss(scores, labels[chosen]), self.batch
            errors = self.network.round(self._misfits(scores, labels[chosen]))
        product, div = self.network.product, self.network.div
        back = np.where(active > 0, product(errors, weights["output.weight"].T), 0)
        ones = np.ones((1, self.batch))
        gradient = {
            "hidden.weight": div(by_weight(back), count),
            "hidden.bias": div(product(ones, back), count)[0],
            "output.weight": div(product(active.T, errors), count),
            "output.bias": div(product(ones, errors), count)[0],
        }
        return loss, {name: x.astype(parameters[name].dtype) for name, x in gradient.items()}

    @np.errstate(over="ignore", invalid="ignore")
    def validation_loss(self, parameters: Tensors) -> float:
        """Return the mean loss over the held-out images, with scores computed as in training."""
        images, labels = self._validation
        _, scores, _ = self._forward(self._rounded(parameters), self.network.round(images), 0, 0)
        if self._rounds_errors:
            return RoundedPieces(self.network).cross_entropy(scores, labels)[0]
        return _mean_loss(scores, labels)

    @property
    def _rounds_errors(self) -> bool:
        """Whether loss and errors are those of the language model in a format."""
        return self.calculation is not None and self.calculation.format is not None

    def _rounded(self, parameters: Tensors) -> dict[str, Array]:
        check_tensors(parameters, self.shapes, np.float32, np.float64)
        return {name: self.network.round(tensor) for name, tensor in parameters.items()}

    def _forward(
        self, weights: Tensors, inputs: Array, step: int, seed: int
    ) -> tuple[Array, Array, Callable[[Array], Array]]:
        """Return outputs of the hidden units, scores, and what makes the gradient of the hidden weights."""
        network, hidden, bias = self.network, weights["hidden.weight"], weights["hidden.bias"]
        if network.recipe is None:
            sums, by_weight = network.product(inputs, hidden, bias), partial(network.product, inputs.T)
        else:
            recipe, tensors = recipe_from(network.recipe), tuple(self.shapes)
            layer = RecipeMultiplier(recipe, tensors, 0, (), step, seed, network.multiplied)
            y, back = layer(inputs, hidden, "hidden.weight")
            sums = network.ar.add(network.round(y), np.broadcast_to(bias, y.shape))
            by_weight = partial(_gradient_of_weight, network, back)
        active = np.maximum(sums, 0)
        scores = network.product(active, weights["output.weight"], weights["output.bias"])
        return active, scores, by_weight

    def _misfits(self, scores: Array, labels: Array) -> Array:
        """Return the gradient of the loss with respect to the scores, for each image."""
        loss = self.loss
        scores = loss.round(scores)
        tails = loss.exp(loss.sub(scores, scores.max(axis=1, keepdims=True)))
        totals = loss.product(tails, np.ones((CLASSES, 1)))
        own = np.arange(CLASSES) == labels[:, np.newaxis]
        return loss.div(np.where(own, loss.sub(tails, totals), tails), totals)


def _mean_loss(scores: Array, labels: Array) -> float:
    """Return the mean cross entropy, in binary64."""
    return cross_entropy(scores.astype(np.float64), labels)[0]


def _gradient_of_weight(network: Calculation, back: BackPair, dy: Array) -> Array:
    return network.round(back(dy)[1])


def _calculation(fmt: Format | str | None, sums: Sums) -> Calculation:
    """Return a calculation with all sums in its one format."""
    return Calculation(None) if fmt is None else Calculation(fmt, fmt, sums.accumulator(known(fmt)))
