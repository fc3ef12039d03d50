"""Options that several commands share: settings made from constructors, and options of runs and plans."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from typer import Argument, Option

from mcfsim.checks import hint
from mcfsim.cli.application import Place
from mcfsim.optim.adamw import AdamW

if TYPE_CHECKING:
    from mcfsim.training.schedule import Schedule


# -- options made from constructors -----------------------------------------------------------------------
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class KindOptions:
    """Options for an object that a command makes by one of several constructors.

    Parameters
    ----------
    label : str
        Name of the object, such as ``"problem"``.
    kinds : mapping of str to callable
        The constructors, by the names that users give.
    names : mapping of str to str, optional
        Names of options that differ from their argument, by argument.
    meaning : mapping of str to str, optional
        Help for arguments whose names do not explain them.
    """

    label: str
    kinds: Mapping[str, Callable[..., Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    meaning: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, inspect.Parameter]:
        """Return the settings of a kind, by argument."""
        parameters = inspect.signature(self.kinds[kind], eval_str=True).parameters
        return {name: item for name, item in parameters.items() if _type(item) is not None}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a command, which are None unless given."""
        arguments = dict.fromkeys(argument for kind in self.kinds for argument in self.of(kind))
        return [self._parameter(argument) for argument in arguments]

    def _parameter(self, argument: str) -> inspect.Parameter:
        takers = {kind: self.of(kind)[argument] for kind in self.kinds if argument in self.of(kind)}
        types = set(map(_type, takers.values()))
        read: Any = next(kind for kind in (str, float, int) if kind in types)
        defaults = {kind: _default(item) for kind, item in takers.items()}
        alike = len(set(defaults.values())) == 1
        each = ", ".join(f"{default} for {kind}" for kind, default in defaults.items())
        shown = next(iter(defaults.values())) if alike else each
        owners = "" if len(takers) == len(self.kinds) else f"Of {', '.join(takers)}."
        about = f"{self.meaning.get(argument, '')} {owners}".strip()
        option = Option(help=about, show_default=shown, rich_help_panel=f"Settings of the {self.label}")
        return inspect.Parameter(
            self.names.get(argument, argument),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[read | None, option],
        )

    def make(self, kind: str, options: Mapping[str, Any]) -> Any:
        """Return an object of a kind, made from the options of a command.

        Raises
        ------
        ValueError
            If there is no such kind, it does not take a given option, or a required option is missing.
        """
        if kind not in self.kinds:
            known = ", ".join(self.kinds)
            raise ValueError(
                f"unknown {self.label} {kind!r}{hint(kind, self.kinds)}; known {self.label}s: {known}"
            )
        taken = {self.names.get(argument, argument): item for argument, item in self.of(kind).items()}
        given = {
            item.name: options[item.name] for item in self.parameters() if options[item.name] is not None
        }
        if stray := [name for name in given if name not in taken]:
            raise ValueError(
                f"{self.label} {kind!r} has no {_spelt(stray)}; it takes {_spelt(taken) or 'no options'}"
            )
        if missing := [
            name for name, item in taken.items() if item.default is item.empty and name not in given
        ]:
            raise ValueError(f"{self.label} {kind!r} needs {_spelt(missing)}")
        for name, number in given.items():  # another kind may take a real number by this name
            if taken[name].annotation is int and isinstance(number, float):
                if not number.is_integer():
                    raise ValueError(
                        f"{_spelt([name])} = {number} of {self.label} {kind!r} is no whole number"
                    )
                given[name] = int(number)
        return self.kinds[kind](**{taken[name].name: number for name, number in given.items()})


def _type(setting: inspect.Parameter) -> type | None:
    """Return the type of the option for a parameter, or None if it gets no option."""
    if setting.annotation in (int, float):
        found: type = setting.annotation
        return found
    return str if str in (setting.annotation, *get_args(setting.annotation)) else None


def _default(setting: inspect.Parameter) -> str:
    if setting.default is setting.empty:
        return "required"
    return f"{setting.default:g}" if _type(setting) is not str else str(setting.default or "none")


def _spelt(names: Any) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


def with_settings(*groups: KindOptions) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's ``**options`` by the options of the groups."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        added = [item for group in groups for item in group.parameters()]
        altered: Any = command
        altered.__signature__ = signature.replace(parameters=[*own, *added])
        altered.__annotations__ = {item.name: item.annotation for item in [*own, *added]}
        return command

    return decorate


# -- options of a run -------------------------------------------------------------------------------------
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


# -- options of a plan ------------------------------------------------------------------------------------
#: Its hyperparameters are the defaults, as in `mcfsim simulate`.
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
    """Return the learning-rate schedule given by options.

    Raises
    ------
    TypeError, ValueError
        If a number is out of range, the shape is unknown, or a constant schedule has another final rate.
    """
    from mcfsim.training.schedule import Schedule

    if shape not in ("cosine", "constant"):
        raise ValueError(f"unknown schedule {shape!r}; known schedules: cosine, constant")
    if shape == "constant" and final not in (None, 1.0):
        raise ValueError(f"--final {final} is for the cosine; a constant rate stays what it is")
    return Schedule(peak, warmup, final if final is not None else 1.0 if shape == "constant" else 0.1)
