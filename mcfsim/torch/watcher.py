"""Tools that observe a training loop: record its gradients, and measure what rounding costs its steps."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from mcfsim.checks import whole_number
from mcfsim.kernels.torch_tensors import as_array, check_module
from mcfsim.models.recorder import Recorder
from mcfsim.storage.files import Pathlike, telling
from mcfsim.torch.local import is_first_process, is_spread
from mcfsim.torch.moved import ParameterSlice, Work
from mcfsim.torch.step import StoredOptimizer
from mcfsim.torch.whole_step import as_found
from mcfsim.training.metrics import Tally


# -- gradients recorded -----------------------------------------------------------------------------------
class ModelRecorder:
    """A writer of the gradients of a model's parameters, one file per step; see `record`."""

    def __init__(self, model: torch.nn.Module, directory: Pathlike, *, after: int | None = None) -> None:
        check_module(model)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter that requires a gradient")
        weights = {name: _array(name, p) for name, p in self._parameters.items()}
        self._recorder = Recorder(weights, directory, after=after)

    @property
    def count(self) -> int:
        """The number of steps recorded."""
        return self._recorder.count

    def step(self, rate: float | None = None) -> None:
        """Write the gradients that the parameters have now, all of them or nothing.

        Call it after ``backward()``, and after gradients are clipped or unscaled, but before the optimizer's
        ``step()``.

        Parameters
        ----------
        rate : float, optional
            The learning rate of the step, for example ``optimizer.param_groups[0]["lr"]``.

        Raises
        ------
        TypeError
            If a gradient is not dense, or its dtype is not a floating dtype that files have.
        ValueError
            If a parameter has no gradient, a dtype differs from the step before, a number is NaN or infinite,
            or the rate is out of range.
        OutputError
            If the file cannot be written, or the disk has no room for it.
        """
        without = [name for name, p in self._parameters.items() if p.grad is None]
        if without:
            raise ValueError(
                f"{len(without)} parameters have no gradient, {without[0]!r} first; exclude untrained ones "
                "by requires_grad_(False) before recording, or give them gradients of zeros"
            )
        self._recorder.step({name: _array(name, p.grad) for name, p in self._parameters.items()}, rate)


def record(model: torch.nn.Module, directory: Pathlike, *, after: int | None = None) -> ModelRecorder:
    """Begin to record the gradients of a model's training loop, for `mcfsim.replay`.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters that require a gradient are the weights, on any device; a shared one counts once.
    directory, after
        As for `mcfsim.record`.

    Returns
    -------
    ModelRecorder
        Call its ``step(rate)`` once per step, between ``backward()`` and the optimizer's ``step()``.

    Raises
    ------
    TypeError
        If `model` is no module, or a parameter's dtype is not a floating dtype that files have.
    ValueError, OSError
        As in `mcfsim.record`; or if no parameter requires a gradient.

    Notes
    -----
    A parameter without a gradient is refused, and not recorded as zeros: a torch optimizer leaves such a
    parameter alone, whereas zeros let its moments and weights decay. Elements are copied to the CPU
    unchanged: bfloat16 stays bfloat16.
    """
    return ModelRecorder(model, directory, after=after)


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return as_array(tensor.detach().cpu())
    except TypeError as problem:
        raise TypeError(f"parameter {name!r}: {problem}") from problem


# -- what rounding costs ----------------------------------------------------------------------------------
#: The number of elements measured together.
AT_ONCE = 1 << 22


class Seen(NamedTuple):
    """The cost of rounding in one step of a group of parameters.

    Attributes
    ----------
    step : int
        The number of the step, from 1.
    group : int or None
        The group's number; None for all groups together, if there are several and all make this step.
    lost : float
        Among the elements with a nonzero update, the share whose represented value did not move.
    edq : float
        ``<D, E> / ||D||**2`` for the intended update D and the effective update E: 1 if nothing is lost.
    """

    step: int
    group: int | None
    lost: float
    edq: float


