"""Correct rounding of blocks of numbers to a format, and what operations need to be rounded once.

`blocks` has the kernels. `operation_plan` says how each operation is made exact and why.
`codes_by_kind` converts values to codes. `element` has the algorithms that round one number. Imports
`formats`, `rounding` and `eft`. Begin with `element`, then `operation_plan`.
"""
