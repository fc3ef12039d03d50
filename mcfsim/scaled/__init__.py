"""Numbers that share scales: the OCP MX formats, NVFP4, scaled integers."""

from mcfsim.scaled.format_table import scaled_table
from mcfsim.scaled.formats import SCALED, ScaledFormat, ScaleRule, get_scaled_format
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
