"""Calls that ``torch.compile`` does not look into. Importing this imports the compiler, for two seconds."""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Return what a function returns."""
    return function(*given, **named)
