"""Steps and loadings that are broken off anywhere: no half of one is gone on from unnoticed."""

from itertools import count

import numpy as np
import pytest

import mcfsim as mcf
from experiments.learned_step import LearnedStepTable
from mcfsim.checks import SpoiltStateError
from mcfsim.models.saving import load_state, save_state, save_weights
from mcfsim.optim import layout
from mcfsim.optim import optimizer as optimizers
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.amsgrad import AMSGrad
from mcfsim.optim.optimizer import Optimizer
from tests.optim import stored
from tests.optim.stored import bits, numbers
from tests.shared.interrupts import OwnError, broken_off, bytecodes

#: Files that were open are closed by the garbage collector, which Python warns of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SHAPES = {"w": (4, 6), "b": (6,)}
ERRORS = (KeyboardInterrupt, OwnError)
#: Strategies, with what else is said of each, and its options.
KINDS = {
    **{name: {} for name in ("plain", "collage-plus", "fp32-master", "int8-moments", "bitnet")},
    **{f"{name} packed": {"packed": True} for name in ("kahan", "split-master", "fp8-moments")},
    **{"stochastic": {"random": mcf.RandomWords(3)}, "fp32 in stages": {"hyper": Adafactor()}},
}
#: Interrupts of each kind.
EACH = 8


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Let steps of few numbers have many blocks."""
    monkeypatch.setattr(optimizers, "BLOCK", 8)
    monkeypatch.setattr(layout, "_STRIPE", 8)


def made(kind: str, **options: object) -> Optimizer:
    options = {"hyper": mcf.AdamW(beta2=0.95), **KINDS.get(kind, {}), **options}
    return stored.made(numbers(0, SHAPES), kind.split()[0], decayed=["w"], **options)


def step(optimizer: Optimizer) -> None:
    """Make the step that comes next, of a gradient that is given by its number."""
    optimizer.step(optimizer.receive(numbers(optimizer.count + 1, SHAPES)), 2.0**-6)


def trajectory(kind: str, steps: int) -> list[tuple[int, list[bytes]]]:
    optimizer = made(kind)
    found = [bits(optimizer)]
    for _ in range(steps):
        step(optimizer)
        found.append(bits(optimizer))
    return found


def broken(make, work, places):
    """Yield what is left of things after a work that is broken off at each of some bytecodes."""
    for place in places:
        one = make()
        if broken_off(lambda one=one: work(one), place, ERRORS[place % 2]):
            yield one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_a_step_that_is_broken_off_is_whole_or_refused(kind, tmp_path):
    states, rng = trajectory(kind, 3), np.random.default_rng(sorted(KINDS).index(kind))
    optimizer = made(kind)
    step(optimizer)
    path = tmp_path / "s.safetensors"
    save_state(optimizer, path)
    halves = refused = 0

    def loaded():
        load_state(optimizer, path)
        assert bits(optimizer) == states[1]
        return optimizer

    for _ in broken(loaded, step, rng.integers(bytecodes(lambda: step(optimizer)), size=EACH).tolist()):
        found = bits(optimizer)
        halves += found not in states
        try:
            step(optimizer)
        except SpoiltStateError:
            refused += 1
            assert bits(optimizer) == found
            half, zeros = tmp_path / "half.safetensors", np.zeros(30, np.float32)
            for other, *given in (
                *((work, optimizer, half) for work in (save_state, save_weights)),
                *((optimizer.weights,), (optimizer.represented,), (optimizer.advance, zeros, 0.1)),
            ):
                with pytest.raises(SpoiltStateError, match="step 2 was broken off"):
                    other(*given)
            assert not half.exists()
        else:
            assert found in states[1:3]
            assert bits(optimizer) == states[states.index(found) + 1]
    assert refused >= halves > 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("call", range(4))
def test_an_error_in_a_text_that_is_handed_over(call, threads):
    class Raising(mcf.AdamW):
        def step(self, *given):
            if next(calls) == call:
                raise OwnError
            return super().step(*given)

    calls = count(-1)  # the first one is the constructor's, without elements
    optimizer = made("collage-light", hyper=Raising(beta2=0.95), threads=threads, compiled=False)
    with pytest.raises(OwnError):
        step(optimizer)
    with pytest.raises(SpoiltStateError, match=r"step 1 was broken off.*by .*load_state"):
        step(optimizer)


@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_what_is_refused_before_a_step_spoils_nothing():
    optimizer, zeros = made("eco"), np.zeros(30, np.float32)
    before = bits(optimizer)
    for gradient, rate, error in (
        *((zeros, rate, ValueError) for rate in (-1.0, np.nan, np.inf)),
        *((zeros, rate, TypeError) for rate in ("0.1", None)),
        (zeros, 1e-320, ValueError),  # errors fed back over it leave binary64
        (zeros[:3], 0.1, ValueError),
        ([0.0] * 30, 0.1, TypeError),
    ):
        with pytest.raises(error):
            optimizer.step(gradient, rate)
        assert bits(optimizer) == before
    step(optimizer)
    assert optimizer.count == 1


@pytest.mark.parametrize("hyper", [mcf.AdamW(), Adafactor()], ids=repr)
@pytest.mark.parametrize("strategy", ["stochastic", "stochastic-parameter", "dqt-int8", "bitnet"])
def test_a_step_beyond_those_that_have_random_words_spoils_nothing(strategy, hyper):
    optimizer = Optimizer(hyper, mcf.strategy(strategy, "bfloat16"), {"w": np.ones((4, 6))})
    optimizer.count = 2**32 - 2
    gradient = np.ones(24, np.float32)
    optimizer.step(gradient, 0.1)
    before = bits(optimizer)
    if strategy == "bitnet":
        optimizer.step(gradient, 0.1)
        return
    with pytest.raises(ValueError, match=r"step = 4294967296 must lie in"):
        optimizer.step(gradient, 0.1)
    assert bits(optimizer) == before


@pytest.mark.parametrize("kind", [mcf.AdamW, AMSGrad])
def test_a_quotient_by_zero_in_exact_numbers_changes_nothing(kind):
    """Not even in the blocks and tensors before it."""
    optimizer, gradient = made("exact", hyper=kind(epsilon=0.0)), np.ones(30)
    before = [x.tolist() for items in optimizer.state for x in items]
    gradient[29] = 0.0
    with pytest.raises(ZeroDivisionError, match="a quotient by zero has no exact value"):
        optimizer.step(gradient, 0.5)
    assert [x.tolist() for items in optimizer.state for x in items] == before
    optimizer.step(np.ones(30), 0.5)
    assert optimizer.count == 1


@pytest.mark.parametrize("kind", ["collage-plus", "fp8-moments packed", "fp32-master"])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_a_loading_that_is_broken_off_is_whole_or_refused(kind, tmp_path):
    states, path, rng = trajectory(kind, 3), tmp_path / "s.safetensors", np.random.default_rng(1)
    first = made(kind)
    step(first)
    step(first)
    save_state(first, path)
    loaded, refused = made(kind), 0
    last = bytecodes(lambda: load_state(loaded, path))
    places = [*rng.integers(last, size=6).tolist(), *range(last - 400, last, 57)]
    for optimizer in broken(lambda: made(kind), lambda it: load_state(it, path), places):
        found = bits(optimizer)
        try:
            step(optimizer)
        except SpoiltStateError:
            refused += 1
            with pytest.raises(SpoiltStateError, match="loading a state was broken off"):
                optimizer.weights()
            load_state(optimizer, path)
            step(optimizer)
            assert bits(optimizer) == states[3]
        else:
            assert found in (states[0], states[2])
    assert refused > 2


@pytest.mark.slow
def test_steps_and_codes_of_a_table_with_learned_steps_belong_together():
    rng = np.random.default_rng(0)
    weights, update, gradient = rng.standard_normal((3, 4, 5))

    def table():
        return LearnedStepTable(weights, 4)

    def move(one):
        one.step(one.moved(update), gradient, 0.1)
        return one

    def state(one):
        return one.count, one.steps.tobytes(), one.codes.tobytes()

    whole, last = (state(table()), state(move(table()))), bytecodes(lambda: move(table()))
    for one in broken(table, move, [*rng.integers(last, size=6).tolist(), *range(last - 120, last, 8)]):
        found = state(one)
        try:
            one.weights()
        except SpoiltStateError:
            with pytest.raises(SpoiltStateError):
                move(one)
        else:
            assert found in whole
