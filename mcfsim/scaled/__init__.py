"""Numbers that share scales: the OCP MX formats, NVFP4, scaled integers, 8-bit moments.

`formats` are data, `rules` choose scales, `quantization` converts both ways; `quantisers` are published ways
to store moments that no scaled format describes. Imports `backends` and below. Begin with `formats`.
"""

from mcfsim.scaled.formats import SCALED, ScaledFormat, ScaleRule, get_scaled_format, scaled_table
from mcfsim.scaled.quantization import Scaled, quantize

__all__ = [
    "SCALED",
    "ScaleRule",
    "Scaled",
    "ScaledFormat",
    "get_scaled_format",
    "quantize",
    "scaled_table",
]
