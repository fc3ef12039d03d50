"""AdamW with PyTorch's rounding points, also with amsgrad: the bits of `torch.optim.AdamW`, and no others."""

import inspect
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from mcfsim.optim import torchadamw
from mcfsim.torch import AMSGrad, TorchAdamW, TorchAMSGrad
from tests.pytorch.runs import RightRoots, fused, listed

pytestmark = fused
#: dtype, strategy and low format.
STORED = {"float32": ("fp32", "bfloat16"), "bfloat16": ("plain", "bfloat16"), "float16": ("plain", "float16")}
#: betas, epsilon, decay: the last two with w = 1 - beta1 of 1/2 or more.
HYPERS = [
    *(((0.9, 0.999), 1e-6, 0.01), ((0.95, 0.95), 1e-3, 0.1)),
    *(((0.5, 0.9), 1e-5, 0.0), ((0.125, 0.5), 1e-4, 0.3)),
]
every_dtype = pytest.mark.parametrize("dtype", STORED)
few_or_all = pytest.mark.parametrize(
    "hypers", [HYPERS[::3], pytest.param(HYPERS, marks=pytest.mark.exhaustive)]
)


def bits(x):
    """Return a tensor's bits, with one pattern for NaN."""
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    return torch.where(x.isnan(), torch.iinfo(kind).max, x.detach().contiguous().view(kind))


def numbers(random, size):
    """Return numbers of many magnitudes, zeros and subnormal ones; the last four at times huge or NaN."""
    x = random.standard_normal(size) * 2.0 ** random.integers(-30, 4, size)
    for special in (0.0, -0.0, 1e-40, -3e-45, 6e-8):
        x[random.integers(size)] = special
    if not random.integers(20):
        x[-4:] = random.permutation([1e15, -1e25, 3e38, math.nan])[:size]
    return x


def pair(dtype, hypers=HYPERS, sizes=(60,), kind=TorchAdamW):
    """Return PyTorch's optimizer and ours, and their parameters: the same; large ones lie by columns."""
    (strategy, low), random = STORED[dtype], np.random.default_rng(5)
    groups = []
    for betas, epsilon, decay in hypers:
        start = [torch.from_numpy(numbers(random, size)).to(getattr(torch, dtype)) for size in sizes]
        start = [torch.where(x.isfinite(), x, 1.0) for x in start]
        start = [x.view(21, -1).t() if len(x) > 100 else x for x in start]
        both = [[torch.nn.Parameter(x.clone()) for x in start] for _ in range(2)]
        groups.append([{"params": x, "betas": betas, "eps": epsilon, "weight_decay": decay} for x in both])
    theirs, ours = zip(*groups, strict=True)
    amsgrad = kind is not TorchAdamW
    their = torch.optim.AdamW(theirs, foreach=False, fused=False, amsgrad=amsgrad)
    our = kind(ours, strategy=strategy, low=low)
    return (their, listed(their)), (our, listed(our))


def rate(step):
    """Return the rate of a step: none that a low format holds, and at times zero."""
    return 1e-2 * max(0.0, math.sin(step / 9)) + (1e-4 if step % 10 else 0.0)


def give(random, *all_of_them):
    """Give the same gradients to parameters of both, of which one is left out at times."""
    for place, together in enumerate(zip(*all_of_them, strict=True)):
        gradient = torch.from_numpy(numbers(random, together[0].numel())).to(together[0].dtype)
        left_out = place == 0 and random.integers(9) == 0
        for p in together:
            p.grad = None if left_out else gradient.view(p.shape).clone()


def run(theirs, ours, steps, roots, seed=1):
    """Train both, and yield after each step the names and tensors that should be equal."""
    (their, moved), (our, others) = theirs, ours
    random = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        give(random, moved, others)
        for group in their.param_groups + our.param_groups:
            group["lr"] = rate(step)
        with roots:
            their.step()
        our.step()
        for p, q in zip(moved, others, strict=True):
            one, two = their.state[p], our.state[q]
            if one:
                v = [one[name] for name in ("exp_avg_sq", "max_exp_avg_sq") if name in one]
                v = v[0] if len(v) == 1 else torch.cat([x.reshape(-1) for x in v])
                yield step, (p, q), (one["exp_avg"], two["m"]), (v, two["v"])


