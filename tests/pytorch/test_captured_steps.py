"""Steps in captured graphs: the bits of steps made one by one, and nothing where nothing was said."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import mcfsim as mcf  # noqa: E402
import mcfsim.torch  # noqa: E402
from mcfsim.compile import tables  # noqa: E402
from mcfsim.torch import step  # noqa: E402
from tests.pytorch.steps import (  # noqa: E402
    assert_same_states,
    codes,
    give_gradients,
    made,
    no_triton,
    parameters,
)
from tests.shared.kinds import PLAIN, feeding, rotating  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.costly("Triton's interpreter takes a second for the kernels of a few steps"),
    pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning"),
]
SHAPES = ((6, 4), (17,), (0, 3))
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")


class Graph(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: it notes operations and launches, on addresses, and repeats them.

    What is noted is not carried out; where it makes a new tensor, later repetitions write into the same one.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self._patch, self._noted, self._noting = monkeypatch, [], False

    def __enter__(self):
        kernels = tables.function
        self._patch.setattr(step, "capturing", lambda: True)
        self._patch.setattr(tables, "function", lambda *of, **how: _Noting(kernels(*of, **how), self._noted))
        self._undo = lambda: (
            self._patch.setattr(step, "capturing", lambda: False),
            self._patch.setattr(tables, "function", kernels),
        )
        return super().__enter__()

    def __exit__(self, *error):
        self._undo()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert "_local_scalar_dense" not in str(function), "a graph cannot wait for a number"
        if function._schema.is_mutable:
            self._noted.append(lambda: function(*args, **kwargs))
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
        return lambda *given, **named: self._noted.append(lambda: launch(*given, **named))


@pytest.fixture
def graph(monkeypatch, interpreted):
    """Return what begins a graph; tensors of the CPU are moved as a GPU's."""
    monkeypatch.setattr(step, "_is_host", lambda device: False)
    return lambda: Graph(monkeypatch)


def steps_of_both(ours, theirs, counts, change=lambda optimizer, count: None, graphs=()):
    """Make steps of two optimizers, ours by graphs in turn, if there are; gradients stay where they are."""
    for count in counts:
        for optimizer, given in (ours, theirs):
            fresh = [torch.nn.Parameter(p.detach().clone()) for p in given]
            give_gradients(fresh, count)
            for p, q in zip(given, fresh, strict=True):
                p.grad = q.grad if p.grad is None else p.grad.copy_(q.grad)
            change(optimizer, count)
            if graphs and optimizer is ours[0]:
                which = count % len(graphs)
                optimizer.before_replay(which)
                graphs[which].replay()
            else:
                optimizer.step()


def captured_step(optimizer, graph):
    """Return a graph with a step of an optimizer."""
    with graph:
        optimizer.step()
    return graph


def rates(optimizer, count):
    """Change the rates as a schedule does, from zero and to zero."""
    for place, group in enumerate(optimizer.param_groups):
        group["lr"] = 0.0 if count % 6 == 5 else 1e-2 / (1 + place) * abs(math.cos(count))


@pytest.mark.exhaustive
def test_a_graph_maximises(graph):
    """It takes the gradients of each replay with the other sign, and leaves them as they are."""
    options = {"shapes": SHAPES, "maximize": True}
    ours = made("sgd", "plain", "bfloat16", capturable=True, **options)
    theirs = made("sgd", "plain", "bfloat16", **options)
    steps_of_both(ours, theirs, range(4, 5))
    captured = captured_step(ours[0], graph())
    steps_of_both(ours, theirs, range(5, 8), graphs=[captured])
    assert_same_states(ours[0], theirs[0])
    assert all((codes(p.grad)[0] == codes(q.grad)[0]).all() for p, q in zip(ours[1], theirs[1], strict=True))


@pytest.mark.parametrize(("optimizer", "strategy"), rotating(PLAIN))
@pytest.mark.sampled(25, each=False)
def test_replays_have_the_bits_of_steps(optimizer, strategy, graph):
    change = rates if optimizer != "torchadamw" else lambda optimizer, count: None
    ours = made(optimizer, strategy, "bfloat16", shapes=SHAPES, capturable=True)
    theirs = made(optimizer, strategy, "bfloat16", shapes=SHAPES)
    steps_of_both(ours, theirs, range(4, 5), change)
    before = [codes(p) for p in ours[1]]
    captured = captured_step(ours[0], graph())
    for p, (bits, _) in zip(ours[1], before, strict=True):
        assert (codes(p)[0] == bits).all()
    steps_of_both(ours, theirs, range(5, 7), change, [captured])
    assert_same_states(ours[0], theirs[0])


