"""Algorithms with every operation, and operands for them."""

import numpy as np

import mcfsim as mcf
from mcfsim.kernels.carriers import carrier_of
from tests.oracle.operands import corners


def every(ar, a, b, c):
    """Each operation once."""
    return (
        *(ar.add(a, b), ar.sub(a, b), ar.mul(a, b), ar.div(a, b), ar.sqrt(a), ar.fma(a, b, c)),
        *(ar.neg(a), ar.abs(a), ar.sign(a)),
    )


def with_scalar(ar, a, b, rate):
    """Operations with a real scalar, and one that the text itself has."""
    return ar.mul(a, -rate), ar.div(a, rate), ar.add(b, rate), ar.fma(a, rate, b), ar.add(a, 0.1)


def values(fmt, shape, seed=0):
    """Return values of a format in its carrier, those at the ends of its range among them."""
    fmt, rng = mcf.get_format(fmt), np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        pool = mcf.round_to(rng.standard_normal(2000) * 2.0 ** rng.integers(-12, 12, 2000), fmt)
        pool = np.concatenate([pool, mcf.round_to(corners(fmt), fmt)])
    return rng.choice(pool.astype(carrier_of(fmt)), shape)


def alike(assert_same, found, expected):
    """Assert that nested results are the same, with their shapes and dtypes."""
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            alike(assert_same, mine, other)
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        assert_same(found, expected)