def assert_equal(step, *pairs, names=("parameter", "m", "v")):
    for name, (one, two) in zip(names, pairs, strict=True):
        wrong = (bits(one) != bits(two)).nonzero()
        assert not len(wrong), (step, name, len(wrong), one.flatten()[wrong[0]], two.flatten()[wrong[0]])


def assert_all_equal(steps):
    """Compare all steps; return the number of those in which something moved, and of the last of them."""
    count = last = 0
    for last, *pairs in steps:
        assert_equal(last, *pairs)
        count += 1
    return count, last


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_thousand_steps_have_the_bits_of_pytorch(dtype):
    count, last = assert_all_equal(run(*pair(dtype, HYPERS[:1]), 1000, RightRoots()))
    assert count > 800
    assert last == 1000


#: With ends of vectors, too few for one of 4, 8, 16 or 32, and what lies by columns.
ENDS = (60, 1, 3, 7, 15, 17, 31, 33, 47, 63, 65, 70, 33 * 21)


@pytest.mark.slow
@every_dtype
@few_or_all
@pytest.mark.sampled(3, each=False)
def test_groups_of_other_hyperparameters_have_the_bits_of_pytorch(dtype, hypers):
    assert assert_all_equal(run(*pair(dtype, hypers, ENDS), 31, RightRoots(), seed=2))[1] == 31


@every_dtype
@pytest.mark.parametrize(
    ("hypers", "sizes"), [(HYPERS[::3], (60, 7)), pytest.param(HYPERS, ENDS, marks=pytest.mark.exhaustive)]
)
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_steps_by_the_largest_moment_have_the_bits_of_pytorch(dtype, hypers, sizes):
    """With amsgrad; often the largest is an older one. At other points the bits are others."""
    older = count = 0
    for step, *pairs in run(*pair(dtype, hypers, sizes, TorchAMSGrad), 31, RightRoots(), seed=3):
        assert_equal(step, *pairs)
        v, largest = pairs[2][0].chunk(2)
        older, count = older + int((largest > v).sum()), count + v.numel()
    assert older > count / 4
    with pytest.raises(AssertionError, match=r"parameter|'m'|'v'"):
        assert_all_equal(run(*pair(dtype, HYPERS[:1], kind=AMSGrad), 31, RightRoots(), seed=3))


@pytest.mark.slow
@every_dtype
@few_or_all
def test_only_pytorch_s_own_roots_are_others(dtype, hypers):
    """Moments take no roots, and a parameter has other bits only where some root so far was a wrong one."""
    theirs, ours = pair(dtype, hypers)
    wrong = {id(p): torch.zeros(p.numel(), dtype=torch.bool) for p in theirs[1]}
    for step, (p, q), *moments in run(theirs, ours, 25, nullcontext()):
        assert_equal(step, *moments, names=("m", "v"))
        v = moments[1][0]
        with RightRoots():
            right = v.sqrt()
        wrong[id(p)] |= bits(v.sqrt()) != bits(right)
        if dtype != "float32":
            assert not wrong[id(p)].any()
        assert not ((bits(p) != bits(q)) & ~wrong[id(p)]).any()


def test_without_beta1_the_end_of_a_vector_has_zeros_of_another_sign():
    """PyTorch's last elements, too few for a vector, take 1 - w for w - 1: the only difference."""
    theirs, ours = (torch.nn.Parameter(torch.ones(33)) for _ in range(2))
    their = torch.optim.AdamW([theirs], betas=(0.0, 0.9), foreach=False, fused=False)
    our = TorchAdamW([ours], betas=(0.0, 0.9), strategy="fp32")
    for p, optimizer in ((theirs, their), (ours, our)):
        p.grad = torch.full((33,), -0.0)
        optimizer.step()
    assert their.state[theirs]["exp_avg"].signbit().tolist() == [True] * 32 + [False]
    assert our.state[ours]["m"].signbit().all()
    assert bits(theirs).equal(bits(ours))


