"""A small GPT in PyTorch, and the text of Python's standard library by characters."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch.nn import functional

from mcfsim.training.problems.language_model import Corpus


class Size(NamedTuple):
    """The shape of a model, of its batches, and how many modules its text has."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int
    modules: int = 60


SIZES = {
    "tiny": Size(layers=1, width=16, heads=2, context=16, batch=4, modules=5),
    "116k": Size(layers=2, width=64, heads=4, context=64, batch=16),
    "100M": Size(layers=12, width=896, heads=14, context=512, batch=32, modules=1000),
}


class Block(torch.nn.Module):
    """Causal attention and then a perceptron, each added to what it is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after the block."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(torch.nn.Module):
    """A decoder-only transformer over characters, with learned positions."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, size.width)
        self.positions = torch.nn.Embedding(size.context, size.width)
        self.blocks = torch.nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.norm = torch.nn.LayerNorm(size.width)
        self.head = torch.nn.Linear(size.width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each next character."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.positions(places))))


class Text(NamedTuple):
    """The characters of a text by their numbers, in order of code points.

    Attributes
    ----------
    corpus : Corpus
        A byte each.
    vocabulary : int
        How many there are.
    source : dict
        The text that they are of, and its digest.
    """

    corpus: Corpus
    vocabulary: int
    source: dict[str, object]


@lru_cache
def text(modules: int) -> Text:
    """Return the text of so many modules of the standard library.

    Raises
    ------
    ValueError
        If it has more than 256 different characters.
    """
    found = Corpus.from_standard_library(modules)
    characters = (found.training.tobytes() + found.validation.tobytes()).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
    if len(numbers) > 256:
        raise ValueError(f"the text has {len(numbers)} different characters, and a byte numbers 256")
    coded = bytes(numbers[character] for character in characters)
    return Text(Corpus.from_bytes(coded, found.description), len(numbers), found.settings())
