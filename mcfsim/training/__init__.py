"""Training of problems under several storage strategies side by side, and measures of what each loses.

`simulate` makes a run, `setup` is all that it depends on, `gradients` come from a problem, `trainer` runs one
strategy or several one after another and says what a step should have done, `metrics` what it lost; `record`
and `checkpoint` are files. `problems` are the objectives. Imports `optim` and below. Begin with `simulate`.
"""