#: For which dtypes another text has other rounding points: what is altered, and what it becomes.
BOTH, LONG, SHORT = ("float32", "bfloat16"), ("float32",), ("bfloat16",)
MOMENT = "wide.fma(apart, near, first) if"
LERP = "(lerp(ar, m[0], gradient, scalars.near, scalars.far),)"
QUOTIENT = "return asking.div(scaled, converted(asking, denominator, wide))"
ALTERED = {
    "m by a product and an fma": (BOTH, LERP, f"{LERP} if not scalars.near else (converted(ar, inner(ar).fma("
        "converted(inner(ar), gradient, ar), scalars.near, inner(ar).mul(converted(inner(ar), m[0], ar), "
        "scalars.beta1)), inner(ar)),)"),
    "m by two roundings": (LONG, MOMENT, "wide.add(wide.mul(apart, near), first) if"),
    "m from its own end alone": (LONG, "return (weight, 0.0) if weight < 0.5 else (0.0, weight - 1.0)",
        "return weight, 0.0 if weight < 0.5 else weight - 1.0"),
    "w not rounded": (LONG, "of_m(given.gain1)", "given.gain1"),
    "v decayed and moved at once": (SHORT,
        "converted(ar, wide.mul(converted(wide, v, ar), beta), wide)",
        "wide.mul(converted(wide, v, ar), beta)"),
    "the gradient squared first": (LONG, "wide.fma(wide.mul(g, gain), g, ",
        "wide.fma(wide.mul(g, g), gain, "),
    "v by two roundings": (LONG, "wide.fma(wide.mul(g, gain), g, converted(wide, shrunk, ar))",
        "wide.add(wide.mul(wide.mul(g, gain), g), converted(wide, shrunk, ar))"),
    "beta2 not rounded": (LONG, "of_v(given.beta2)", "given.beta2"),
    "1 - beta2 not rounded": (LONG, "of_v(given.gain2)", "given.gain2"),
    "the root taken of the corrected v": (BOTH,
        "root = stored(second, wide.sqrt(converted(wide, v[0], second)))",
        "root = wide.div(stored(second, wide.sqrt(wide.div(converted(wide, v[0], second), scalars.root2 * "
        "scalars.root2))), 1 / scalars.root2)"),
    "the root not stored": (SHORT, "stored(second, wide.sqrt(", "(wide.sqrt("),
    "the corrected root not stored": (SHORT, "stored(second, wide.div(root", "(wide.div(root"),
    "the denominator not stored": (SHORT, "stored(second, wide.add(", "(wide.add("),
    "epsilon in binary32": (SHORT, "let_in(roles.second_moment)(", "of_v("),
    "the correction's root not rounded": (LONG, "of_v(given.correction2**0.5)", "given.correction2**0.5"),
    "the quotient scaled last": (LONG, QUOTIENT,
        "return asking.mul(asking.div(converted(asking, m[0], up), denominator), -scalars.size)"),
    "the quotient stored": (SHORT, QUOTIENT,
        "return asking.round(up.round(asking.div(scaled, converted(asking, denominator, wide))))"),
    "the decay in the update": (BOTH, "(Addition.KAHAN, Addition.GROW)", "tuple(Addition)"),
    "the decayed parameter not stored": (SHORT, "stored(ar, wide.mul(theta, scalars.kept))",
        "wide.mul(theta, scalars.kept)"),
    "1 - lr lambda not rounded": (LONG, "of_parameter(1.0 - decay)", "1.0 - decay"),
    "corrected rate not rounded": (LONG, "of_update(rate / given.correction1)", "rate / given.correction1"),
}  # fmt: skip


def altered(old, new):
    text = inspect.getsource(torchadamw)
    assert text.count(old) == 1, old
    module = type(torchadamw)(torchadamw.__name__)
    exec(compile(text.replace(old, new), "altered", "exec"), vars(module))
    return module


@pytest.mark.usefixtures("few_steps")
@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
@pytest.mark.parametrize(("name", "dtype"), [(name, x) for name, item in ALTERED.items() for x in item[0]])
def test_no_other_rounding_point_has_the_bits_of_pytorch(name, dtype, monkeypatch):
    _, old, new = ALTERED[name]
    monkeypatch.setattr(TorchAdamW, "_declaration", altered(old, new).TorchAdamW)
    with pytest.raises(AssertionError, match=r"parameter|'m'|'v'"):
        assert_all_equal(run(*pair(dtype), 60, RightRoots()))
