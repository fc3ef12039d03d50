"""Arithmetics: objects with ``add``, ``mul``, ``fma`` etc., the first argument of every algorithm.

There are emulators on NumPy (`numpy`) and PyTorch (`torch`, `torch_device`), mpmath (`exact`), and the
`meter` around any of them. An eager operation is one lowered line (`block_arithmetic`). Imports `kernels`,
`compile` and `convert`. Begin with `factory`, which makes an arithmetic from a format's name.
"""
