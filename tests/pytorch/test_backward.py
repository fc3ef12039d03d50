"""Steps in the backward pass have the bits of ordinary ones, and each looks at one parameter alone."""

import sys
import warnings

import pytest
import torch

import mcfsim as mcf
from mcfsim.torch import SGD, AdamW, step_in_backward
from mcfsim.torch import backward as module
from tests.pytorch.runs import assert_same_states, backward, net


def model(layers=2):
    return net(*[4] * (layers + 1), dtype=torch.bfloat16)


def optimizers(one, two, kind=AdamW, **options):
    groups = ([{"params": x[0].parameters()}, {"params": x[2].parameters(), "lr": 3e-2}] for x in (one, two))
    return [kind(x, 1e-2, **options) for x in groups]


MOVED = (AdamW, "collage-plus"), (SGD, "stochastic"), (AdamW, "fp32-master")


@pytest.mark.parametrize("small", [0, 10, 1 << 14])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("kind", "strategy"), MOVED)
@pytest.mark.sampled(3, each=False)
def test_they_have_the_bits_of_ordinary_steps(kind, strategy, every, small, monkeypatch):
    """Gradients of some micro-batches are added up, and given back after the step."""
    monkeypatch.setattr(module, "SMALL", small)
    one, two = model(), model()
    ours, theirs = optimizers(one, two, kind, strategy=strategy, random=mcf.RandomWords(3))
    steps = step_in_backward(ours, every=every)

    def both_backward(step):
        backward(one, step)
        backward(two, step)

    for step in range(2 * every):
        both_backward(step)
        moves = step % every == every - 1
        assert all((p.grad is None) == moves for p in one.parameters())
        if moves:
            theirs.step()
            theirs.zero_grad()
    assert_same_states(ours, theirs)
    both_backward(7)
    steps.finish()
    theirs.step()
    assert_same_states(ours, theirs)
    steps.finish()
    steps.remove()
    theirs.zero_grad()
    backward(one, 8)
    assert all(p.grad is not None for p in one.parameters())
    assert_same_states(ours, theirs)


@pytest.mark.slow
def test_a_step_of_one_parameter_looks_at_no_other(monkeypatch):
    """Whatever their number: what is called for each of them is called as often for a few as for many."""
    monkeypatch.setattr(module, "SMALL", 0)
    calls = {}
    for layers in (4, 16):
        given = model(layers)
        optimizer = AdamW([{"params": [p]} for p in given.parameters()])  # each a group, too
        step_in_backward(optimizer)
        backward(given, 0)
        count = 0

        def counted(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        backward(given, 1)
        sys.setprofile(None)
        calls[layers] = count / layers
    assert calls[16] == pytest.approx(calls[4], rel=0.1)


def test_small_parameters_move_together(monkeypatch):
    """Those of a whole pass, but for the gradients of so many elements; after a pass that failed, too."""
    given, moved = model(8), []
    optimizer = AdamW(given.parameters())
    whole = optimizer.advance

    def advance(places, parameters, gradients):
        moved.append(len(places))
        whole(places, parameters, gradients)

    monkeypatch.setattr(optimizer, "advance", advance)
    step_in_backward(optimizer)
    backward(given, 0)
    assert moved == [16]
    failing = given[4].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backward(given, 1)
    failing.remove()
    optimizer.zero_grad()
    backward(given, 1)
    assert moved[1:] == [16]
    monkeypatch.setattr(module, "SMALL", 40)
    backward(given, 2)
    assert all(p.grad is None for p in given.parameters())
    assert max(moved[2:]) == 5
    assert sum(moved[2:]) == 16


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_pass_that_was_given_up_is_not_counted_and_schedulers_see_the_steps(set_to_none):
    one, two = model(), model()
    ours, theirs = optimizers(one, two)
    scheduler = torch.optim.lr_scheduler.StepLR(ours, 1, 1.0)
    step_in_backward(ours, every=2)
    backward(one, 5)
    ours.zero_grad(set_to_none)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            backward(one, step)
            backward(two, step)
        scheduler.step()
    theirs.step()
    assert all(p.grad is None for p in one.parameters())
    assert_same_states(ours, theirs)


def test_what_waited_in_a_pass_that_failed_waits_for_all_gradients_of_the_next_batch():
    """It went with the first large parameter, by the gradients of fewer passes."""
    given = [torch.nn.Parameter(torch.ones(size)) for size in (2, 3, module.SMALL + 1)]
    optimizer = AdamW(given, 1e-2, strategy="fp32")
    step_in_backward(optimizer, every=2)

    def accumulate():  # the last one's gradient comes first
        sum(p.sum() for p in given).backward()

    accumulate()
    failing = given[0].register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        accumulate()
    failing.remove()
    optimizer.zero_grad()
    accumulate()
    accumulate()
    assert all(p.grad is None for p in given)
    assert torch.equal(optimizer.state[given[1]]["m"], optimizer.state[given[0]]["m"].new_full((3,), 0.2))


def test_groups_that_change_meanwhile():
    given = model(3)
    first, second, third = (list(given[place].parameters()) for place in (0, 2, 4))
    optimizer = AdamW([{"params": first}, {"params": second}])
    steps = step_in_backward(optimizer)
    optimizer.add_param_group({"params": third})
    backward(given, 0)
    assert all(p.grad is None for p in (*first, *second))
    assert all(p.grad is not None for p in third)
    optimizer.zero_grad()
    optimizer.param_groups.reverse()  # places are looked for anew
    before = [p.detach().clone() for p in first]
    backward(given, 1)
    assert not any(torch.equal(p, q) for p, q in zip(first, before, strict=True))
    del optimizer.param_groups[1]
    with pytest.raises(ValueError, match="no longer belongs to the optimizer"):
        backward(given, 2)
    steps.remove()


def test_hooks_that_are_removed_within_a_pass_leave_gradients():
    p = torch.nn.Parameter(torch.ones(4))
    steps = step_in_backward(AdamW([p], 1e-2, strategy="fp32"))
    p.register_post_accumulate_grad_hook(lambda _: steps.remove())
    p.sum().backward()
    assert torch.equal(p.grad, torch.ones(4))
    assert torch.equal(p, torch.ones(4))


def test_what_is_refused():
    given = model()
    optimizer = AdamW(given.parameters())
    with pytest.raises(TypeError, match="not AdamW"):
        step_in_backward(torch.optim.AdamW(model().parameters()))
    for every, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="every"):
            step_in_backward(optimizer, every=every)
    backward(given, 0)
    with pytest.raises(ValueError, match="has a gradient already"):
        step_in_backward(optimizer)
    optimizer.zero_grad()
    steps = step_in_backward(optimizer)
    for again in (optimizer, AdamW(given.parameters())):
        with pytest.raises(ValueError, match=r"moves in the backward pass already; call remove\(\)"):
            step_in_backward(again)
    steps.remove()
    step_in_backward(optimizer).remove()


def test_a_gradient_that_another_hook_freed_makes_no_step():
    given = model()
    given[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    optimizer = AdamW(given.parameters())
    step_in_backward(optimizer)
    with pytest.raises(RuntimeError, match="another hook has freed the gradient"):
        backward(given, 0)
    assert given[0].weight not in optimizer.state


def test_gradients_that_are_no_sums_are_refused():
    """With `create_graph` the sum of two gradients is another tensor, and passes cannot be counted."""
    given = model()
    steps = step_in_backward(AdamW(given.parameters()), every=2)
    loss = sum(p.sum() for p in given.parameters())
    with pytest.raises(RuntimeError, match=r"create_graph=True.*every 2 passes"):
        loss.backward(create_graph=True)
    steps.remove()
