"""Arrays of the same elements, which lie differently in memory."""

from typing import Any

import numpy as np


def read_only(x: Any) -> Any:
    """Return a copy that is not to be written to."""
    x = x.copy()
    x.flags.writeable = False
    return x


#: By name.
LAYOUTS = {
    "contiguous": lambda x: x,
    "Fortran": lambda x: np.array(x, order="F"),
    "with gaps": lambda x: np.repeat(x, 3, -1)[..., ::3] if x.ndim else x,
    "reversed": lambda x: np.flip(np.array(np.flip(x))) if x.ndim else x,
    "transposed": lambda x: np.array(x.T, order="C").T,
    "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "misaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim else x,
    "0-d": lambda x: x.reshape(-1)[:1].reshape(()) if x.size else x,
}
