"""Options that a command takes from what it makes: one for every setting of every kind of a thing.

A setting is a parameter of a constructor that is a whole or a real number, or may be a word. So a new
optimizer or problem has its options once it is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_args

from typer import Option

from mcfsim.checks.names import hint

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class KindOptions:
    """The options of one thing that a command makes, in one of several kinds.

    Parameters
    ----------
    label : str
        What is made, as ``"problem"``.
    kinds : mapping of str to callable
        Its constructors, by the name that a user gives.
    names : mapping of str to str, optional
        Options called otherwise than the argument that they stand for, by argument.
    meaning : mapping of str to str, optional
        What an argument means, for the help, where its name does not say it.
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
        """Return the options, as parameters of a command: None unless given."""
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
        """Make one of a kind, from the options of a command.

        Raises
        ------
        ValueError
            If there is no such kind, or options are given that it has no use for, or lack that it needs.
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
        for name, number in given.items():  # one name may stand for real numbers elsewhere
            if taken[name].annotation is int and isinstance(number, float):
                if not number.is_integer():
                    raise ValueError(
                        f"{_spelt([name])} = {number} of {self.label} {kind!r} is no whole number"
                    )
                given[name] = int(number)
        return self.kinds[kind](**{taken[name].name: number for name, number in given.items()})


def _type(setting: inspect.Parameter) -> type | None:
    """Return what an option for a parameter is read as; None if it is none."""
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
    """Return a decorator: the command takes the options of these in place of its ``**options``."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        added = [item for group in groups for item in group.parameters()]
        altered: Any = command
        altered.__signature__ = signature.replace(parameters=[*own, *added])
        altered.__annotations__ = {item.name: item.annotation for item in [*own, *added]}
        return command

    return decorate
