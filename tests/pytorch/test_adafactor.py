"""Adafactor beside that of PyTorch, which computes in another order, and has epsilons of another kind."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.optim.adafactor import Adafactor


@pytest.mark.parametrize("rate", [1e-2, 1.0])
def test_steps_are_those_of_pytorch_within_its_rounding(rate):
    random, shapes = np.random.default_rng(0), {"b": (7,), "t": (2, 3, 4), "w": (5, 6)}
    start = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    start["b"] *= np.float32(1e-4)  # below the least scale
    ours = mcf.Optimizer(Adafactor(), mcf.strategy("fp32"), start)
    theirs = {name: torch.nn.Parameter(torch.from_numpy(x.copy())) for name, x in start.items()}
    optimizer = torch.optim.Adafactor(list(theirs.values()), lr=rate, weight_decay=0.0, foreach=False)
    for _ in range(5):
        given = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for name, parameter in theirs.items():
            parameter.grad = torch.from_numpy(given[name].copy())
        optimizer.step()
        ours.step(ours.receive(given), rate)
        for name, found in ours.weights().items():
            expected = theirs[name].detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7, err_msg=name)
