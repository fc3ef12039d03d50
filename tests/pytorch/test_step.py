"""Steps of the optimizers for torch: what moves together, groups, and what torch asks of a step."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.checks.processor import FlushedSubnormalsError
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch import AdamW, batched
from mcfsim.torch.host_step import HostStep
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, dtype_of, frozen, give, listed, parameters, run, states


# -- which tensors move together, and which do not ----------------------------------------------------------
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "stochastic", "fp8-moments"])
def test_parameters_without_a_gradient_stay_and_change_no_other(strategy, monkeypatch):
    """Not its step, nor the random words that it draws; batched or not."""
    shapes = ((3,), (0, 2), (40,), (), (9,), (256,), (4, 4))
    made = []
    for small in (-1, 64):
        monkeypatch.setattr(batched, "SMALL", small)
        given = parameters(shapes)
        made.append(AdamW(given, 1e-2, strategy=strategy))
        for step, skip in enumerate(({2}, {0, 5}, {2, 3, 6})):
            give(given, step, skip)
            made[-1].step()
    assert_same_states(*made)
    assert [made[-1].state[p]["step"] for p in given] == [2, 3, 1, 2, 3, 2, 2]
    other = AdamW(parameters(shapes), 1e-2, strategy=strategy)
    run(other, range(3))
    for place in (1, 4):
        assert torch.equal(listed(other)[place], given[place])


@pytest.mark.parametrize("kind", runs.KINDS.values(), ids=runs.KINDS)
def test_many_small_tensors_are_few_pieces_of_work(kind, monkeypatch):
    """However many there are: so many as fit a block are one, and others' copies go back to their places."""
    handed = []

    def move(self, moved, *_):
        handed.append([x.gradient.numel() for x in moved])

    monkeypatch.setattr(HostStep, "move", move)
    sizes = [16] * 200 + [BLOCK] + [batched.SMALL] * 9 + [16] * 3
    given = [torch.nn.Parameter(torch.ones(size).bfloat16()) for size in sizes]
    given[3].data = torch.ones(2, 16).bfloat16()[:, ::2].reshape(4, 4).t()
    for p in given:
        p.grad = torch.ones_like(p)
    kind(given, 1e-2).step()
    fit = BLOCK // batched.SMALL
    ends = [BLOCK, fit * batched.SMALL, (9 - fit) * batched.SMALL + 3 * 16]
    assert handed == [[3 * 16, 16, 196 * 16, *ends]]


def test_gradients_of_another_dtype_are_rounded_once():
    """Each by itself, beside others of the same batch that have another dtype."""
    given, random = [p for _ in range(2) for p in parameters([(200,)])], torch.Generator().manual_seed(0)
    optimizer = AdamW(given, 1e-2, strategy="plain")
    for _ in range(5):
        x = torch.randn(200, generator=random, dtype=torch.float64)
        x[::2] = x[::2].sign() * (1 + 2.0**-8 + 2.0**-40)  # a tie of bfloat16, if rounded to binary32 first
        given[1].grad_dtype = None
        given[0].grad = torch.from_numpy(mcf.round_to(x.numpy(), "bfloat16")).bfloat16()
        given[1].grad = x
        optimizer.step()
    assert torch.equal(*given)


def test_groups_are_moved_as_by_optimizers_of_their_own():
    """With their own strategies, hyperparameters and rates; saved and gone on from."""
    settings = [
        {"strategy": "collage-plus", "low": "float16", "eps": 1e-6},
        {"strategy": "plain", "rounding": "toward_zero", "lr": 1e-3, "betas": (0.8, 0.9)},
        {"strategy": "fp32-master", "scalars": "rounded", "weight_decay": 0.0},
        {"strategy": "fp32"},
    ]

    def of_each():
        return [parameters(dtype=dtype_of(x["strategy"], x.get("low", "bfloat16"))) for x in settings]

    def made():
        first, *rest = [{"params": x, **setting} for x, setting in zip(of_each(), settings, strict=True)]
        optimizer = AdamW([first], 1e-2)
        for group in rest:
            optimizer.add_param_group(group)
        return optimizer

    together, gone_on = made(), made()
    apart = [AdamW(x, **{"lr": 1e-2, **setting}) for x, setting in zip(of_each(), settings, strict=True)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(x, 0.5) for x in (together, *apart)]
    for step in range(3):
        for given in (*(group["params"] for group in together.param_groups), *map(listed, apart)):
            give(given, step)
        for x in (together, *apart, *schedulers):
            x.step()
    gone_on.load_state_dict(together.state_dict())
    runs.put(gone_on, listed(together))
    for optimizer in (together, gone_on):
        for group, single in zip(optimizer.param_groups, apart, strict=True):
            assert group["lr"] == single.param_groups[0]["lr"]
            assert_same_states(states(optimizer, group["params"]), states(single))


def test_words_are_drawn_by_the_number_of_an_element_among_all():
    """Whatever group its parameter is in; a group may have words of its own."""
    words = {"random": RandomWords(3), "strategy": "stochastic"}
    one, two, three = (parameters() for _ in range(3))
    whole = AdamW(one, **words)
    apart = AdamW([{"params": two[:1]}, {"params": two[1:]}], **words)
    other = AdamW([{"params": three[:1]}, {"params": three[1:], "random": RandomWords(4)}], **words)
    for optimizer in (whole, apart, other):
        run(optimizer, range(3))
    assert_same_states(whole, apart)
    assert_same_states(states(other, three[:1]), states(whole, one[:1]))
    assert not torch.equal(three[1], one[1])


# -- what torch asks of a step -----------------------------------------------------------------------------
def test_the_closure_is_called_with_gradients_on_and_autograd_notices_the_step():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer, kept = AdamW([weight], lr=0.1), []

    def closure():
        optimizer.zero_grad()
        kept.append((weight * weight).sum())
        kept[0].backward(retain_graph=True)
        return kept[0]

    with torch.no_grad():
        assert optimizer.step(closure).item() == 3.0
    assert weight.max() < 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept[0].backward()


def test_what_is_refused_changes_nothing():
    """Sparse gradients, and tensors of no parameter; of bad numbers see test_group."""
    given = parameters([(3, 2), (3, 2)])
    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}], 1e-2)
    before = frozen(optimizer)
    give(given, 0)
    given[1].grad = given[1].grad.to_sparse()
    with pytest.raises(TypeError, match=r"layout torch\.sparse_coo is not supported.*only dense ones are"):
        optimizer.step()
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.represented(torch.ones(2))
    assert_same_states(frozen(optimizer), before)


def test_a_torch_that_flushes_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        given = parameters()
        for refused in (lambda: mcf.arithmetic("bfloat16", backend="torch"), lambda: AdamW(given)):
            with pytest.raises(FlushedSubnormalsError, match=r"torch\.set_flush_denormal"):
                refused()
        torch.set_flush_denormal(False)
        optimizer = AdamW(given)
        give(given, 0)
        torch.set_flush_denormal(True)
        with pytest.raises(FlushedSubnormalsError):
            optimizer.step()
    finally:
        torch.set_flush_denormal(False)
    optimizer.step()


def test_an_optimizer_of_arrays_refuses_tensors():
    with pytest.raises(TypeError, match=r"keeps NumPy arrays, and TorchArithmetic\(bfloat16.* mcfsim\.torch"):
        mcf.Optimizer(mcf.AdamW(), mcf.strategy("plain", "bfloat16"), {"w": np.ones(3)}, backend="torch")
