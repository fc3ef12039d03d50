"""What PyTorch asks of an optimizer in its own tests, by its names, asked of ours; the texts are our own.

PyTorch's tests allow errors of rounding; here states are compared bit for bit.
"""

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.pytorch.steps import assert_same_states

#: Each is asked with parameters of both dtypes.
STORED = {torch.float32: "fp32", torch.bfloat16: "collage-plus"}
STEPS = 3


class Asked(NamedTuple):
    """An optimizer of ours with an input of PyTorch's."""

    kind: Callable[..., Any]
    dtype: torch.dtype
    options: dict[str, Any]
    info: Any

    def parameters(self, names: bool = False, apart: bool = False) -> Any:
        """Return a weight and a bias, as they are, named, or as columns of what is larger."""
        generator = torch.Generator().manual_seed(7)
        shapes = ((6, 5, 2), (6, 2))
        found = [torch.randn(shape, generator=generator).to(self.dtype)[..., 0] for shape in shapes]
        given = [
            torch.nn.Parameter(x if apart else x.clone(memory_format=torch.contiguous_format)) for x in found
        ]
        return list(zip(("weight", "bias"), given, strict=True)) if names else given

    def made(self, given: Any, **others: Any) -> Any:
        """Return the optimizer; a rate that is a tensor is its own, for schedulers fill it."""
        return self.kind(given, strategy=STORED[self.dtype], **deepcopy({**self.options, **others}))


def loss_of(given, optimizer):
    """Return a closure: the loss of a linear layer."""
    weight, bias = given
    x = torch.linspace(-1, 1, 5).to(weight.dtype)

    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(x) + bias).pow(2).sum()
        loss.backward()
        return loss

    return closure


def run(given, optimizer, steps=STEPS):
    for _ in range(steps):
        optimizer.step(loss_of(given, optimizer))


def lists(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


# -- the tests ----------------------------------------------------------------------------------------------
def test_goes_right_direction(asked):
    for apart in (False, True):
        given = asked.parameters(apart=apart)
        _assert_right_direction(asked, given, asked.made(given), ())


def test_goes_right_direction_with_lrsched(asked):
    for schedulers in asked.info.scheduler_inputs:
        given = asked.parameters()
        _assert_right_direction(asked, given, asked.made(given), schedulers)


def test_param_group_with_lrscheduler_goes_right_direction(asked):
    for schedulers in asked.info.scheduler_inputs:
        given = asked.parameters()
        optimizer = asked.made([{"params": given[:1]}, {"params": given[1:], "lr": 0.01}])
        _assert_right_direction(asked, given, optimizer, schedulers)


def _assert_right_direction(asked, given, optimizer, schedulers):
    """Of the numbers that the optimizer means: few steps move no bfloat16."""
    made = [scheduler(optimizer) for scheduler in schedulers]

    def value():
        weight, bias = (optimizer.represented(p) for p in given)
        return (weight.mv(torch.linspace(-1, 1, 5).double()) + bias).pow(2).sum().item()

    first = value()
    for _ in range(STEPS):
        loss = optimizer.step(loss_of(given, optimizer)).item()
        for scheduler in made:
            scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    assert value() > first if asked.options.get("maximize") else value() < first


def test_param_groups_lr(asked):
    """A group has its own rate, as an optimizer of its own has."""
    _assert_groups_are_apart(asked, {"lr": 0.25})


def test_param_groups_weight_decay(asked):
    _assert_groups_are_apart(asked, {"weight_decay": 0.5})


def _assert_groups_are_apart(asked, option):
    one, two = asked.parameters(), asked.parameters()
    together = asked.made([{"params": one[:1]}, {"params": one[1:], **option}])
    apart = asked.made(two[:1]), asked.made(two[1:], **option)
    for _ in range(STEPS):
        closure = loss_of(one, together)
        closure()
        for p, q in zip(one, two, strict=True):
            q.grad = p.grad.clone()
        together.step()
        for optimizer in apart:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(one, two, strict=True))


