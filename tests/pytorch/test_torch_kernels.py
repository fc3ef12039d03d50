"""Where kernels carry algorithms on tensors out, where PyTorch's operations do, and what is kept of them."""

from collections import namedtuple
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mcfsim as mcf
from mcfsim.backends.torch_device import found_device
from mcfsim.compile import kernel as kernels_of_triton
from mcfsim.compile import torch_calls, torch_kernels
from mcfsim.compile.torch_calls import TorchCalls, drawn
from mcfsim.compile.torch_kernels import NoKernelError, check_kernels, serve
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.element.machine import I32, recorded
from mcfsim.random import RandomWords
from tests.pytorch import devices
from tests.pytorch.devices import WORDS, Watched, both, check, here, there

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
        return set(seen.names) & (devices.PLAIN - BESIDE), launched

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
    strict, ones = on_device(kernels, device), torch.ones(2, device=device)
    free = devices.or_eager(on_device(kernels, device))
    for x, name in ((ones.double(), "sqrt"), (ones.int(), "sqrt"), (ones.long(), "round")):
        with pytest.raises(NoKernelError, match=f"which does not hold all of {x.dtype}"):
            getattr(strict, name)(x)
        asked, launched = watched(partial(getattr(free, name), x))
        assert asked
        assert not launched
    assert watched(lambda: mcf.two_sum(strict, ones, ones))[1]
    assert not watched(lambda: mcf.two_sum(free, ones, ones))[1]
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
    def text(ar, x, order):
        made = ar.add(x, 0.1), ar.mul(x, 0.1), x
        return tuple(made[place] for place in order)

    x = torch.tensor([1.0, 3.0], device=device)
    for given in (("float16", "nearest_even"), ("bfloat16", "nearest_even"), ("float16", "up")):
        for order in ((0, 1), (1, 0), (1, 1), (2, 0)):
            pair = both(*given, device=device, kernels=kernels)
            check(assert_same, lambda ar, x, order=order: ar.evaluate(text, x, order=order), *pair, x)


def test_operands_lie_in_memory_as_they_like(device, kernels, assert_same):
    ours, theirs = both("bfloat16", "up", device=device, kernels=kernels)
    _, t = devices.values(3, ours, theirs)
    x = t.reshape(3, 10, 30)
    for a, b in (
        (x[:, 1:, ::2], x[1, 1:, 1::2]),
        (x.permute(2, 0, 1), x[0, 0, :1]),
        (x[:0], x[:1]),
        (x.bfloat16()[:, ::3], x[0, ::3].half().nan_to_num(0, 0, 0)),
        (x[2, 3], torch.tensor(3, dtype=torch.uint8, device=device)),
    ):
        check(assert_same, mcf.two_sum, ours, theirs, a, b, arrays=(here(a.float()), here(b.float())))


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
    assert here(on_device(False).add(there(devices.numbers(1)[0][:1], "cpu"), 1.0)).tolist() == [1.0]


# -- what PyTorch is asked for otherwise, and what is refused ------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "posit8", "float8_e4m3fnuz"])
@pytest.mark.sampled(6)
def test_pytorch_is_asked_for_plain_operations_alone(fmt, mode, device):
    ours, _ = both(fmt, mode, device=device)
    t = ours.round(there(devices.numbers(3), device))
    with Watched() as seen:
        ours.round(there(devices.numbers(3), device))
        for name in devices.OPERATIONS:
            getattr(ours, name)(*t[: devices.OPERATIONS[name]])
        for text in devices.WITH_SCALARS.values():
            text(ours, t[0], t[1], 0.1)
    assert set(seen.names) <= devices.PLAIN | devices.MOVED
    assert {"add.Tensor", "div.Tensor", "where.self", "view.dtype"} <= set(seen.names)
    assert not seen.faults


@pytest.mark.slow
def test_what_is_needed_no_more_is_not_kept(device):
    ours, _ = both("float16", "up", device=device)
    x = torch.ones(5, 3, device=device)
    with Watched() as seen:
        ours.evaluate(lambda ar, x: mcf.grow(ar, mcf.grow(ar, (x, x), x), x), x)
    assert seen.names.count("add.Tensor") > 50
    assert seen.most < 20


