"""Steps of the optimizers on a GPU's tensors, in one launch or in captured graphs: the bits of the CPU's."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mcfsim as mcf
from mcfsim.compile import kernel, launch, torch_calls
from mcfsim.torch import AdamW, TorchAdamW, step, straight_step, watch
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, codes, give_hard, listed, made
from tests.shared.kinds import PLAIN, STORED, feeding, rotating

pytestmark = [
    pytest.mark.slow,
    pytest.mark.costly("Triton's interpreter takes a second for the kernels of a few steps"),
    pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning"),
]


def rounding_of(place):
    name = runs.strategies()[place][1]
    if mcf.STRATEGIES[name].addition == "grow":
        return "nearest_even"
    return ("nearest_even", "toward_zero", "nearest_even", "stochastic")[place % 4]


@pytest.mark.parametrize("place", range(len(runs.strategies())))
@pytest.mark.sampled(56, each=False)
def test_steps_have_the_bits_of_the_cpu(place, on_device):
    """Those of a state that is loaded from the other device, too."""
    optimizer, strategy, low = runs.strategies()[place]
    shapes = SHAPES[: None if place % 4 == 0 else 4]
    options = {"rounding": rounding_of(place), "shapes": shapes}
    ours, theirs = (made(optimizer, strategy, low, **options) for _ in range(2))
    runs.step_both(ours, theirs, range(3), on_device)
    assert_same_states(ours, theirs)
    ours.load_state_dict(theirs.state_dict())
    runs.step_both(ours, theirs, [3], on_device)
    assert_same_states(ours, theirs)


def test_pytorch_s_default_device_makes_no_difference(on_device):
    """It may be a GPU: what is sent to one begins in the host's memory."""
    on_device(True)
    found = []
    for device in ("meta", "cpu"):
        optimizer = made("adamw", "stochastic-parameter", shapes=((3,), (5,)))
        give_hard(listed(optimizer), 0)
        torch_calls.check_machine.cache_clear()
        with torch.device(device):
            torch_calls.check_machine(torch.device("cpu"))
            optimizer.step()
        found.append(optimizer)
    assert_same_states(*found)


@pytest.mark.parametrize("on_device", ["kernel"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        *(lambda x: x[:6], lambda x: x.view(2, 4).t()),
        pytest.param(lambda x: x.view(4, 2), marks=pytest.mark.exhaustive),
    ],
    ids=["cut", "turned", "folded"],
)
def test_tensors_that_lie_where_they_lay_otherwise_are_moved_as_they_lie_now(change, on_device):
    """A table of addresses is kept from step to step: it is not that of tensors of other sizes or strides."""
    found = []
    for there in (True, False):
        optimizer = made("adamw", "plain", shapes=((5,), (8,)))
        on_device(there)
        for p in listed(optimizer):
            p.grad = torch.zeros_like(p)
        for count in range(5):
            if count == 3:
                p = listed(optimizer)[-1]
                gradient, state, whole = change(p.grad), optimizer.state[p], p.data
                p.grad, p.data = None, change(p.data)
                p.grad = gradient
                state |= {name: change(x) for name, x in state.items() if isinstance(x, torch.Tensor)}
            for p in listed(optimizer):
                p.grad.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(count)))
            optimizer.step()
        found.append((optimizer, whole))
    (ours, memory), (theirs, expected) = found
    assert_same_states(ours, theirs)
    assert torch.equal(memory, expected)  # also beyond a tensor that was cut


@pytest.mark.parametrize("on_device", ["kernel"], indirect=True)
def test_many_tensors_are_one_launch_and_their_addresses_are_kept(on_device, monkeypatch):
    launches, tables_made, function = [], [], launch.function

    class Spy:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launches.append(grid[0])
            return self.kernel[grid]

    monkeypatch.setattr(launch, "function", lambda *given, **named: Spy(function(*given, **named)))
    monkeypatch.setattr(straight_step, "Table", lambda *given: tables_made.append(1) or kernel.Table(*given))
    on_device(True)

    def launched(sizes, steps):
        launches.clear()
        given = runs.hard_parameters(torch.bfloat16, shapes=[(size,) for size in sizes])
        optimizer = AdamW(given, strategy="plain")
        for new in steps:
            if new:
                for p in given:
                    p.grad = torch.ones_like(p)
            optimizer.step()
        return launches

    assert launched([16, 32, 48, 16], [True, False, True]) == [4] * 3
    assert len(tables_made) == 2  # gradients lie elsewhere at the third
    # The ends of vectors, which are read one element at a time, are a second launch.
    assert launched(range(14, 19), [True]) == [3, 4]
    monkeypatch.setattr(straight_step, "check_kernels", runs.no_triton)
    assert launched([50], [True]) == []


