"""A run that was saved, copied or pickled goes on to the same bits; no state that does not fit is loaded."""

import copy
import io
import math
import pickle
from enum import IntEnum
from functools import partial

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim import torch as mt
from mcfsim.checks import SpoiltStateError
from mcfsim.optim.declaration import optimizers
from mcfsim.random import RandomWords
from tests.optim.on_grid_reference import placed
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, frozen, listed, run, states
from tests.shared.interrupts import broken_off, bytecodes
from tests.shared.kinds import STAGED, STORED

SHAPES = ((4, 3), (5,), ())


def made(optimizer="adamw", strategy="collage-plus", seed=0, shapes=SHAPES, **options):
    given = runs.parameters(shapes, runs.dtype_of(strategy), seed)
    groups = [{"params": given[:1]}, {"params": given[1:], "weight_decay": 0.0, "lr": 3e-3}]
    return runs.EVERY[optimizer](groups, 1e-2, weight_decay=0.1, strategy=strategy, **options)


def through_a_file(x):
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        torch.save(x, file)
    assert files[0].getvalue() == files[1].getvalue()
    files[0].seek(0)
    return torch.load(files[0], weights_only=True)


def tensors_of(optimizer):
    """Return which tensors make up the state."""
    states = [optimizer.state[p] for p in listed(optimizer)]
    return [id(x) for state in states for x in state.values() if isinstance(x, torch.Tensor)]


#: Optimizers and strategies: those whose steps are straight lines, of stages, and on grids or composed.
PAIRS = [
    *runs.in_turn(STORED),
    *((kind, strategy) for kind in STAGED for strategy in ("plain", "int8-moments", "mcf-2", "split-master")),
    *(("adamw", strategy) for strategy in (*mcf.GRID_STRATEGIES, "kahan+int8", "plain+coat")),
    *(("adamw", "stochastic-parameter+fp8"), ("muon", "bitnet"), ("sgd", placed("dqt-int4", reach="fixed"))),
]


