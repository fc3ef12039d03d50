"""Where kernels carry texts on tensors out, where PyTorch's operations do, and what is kept of them."""

from collections import namedtuple
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.compile import kernel as kernels_of_triton
from mcfsim.compile import torch_kernels
from mcfsim.compile.torch_kernels import NoKernelError, check_kernels, serve
from tests.pytorch.devices import PLAIN, WORDS, Watched, both, check, here, numbers, or_eager, there, values

pytest.importorskip("triton", reason="Triton is not installed")

CUDA = torch.device("cuda")
#: What PyTorch does about a kernel: it takes the sign from zeros of formats that have none.
BESIDE = {"add.Tensor"}
by_kernels = pytest.mark.parametrize("kernels", [True], indirect=True)


@pytest.fixture
def watched(monkeypatch):
    """Return a function that tells whether PyTorch was asked to compute, and what kernels were launched."""

    def watch(call):
        launched = []
        launch = kernels_of_triton.Launcher.__call__

        def note(launcher, *given):
            launched.append(launcher.source)
            return launch(launcher, *given)

        with monkeypatch.context() as patch, Watched() as seen:
            patch.setattr(kernels_of_triton.Launcher, "__call__", note)
            call()
        return set(seen.names) & (PLAIN - BESIDE), launched

    return watch


def on_device(kernels, device="cpu", fmt="bfloat16", *rounding):
    return both(fmt, *rounding, device=device, kernels=kernels)[0]


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fnuz"])
@pytest.mark.parametrize("kernels", [False, True], indirect=True)
@pytest.mark.slow
def test_kernels_take_the_place_of_pytorchs_operations(fmt, device, kernels, watched):
    ours, x = on_device(kernels, device, fmt), torch.ones(3, device=device)
    for call in (lambda: mcf.two_sum(ours, x, x.double()[0].float()), lambda: ours.round(x.half() / 3)):
        asked, launched = watched(call)
        assert bool(launched) == kernels
        assert bool(asked - {"div.Tensor"}) != kernels


@by_kernels
@pytest.mark.slow
def test_what_a_kernel_does_not_take_is_refused_or_left_to_pytorch(device, kernels, watched, monkeypatch):
    monkeypatch.setattr(torch_kernels, "MOST_STEPS", 5)
    ones = torch.ones(2, device=device)
    for x, call in (
        (ones.double(), lambda ar, x: ar.add(x, 1.0)),
        (ones.int(), lambda ar, x: ar.add(x, 1.0)),
        (ones.long(), lambda ar, x: ar.round(x)),
    ):
        with pytest.raises(NoKernelError, match=f"which does not hold all of {x.dtype}"):
            call(on_device(kernels, device), x)
        asked, launched = watched(lambda x=x, call=call: call(or_eager(on_device(kernels, device)), x))
        assert asked
        assert not launched
    assert watched(lambda: mcf.two_sum(on_device(kernels, device), ones, ones))[1]
    assert not watched(lambda: mcf.two_sum(or_eager(on_device(kernels, device)), ones, ones))[1]
    drawing = on_device(kernels, device, "bfloat16", "stochastic")
    with pytest.raises(NoKernelError):
        drawing.add(ones.double(), 1.0)
    assert drawing.random == WORDS


@by_kernels
@pytest.mark.slow
def test_what_is_compiled_is_kept(device, kernels, watched, monkeypatch):
    ours, x = on_device(kernels, device), torch.ones(2, device=device)

    def text(ar, x, rate):
        return ar.mul(ar.add(x, rate), 0.9)

    asked = [watched(lambda rate=rate: ours.evaluate(text, x, rate))[1] for rate in (0.1, 0.1, 0.3)]
    assert asked[0] == asked[1] == asked[2] != []
    made = torch_kernels._kernel_of.cache_info().misses
    monkeypatch.setattr(torch_kernels, "Kernel", None)  # none is made from here on
    for rate in (0.1, 0.3, 0.7):
        ours.evaluate(text, x, rate)
    assert torch_kernels._kernel_of.cache_info().misses == made + 1


def test_scalars_that_look_alike_are_not_taken_for_each_other(device, kernels, assert_same):
    """Zeros of either sign, and numbers of mpmath that differ behind the digits that they show."""
    with mpmath.workprec(200):
        tie = mpmath.mpf(1) + mpmath.mpf(2) ** -8
        above = tie + mpmath.mpf(2) ** -100
    assert repr(tie) == repr(above)
    ours, theirs = both("bfloat16", device=device, kernels=kernels)
    x = torch.tensor([-0.0, 1.0], device=device)
    for s in (0.0, -0.0, 0, 1):
        check(assert_same, lambda ar, x, s=s: ar.add(x, s), ours, theirs, x)
    for s in (0.0, -0.0, 1, tie, above, Fraction(above.man_exp[0], 2**100)):
        check(assert_same, lambda ar, x, s=s: ar.mul(x, s), ours, theirs, x)

    def both_in_one(ar, x):
        return ar.mul(x, tie), ar.mul(x, above)

    check(assert_same, lambda ar, x: ar.evaluate(both_in_one, x), ours, theirs, x)


