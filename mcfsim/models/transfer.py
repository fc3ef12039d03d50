"""Transfers of weights that a few steps have changed: which codes, and as how many bytes they are sent."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import as_array, chosen, whole_number

Array = NDArray[Any]


class Encoding(StrEnum):
    """How a transfer says which codes have changed, and to what.

    ``mask``: a bit for each code, and the new codes. ``indices``: an integer of 32 bits for each new code,
    or of 64 from 2**32 codes on. ``gaps``: 16 bits for the number of codes between one that changed and the
    next; 65535 means as many codes, with more to come. ``xor``: old and new bytes, exclusive or. ``dense``:
    all new codes.
    """

    MASK = "mask"
    INDICES = "indices"
    GAPS = "gaps"
    XOR = "xor"
    DENSE = "dense"


#: Magic, version, place of the encoding, bytes of a code, flags; numbers of codes and of changed codes;
#: CRC-32 of the old codes that changed, and of all else.
_HEAD = struct.Struct("<4sBBBBQQII")
_MAGIC, _VERSION = b"mcfd", 1
#: Flags: what follows is deflated; the old codes are known.
_DEFLATED, _BASED = 1, 2
#: The gap that means this many unchanged codes, with more to come.
_MORE = 0xFFFF


class _Head(NamedTuple):
    encoding: Encoding
    itemsize: int
    flags: int
    size: int
    changed: int
    base: int

    def packed(self, payload: bytes) -> bytes:
        """Return the head's bytes, with the checksum of itself and of what follows."""
        place = [*Encoding].index(self.encoding)
        given = (_MAGIC, _VERSION, place, self.itemsize, self.flags, self.size, self.changed, self.base)
        return _HEAD.pack(*given, zlib.crc32(payload, zlib.crc32(_HEAD.pack(*given, 0))))


