"""Tables of low rank: the choice of cells, their completion, and frontiers, by trying all there are."""

import numpy as np
import pytest

from experiments.low_rank import best_rank, complete, d_optimal, embeddings, frontier, regret


def table(rng, rows, columns, rank):
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))


def test_a_table_of_low_rank_is_completed_exactly():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rank, columns = int(rng.integers(1, 5)), int(rng.integers(10, 30))
        whole = table(rng, 8, columns, rank)
        vectors = embeddings(whole[:-1], rank)
        chosen = d_optimal(vectors, int(rng.integers(rank, columns)))
        assert len(set(chosen)) == len(chosen)
        found = complete(vectors, chosen, whole[-1, chosen])
        np.testing.assert_allclose(found, whole[-1], atol=1e-8 * np.abs(whole).max())
        assert np.array_equal(found[chosen], whole[-1, chosen])


def test_each_choice_makes_the_determinant_the_largest():
    """By the determinant itself: of the Gram matrix of vectors first, and then of their information."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        rank = int(rng.integers(1, 5))
        vectors = rng.standard_normal((rank, 9))
        chosen = d_optimal(vectors, 7)
        for count in range(7):
            before = chosen[:count]

            def size(item, vectors=vectors, before=before, rank=rank):
                x = vectors[:, [*before, item]]
                return np.linalg.det(x.T @ x if len(before) < rank else x @ x.T)

            best = max(size(item) for item in range(9) if item not in before)
            assert size(chosen[count]) >= best * (1 - 1e-9)


def test_the_rank_is_found():
    rng = np.random.default_rng(3)
    for rank in (1, 2, 3):
        whole = table(rng, 8, 30, rank)
        assert best_rank(whole + 1e-9 * rng.standard_normal(whole.shape), 6) == rank


def test_frontiers_are_those_by_definition():
    rng = np.random.default_rng(4)
    for _ in range(200):
        costs, losses, guess = rng.integers(0, 6, (3, int(rng.integers(1, 9)))).astype(float)
        places = range(len(costs))
        kept = frontier(costs, losses)
        pairs = {(costs[i], losses[i]) for i in places}
        best = {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
        assert {(costs[i], losses[i]) for i in kept} == best
        assert len(kept) == len(best)
        assert regret(costs, losses, losses) == 0
        worst = 0.0
        for budget in set(costs):
            able = [i for i in frontier(costs, guess) if costs[i] <= budget]
            pick = max(able, key=lambda i: costs[i])
            worst = max(worst, losses[pick] - min(losses[i] for i in places if costs[i] <= budget))
        assert regret(costs, losses, guess) == worst


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="rank = 4"):
        embeddings(np.ones((3, 5)), 4)
    with pytest.raises(ValueError, match="not finite"):
        embeddings(np.array([[1.0, np.nan]]), 1)
    with pytest.raises(ValueError, match="6 columns of 5"):
        d_optimal(np.ones((2, 5)), 6)
