"""What the tests of the arithmetic on PyTorch's devices share: it beside NumPy's, and operands on both."""

import re
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mcfsim as mcf
from mcfsim.backends.torch import TorchArithmetic
from mcfsim.backends.torch_device import DeviceArithmetic
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.torch_tensors import as_array
from mcfsim.random import RandomWords

FORMATS = (
    *("bfloat16", "float16", "tf32", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    *("posit8", "int8"),
)
MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd", "stochastic")
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "sign": 1}
WORDS = RandomWords(7, step=2, stream=5)
WITH_SCALARS = {
    "x + s": lambda ar, x, y, s: ar.add(x, s),
    "s - x": lambda ar, x, y, s: ar.sub(s, x),
    "x s": lambda ar, x, y, s: ar.mul(x, s),
    "x / s": lambda ar, x, y, s: ar.div(x, s),
    "s / x": lambda ar, x, y, s: ar.div(s, x),
    "x s + y": lambda ar, x, y, s: ar.fma(x, s, y),
    "x y + s": lambda ar, x, y, s: ar.fma(x, y, s),
}


def both(fmt, rounding="nearest_even", *policies, device="cpu", kernels=False, **options):
    """Return the arithmetic on a device, by kernels alone, without any, or as users get it; and NumPy's."""
    drawn = {"random": WORDS} if "stochastic" in str(rounding) else {}
    theirs = mcf.arithmetic(fmt, rounding, *policies, **options, **drawn)
    kind = TorchArithmetic if kernels is None else DeviceArithmetic
    options |= {"device": device, "kernels": kernels, **drawn}
    return kind(theirs.format, theirs.rounding, **options), theirs


def or_eager(arithmetic):
    """Let an arithmetic by kernels fall back on PyTorch's operations, as one does that is free to choose."""
    if arithmetic.kernels:
        arithmetic._how = None
    return arithmetic


def numbers(count, size=300, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, size)) * 2.0 ** random.integers(-40, 40, (count, size))
    x[:, ::3] = random.standard_normal(x[:, ::3].shape)
    x[:, :9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-126, -(2.0**-140), 2.0**-149, 3e38]
    x[1:] = random.permuted(x[1:], axis=1)
    return x


def there(array, device):
    return torch.from_numpy(np.array(array)).to(device)


def here(tensor):
    return tensor.cpu().numpy()


def values(count, ours, theirs, size=300):
    """Return arrays of values and the same on the device; neither arithmetic has drawn for them."""
    a = theirs.like(theirs.format, mcf.Rounding()).round(numbers(count, size)).astype(theirs.carrier)
    return a, there(a, ours.device)


def integers(name, size):
    """Return whole numbers of all sizes that a dtype has, its ends among them."""
    limits = np.iinfo(name)
    x = np.random.default_rng(0).integers(0, 2**63, size, np.uint64) >> np.arange(size, dtype=np.uint64) % 64
    x = x.astype(name)
    x[:6] = limits.min, limits.max, limits.max // 2 + 1, limits.min // 2, 0, 3
    return x


def of_dtype(name, device, size=300):
    """Return a tensor of a dtype, of a byte all its codes, and the array that it is."""
    dtype = getattr(torch, name)
    if not dtype.is_floating_point:
        x = torch.from_numpy(integers(name, size))
    elif dtype.itemsize == 1:
        x = torch.arange(256).to(torch.uint8).view(dtype)
    else:
        x = torch.from_numpy(numbers(1, size)[0]).to(dtype)
    return x.to(device), as_array(x)


def check(assert_same, operation, ours, theirs, *operands, arrays=None):
    """Assert that both arithmetics give the same, or refuse it in the same words."""
    if arrays is None:
        arrays = [here(x) if isinstance(x, torch.Tensor) else x for x in operands]
    try:
        expected = operation(theirs, *arrays)
    except UnsupportedFormatError as error:
        with pytest.raises(UnsupportedFormatError, match=re.escape(str(error))):
            operation(ours, *operands)
        return
    found = operation(ours, *operands)
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    places = {x.device.type for x in operands if isinstance(x, torch.Tensor)}
    for one, other in zip(found, expected, strict=True):
        assert not isinstance(one, torch.Tensor) or {one.device.type} == places
        assert_same(here(one) if isinstance(one, torch.Tensor) else one, other)


#: Tensors that no arithmetic takes: what is said, and what is done to one of 32-bit numbers on some device.
REFUSED = {
    "only dense CPU tensors|on device 'meta', and .* computes on|lies on device 'meta'": lambda x: x.to(
        "meta"
    ),
    "layout torch.sparse_coo": lambda x: x.to_sparse(),
    "no (array|tensor) of real numbers|not hold real numbers": lambda x: x.bool(),
    "no plain real numbers": lambda x: x.to(torch.complex64),
    r"pass tensor\.detach\(\)": lambda x: x.clone().requires_grad_(),
}


def operation(name):
    return lambda ar, *operands: getattr(ar, name)(*operands)


#: What computes, and what makes, moves and shapes tensors.
PLAIN = {
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "sqrt.default", "neg.default", "abs.default"),
    *("lt.Tensor", "le.Tensor", "eq.Tensor", "bitwise_not.default", "where.self", "any.default"),
    *(f"bitwise_{name}.Tensor" for name in ("and", "or", "xor", "left_shift", "right_shift")),
}
MOVED = {
    *("empty.memory_format", "new_empty.default", "zeros.default", "full.default", "arange.start"),
    *("_to_copy.default", "copy_.default", "stack.default", "detach.default", "_local_scalar_dense.default"),
    *("view.dtype", "view.default", "expand.default", "slice.Tensor", "select.int", "unbind.int"),
    "lift_fresh.default",
}


class Watched(TorchDispatchMode):
    """Notes the operations that PyTorch is asked for, and how many of their results are alive at once."""

    def __init__(self):
        super().__init__()
        self.names, self.most, self.faults = [], 0, []
        self._alive = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        self.names.append(name)
        if name in PLAIN:
            tensors = [x for x in args if isinstance(x, torch.Tensor)]
            values = tensors[1:] if name == "where.self" else tensors
            if kwargs or len(tensors) != len(args) or len({x.dtype for x in values}) != 1:
                self.faults.append((name, args, kwargs))
        target = (kwargs or {}).get("dtype")
        if name == "_to_copy.default" and args[0].dtype == torch.float64 and target is not None:
            self.faults += [args] if target.is_floating_point and target.itemsize < 4 else []
        result = function(*args, **(kwargs or {}))
        if name in PLAIN and result.ndim:
            self._alive.add(result)
            self.most = max(self.most, len(self._alive))
        return result
