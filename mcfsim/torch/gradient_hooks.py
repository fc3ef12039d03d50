"""The gradients of a PyTorch training loop, recorded as it goes."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from mcfsim.backends.strung_tensors import as_array
from mcfsim.models.recorder import Recorder
from mcfsim.storage.files import Pathlike


class ModelRecorder:
    """Writes the gradients of a model's parameters, one file a step, see `record`."""

    def __init__(self, model: torch.nn.Module, directory: Pathlike, *, after: int | None = None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter that requires a gradient")
        weights = {name: _array(name, p) for name, p in self._parameters.items()}
        self._recorder = Recorder(weights, directory, after=after)

    @property
    def count(self) -> int:
        """Steps recorded."""
        return self._recorder.count

    def step(self, rate: float | None = None) -> None:
        """Write the gradients that the parameters have now, all of them or nothing.

        To be called after ``backward()``, and what clips or unscales gradients, and before the optimizer's
        ``step()``.

        Parameters
        ----------
        rate : float, optional
            The learning rate of the step, as ``optimizer.param_groups[0]["lr"]``.

        Raises
        ------
        TypeError
            If a gradient is not dense, or its dtype is not one of floating numbers that files have.
        ValueError
            If a parameter has no gradient, a dtype is not that of the step before, a number is NaN or
            infinite, or the rate is out of range.
        OutputError
            If the file cannot be written, or the disk has no room for it.
        """
        without = [name for name, p in self._parameters.items() if p.grad is None]
        if without:
            raise ValueError(
                f"{len(without)} parameters have no gradient, {without[0]!r} first; exclude those untrained "
                "by requires_grad_(False) before recording, or give it a gradient of zeros"
            )
        self._recorder.step({name: _array(name, p.grad) for name, p in self._parameters.items()}, rate)


def record(model: torch.nn.Module, directory: Pathlike, *, after: int | None = None) -> ModelRecorder:
    """Begin to record the gradients of a model's training loop, for `mcfsim.replay`.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters that require a gradient are the weights, on any device; a shared one is one.
    directory, after
        As of `mcfsim.record`.

    Returns
    -------
    ModelRecorder
        Whose ``step(rate)`` is called once a step, between ``backward()`` and the optimizer's ``step()``.

    Raises
    ------
    TypeError
        If it is no module, or a parameter's dtype is not one of floating numbers that files have.
    ValueError, OSError
        As `mcfsim.record` does; or if no parameter requires a gradient.

    Notes
    -----
    A parameter without a gradient is refused, and not recorded as zeros: an optimizer of torch leaves such a
    parameter alone, while zeros let its moments and its weights decay. Elements are copied to the CPU as they
    are: bfloat16 stays bfloat16.
    """
    return ModelRecorder(model, directory, after=after)


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return as_array(tensor.detach().cpu())
    except TypeError as problem:
        raise TypeError(f"parameter {name!r}: {problem}") from problem
