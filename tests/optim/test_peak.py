"""Memory taken beyond an optimizer's state: a few blocks, however many parameters there are."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import check_codes
from mcfsim.compile import choice
from mcfsim.formats import Format
from tests.optim.stored import Made, made

#: Parameters; the more must take less than one byte each more, beside what caches of others happen to do.
SIZES = 1 << 18, 1 << 19
SAME = 1 << 18
LIMIT = 64 * 2**20
#: Of which some codes stand for nothing, so that the gradient's are looked at.
GAPS = Format("gaps", precision=8, emin=-60, emax=60)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    """Let the fewer parameters be many stretches of what is read at once."""
    monkeypatch.setattr("mcfsim.optim.start.AT_ONCE", 1 << 15)


def peak(function, *given, **options):
    """Return what a call returns, and how many bytes it held at once, in a thread that has kept none."""
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(function, *given, **options).result()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def tensors(size, seed=0):
    shapes = {"w": size // 2, "b": size // 2 - 77, "c": 77}
    return {name: Made((count,), seed + len(name)) for name, count in shapes.items()}


def build(size, name="collage-plus", low="bfloat16", **options):
    return made(tensors(size), name, low, decayed=["w"], **options)


def state_of(optimizer):
    return sum(x.nbytes for items in optimizer.state for x in items)


def check(measured):
    """Assert that, whatever is measured, it takes no more with more parameters."""
    for few, many in zip(*map(measured, SIZES), strict=True):
        assert max(few, many) <= LIMIT
        assert many - few < SAME


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["numbers", pytest.param("codes", marks=pytest.mark.exhaustive), "files"])
def test_building_takes_the_state_and_a_few_blocks(kept, tmp_path):
    """And where vectors lie in files, nothing takes more, a step neither."""

    def measured(size):
        folder = {"folder": tmp_path / f"{size}"} if kept == "files" else {}
        optimizer, built = peak(build, size, packed=kept != "numbers", **folder)
        assert state_of(optimizer) == size * (20 if kept == "numbers" else 10)
        gradient, received = peak(optimizer.receive, tensors(size, 7))
        assert gradient.size == size
        _, advanced = peak(optimizer.advance, gradient, 1e-3)
        if kept == "files":
            return built, received, advanced
        return built - state_of(optimizer), received - gradient.nbytes

    check(measured)


@pytest.mark.slow
def test_packed_numbers_that_share_scales_are_whole_nowhere():
    """Neither when they are made, nor in a step, nor to show the parameter."""

    def measured(size):
        optimizer, built = peak(build, size, "fp8-moments", packed=True, compiled=False)
        scales = 4 * (size // 128 + 1)
        assert state_of(optimizer) == 2 * size + 4 * size + 2 * (size + scales)
        stepped = peak(optimizer.advance, optimizer.receive(tensors(size, 7)), 1e-3)[1]
        # What is shown is the parameter, and a copy of the master copy.
        return built - state_of(optimizer), stepped, peak(optimizer.represented)[1] - 2 * 4 * size

    check(measured)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
@pytest.mark.parametrize("mode", ["nearest_even", pytest.param("stochastic", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("low", "packed"), [("bfloat16", False), ("bfloat16", True), (GAPS, True)])
@pytest.mark.parametrize("carried", [{"compiled": False}, {"steps": 10**6}], ids=["operations", "calls"])
@pytest.mark.sampled(6, each=False)
@pytest.mark.costly("whole trainings")
def test_a_step_takes_a_few_blocks(low, packed, mode, carried, monkeypatch):
    """The gradient is no contiguous vector."""
    monkeypatch.setattr(choice, "is_available", lambda: False)
    random = {"random": mcf.RandomWords(1)} if mode == "stochastic" else {}

    def measured(size):
        optimizer = build(size, "plain", low, rounding=mode, packed=packed, **carried, **random)
        gradient = np.zeros(2 * size, optimizer.state.m[0].dtype)[::2]
        advanced = peak(optimizer.advance, gradient, 1e-3)[1]
        update, stepped = peak(optimizer.step, gradient, 1e-3)
        return advanced, stepped - update.nbytes

    check(measured)


def test_codes_are_looked_at_a_block_at_a_time():
    def measured(size):
        codes = np.zeros(size, np.uint16)
        _, taken = peak(check_codes, codes, GAPS)
        codes[-3] = 16000
        with pytest.raises(ValueError, match=rf"element \({size - 3},\) = 16000 stands for no value of gaps"):
            check_codes(codes, GAPS)
        return (taken,)

    check(measured)


def test_the_measure_sees_what_grows():
    taken = [peak(np.ones, size, np.uint16)[1] for size in SIZES]
    assert taken[1] - taken[0] > SAME
