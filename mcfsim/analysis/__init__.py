"""Error analysis: what rounding does to a function, which expression does it, and what cures it.

`expressions` records a function with the places of its operations; `secants` has the exact slopes of each
operation; `attribution` shares the error of a program on a block of inputs out. `truth` compares with mpmath,
`bounds` has the bounds of the literature; `advice`, `worst_inputs` and `curves` ask further questions.
Begin with `analyse`. `moving_average` says where an exponential average stalls. Imports: `optim`,
`multiword`, `backends`, `compile` and below.
"""
