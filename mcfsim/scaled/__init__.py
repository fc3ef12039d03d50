"""Numbers that share scales: the OCP MX formats, NVFP4, FP8, scaled integers, 8-bit moments.

`formats` are data, `scale_rules` name the rules. `rules` (exact quotients), `float32_rules` (those of
published code) and `searched_scales` carry them out on `block_views`. `quantization` converts both ways, and
`block_quantization` does so by compiled loops. `delayed_scale` follows a tensor over steps;
`hadamard_transform` rotates operands. `quantisers` are published ways to store moments that no scaled format
describes. Imports `backends` and below. Begin with `formats`.
"""

from mcfsim.scaled.delayed_scale import DelayedScale
from mcfsim.scaled.formats import SCALED, ScaledFormat, get_scaled_format, scaled_table
from mcfsim.scaled.quantization import Scaled, quantize
from mcfsim.scaled.scale_rules import ScaleRule

__all__ = [
    "SCALED",
    "DelayedScale",
    "ScaleRule",
    "Scaled",
    "ScaledFormat",
    "get_scaled_format",
    "quantize",
    "scaled_table",
]
