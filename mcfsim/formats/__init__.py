"""Number formats as data: binary floating point, posits, uniform grids, their registry and table."""

from mcfsim.formats.floating import Format, Parity, Specials
from mcfsim.formats.grids import Grid, grid
from mcfsim.formats.named import ALIASES, FORMATS, get_format, p3109
from mcfsim.formats.posit import Posit
from mcfsim.formats.printed import digits, format_table

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
