"""Rounding, several components, the meter and the metrics take tensors of any device as they take arrays."""

import dataclasses
import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim import convert  # noqa: E402
from mcfsim.backends.meter import Meter  # noqa: E402
from mcfsim.kernels.carriers import UnsupportedFormatError  # noqa: E402
from mcfsim.kernels.tensors import as_array  # noqa: E402
from mcfsim.multiword import double_word, expansion, shewchuk, summation  # noqa: E402
from mcfsim.random import RandomWords  # noqa: E402
from mcfsim.training import metrics  # noqa: E402
from tests.pytorch.devices import WORDS, both, here, numbers, operation, there, values  # noqa: E402

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int32", "int64", "uint64")


def of_dtype(name, device, size=300):
    """Return a tensor of a dtype, and the array that it is."""
    dtype = getattr(torch, name)
    reals = torch.from_numpy(numbers(1, size)[0])
    if not dtype.is_floating_point:
        whole = (
            np.random.default_rng(0).integers(0, 2**63, size, np.uint64)
            >> np.arange(size, dtype=np.uint64) % 64
        )
        reals = torch.from_numpy(whole.astype(name))
    x = reals.to(dtype)
    return x.to(device), as_array(x)


# -- round_to -----------------------------------------------------------------------------------------------
def rounded_everywhere(x, *given, **options):
    """Return what `round_to` makes of a tensor, that of a CPU also by what serves for other devices."""
    found = [mcf.round_to(x, *given, **options)]
    if x.device.type == "cpu":
        fmt, rounding, *policies = given
        policy = mcf.rounding.get_rounding(rounding, *policies)
        words = options.get("random")
        found.append(convert._round_on_device(x, mcf.get_format(fmt), policy, words, None))
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
    x = torch.from_numpy(numbers(1, 60)[0].reshape(3, 4, 5)).permute(2, 0, 1)
    expected = mcf.round_to(x.numpy(), "bfloat16", "stochastic", random=RandomWords(5, stream=2))
    for found in rounded_everywhere(x.to(device), "bfloat16", "stochastic", random=RandomWords(5, stream=2)):
        assert_same(here(found), expected)


def test_words_of_ones_own_are_the_cpus(assert_same):
    x = torch.from_numpy(numbers(1)[0])
    words = np.random.default_rng(0).integers(0, 2**32, 300, np.uint32)
    expected = mcf.round_to(x.numpy(), "float16", "stochastic", random=words)
    for given in (words, torch.from_numpy(words)):
        assert_same(here(mcf.round_to(x, "float16", "stochastic", random=given)), expected)
    with pytest.raises(TypeError, match=r"drawn there: random=RandomWords\(seed\)"):
        convert._round_on_device(x, mcf.get_format("float16"), mcf.Rounding("stochastic"), words, None)


def test_results_go_where_they_are_wanted(device, assert_same):
    x = there(numbers(1)[0].astype(np.float32), device)
    expected = mcf.round_to(here(x), "float8_e5m2", "down")
    out = torch.empty_like(x)
    assert mcf.round_to(x, "float8_e5m2", "down", out=out) is out
    assert_same(here(out), expected)
    for call in [mcf.round_to] if device != "cpu" else [mcf.round_to, by_device]:
        own = x.clone()
        assert call(own, "float8_e5m2", "down", out=own) is own
        assert_same(here(own), expected)
        with pytest.raises(ValueError, match="out must be"):
            call(x, "float8_e5m2", "down", out=torch.empty_like(x, dtype=torch.float64))
        with pytest.raises(ValueError, match="out must be"):
            call(x, "float8_e5m2", "down", out=out[1:])
    with pytest.raises(TypeError, match="out must be a tensor, as x is, not ndarray"):
        mcf.round_to(x, "float8_e5m2", out=expected)
    with pytest.raises(TypeError, match="out must be an array"):
        mcf.round_to(expected, "float8_e5m2", out=out)


def by_device(x, fmt, rounding, *, out):
    return convert._round_on_device(x, mcf.get_format(fmt), mcf.Rounding(rounding), None, out)


def test_tensors_that_are_not_rounded(device):
    x = torch.ones(3, device=device)
    for wrong, error in (
        (x.clone().requires_grad_(), r"pass tensor\.detach\(\)"),
        (x.to_sparse(), "layout torch.sparse_coo"),
        (x.to(torch.complex64), "no plain real numbers"),
        (x.bool(), "does not hold real numbers|no tensor of real numbers"),
    ):
        with pytest.raises(TypeError, match=error):
            mcf.round_to(wrong, "bfloat16")
    with pytest.raises(UnsupportedFormatError, match=r"beyond 2\*\*53"):
        mcf.round_to(torch.tensor([2**53 + 1], device=device), "float64", "up")
    with pytest.raises((TypeError, ValueError), match=r"random=RandomWords\(seed\)"):
        mcf.round_to(x, "bfloat16", "stochastic")
    with torch.no_grad():
        assert not mcf.round_to(x.clone().requires_grad_(), "bfloat16").requires_grad