@pytest.mark.parametrize(
    ("optimizer", "strategy", "seed"), [*((*pair, None) for pair in PAIRS), ("sgd", "plain", 3)]
)
@pytest.mark.sampled(10, each=False)
@pytest.mark.slow
def test_a_run_goes_on_from_what_was_saved_or_copied(optimizer, strategy, seed):
    """With its random words, whatever words the one had that the state is loaded into."""

    def words(seed):
        return {} if seed is None else {"rounding": "stochastic", "random": RandomWords(seed, stream=9)}

    shapes = (*SHAPES, (2, 3, 4))
    ours = made(optimizer, strategy, shapes=shapes, **words(seed))
    run(ours, range(2))
    saved = through_a_file({"weights": [p.detach() for p in listed(ours)], "optimizer": ours.state_dict()})
    loaded = made(optimizer, strategy, 1, shapes, **words(seed and 77))
    runs.put(loaded, saved["weights"])
    loaded.load_state_dict(saved["optimizer"])
    others = [loaded, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    run(ours, [2, 3])
    for other in others:
        for mine, theirs in zip(ours.param_groups, other.param_groups, strict=True):
            assert {**theirs, "params": 0} == {**mine, "params": 0}
        run(other, [2, 3])
        assert_same_states(ours, other)
        for p, q in zip(listed(ours), listed(other), strict=True):
            assert torch.equal(ours.represented(p).nan_to_num(7.0), other.represented(q).nan_to_num(7.0))


@pytest.mark.parametrize("asks", [False, True])
def test_loading_writes_into_the_tensors_that_there_are(asks):
    """Whoever keeps their addresses, as a captured graph does, goes on with what was loaded.

    Also in a rate that asks for a gradient.
    """
    optimizer = made()
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.1, requires_grad=asks)
    run(optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    run(optimizer, range(3, 5))
    kept, tensors = copy.deepcopy(saved), tensors_of(optimizer)
    saved["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.25
    assert tensors_of(optimizer) == tensors
    first = optimizer.state[listed(optimizer)[0]]
    assert first["step"] == 3
    assert torch.equal(first["m"], kept["state"][0]["m"])
    run(optimizer, [5])
    assert torch.equal(saved["state"][0]["m"], kept["state"][0]["m"])


RATES = [
    # the groups' own rates, the state's, and those that are to be found
    (torch.tensor(0.5), [0.1, 0.1], [0.1, 0.1]),
    (torch.tensor(1), [0.5, 0.5], [0.5, 0.5]),
    (torch.tensor(0.5), [0.25, 0.75], [0.25, 0.75]),
    (torch.tensor(0.5), [torch.tensor(0.1), torch.tensor(0.2)], [torch.tensor(0.1), torch.tensor(0.2)]),
    (0.5, [torch.tensor(0.1), 0.2], [torch.tensor(0.1), 0.2]),
]


@pytest.mark.parametrize(("own", "given", "expected"), RATES)
def test_each_group_has_the_rate_of_the_state(own, given, expected):
    """As in PyTorch, where groups share one tensor, or it cannot hold the rate."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in given]
    kinds = [partial(mt.SGD, strategy="fp32"), torch.optim.SGD]
    for kind in kinds:
        saved = kind([{**group, "lr": rate} for group, rate in zip(groups, given, strict=True)], lr=0.5)
        loaded = kind([dict(group) for group in groups], lr=copy.copy(own))
        loaded.load_state_dict(saved.state_dict())
        found = [group["lr"] for group in loaded.param_groups]
        assert list(map(type, found)) == list(map(type, expected))
        assert found == expected


ENTRIES = [
    ("lr", np.float64(5e-3), 5e-3),
    ("lr", np.float32(0.25), 0.25),
    ("maximize", np.bool_(True), True),
    ("betas", (np.float64(0.5), 0.75), (0.5, 0.75)),
    ("betas", [np.float64(0.5), np.float32(0.75)], [0.5, 0.75]),
    ("betas", np.array([0.5, 0.75], np.float32), [0.5, 0.75]),
    ("mine", {"a": [1, {"b": (None, np.int64(3))}]}, {"a": [1, {"b": (None, 3)}]}),
    ("mine", IntEnum("Odd", {"THREE": 3}).THREE, 3),
]


@pytest.mark.parametrize(("name", "given", "expected"), ENTRIES)
def test_numbers_of_any_kind_are_saved_as_numbers(name, given, expected):
    """Schedulers write NumPy's into groups, and users what they like."""
    ours, other = made(), made()
    ours.param_groups[0][name] = given
    saved = through_a_file(ours.state_dict())
    assert repr(saved["param_groups"][0][name]) == repr(expected)
    other.load_state_dict(saved)
    assert other.param_groups[0][name] == expected
    ours.load_state_dict(saved)
    run(other, [0])


@pytest.mark.parametrize(
    "of", [mt.optimizer(mcf.AdamW(beta1=0.5)), mt.Lion, mt.optimizer(optimizers()["lion"]()), mt.AdamW]
)
def test_an_optimizer_of_a_class_that_was_made_is_pickled(of):
    """Also where another class has its name, or a subclass is of one that has."""
    optimizer = of(runs.parameters(), 1e-2)
    run(optimizer, [0])
    weights, copied = pickle.loads(pickle.dumps((listed(optimizer), optimizer)))
    assert (type(copied) is of) == (of in (mt.Lion, mt.AdamW))
    assert type(copied).__name__ == of.__name__
    assert all(map(torch.equal, weights, listed(copied)))
    run(optimizer, [1])
    run(copied, [1])
    assert_same_states(optimizer, copied)
    assert type(copied)(runs.parameters()).param_groups[0]["betas"] == of(runs.parameters()).defaults["betas"]
    assert type(copy.deepcopy(optimizer)) is of


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("strategy", "low"), [("dqt-int8", "bfloat16"), ("plain", "float16")])
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_pytorch_s_own_first_step_is_not_made_where_the_state_was_started(strategy, low, started):
    """It changes weights on grids, and makes NaN of those whose eps is zero."""
    module = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = torch.nn.Linear(5, 3).to(runs.dtype_of(strategy, low))
    optimizer = mt.AdamW(model.parameters(), 1e-2, strategy=strategy, low=low)
    if started:
        optimizer.start()
    before = model.weight.detach().clone()
    module.get_optimizer_state_dict(model, optimizer)
    assert torch.equal(model.weight, before) == started
    assert optimizer.state[model.weight]["step"] == (not started)


# -- what is refused --------------------------------------------------------------------------------------
def named(names, weights):
    given = [[(name, p)] for name, p in zip(names, weights, strict=True)]
    return mt.AdamW([{"params": pair} for pair in given], 1e-2)


def test_parameters_in_another_order_by_name_are_refused():
    """Of one shape, they would go on with each other's state; other names, as a wrapper's, do not matter."""
    first = runs.parameters([(3, 2), (3, 2)])
    ours = named("ab", first)
    run(ours, [0])
    saved, (b, a) = ours.state_dict(), runs.parameters([(3, 2), (3, 2)])
    other = named("ba", (b, a))
    before = frozen(other)
    with pytest.raises(ValueError, match=r"has 'a' as parameter 0 of group 0, and this .* 0 of group 1"):
        other.load_state_dict(saved)
    assert_same_states(frozen(other), before)
    for names in ("ab", "xy", "ax"):
        named(names, runs.parameters([(3, 2), (3, 2)])).load_state_dict(saved)


of_state, of_group = partial(runs.of, "state", 1), partial(runs.of, "param_groups", 1)


META, SPARSE = torch.empty(5, dtype=torch.bfloat16, device="meta"), torch.zeros(5).bfloat16().to_sparse()
ODD = torch.tensor(-1.0), torch.tensor([1.0, 2.0])
STEPS = (*(-3, 2.5, math.nan, math.inf, "3", None, True, [3], 2**53), *ODD)
WORDS = {"seed": 1, "step": 0, "stream": 0}
#: What is done to a state, and what is said of it.
SPOILT = [
    *((of_state(step=step), "the state of parameter 1: step") for step in STEPS),
    (of_state(m=META), "parameter 1: a tensor on device 'meta'"),
    (of_state(m=SPARSE), "parameter 1: .*sparse"),
    (of_state(m=None), "parameter 1: it has .*NoneType"),
    (of_state(m=torch.zeros(5)), "parameter 1: it has .*torch.float32"),
    (of_state(m=torch.zeros(1, 5).bfloat16()), r"parameter 1: it has .*\(1, 5\)"),
    (lambda x: x["state"][1].pop("m"), "parameter 1: it has"),
    (lambda x: x["state"].update({1: [1]}), "parameter 1: a list is no state"),
    (lambda x: x["state"].update({7: x["state"][1]}), "the state has parameter 7"),
    (of_group(low="float16"), "group 1: it has low"),
    (of_group(strategy="kahan"), "the state is of .*'kahan'.* of .*'collage-plus'"),
    (of_group(rounding="nearest_even"), "the state is of .*'nearest_even'.* of .*'stochastic'"),
    (of_group(random={**WORDS, "seed": -1}), "seed = -1"),
    (of_group(random={**WORDS, "seed": "1"}), "no seed, step and stream"),
    (of_group(random={"key": 3}), "no seed, step and stream"),
    (of_group(random=5), "no seed, step and stream"),
    (of_group(random=None), "needs random"),
    *((runs.of(param_groups=x), "has no param_groups, a list") for x in (None, 3, [None], [{"lr": 1.0}])),
    (runs.of(param_groups=[{"params": None}]), "has no param_groups, a list"),
    *((runs.of(state=x), "has no state, a dict") for x in (None, [], 3)),
    (lambda x: x.pop("param_groups"), "has no param_groups"),
    (lambda x: x.pop("state"), "has no state"),
    (lambda x: x.update(state={}, param_groups=x["param_groups"][:1]), "different number of"),
    (lambda x: x.update(state={}) or x["param_groups"][1]["params"].pop(), "doesn't match the size"),
    (runs.of(optimizer="Adam"), "the state is of Adam, and this optimizer is"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(SPOILT)))
@pytest.mark.sampled(3, each=False)
def test_a_bad_state_is_refused_whole(place):
    change, message = SPOILT[place]
    optimizer = made(list(runs.KINDS)[place % 5], rounding="stochastic", random=RandomWords(9))
    run(optimizer, [0])
    saved = copy.deepcopy(optimizer.state_dict())
    run(optimizer, [1])
    change(saved)
    before, kept, groups = frozen(optimizer), tensors_of(optimizer), optimizer.param_groups
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups is groups
    assert_same_states(frozen(optimizer), before)
    assert tensors_of(optimizer) == kept


def test_a_hook_that_raises_after_the_loading_leaves_it_whole():
    """As in PyTorch; rates and random words were the old ones, beside the moments of the state."""
    ours, other = (
        made(rounding="stochastic", random=RandomWords(9)),
        made(rounding="stochastic", random=RandomWords(8)),
    )
    run(ours, range(2))
    ours.param_groups[0]["lr"] = 0.5
    runs.put(other, listed(ours))
    other.register_load_state_dict_post_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        other.load_state_dict(ours.state_dict())
    for optimizer in (ours, other):
        run(optimizer, [2])
    assert other.param_groups[0]["lr"] == 0.5
    assert_same_states(ours, other)


@pytest.mark.parametrize("place", [{"device": "meta"}, {"dtype": torch.float32}])
def test_a_state_that_something_else_moved_is_refused_and_can_be_loaded(place):
    """It goes where its parameter lies, as in PyTorch."""
    optimizer = made()
    run(optimizer, [0])
    saved, before = copy.deepcopy(optimizer.state_dict()), states(optimizer)
    p = listed(optimizer)[1]
    optimizer.state[p]["v"] = optimizer.state[p]["v"].to(**place)
    with pytest.raises(ValueError, match=r"v of a state is of .* must be of torch\.bfloat16 on cpu; load"):
        run(optimizer, [1])
    optimizer.load_state_dict(saved)
    assert_same_states(optimizer, before)
    run(optimizer, [1])


@pytest.mark.parametrize("x", [None, [], 3, "state"])
def test_what_is_no_state_is_refused(x):
    with pytest.raises(ValueError, match=f"a {type(x).__name__} is no state of an optimizer"):
        made().load_state_dict(x)


# -- broken off -------------------------------------------------------------------------------------------
def is_same(one, other):
    try:
        assert_same_states(one, other)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("strategy", ["collage-plus", "split-master", "fp8-moments"])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_a_step_that_is_broken_off_is_whole_or_refused(strategy):
    """No half of one is gone on from unnoticed."""
    optimizer = made(strategy=strategy)
    run(optimizer, [0])
    start, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in listed(optimizer)]
    count, refused, halves = bytecodes(lambda: run(optimizer, [1])), 0, 0

    def begin():
        runs.put(optimizer, weights)
        optimizer.load_state_dict(start)
        return states(optimizer)

    whole = [begin()]
    run(optimizer, [1])
    whole.append(states(optimizer))
    places = torch.randint(count, (10,), generator=torch.Generator().manual_seed(1)).tolist()
    for place in [*places, *range(count // 2, count, count // 20)]:
        assert is_same(begin(), whole[0])
        if not broken_off(lambda: run(optimizer, [1]), place, KeyboardInterrupt):
            continue
        found = states(optimizer)
        half = not any(is_same(found, x) for x in whole)
        halves += half
        try:
            optimizer.step()
        except SpoiltStateError:
            refused += 1
            assert is_same(states(optimizer), found)
            for other in (
                *(optimizer.state_dict, optimizer.resync, partial(copy.deepcopy, optimizer)),
                *(partial(pickle.dumps, optimizer), partial(optimizer.represented, listed(optimizer)[0])),
            ):
                with pytest.raises(SpoiltStateError, match=r"a step was broken off.* saved together"):
                    other()
        else:
            assert not half
    assert refused >= halves > 0


@pytest.mark.parametrize("places", [25, pytest.param(60, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_a_loading_that_is_broken_off_is_whole_or_refused(places):
    optimizer = made()
    run(optimizer, [0])
    saved = copy.deepcopy(optimizer.state_dict())
    count, refused = bytecodes(lambda: optimizer.load_state_dict(saved)), 0
    for place in range(0, 10 * count, count // places):  # more in an optimizer that has no state yet
        optimizer = made()
        before = frozen(optimizer)
        if not broken_off(lambda: optimizer.load_state_dict(saved), place, KeyboardInterrupt):  # noqa: B023
            break
        try:
            optimizer.state_dict()
        except SpoiltStateError:
            refused += 1
            optimizer.load_state_dict(saved)
            assert [optimizer.state[p]["step"] for p in listed(optimizer)] == [1, 1, 1]
            run(optimizer, [1])
        else:
            assert is_same(frozen(optimizer), before) or optimizer.state[listed(optimizer)[2]]["step"] == 1
    assert refused > 0


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_what_is_refused_before_a_step_spoils_nothing():
    optimizer = made(strategy="eco")
    before = states(optimizer)
    optimizer.param_groups[1]["lr"] = 1e-320  # errors fed back over it leave binary64
    with pytest.raises(ValueError, match="errors that it feeds back"):
        run(optimizer, [0])
    after = states(optimizer)
    assert_same_states({name: after[name] for name in before}, before)
    optimizer.param_groups[1]["lr"] = 2.0**-6
    run(optimizer, [0])


@pytest.mark.parametrize("strategy", ["stochastic", "stochastic-parameter", "dqt-int8", "plain", "bitnet"])
@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_a_step_beyond_those_that_have_random_words_spoils_nothing(kind, strategy):
    given = runs.parameters(dtype=runs.dtype_of(strategy))
    optimizer = runs.EVERY[kind](given, strategy=strategy)
    run(optimizer, [0])
    for state in optimizer.state.values():
        state["step"] = 2**32 - 2
    run(optimizer, [1])
    before = frozen(optimizer)
    if strategy in ("plain", "bitnet"):
        run(optimizer, [2])
        return
    with pytest.raises(ValueError, match=r"step = 4294967296 must lie in"):
        run(optimizer, [2])
    assert is_same(frozen(optimizer), before)
    optimizer.state_dict()
