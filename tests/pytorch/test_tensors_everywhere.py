"""Rounding, several components, the meter and the metrics take tensors of any device as they take arrays."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim import convert
from mcfsim.backends.meter import Meter
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, as_array, torch_dtype
from mcfsim.multiword import shewchuk
from mcfsim.training import metrics
from tests.pytorch.devices import WORDS, both, check, here, numbers, of_dtype, operation, there, values

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int32", "int64", "uint64")


# -- round_to -----------------------------------------------------------------------------------------------
def by_device(x, fmt, rounding, *policies, random=None, out=None):
    """Round a tensor of the CPU by what serves for other devices."""
    rounding = mcf.rounding.get_rounding(rounding, *policies)
    return convert._round_on_device(x, mcf.get_format(fmt), rounding, random, out)


def rounded_everywhere(x, *given, **options):
    """Return what `round_to` makes of a tensor, that of a CPU also by what serves for other devices."""
    calls = [mcf.round_to, by_device] if x.device.type == "cpu" else [mcf.round_to]
    found = [call(x, *given, **options) for call in calls]
    assert all(y.device == x.device for y in found)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "given",
    [
        ("bfloat16", "nearest_even"),
        ("float16", "up", "saturate", "flush_before"),
        ("float8_e4m3fn", "stochastic"),
        ("float64", "nearest_even"),
        ("posit16", "to_odd"),
        ("int4", "down", "saturate"),
    ],
    ids=lambda given: given[0],
)
def test_tensors_are_rounded_as_the_arrays_that_they_are(dtype, given, device, assert_same):
    x, array = of_dtype(dtype, device)
    options = {"random": WORDS} if "stochastic" in given else {}
    expected = mcf.round_to(array, *given, **options)
    for found in rounded_everywhere(x, *given, **options):
        assert here(found).dtype == expected.dtype
        assert_same(here(found), expected)


def test_random_words_go_by_the_index_in_row_major_order(device, assert_same):
    """Or are the CPU's, as they are given."""
    x = torch.from_numpy(numbers(1, 60)[0].reshape(3, 4, 5)).permute(2, 0, 1)
    expected = mcf.round_to(x.numpy(), "bfloat16", "stochastic", random=WORDS)
    for found in rounded_everywhere(x.to(device), "bfloat16", "stochastic", random=WORDS):
        assert_same(here(found), expected)
    words = np.random.default_rng(0).integers(0, 2**32, 60, np.uint32).reshape(x.shape)
    expected = mcf.round_to(x.numpy(), "float16", "stochastic", random=words)
    for given in (words, torch.from_numpy(words)):
        assert_same(here(mcf.round_to(x, "float16", "stochastic", random=given)), expected)
    with pytest.raises(TypeError, match=r"drawn there: random=RandomWords\(seed\)"):
        by_device(x, "float16", "stochastic", random=words)


def test_results_go_where_they_are_wanted(device, assert_same):
    x = there(numbers(1)[0].astype(np.float32), device)
    expected, out = mcf.round_to(here(x), "float8_e5m2", "down"), torch.empty_like(x)
    for call in [mcf.round_to] if device != "cpu" else [mcf.round_to, by_device]:
        for into in (out, x.clone()):
            assert call(x, "float8_e5m2", "down", out=into) is into
            assert_same(here(into), expected)
        for wrong in (torch.empty_like(x, dtype=torch.float64), out[1:]):
            with pytest.raises(ValueError, match="out must be"):
                call(x, "float8_e5m2", "down", out=wrong)
    with pytest.raises(TypeError, match="out must be a tensor, as x is, not ndarray"):
        mcf.round_to(x, "float8_e5m2", out=expected)
    with pytest.raises(TypeError, match="out must be an array"):
        mcf.round_to(expected, "float8_e5m2", out=out)


def test_tensors_that_are_not_rounded(device):
    """For more of them see test_torch_kernels."""
    with pytest.raises(UnsupportedFormatError, match=r"beyond 2\*\*53"):
        mcf.round_to(torch.tensor([2**53 + 1], device=device), "float64", "up")
    with pytest.raises((TypeError, ValueError), match=r"random=RandomWords\(seed\)"):
        mcf.round_to(torch.ones(3, device=device), "bfloat16", "stochastic")


