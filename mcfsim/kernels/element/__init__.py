"""Rounding and operations on one element, written once and without branches with twenty machine operations.

`machine` has these operations, called verbs, the straight line that records them, and NumPy's function for
each. `floats` and `element_rounding` round, `operations` add and multiply, `codes` encode. `calls` runs a
line on blocks as calls of NumPy's functions, which `forms` writes. Begin with `machine`, then `floats`.
"""