def test_results_lie_as_the_text_has_them(device, kernels):
    Pair = namedtuple("Pair", "high rest")
    ours, _ = both("float16", device=device, kernels=kernels)
    x = torch.tensor([[1.0, 2.0]], device=device)

    def text(ar, x):
        twice = ar.add(x, x)
        return Pair(twice, (twice, 0.1, (x, ar.mul(x, 3.0))))

    high, (again, tenth, (same, thrice)) = ours.evaluate(text, x)
    found = [here(y).tolist() for y in (high, again, tenth, same, thrice)]
    assert found == [[[2.0, 4.0]], [[2.0, 4.0]], [[float(np.float16(0.1))] * 2], [[1.0, 2.0]], [[3.0, 6.0]]]
    assert len({y.data_ptr() for y in (x, high, again, tenth, same, thrice)}) == 6
    if kernels is not None:  # NumPy's way returns plain tuples
        assert type(ours.evaluate(text, x)) is Pair


def test_texts_that_ask_for_the_same_may_return_otherwise(device, kernels, assert_same):
    ours, theirs = both("float16", device=device, kernels=kernels)
    x = torch.tensor([1.0, 3.0], device=device)
    for order in ((0, 1), (1, 0), (1, 1), (2, 0)):

        def text(ar, x, order=order):
            made = ar.add(x, 0.1), ar.mul(x, 0.1), x
            return tuple(made[place] for place in order)

        check(assert_same, lambda ar, x, text=text: ar.evaluate(text, x), ours, theirs, x)
    for fmt, mode in (("bfloat16", "nearest_even"), ("float16", "up"), ("float16", "down")):
        check(assert_same, lambda ar, x: ar.add(x, 0.1), *both(fmt, mode, device=device, kernels=kernels), x)


def test_operands_lie_in_memory_as_they_like(device, kernels, assert_same):
    ours, theirs = both("bfloat16", "up", device=device, kernels=kernels)
    _, t = values(3, ours, theirs)
    x = t.reshape(3, 10, 30)
    for a, b in (
        (x[:, 1:, ::2], x[1, 1:, 1::2]),
        (x.permute(2, 0, 1), x[0, 0, :1]),
        (x[:0], x[:1]),
        (x.bfloat16()[:, ::3], x[0, ::3].half().nan_to_num(0, 0, 0)),
        (x[2, 3], torch.tensor(3, dtype=torch.uint8, device=device)),
    ):
        arrays = here(a.float()), here(b.float())
        check(assert_same, mcf.two_sum, ours, theirs, a, b, arrays=arrays)


# -- where there are kernels --------------------------------------------------------------------------------
def test_an_arithmetic_says_whether_it_tries_kernels(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for asked, tried in ((None, False), (False, False), (True, True)):
        ar = mcf.arithmetic("bfloat16", backend="torch", kernels=asked)
        assert ar.kernels == ar.like(ar.format, ar.rounding).kernels == tried
        assert ("kernels=True" in repr(ar)) == tried
        assert ar.device == torch.device("cpu")
        assert ar.on_block(0, 0).kernels == tried
    for given in (1, "yes", 0.0):
        with pytest.raises(TypeError, match=f"kernels must be True, False or None, not {given!r}"):
            mcf.arithmetic("bfloat16", backend="torch", kernels=given)
        with pytest.raises(TypeError, match="kernels must be"):
            on_device(given)


def test_where_kernels_serve(monkeypatch):
    """On GPUs of NVIDIA whose code is looked at, by a Triton that divides exactly; or interpreted."""

    def asked():
        return mcf.arithmetic("bfloat16", backend="torch", kernels=True)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="interpreted, slowly, and only where TRITON_INTERPRET=1"):
        asked()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert asked().kernels
    with pytest.raises(ValueError, match="NVIDIA's GPUs, and device 'xpu' is none"):
        check_kernels(torch.device("xpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"capability 8\.0, and device 'cuda' has 7\.5"):
        check_kernels(CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_kernels(CUDA)
    assert serve(CUDA, None)
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.2")
        with pytest.raises(ValueError, match="NVIDIA's GPUs, and device 'cuda' is none"):
            check_kernels(CUDA)
    for found in ("3.5.1", "2.1"):
        monkeypatch.setattr(kernels_of_triton, "_triton", lambda found=found: found)
        assert not serve(CUDA, None)
        for refused in (asked, lambda: serve(CUDA, True)):
            with pytest.raises(ImportError, match=f"Triton {found} divides inexactly"):
                refused()
    monkeypatch.setattr(kernels_of_triton, "_triton", None)  # not asked where no kernels are wanted
    assert here(on_device(False).add(there(numbers(1)[0][:1], "cpu"), 1.0)).tolist() == [1.0]
