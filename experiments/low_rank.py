"""A table of low rank, known by a few of its cells: which cells to look at, and what the others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

Table = NDArray[np.float64]


def embeddings(known: Table, rank: int) -> Table:
    """Return a vector of so many numbers for each column of a table, by its singular vectors.

    Parameters
    ----------
    known : array, shape (tasks, configurations)
        Whole rows.
    rank : int
        From 1 to the smaller of its sizes.

    Returns
    -------
    array, shape (rank, configurations)
        Right singular vectors, each times its singular value.

    Raises
    ------
    ValueError
        If the rank is out of range, or a number is not finite.
    """
    if not 1 <= rank <= min(known.shape):
        raise ValueError(f"rank = {rank} of a table of {known.shape[0]} rows and {known.shape[1]} columns")
    if not np.isfinite(known).all():
        raise ValueError("the rows that are known have numbers that are not finite")
    _, values, vectors = np.linalg.svd(known, full_matrices=False)
    made: Table = values[:rank, None] * vectors[:rank]
    return made


def d_optimal(vectors: Table, count: int) -> list[int]:
    """Return the columns to look at: `count` of them, whose vectors span the most.

    The first ones are the pivots of QR with pivoting: each the longest of what is left of the vectors when
    those chosen are taken away, which makes the determinant of the information matrix grow the most. Where
    all directions are taken, the next one is that by which ``log det(X X^T)`` grows the most.

    References
    ----------
    Yang, Wu, Fan, Udell, PEPPP, arXiv 2106.09686: measurements of a new task by D-optimal design.
    """
    rank, columns = vectors.shape
    if not 1 <= count <= columns:
        raise ValueError(f"{count} columns of {columns} are to be chosen")
    pivots = qr(vectors, mode="economic", pivoting=True)[2]
    chosen: list[int] = pivots[: min(rank, count)].tolist()
    while len(chosen) < count:
        known = vectors[:, chosen]
        inverse = np.linalg.pinv(known @ known.T)
        gain = np.einsum("rc,rs,sc->c", vectors, inverse, vectors)
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
    return chosen


def complete(vectors: Table, chosen: Sequence[int], seen: Any) -> Table:
    """Return a row of which some columns are known, the others completed by least squares on the vectors.

    What is seen stays as it is.
    """
    chosen = list(chosen)
    weights = np.linalg.lstsq(vectors[:, chosen].T, np.asarray(seen, float), rcond=None)[0]
    row: Table = weights @ vectors
    row[chosen] = seen
    return row


def best_rank(known: Table, count: int) -> int:
    """Return the rank by which each of the known rows is best completed from so many cells by the others.

    The sum of squares of what is completed decides; of equal ranks the smallest.
    """
    errors = {}
    for rank in range(1, min(count, len(known) - 1) + 1):
        errors[rank] = 0.0
        for row in range(len(known)):
            vectors = embeddings(np.delete(known, row, axis=0), rank)
            chosen = d_optimal(vectors, count)
            errors[rank] += float(np.square(complete(vectors, chosen, known[row, chosen]) - known[row]).sum())
    return min(errors, key=lambda rank: (errors[rank], rank))


def frontier(costs: Table, losses: Table) -> list[int]:
    """Return the places that no other beats in cost and loss, the cheapest first; of equals the first."""
    order = sorted(range(len(costs)), key=lambda item: (costs[item], losses[item], item))
    kept: list[int] = []
    for item in order:
        if not kept or losses[item] < losses[kept[-1]]:
            kept.append(item)
    return kept


def regret(costs: Table, losses: Table, forecast: Table) -> float:
    """Return the most that is lost, over all budgets, by following a forecast frontier.

    At a budget the dearest place of the forecast frontier that it affords is taken; what is lost is its loss
    less the least that any place has within the budget.
    """
    picks = frontier(costs, forecast)
    worst = 0.0
    for budget in np.unique(costs):
        mine = [item for item in picks if costs[item] <= budget][-1]
        worst = max(worst, float(losses[mine] - losses[costs <= budget].min()))
    return worst