class AllBits(TorchDispatchMode):
    """Makes NaN as NVIDIA's GPUs do: with all bits set but the sign."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = str(function).removeprefix("aten.") in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
        if made and result.dtype in (torch.float32, torch.float64):
            bits = {4: torch.int32, 8: torch.int64}[result.itemsize]
            nan = torch.tensor(torch.iinfo(bits).max, dtype=bits).view(result.dtype)
            return torch.where(result != result, nan, result)
        return result


@pytest.mark.parametrize("mode", devices.MODES)
@pytest.mark.parametrize("fmt", ["bfloat16", "tf32", "float16", "posit8"])
@pytest.mark.sampled(10, each=False)
def test_nan_with_all_bits_set_stays_nan(fmt, mode, assert_same):
    ours, theirs = both(fmt, mode)
    _, t = devices.values(3, ours, theirs)
    with AllBits():
        for name in ("add", "sub", "mul", "div", "fma"):
            check(assert_same, devices.operation(name), ours, theirs, *t[: devices.OPERATIONS[name]])


def test_an_input_that_is_not_given_is_refused():
    line, results = recorded(lambda x, n: x + n, x=I32, n=I32)
    with pytest.raises(ValueError, match="needs its input n"):
        TorchCalls(results, line.values[:1])


@pytest.mark.parametrize("bits", [1, 16, 17, 32])
@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 5, 2**34 + 3, 2**46 - 33])
@pytest.mark.sampled(3)
def test_words_are_those_of_numpy(start, bits, device):
    words = RandomWords(2**64 - 3, step=2**32 - 1, stream=2**20 - 1, operation=2**31)
    for count in (0, 1, 33):
        found = drawn(words, start, count, bits, torch.device(device))
        assert here(found).tolist() == words.draws(start, count, bits).tolist()


# -- what is refused ---------------------------------------------------------------------------------------
def test_operands_that_are_no_values_are_refused(device):
    """Whichever operand of a text they are."""
    for fmt, x, named in (
        ("bfloat16", torch.tensor([[1.0, 0.3]]), r"\(0, 1\) = np\.float32\(0\.3\) is no value of bfloat16"),
        ("float32", torch.tensor([1.0]).double() + 2.0**-30, r"\(0,\) = np\.float64.* is no value of float"),
        ("float8_e4m3fn", torch.tensor(np.inf), r"\(\) = np\.float32\(inf\) is no value"),
        ("float32", torch.tensor([2**53 + 1]), r"\(0,\) = np\.int64\(9007199254740993\) is no value"),
        ("int8", torch.tensor([3, 128], dtype=torch.int16), r"\(1,\) = np\.int16\(128\) is no value of int8"),
    ):
        pair, good = both(fmt, device=device), torch.ones_like(x)
        for ar, given in zip(pair, ((x.to(device), good.to(device)), (x.numpy(), good.numpy())), strict=True):
            with pytest.raises(ValueError, match=f"operand element {named}.*bring numbers in with"):
                ar.add(given[0], 1.0)
        for place in range(3):
            operands = [(x if i == place else good).to(device) for i in range(3)]
            with pytest.raises(ValueError, match=f"is no value of {fmt}"):
                pair[0].evaluate(lambda ar, a, b, c: ar.fma(a, b, c), *operands)


@pytest.mark.parametrize("error", devices.REFUSED)
def test_tensors_that_are_refused(error, device):
    """By the CPU's arithmetic on arrays, by that of devices, by native types, and by rounding."""
    x = torch.ones(2, device=device)
    chosen, eager = (both("bfloat16", device=device, kernels=kernels)[0] for kernels in (None, False))
    native = mcf.arithmetic("bfloat16", backend="native", device=device)
    calls = [lambda x: mcf.round_to(x, "bfloat16")] if "meta" not in error else []
    if "numbers" not in error:  # which are of another dtype than its own
        calls.append(lambda y: native.add(x.bfloat16(), y.bfloat16()))
    for ar in (chosen, eager):
        calls += [ar.abs, ar.round, lambda y, ar=ar: ar.add(x, y)]
    for call in calls:
        with pytest.raises(TypeError, match=error):
            call(devices.REFUSED[error](x))


