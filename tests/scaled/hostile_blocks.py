"""Arrays of binary32 whose blocks are hard to quantise, some of all kinds and some of one size."""

import numpy as np


def hostile_rows(rows, columns, size, seed, element_top=6.0, top=448.0):
    """Return rows of blocks: of many sizes, ties, edges of binades, zeros, subnormal numbers, and no numbers.

    Parameters
    ----------
    rows, columns : int
    size : int
        The elements of a block.
    seed : int
    element_top, top : float
        Largest element and largest scale, whose multiples are edges.
    """
    rng = np.random.default_rng(seed)
    blocks = -(-columns // size)
    x = rng.standard_normal((rows, blocks, size))
    kinds = rng.integers(0, 10, (rows, blocks))
    spread = rng.integers(-24, 8, (rows, blocks, 1))
    x *= np.where((kinds == 1)[..., None], 2.0**spread, 1.0)
    steps = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0, -0.0], (rows, blocks, size))
    x = np.where((kinds == 2)[..., None], steps * 2.0**spread, x)  # ties
    edges = rng.choice([1.0, 1.5, 1.75, element_top, top, 1.9999999, 1.0000001], (rows, blocks))
    edges = edges * (1 + rng.integers(-3, 4, (rows, blocks)) * 2.0**-23)  # and beside these
    x = np.where((kinds == 3)[..., None], np.clip(x, -0.9, 0.9), x)
    x[..., 0] = np.where(kinds == 3, edges * 2.0 ** spread[..., 0], x[..., 0])
    x = np.where((kinds == 4)[..., None], rng.choice([0.0, -0.0], x.shape), x)
    x = np.where((kinds == 5)[..., None], rng.integers(-99, 99, x.shape) * 2.0**-149, x)  # subnormal
    x = np.where((kinds == 6)[..., None], x * 2.0**-127, x)
    hugest = rng.integers(0, size, (rows, blocks))
    one = np.arange(size) == hugest[..., None]
    x = np.where((kinds == 7)[..., None] & one, x * 2.0**12, x)  # one huge
    return np.ascontiguousarray(x.reshape(rows, -1)[:, :columns], np.float32)


def with_no_numbers(x, seed):
    """Return the array with infinities and NaN in some places."""
    rng = np.random.default_rng(seed)
    x = x.copy()
    places = rng.integers(0, x.size, max(2, x.size // 300))
    x.reshape(-1)[places] = rng.choice(np.float32([np.inf, -np.inf, np.nan]), places.size)
    return x
