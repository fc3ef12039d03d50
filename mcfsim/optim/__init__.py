"""Optimizers as plain functions of arithmetics, and storage strategies as data.

An optimizer is a file with a step and a `declaration`. A strategy is an entry of `strategies`; it says how
each tensor is `stored`. `optimizer` runs a step over all parameters, as one loop (`step_programs`) or in
stages (`staged_step`); its state begins from parameters or from a state under another strategy (`start`), and
`state`, `layout`, `vectors` and `groups` hold it. Imports `backends` and below. Begin with `adamw`, then
`strategy`.
"""
