"""Options that several commands share: settings made from constructors, and options of runs and plans."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from typer import Argument, Option

from mcfsim.checks import hint
from mcfsim.cli.application import Place, given
from mcfsim.optim.adamw import AdamW
from mcfsim.training.simulate import DEFAULT_STRATEGIES

if TYPE_CHECKING:
    from mcfsim.models.plan import Plan
    from mcfsim.optim.strategies import Strategy
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
    unless : str, optional
        For the help, what holds if none of the options is given; if one is, the others have their defaults.
    """

    label: str
    kinds: Mapping[str, Callable[..., Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    meaning: Mapping[str, str] = field(default_factory=dict)
    unless: str = ""

    def of(self, kind: str) -> dict[str, inspect.Parameter]:
        """Return the settings of a kind, by argument."""
        make = self.kinds[kind]
        if is_dataclass(make):  # fields are read where they are declared, which may be another module
            hints, given = get_type_hints(make), inspect.signature(make).parameters.items()
            parameters = {name: item.replace(annotation=hints[name]) for name, item in given}
        else:
            parameters = dict(inspect.signature(make, eval_str=True).parameters)
        return {name: item for name, item in parameters.items() if _type(item) is not None}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a command, which are None unless given."""
        arguments = dict.fromkeys(argument for kind in self.kinds for argument in self.of(kind))
        return [self._parameter(argument) for argument in arguments]

    def _parameter(self, argument: str) -> inspect.Parameter:
        takers = {kind: self.of(kind)[argument] for kind in self.kinds if argument in self.of(kind)}
        types = set(map(_type, takers.values()))
        read: Any = next(kind for kind in (str, float, int) if kind in types)
        defaults: dict[str, list[str]] = {}
        for kind, item in takers.items():
            defaults.setdefault(_default(item), []).append(kind)
        each = "; ".join(f"{default} for {', '.join(kinds)}" for default, kinds in defaults.items())
        shown = next(iter(defaults)) if len(defaults) == 1 else each
        if self.unless:
            shown = f"{self.unless}; {shown} with another of these"
        owners = "" if len(takers) == len(self.kinds) else f"Only for {', '.join(takers)}."
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
        chosen = given({item.name: options[item.name] for item in self.parameters()})
        if stray := [name for name in chosen if name not in taken]:
            raise ValueError(
                f"{self.label} {kind!r} has no {_spelt(stray)}; it takes {_spelt(taken) or 'no options'}"
            )
        if missing := [
            name for name, item in taken.items() if item.default is item.empty and name not in chosen
        ]:
            raise ValueError(f"{self.label} {kind!r} needs {_spelt(missing)}")
        for name, number in chosen.items():  # another kind may take a real number by this name
            if taken[name].annotation is int and isinstance(number, float):
                if not number.is_integer():
                    raise ValueError(
                        f"{_spelt([name])} = {number} of {self.label} {kind!r} is no whole number"
                    )
                chosen[name] = int(number)
        return self.kinds[kind](**{taken[name].name: number for name, number in chosen.items()})


def _type(setting: inspect.Parameter) -> type | None:
    """Return the type of the option for a parameter, or None if it gets no option."""
    if setting.annotation in (int, float):
        found: type = setting.annotation
        return found
    union = () if get_origin(setting.annotation) is tuple else get_args(setting.annotation)
    return str if str in (setting.annotation, *union) else None


def _default(setting: inspect.Parameter) -> str:
    if setting.default is setting.empty:
        return "required"
    return f"{setting.default:g}" if _type(setting) is not str else str(setting.default or "none")


def _spelt(names: Any) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


@dataclass(frozen=True)
class FieldOptions:
    """Options that are the fields of a dataclass.

    Parameters
    ----------
    kind : callable
        The dataclass; the annotations and defaults of its fields declare the options.
    defaults : mapping of str to value, optional
        Other defaults, by field.
    """

    kind: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a command."""
        found = inspect.signature(self.kind, eval_str=True).parameters
        return [
            item.replace(kind=item.KEYWORD_ONLY, default=self.defaults.get(name, item.default))
            for name, item in found.items()
        ]

    def make(self, options: Mapping[str, Any]) -> Any:
        """Return an object of the dataclass, made from the options of a command."""
        return self.kind(**{item.name: options[item.name] for item in self.parameters()})


def with_settings(*groups: KindOptions | FieldOptions) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's ``**options`` by the options of the groups.

    They come before the command's own keyword-only options, as the help lists them.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        added = [item for group in groups for item in group.parameters()]
        parameters = sorted([*added, *own], key=lambda item: item.kind)
        altered: Any = command
        altered.__signature__ = signature.replace(parameters=parameters)
        altered.__annotations__ = {item.name: item.annotation for item in parameters}
        return command

    return decorate


# -- options of a run -------------------------------------------------------------------------------------
_STORED, FILES = "Storage and rounding", "Files"

Resume = Annotated[
    bool,
    Option("--resume", help="Only continue: the checkpoint must exist.", rich_help_panel=FILES),
]
Output = Annotated[
    Path | None, Place.WRITTEN, Option(help="Save the run to this .npz file.", rich_help_panel=FILES)
]
Picture = Annotated[
    Path | None,
    Place.WRITTEN,
    Option(help="Draw its measures step by step into this file, .png or .svg.", rich_help_panel=FILES),
]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run under several strategies."""

    clip: Annotated[float, Option(help="Largest norm of the gradient; inf does not clip.")] = 1.0
    record_every: Annotated[int, Option(help="Steps between two records.")] = 10
    truth_sample: Annotated[
        int, Option(help="Compare steps with the exact update, this many parameters in mpmath; 0: do not.")
    ] = 0
    strategies: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            help="Strategy; repeat it to compare. plain,fp32@201 changes it at step 201.",
            show_default=", ".join(map(str, DEFAULT_STRATEGIES)),
            rich_help_panel=_STORED,
        ),
    ] = None
    low: Annotated[str, Option(help="The strategies' low format.", rich_help_panel=_STORED)] = "bfloat16"
    rounding: Annotated[
        str, Option(help="Rounding mode of the optimizer's operations.", rich_help_panel=_STORED)
    ] = "nearest_even"
    scalars: Annotated[
        str, Option(help="How hyperparameters enter: exact, rounded or float32.", rich_help_panel=_STORED)
    ] = "exact"
    checkpoint: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(
            help="Save the state to this file on the way; continue from it if it exists.",
            rich_help_panel=FILES,
        ),
    ] = None
    checkpoint_every: Annotated[
        int | None, Option(help="Steps between two checkpoints.", show_default="100", rich_help_panel=FILES)
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `mcfsim.simulate` and `mcfsim.replay`."""
        clip = None if self.clip == math.inf else self.clip
        return {**given(vars(self)), "clip": clip, "strategies": self.strategies or DEFAULT_STRATEGIES}


# -- options of a plan ------------------------------------------------------------------------------------
#: Its hyperparameters are the defaults, as in `mcfsim simulate`.
_OPTIMIZER = AdamW()
_PLAN, _KNOWN = "The plan of training", "What is known of the updates"

WeightsFile = Annotated[
    Path,
    Place.READ,
    Argument(help="A .safetensors file, a folder or index of them, or an .npz file.", show_default=False),
]
Samples = Annotated[int, Option(help="Elements of each tensor that are tried.", min=16, max=1 << 16)]
Most = Annotated[int, Option(help="Tensors that are printed.", min=1)]
Json = Annotated[
    Path | None,
    Place.WRITTEN,
    Option("--json", help="Write all findings to this file.", rich_help_panel=FILES),
]


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan of training, and of what is known of its updates."""

    lr: Annotated[float, Option(help="Peak learning rate.", rich_help_panel=_PLAN)] = 3e-4
    schedule: Annotated[str, Option(help="cosine or constant.", rich_help_panel=_PLAN)] = "cosine"
    warmup: Annotated[int, Option(help="Steps of linear warm-up.", rich_help_panel=_PLAN)] = 0
    final: Annotated[
        float | None,
        Option(help="Last rate as a share of the peak.", show_default="0.1", rich_help_panel=_PLAN),
    ] = None
    steps: Annotated[int, Option(help="Length of the run.", rich_help_panel=_PLAN)] = 10_000
    betas: Annotated[tuple[float, float], Option(help="beta1 and beta2.", rich_help_panel=_PLAN)] = (
        _OPTIMIZER.beta1,
        _OPTIMIZER.beta2,
    )
    eps: Annotated[float, Option(help="AdamW's epsilon.", rich_help_panel=_PLAN)] = _OPTIMIZER.epsilon
    weight_decay: Annotated[
        float, Option(help="Decoupled decay of tensors of two dimensions and more.", rich_help_panel=_PLAN)
    ] = _OPTIMIZER.weight_decay
    muon: Annotated[
        str | None,
        Option(
            help="Let Muon move matrices, its rate scaled by none, original, match_rms_adamw or spectral.",
            show_default="all move by AdamW",
            rich_help_panel=_PLAN,
        ),
    ] = None
    others: Annotated[
        list[str] | None,
        Option(
            "--other",
            help="With --muon, a matrix that AdamW moves, or a pattern; repeat it for several.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    update_rms: Annotated[
        float | None,
        Option(
            help="Root mean square of an update over its learning rate.",
            show_default="that of noise, by beta1",
            rich_help_panel=_KNOWN,
        ),
    ] = None
    state: Annotated[
        Path | None,
        Place.READ,
        Option(help="The optimizer's saved state: .pt, .safetensors or .npz.", rich_help_panel=_KNOWN),
    ] = None
    gradients: Annotated[
        Path | None, Place.READ, Option(help="A directory of recorded gradients.", rich_help_panel=_KNOWN)
    ] = None

    def rates(self) -> Schedule:
        """Return the schedule of learning rates.

        Raises
        ------
        TypeError, ValueError
            If a number is out of range, the shape is unknown, or a constant schedule has another final rate.
        """
        from mcfsim.training.schedule import Schedule

        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"unknown schedule {self.schedule!r}; known schedules: cosine, constant")
        constant = self.schedule == "constant"
        if constant and self.final not in (None, 1.0):
            raise ValueError(f"--final {self.final} is for the cosine; a constant rate stays what it is")
        final = self.final if self.final is not None else 1.0 if constant else 0.1
        return Schedule(self.lr, self.warmup, final)

    def plan(self, strategies: Sequence[Strategy], **more: float) -> Plan:
        """Return the plan for these strategies; `more` are other parameters of `Plan`."""
        from mcfsim.models.known import updates_of
        from mcfsim.models.plan import Plan
        from mcfsim.optim.muon import Muon
        from mcfsim.optim.strategies import Addition

        if self.others and self.muon is None:
            raise ValueError("--other names what Muon leaves to AdamW, and needs --muon")
        muon = None if self.muon is None else Muon(scale=self.muon, others=tuple(self.others or ()))
        if muon is not None:  # which has no formula for errors that are fed back
            strategies = [item for item in strategies if item.addition is not Addition.FEEDBACK]
        return Plan(
            AdamW(*self.betas, self.eps, self.weight_decay),
            self.rates(),
            self.steps,
            tuple(strategies),
            updates_of(self.update_rms, self.state, self.gradients, muon),
            **more,
        )


PLAN = FieldOptions(PlanOptions)
