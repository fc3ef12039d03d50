"""The catalogue of statements that `verify` knows, one module per kind."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from mcfsim.checks import hint
from mcfsim.theorems.catalogue import (
    accumulations,
    complex_plane,
    double_rounding,
    double_word_suppositions,
    double_words,
    exact_products,
    expansions,
    growth,
    lost,
    representability,
    stochastic,
    sums,
)
from mcfsim.theorems.statement import Theorem

#: Title and statements of each module, in the order in which they build on each other.
CHAPTERS: Mapping[str, tuple[Theorem, ...]] = MappingProxyType(
    {
        "Errors that are values of the format": representability.THEOREMS,
        "2Sum and Fast2Sum": sums.THEOREMS,
        "Splitting and products": exact_products.THEOREMS,
        "Growing an expansion": growth.THEOREMS,
        "Sums of double words": double_words.SUMS,
        "Products, quotients and roots of double words": double_words.OTHERS,
        "What double words suppose": double_word_suppositions.THEOREMS,
        "Expansions and long sums": expansions.THEOREMS,
        "Functions: sums, dot products, polynomials, means": accumulations.THEOREMS,
        "Functions: determinants, complex products, lengths, reciprocals": complex_plane.THEOREMS,
        "Rounding twice": double_rounding.THEOREMS,
        "Stochastic rounding": stochastic.THEOREMS,
        "Lost arithmetic": lost.THEOREMS,
    }
)
#: All statements by id.
THEOREMS: Mapping[str, Theorem] = MappingProxyType(
    {theorem.name: theorem for chapter in CHAPTERS.values() for theorem in chapter}
)
assert len(THEOREMS) == sum(map(len, CHAPTERS.values())), "two statements of one name"


def named(theorem: Theorem | str) -> Theorem:
    """Look up a statement by its id; a statement itself is returned unchanged.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or the catalogue has no statement of that id.
    """
    if isinstance(theorem, str):
        if theorem not in THEOREMS:
            if meant := hint(theorem, THEOREMS, most=3):
                raise ValueError(f"unknown theorem {theorem!r}{meant}; THEOREMS, or --list, has all")
            raise ValueError(f"unknown theorem {theorem!r}; known theorems: {', '.join(THEOREMS)}")
        return THEOREMS[theorem]
    if not isinstance(theorem, Theorem):
        raise TypeError(f"a theorem is a Theorem or the id of one, not {theorem!r}")
    return theorem


def _reduced(theorem: Theorem) -> tuple[Any, tuple[Any, ...]]:
    """Pickle a statement of the catalogue by its id, since predicates cannot be pickled."""
    if THEOREMS.get(theorem.name) is theorem:
        return named, (theorem.name,)
    return Theorem, tuple(getattr(theorem, field.name) for field in fields(theorem))


copyreg.pickle(Theorem, _reduced)
