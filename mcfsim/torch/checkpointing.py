"""Whether a call is part of gradient checkpointing of PyTorch's, which computes anew in the backward pass.

Nothing public tells of it, so the frames of calls are looked through: some microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.utils.checkpoint


def is_checkpointed(caller: int | None = None) -> bool:
    """Return whether checkpointing makes this call, or one on the way to it from a caller.

    Parameters
    ----------
    caller : int, optional
        The identity of the frame that is looked up to; by default all are.
    """
    return any(True for _ in _names(caller))


def is_computed_anew() -> bool:
    """Return whether this call repeats one that was made with gradients already.

    Checkpointing that re-enters (``use_reentrant=True``) records gradients the second time alone.
    """
    return torch._C._current_graph_task_id() >= 0 and "unpack_hook" in _names(None)


def _names(caller: int | None) -> Iterator[str]:
    """Yield the names of functions of checkpointing that are being called, the innermost first."""
    frame = sys._getframe()
    while frame is not None and id(frame) != caller:
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            yield frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
