"""What is known of a model's updates, by what a user gives."""

from __future__ import annotations

from pathlib import Path

from mcfsim.models.recorded_updates import RecordedUpdates
from mcfsim.models.saved_state import SavedState
from mcfsim.models.updates import NoiseModel, Updates
from mcfsim.storage.files import Pathlike


def updates_of(
    rms: float | None = None, state: Pathlike | None = None, gradients: Pathlike | None = None
) -> Updates:
    """Return what is known of the updates: by one thing that is given, or the model of noise.

    Parameters
    ----------
    rms : float, optional
        Their size, see `NoiseModel`.
    state : path, optional
        An optimizer's saved state, see `SavedState`.
    gradients : path, optional
        A directory of recorded gradients, see `RecordedUpdates`.

    Raises
    ------
    ValueError
        If several things are given.
    """
    given = {"their size": rms, "a state": state, "gradients": gradients}
    if len(several := [label for label, item in given.items() if item is not None]) > 1:
        raise ValueError(f"updates are known by one thing, not by {' and '.join(several)}; give one of them")
    if state is not None:
        return SavedState(Path(state))
    return NoiseModel(rms) if gradients is None else RecordedUpdates(Path(gradients))