# -- expansions, double words, sums --------------------------------------------------------------------------
def texts():
    """Return every straight line of several components, with the layout of its operands."""
    found = {}
    for module in (double_word, expansion, shewchuk, summation):
        for name, function in vars(module).items():
            if not hasattr(function, "__wrapped__") or name in ("two_sum", "fast_two_sum", "two_prod_fma"):
                continue
            names = list(inspect.signature(function.__wrapped__).parameters)[1:]
            plain = [x for x in names if x in ("a", "b") or (x == "y" and "_fp" in name)]
            positional = [x for x in names if x not in ("ordered", "k")]
            found[name] = function, tuple(x in plain for x in positional)
    found["sum_k"] = (lambda ar, x: summation.sum_k(ar, x, 3)), (False,)
    return found


TEXTS = texts()


def test_all_of_them_are_found():
    assert {*double_word.__all__} - {"DoubleWord"} <= TEXTS.keys()
    assert {
        "renormalize",
        "grow",
        "scale",
        "mul",
        "div",
        "sqrt",
        "dot2",
        "kahan_sum",
        "vec_sum",
    } <= TEXTS.keys()


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.sampled(12, each=False)
def test_numbers_of_several_components(name, fmt, device, kernels, assert_same):
    text, plain = TEXTS[name]
    ours, theirs = both(fmt, device=device, kernels=kernels)
    a, t = values(4, ours, theirs, size=100)
    ar_operands, operands = [], []
    for place, number in enumerate(plain):
        part = slice(2 * place, 2 * place + (1 if number else 2))
        operands.append(a[part][0] if number else tuple(a[part]))
        ar_operands.append(t[part][0] if number else tuple(t[part]))
    found, expected = text(ours, *ar_operands), text(theirs, *operands)
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert_same(here(one) if isinstance(one, torch.Tensor) else one, other)


def test_components_are_merged_on_their_device(device, assert_same):
    ours, theirs = both("bfloat16", device=device)
    a, t = values(4, ours, theirs)
    a[:, :5] = t[:, :5] = 1.0  # ties stay in their order
    a[1, :5] = t[1, :5] = -1.0
    expected = shewchuk.merge(tuple(a[:2]), tuple(a[2:]))
    found = shewchuk.merge(tuple(t[:2]), (t[2].bfloat16(), t[3]))
    assert all(x.device == t.device and x.dtype == torch.float32 for x in found)
    for one, other in zip(found, expected, strict=True):
        assert_same(here(one), other)
    mixed = shewchuk.merge((t[0],), (0.5,))
    for one, other in zip(mixed, shewchuk.merge((a[0],), (0.5,)), strict=True):
        assert_same(here(one), other)
    with pytest.raises(TypeError, match=r"on several devices: .*meta"):
        shewchuk.merge((t[0],), (t[1].to("meta"),))


# -- the meter, and the metrics ------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_the_meter_counts_what_tensors_lose(fmt, device, kernels, assert_same):
    ours, theirs = (Meter(ar) for ar in both(fmt, device=device, kernels=kernels))
    a = theirs.arithmetic.round(numbers(3))
    t = there(a, device)
    if fmt == "bfloat16":
        t = t.bfloat16()  # an operand's dtype is no matter
    for meter, x in ((ours, t), (theirs, a)):
        for name in ("add", "mul", "div", "fma", "sqrt"):
            operation(name)(meter, *x[: {"fma": 3, "sqrt": 1}.get(name, 2)])
        meter.mul(x[0], 0.1)
    found, expected = mcf.two_sum(ours, t[0], t[1]), mcf.two_sum(theirs, a[0], a[1])
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == device
        assert_same(here(one), other)
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
    tally = dataclasses.asdict(native.tallies["add"])
    assert {key: tally[key] for key in ("calls", "elements", "inexact", "lost")} == {
        **{"calls": 1, "elements": 2, "inexact": 2, "lost": 2}
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_metrics_of_tensors_are_those_of_arrays(dtype, device):
    random = np.random.default_rng(0)
    tensors = [torch.from_numpy(random.standard_normal((20, 10))).to(getattr(torch, dtype)) for _ in range(6)]
    tensors[2][::3] = tensors[3][::3]
    arrays = [as_array(x) for x in tensors]
    d, e, *_ = moved = [x.to(device) for x in tensors]
    for measure in (
        *(metrics.edq, metrics.normalized_edq, metrics.lost_fraction, metrics.norm_ratio, metrics.cosine),
        *(metrics.relative_error, metrics.median_ratio, metrics.released_imprecision),
    ):
        assert measure(d, e) == measure(*arrays[:2])
    assert metrics.released_edq(*moved[:3]) == metrics.released_edq(*arrays[:3])
    assert metrics.residual_norm(moved[:3]) == metrics.residual_norm(arrays[:3])
    assert metrics.effective_update(moved[1:3], moved[3:5]).tolist() == (
        metrics.effective_update(arrays[1:3], arrays[3:5]).tolist()
    )
    assert metrics.ulp_error(d, e, "bfloat16").tolist() == metrics.ulp_error(*arrays[:2], "bfloat16").tolist()
    fmt = mcf.get_format("bfloat16")
    found, expected = (metrics.measure(x[0], x[1:3], x[3:5], (x[1], x[3]), fmt) for x in (moved, arrays))
    assert found == expected
    assert not any(np.isnan(x) for x in found.values())
    assert metrics.all_finite(d, e)
    moved[1][0, 0] = float("nan")
    assert not metrics.all_finite(*moved)
    assert np.isnan(metrics.edq(*moved[:2]))
