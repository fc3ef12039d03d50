"""What rounding costs a run while it goes on: lost arithmetic and EDQ, seen every some steps."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mcfsim.checks.arguments import whole_number
from mcfsim.storage.files import telling
from mcfsim.torch.local import is_first_process, is_spread
from mcfsim.torch.moved import Moved
from mcfsim.torch.step import StoredOptimizer
from mcfsim.torch.work import Work
from mcfsim.training.tally import Tally

#: Elements that are looked at together.
AT_ONCE = 1 << 22


class Seen(NamedTuple):
    """What a step costs a group of parameters.

    Attributes
    ----------
    step : int
        Its number, from 1.
    group : int or None
        The group's number; None of all groups together, if there are several, and all make this step.
    lost : float
        The share of elements that were to move, and whose represented value did not.
    edq : float
        ``<D, E> / ||D||**2`` of the update D that was asked for, and E that was made: 1 if nothing is lost.
    """

    step: int
    group: int | None
    lost: float
    edq: float


class Watch:
    """Looks at an optimizer's steps, see `watch`.

    Attributes
    ----------
    seen : list of Seen
        All of them so far.
    """

    def __init__(self, optimizer: StoredOptimizer, every: int, tell: Callable[[Seen], Any]) -> None:
        self.seen: list[Seen] = []
        self._optimizer, self._every, self._tell = optimizer, every, tell
        optimizer.watches.append(self)

    def remove(self) -> None:
        """Look no more."""
        if self in self._optimizer.watches:
            self._optimizer.watches.remove(self)

    def see(self, works: Sequence[Work]) -> None:
        """Look at a step before it is made: it is made of copies, some parameters at a time."""
        parameters = (p for group in self._optimizer.param_groups for p in group["params"])
        shared = any(is_spread(p) for p in parameters)
        tallies: dict[tuple[int, int], list[Tally]] = {}
        for work in works:
            if work.count % self._every == 0:
                tally = tallies.setdefault((work.count, work.group), [])
                counted = [x for x in work.moved if x.counted or not shared]
                tally += [_tally(work, part) for part in _parts(counted)]
        if not tallies:
            return
        found = {key: Tally.joined(parts) for key, parts in tallies.items()}
        if shared:
            found = _of_all_processes(found)
        of_all = sum(bool(group["params"]) for group in self._optimizer.param_groups)
        for count in dict.fromkeys(count for count, _ in found):
            groups: dict[int | None, Tally] = {
                group: tally for (step, group), tally in found.items() if step == count
            }
            if len(groups) == of_all > 1:
                groups[None] = Tally.joined(groups.values())
            for group, whole in groups.items():
                self.seen.append(Seen(count, group, whole.lost, whole.normalized_edq))
                if is_first_process():
                    self._tell(self.seen[-1])


def watch(optimizer: StoredOptimizer, every: int = 100, to: Any = None) -> Watch:
    """Have lost arithmetic and EDQ of each group of parameters, and of all, measured every some steps.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
    every : int, optional
        Steps whose number is a multiple of it are looked at.
    to : callable, str, path or object with ``add_scalar``, optional
        Who is told: ``to(seen)`` is called with each `Seen`; or it is the path of a CSV file, to which lines
        are added; or a writer of TensorBoard. By default nobody is: `Watch.seen` has all.

    Returns
    -------
    Watch
        Whose ``remove()`` ends it.

    Raises
    ------
    TypeError
        If it is no optimizer of `mcfsim.torch`, or nothing can be told to `to`.
    ValueError
        If `every` is not positive.
    OSError
        If a file cannot be written.

    Notes
    -----
    The measures are those of `mcfsim.simulate`: D is the update before it is added, E the change of the
    number that the parameter stands for. A step that is looked at is made of copies first, and measured in
    binary64: on a CPU it takes some seven times as long. Memory for copies of four million elements, or of
    the largest parameter, is needed. Nothing is changed by looking. NaN or infinity in a group makes its
    measures NaN. Of parameters that several processes share, all measure together, and all must look at the
    same steps; the first process tells.
    """
    if not isinstance(optimizer, StoredOptimizer):
        raise TypeError(f"only optimizers of mcfsim.torch are watched, not {type(optimizer).__name__}")
    return Watch(optimizer, whole_number("every", every, least=1), _teller(to))


def _teller(to: Any) -> Callable[[Seen], Any]:
    """Return a function that tells what was seen."""
    if to is None:
        return lambda seen: None
    if isinstance(to, str | Path):
        return _File(Path(to)).add
    if hasattr(to, "add_scalar"):

        def write(seen: Seen) -> None:
            of = "all" if seen.group is None else f"group {seen.group}"
            for name in ("lost", "edq"):
                to.add_scalar(f"mcfsim/{name}/{of}", getattr(seen, name), seen.step)

        return write
    if callable(to):
        told: Callable[[Seen], Any] = to
        return told
    raise TypeError(
        f"to must be a function, the path of a CSV file, or have add_scalar, and not be a {type(to).__name__}"
    )


class _File:
    """A CSV file, to which lines are added; its head is written first, if it is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with telling(path), path.open("a", newline="") as file:
            if not file.tell() and is_first_process():
                csv.writer(file).writerow(Seen._fields)

    def add(self, seen: Seen) -> None:
        with telling(self._path), self._path.open("a", newline="") as file:
            csv.writer(file).writerow(seen)


def _parts(moved: Sequence[Moved]) -> Iterator[list[Moved]]:
    """Yield parameters, so many at a time that copies of them take little memory."""
    part: list[Moved] = []
    size = 0
    for x in moved:
        if part and size + x.gradient.numel() > AT_ONCE:
            yield part
            part, size = [], 0
        part.append(x)
        size += x.gradient.numel()
    if part:
        yield part


def _tally(work: Work, moved: Sequence[Moved]) -> Tally:
    copies = [x._replace(tensors={name: y.clone() for name, y in x.tensors.items()}) for x in moved]
    updates = work.on.asked(moved, work.hyper, work.count, work.rate)
    work.on.move(copies, work.hyper, work.count, work.rate)
    tally = Tally()
    for old, new, update in zip(moved, copies, updates, strict=True):
        before, after = (work.on.stores.represented(x.tensors) for x in (old, new))
        tally.add(update.cpu(), before, after)
    return tally


def _of_all_processes(found: dict[tuple[int, int], Tally]) -> dict[tuple[int, int], Tally]:
    """Return the tallies of all processes, joined."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    return {key: Tally.joined(x[key] for x in gathered if key in x) for key in found}
