"""Audits of model files of any size: which tensors would stop learning, and how much memory training takes.

`weights` and `samples` read a model, `plan` and `known` say how it moves, `forecast` and `audit` what
becomes of it, and `assigning` how to store each tensor. `recorder` and `recording` store gradients, `replay`
trains on them. Imports `training` and `optim`. Begin with `audit`.
"""
