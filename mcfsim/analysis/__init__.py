"""Error analysis: what rounding does to a function, which expression is to blame, and what cures it.

`expressions` records a function with the places of its operations; `secants` has the exact slopes of each
operation; `attribution` divides the error of a program, on a block of inputs, among its operations. `truth`
compares with mpmath; `bounds` has the bounds of the literature; `advice`, `worst_inputs` and `curves` answer
further questions. Begin with `analyse`. `moving_average` says where an exponential average stalls. Imports:
`optim`, `multiword`, `backends`, `compile` and below.

A recording keeps all operations and merges none. `rounded_run` runs it on a block of inputs and finds the
rounding error of each operation. `attribution` propagates these by secant slopes, forward to the error of the
result and backward to each operation's share in it; `blame` sums the shares by expression. The rules of an
operation (in `secants`, `rounded_run`, `bounds`) are written once for two uses: NumPy runs them on whole
blocks, and `compiled_attribution` copies them into one loop over a few inputs at a time, which reads the
program as data (`attribution_source`), so that programs with the same kinds of steps share it. If it can
perform all rounded steps, it does that, too, by the same lines of machine operations as all other loops.
"""