@dataclass(frozen=True, eq=False)
class Delta:
    """The codes of a tensor that have changed.

    Parameters
    ----------
    size : int
        Number of codes of the tensor.
    places : array of int, shape (changed,)
        The row-major indices of those that changed, ascending.
    after : array of unsigned integers, shape (changed,)
        Their new codes, of 8, 16, 32 or 64 bits.
    before : array of unsigned integers, shape (changed,), optional
        Their old codes: ``xor`` needs them, and they identify the weights to which the change belongs.

    Raises
    ------
    TypeError
        If the size is not an int, arrays are not of integers, or codes are not unsigned and of one dtype.
    ValueError
        If arrays are not vectors of one length, places do not ascend within the tensor, or an old code equals
        the new one.
    """

    size: int
    places: Array
    after: Array
    before: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number("size", self.size, least=0))
        for label in ("places", "after", "before"):
            if label == "before" and self.before is None:
                continue
            x = as_array(getattr(self, label), label)
            if x.dtype.kind not in ("iu" if label == "places" else "u"):
                raise TypeError(f"{label} are integers, codes unsigned ones, not {x.dtype}")
            if x.ndim != 1 or x.size != np.size(self.places):
                raise ValueError(f"{label} have shape {x.shape}; there are {np.size(self.places)} places")
            object.__setattr__(self, label, _native(x))
        if self.before is not None and self.before.dtype != self.after.dtype:
            raise TypeError(f"codes of {self.before.dtype} do not become codes of {self.after.dtype}")
        if self.places.size and not (
            self.places[0] >= 0 and self.places[-1] < self.size and (self.places[1:] > self.places[:-1]).all()
        ):
            raise ValueError(f"places must ascend from 0 at least to below {self.size}")
        if self.before is not None and (same := self.before == self.after).any():
            which = int(np.argmax(same))
            raise ValueError(
                f"at place {self.places[which]} the code stays {self.after[which]}: leave it out"
            )

    @classmethod
    def between(cls, old: Any, new: Any) -> Delta:
        """Return the difference of two arrays, byte by byte: zeros differ by sign, and NaN by code.

        Raises
        ------
        TypeError, ValueError
            If dtypes or shapes differ, or elements are not of 1, 2, 4 or 8 bytes.
        """
        a, b = as_array(old, "old"), as_array(new, "new")
        if a.dtype != b.dtype:
            raise TypeError(f"old weights are {a.dtype}, and new ones {b.dtype}")
        if a.shape != b.shape:
            raise ValueError(f"old weights have shape {a.shape}, and new ones {b.shape}")
        a, b = (_native(_codes(np.ascontiguousarray(x))) for x in (a, b))
        places = np.flatnonzero(a != b)
        return cls(a.size, places, b[places], a[places])

    @cached_property
    def gaps(self) -> NDArray[np.uint16]:
        """How many codes lie between one that changed and the next, as ``gaps`` sends them."""
        skipped = np.diff(self.places.astype(np.int64), prepend=-1) - 1
        more, rest = np.divmod(skipped, _MORE)
        ends = np.cumsum(more + 1) - 1
        words = np.full(int(ends[-1]) + 1 if ends.size else 0, _MORE, "<u2")
        words[ends] = rest
        return words

    def encode(self, encoding: Encoding | str, weights: Any = None, *, compress: bool = False) -> bytes:
        """Return the change as bytes: a head of 32, and what the encoding says, deflated if asked.

        Parameters
        ----------
        encoding : {"mask", "indices", "gaps", "xor", "dense"}
            See `Encoding`.
        weights : array, optional
            All new weights, in the dtype of the codes or one of as many bytes; ``dense`` needs them.
        compress : bool, optional
            Whether to deflate by zlib.

        Raises
        ------
        ValueError
            If the encoding is unknown, ``xor`` lacks old codes, or ``dense`` lacks weights or has others.
        """
        kind = chosen("encoding", encoding, Encoding)
        payload = b"".join(part.tobytes() for part in self._parts(kind, weights))
        payload = zlib.compress(payload) if compress else payload
        flags, base = _DEFLATED * compress, 0
        if kind is not Encoding.DENSE and self.before is not None:
            flags, base = flags | _BASED, _crc(self.before)
        head = _Head(kind, self.after.itemsize, flags, self.size, self.places.size, base)
        return head.packed(payload) + payload

    def _parts(self, kind: Encoding, weights: Any) -> Iterator[Array]:
        after = _little(self.after)
        if kind is Encoding.DENSE:
            if weights is None:
                raise ValueError("dense sends all weights: hand them over as weights=")
            codes = _native(_codes(np.ascontiguousarray(as_array(weights, "weights"))))
            if codes.dtype != self.after.dtype or codes.size != self.size:
                raise ValueError(f"weights are {codes.size} of {codes.itemsize} bytes, not {self._told}")
            if (codes[self.places] != self.after).any():
                raise ValueError("weights are not the new ones of this change")
            yield _little(codes)
            return
        if kind is Encoding.XOR:
            if self.before is None:
                raise ValueError("xor sends old codes exclusive or new ones, and the old ones are not kept")
            whole = np.zeros(self.size, after.dtype)
            whole[self.places] = self.before ^ self.after
            yield whole
            return
        if kind is Encoding.MASK:
            mask = np.zeros(self.size, np.bool_)
            mask[self.places] = True
            yield np.packbits(mask, bitorder="little")
        else:
            yield self.gaps if kind is Encoding.GAPS else self.places.astype(_index(self.size))
        yield after

    @property
    def _told(self) -> str:
        return f"{self.size} of {self.after.itemsize} bytes"


