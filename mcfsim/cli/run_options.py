"""Options that all commands have which feed strategies a run of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from mcfsim.cli.application import Place

_STORED, _FILES = "Storage and rounding", "Files"

Clip = Annotated[float, Option(help="Largest norm of the gradient; inf does not clip.")]
RecordEvery = Annotated[int, Option(help="Steps between two records.")]
TruthSample = Annotated[
    int, Option(help="Compare steps with the exact update, unless 0; so many parameters in mpmath.")
]
Strategies = Annotated[
    list[str] | None,
    Option(
        help="Repeat it to compare.",
        show_default="plain, collage-light, collage-plus, fp32-master",
        rich_help_panel=_STORED,
    ),
]
Low = Annotated[str, Option(help="The strategies' low format.", rich_help_panel=_STORED)]
RoundingMode = Annotated[
    str, Option(help="Rounding mode of the optimizer's operations.", rich_help_panel=_STORED)
]
Entering = Annotated[
    str, Option(help="How hyperparameters enter: exact or rounded.", rich_help_panel=_STORED)
]
Checkpoint = Annotated[
    Path | None,
    Place.WRITTEN,
    Option(help="Save the state here as it goes, and go on from it if it is there.", rich_help_panel=_FILES),
]
CheckpointEvery = Annotated[
    int | None,
    Option(help="Steps between two checkpoints.", show_default="100", rich_help_panel=_FILES),
]
Resume = Annotated[
    bool,
    Option("--resume", help="Refuse to begin anew: the checkpoint must be there.", rich_help_panel=_FILES),
]
Output = Annotated[
    Path | None, Place.WRITTEN, Option(help="Save the run here, as .npz.", rich_help_panel=_FILES)
]