def test_tensor_lr(asked):
    """A tensor is the number that it is; a scheduler fills it in place."""
    rate = asked.options.get("lr", 1e-3)
    number, tensor = float(rate), torch.as_tensor(rate, dtype=torch.float64).clone()
    one, two = asked.parameters(), asked.parameters()
    ours, theirs = asked.made(one, lr=tensor), asked.made(two, lr=number)
    tensor = ours.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.StepLR(ours, 1, 0.5)
    run(one, ours)
    run(two, theirs)
    assert_same_states(ours, theirs)
    scheduler.step()
    assert ours.param_groups[0]["lr"] is tensor
    assert float(tensor) == number / 2


def test_tensor_lr_num_dim(asked):
    one, two = asked.parameters(), asked.parameters()
    ours, theirs = asked.made(one, lr=torch.tensor([0.5])), asked.made(two, lr=0.5)
    run(one, ours)
    run(two, theirs)
    assert_same_states(ours, theirs)


def test_step_is_noop_when_params_have_no_grad(asked):
    given = asked.parameters()
    before = deepcopy(given)
    optimizer = asked.made(given)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(given, before, strict=True))
    assert not optimizer.state


def test_step_is_noop_for_zero_grads(asked):
    given = asked.parameters()
    before = deepcopy(given)
    optimizer = asked.made(given, weight_decay=0.0)
    for p in given:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(given, before, strict=True))


def test_step_is_noop_for_empty_grads(asked):
    empty = torch.nn.Parameter(torch.zeros(0, 3, dtype=asked.dtype))
    optimizer = asked.made([empty])
    empty.grad = torch.zeros_like(empty)
    optimizer.step()
    assert empty.shape == (0, 3)


def test_grads_are_never_inplaced_into(asked):
    given = asked.parameters()
    optimizer = asked.made(given)
    loss_of(given, optimizer)()
    before, versions = [p.grad.clone() for p in given], [p.grad._version for p in given]
    optimizer.step()
    assert all(torch.equal(p.grad, x) for p, x in zip(given, before, strict=True))
    assert [p.grad._version for p in given] == versions


def test_state_dict_deterministic(asked):
    one, two = asked.parameters(), asked.parameters()
    ours = asked.made(one)
    run(one, ours)
    with torch.no_grad():
        for p, q in zip(one, two, strict=True):
            q.copy_(p)
    theirs = asked.made(two)
    saved = deepcopy(ours.state_dict())
    theirs.load_state_dict(saved)
    run(one, ours)
    run(two, theirs)
    assert_same_states(ours, theirs)
    assert str(saved) == str(_loaded_again(saved, asked))
    assert str(ours.state_dict()) == str(theirs.state_dict())


def _loaded_again(saved, asked):
    given = asked.parameters()
    optimizer = asked.made(given)
    optimizer.load_state_dict(saved)
    return saved


def test_can_load_older_state_dict(asked):
    """One without the flags that optimizers of PyTorch got later."""
    given = asked.parameters()
    optimizer = asked.made(given)
    run(given, optimizer)
    for flag in asked.info.not_og_supported_flags:
        saved = deepcopy(optimizer.state_dict())
        for group in saved["param_groups"]:
            group.pop(flag, None)
        optimizer.load_state_dict(saved)
        run(given, optimizer, 1)


def test_can_load_from_to_named_state_dict(asked):
    for names in ((True, False), (False, True), (True, True)):
        one, two = (asked.parameters(names=named) for named in names)
        ours, theirs = asked.made(one), asked.made(two)
        run(lists(ours), ours)
        theirs.load_state_dict(deepcopy(ours.state_dict()))
        with torch.no_grad():
            for p, q in zip(lists(ours), lists(theirs), strict=True):
                q.copy_(p)
        run(lists(ours), ours)
        run(lists(theirs), theirs)
        assert_same_states(ours, theirs)


def test_load_nontensor_step(asked):
    """A number for a tensor, and here a tensor for a number, too."""
    given = asked.parameters()
    optimizer = asked.made(given)
    run(given, optimizer)
    for kind in (int, float, torch.tensor):
        saved = deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            state["step"] = kind(state["step"])
        optimizer.load_state_dict(saved)
        run(given, optimizer, 1)