def apply_delta(data: bytes, weights: Array) -> int:
    """Change weights in place as the bytes of `Delta.encode` say; write nothing unless every check passes.

    Parameters
    ----------
    data : bytes
        What was sent.
    weights : array
        The old weights, contiguous, of any dtype of as many bytes.

    Returns
    -------
    int
        How many codes changed.

    Raises
    ------
    TypeError
        If `data` is not bytes, or `weights` is not an array or is masked.
    ValueError
        If bytes are damaged or missing, or are of another number or size of codes; or if the old codes were
        kept, and `weights` have others at these places. Codes that did not change are not checked.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a change is sent as bytes, not as {type(data).__name__}")
    if not isinstance(weights, np.ndarray):
        raise TypeError(f"weights must be an array, not {type(weights).__name__}")
    weights = as_array(weights, "weights")
    if not (weights.flags.c_contiguous and weights.flags.writeable):
        raise ValueError("weights that are changed in place must be contiguous, and may not be read-only")
    codes = _codes(weights)
    head, payload = _opened(bytes(data), codes)
    if head.encoding is Encoding.DENSE:
        codes[:] = np.frombuffer(payload, _little(codes).dtype)
        return head.changed
    places, values = _read(head, payload, codes)
    if head.flags & _BASED and _crc(codes[places]) != head.base:
        raise ValueError("the weights are not those that were changed: a change before this one was missed")
    codes[places] = values
    return head.changed


def _opened(data: bytes, codes: Array) -> tuple[_Head, bytes]:
    """Return the head, checked against the weights, and what follows, inflated."""
    if len(data) < _HEAD.size:
        raise ValueError(f"a change has {_HEAD.size} bytes at least, not {len(data)}")
    magic, version, place, itemsize, flags, size, count, base, crc = _HEAD.unpack_from(data)
    kinds = [*Encoding]
    if (magic, version) != (_MAGIC, _VERSION) or place >= len(kinds):
        raise ValueError("the bytes are no change of weights, or one of another version")
    payload = data[_HEAD.size :]
    if zlib.crc32(payload, zlib.crc32(data[: _HEAD.size - 4] + bytes(4))) != crc:
        raise ValueError("the bytes are damaged: their checksum does not match")
    if (size, itemsize) != (codes.size, codes.itemsize):
        raise ValueError(
            f"the change is of {size} codes of {itemsize} bytes, and weights are {codes.size} of "
            f"{codes.itemsize}"
        )
    head = _Head(kinds[place], itemsize, flags, size, count, base)
    lengths = (_lengths(size, itemsize, count, words) for words in (count, count + size // _MORE))
    least, most = (length[head.encoding] - _HEAD.size for length in lengths)
    if flags & _DEFLATED:
        inflating = zlib.decompressobj()
        try:
            payload = inflating.decompress(payload, most + 1)
        except zlib.error as error:
            raise ValueError(f"the bytes cannot be inflated: {error}") from None
    if not least <= len(payload) <= most:
        raise ValueError(f"{len(payload)} bytes follow the head; {least} to {most} were expected")
    return head, payload


def _read(head: _Head, payload: bytes, codes: Array) -> tuple[Array, Array]:
    """Return the places that change, and their new codes."""
    little = _little(codes).dtype
    if head.encoding is Encoding.XOR:
        whole = np.frombuffer(payload, little)
        places = np.flatnonzero(whole)
        values = codes[places] ^ whole[places]
    else:
        cut = len(payload) - head.changed * head.itemsize
        values = np.frombuffer(payload, little, offset=cut)
        places = _places(head, payload[:cut])
    if places.size != head.changed or (places.size and int(places.max()) >= head.size):
        raise ValueError(f"{places.size} codes change up to the last place; {head.changed} were expected")
    return places, values


def _places(head: _Head, said: bytes) -> Array:
    if head.encoding is Encoding.INDICES:
        return np.frombuffer(said, _index(head.size))
    if head.encoding is Encoding.MASK:
        return np.flatnonzero(np.unpackbits(np.frombuffer(said, np.uint8), bitorder="little"))
    words = np.frombuffer(said, "<u2")
    ends = np.flatnonzero(words != _MORE)
    return np.cumsum(words, dtype=np.int64)[ends] + np.arange(ends.size)


def _codes(x: Array) -> Array:
    """Return a contiguous array's codes as a vector in the same memory, and so in its byte order."""
    if x.dtype.hasobject or x.itemsize not in (1, 2, 4, 8):
        raise TypeError(f"elements of {x.dtype} are not codes of 1, 2, 4 or 8 bytes")
    return x.reshape(-1).view(np.dtype(f"u{x.itemsize}").newbyteorder(x.dtype.byteorder))


def _native(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder("="), copy=False)


def _little(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder("<"), copy=False)


def _index(size: int) -> np.dtype[Any]:
    return np.dtype("<u4" if size <= 2**32 else "<u8")


def _crc(codes: Array) -> int:
    return zlib.crc32(_little(np.ascontiguousarray(codes)).tobytes())


# -- before anything is sent ------------------------------------------------------------------------------
def expected_bytes(size: int, share: float, itemsize: int) -> dict[Encoding, float]:
    """Return how many bytes each encoding takes on average, without deflating.

    Parameters
    ----------
    size : int
        Number of codes.
    share : float
        The probability that a code changes; each changes independently of the others. NaN gives NaN except
        where all codes are sent.
    itemsize : int
        Bytes of a code.
    """
    count = share * size
    # Every 65535 codes that stay before one that changes cost a word more; of 40 / share codes some change.
    stay = np.arange(_MORE, min(size, 40 / share) if share > 0 else 0, _MORE)
    words = count + share * float((size - stay) @ (1.0 - share) ** stay)
    return {kind: float(length) for kind, length in _lengths(size, itemsize, count, words).items()}


def _lengths(size: int, itemsize: int, changed: float, words: float) -> dict[Encoding, Any]:
    """Return how many bytes each encoding takes, not deflated, given the number of words of gaps."""
    values, whole = _HEAD.size + changed * itemsize, _HEAD.size + size * itemsize
    return {
        Encoding.MASK: values + -(-size // 8),
        Encoding.INDICES: values + changed * _index(size).itemsize,
        Encoding.GAPS: values + 2 * words,
        Encoding.XOR: whole,
        Encoding.DENSE: whole,
    }
