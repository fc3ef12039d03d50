"""Number formats as data: binary floating point, posits, uniform grids, their registry and table."""

from mcfsim.formats.floating import Format, Parity, Specials
from mcfsim.formats.grids import Grid, grid
from mcfsim.formats.posit import Posit
from mcfsim.formats.printed import digits, format_table
from mcfsim.formats.registry import ALIASES, FORMATS, get_format, p3109

__all__ = [
    "ALIASES",
    "FORMATS",
    "Format",
    "Grid",
    "Parity",
    "Posit",
    "Specials",
    "digits",
    "format_table",
    "get_format",
    "grid",
    "p3109",
]
