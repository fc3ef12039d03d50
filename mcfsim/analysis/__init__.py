"""Error analysis: what rounding does to a function, which expression is to blame, and what cures it.

`expressions` records a function with the places of its operations; `secants` has the exact slopes of each
operation; `attribution` divides the error of a program, on a block of inputs, among its operations. `truth`
compares with mpmath; `bounds` has the bounds of the literature; `advice`, `worst_inputs` and `curves` answer
further questions. Begin with `analyse`. `moving_average` says where an exponential average stalls. Imports:
`optim`, `multiword`, `backends`, `compile` and below.
"""