def test_save_load_equality_with_weights_only(asked):
    given = asked.parameters()
    optimizer = asked.made(given)
    run(given, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert str(torch.load(file, weights_only=True)) == str(optimizer.state_dict())


def test_optimizer_can_be_printed(asked):
    assert "strategy" in repr(asked.made(asked.parameters()))


def test_non_empty_state(asked):
    given = asked.parameters()
    optimizer = asked.made(given)
    run(given, optimizer, 1)
    assert all(optimizer.state[p] for p in given)


def test_deepcopy_copies_all_public_attrs(asked):
    given = asked.parameters()
    optimizer = asked.made(given)
    run(given, optimizer)
    other = deepcopy(optimizer)
    public = [{name for name in vars(x) if not name.startswith("_")} for x in (optimizer, other)]
    assert public[0] == public[1]
    run(given, optimizer)
    run(lists(other), other)
    assert_same_states(optimizer, other)


def test_step_all_hooks(asked):
    """Hooks of one optimizer and of all, before and after, in PyTorch's order."""
    given, calls = asked.parameters(), []
    optimizer = asked.made(given)
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append(0)),
        optimizer.register_step_pre_hook(lambda *_: calls.append(1)),
        optimizer.register_step_post_hook(lambda *_: calls.append(2)),
        register_optimizer_step_post_hook(lambda *_: calls.append(3)),
    ]
    run(given, optimizer, 2)
    for handle in handles:
        handle.remove()
    run(given, optimizer, 1)
    assert calls == [0, 1, 2, 3] * 2


def test_state_dict_hooks(asked):
    """Before and after, in the order asked for; what one returns is what there is."""
    given, calls = asked.parameters(), []
    optimizer = asked.made(given)
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("second"))
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("first"), prepend=True)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 1})
    assert optimizer.state_dict()["mine"] == 1
    assert calls == ["first", "second"]


def test_load_state_dict_hooks(asked):
    given, calls = asked.parameters(), []
    optimizer = asked.made(given)
    run(given, optimizer, 1)
    saved = optimizer.state_dict()

    def slower(_, state):
        groups = [{**group, "lr": 0.125} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(slower)
    optimizer.register_load_state_dict_post_hook(lambda x: calls.append(float(x.param_groups[0]["lr"])))
    optimizer.load_state_dict(saved)
    assert calls == [0.125]


TESTS = {
    name.removeprefix("test_"): item for name, item in list(globals().items()) if name.startswith("test_")
}

#: Tests of what is refused: what is asked for, and how.
REFUSED = {
    "complex": (
        "complex parameters",
        lambda kind: kind([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]),
    ),
    "rosenbrock_sparse": ("sparse gradients", lambda kind: _sparse(kind)),
    "foreach_matches_forloop": ("foreach=True", lambda kind: kind(_one(), foreach=True)),
    "fused_matches_forloop": ("fused=True", lambda kind: kind(_one(), fused=True)),
    "differentiable": ("differentiable=True", lambda kind: kind(_one(), differentiable=True)),
    "fused_error_on_params_on_meta": (
        "parameters without numbers",
        lambda kind: kind([torch.nn.Parameter(torch.zeros(2, device="meta", dtype=torch.bfloat16))]),
    ),
}
#: Tests that ask for nothing that is here.
ELSEWHERE = {
    "peak_memory_foreach, foreach_large_tensor, defaults_changed_to_foreach":
        "there is one implementation, whose bits are those of one tensor at a time",
    "fused_large_tensor, fused_does_not_step_if_foundinf":
        "`GradScaler` unscales and skips steps itself",
    "goes_right_direction_multigpu, mixed_device_dtype, cpu_load_state_dict_cuda, capturable":
        "needs a GPU; a captured graph is tested in the project's own tests",
    "optim_infos_do_not_specify_global_cliquey_kwargs": "is about PyTorch's own list",
}  # fmt: skip


def _one():
    return [torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]


def _sparse(kind):
    given = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
    optimizer = kind([given])
    given.grad = torch.ones(2, 2, dtype=torch.bfloat16).to_sparse()
    optimizer.step()
