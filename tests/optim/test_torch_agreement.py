"""PyTorch's own optimizers, in binary64, follow the exact trajectory as far as binary64 can."""

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Optimizer, strategy

STEPS = 20


def exact_weights(hyper, start, gradients, rate):
    optimizer = Optimizer(hyper, strategy("exact"), {"w": start}, {"w"})
    for gradient in gradients:
        optimizer.step(optimizer.receive({"w": gradient}), rate)
    return optimizer.weights()["w"].astype(np.float64)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_torch_in_binary64(name):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(2)
    start, gradients = random.standard_normal(32), random.standard_normal((STEPS, 32))
    weight = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    if name == "adamw":
        hyper = AdamW(0.9, 0.95, 1e-8, 0.1)
        theirs = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    else:
        hyper = SGD(0.9)
        theirs = torch.optim.SGD([weight], lr=1e-2, momentum=0.9)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        theirs.step()
    exact = exact_weights(hyper, start, gradients, 1e-2)
    np.testing.assert_allclose(weight.detach().numpy(), exact, rtol=0, atol=1e-12)
    assert np.abs(exact - start).min() > 1e-4
