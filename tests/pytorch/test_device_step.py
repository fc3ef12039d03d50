"""Steps of the optimizers on a GPU's tensors: the bits of the steps on the CPU's, in one launch."""

import pytest
import torch

import mcfsim as mcf
from mcfsim.compile import tables
from mcfsim.torch import AdamW, device_step
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, made
from tests.shared.kinds import STORED

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
    ours, theirs = (made(optimizer, strategy, low, rounding=rounding_of(place)) for _ in range(2))
    runs.step_both(ours, theirs, range(3), on_device)
    assert_same_states(ours, theirs)
    ours.load_state_dict(theirs.state_dict())
    runs.step_both(ours, theirs, [3], on_device)
    assert_same_states(ours, theirs)


@pytest.mark.parametrize("on_device", ["kernel"], indirect=True)
def test_many_tensors_are_one_launch_and_their_addresses_are_kept(on_device, monkeypatch):
    launches, tables_made, function = [], [], tables.function

    class Spy:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launches.append(grid[0])
            return self.kernel[grid]

    monkeypatch.setattr(tables, "function", lambda *given, **named: Spy(function(*given, **named)))
    monkeypatch.setattr(device_step, "Table", lambda *given: tables_made.append(1) or tables.Table(*given))
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
    monkeypatch.setattr(device_step, "check_kernels", runs.no_triton)
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
    runs.step_both(*both, range(10, 30), on_device)
    assert_same_states(*both)


@pytest.mark.gpu
@pytest.mark.parametrize("place", range(len(runs.strategies())))
def test_steps_on_a_gpu_have_the_bits_of_the_cpu(place):
    optimizer, strategy, low = runs.strategies()[place]
    rounding = "stochastic" if strategy == "stochastic" else "nearest_even"
    ours, theirs = (made(optimizer, strategy, low, rounding=rounding, device=x) for x in ("cuda", "cpu"))
    runs.step_both(ours, theirs, range(10))
    assert_same_states(ours, theirs)
