"""Delayed scaling: the scale of a tensor from the largest magnitudes of the steps before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import check_int, whole_number
from mcfsim.formats import Format, get_format
from mcfsim.rounding import Rounding
from mcfsim.scaled.block_quantization import RandomSource
from mcfsim.scaled.float32_rules import MOST
from mcfsim.scaled.formats import SCALED
from mcfsim.scaled.quantization import Scaled, prepared, quantized

#: The longest history, and margins beyond which binary32 has no number for any format.
_LONGEST, _MARGINS = 2**31 - 1, 600


class DelayedScale:
    """The scale of one tensor of FP8 numbers, from a history: Transformer Engine's delayed scaling.

    A call quantises by the scale that earlier calls left, and leaves a new one:
    ``(M / amax) / 2**margin`` in binary32, M the largest element.

    Parameters
    ----------
    element : Format or str, optional
        The format of the elements.
    length : int, optional
        The number of steps whose largest magnitudes are kept, less than 2**31. The scale follows the largest
        of them.
    margin : int, optional
        The headroom, in powers of two. ``M / 2**margin`` must be above 1, which allows at most 8 for
        float8_e4m3fn. With more, binary32 would not hold the inverse of each scale.
    most_recent : bool, optional
        Whether the scale follows the last step's largest magnitude alone.

    Attributes
    ----------
    scale : float32
        The number by which the next call multiplies; 1 at first.

    Raises
    ------
    TypeError, ValueError
        If the length or the margin is not an int, or is out of range.
    UnsupportedFormatError
        If binary32 does not hold the elements.

    Notes
    -----
    The scale is kept where the largest magnitude is 0, infinite or NaN. A step whose largest magnitude is 0
    leaves the history as it is; an infinity stays in it for `length` steps, and a NaN is ignored. If the
    quotient overflows, the scale is the largest binary32 number. ``M / 2**margin`` is one binary32 number, as
    in ``delayed_scaling.cu``.

    References
    ----------
    NVIDIA, Transformer Engine, ``transformer_engine/common/recipe/delayed_scaling.cu``.

    Examples
    --------
    >>> delayed = DelayedScale()
    >>> delayed(np.float32([1.0, 3.5])).dequantize().tolist(), float(delayed.scale)
    ([1.0, 3.5], 128.0)
    """

    def __init__(
        self,
        element: Format | str = "float8_e4m3fn",
        *,
        length: int = 1024,
        margin: int = 0,
        most_recent: bool = False,
    ) -> None:
        check_int("margin", margin)
        self._format = replace(SCALED["fp8_e4m3_tensor"], name="delayed", element=get_format(element))
        self._length, self._margin = whole_number("length", length, least=1), margin
        if self._length > _LONGEST:
            raise ValueError(f"length = {length} must be at most {_LONGEST}")
        self._most_recent = bool(most_recent)
        top = np.float32(float(self._format.element.max))
        with np.errstate(all="ignore"):
            self._top = top * np.float32(2.0) ** np.float32(max(-_MARGINS, min(-margin, _MARGINS)))
            # The smallest scale is that of the largest magnitude.
            fits = np.isfinite(self._top) and _has_inverse(self._top / np.float32(MOST))
        if not fits:
            raise ValueError(
                f"margin = {margin}: {top:g}, the largest number of {self._format.element}, over 2**margin "
                "must be a binary32 number above 1, so that each scale has an inverse"
            )
        self._history: deque[np.float32] = deque(maxlen=self._length)
        self.scale = np.float32(1)

    def __call__(
        self, x: ArrayLike, *, rounding: Rounding | str = "nearest_even", random: RandomSource = None
    ) -> Scaled:
        """Quantise a tensor by the scale of the steps before, and update the scale for the next call.

        Parameters
        ----------
        x : array_like of a floating dtype of at most 32 bits
        rounding : str or Rounding, optional
        random : RandomWords or array of uint32 or uint16, optional
            As for `mcfsim.quantize`.

        Returns
        -------
        Scaled
            Its scale is the inverse of the number by which x was multiplied, in binary32. Numbers beyond the
            largest element become the largest element. A NaN or an infinity makes the tensor NaN.
        """
        fmt, policy, array, axis = prepared(x, self._format, -1, rounding, None)
        found = quantized(array, fmt, axis, policy, random, self.scale)
        self.update(np.fmax.reduce(np.abs(array), axis=None, initial=np.float32(0)))
        return found

    def update(self, amax: float) -> None:
        """Put the largest magnitude of a step into the history, and follow it.

        Raises
        ------
        TypeError
            If it is not a real number.
        ValueError
            If it is negative, or finite and beyond the range of binary32.
        """
        if not isinstance(amax, Real) or isinstance(amax, bool | np.bool_):
            raise TypeError(f"amax must be a real number, not {amax!r}")
        amax = amax.item() if isinstance(amax, np.generic) else amax  # float16 would hold no bound
        if amax < 0:
            raise ValueError(f"amax = {amax} must not be negative")
        if MOST < amax < np.inf:
            raise ValueError(f"amax = {amax} is beyond the range of binary32")
        last = np.float32(amax)
        if last == 0:
            return
        self._history.append(last)
        largest = last if self._most_recent else np.float32(np.fmax.reduce(list(self._history), initial=0.0))
        if np.isfinite(largest) and largest > 0:
            with np.errstate(over="ignore"):
                self.scale = np.minimum(self._top / largest, np.float32(MOST))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the history and the scale as arrays, to be saved."""
        return {
            "history": np.array(self._history, np.float32),
            "scale": np.array(self.scale, np.float32),
            "of": np.array([self._length, self._margin, self._most_recent, self._format.element.max], float),
        }

    def load(self, state: Mapping[str, ArrayLike]) -> None:
        """Go on from a saved state.

        Raises
        ------
        ValueError
            If it is not the state of a scale with this length, margin, kind and largest element.
        """
        own = self.state()
        if set(state) != set(own):
            raise ValueError(f"a state has {', '.join(own)}, not {', '.join(map(str, state)) or 'nothing'}")
        found = {name: np.asarray(state[name]) for name in own}
        for name, array in found.items():
            if array.dtype != own[name].dtype or array.ndim != own[name].ndim:
                raise ValueError(f"{name} of {array.dtype} with {array.ndim} axes is not part of a state")
        if not np.array_equal(found["of"], own["of"]):
            raise ValueError(
                "length, margin, kind and largest element of the state and of this one are "
                f"{found['of'].tolist()} and {own['of'].tolist()}"
            )
        scale, history = found["scale"], found["history"]
        if (
            not (np.isfinite(scale) and _has_inverse(scale))
            or history.size > self._length
            or (history <= 0).any()
        ):
            raise ValueError("the state holds numbers that no scale or history has")
        self.scale = np.float32(scale)
        self._history = deque(history, maxlen=self._length)


def _has_inverse(scale: Any) -> bool:
    """Return whether a scale is above 0, and its inverse a finite number of binary32."""
    with np.errstate(all="ignore"):
        return bool(scale > 0 and np.isfinite(np.float32(1) / scale))
