"""Headers that say what a file of tensors is, with a digest of each tensor and of the header itself.

A changed byte is seen: one of a tensor by its digest, one of the header by its seal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike
from mcfsim.storage.schema import build, parse
from mcfsim.storage.tensors import FileOfTensorsError, Tensor

#: What a header says that its file is: weights or a step of recorded gradients, or an optimizer's state.
RECORDING, STATE = "mcfsim-recording-1", "mcfsim-state-1"
#: Dtype, as files call it, and shape of each tensor.
Forms = Mapping[str, tuple[str, tuple[int, ...]]]
#: Elements that are read at a time for a digest.
AT_ONCE = 1 << 20


def sealed(kind: str, forms: Forms, digests: Mapping[str, str], about: Mapping[str, str]) -> dict[str, str]:
    """Return what a header says besides its tensors.

    Parameters
    ----------
    kind : str
        `RECORDING` or `STATE`.
    forms : mapping of str to (str, tuple of int)
        Of the tensors.
    digests : mapping of str to str
        SHA-256 of each tensor's bytes.
    about : mapping of str to str
        What else it is to say.
    """
    said = {"format": kind, "tensors": json.dumps(dict(digests)), **about}
    return {**said, "sha256": _seal(forms, said)}


def unsealed(
    path: Pathlike, tensors: Mapping[str, Tensor], about: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of tensors, in the order that a header has them in, and what else it says.

    Raises
    ------
    FileOfTensorsError
        If the header is another than was written, or is not of these tensors.
    """
    said = dict(about)
    forms = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if said.pop("sha256", None) != _seal(forms, said):
        raise FileOfTensorsError(path, "has a damaged header: its digest is not the one recorded")
    try:
        digests: dict[str, str] = build(dict[str, str], parse(said["tensors"]), "tensors")
    except (KeyError, ValueError) as problem:
        raise FileOfTensorsError(path, f"has a header that mcfsim did not write: {problem}") from problem
    if digests.keys() != tensors.keys():
        raise FileOfTensorsError(path, "has a header that mcfsim did not write: its digests are of others")
    return digests, said


def digest(elements: NDArray[Any]) -> str:
    """Return the SHA-256 of contiguous elements as they lie in a file, in hexadecimal."""
    return hashlib.sha256(_bytes(elements)).hexdigest()


def digest_of(tensor: Tensor, look: Any = None) -> str:
    """Return the SHA-256 of a tensor's bytes, read a stretch at a time; each is shown to `look`, if any."""
    whole = hashlib.sha256()
    for elements in tensor.blocks(AT_ONCE):
        whole.update(_bytes(elements))
        if look is not None:
            look(elements)
    return whole.hexdigest()


def check_digest(path: Pathlike, name: str, found: str, recorded: str) -> None:
    """Raise FileOfTensorsError unless a tensor has the digest that its header says."""
    if found != recorded:
        raise FileOfTensorsError(path, f"tensor {name!r} is damaged: its digest is not the one recorded")


def check_weights(path: Pathlike, about: Mapping[str, str]) -> None:
    """Raise FileOfTensorsError if a header says that its file holds something else than weights."""
    if about.get("format") == RECORDING and "step" in about:
        raise FileOfTensorsError(
            path, f"has the gradients of step {about['step']} of a recording, no weights"
        )
    if about.get("format") == STATE:
        raise FileOfTensorsError(path, "has an optimizer's state, whose moments are no weights")


def _bytes(elements: NDArray[Any]) -> memoryview:
    return np.ravel(elements).data.cast("B") if elements.size else memoryview(b"")


def _seal(forms: Forms, about: Mapping[str, str]) -> str:
    """Return the SHA-256 of all that a header says."""
    listed = [[name, dtype, list(shape)] for name, (dtype, shape) in sorted(forms.items())]
    return hashlib.sha256(json.dumps([listed, sorted(about.items())]).encode()).hexdigest()
