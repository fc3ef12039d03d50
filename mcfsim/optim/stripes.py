"""Blocks of a long vector in stripes, which threads share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mcfsim.checks.processor import check_subnormals

#: Elements of a stripe: so many that each thread reads files and memory in order for long, and few enough
#: that all end at about the same time.
_STRIPE = 1 << 22


def in_stripes(work: Callable[[slice], object], part: slice, block: int, threads: int) -> None:
    """Call a function for each block of a range, in order on one thread, in order in each stripe on several.

    Parameters
    ----------
    work : callable
        Takes the block; those of different blocks must not get in each other's way.
    part : slice
        The range, from a start to a stop.
    block, threads : int
        Elements a block, and how many threads there are.
    """

    def along(stripe: slice) -> None:
        check_subnormals()  # a setting of each thread
        for one in blocks(stripe, block):
            work(one)

    size = part.stop - part.start
    if threads == 1 or size <= block:
        along(part)
        return
    share = -(-size // threads)
    stripe = -(-min(share, _STRIPE) // block) * block
    pool = ThreadPoolExecutor(threads)
    try:
        list(pool.map(along, blocks(part, stripe)))
    finally:
        pool.shutdown(cancel_futures=True)


def blocks(part: slice, size: int) -> Iterator[slice]:
    """Yield a range in blocks of so many elements; the last one may be shorter."""
    for start in range(part.start, part.stop, size):
        yield slice(start, min(start + size, part.stop))