def test_what_else_is_no_tensor_of_values(device):
    """Gradients are only asked for where they are recorded."""
    chosen, eager = (both("bfloat16", device=device, kernels=kernels)[0] for kernels in (None, False))
    for ar in (eager, mcf.arithmetic("bfloat16", backend="native", device=device)):
        with pytest.raises(TypeError, match="type ndarray is neither a tensor"):
            ar.abs(np.zeros(2, np.float32))
    with pytest.raises(TypeError, match="type list is neither a tensor"):
        chosen.add([1.0, 2.0], 1.0)
    x = torch.ones(2, requires_grad=True, device=device)
    with torch.no_grad():
        found = mcf.round_to(x, "bfloat16"), chosen.add(x, 1.0), eager.add(x, 1.0)
    assert not any(y.requires_grad for y in found)


def test_texts_that_are_refused_draw_nothing(device):
    ours, _ = both("bfloat16", "stochastic", device=device)
    x = torch.ones(2, device=device)
    again = mcf.Rounding("stochastic")
    for text, error in (
        (lambda ar, x: ar.add(x, ar.add(0.1, 0.2)), "numbers alone at random"),
        (lambda ar, x: ar.like(mcf.get_format("float16"), again).round(x), "second format"),
        (lambda ar, x: ar.like(mcf.get_format("float64"), mcf.Rounding()).round(x), "whose carrier differs"),
    ):
        with pytest.raises(ValueError, match=error):
            ours.evaluate(text, x)
    with pytest.raises(UnsupportedFormatError, match="no exact path"):
        both("float64", "up", device=device)[0].fma(x.double(), x, 0.1)
    assert ours.random == WORDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "meta"}, "hold no numbers"),
        ({"device": "nonsense"}, "nonsense"),
        ({"device": "cuda:99"}, r"'cuda:99'.*supported: 'cpu'"),
        *(({"threads": 0, "kernels": x}, "threads = 0") for x in (None, True)),
        *(({"kernels": x}, f"kernels must be True, False or None, not {x!r}") for x in (1, "yes", 0.0)),
        ({"rounding": "stochastic", "random": 5}, "random must be RandomWords"),
    ],
    ids=str,
)
def test_options_that_are_refused(options, message):
    with pytest.raises(TypeError if "must be" in message else ValueError, match=message):
        mcf.arithmetic("bfloat16", backend="torch", **options)


def test_a_device_that_divides_by_a_reciprocal_or_flushes_is_refused(monkeypatch):
    functions = dict(torch_calls._FUNCTIONS)

    def flushed(x, y):
        product = torch.mul(x, y)
        return torch.where(torch.abs(product) < 2.0**-126, torch.zeros_like(product), product)

    for verb, wrong in (("div", lambda x, y: torch.mul(x, 1 / y)), ("mul", flushed)):
        torch_calls.check_machine.cache_clear()
        monkeypatch.setattr(torch_calls, "_FUNCTIONS", functions | {verb: wrong})
        with pytest.raises(ValueError, match=f"its {verb} of torch.float32 is not correctly rounded"):
            found_device("cpu")


def test_an_arithmetic_hands_operations_on_to_the_device(device):
    ours, theirs = both("bfloat16", "stochastic", device=device)
    host = mcf.arithmetic("bfloat16", backend="torch")
    ar = host._over(ours)
    assert isinstance(ar, mcf.Arithmetic)
    assert (ar.device, ar.carrier, host.device) == (ours.device, torch.float32, torch.device("cpu"))
    assert repr(ar) == repr(ours).replace("Device", "Torch", 1)
    assert repr(host).startswith("TorchArithmetic(bfloat16")
    x = ar.round(torch.ones(3, 2, device=device) / 3)
    assert here(x).tolist() == theirs.round(np.full((3, 2), 1 / 3, np.float32)).tolist()
    once = ar.like(mcf.get_format("float16"), mcf.Rounding())
    assert here(once.add(x, x)).tolist() == (2 * here(x)).tolist()
    assert ar.on_block(1, 5).random == RandomWords(7, step=1, stream=5).of(1)
