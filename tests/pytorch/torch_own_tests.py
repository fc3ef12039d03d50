"""What PyTorch asks of an optimizer in its own tests, by its names, asked of ours; the code is our own.

PyTorch's tests allow errors of rounding; here states are compared bit for bit.
"""

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.pytorch.runs import assert_same_states, listed, put

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
        given = [torch.nn.Parameter(x if apart else x.contiguous()) for x in found]
        return list(zip(("weight", "bias"), given, strict=True)) if names else given

    def made(self, given: Any = None, **others: Any) -> Any:
        """Return the optimizer; a rate that is a tensor is its own, for schedulers fill it."""
        params = self.parameters() if given is None else given
        return self.kind(params, strategy=STORED[self.dtype], **deepcopy({**self.options, **others}))

    def run(self, steps: int = STEPS, **others: Any) -> Any:
        optimizer = self.made(**others)
        run(optimizer, steps=steps)
        return optimizer


def loss_of(optimizer):
    weight, bias = listed(optimizer)
    x = torch.linspace(-1, 1, 5).to(weight.dtype)

    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(x) + bias).pow(2).sum()
        loss.backward()
        return loss

    return closure


def run(*optimizers, steps=STEPS):
    for optimizer in optimizers:
        for _ in range(steps):
            optimizer.step(loss_of(optimizer))


def assert_gone_on_alike(ours, theirs):
    """Compare two that go on from the same parameters."""
    put(theirs, listed(ours))
    run(ours, theirs)
    assert_same_states(ours, theirs)


# -- the tests ----------------------------------------------------------------------------------------------
def test_goes_right_direction(asked):
    for apart in (False, True):
        _assert_right_direction(asked, asked.parameters(apart=apart))


def test_goes_right_direction_with_lrsched(asked):
    for schedulers in asked.info.scheduler_inputs:
        _assert_right_direction(asked, asked.parameters(), schedulers)


def test_param_group_with_lrscheduler_goes_right_direction(asked):
    for schedulers in asked.info.scheduler_inputs:
        weight, bias = asked.parameters()
        _assert_right_direction(asked, [{"params": [weight]}, {"params": [bias], "lr": 0.01}], schedulers)


def _assert_right_direction(asked, given, schedulers=()):
    """Of the numbers that the optimizer means: few steps move no bfloat16."""
    optimizer = asked.made(given)
    made = [scheduler(optimizer) for scheduler in schedulers]

    def value():
        weight, bias = (optimizer.represented(p) for p in listed(optimizer))
        return (weight.mv(torch.linspace(-1, 1, 5).double()) + bias).pow(2).sum().item()

    first = value()
    for _ in range(STEPS):
        loss = optimizer.step(loss_of(optimizer)).item()
        for scheduler in made:
            scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    assert value() > first if asked.options.get("maximize") else value() < first


def test_param_groups_lr(asked, **option):
    """A group has its own rate, as an optimizer of its own has."""
    option = option or {"lr": 0.25}
    one, two = asked.parameters(), asked.parameters()
    together = asked.made([{"params": one[:1]}, {"params": one[1:], **option}])
    apart = asked.made(two[:1]), asked.made(two[1:], **option)
    for _ in range(STEPS):
        loss_of(together)()
        for p, q in zip(one, two, strict=True):
            q.grad = p.grad.clone()
        for optimizer in (together, *apart):
            optimizer.step()
    assert all(map(torch.equal, one, two))


def test_param_groups_weight_decay(asked):
    test_param_groups_lr(asked, weight_decay=0.5)


def test_tensor_lr(asked):
    """A tensor is the number that it is; a scheduler fills it in place."""
    rate = asked.options.get("lr", 1e-3)
    number = float(rate)
    ours, theirs = asked.made(lr=torch.as_tensor(rate, dtype=torch.float64).clone()), asked.made(lr=number)
    tensor = ours.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.StepLR(ours, 1, 0.5)
    run(ours, theirs)
    assert_same_states(ours, theirs)
    scheduler.step()
    assert ours.param_groups[0]["lr"] is tensor
    assert float(tensor) == number / 2


def test_tensor_lr_num_dim(asked):
    assert_same_states(*(asked.run(lr=rate) for rate in (torch.tensor([0.5]), 0.5)))


def test_step_is_noop_when_params_have_no_grad(asked):
    optimizer = asked.made()
    optimizer.step()
    assert_same_states(optimizer, asked.made())


def test_step_is_noop_for_zero_grads(asked):
    optimizer = asked.made(weight_decay=0.0)
    for p in listed(optimizer):
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(map(torch.equal, listed(optimizer), asked.parameters()))


def test_step_is_noop_for_empty_grads(asked):
    empty = torch.nn.Parameter(torch.zeros(0, 3, dtype=asked.dtype))
    optimizer = asked.made([empty])
    empty.grad = torch.zeros_like(empty)
    optimizer.step()
    assert empty.shape == (0, 3)


