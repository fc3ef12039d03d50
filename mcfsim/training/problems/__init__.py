"""Objectives with gradients, for comparing optimizers: one file per problem, each known by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mcfsim.optim.declaration import declared
from mcfsim.training.problems.base import Problem
from mcfsim.training.problems.calculation import Calculation
from mcfsim.training.problems.digits import Digits
from mcfsim.training.problems.language_model import Corpus, LanguageModel
from mcfsim.training.problems.llama import Llama
from mcfsim.training.problems.logistic import LogisticRegression
from mcfsim.training.problems.quadratic import Quadratic
from mcfsim.training.problems.rosenbrock import Rosenbrock

__all__ = [
    "PROBLEMS",
    "Calculation",
    "Corpus",
    "Digits",
    "LanguageModel",
    "Llama",
    "LogisticRegression",
    "Problem",
    "Quadratic",
    "Rosenbrock",
    "get_problem",
]

#: Every kind of problem by its name: the classes of this folder that have a gradient and a name.
PROBLEMS: Mapping[str, Any] = MappingProxyType(
    {
        kind.name: kind  # type: ignore[attr-defined]
        for kind in declared(
            "mcfsim.training.problems",
            lambda kind: kind is not Problem and hasattr(kind, "loss_and_gradient"),
        ).values()
    }
)


def get_problem(name_or_settings: str | Mapping[str, Any], **arguments: Any) -> Problem:
    """Make a problem from its name and arguments, or make it again from its settings.

    Parameters
    ----------
    name_or_settings : str or mapping
        A name of `PROBLEMS`, or what the ``settings`` method of a problem returned.
    **arguments
        Arguments of the constructor; they override settings. A ``corpus`` given here must be the one that
        the settings name; without it, the standard library's is read again.

    Raises
    ------
    TypeError
        If it is neither a name nor settings, or the problem has no such argument.
    ValueError
        If no such problem is known; the message lists the names. Also if the corpus differs from the one
        that the settings name.

    Examples
    --------
    >>> get_problem("rosenbrock", dimension=3).settings()
    {'kind': 'rosenbrock', 'dimension': 3}
    """
    if not isinstance(name_or_settings, str | Mapping):
        raise TypeError(f"a problem is made from its name or its settings, not from {name_or_settings!r}")
    settings = {"kind": name_or_settings} if isinstance(name_or_settings, str) else dict(name_or_settings)
    kind: Any = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in PROBLEMS:
        raise ValueError(f"unknown problem {kind!r}; known problems: {', '.join(PROBLEMS)}")
    if isinstance(recorded := settings.get("corpus"), Mapping):
        if missing := {"modules", "digest", "description"} - recorded.keys():
            raise ValueError(f"settings of a corpus lack {', '.join(sorted(missing))}")
        if (given := arguments.get("corpus")) is None:
            arguments["corpus"] = Corpus.from_settings(recorded)
        elif isinstance(given, Corpus):  # the problem refuses anything else
            given.require(recorded)
    made: Problem = PROBLEMS[kind](**{**settings, **arguments})
    return made