@pytest.mark.parametrize("dtype", [d for d in TORCH_DTYPES if d.itemsize <= 2], ids=str)
def test_every_code_of_a_tensor_is_read_as_torch_reads_it(dtype, assert_same):
    codes = torch.arange(2 ** (8 * dtype.itemsize))
    tensor = codes.to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype)
    ar = mcf.arithmetic(TORCH_DTYPES[dtype], backend="torch")
    assert_same(ar.round(tensor).numpy(), tensor.to(torch.float32).numpy())
    assert torch_dtype(TORCH_DTYPES[dtype]) == dtype


# -- components ----------------------------------------------------------------------------------------------
def test_components_are_merged_on_their_device(device, assert_same):
    ours, theirs = both("bfloat16", device=device)
    a, t = values(4, ours, theirs)
    a[:, :5] = t[:, :5] = 1.0  # ties stay in their order
    a[1, :5] = t[1, :5] = -1.0
    for mine, others in (
        (((t[0], t[1]), (t[2].bfloat16(), t[3])), (tuple(a[:2]), tuple(a[2:]))),
        (((t[0],), (0.5,)), ((a[0],), (0.5,))),
    ):
        for one, other in zip(shewchuk.merge(*mine), shewchuk.merge(*others), strict=True):
            assert one.device == t.device
            assert here(one).dtype == other.dtype
            assert_same(here(one), other)
    with pytest.raises(TypeError, match=r"on several devices: .*meta"):
        shewchuk.merge((t[0],), (t[1].to("meta"),))


# -- the meter, and the metrics ------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_the_meter_counts_what_tensors_lose(fmt, device, kernels, assert_same):
    ours, theirs = (Meter(ar) for ar in both(fmt, device=device, kernels=kernels))
    a, t = values(3, ours.arithmetic, theirs.arithmetic)
    if fmt == "bfloat16":
        t = t.bfloat16()  # an operand's dtype is no matter
    for name, count in {"add": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}.items():
        check(assert_same, operation(name), ours, theirs, *t[:count], arrays=a[:count])
    for text in (lambda ar, x, y: ar.mul(x, 0.1), mcf.two_sum):
        check(assert_same, text, ours, theirs, *t[:2], arrays=a[:2])
    assert ours.trace == theirs.trace
    assert ours.tallies == theirs.tallies
    assert ours.tallies["add"].lost > 10 < ours.tallies["mul"].inexact


def test_the_meter_counts_what_integers_and_native_types_lose(device):
    ours, theirs = (Meter(ar) for ar in both("float32", device=device))
    whole = np.array([2**53 + 1, 2**62 + 1, 3])
    theirs.round(whole)
    ours.round(there(whole, device))
    assert ours.tallies == theirs.tallies
    assert ours.tallies["round"].inexact == 2
    native = Meter(mcf.arithmetic("bfloat16", backend="native", device=device))
    x = native.round(torch.tensor([1.0, 256.0], device=device))
    native.add(x, x.flip(0))
    tally = native.tallies["add"]
    assert (tally.calls, tally.elements, tally.inexact, tally.lost) == (1, 2, 2, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_metrics_of_tensors_are_those_of_arrays(dtype, device):
    random, fmt = np.random.default_rng(0), mcf.get_format("bfloat16")
    tensors = [torch.from_numpy(random.standard_normal((20, 10))).to(getattr(torch, dtype)) for _ in range(6)]
    tensors[2][::3] = tensors[3][::3]
    named = ("edq", "normalized_edq", "lost_fraction", "norm_ratio", "cosine", "relative_error")
    named += ("median_ratio", "released_imprecision")

    def measures(x):
        return [
            *(getattr(metrics, name)(*x[:2]) for name in named),
            *(metrics.released_edq(*x[:3]), metrics.residual_norm(x[:3]), metrics.all_finite(*x)),
            metrics.effective_update(x[1:3], x[3:5]).tolist(),
            metrics.ulp_error(*x[:2], fmt).tolist(),
            metrics.measure(x[0], x[1:3], x[3:5], (x[1], x[3]), fmt),
        ]

    found = measures([x.to(device) for x in tensors])
    assert found == measures([as_array(x) for x in tensors])
    assert not any(np.isnan(x) for x in found[-1].values())
    tensors[1][0, 0] = float("nan")
    assert not metrics.all_finite(*tensors)
    assert np.isnan(metrics.edq(*tensors[:2]))