@pytest.mark.parametrize("strategy", ["plain", "fp8-moments"])
def test_parameters_and_gradients_may_have_gaps(strategy, on_device):
    """A vector whose elements lie apart is a column of a matrix."""
    optimizers = []
    for there in (True, False):
        columns = torch.randn(40, 2, generator=torch.Generator().manual_seed(3)).bfloat16()
        p = torch.nn.Parameter(columns[:, 0])
        p.grad = torch.ones(40, 3).bfloat16()[:, 1]
        optimizers.append(AdamW([p], 0.1, strategy=strategy))
        on_device(there)
        optimizers[-1].step()
        assert not torch.equal(p, columns[:, 1])
        assert not p.is_contiguous()
    assert_same_states(*optimizers)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STORED)
def test_many_steps_of_many_parameters(strategy, on_device):
    """Of three components there are fewer: an interpreted kernel keeps all that it computes."""
    size = 10**5 if mcf.STRATEGIES[strategy].m.components < 3 else 10**3
    both = [made("adamw", strategy, shapes=((3,), (size,))) for _ in range(2)]
    runs.step_both(*both, range(10, 13), on_device)
    assert_same_states(*both)


@pytest.mark.gpu
@pytest.mark.parametrize("place", range(len(runs.strategies())))
def test_steps_on_a_gpu_have_the_bits_of_the_cpu(place):
    optimizer, strategy, low = runs.strategies()[place]
    rounding = "stochastic" if strategy == "stochastic" else "nearest_even"
    ours, theirs = (made(optimizer, strategy, low, rounding=rounding, device=x) for x in ("cuda", "cpu"))
    runs.step_both(ours, theirs, range(10))
    assert_same_states(ours, theirs)


# -- captured graphs -----------------------------------------------------------------------------------------
SHAPES = ((6, 4), (17,), (0, 3))