def one(**options):
    """Return a parameter with a gradient and its optimizer, which has made a step if it may be captured."""
    (p,) = parameters(torch.bfloat16, shapes=[(16,)])
    p.grad = torch.ones_like(p)
    options = {"lr": 1e-2, "capturable": True, "strategy": "plain", **options}
    optimizer = mcfsim.torch.AdamW([p], **options)
    optimizer.step()
    return p, optimizer


def test_a_replay_without_a_word_changes_nothing(graph):
    p, optimizer = one()
    captured = captured_step(optimizer, graph())
    before = codes(p)[0].copy()
    captured.replay()
    assert (codes(p)[0] == before).all()
    optimizer.before_replay()
    captured.replay()
    after = codes(p)[0].copy()
    assert (after != before).any()
    captured.replay()
    assert (codes(p)[0] == after).all()
    assert optimizer.state[p]["step"] == 2


@pytest.mark.exhaustive
def test_to_hand_over_twice_moves_once(graph):
    """Even if the two words are for different kernels."""
    _, optimizer = one()
    q, other = one()
    captured = captured_step(optimizer, graph())
    optimizer.before_replay()
    for group in optimizer.param_groups + other.param_groups:
        group["lr"] = 0.0  # as which it enters the other kernel
    optimizer.before_replay()
    captured.replay()
    other.state[q]["step"] += 1
    other.step()
    assert_same_states(optimizer, other)


def both(strategy):
    """Return two optimizers, and their parameters; the first may be captured, and both have made a step."""
    ours = made("sgd", strategy, "bfloat16", shapes=SHAPES, capturable=True)
    theirs = made("sgd", strategy, "bfloat16", shapes=SHAPES)
    steps_of_both(ours, theirs, [3])
    return ours, theirs


def test_two_graphs_take_turns(graph):
    ours, theirs = both("plain")
    graphs = [captured_step(ours[0], graph()) for _ in range(2)]
    steps_of_both(ours, theirs, [4, 6, 5], graphs=graphs)
    assert_same_states(ours[0], theirs[0])
    with pytest.raises(IndexError, match="2 steps of this optimizer were captured: none is 2"):
        ours[0].before_replay(2)


@pytest.mark.exhaustive
def test_groups_that_are_alike_move_each_by_itself(graph):
    """One kernel, and parameters of the same sizes: what one is handed is not the other's."""
    optimizers = []
    for options in ({"capturable": True}, {}):
        given = parameters(torch.bfloat16, shapes=[(50,), (50,), (50,)])
        groups = [{"params": [p], "lr": 10.0**-place} for place, p in enumerate(given, 1)]
        optimizers.append((mcfsim.torch.AdamW(groups, strategy="plain", **options), given))
    steps_of_both(*optimizers, [3])
    captured = captured_step(optimizers[0][0], graph())
    steps_of_both(*optimizers, [4, 5], graphs=[captured])
    assert_same_states(optimizers[0][0], optimizers[1][0])


@pytest.mark.exhaustive
def test_gradients_that_lie_otherwise_are_another_launch(graph):
    """Sixteen bytes are read at a time only where addresses allow it, which a captured launch has settled."""
    (p,), (q,) = (parameters(torch.bfloat16, shapes=[(50,)]) for _ in range(2))
    ours, theirs = mcfsim.torch.AdamW([p], capturable=True), mcfsim.torch.AdamW([q])
    for first in (0, 1, 0, 1):
        p.grad = q.grad = torch.ones(51, dtype=torch.bfloat16)[first : first + 50]
        if first == 1 and ours.state[p]["step"] == 1:
            with pytest.raises(RuntimeError, match="make a step outside of the graph first"):
                captured_step(ours, graph())
        ours.step()
        theirs.step()
    captured = captured_step(ours, graph())
    ours.before_replay()
    captured.replay()
    theirs.step()
    assert_same_states(ours, theirs)


@pytest.mark.exhaustive
def test_parameters_of_other_ages_move_each_by_itself(graph):
    ours, theirs = (
        mcfsim.torch.AdamW(parameters(torch.bfloat16, shapes=[(50,), (50,)]), strategy="plain", capturable=x)
        for x in (True, False)
    )
    both = [(x, x.param_groups[0]["params"]) for x in (ours, theirs)]
    for optimizer, (p, _) in both:
        p.grad = torch.ones_like(p)
        optimizer.step()  # the other one has no gradient yet
    steps_of_both(*both, [3])
    captured = captured_step(ours, graph())
    steps_of_both(*both, [4, 5], graphs=[captured])
    assert [ours.state[p]["step"] for p in both[0][1]] == [4, 3]
    assert_same_states(ours, theirs)


