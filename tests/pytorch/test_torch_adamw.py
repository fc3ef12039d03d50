"""AdamW beside torch's own: near it in float32, and other by its first moment as documented."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.torch import AdamW

STEPS = 30


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fp32_agrees_with_torch(decay, one_thread):
    """In the training of a model that learns a permutation."""
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": decay}
    nets = []
    for kind, own in ((AdamW, {"strategy": "fp32"}), (torch.optim.AdamW, {})):
        torch.manual_seed(3)
        layers = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 20)
        nets.append(torch.nn.Sequential(*layers))
        optimizer = kind(nets[-1].parameters(), **options, **own)
        for step in range(STEPS):
            tokens = torch.randint(20, (64,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(nets[-1](tokens), (tokens * 7 + 3) % 20).backward()
            optimizer.step()
    # Each addition to a weight of about 1 is off by up to 2**-24, and may add up; the gradients feed it back.
    for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2 * STEPS * 2.0**-24)


def first_moments(dtype, beta1, steps, **how):
    """Return torch's m and ours after each step, ours made from torch's state before it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(20_000, dtype=dtype))
    theirs = torch.optim.AdamW([weight], lr=0.0, betas=(beta1, 0.999), weight_decay=0.0, **how)
    ar = mcf.arithmetic(str(dtype).removeprefix("torch."))
    single = mcf.arithmetic("float32")
    before, found = np.zeros(20_000, np.float32), []
    for _ in range(steps):
        weight.grad = torch.randn(20_000, generator=generator).to(dtype)
        theirs.step()
        g, m = weight.grad.float().numpy(), theirs.state[weight]["exp_avg"].float().numpy().copy()
        w = float(np.float32(1 - beta1))
        apart = single.sub(g, before)
        fused, separate = single.fma(apart, w, before), single.add(before, single.mul(apart, w))
        ours = ar.fma(g, 1 - beta1, ar.mul(before, beta1))
        found.append((m, ours, ar.round(fused), ar.round(separate)))
        before = m
    return found


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("beta1", [0.9, 0.95])
@pytest.mark.parametrize(
    ("dtype", "first", "later"), [(torch.float32, 0.20, 0.37), (torch.bfloat16, 0.0, 0.265)], ids=str
)
def test_torchs_first_moment_is_a_lerp_and_differs_as_documented(how, beta1, dtype, first, later):
    found = first_moments(dtype, beta1, 4, **how)
    # A processor without fused multiply-add rounds the product on its own.
    assert any(all((step[0] == step[i]).all() for step in found) for i in (2, 3))
    shares = [np.mean(m != ours) for m, ours, *_ in found]
    assert shares[0] == pytest.approx(first, abs=0.01)
    assert shares[1:] == pytest.approx([later] * 3, abs=0.025)
