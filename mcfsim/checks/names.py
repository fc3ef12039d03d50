"""What somebody may have meant by a name that there is not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: Words that are written as digits or signs elsewhere, as in 2Sum and TwoSum; whole or run together.
_WORDS = {"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "plus": "add", "times": "mul"}
#: The most names that are suggested, and how much alike they are at least, by `difflib`.
_MOST, _ALIKE = 3, 0.6


def hint(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return `` (did you mean 'x'?)`` with the known names that are nearest, or nothing if none is near.

    Parameters
    ----------
    name : str
        What was given.
    known : iterable of str
        What there is, the usual first.
    most : int, optional
        How many names to suggest.

    Notes
    -----
    Nearest is a name of the same letters and digits, whatever their case, what stands between them, and
    whether numbers are words; then those most alike by `difflib`; then names that contain the one given.

    Examples
    --------
    >>> hint("fast2sum", ["two_sum", "fast_two_sum"])
    " (did you mean 'fast_two_sum'?)"
    """
    found = nearest(name, known, most)
    if not found:
        return ""
    *others, last = map(repr, found)
    return f" (did you mean {', '.join(others)}{' or ' if others else ''}{last}?)"


def nearest(name: str, known: Iterable[str], most: int = _MOST) -> list[str]:
    """Return the known names nearest to one, the best first, at most so many; see `hint`."""
    given = _spellings(name)
    distances: list[tuple[float, str]] = []
    for item in map(str, known):
        spellings = _spellings(item)
        if spellings[1] == given[1]:
            return [item]
        likeness = max(_likeness(a, b) for a, b in zip(spellings, given, strict=True))
        if likeness >= _ALIKE:
            distances.append((-likeness, item))
        elif len(given[1]) > 2 and given[1] in spellings[1]:
            distances.append((len(spellings[1]), item))
    return [item for _, item in sorted(distances, key=lambda pair: pair[0])[:most]]


def _likeness(a: str, b: str) -> float:
    """Return how much alike two texts are, from 0 to 1; of those less alike than counts, 0."""
    matcher = difflib.SequenceMatcher(None, a, b)
    # Bounds that are quicker to find.
    if matcher.real_quick_ratio() < _ALIKE or matcher.quick_ratio() < _ALIKE:
        return 0.0
    return matcher.ratio()


def _spellings(name: str) -> tuple[str, str]:
    """Return a name in small letters and digits alone, and the same with words as digits."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    short = letters
    for word, sign in _WORDS.items():
        short = short.replace(word, sign)
    return letters, short
