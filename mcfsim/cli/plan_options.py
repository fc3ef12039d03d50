"""Options that commands share which forecast a training: its plan, and what is known of its updates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mcfsim.cli.application import Place
from mcfsim.optim.adamw import AdamW

if TYPE_CHECKING:
    from mcfsim.training.schedule import Schedule

#: Whose hyperparameters are the default, as in `mcfsim simulate`.
OPTIMIZER = AdamW()
_PLAN, _KNOWN = "The plan of training", "What is known of the updates"

WeightsFile = Annotated[
    Path,
    Place.READ,
    Argument(help="A .safetensors file, a folder or index of them, or an .npz file.", show_default=False),
]
Rate = Annotated[float, Option(help="Peak learning rate.", rich_help_panel=_PLAN)]
Shape = Annotated[str, Option(help="cosine or constant.", rich_help_panel=_PLAN)]
Warmup = Annotated[int, Option(help="Steps of linear warm-up.", rich_help_panel=_PLAN)]
Final = Annotated[
    float | None,
    Option(help="Last rate as a share of the peak.", show_default="0.1", rich_help_panel=_PLAN),
]
Steps = Annotated[int, Option(help="Length of the run.", rich_help_panel=_PLAN)]
Betas = Annotated[tuple[float, float], Option(help="beta1 and beta2.", rich_help_panel=_PLAN)]
Epsilon = Annotated[float, Option(help="Of AdamW.", rich_help_panel=_PLAN)]
Decay = Annotated[float, Option(help="Of tensors of two dimensions and more.", rich_help_panel=_PLAN)]
UpdateSize = Annotated[
    float | None,
    Option(
        help="Root mean square of an update over its learning rate.",
        show_default="that of noise, by beta1",
        rich_help_panel=_KNOWN,
    ),
]
State = Annotated[
    Path | None,
    Place.READ,
    Option(help="The optimizer's saved state: .pt, .safetensors or .npz.", rich_help_panel=_KNOWN),
]
Gradients = Annotated[
    Path | None, Place.READ, Option(help="A directory of recorded gradients.", rich_help_panel=_KNOWN)
]
Samples = Annotated[int, Option(help="Elements of each tensor that are tried.", min=16, max=1 << 16)]


def schedule_of(shape: str, peak: float, warmup: int, final: float | None) -> Schedule:
    """Return the learning rates that options ask for.

    Raises
    ------
    TypeError, ValueError
        If one is out of range, the shape is unknown, or a constant rate is to end at another one.
    """
    from mcfsim.training.schedule import Schedule

    if shape not in ("cosine", "constant"):
        raise ValueError(f"unknown schedule {shape!r}; known schedules: cosine, constant")
    if shape == "constant" and final not in (None, 1.0):
        raise ValueError(f"--final {final} is for the cosine; a constant rate stays what it is")
    return Schedule(peak, warmup, final if final is not None else 1.0 if shape == "constant" else 0.1)
