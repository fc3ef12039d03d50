"""Exponential averages of the weights that an optimizer represents, stored so that they do not stall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from typing import Any

import torch

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import finite_number, whole_number
from mcfsim.formats import Format, get_format
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, Tensors, torch_dtype
from mcfsim.multiword.components import check_components
from mcfsim.torch.local import is_spread
from mcfsim.torch.state_layout import summed
from mcfsim.torch.step import StoredOptimizer


class WeightAverage:
    """An exponential average of an optimizer's weights; see `average`.

    Attributes
    ----------
    decay : float
        The weight of the average so far.
    low : Format
        The format of the components.
    components : int
        The number of components.
    count : int
        How many times it was updated.
    """

    def __init__(self, optimizer: StoredOptimizer, decay: float, low: Format | None, components: int) -> None:
        if not isinstance(optimizer, StoredOptimizer):
            raise TypeError(f"optimizer must be one of mcfsim.torch, not {type(optimizer).__name__}")
        self.decay = finite_number("decay", decay)
        if not 0 < self.decay < 1:
            raise ValueError(f"decay = {self.decay} must lie between 0 and 1, both excluded")
        self.components = whole_number("components", components, least=1)
        self._optimizer, self._parameters = optimizer, _parameters(optimizer)
        if any(map(is_spread, self._parameters)):
            raise TypeError("parameters that are distributed over processes cannot be averaged")
        found = {p.dtype for p in self._parameters}
        if low is None and len(found) != 1:
            listed = ", ".join(sorted(map(str, found)))
            what = f"are of several dtypes, {listed}" if found else "are none, and have no dtype"
            raise ValueError(f"parameters {what}: give the format of the average as low")
        self.low = TORCH_DTYPES[found.pop()] if low is None else low
        if self.components > 1:
            check_components(self.low)
        self._dtype = torch_dtype(self.low)  # refuses a format without a dtype
        self.count = 0
        self._stored = [self._split(optimizer.represented(p)) for p in self._parameters]

    @property
    def resolution(self) -> float:
        """How far a weight may be from its average, relative to both, without moving it.

        It is ``u**n / (1 - decay)`` for n components of unit roundoff u, of numbers without underflow.
        """
        return float(self.low.unit_roundoff**self.components) / (1.0 - self.decay)

    def update(self) -> None:
        """Update the average with the weights that the optimizer represents now; call it after a step.

        Raises
        ------
        ValueError
            If the optimizer's parameters, or their shapes, are no longer those with which the average began.
        SpoiltStateError
            If a step of the optimizer was broken off, or another optimizer has taken over its run.
        """
        now = _parameters(self._optimizer)
        if len(now) != len(self._parameters) or any(map(is_not, now, self._parameters)):
            raise ValueError(
                "the optimizer has other parameters than when the average began; begin a new one"
            )
        weights = [self._optimizer.represented(p) for p in self._parameters]
        for w, (first, *_) in zip(weights, self._stored, strict=True):
            if w.shape != first.shape:
                raise ValueError(
                    f"a parameter of shape {tuple(w.shape)} had shape {tuple(first.shape)} when the average "
                    "began; begin a new one"
                )
        self._stored = [self._moved(x, w) for x, w in zip(self._stored, weights, strict=True)]
        self.count += 1

    def represented(self) -> list[torch.Tensor]:
        """Return the averages in the order of the optimizer's parameters, as new float64 tensors."""
        return [summed(x) for x in self._stored]

    def weights(self) -> list[torch.Tensor]:
        """Return the averages, rounded once to nearest even, as new tensors of the parameters' dtypes."""
        return [
            arithmetic(TORCH_DTYPES[p.dtype], backend="torch", device=p.device).round(x).to(p.dtype)
            for p, x in zip(self._parameters, self.represented(), strict=True)
        ]

    def copy_to(self, model: torch.nn.Module, trained: torch.nn.Module | None = None) -> None:
        """Write the averages, as `weights` returns them, into the parameters of a model.

        Parameters
        ----------
        model : torch.nn.Module
            A copy of the model that is trained. Buffers, and parameters that are not averaged, stay.
        trained : torch.nn.Module, optional
            The model that is trained; parameters of `model` are found by the names that it gives them.
            Without it, the parameters of `model` that require a gradient must be in the order of the
            optimizer's, which must have one group.

        Raises
        ------
        ValueError
            If a parameter is not found, or has another shape; then nothing is written.
        """
        given = self._targets(model) if trained is None else self._named(model, trained)
        for target, p in zip(given, self._parameters, strict=True):
            if target.shape != p.shape:
                raise ValueError(
                    f"the model has a parameter of shape {tuple(target.shape)} for one of {tuple(p.shape)}"
                )
        with torch.no_grad():
            for target, x in zip(given, self.weights(), strict=True):
                target.copy_(x)

    def state_dict(self) -> dict[str, Any]:
        """Return settings, count and copies of stored tensors, which can be loaded with weights_only=True."""
        return {
            **self._settings(),
            "count": self.count,
            "stored": [[*map(torch.clone, x)] for x in self._stored],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` with the same bits.

        Raises
        ------
        TypeError
            If the count is no int.
        ValueError
            If the state has another decay, format or number of components, or is of other parameters. Nothing
            has changed then.
        """
        if not isinstance(state_dict, Mapping) or not {*self._settings(), "count", "stored"} <= {*state_dict}:
            raise ValueError("this is no state of an average of weights")
        for name, own in self._settings().items():
            if state_dict[name] != own:
                raise ValueError(f"the state has {name} = {state_dict[name]}, and this average {own}")
        count, given = whole_number("count", state_dict["count"], least=0), state_dict["stored"]
        listed = isinstance(given, list | tuple) and all(isinstance(x, list | tuple) for x in given)
        if not listed or [*map(_kinds, given)] != [*map(_kinds, self._stored)]:
            raise ValueError("the state is of parameters of other shapes, or of another dtype")
        self._stored = [
            tuple(part.detach().to(own.device, copy=True) for part, own in zip(x, owns, strict=True))
            for x, owns in zip(given, self._stored, strict=True)
        ]
        self.count = count

    # -- what these share --------------------------------------------------------------------------------
    def _settings(self) -> dict[str, Any]:
        return {"decay": self.decay, "low": str(self.low), "components": self.components}

    def _moved(self, stored: Tensors, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the components after a weight has entered, by three operations of binary64."""
        so_far = summed(stored)
        return self._split(so_far + (weight - so_far) * (1.0 - self.decay))

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return components of float64 numbers: each is what those before it leave, rounded to nearest."""
        ar = arithmetic(self.low, backend="torch", device=x.device)
        parts: list[torch.Tensor] = []
        for _ in range(self.components):
            parts.append(ar.round(x).to(self._dtype))
            x = x - parts[-1].to(torch.float64)
        return tuple(parts)

    def _targets(self, model: torch.nn.Module) -> list[torch.Tensor]:
        found = [p for p in model.parameters() if p.requires_grad]
        if len(found) != len(self._parameters) or len(self._optimizer.param_groups) > 1:
            raise ValueError(
                f"{len(found)} parameters of the model for {len(self._parameters)} of the optimizer in "
                f"{len(self._optimizer.param_groups)} groups cannot be matched by their order; pass the "
                "model that is trained, too"
            )
        return found

    def _named(self, model: torch.nn.Module, trained: torch.nn.Module) -> list[torch.Tensor]:
        names = {p: name for name, p in trained.named_parameters()}
        targets = dict(model.named_parameters())
        without = [p for p in self._parameters if names.get(p) not in targets]
        if without:
            raise ValueError(
                f"{len(without)} parameters of the optimizer, the first of shape {tuple(without[0].shape)}, "
                "have no counterpart of their name in the model"
            )
        return [targets[names[p]] for p in self._parameters]


def average(
    optimizer: StoredOptimizer, decay: float, *, low: Format | str | None = None, components: int = 2
) -> WeightAverage:
    """Begin an exponential average of the weights that an optimizer represents.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
        The average is of the weights that it represents: a parameter with its further components or its
        compensation, or the master copy.
    decay : float
        The weight b of the average so far in ``a + (1 - b) (w - a)``; between 0 and 1.
    low : Format or str, optional
        The format in which the average is stored; by default that of the parameters. ``"float32"`` with
        ``components=1`` is an average in float32.
    components : int, optional
        How many numbers store one average. The first one is the average rounded to nearest, and each other
        one the residual that those before it leave, rounded to nearest.

    Returns
    -------
    WeightAverage
        It begins with the present weights. Call its ``update()`` after each step.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, or parameters are distributed over processes.
    ValueError
        If a number is out of range, a format is unknown, or none is given and parameters have several dtypes.
    UnsupportedFormatError
        If the format has no dtype of torch, or cannot have several components.

    Notes
    -----
    An update is computed in binary64, where its four roundings are off by less than ``2**-50 M`` together,
    and stored in n components of unit roundoff u, off by at most ``u**n M``, if M bounds weights and averages
    and nothing over- or underflows. The next update shrinks this error by b. So the average is always within
    ``(u**n + 2**-50) M / (1 - b)`` of the exact one. It stands still only where ``(1 - b) |w - a|`` is no
    more than such an error, see `WeightAverage.resolution`. NaN stays NaN, and an infinity becomes NaN.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 2).bfloat16()
    >>> from mcfsim.torch import AdamW
    >>> averaged = average(AdamW(model.parameters(), lr=1e-3), decay=0.999)
    >>> averaged.update()
    >>> round(averaged.resolution, 4)
    0.0153
    """
    return WeightAverage(optimizer, decay, None if low is None else get_format(low), components)


def _parameters(optimizer: StoredOptimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _kinds(stored: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(getattr(x, "dtype", None), getattr(x, "shape", None)) for x in stored]
