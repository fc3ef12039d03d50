"""Steps of the optimizers on a GPU's tensors: the bits of the steps on the CPU's, in one launch."""

from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
import mcfsim.torch  # noqa: E402
from mcfsim.compile import tables  # noqa: E402
from mcfsim.random import RandomWords  # noqa: E402
from mcfsim.torch import device_step, step  # noqa: E402
from tests.pytorch.steps import (  # noqa: E402
    assert_same_states,
    give_gradients,
    made,
    no_triton,
    parameters,
    strategies,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.costly("Triton's interpreter takes a second for the kernels of a few steps"),
    pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning"),
]


@pytest.mark.parametrize("place", range(len(strategies())))
@pytest.mark.sampled(56, each=False)
def test_steps_have_the_bits_of_the_cpu(place, on_device):
    optimizer, strategy, low = strategies()[place]
    roundings = ("nearest_even", "toward_zero", "nearest_even", "stochastic")
    rounding = "nearest_even" if mcf.STRATEGIES[strategy].addition == "grow" else roundings[place % 4]
    ours, moved = made(optimizer, strategy, low, rounding)
    theirs, others = made(optimizer, strategy, low, rounding)
    for count in range(3):
        for one, given, there in ((ours, moved, True), (theirs, others, False)):
            give_gradients(given, count)
            on_device(there)
            one.step()
    assert_same_states(ours, theirs)


@pytest.fixture
def launches(monkeypatch):
    """Return a list of the instances of each launch."""
    found, made = [], tables.function

    class Spy:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            found.append(grid)
            return self.kernel[grid]

    monkeypatch.setattr(tables, "function", lambda *given, **named: Spy(made(*given, **named)))
    return found


@pytest.mark.parametrize("on_device", ["kernel"], indirect=True)
def test_many_tensors_are_one_launch_and_their_addresses_are_kept(on_device, launches, monkeypatch):
    shapes = [(16 * (1 + place % 3),) for place in range(4)]
    ours = parameters(torch.bfloat16, shapes=shapes)
    optimizer = mcfsim.torch.AdamW(ours, strategy="plain")
    tables_made = []
    monkeypatch.setattr(
        device_step, "Table", lambda *given: tables_made.append(given) or tables.Table(*given)
    )
    on_device(True)
    for p in ours:
        p.grad = torch.ones_like(p)
    for _ in range(2):
        optimizer.step()
    assert [grid[0] for grid in launches] == [4] * 2
    assert len(tables_made) == 1
    for p in ours:
        p.grad = torch.ones_like(p)  # elsewhere
    optimizer.step()
    assert len(tables_made) == 2
    # The ends of vectors, which are read one element at a time, are a second launch.
    odd = parameters(torch.bfloat16, shapes=[(size,) for size in range(14, 19)])
    optimizer = mcfsim.torch.AdamW(odd, strategy="plain")
    for p in odd:
        p.grad = torch.ones_like(p)
    launches.clear()
    optimizer.step()
    assert [grid[0] for grid in launches] == [3, 4]


def test_without_triton_no_kernel_is_launched(monkeypatch, launches):
    monkeypatch.setattr(device_step, "check_kernels", no_triton)
    monkeypatch.setattr(step, "_is_host", lambda device: False)
    (p,) = parameters(torch.bfloat16, shapes=[(50,)])
    p.grad = torch.ones_like(p)
    mcfsim.torch.AdamW([p]).step()
    assert not launches


def test_a_state_goes_on_on_another_device(on_device):
    """It is copied to where the parameters are; the steps that follow have the same bits."""
    shapes = ((6, 4), (17,))
    ours, moved = made("adamw", "collage-plus", "bfloat16", shapes=shapes)
    theirs, others = made("adamw", "collage-plus", "bfloat16", shapes=shapes)
    for one, given, there in ((ours, moved, True), (theirs, others, False)):
        give_gradients(given, 3)
        on_device(there)
        one.step()
    ours.load_state_dict(theirs.state_dict())
    for one, given, there in ((ours, moved, True), (theirs, others, False)):
        give_gradients(given, 4)
        on_device(there)
        one.step()
    assert_same_states(ours, theirs)


@pytest.mark.parametrize("strategy", ["plain", "fp8-moments"])
def test_parameters_and_gradients_may_have_gaps(strategy, on_device):
    """A vector whose elements lie apart is a column of a matrix."""
    optimizers = []
    for there in (True, False):
        generator = torch.Generator().manual_seed(3)
        columns = torch.randn(40, 2, generator=generator).bfloat16(), torch.ones(40, 3).bfloat16()
        p = torch.nn.Parameter(columns[0][:, 0])
        p.grad = columns[1][:, 1]
        optimizers.append(mcfsim.torch.AdamW([p], 0.1, strategy=strategy))
        on_device(there)
        optimizers[-1].step()
        assert not torch.equal(p, columns[0][:, 1])
        assert not p.is_contiguous()
    assert_same_states(*optimizers)


def after_steps(strategy):
    """Return an optimizer after 20 steps of many parameters: zeros, huge numbers, infinities and NaN, too.

    Of three components there are fewer: an interpreted kernel keeps all that it computes, 40 kB of each.
    """
    chosen = mcf.strategy(strategy)
    size = 10**5 if chosen.m.components < 3 else 10**3
    given = parameters(getattr(torch, chosen.parameter.format.name), 3, [(size,)])
    words = {"random": RandomWords(11)} if chosen.draws else {}
    optimizer = mcfsim.torch.AdamW(given, 1e-2, strategy=strategy, **words)
    for count in range(20):
        give_gradients(given, 10 + count)
        optimizer.step()
    return optimizer


#: By threads on the CPU; kept for the two ways of a device, which are compared with it one after the other.
on_the_cpu = lru_cache(maxsize=1)(after_steps)


@pytest.mark.exhaustive
@pytest.mark.parametrize("on_device", ["kernel", "operations"], indirect=True)
@pytest.mark.parametrize("strategy", [name for name in mcf.STRATEGIES if name != "exact"])
def test_many_steps_of_many_parameters(strategy, on_device):
    on_device(False)
    expected = on_the_cpu(strategy)
    on_device(True)
    assert_same_states(after_steps(strategy), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
@pytest.mark.parametrize(("optimizer", "strategy", "low"), strategies())
def test_steps_on_a_gpu_have_the_bits_of_the_cpu(optimizer, strategy, low):
    rounding = "stochastic" if strategy == "stochastic" else "nearest_even"
    ours, moved = made(optimizer, strategy, low, rounding, device="cuda")
    theirs, others = made(optimizer, strategy, low, rounding)
    for count in range(10):
        for one, given in ((ours, moved), (theirs, others)):
            give_gradients(given, count)
            one.step()
    assert_same_states(ours, theirs)
