"""Problems by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .base import Problem
from .corpus import Corpus
from .digits import Digits
from .language_model import LanguageModel
from .logistic import LogisticRegression
from .quadratic import Quadratic
from .rosenbrock import Rosenbrock

_Kind = type[Quadratic] | type[Rosenbrock] | type[LogisticRegression] | type[Digits] | type[LanguageModel]

#: Every kind of problem, by its name.
PROBLEMS: Mapping[str, _Kind] = MappingProxyType(
    {kind.name: kind for kind in (Quadratic, Rosenbrock, LogisticRegression, Digits, LanguageModel)}
)


def get_problem(name_or_settings: str | Mapping[str, Any], **arguments: Any) -> Problem:
    """Make a problem from its name and arguments, or make it again from its settings.

    Parameters
    ----------
    name_or_settings : str or mapping
        A name of `PROBLEMS`, or what the ``settings`` method of a problem returned.
    **arguments
        What the constructor takes; next to settings they take precedence. A ``corpus`` given so must be
        the one that the settings name; without it, the standard library's is read again.

    Raises
    ------
    TypeError
        If it is neither a name nor settings, or the problem has no such argument.
    ValueError
        If no such problem is known; the message lists the names. Also if the corpus that the settings
        name differs from the one present.

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
    recorded = settings.pop("corpus", None)
    if isinstance(recorded, Mapping):
        given = arguments.get("corpus")
        arguments["corpus"] = Corpus.from_settings(recorded) if given is None else given.require(recorded)
    return PROBLEMS[kind](**{**settings, **arguments})
