"""Number formats as data: binary floating point, posits, uniform grids, and a table of named formats.

A `Format` is a few integers, from which its other properties are derived. Imports only `checks`. Begin with
`floating`; a named format is one line of `named`.
"""

from mcfsim.formats.floating import Format, Parity, Specials
from mcfsim.formats.grids import Grid, grid
from mcfsim.formats.named import ALIASES, FORMATS, digits, format_table, get_format, p3109
from mcfsim.formats.posit import Posit

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