class Graph(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: it notes operations and launches, on addresses, and repeats them.

    What is noted is not carried out; where it makes a new tensor, later repetitions write into the same one.
    """

    def __init__(self):
        super().__init__()
        self._noted, self._patch = [], pytest.MonkeyPatch()

    def __enter__(self):
        kernels = launch.function
        self._patch.setattr(step, "capturing", lambda: True)
        self._patch.setattr(launch, "function", lambda *of, **how: _Noting(kernels(*of, **how), self._noted))
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.undo()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert "_local_scalar_dense" not in str(function), "a graph cannot wait for a number"
        if function._schema.is_mutable:
            self._noted.append(partial(function, *args, **kwargs))
            return args[0]
        result = function(*args, **kwargs)
        kept = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(result, torch.Tensor) and kept and result.untyped_storage().data_ptr() not in kept:
            self._noted.append(lambda: result.copy_(function(*args, **kwargs)))
        return result

    def replay(self):
        for again in self._noted:
            again()


class _Noting:
    def __init__(self, kernel, noted):
        self._kernel, self._noted = kernel, noted

    def __getitem__(self, grid):
        launch = self._kernel[grid]
        return lambda *given, **named: self._noted.append(partial(launch, *given, **named))


@pytest.fixture
def graph(monkeypatch, interpreted):
    """Return what begins a graph; tensors of the CPU are moved as a GPU's."""
    monkeypatch.setattr(step, "_is_host", lambda device: False)
    return Graph


def captured_step(optimizer, graph):
    """Return a graph with a step of an optimizer, which moves nothing yet."""
    before = [codes(p)[0] for p in listed(optimizer)]
    with graph:
        optimizer.step()
    assert all((codes(p)[0] == x).all() for p, x in zip(listed(optimizer), before, strict=True))
    return graph


def steps_of_both(ours, theirs, counts, change=lambda optimizer, count: None, graphs=()):
    """Make steps of two optimizers, ours by graphs in turn, if there are; gradients stay where they are."""
    for count in counts:
        for optimizer in (ours, theirs):
            given = listed(optimizer)
            fresh = [torch.nn.Parameter(p.detach().clone()) for p in given]
            give_hard(fresh, count)
            for p, q in zip(given, fresh, strict=True):
                p.grad = q.grad if p.grad is None or q.grad is None else p.grad.copy_(q.grad)
            change(optimizer, count)
            if optimizer is theirs or not graphs:
                optimizer.step()
            else:
                optimizer.before_replay(count % len(graphs))
                graphs[count % len(graphs)].replay()


def rates(optimizer, count):
    """Change the rates as a schedule does, from zero and to zero; TorchAdamW takes no other by a graph."""
    for place, group in enumerate(optimizer.param_groups if type(optimizer) is not TorchAdamW else ()):
        group["lr"] = 0.0 if count % 6 == 5 else 1e-2 / (1 + place) * abs(math.cos(count))


def both(optimizer="sgd", strategy="plain", shapes=SHAPES, **options):
    return [made(optimizer, strategy, shapes=shapes, **options, **x) for x in ({"capturable": True}, {})]


#: Interpreted, one step of mcf-3 takes as long as all others together.
REPLAYED = rotating([name for name in PLAIN if name != "mcf-3"])


@pytest.mark.parametrize(
    ("optimizer", "strategy", "maximize"), [(*pair, bool(n % 2)) for n, pair in enumerate(REPLAYED)]
)
@pytest.mark.sampled(50, each=False)
@pytest.mark.exhaustive
def test_replays_have_the_bits_of_steps(optimizer, strategy, maximize, graph):
    """Gradients stay as they are, also where they are taken with the other sign."""
    ours, theirs = both(optimizer, strategy, maximize=maximize, shapes=SHAPES[:4])
    steps_of_both(ours, theirs, [4], rates)
    captured = captured_step(ours, graph())
    steps_of_both(ours, theirs, range(5, 7), rates, [captured])
    assert_same_states(ours, theirs)
    for p, q in zip(listed(ours), listed(theirs), strict=True):
        assert (codes(p.grad)[0] == codes(q.grad)[0]).all()


@pytest.mark.exhaustive
def test_two_graphs_take_turns(graph):
    ours, theirs = both()
    steps_of_both(ours, theirs, [3])
    graphs = [captured_step(ours, graph()) for _ in range(2)]
    steps_of_both(ours, theirs, [4, 6, 5], graphs=graphs)
    assert_same_states(ours, theirs)
    with pytest.raises(IndexError, match=r"2 steps .* were captured in a CUDA graph: none is 2"):
        ours.before_replay(2)


@pytest.mark.exhaustive
def test_groups_and_parameters_that_are_alike_move_each_by_itself(graph):
    """One kernel, and parameters of the same sizes: what one is handed is not the other's, nor are counts."""
    optimizers = []
    for capturable in (True, False):
        given = runs.hard_parameters(torch.bfloat16, shapes=[(50,)] * 4)
        groups = [{"params": given[:1], "lr": 0.1}, {"params": given[1:], "lr": 0.01}]
        optimizers.append(AdamW(groups, strategy="plain", capturable=capturable))
    ours, theirs = optimizers
    steps_of_both(ours, theirs, [0, 1, 3])  # of the first two each leaves out one parameter
    steps_of_both(ours, theirs, [4, 5], graphs=[captured_step(ours, graph())])
    assert [ours.state[p]["step"] for p in listed(ours)] == [4, 4, 5, 5]
    assert_same_states(ours, theirs)


@pytest.mark.exhaustive
def test_a_graph_goes_on_from_what_is_loaded(graph):
    ours, theirs = both(strategy="stochastic")
    steps_of_both(ours, theirs, [3])
    captured = captured_step(ours, graph())
    saved, kept = copy.deepcopy(ours.state_dict()), [p.detach().clone() for p in listed(ours)]
    ours.before_replay()
    captured.replay()
    ours.load_state_dict(saved)
    runs.put(ours, kept)
    steps_of_both(ours, theirs, [4, 5], graphs=[captured])
    assert_same_states(ours, theirs)


def one(**options):
    """Return a parameter with a gradient and its optimizer, which has made a step."""
    (p,) = runs.hard_parameters(torch.bfloat16, shapes=[(16,)])
    p.grad = torch.ones_like(p)
    optimizer = AdamW([p], **{"lr": 1e-2, "capturable": True, "strategy": "plain", **options})
    optimizer.step()
    return p, optimizer


def test_a_replay_without_a_word_changes_nothing(graph):
    p, optimizer = one()
    captured, seen = captured_step(optimizer, graph()), [codes(p)[0]]

    def changes():
        captured.replay()
        seen.append(codes(p)[0])
        return (seen[-1] != seen[-2]).any()

    assert not changes()
    for rate in (0.0, 1e-2):  # of which the first enters another kernel; the last word alone is heard
        optimizer.param_groups[0]["lr"] = rate
        optimizer.before_replay()
    assert changes()
    assert not changes()
    assert optimizer.state[p]["step"] == 3


# -- what is refused -----------------------------------------------------------------------------------------
def of_another_dtype(p, optimizer):
    p.grad = None
    if hasattr(p, "grad_dtype"):  # since PyTorch 2.10
        p.grad_dtype = None
    p.grad = torch.ones(16)


def of_another_address(p, optimizer):
    """Sixteen bytes are read at a time only where addresses allow it, which a captured launch has settled."""
    p.grad = torch.ones(17, dtype=torch.bfloat16)[1:]


def with_another(p, optimizer):
    (q,) = runs.hard_parameters(torch.bfloat16, shapes=[(100,)])
    optimizer.add_param_group({"params": [q]})
    optimizer.state[q] = {"step": 1, "m": torch.zeros_like(q), "v": torch.zeros_like(q)}
    q.grad = torch.ones_like(q)


RATE = {"lr": torch.tensor(0.01)}
#: What is said of a step that cannot be captured: of what optimizer, and what was done to it.
UNFIT = {
    "without capturable=True": ({"capturable": False}, None),
    "quantised between launches": ({"strategy": "fp8-moments"}, None),
    "has no state yet": ({}, lambda p, optimizer: optimizer.state.clear()),
    "cannot be watched or recorded": ({}, lambda p, optimizer: watch(optimizer)),
    "a graph cannot wait for lr, a tensor on": ({}, lambda p, x: x.param_groups[0].update(RATE)),
    "gradients must be of bfloat16, not of torch.float32": ({}, of_another_dtype),
    "make a step outside of the graph first": ({}, with_another),
    "step outside of the graph first": ({}, of_another_address),
}
#: Where none can be.
NOWHERE = {
    "needs a kernel of Triton": (straight_step, "check_kernels", runs.no_triton),
    "of parameters on a CPU": (step, "_is_host", lambda device: True),
}


@pytest.mark.parametrize("said", [*UNFIT, *NOWHERE])
def test_what_cannot_be_captured_is_refused(said, graph, monkeypatch):
    options, change = UNFIT.get(said, ({}, None))
    if said in NOWHERE:
        monkeypatch.setattr(*NOWHERE[said])
    p, optimizer = one(**options)
    if change is not None:
        change(p, optimizer)
    with pytest.raises((RuntimeError, TypeError), match=said), graph():
        optimizer.step()


def test_what_a_graph_cannot_make_is_refused_before_it_counts(graph):
    p, optimizer = one(weight_decay=0.1)
    captured = captured_step(optimizer, graph())
    before = codes(p)[0]

    def refuse(match):
        with pytest.raises(RuntimeError, match=match):
            optimizer.before_replay()
        assert optimizer.state[p]["step"] == 1
        captured.replay()
        assert (codes(p)[0] == before).all()

    (group,), m = optimizer.param_groups, optimizer.state[p]["m"]
    group["weight_decay"] = 0.0
    refuse("capture it anew with these")
    group["weight_decay"] = 0.1
    watched = watch(optimizer)
    refuse("cannot be watched or recorded")
    watched.remove()
    optimizer.state[p]["m"] = m.clone()
    refuse("lie elsewhere")
    optimizer.state[p]["m"] = m
    optimizer.before_replay()


def test_parameters_of_one_launch_have_made_the_same_steps(graph):
    ours = made("adamw", "plain", shapes=SHAPES, capturable=True)
    give_hard(listed(ours), 3)
    ours.step()
    captured_step(ours, graph())
    listed(ours)[1].grad = None
    ours.step()
    with pytest.raises(RuntimeError, match="different numbers of steps"):
        ours.before_replay()


@pytest.mark.gpu
@pytest.mark.parametrize(("optimizer", "strategy"), feeding(PLAIN))
def test_replays_on_a_gpu_have_the_bits_of_steps(optimizer, strategy):
    ours, theirs = (made(optimizer, strategy, device="cuda", capturable=x) for x in (True, False))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        steps_of_both(ours, theirs, range(3, 5), rates)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        ours.step()
    steps_of_both(ours, theirs, range(5, 12), rates, [captured])
    assert_same_states(ours, theirs)
