"""The updates that Muon asks for: near-orthogonal factors of matrices, and AdamW's for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcfsim.models.plan import Directions, Steady, Updates, noise_rms, normal_directions
from mcfsim.models.samples import TensorSample
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.muon import Muon
from mcfsim.training.schedule import Schedule


@dataclass(frozen=True)
class MuonModel(Updates):
    """Normally distributed directions, whose size in a matrix follows from its shape, whatever the gradients.

    An orthogonal factor of r rows and c columns has r c numbers with a mean square of ``1 / max(r, c)``; the
    rate's factor, `mcfsim.optim.muon.Scale`, multiplies them. Published iterations leave singular values
    between .7 and 1.2, which the model takes for 1. A matrix's directions hold together from step to step as
    momentum of noise does; those of the rest are AdamW's, as in `mcfsim.models.plan.NoiseModel`.

    Parameters
    ----------
    muon : Muon
        The hyperparameters; those of its AdamW are the plan's.

    Raises
    ------
    TypeError
        If it is no Muon.
    ValueError
        If its AdamW moves at a share of the rate, for which an audit has no decay of its own.
    """

    muon: Muon

    def __post_init__(self) -> None:
        if type(self.muon) is not Muon:
            raise TypeError(f"updates are those of mcfsim.Muon(...), not of {self.muon!r}")
        if self.muon.share != 1:
            raise ValueError(f"share = {self.muon.share}: an audit takes AdamW at the rate of Muon, share=1")

    @property
    def words(self) -> str:
        """The assumption, in words for a report."""
        return (
            "normally distributed; in a matrix of r rows and c columns of root mean square "
            "1 / sqrt(max(r, c)), "
            f"as of Muon, by its scale {self.muon.scale!s}; in the rest as of AdamW where gradients are noise"
        )

    def keeps(self, slot: str, name: str, shape: Sequence[int]) -> bool:
        """Return whether the optimizer keeps a moment of a tensor: Muon has no second one of matrices."""
        return bool(self.muon.parts(slot, self.muon.viewed(name, tuple(shape))))

    def directions(
        self, samples: Sequence[TensorSample], hyper: AdamW, schedule: Schedule, steps: int
    ) -> Directions:
        """Return normal numbers of the sizes that shapes give."""
        found, _ = normal_directions(len(samples), samples[0].values.size)
        matrices = [not self.keeps("v", item.name, item.shape) for item in samples]
        decays = np.where(matrices, self.muon.momentum, hyper.beta1)
        noise = noise_rms(decays)
        scales = [
            self.muon.factor(item.shape) / math.sqrt(max(1, *item.shape[-2:])) / size if matrix else 1.0
            for item, matrix, size in zip(samples, matrices, noise.tolist(), strict=True)
        ]
        return Steady(found * noise[:, None], decays, np.array(scales))
