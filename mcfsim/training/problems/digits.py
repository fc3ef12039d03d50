"""Handwritten digits, classified by a perceptron that computes in a format of choice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.training.problems._transformer import cross_entropy
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
    term; gradients summed over a batch, and these divided by its size. The format of the loss serves for an
    image's gradient d with respect to its scores z, which are rounded first::

        e = RN(exp(RN(z - max z)))
        s = RN(sum e)
        d = RN(e / s), and RN(RN(e - s) / s) for the image's own digit

    The loss itself, on which no gradient depends, is computed in binary64 from the scores.

    Parameters
    ----------
    hidden : int, optional
        Number of hidden units.
    batch : int, optional
        Number of different images in a batch, at most the 1438 that are not held out.
    format, loss_format : Format or str or None, optional
        Formats of the forward and backward pass, and of the loss; the latter is by default the former.
    sums : {"once", "each"}, optional
        How sums of products are rounded, see `mcfsim.training.problems.calculation.Sums`.

    Raises
    ------
    ImportError
        If scikit-learn, which ships the data, is missing.
    ValueError
        If a size or a name is not allowed, float32 does not hold a format, a format's name means another one,
        or only the loss has a format.

    References
    ----------
    Raposo, Tomas, Roma, PositNN: Training deep neural networks with mixed low-precision posit, ICASSP 2021
    (arXiv 2105.00053). In the code released with it, posits of 8 bits go forward and backward, those of the
    loss and the optimizer have 16, and sums are those of quires; d for the own digit is rounded once there.
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
    ) -> None:
        self.hidden = check_size("hidden", hidden)
        self.batch = check_size("batch", batch)
        if format is None and loss_format is not None:
            raise ValueError(f"loss_format = {loss_format} needs a format of forward and backward pass, too")
        sums = Sums.of(sums)
        self.calculation = _calculation(format, sums)
        self.loss = self.calculation if loss_format is None else _calculation(loss_format, sums)
        # Formats are kept by their names.
        self.format = None if format is None else known(format).name
        self.loss_format = None if loss_format is None else known(loss_format).name
        self.sums = str(sums)
        # Weights and their gradients, and the intermediate results of a batch.
        check_memory(f"hidden = {hidden}", 2 * (PIXELS + CLASSES) * hidden + 3 * batch * hidden)
        self.shapes = {
            "hidden.weight": (PIXELS, hidden),
            "hidden.bias": (hidden,),
            "output.weight": (hidden, CLASSES),
            "output.bias": (CLASSES,),
        }
        pixels, digits, held_out = labelled(self.name, "load_digits")
        images, labels = pixels / 16, digits.astype(np.int64)
        self._training = images[~held_out], labels[~held_out]
        self._validation = images[held_out], labels[held_out]
        if batch > len(self._training[1]):
            raise ValueError(f"batch = {batch} must be at most {len(self._training[1])}, all images")

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
        weights, inputs = self._rounded(parameters), self.calculation.round(images[chosen])
        active, scores = self._forward(weights, inputs)
        loss = _mean_loss(scores, labels[chosen])
        errors = self.calculation.round(self._misfits(scores, labels[chosen]))
        back = np.where(active > 0, self.calculation.product(errors, weights["output.weight"].T), 0)
        gradient = {
            "hidden.weight": self._mean_product(inputs, back),
            "hidden.bias": self._mean_product(np.ones((self.batch, 1)), back)[0],
            "output.weight": self._mean_product(active, errors),
            "output.bias": self._mean_product(np.ones((self.batch, 1)), errors)[0],
        }
        return loss, {name: x.astype(parameters[name].dtype) for name, x in gradient.items()}

    @np.errstate(over="ignore", invalid="ignore")
    def validation_loss(self, parameters: Tensors) -> float:
        """Return the mean loss over the held-out images, with scores computed as in training."""
        images, labels = self._validation
        _, scores = self._forward(self._rounded(parameters), self.calculation.round(images))
        return _mean_loss(scores, labels)

    def _rounded(self, parameters: Tensors) -> dict[str, Array]:
        check_tensors(parameters, self.shapes, np.float32, np.float64)
        return {name: self.calculation.round(tensor) for name, tensor in parameters.items()}

    def _forward(self, weights: Tensors, inputs: Array) -> tuple[Array, Array]:
        """Return the outputs of the hidden units, and the scores."""
        product = self.calculation.product
        active = np.maximum(product(inputs, weights["hidden.weight"], weights["hidden.bias"]), 0)
        return active, product(active, weights["output.weight"], weights["output.bias"])

    def _misfits(self, scores: Array, labels: Array) -> Array:
        """Return the gradient of the loss with respect to the scores, for each image."""
        loss = self.loss
        scores = loss.round(scores)
        tails = loss.exp(loss.sub(scores, scores.max(axis=1, keepdims=True)))
        totals = loss.product(tails, np.ones((CLASSES, 1)))
        own = np.arange(CLASSES) == labels[:, np.newaxis]
        return loss.div(np.where(own, loss.sub(tails, totals), tails), totals)

    def _mean_product(self, a: Array, b: Array) -> Array:
        """Return the mean over the batch of products of rows."""
        return self.calculation.div(self.calculation.product(a.T, b), self.batch)


def _mean_loss(scores: Array, labels: Array) -> float:
    """Return the mean cross entropy, in binary64."""
    return cross_entropy(scores.astype(np.float64), labels)[0]


def _calculation(fmt: Format | str | None, sums: Sums) -> Calculation:
    """Return a calculation with all sums in its one format."""
    return Calculation(None) if fmt is None else Calculation(fmt, fmt, sums.accumulator(known(fmt)))
