"""Steps of the optimizers of torch that are broken off anywhere: no half of one is gone on from unnoticed."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from mcfsim.checks.whole import SpoiltStateError  # noqa: E402
from mcfsim.torch import AdamW  # noqa: E402
from tests.shared.interrupts import broken_off, bytecodes  # noqa: E402


def made(strategy):
    generator = torch.Generator().manual_seed(0)
    given = [torch.nn.Parameter(torch.randn(5, 4, generator=generator).bfloat16()) for _ in range(3)]
    groups = [{"params": given[:1]}, {"params": given[1:], "betas": (0.8, 0.9)}]
    return given, AdamW(groups, lr=2.0**-6, strategy=strategy)


def step(given, optimizer):
    count = optimizer.state[given[0]].get("step", 0) if given[0] in optimizer.state else 0
    generator = torch.Generator().manual_seed(count + 1)
    for p in given:
        p.grad = torch.randn(p.shape, generator=generator).bfloat16()
    optimizer.step()


def bits(given, optimizer):
    kept = [p.detach().clone() for p in given]
    for p in given:
        kept += [torch.as_tensor(x).clone() for x in optimizer.state[p].values()]
    return [x.reshape(-1).view(torch.uint8).tolist() for x in kept]


@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "split-master", "fp8-moments"])
def test_a_step_that_is_broken_off_is_whole_or_refused(strategy):
    given, optimizer = made(strategy)
    step(given, optimizer)
    start, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in given]
    states = [bits(given, optimizer)]
    for _ in range(2):
        step(given, optimizer)
        states.append(bits(given, optimizer))

    def back():
        with torch.no_grad():
            for p, x in zip(given, weights, strict=True):
                p.copy_(x)
        optimizer.load_state_dict(start)

    count = bytecodes(lambda: step(given, optimizer))
    refused = halves = 0
    places = torch.randint(count, (15,), generator=torch.Generator().manual_seed(1)).tolist()
    for place in [*places, *range(count // 2, count, count // 20)]:
        back()
        assert bits(given, optimizer) == states[0]
        if not broken_off(lambda: step(given, optimizer), place, KeyboardInterrupt):
            continue
        found = bits(given, optimizer)
        halves += found not in states
        try:
            step(given, optimizer)
        except SpoiltStateError:
            refused += 1
            assert bits(given, optimizer) == found
            for other in (
                optimizer.state_dict,
                lambda: copy.deepcopy(optimizer),
                lambda: pickle.dumps(optimizer),
            ):
                with pytest.raises(SpoiltStateError, match=r"a step was broken off.* saved together"):
                    other()
            with pytest.raises(SpoiltStateError):
                optimizer.represented(given[0])
        else:
            assert found in states[:2]
            assert bits(given, optimizer) == states[states.index(found) + 1]
    assert refused >= halves > 0


def test_a_loading_that_is_broken_off_is_whole_or_refused():
    given, optimizer = made("collage-plus")
    step(given, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    count, refused = bytecodes(lambda: optimizer.load_state_dict(saved)), 0
    for place in range(0, 10 * count, count // 60):  # more in an optimizer that has no state yet
        given, optimizer = made("collage-plus")
        before = [len(optimizer.state), copy.deepcopy(optimizer.param_groups[0]["betas"])]
        if not broken_off(lambda: optimizer.load_state_dict(saved), place, KeyboardInterrupt):  # noqa: B023
            break
        try:
            optimizer.state_dict()
        except SpoiltStateError:
            refused += 1
            optimizer.load_state_dict(saved)
            assert optimizer.state[given[0]]["step"] == 1
            step(given, optimizer)
        else:
            whole = [len(optimizer.state), optimizer.param_groups[0]["betas"]]
            assert whole == before or optimizer.state[given[2]]["step"] == 1
    assert refused > 0


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_what_is_refused_before_a_step_spoils_nothing():
    given, optimizer = made("eco")
    optimizer.param_groups[1]["lr"] = 1e-320  # errors fed back over it leave binary64
    before = bits(given, optimizer)
    with pytest.raises(ValueError, match="feeds errors back"):
        step(given, optimizer)
    assert bits(given, optimizer)[:3] == before[:3]
    optimizer.param_groups[1]["lr"] = 2.0**-6
    step(given, optimizer)
