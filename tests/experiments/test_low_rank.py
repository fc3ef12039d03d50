"""Tables of low rank: the choice of cells, their completion, and frontiers, by trying all there are."""

import numpy as np
import pytest

from experiments.low_rank import best_rank, complete, d_optimal, embeddings, frontier, regret


def table(rng, rows, columns, rank):
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))


def test_a_table_of_low_rank_is_completed_exactly_and_its_rank_found():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rank, columns = int(rng.integers(1, 5)), int(rng.integers(10, 30))
        whole = table(rng, 8, columns, rank)
        vectors = embeddings(whole[:-1], rank)
        chosen = d_optimal(vectors, int(rng.integers(rank, columns)))
        found = complete(vectors, chosen, whole[-1, chosen])
        np.testing.assert_allclose(found, whole[-1], atol=1e-8 * np.abs(whole).max())
        assert np.array_equal(found[chosen], whole[-1, chosen])
    for rank in (1, 2, 3):
        whole = table(rng, 8, 30, rank)
        assert best_rank(whole + 1e-9 * rng.standard_normal(whole.shape), 6) == rank


def test_each_choice_makes_the_determinant_the_largest():
    """By the determinant itself: of the Gram matrix of vectors first, and then of their information."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        rank = int(rng.integers(1, 5))
        vectors = rng.standard_normal((rank, 9))
        chosen = d_optimal(vectors, 7)
        assert len(set(chosen)) == 7
        for count in range(7):
            sizes = {}
            for item in set(range(9)) - set(chosen[:count]):
                x = vectors[:, [*chosen[:count], item]]
                sizes[item] = np.linalg.det(x.T @ x if count < rank else x @ x.T)
            assert sizes[chosen[count]] >= max(sizes.values()) * (1 - 1e-9)


def test_frontiers_are_those_by_definition():
    rng = np.random.default_rng(4)
    for _ in range(200):
        costs, losses, guess = rng.integers(0, 6, (3, int(rng.integers(1, 9)))).astype(float)
        kept = frontier(costs, losses)
        pairs = set(zip(costs, losses, strict=True))
        best = {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
        assert sorted((costs[i], losses[i]) for i in kept) == sorted(best)
        assert regret(costs, losses, losses) == 0
        worst = 0.0
        for budget in set(costs):
            pick = max((i for i in frontier(costs, guess) if costs[i] <= budget), key=lambda i: costs[i])
            worst = max(worst, losses[pick] - min(losses[costs <= budget]))
        assert regret(costs, losses, guess) == worst


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: embeddings(np.ones((3, 5)), 4), "rank = 4"),
        (lambda: embeddings(np.array([[1.0, np.nan]]), 1), "not finite"),
        (lambda: d_optimal(np.ones((2, 5)), 6), "6 columns of 5"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
