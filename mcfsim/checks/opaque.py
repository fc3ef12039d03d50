"""What stands for numbers, and is none: it does not answer Python as a number, or any object, would.

Python compares objects that define no comparison by identity, dataclasses by their fields, and takes nearly
all of them for true. A text or a claim that branches on such an answer would be judged on one of its branches
alone, whatever the numbers are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn


class Opaque:
    """Refuses comparisons, truth, hashing, iteration and search. A subclass defines again what it can answer.

    What Python refuses by itself, such as ``float(x)``, ``len(x)`` and ``round(x)``, is not repeated here.

    Raises
    ------
    TypeError
        Whenever it is asked.
    """

    __slots__ = ()
    #: What the message says of it, after the name of its type.
    opaque = "stands for a number that is not known: it is not compared, searched, hashed or asked for truth"
    # Not to be taken elementwise by a function of NumPy's, nor compared by a NumPy scalar.
    __array_ufunc__: Any = None

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} {self.opaque}")

    if not TYPE_CHECKING:  # to which a subclass that answers would break a promise
        __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _refuse
        __bool__ = __hash__ = __iter__ = _refuse
