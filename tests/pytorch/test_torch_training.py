"""Models trained with torch: where compensation leads, and agreement with torch's own AdamW."""

import pytest

torch = pytest.importorskip("torch")

from mcfsim.torch import AdamW  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 50


def model(dtype):
    generator = torch.Generator().manual_seed(3)
    layers = torch.nn.Sequential(
        torch.nn.Embedding(20, 16), torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 20)
    )
    with torch.no_grad():
        for p in layers.parameters():
            # Values of bfloat16, so that every dtype starts from the same ones.
            p.copy_((torch.randn(p.shape, generator=generator) * 0.3).bfloat16())
    return layers.to(dtype)


def batch(step):
    """Return tokens and their successors under a fixed permutation."""
    tokens = torch.randint(20, (64,), generator=torch.Generator().manual_seed(step))
    return tokens, (tokens * 7 + 3) % 20


def train(net, optimizer, steps=STEPS):
    losses = []
    for step in range(steps):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def represented(name, lr=3e-4):
    net = model(torch.bfloat16)
    optimizer = AdamW(net.parameters(), lr=lr, strategy=name)
    losses = train(net, optimizer)
    assert losses[-1] < losses[0]
    return torch.cat([optimizer.represented(p).flatten() for p in net.parameters()])


def test_compensated_training_ends_near_the_master_weights():
    master = represented("fp32-master")
    start = torch.cat([p.detach().flatten() for p in model(torch.bfloat16).parameters()])
    moved = (master - start).norm()
    distance = {
        name: float((represented(name) - master).norm() / moved) for name in ("plain", "collage-plus")
    }
    # Measured: 0.86 and 0.003 of the way that the master weights went.
    assert distance["plain"] > 0.5
    assert distance["collage-plus"] < 0.03


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fp32_agrees_with_torch(decay):
    nets = [model(torch.float32) for _ in range(2)]
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": decay}
    train(nets[0], AdamW(nets[0].parameters(), strategy="fp32", **options))
    train(nets[1], torch.optim.AdamW(nets[1].parameters(), **options))
    # Each addition to a weight of about 1 is off by up to 2**-24, and may add up; the gradients feed it back.
    for ours, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2 * STEPS * 2.0**-24)
