"""Calls that ``torch.compile`` does not trace. Importing this module imports the compiler (two seconds)."""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function and return its result."""
    return function(*given, **named)
