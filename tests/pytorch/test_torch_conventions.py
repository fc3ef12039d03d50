"""What PyTorch, and those who train with it, ask of an optimizer."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim.torch import SGD, AdamW, Lion  # noqa: E402

KINDS = (AdamW, SGD, Lion)
#: One that draws no random words, one that does, and one that keeps bits which are no numbers.
STRATEGIES = ("collage-plus", "stochastic", "split-master")


def parameters(shapes=((5, 3), (7,), ()), seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give_gradients(given, step):
    generator = torch.Generator().manual_seed(100 + step)
    for p in given:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def run(optimizer, given, steps):
    for step in steps:
        give_gradients(given, step)
        optimizer.step()


def bits(x):
    return x.reshape(-1).view(torch.uint8)


def assert_same(ours, theirs):
    """Compare parameters and states of two optimizers, bit for bit."""
    mine, others = ([p for group in x.param_groups for p in group["params"]] for x in (ours, theirs))
    for p, q in zip(mine, others, strict=True):
        assert torch.equal(p, q)
        assert ours.state[p].keys() == theirs.state[q].keys()
        for name, x in ours.state[p].items():
            if isinstance(x, torch.Tensor):
                assert torch.equal(bits(x), bits(theirs.state[q][name]))
            else:
                assert x == theirs.state[q][name]


# -- groups ---------------------------------------------------------------------------------------------
def test_groups_have_their_own_strategies():
    """Each is moved as by an optimizer of its own; one saved is gone on from."""
    settings = [
        {"strategy": "collage-plus", "low": "float16", "eps": 1e-6},
        {"strategy": "plain", "rounding": "toward_zero"},
        {"strategy": "fp32-master", "scalars": "rounded"},
        {"strategy": "fp32"},
    ]
    dtypes = (torch.float16, torch.bfloat16, torch.bfloat16, torch.float32)
    together, apart = ([parameters(dtype=dtype) for dtype in dtypes] for _ in range(2))

    def of(all_of_them):
        pairs = zip(all_of_them, settings, strict=True)
        return AdamW([{"params": params, **setting} for params, setting in pairs], lr=1e-2)

    ours = of(together)
    theirs = [AdamW(params, 1e-2, **setting) for params, setting in zip(apart, settings, strict=True)]
    for given, optimizer in zip(apart, theirs, strict=True):
        run(optimizer, given, range(5))
    for step in range(3):
        for given in together:
            give_gradients(given, step)
        ours.step()
    gone_on = of([[torch.nn.Parameter(p.detach().clone()) for p in given] for given in together])
    gone_on.load_state_dict(ours.state_dict())
    for optimizer in (ours, gone_on):
        for step in (3, 4):
            for group in optimizer.param_groups:
                give_gradients(group["params"], step)
            optimizer.step()
        for group, single in zip(optimizer.param_groups, theirs, strict=True):
            for p, q in zip(group["params"], single.param_groups[0]["params"], strict=True):
                assert torch.equal(p, q)
                assert torch.equal(optimizer.represented(p), single.represented(q))


def test_groups_draw_words_by_their_numbers_in_all():
    """Whatever group a parameter is in, its elements have the words of their place among all elements."""
    one, two = parameters(), parameters()
    words = {"random": mcf.RandomWords(3), "strategy": "stochastic"}
    ours, theirs = AdamW(one, **words), AdamW([{"params": two[:1]}, {"params": two[1:]}], **words)
    run(ours, one, range(3))
    run(theirs, two, range(3))
    assert_same(ours, theirs)
    other = parameters()
    groups = [{"params": other[:1]}, {"params": other[1:], "random": mcf.RandomWords(4)}]
    different = AdamW(groups, **words)
    run(different, other, range(3))
    assert torch.equal(other[0], one[0])
    assert not torch.equal(other[1], one[1])


def test_a_group_that_is_refused_is_not_added():
    (first,), optimizer = parameters([(3,)]), AdamW(parameters())
    for bad, message in [
        ({"strategy": "colage-plus"}, "did you mean 'collage-plus'"),
        ({"low": "bfloat17"}, "bfloat17"),
        ({"strategy": "exact"}, "exact numbers"),
        ({"rounding": "upward"}, "unknown rounding 'upward'"),
        ({"rounding": "stochastic"}, "needs random"),
        ({"lr": torch.ones(2)}, "lr"),
        ({"betas": (0.9, 1.0)}, r"beta2 = 1\.0 must lie in"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            optimizer.add_param_group({"params": [first], **bad})
        assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match=r"stores parameters as torch\.float16, not torch\.bfloat16"):
        optimizer.add_param_group({"params": [first], "low": "float16", "eps": 1e-6})
    optimizer.add_param_group({"params": [first]})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_list_of_parameters_is_refused(kind):
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        kind(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="empty parameter list"):
        kind([])
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        kind([3.0])
    with pytest.raises(ValueError, match="non-leaf"):
        kind([parameters()[0] * 2])
    shared = parameters()
    with pytest.raises(ValueError, match="more than one parameter group"):
        kind([{"params": shared[:2]}, {"params": shared[1:]}])


@pytest.mark.parametrize("kind", KINDS)
def test_empty_groups_are_carried_along(kind):
    given = parameters()
    optimizer = kind([{"params": given}, {"params": []}], lr=1e-2)
    run(optimizer, given, range(2))
    other = kind([{"params": given}, {"params": []}], lr=1e-2)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[1]["params"] == []


# -- learning rates and other numbers -------------------------------------------------------------------
SCHEDULERS = {
    "one cycle": lambda x: torch.optim.lr_scheduler.OneCycleLR(x, max_lr=0.1, total_steps=12),
    "cosine": lambda x: torch.optim.lr_scheduler.CosineAnnealingLR(x, T_max=12),
    "plateau": lambda x: torch.optim.lr_scheduler.ReduceLROnPlateau(x, patience=1),
    "warm-up": lambda x: torch.optim.lr_scheduler.LinearLR(x, 0.1, total_iters=5),
}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_a_rate_may_be_a_tensor_and_schedulers_change_it(kind, schedule):
    """In binary64, in which schedulers reckon with numbers, too."""
    runs = []
    for rate in (0.01, torch.tensor(0.01, dtype=torch.float64)):
        given = parameters()
        optimizer = kind(given, rate)
        scheduler, rates = SCHEDULERS[schedule](optimizer), []
        for step in range(10):
            run(optimizer, given, [step])
            scheduler.step(*([1.0] if schedule == "plateau" else []))
            rates.append(float(optimizer.param_groups[0]["lr"]))
        assert isinstance(optimizer.param_groups[0]["lr"], type(rate))
        runs.append((optimizer, rates))
    (ours, rates), (theirs, others) = runs
    assert len(set(rates)) > 2
    if rates == others:  # torch's schedulers may reckon otherwise with tensors
        assert_same(ours, theirs)
    else:
        assert rates == pytest.approx(others, rel=1e-12)


def test_a_rate_enters_as_the_number_that_it_is():
    """A tensor of float32 is not taken for the decimal number that it is near."""
    one, two = parameters(), parameters()
    ours, theirs = AdamW(one, torch.tensor(0.1)), AdamW(two, float(torch.tensor(0.1)))
    run(ours, one, range(3))
    run(theirs, two, range(3))
    assert_same(ours, theirs)
    tensors = AdamW(parameters(), torch.tensor(0.1), (torch.tensor(0.9), torch.tensor(0.99)))
    assert tensors._hyper(tensors.param_groups[0]).beta1 == float(torch.tensor(0.9))


def test_loading_writes_into_the_tensors_that_there_are():
    """Whoever keeps their addresses, as a captured graph does, goes on with what was loaded."""
    given = parameters()
    optimizer = AdamW(given, torch.tensor(0.1))
    run(optimizer, given, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    run(optimizer, given, range(3, 5))
    optimizer.param_groups[0]["lr"].fill_(0.5)
    before = [optimizer.param_groups[0]["lr"], *(x for p in given for x in optimizer.state[p].values())]
    saved["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(saved)
    after = [optimizer.param_groups[0]["lr"], *(x for p in given for x in optimizer.state[p].values())]
    assert float(after[0]) == 0.25
    for old, new in zip(before, after, strict=True):
        assert old is new if isinstance(old, torch.Tensor) else new == 3
    assert torch.equal(optimizer.state[given[0]]["m"], saved["state"][0]["m"])


# -- names, copies, files --------------------------------------------------------------------------------
def test_parameters_may_have_names():
    given = torch.nn.Linear(3, 2).bfloat16()
    optimizer = AdamW(given.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    run(optimizer, list(given.parameters()), range(2))
    other = AdamW(given.named_parameters())
    other.load_state_dict(optimizer.state_dict())
    assert_same(optimizer, other)
    assert other.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_plain_data_and_the_same_each_time(kind, strategy):
    given = parameters()
    optimizer = kind(given, 1e-2, strategy=strategy)
    run(optimizer, given, range(2))
    files = [io.BytesIO() for _ in range(2)]
    for file in files:
        torch.save(optimizer.state_dict(), file)
    assert files[0].getvalue() == files[1].getvalue()
    files[0].seek(0)
    saved = torch.load(files[0], weights_only=True)
    other = kind(given, 1e-2, strategy=strategy)
    other.load_state_dict(saved)
    assert_same(optimizer, other)
    older = copy.deepcopy(saved)
    older["param_groups"][0] = {"params": [0, 1, 2], "lr": 0.5}
    other.load_state_dict(older)
    assert other.param_groups[0]["lr"] == 0.5
    assert other.param_groups[0].keys() == optimizer.param_groups[0].keys()
    give_gradients(given, 3)
    other.step()


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_copied_and_printed(kind):
    given = parameters()
    optimizer = kind(given, 1e-2)
    optimizer.mine = 3
    run(optimizer, given, range(2))
    assert "strategy" in repr(optimizer)
    (others, other) = copy.deepcopy((given, optimizer))
    run(optimizer, given, range(2, 4))
    run(other, others, range(2, 4))
    assert_same(optimizer, other)


# -- steps ------------------------------------------------------------------------------------------------
def test_hooks_are_called():
    calls, given = [], parameters()
    optimizer = AdamW(given)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 1})
    optimizer.register_load_state_dict_post_hook(lambda x: calls.append(x.state[given[0]]["step"]))
    run(optimizer, given, range(2))
    saved = optimizer.state_dict()
    assert saved["mine"] == 1
    optimizer.load_state_dict(saved)
    assert calls == ["before", "after", "before", "after", 2]


@pytest.mark.parametrize("strategy", [name for name in mcf.STRATEGIES if name != "exact"])
def test_no_gradient_no_step_and_zero_gradients_and_rate_no_change(strategy):
    dtype = getattr(torch, mcf.strategy(strategy).parameter.format.name)
    given = parameters(dtype=dtype)
    optimizer = AdamW(given, 0.0, strategy=strategy)
    before = [p.detach().clone() for p in given]
    optimizer.step()
    assert not optimizer.state
    for p in given:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(given, before, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_in_the_backward_pass(strategy):
    """Each parameter moves as soon as its gradient is there, and the gradient is given back at once."""

    def model():
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)
        return torch.nn.Sequential(*layers).bfloat16()

    one, two = model(), model()
    ours, theirs = (AdamW(x.parameters(), 1e-2, strategy=strategy) for x in (one, two))

    def step(parameter):
        ours.step()
        parameter.grad = None

    for p in one.parameters():
        p.register_post_accumulate_grad_hook(step)
    for count in range(4):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(count)).bfloat16()
        one(x).square().mean().backward()
        two(x).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
        assert all(p.grad is None for p in one.parameters())
    assert_same(ours, theirs)


def test_a_grad_scaler_unscales_and_skips_steps():
    """A scale is a power of two: what is divided by it again has the same bits."""
    one, two = parameters(dtype=torch.float32), parameters(dtype=torch.float32)
    ours, theirs = (AdamW(x, 1e-2, strategy="fp32") for x in (one, two))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(5):
        give_gradients(two, step)
        x = [p.grad.clone() for p in two]
        scaler.scale(sum((p * g).sum() for p, g in zip(one, x, strict=True))).backward()
        if step == 2:
            one[0].grad[0, 0] = float("inf")
        else:
            theirs.step()
        scaler.step(ours)
        scaler.update()
        ours.zero_grad()
    assert_same(ours, theirs)
    assert ours.state[one[0]]["step"] == 4


def test_gradients_are_clipped_before_the_step():
    one, two = parameters(), parameters()
    ours, theirs = AdamW(one, 1e-2), AdamW(two, 1e-2)
    for step in range(3):
        give_gradients(one, step)
        give_gradients(two, step)
        norm = torch.nn.utils.clip_grad_norm_(one, 0.5)
        for p in two:
            p.grad *= torch.clamp(0.5 / (norm + 1e-6), max=1.0)
        ours.step()
        theirs.step()
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_no_dense_real_numbers_are_refused(kind):
    given = parameters([(4, 3)])
    optimizer = kind(given)
    given[0].grad = torch.ones(4, 3).bfloat16().to_sparse()
    with pytest.raises(TypeError, match=r"layout torch\.sparse_coo is not supported"):
        optimizer.step()
    with pytest.raises(TypeError, match=r"not torch\.complex64"):
        kind([torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))])
    assert not optimizer.state
