"""Rounding and operations on one element, written once and without branches with twenty machine operations.

`machine` has these operations, called verbs, the straight line that records them, and NumPy's function for
each. `floats` rounds to floating-point formats, `element_rounding` to any; `binary32` has the bits of numbers
of binary32, `operations` add and multiply, `codes` encode. `calls` runs a line on blocks as calls of NumPy's
functions, which `forms` writes. Begin with `machine`, then `floats`.
"""
