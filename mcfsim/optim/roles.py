"""The arithmetics of a step, by what each of them is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mcfsim.backends.factory import arithmetic
from mcfsim.optim.stored import Stored
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

#: What a strategy that rounds at random draws, unless it is given other words.
DEFAULT_WORDS = RandomWords(0)


class Roles(NamedTuple):
    """The arithmetics of a step.

    Attributes
    ----------
    moments : Arithmetic
        Of the first moment, and of what goes into it.
    second_moment : Arithmetic
        Of the second moment; the same, unless it is stored in another format.
    update : Arithmetic
        Of the update that they give: in the format of the first moment, by the rounding of the run.
    parameter : Arithmetic
        Of its addition: in the master copy's format, if there is one.
    model : Arithmetic
        Rounds what the model sees.
    """

    moments: Arithmetic
    second_moment: Arithmetic
    update: Arithmetic
    parameter: Arithmetic
    model: Arithmetic

    def of(self, role: str) -> Arithmetic:
        """Return the arithmetic of a slot, ``m`` or ``v``, or of another role by its name."""
        named = {"m": self.moments, "v": self.second_moment}
        found: Arithmetic = named[role] if role in named else getattr(self, role)
        return found


def arithmetics(
    tensors: Sequence[Stored],
    policy: Rounding,
    *,
    random: RandomWords | None = None,
    precision: int = 400,
    **options: Any,
) -> list[Arithmetic]:
    """Return the arithmetic of each tensor: the same one for those of one format and rounding.

    Parameters
    ----------
    tensors : sequence of Stored
        One without a rounding of its own has that of the policy.
    policy : Rounding
        Of all.
    random : RandomWords, optional
        By default `DEFAULT_WORDS` if a tensor, but not the policy, asks for stochastic rounding.
    precision : int, optional
        Bits of exact numbers.
    **options
        Passed to `mcfsim.arithmetic`.
    """
    if random is None and any(item.draws for item in tensors):
        random = DEFAULT_WORDS

    def make(item: Stored, words: RandomWords | None) -> Arithmetic:
        if item.format is None:
            return arithmetic(None, backend="exact", precision=precision)
        return arithmetic(item.format, item.rounded(policy), random=words, **options)

    kinds = [(item.format, item.rounding, item.random_bits, item.rule) for item in tensors]
    # Arithmetics that round stochastically have operations of their own, more of them than a step has.
    made = {
        kind: make(item, random.of(index << 16) if isinstance(random, RandomWords) else random)
        for index, (kind, item) in enumerate(dict(zip(kinds, tensors, strict=True)).items())
    }
    return [made[kind] for kind in kinds]
