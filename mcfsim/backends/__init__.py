"""Arithmetics: objects with ``add``, ``mul``, ``fma`` etc., the first argument of every algorithm.

The emulator runs on NumPy (`numpy`) and PyTorch (`torch`, `torch_device`); `exact` computes with mpmath, and
`meter` wraps any arithmetic. An eager operation is one lowered line (`block_arithmetic`). Imports `kernels`,
`compile` and `convert`. Begin with `factory`, which makes an arithmetic from a format's name.
"""
