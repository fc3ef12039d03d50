"""The codes of parameters that steps change, recorded exactly and without a copy of all weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.checks import check_flag
from mcfsim.kernels.torch_tensors import as_array, check_dense
from mcfsim.models import transfer
from mcfsim.torch.change_log import INTEGERS, ChangeLog, places_of
from mcfsim.torch.local import is_spread, local, spread_as, stretches
from mcfsim.torch.moved import Work
from mcfsim.torch.step import StoredOptimizer


class ChangeRecorder:
    """A recorder of the codes that an optimizer's steps change; see `changes`."""

    def __init__(self, optimizer: StoredOptimizer, *, before: bool) -> None:
        self._optimizer, self._before = optimizer, before
        #: The logs of each parameter, by the index in its local part of the first element that a log covers.
        self._logs: dict[torch.Tensor, dict[int, ChangeLog]] = {}
        optimizer.watches.append(self)

    def __enter__(self) -> ChangeRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End the recording; what was recorded stays."""
        if self in self._optimizer.watches:
            self._optimizer.watches.remove(self)

    def clear(self) -> None:
        """Begin anew: from now on changes count from the present codes."""
        for logs in self._logs.values():
            for log in logs.values():
                log.clear()

    def see(self, works: Sequence[Work]) -> None:
        """Hand logs to the parts of parameters that a step is about to move."""
        for work in works:
            filled = (place for place, x in enumerate(work.moved) if x.gradient.numel())
            for p in work.parameters:
                logs, done = self._logs.setdefault(p, {}), 0
                while done < local(p).numel():
                    place = next(filled)
                    part = work.moved[place]
                    if done not in logs:
                        logs[done] = ChangeLog(part.tensors["parameter"], before=self._before)
                    if logs[done].size != part.gradient.numel():
                        raise ValueError(
                            f"a parameter of shape {tuple(p.shape)} had another one when its changes began "
                            "to be recorded; remove() the recorder, and record anew"
                        )
                    work.moved[place] = part._replace(log=logs[done])
                    done += part.gradient.numel()

    def mask(self, parameter: torch.Tensor, *, returned: bool = True) -> torch.Tensor:
        """Return where a parameter's codes have changed: bool, of its shape, distributed as it is.

        Parameters
        ----------
        parameter : tensor
            A parameter of the optimizer.
        returned : bool, optional
            Whether to count codes that one step changed and another changed back; see `changes`.

        Raises
        ------
        ValueError
            If it is no parameter of this optimizer; or codes that returned are not to count, and old codes
            are not kept.
        mcfsim.checks.SpoiltStateError
            If a step was broken off half-way.
        """
        whole = parameter.detach()
        return spread_as(whole, self._mask(parameter, returned=returned).view(local(whole).shape))

    def indices(self, parameter: torch.Tensor, *, returned: bool = True) -> torch.Tensor:
        """Return the row-major indices of the codes that have changed: int64, ascending.

        If the parameter is distributed, they are those of this process, counted in the whole parameter.
        Arguments and exceptions are those of `mask`.
        """
        return _counted(parameter, self._places(parameter, returned=returned))

    def values(self, parameter: torch.Tensor, *, returned: bool = True) -> torch.Tensor:
        """Return the present numbers at `indices`, as a vector in the parameter's dtype."""
        return _codes(parameter)[self._places(parameter, returned=returned)].view(parameter.dtype)

    def delta(self, parameter: torch.Tensor) -> transfer.Delta:
        """Return the change since the last `clear`, on the CPU, to be encoded.

        If old codes are kept, the result contains them, and leaves out codes that returned. If the parameter
        is distributed, the result has the changes in this process. The changes of different processes are at
        different places, and can be applied one after another.
        """
        places, before = self._places(parameter, returned=True), None
        codes = _codes(parameter)
        if self._before:
            places, old = self._old(parameter)
            differs = codes[places] != old
            places, before = places[differs], _unsigned(old[differs])
        indices = _counted(parameter, places).cpu().numpy()
        return transfer.Delta(parameter.numel(), indices, _unsigned(codes[places]), before)

    def share(self, *, returned: bool = True) -> float:
        """Return the share of all codes in this process that have changed; NaN if there are no codes."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        whole = sum(local(p).numel() for p in parameters)
        changed = sum(int(self._mask(p, returned=returned).sum()) for p in parameters)
        return changed / whole if whole else float("nan")

    def _found(self, parameter: torch.Tensor) -> dict[int, ChangeLog]:
        self._optimizer.whole.check()
        self._optimizer.group_of(parameter)  # raises if it is no parameter of it
        return self._logs.get(parameter, {})

    def _mask(self, parameter: torch.Tensor, *, returned: bool) -> torch.Tensor:
        """Return where codes of a parameter's local part have changed, as a vector."""
        logs, here = self._found(parameter), local(parameter.detach())
        mask = torch.zeros(here.numel(), dtype=torch.bool, device=here.device)
        if returned:
            for first, log in logs.items():
                there = log.touched()
                mask[first : first + there.numel()] = there
        else:
            places, before = self._old(parameter)
            mask[places] = _codes(parameter)[places] != before
        return mask

    def _places(self, parameter: torch.Tensor, *, returned: bool) -> torch.Tensor:
        return places_of(self._mask(parameter, returned=returned))

    def _old(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of codes that steps have changed in the local part, and their old codes."""
        logs = self._found(parameter)
        if not self._before:
            raise ValueError("old codes are not kept; record with changes(optimizer, before=True)")
        none = _codes(parameter)[:0]
        parts = [(first, *log.before()) for first, log in sorted(logs.items())]
        places = torch.cat([none.long(), *(there + first for first, there, _ in parts)])
        return places, torch.cat([none, *(old for _, there, old in parts if there.numel())])


def _counted(parameter: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the indices in the whole parameter, given those in its local part."""
    if not is_spread(parameter):
        return places
    whole, here = parameter.detach(), local(parameter.detach())
    runs = [(first, here[place].numel()) for first, place in stretches(whole)]
    begins, sizes = torch.tensor(runs or [(0, 0)], device=places.device).T
    ends = sizes.cumsum(0)
    row = torch.searchsorted(ends, places, right=True)
    return places + (begins - ends + sizes)[row]


def _codes(parameter: torch.Tensor) -> torch.Tensor:
    """Return the codes of a parameter's local part as a vector of integers."""
    here = local(parameter.detach()).resolve_neg()
    return here.reshape(-1).view(INTEGERS[here.itemsize])


def _unsigned(codes: torch.Tensor) -> NDArray[Any]:
    found: NDArray[Any] = codes.cpu().numpy()
    return found.view(np.dtype(f"u{found.itemsize}"))


def changes(optimizer: StoredOptimizer, *, before: bool = False) -> ChangeRecorder:
    """Record which codes of its parameters an optimizer's steps change, from inside the steps.

    A code is a weight's bytes in the parameter, which others read. Bytes are compared, so 0 and -0 differ,
    and so do different codes of NaN. Compensations, further components and master copies are not compared.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
    before : bool, optional
        Whether to keep, too, the old code of each weight that changes.

    Returns
    -------
    ChangeRecorder
        Its ``mask``, ``indices``, ``values`` and ``delta`` of a parameter cover all steps since the last
        ``clear()``, or since the recording began. Its ``remove()``, or the end of a ``with`` block, ends the
        recording.

    Raises
    ------
    TypeError
        If `optimizer` is no optimizer of `mcfsim.torch`, or `before` no bool.
    ValueError
        If its changes are recorded already.

    Notes
    -----
    After several steps a code may have returned to what it was. It counts as changed, unless old codes are
    kept and ``returned=False`` is given. The present values of all codes that count as changed bring an old
    copy of the weights up to date.

    A bit is stored for each code; for each old code that is kept, the code and an index of 4 bytes (8 beyond
    2**31 - 1 elements). During its step a parameter has a vector beside it that says where codes differ: a
    byte for each code, or, if old codes are kept, an integer of the code's size.

    Steps made by `step` count, also compiled ones, and so do those in the backward pass. Steps of captured
    graphs cannot be recorded, and raise RuntimeError. What others write is not seen: call ``clear()`` after
    loading weights or a state.

    Examples
    --------
    >>> import mcfsim.torch
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 0.001]).bfloat16())
    >>> optimizer = mcfsim.torch.AdamW([weight], lr=1e-3, strategy="plain")
    >>> with mcfsim.torch.changes(optimizer) as changed:
    ...     weight.grad = torch.ones_like(weight)
    ...     optimizer.step()
    >>> changed.mask(weight)
    tensor([False,  True])
    """
    if not isinstance(optimizer, StoredOptimizer):
        raise TypeError(
            f"only changes by optimizers of mcfsim.torch are recorded, not by {type(optimizer).__name__}"
        )
    check_flag("before", before)
    if any(isinstance(watch, ChangeRecorder) for watch in optimizer.watches):
        raise ValueError("changes of this optimizer are recorded already; remove() that recorder first")
    return ChangeRecorder(optimizer, before=before)


def apply_delta(data: bytes, tensor: torch.Tensor) -> int:
    """Apply a change encoded by `mcfsim.Delta.encode` to a tensor, in place; see `mcfsim.apply_delta`.

    Parameters
    ----------
    data : bytes
        The encoded change.
    tensor : tensor
        The old weights, dense, on any device; it may be a parameter.

    Returns
    -------
    int
        How many codes changed.

    Raises
    ------
    TypeError
        If `data` are not bytes, or `tensor` is not a dense tensor, or is distributed.
    ValueError
        If the bytes are damaged, or the change is of other weights. Nothing is written then.
    """
    if not isinstance(tensor, torch.Tensor) or is_spread(tensor):
        raise TypeError(f"a change is applied to a tensor of one process, not to a {type(tensor).__name__}")
    whole = tensor.detach()
    check_dense(whole)
    here = whole.cpu().resolve_neg().contiguous()
    count = transfer.apply_delta(data, as_array(here))
    if here.data_ptr() != whole.data_ptr():
        whole.copy_(here)
    torch.autograd.graph.increment_version(tensor)
    return count
