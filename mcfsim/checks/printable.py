"""Text of others, as names in files, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return text in which what is no sign is spelt as Python does.

    That are controls, which a terminal obeys (titles, colours, moves of the cursor), ends of lines, marks of
    direction, halves of characters, and all else that is not `str.isprintable`.

    Examples
    --------
    >>> printable("a\x1b]0;title\x07")
    'a\\x1b]0;title\\x07'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
