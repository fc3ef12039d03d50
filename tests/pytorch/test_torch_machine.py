"""How PyTorch carries lines out: what it is asked for, what is kept, and what is refused."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mcfsim as mcf
from mcfsim.backends.torch_device import found_device
from mcfsim.compile import torch_calls
from mcfsim.compile.torch_calls import TorchCalls, drawn
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.element.machine import I32, recorded
from mcfsim.random import RandomWords
from tests.pytorch.devices import (
    MODES,
    MOVED,
    OPERATIONS,
    PLAIN,
    WITH_SCALARS,
    WORDS,
    Watched,
    both,
    check,
    here,
    numbers,
    operation,
    there,
    values,
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest_even", "down", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float32", "posit8", "float8_e4m3fnuz"])
@pytest.mark.sampled(6)
def test_pytorch_is_asked_for_plain_operations_alone(fmt, mode, device):
    ours, _ = both(fmt, mode, device=device)
    t = ours.round(there(numbers(3), device))
    with Watched() as seen:
        ours.round(there(numbers(3), device))
        for name in OPERATIONS:
            getattr(ours, name)(*t[: OPERATIONS[name]])
        for text in WITH_SCALARS.values():
            text(ours, t[0], t[1], 0.1)
    assert set(seen.names) <= PLAIN | MOVED
    assert {"add.Tensor", "div.Tensor", "where.self", "view.dtype"} <= set(seen.names)
    assert not seen.faults


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["bfloat16", "tf32", "float16", "posit8"])
@pytest.mark.sampled(4)
def test_nan_with_all_bits_set_stays_nan(fmt, mode, assert_same):
    ours, theirs = both(fmt, mode)
    _, t = values(3, ours, theirs)
    with AllBits():
        for name in ("add", "sub", "mul", "div", "fma"):
            check(assert_same, operation(name), ours, theirs, *t[: OPERATIONS[name]])


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
    for fmt, x, named in (
        ("bfloat16", torch.tensor([[1.0, 0.3]]), r"\(0, 1\) = np\.float32\(0\.3\) is no value of bfloat16"),
        (
            "float32",
            torch.tensor([1.0, 1 + 2.0**-30], dtype=torch.float64),
            r"\(1,\) = np\.float64.* is no value of float32",
        ),
        ("float8_e4m3fn", torch.tensor(np.inf), r"\(\) = np\.float32\(inf\) is no value"),
        ("float32", torch.tensor([2**53 + 1]), r"\(0,\) = np\.int64\(9007199254740993\) is no value"),
        ("int8", torch.tensor([3, 128], dtype=torch.int16), r"\(1,\) = np\.int16\(128\) is no value of int8"),
    ):
        ours, theirs = both(fmt, device=device)
        for ar, given in ((ours, x.to(device)), (theirs, x.numpy())):
            with pytest.raises(ValueError, match=f"operand element {named}.*bring numbers in with"):
                ar.add(given, 1.0)


@pytest.mark.parametrize("kernels", [None, False])
def test_tensors_that_are_refused(kernels, device):
    """By the CPU's arithmetic on arrays, and by that of devices."""
    ours, _ = both("bfloat16", device=device, kernels=kernels)
    for x, error in (
        (torch.zeros(2, device="meta"), "only dense CPU tensors|on device 'meta', and .* computes on"),
        (torch.zeros(2).to_sparse().to(device), "layout torch.sparse_coo"),
        (
            torch.zeros(2, dtype=torch.bool, device=device),
            "no (array|tensor) of real numbers|not hold real numbers",
        ),
        (torch.zeros(2, dtype=torch.complex64, device=device), "no plain real numbers"),
        (torch.zeros(2, requires_grad=True, device=device), r"pass tensor\.detach\(\)"),
    ):
        for call in (ours.abs, ours.round, lambda x: ours.add(torch.zeros(2, device=device), x)):
            with pytest.raises(TypeError, match=error):
                call(x)
    with torch.no_grad():
        assert not ours.add(torch.ones(2, requires_grad=True, device=device), 1.0).requires_grad
    if kernels is False:
        with pytest.raises(TypeError, match="an operand of type ndarray is neither a tensor"):
            ours.abs(np.zeros(2))


def test_texts_that_are_refused_draw_nothing(device):
    ours, _ = both("bfloat16", "stochastic", device=device)
    x = torch.ones(2, device=device)
    again = mcf.Rounding("stochastic")
    for text, error in (
        (lambda ar, x: ar.add(x, ar.add(0.1, 0.2)), "numbers alone at random"),
        (lambda ar, x: ar.like(mcf.get_format("float16"), again).round(x), "second format"),
        (lambda ar, x: ar.like(mcf.get_format("float64"), mcf.Rounding()).round(x), "another dtype"),
    ):
        with pytest.raises(ValueError, match=error):
            ours.evaluate(text, x)
    with pytest.raises(UnsupportedFormatError, match="no exact path"):
        both("float64", "up", device=device)[0].fma(x.double(), x, 0.1)
    assert ours.random == WORDS


@pytest.mark.parametrize(
    ("device", "error"),
    [("meta", "hold no numbers"), ("nonsense", "nonsense"), ("cuda:99", r"'cuda:99'.*supported: 'cpu'")],
)
def test_devices_that_do_not_compute_here(device, error):
    with pytest.raises(ValueError, match=error):
        mcf.arithmetic("bfloat16", backend="torch", device=device)


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
    ar = mcf.arithmetic("bfloat16", backend="torch")._over(ours)
    assert isinstance(ar, mcf.Arithmetic)
    assert (ar.device, ar.carrier) == (ours.device, torch.float32)
    assert repr(ar) == repr(ours).replace("Device", "Torch", 1)
    x = ar.round(torch.ones(3, 2, device=device) / 3)
    assert here(x).tolist() == theirs.round(np.full((3, 2), 1 / 3, np.float32)).tolist()
    once = ar.like(mcf.get_format("float16"), mcf.Rounding())
    assert here(once.add(x, x)).tolist() == (2 * here(x)).tolist()
    assert ar.on_block(1, 5).random == RandomWords(7, step=1, stream=5).of(1)
    host = mcf.arithmetic("bfloat16", backend="torch")
    assert host.device == torch.device("cpu")
    assert repr(host).startswith("TorchArithmetic(bfloat16")
    with pytest.raises(TypeError, match="random must be RandomWords"):
        mcf.arithmetic("bfloat16", "stochastic", backend="torch", random=5)
