"""The callers of a call: gradient checkpointing, which recomputes in the backward pass, or an ended call.

No public function tells, so the frames of calls are searched, in some microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import torch
import torch.utils.checkpoint


def is_running(caller: FrameType) -> bool:
    """Return whether a frame is one of those that called this, and has not ended."""
    return any(frame is caller for frame in _frames())


def is_checkpointed(caller: FrameType) -> bool:
    """Return whether checkpointing makes this call, or one on the way to it from a caller."""
    return any(True for _ in _names(caller))


def is_computed_anew() -> bool:
    """Return whether this call repeats one that was made with gradients already.

    Checkpointing that re-enters (``use_reentrant=True``) records gradients only the second time.
    """
    return torch._C._current_graph_task_id() >= 0 and "unpack_hook" in _names()


def _names(caller: FrameType | None = None) -> Iterator[str]:
    """Yield the names of functions of checkpointing that are running, the innermost first, up to a caller."""
    for frame in _frames():
        if frame is caller:
            return
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            yield frame.f_code.co_name


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
