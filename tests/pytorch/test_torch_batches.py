"""Small tensors are moved together, to the bits of one at a time."""

import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
import mcfsim.torch  # noqa: E402
from mcfsim.optim.declaration import straight_optimizers  # noqa: E402
from mcfsim.storage.buffers import BLOCK  # noqa: E402
from mcfsim.torch import batched  # noqa: E402
from mcfsim.torch.host_step import HostStep  # noqa: E402
from tests.pytorch.steps import assert_same_states, give_gradients, made  # noqa: E402
from tests.shared.kinds import STORED, feeding  # noqa: E402

#: Between small ones such as are moved alone: of (6, 4) columns lie together.
SHAPES = ((3,), (), (0, 2), (5, 7), (6, 4), (40,), (2, 2, 2), (65,), (9,), (4, 4))


@pytest.mark.parametrize(("optimizer", "strategy"), feeding(STORED))
@pytest.mark.sampled(12)
def test_a_batch_has_the_bits_of_its_parameters(optimizer, strategy, monkeypatch):
    """Of all optimizers and strategies, with numbers of all kinds, and some parameters without a gradient."""
    runs = []
    for small in (-1, 64):
        monkeypatch.setattr(batched, "SMALL", small)
        ours, given = made(optimizer, strategy, "bfloat16", shapes=SHAPES)
        for count in range(5):
            give_gradients(given, count)
            ours.step()
        runs.append(ours)
    assert_same_states(*runs)


@pytest.mark.parametrize("name", straight_optimizers())
def test_many_small_tensors_are_few_pieces_of_work(name, monkeypatch):
    """However many there are: so many as fit a block are one."""
    handed = []
    whole = HostStep.move

    def move(self, moved, hyper, count, rate):
        handed.append([x.gradient.numel() for x in moved])
        whole(self, moved, hyper, count, rate)

    monkeypatch.setattr(HostStep, "move", move)
    sizes = [16] * 200 + [BLOCK] + [batched.SMALL] * 9 + [16] * 3
    given = [torch.nn.Parameter(torch.ones(size).bfloat16()) for size in sizes]
    given[3].data = torch.ones(2, 16).bfloat16()[:, ::2].reshape(4, 4).t()
    for p in given:
        p.grad = torch.ones_like(p)
    kind = getattr(mcfsim.torch, straight_optimizers()[name].__name__)
    kind(given, 1e-2).step()
    assert len(handed) == 1
    in_block = BLOCK // batched.SMALL
    assert handed[0] == [
        3 * 16, 16, 196 * 16, BLOCK, in_block * batched.SMALL, (9 - in_block) * batched.SMALL + 3 * 16,
    ]  # fmt: skip


def test_gradients_of_other_dtypes_are_not_put_together():
    both = []
    for alone in (False, True):
        given = [torch.nn.Parameter(torch.ones(8).bfloat16()) for _ in range(4)]
        for place, p in enumerate(given):
            p.grad_dtype = None
            gradient = torch.linspace(1, 2, 8) / 3
            p.grad = gradient if place % 2 else gradient.bfloat16()
        groups = [{"params": [p]} for p in given] if alone else [{"params": given}]
        optimizer = mcfsim.torch.AdamW(groups, 1e-2)
        optimizer.step()
        both.append([p.tolist() for p in given])
    assert both[0] == both[1]
    assert mcf.round_to(1 / 3, "bfloat16") != 1 / 3
