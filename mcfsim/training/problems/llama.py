"""The language model over bytes in the shape of LLaMA: rotary positions, gated perceptrons, untied head."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mcfsim.training.problems._transformer import Array, TransformerPieces
from mcfsim.training.problems.language_model import VOCABULARY, LanguageModel

#: The longest period of the rotary angles, in tokens over 2 pi.
LONGEST = 10_000.0


class Llama(LanguageModel):
    """A decoder-only transformer over bytes in the shape of LLaMA; the loss is the cross entropy in nats.

    As `LanguageModel`, but: queries and keys are turned by their positions, which are not parameters (RoPE);
    the perceptron is gated, ``down (silu(gate x) * up x)``, and 8/3 times as wide as the stream, rounded down
    (SwiGLU); and the head is a matrix of its own, not the embedding.

    Parameters
    ----------
    corpus, layers, width, heads, context, batch, activation_bits, calculation
        As for `LanguageModel`; ``width / heads`` must be even.

    References
    ----------
    Touvron et al., LLaMA: Open and Efficient Foundation Language Models, arXiv 2302.13971, 2023.
    """

    name = "llama"

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if self.width // self.heads % 2:
            depth = self.width // self.heads
            raise ValueError(f"width / heads = {depth} must be even: rotary positions turn pairs")
        width, hidden = self.width, 8 * self.width // 3
        shapes = super()._shapes()
        del shapes["positions"]
        for layer in range(self.layers):
            shapes[f"layer{layer}.mlp.up"] = (width, 2 * hidden)
            shapes[f"layer{layer}.mlp.down"] = (hidden, width)
        return {**shapes, "head": (VOCABULARY, width)}

    def _middles(
        self, pieces: TransformerPieces, sequences: int, length: int
    ) -> dict[str, Callable[[Array], Any]]:
        half = self.width // self.heads // 2
        rounded = self.calculation is not None and self.calculation.format is not None
        powers = _powers(half) if rounded else LONGEST ** (-np.arange(half) / half)
        angles = np.arange(length)[:, None] * powers
        attention = partial(pieces.causal_attention, sequences=sequences, heads=self.heads, angles=angles)
        return {"attention": attention, "mlp": pieces.gated_silu}


@lru_cache(maxsize=8)
def _powers(half: int) -> Array:
    """Return the angles between neighbours, correctly rounded to binary64: NumPy's vary by machine."""
    from mpmath import mp

    with mp.workprec(200):
        return np.array([float(mp.mpf(LONGEST) ** (mp.mpf(-i) / half)) for i in range(half)])