@pytest.mark.exhaustive
def test_a_graph_goes_on_from_what_is_loaded(graph):
    ours, theirs = both("stochastic")
    captured = captured_step(ours[0], graph())
    saved, kept = copy.deepcopy(ours[0].state_dict()), [p.detach().clone() for p in ours[1]]
    ours[0].before_replay()
    captured.replay()
    ours[0].load_state_dict(saved)
    with torch.no_grad():
        for p, x in zip(ours[1], kept, strict=True):
            p.copy_(x)
    steps_of_both(ours, theirs, [4, 5], graphs=[captured])
    assert_same_states(ours[0], theirs[0])


def refused(graph, optimizer, match, error=RuntimeError):
    with pytest.raises(error, match=match), graph():
        optimizer.step()


def test_what_cannot_be_captured_is_refused(graph, monkeypatch):
    p, optimizer = one(capturable=False)
    refused(graph, optimizer, "without capturable=True")
    p, optimizer = one()
    optimizer.state.clear()
    refused(graph, optimizer, "has no state yet")
    p, optimizer = one()
    watched = mcfsim.torch.watch(optimizer)
    refused(graph, optimizer, "cannot be watched")
    watched.remove()
    (group,) = optimizer.param_groups
    group["lr"] = torch.tensor(0.01)
    refused(graph, optimizer, "a graph cannot wait for lr, a tensor on")
    group["lr"] = 0.01
    p.grad = None
    if hasattr(p, "grad_dtype"):  # since PyTorch 2.10
        p.grad_dtype = None
    p.grad = torch.ones(16)
    refused(graph, optimizer, "gradients must be of bfloat16, not of torch.float32", TypeError)
    p, optimizer = one(strategy=mcf.strategy("fp8-moments"))
    refused(graph, optimizer, "quantised between launches")
    (q,) = parameters(torch.bfloat16, shapes=[(100,)])
    p, optimizer = one()
    optimizer.add_param_group({"params": [q]})
    optimizer.state[q] = {
        "step": 1,
        **{name: torch.zeros_like(q) for name in ("m", "v")},
    }
    q.grad = torch.ones_like(q)
    refused(graph, optimizer, "make a step outside of the graph first")
    monkeypatch.setattr(step, "_is_host", lambda device: True)
    refused(graph, optimizer, "of parameters on a CPU")


def test_without_triton_nothing_is_captured(graph, monkeypatch):
    from mcfsim.torch import device_step

    monkeypatch.setattr(device_step, "check_kernels", no_triton)
    _, optimizer = one()
    refused(graph, optimizer, "needs a kernel of Triton")


def test_what_a_graph_cannot_make_is_refused_before_it_counts(graph):
    p, optimizer = one(weight_decay=0.1)
    captured = captured_step(optimizer, graph())
    before = codes(p)[0].copy()

    def refuse(match):
        with pytest.raises(RuntimeError, match=match):
            optimizer.before_replay()
        assert optimizer.state[p]["step"] == 1
        captured.replay()
        assert (codes(p)[0] == before).all()

    (group,) = optimizer.param_groups
    group["weight_decay"] = 0.0
    refuse("capture it anew with these")
    group["weight_decay"] = 0.1
    watched = mcfsim.torch.watch(optimizer)
    refuse("cannot be watched")
    watched.remove()
    m = optimizer.state[p]["m"]
    optimizer.state[p]["m"] = m.clone()
    refuse("lie elsewhere")
    optimizer.state[p]["m"] = m
    optimizer.before_replay()


def test_parameters_of_one_launch_have_made_the_same_steps(graph):
    ours, given = made("adamw", "plain", "bfloat16", shapes=SHAPES, capturable=True)
    give_gradients(given, 3)
    ours.step()
    captured_step(ours, graph())
    given[1].grad = None
    ours.step()
    with pytest.raises(RuntimeError, match="different numbers of steps"):
        ours.before_replay()


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize(("optimizer", "strategy"), feeding(PLAIN))
def test_replays_on_a_gpu_have_the_bits_of_steps(optimizer, strategy):
    change = rates if optimizer != "torchadamw" else lambda optimizer, count: None
    ours = made(optimizer, strategy, "bfloat16", device="cuda", capturable=True)
    theirs = made(optimizer, strategy, "bfloat16", device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        steps_of_both(ours, theirs, range(3, 5), change)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        ours[0].step()
    steps_of_both(ours, theirs, range(5, 12), change, [captured])
    assert_same_states(ours[0], theirs[0])