class Watch:
    """A watch on an optimizer that measures some of its steps; see `watch`.

    Attributes
    ----------
    seen : list of Seen
        All measurements so far.
    """

    def __init__(self, optimizer: StoredOptimizer, every: int, tell: Callable[[Seen], Any]) -> None:
        self.seen: list[Seen] = []
        self._optimizer, self._every, self._tell = optimizer, every, tell
        optimizer.watches.append(self)

    def remove(self) -> None:
        """End the watch."""
        if self in self._optimizer.watches:
            self._optimizer.watches.remove(self)

    def see(self, works: Sequence[Work]) -> None:
        """Measure a step before it is made, by making it on copies, some parameters at a time."""
        parameters = (p for group in self._optimizer.param_groups for p in group["params"])
        shared = any(is_spread(p) for p in parameters)
        tallies: dict[tuple[int, int], list[Tally]] = {}
        for work in works:
            if work.inputs.number % self._every == 0:
                tally = tallies.setdefault((work.inputs.number, work.group), [])
                counted = [x for x in work.moved if x.size and (x.counted or not shared)]
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
    """Measure lost arithmetic and EDQ in every `every`-th step, for each parameter group and for all.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
    every : int, optional
        Steps whose number is a multiple of it are measured.
    to : callable, str, path or object with ``add_scalar``, optional
        Where measurements go: ``to(seen)`` is called with each `Seen`; or it is the path of a CSV file, which
        gets a line for each; or a writer of TensorBoard. By default nowhere: `Watch.seen` has all.

    Returns
    -------
    Watch
        Its ``remove()`` ends the watch.

    Raises
    ------
    TypeError
        If `optimizer` is no optimizer of `mcfsim.torch`, or `to` is of none of these kinds.
    ValueError
        If `every` is not positive.
    OSError
        If a file cannot be written.

    Notes
    -----
    The measures are those of `mcfsim.simulate`: D is the update before it is added, E the change of the
    number that the parameter represents. A measured step is first made on copies, and measured in binary64;
    on a CPU it takes about six times as long. It needs memory for copies of four million elements, or of
    the largest parameter. Measuring changes nothing. NaN or infinity in a group makes its measures NaN. If
    processes share parameters, they measure together, and all must watch the same steps; the first process
    reports. Steps in the backward pass are measured as they are made, some parameters of a group at a time.
    """
    if not isinstance(optimizer, StoredOptimizer):
        raise TypeError(f"only optimizers of mcfsim.torch are watched, not {type(optimizer).__name__}")
    return Watch(optimizer, whole_number("every", every, least=1), _teller(to))


def _teller(to: Any) -> Callable[[Seen], Any]:
    """Return a function that reports a measurement to `to`."""
    if to is None:
        return lambda seen: None
    if isinstance(to, str | Path):
        return _line_writer(Path(to))
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
        f"to must be a function, the path of a CSV file, or have add_scalar, but is a {type(to).__name__}"
    )


def _line_writer(path: Path) -> Callable[[Seen], Any]:
    """Return a function that adds lines to a CSV file; if the file is new, its header is written first."""

    def add(cells: Sequence[Any]) -> None:
        line = io.StringIO()
        csv.writer(line).writerow(cells)
        with telling(path), path.open("ab", buffering=0) as file:
            end, rest = file.tell(), line.getvalue().encode()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)  # or the next line would go on this one
                raise

    with telling(path), path.open("ab") as file:
        new = not file.tell()
    if new and is_first_process():
        add(Seen._fields)
    return add


def _parts(moved: Sequence[ParameterSlice]) -> Iterator[list[ParameterSlice]]:
    """Yield parameters in batches small enough that copies of them take little memory."""
    part: list[ParameterSlice] = []
    size = 0
    for x in moved:
        if part and size + x.size > AT_ONCE:
            yield part
            part, size = [], 0
        part.append(x)
        size += x.size
    if part:
        yield part


def _tally(work: Work, moved: Sequence[ParameterSlice]) -> Tally:
    moved = as_found(work.on, moved, work.inputs)
    copies = [x.copied() for x in moved]
    updates: list[torch.Tensor] = []
    work.on.move(copies, work.inputs, updates)
    tally = Tally()
    for old, new, update in zip(moved, copies, updates, strict=True):
        before, after = (work.on.stores.represented(x.tensors) for x in (old, new))
        tally.add(update.cpu(), before, after)
    return tally


def _of_all_processes(found: dict[tuple[int, int], Tally]) -> dict[tuple[int, int], Tally]:
    """Return the joined tallies of all processes."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    return {key: Tally.joined(x[key] for x in gathered if key in x) for key in found}
