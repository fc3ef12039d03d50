"""What others write into parameters between steps, as far as PyTorch counts it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from mcfsim.torch.local import is_spread, local


class OutsideWriteWarning(UserWarning):
    """Something else than the optimizer wrote into a parameter of which the state holds a part."""


class Writes:
    """The parameters' versions after an optimizer's steps; PyTorch counts all writing but through `data`."""

    def __init__(self) -> None:
        self._versions: dict[torch.Tensor, tuple[int, int]] = {}
        self._told = False

    def look(self, parameters: Sequence[torch.Tensor]) -> None:
        """Warn, once, if a parameter was written to since the step before."""
        if self._told:
            return
        for p in parameters:
            if self._versions.get(p, version := _version(p)) != version:
                self._told = True
                warnings.warn(
                    f"a parameter of shape {tuple(p.shape)} was written to since the step before, and the "
                    "optimizer's state, a master copy or what compensates roundings, is still that of the "
                    "numbers before; if the new ones are to stay, call optimizer.resync() after writing them "
                    "(not if the old ones were put back)",
                    OutsideWriteWarning,
                    stacklevel=2,
                )
                return

    def made(self, parameters: Sequence[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> None:
        """Remember the versions of parameters after a step of given tensors.

        Of a parameter that is not among these nothing is known: what a compiler of PyTorch gives in its place
        it may yet copy there.
        """
        themselves = {id(x) for x in given}
        for p in parameters:
            if id(p) in themselves:
                self._versions[p] = _version(p)
            else:
                self._versions.pop(p, None)

    def forget(self) -> None:
        """Begin anew, as with a loaded state."""
        self._versions.clear()


def _version(parameter: torch.Tensor) -> tuple[int, int]:
    """Return how often a tensor was written to, and what lies here of it, which need not count the same."""
    here = local(parameter.detach()) if is_spread(parameter) else parameter
    return int(parameter._version), int(here._version)
