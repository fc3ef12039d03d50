"""Try every operand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.codec import all_values
from mcfsim.formats import Format, get_format
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.run import versions
from mcfsim.scratch import BLOCK
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Witness
from mcfsim.theorems.statement import Numbers, Theorem

WITNESSES = 8


def verify(
    theorem: Theorem | str,
    format: Format | str = "bfloat16",
    rounding: Rounding | str = "nearest_even",
    *,
    workers: int = 1,
    progress: bool = False,
) -> Certificate:
    """Check a statement on every operand of a format, overflow, subnormals and signed zeros included.

    Parameters
    ----------
    theorem : Theorem or str
        A statement, or its id in `THEOREMS`.
    format : Format or str, optional
        At most 16 bits; a statement about pairs then has 2**32 of them.
    rounding : str or Rounding, optional
        A name of `mcfsim.rounding.Mode`.
    workers : int, optional
        Threads.
    progress : bool, optional
        Show a progress bar.

    Returns
    -------
    Certificate
        With the exact number of operands, and witnesses of what fails.

    Raises
    ------
    ValueError
        If the statement is unknown, or the format has more than 16 bits, or more than 11 bits of precision,
        beyond which the exact checks are not.
    """
    if isinstance(theorem, str):
        if theorem not in THEOREMS:
            raise ValueError(f"unknown theorem {theorem!r}; known theorems: {', '.join(THEOREMS)}")
        theorem = THEOREMS[theorem]
    fmt, policy = get_format(format), get_rounding(rounding)
    if policy.stochastic:
        raise ValueError("stochastic rounding is not verified: statements are about one result an operand")
    if fmt.bits > 16 or fmt.precision > 11:
        raise ValueError(
            f"{fmt} is too large to try every operand; formats of at most 16 bits can be verified"
        )
    start = time.perf_counter()
    values = all_values(fmt)
    values = values[np.isfinite(values)]
    ar = BlockArithmetic(fmt, policy, "exact")
    applicable = violations = 0
    witnesses: list[Witness] = []

    def try_block(operands: tuple[Any, ...]) -> tuple[int, int, list[Witness]]:
        with np.errstate(all="ignore"):
            returned = theorem.algorithm(ar, *operands)
            wide = tuple(item.astype(np.float64) for item in operands)
            results = tuple(item.astype(np.float64) for item in returned)
            there = theorem.where(fmt, wide, results)
            failing = there & ~theorem.claim(fmt, wide, results)
        found = np.flatnonzero(failing)
        shown = [Witness(_hex(wide, i), _hex(results, i)) for i in found[:WITNESSES]]
        return int(np.count_nonzero(there)), found.size, shown

    total = values.size**theorem.operands
    blocks = _blocks(values, theorem.operands)
    with ThreadPoolExecutor(workers) as pool, _Bar(total if progress else 0, theorem.name) as bar:
        # A few blocks at a time, in order, so that the witnesses are the first ones.
        while batch := list(islice(blocks, 16 * workers)):
            for tried, failed, shown in pool.map(try_block, batch):
                applicable, violations = applicable + tried, violations + failed
                witnesses += shown[: WITNESSES - len(witnesses)]
            bar.advance(sum(item[0].size for item in batch))
    return Certificate(
        theorem=theorem.name,
        statement=theorem.statement,
        source=theorem.source,
        format=fmt.name,
        rounding=str(policy.mode),
        tried=total,
        applicable=applicable,
        violations=violations,
        witnesses=tuple(witnesses),
        claimed=theorem.claimed(fmt, policy),
        seconds=time.perf_counter() - start,
        versions=versions(),
    )


def _blocks(values: Any, operands: int) -> Iterator[tuple[Any, ...]]:
    """Yield every tuple of operands once, a block at a time, the last operand running fastest."""
    if operands == 1:
        for start in range(0, values.size, BLOCK):
            yield (values[start : start + BLOCK],)
        return
    rows = max(1, BLOCK // values.size)
    for start in range(0, values.size, rows):
        first = values[start : start + rows]
        yield np.repeat(first, values.size), np.tile(values, first.size)


def _hex(numbers: tuple[Numbers, ...], index: int) -> tuple[str, ...]:
    return tuple(float(item[index]).hex() for item in numbers)


class _Bar:
    """A progress bar with operands tried and time left, or none if there is nothing to show."""

    def __init__(self, total: int, label: str) -> None:
        self.bar: Any = None
        if total:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True))
            self.task = self.bar.add_task(label, total=total)

    def __enter__(self) -> _Bar:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, tried: int) -> None:
        """Move on."""
        if self.bar:
            self.bar.advance(self.task, tried)
