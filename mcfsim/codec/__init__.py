"""Values of a format and their codes, in order, and the neighbours and ulp of a value."""

from mcfsim.codec.codes import all_values, decode, encode
from mcfsim.codec.neighbours import next_down, next_up, ulp
from mcfsim.codec.views import as_dtype, codes_of
from mcfsim.kernels.codes_by_kind import code_dtype

__all__ = [
    "all_values",
    "as_dtype",
    "code_dtype",
    "codes_of",
    "decode",
    "encode",
    "next_down",
    "next_up",
    "ulp",
]