def test_grads_are_never_inplaced_into(asked):
    optimizer = asked.made()
    loss_of(optimizer)()
    before = [(p.grad.clone(), p.grad._version) for p in listed(optimizer)]
    optimizer.step()
    for p, (gradient, version) in zip(listed(optimizer), before, strict=True):
        assert torch.equal(p.grad, gradient)
        assert p.grad._version == version


def test_state_dict_deterministic(asked):
    ours, theirs = asked.run(), asked.made()
    saved = deepcopy(ours.state_dict())
    before = str(saved)
    theirs.load_state_dict(saved)
    assert str(saved) == before
    assert_gone_on_alike(ours, theirs)
    assert str(ours.state_dict()) == str(theirs.state_dict())


def test_can_load_older_state_dict(asked):
    """One without the flags that optimizers of PyTorch got later."""
    optimizer = asked.run()
    for flag in asked.info.not_og_supported_flags:
        saved = deepcopy(optimizer.state_dict())
        for group in saved["param_groups"]:
            group.pop(flag, None)
        optimizer.load_state_dict(saved)
        run(optimizer, steps=1)


def test_can_load_from_to_named_state_dict(asked):
    for names in ((True, False), (False, True), (True, True)):
        ours, theirs = (asked.made(asked.parameters(names=named)) for named in names)
        run(ours)
        theirs.load_state_dict(deepcopy(ours.state_dict()))
        assert_gone_on_alike(ours, theirs)


def test_load_nontensor_step(asked):
    """A number for a tensor, and here a tensor for a number, too."""
    optimizer = asked.run()
    for kind in (int, float, torch.tensor):
        saved = deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            state["step"] = kind(state["step"])
        optimizer.load_state_dict(saved)
        run(optimizer, steps=1)


def test_save_load_equality_with_weights_only(asked):
    optimizer, file = asked.run(), io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert str(torch.load(file, weights_only=True)) == str(optimizer.state_dict())


def test_optimizer_can_be_printed(asked):
    assert "strategy" in repr(asked.made())


def test_non_empty_state(asked):
    optimizer = asked.run(1)
    assert all(optimizer.state[p] for p in listed(optimizer))


def test_deepcopy_copies_all_public_attrs(asked):
    optimizer = asked.run()
    other = deepcopy(optimizer)
    first, second = ({name for name in vars(x) if not name.startswith("_")} for x in (optimizer, other))
    assert first == second
    run(optimizer, other)
    assert_same_states(optimizer, other)


def test_step_all_hooks(asked):
    """Hooks of one optimizer and of all, before and after, in PyTorch's order."""
    optimizer, calls = asked.made(), []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append(0)),
        optimizer.register_step_pre_hook(lambda *_: calls.append(1)),
        optimizer.register_step_post_hook(lambda *_: calls.append(2)),
        register_optimizer_step_post_hook(lambda *_: calls.append(3)),
    ]
    run(optimizer, steps=2)
    for handle in handles:
        handle.remove()
    run(optimizer, steps=1)
    assert calls == [0, 1, 2, 3] * 2


def test_state_dict_hooks(asked):
    """Before and after, in the order asked for; what one returns is what there is."""
    optimizer, calls = asked.made(), []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("second"))
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("first"), prepend=True)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 1})
    assert optimizer.state_dict()["mine"] == 1
    assert calls == ["first", "second"]


def test_load_state_dict_hooks(asked):
    optimizer, calls = asked.run(1), []
    slower = {"param_groups": [{**group, "lr": 0.125} for group in optimizer.state_dict()["param_groups"]]}
    optimizer.register_load_state_dict_pre_hook(lambda _, state: {**state, **slower})
    optimizer.register_load_state_dict_post_hook(lambda x: calls.append(float(x.param_groups[0]["lr"])))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == [0.125]


TESTS = {name[5:]: item for name, item in list(globals().items()) if name.startswith("test_")}

#: Tests of what is refused: what is asked for, and how.
REFUSED = {
    "complex": ("complex parameters", lambda kind: kind(_one(dtype=torch.complex64))),
    "rosenbrock_sparse": ("sparse gradients", lambda kind: _sparse(kind)),
    "foreach_matches_forloop": ("foreach=True", lambda kind: kind(_one(), foreach=True)),
    "fused_matches_forloop": ("fused=True", lambda kind: kind(_one(), fused=True)),
    "differentiable": ("differentiable=True", lambda kind: kind(_one(), differentiable=True)),
    "fused_error_on_params_on_meta": ("parameters without numbers", lambda kind: kind(_one(device="meta"))),
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


def _one(**how):
    return [torch.nn.Parameter(torch.zeros(2, **{"dtype": torch.bfloat16, **how}))]


def _sparse(kind):
    (given,) = _one()
    given.grad = torch.ones(2).bfloat16().to_sparse()
    kind([given]).step()
