"""Blocks of a long vector in stripes, which threads share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mcfsim.checks.processor import check_processor
from mcfsim.optim.edges import Edges

#: Elements of a stripe: so many that each thread reads files and memory in order for long, and few enough
#: that all end at about the same time.
_STRIPE = 1 << 22


def in_stripes(
    work: Callable[[slice], object], part: slice, block: int, threads: int, edges: Edges | None = None
) -> None:
    """Call a function for each block of a range, in order on one thread, in order in each stripe on several.

    Parameters
    ----------
    work : callable
        Takes the block; those of different blocks must not get in each other's way.
    part : slice
        The range, from a start to a stop.
    block, threads : int
        Elements a block, and how many threads there are.
    edges : Edges, optional
        Where a block must begin and end, and so must the range.
    """

    def along(stripe: slice) -> None:
        check_processor()  # a setting of each thread
        for one in blocks(stripe, block, edges):
            work(one)

    size = part.stop - part.start
    if threads == 1 or size <= block:
        along(part)
        return
    share = -(-size // threads)
    stripe = -(-min(share, _STRIPE) // block) * block
    pool = ThreadPoolExecutor(threads)
    try:
        list(pool.map(along, blocks(part, stripe, edges)))
    finally:
        pool.shutdown(cancel_futures=True)


def blocks(part: slice, size: int, edges: Edges | None = None) -> Iterator[slice]:
    """Yield a range in blocks of so many elements; the last one may be shorter.

    With edges a block ends at the last one that it reaches, and has a whole group at least.
    """
    if edges is not None:
        size = max(size, edges.group)
    start = part.start
    while start < part.stop:
        stop = min(start + size, part.stop)
        stop = stop if edges is None else edges.last(stop)
        yield slice(start, stop)
        start = stop
