"""The arithmetic on tensors has the bits of the one on NumPy arrays."""

import numpy as np
import pytest

import mcfsim as mcf

torch = pytest.importorskip("torch")

from mcfsim.backends.tensors import TORCH_DTYPES, as_array, cut, flat, torch_dtype  # noqa: E402
from mcfsim.backends.torch import TorchArithmetic  # noqa: E402
from mcfsim.random import RandomWords  # noqa: E402
from mcfsim.storage.buffers import BLOCK  # noqa: E402

FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float32", "tf32")
ROUNDINGS = ("nearest_even", "toward_zero", "up", "down", "to_odd", "nearest_away", "stochastic")
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "round": 1}


def both(fmt, rounding, **options):
    """Return the arithmetic on tensors, and the one on arrays."""
    words = {"random": RandomWords(7, step=2, stream=5)} if rounding == "stochastic" else {}
    ours = mcf.arithmetic(fmt, rounding, backend="torch", **words, **options)
    return ours, mcf.arithmetic(fmt, rounding, **words)


def numbers(count, size=275, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, size)) * 2.0 ** random.integers(-12, 8, (count, size))
    x[:, :5] = [0.0, -0.0, np.inf, -np.inf, np.nan]
    x[1:] = random.permuted(x[1:], axis=1)
    return x.astype(np.float32)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.sampled(7)
def test_bits_of_every_operation(fmt, rounding, assert_same):
    ours, theirs = both(fmt, rounding, threads=1 + FORMATS.index(fmt) % 2)
    x = numbers(3).reshape(3, 11, 25)
    a = theirs.round(x)
    t = ours.round(torch.from_numpy(x))
    assert t.dtype == ours.carrier
    assert_same(t.numpy(), a)
    for name, count in OPERATIONS.items():
        result = getattr(ours, name)(*t[:count])
        assert_same(result.numpy(), getattr(theirs, name)(*a[:count]), *a[:count])
    turned = ours.mul(*t[:2].transpose(1, 2))  # words go by the index, not by the memory
    assert_same(turned.numpy(), theirs.mul(*a[:2].swapaxes(1, 2)))
    assert_same(ours.mul(t[0], 0.999).numpy(), theirs.mul(a[0], 0.999))
    assert ours.add(0.1, 0.2) == theirs.add(0.1, 0.2)
    for mine, other in zip(mcf.two_sum(ours, *t[:2]), mcf.two_sum(theirs, *a[:2]), strict=True):
        assert_same(mine.numpy(), other)
    assert ours.random == theirs.random


@pytest.mark.parametrize("fmt", ["bfloat16", "posit8"])
def test_a_block_of_a_step_draws_as_numpys_does(fmt, assert_same):
    ours, theirs = (ar.on_block(step=4, start=1000) for ar in both(fmt, "stochastic"))
    x = theirs.round(np.random.default_rng(0).standard_normal(300).astype(theirs.carrier))
    t = ours.round(torch.from_numpy(np.random.default_rng(0).standard_normal(300).astype(theirs.carrier)))
    assert_same(t.numpy(), x)
    for _ in range(3):
        t, x = ours.mul(ours.add(t, 0.1), 1.01), theirs.mul(theirs.add(x, 0.1), 1.01)
        assert_same(t.numpy(), x)
    once = theirs.like(theirs.format, mcf.Rounding())
    assert_same(ours.like(ours.format, mcf.Rounding()).add(t, 0.1).numpy(), once.add(x, 0.1))


def test_a_bfloat16_tensor_draws_too(assert_same):
    ours, theirs = both("bfloat16", "stochastic")
    drawn = ours.mul(torch.ones(1000, dtype=torch.bfloat16), 1 + 2.0**-9)
    assert_same(drawn.numpy(), theirs.mul(np.ones(1000, np.float32), 1 + 2.0**-9))
    assert 0 < int((drawn > 1).sum()) < 1000
    with pytest.raises(TypeError, match="random must be RandomWords"):
        mcf.arithmetic("bfloat16", "stochastic", backend="torch", random=5)


@pytest.mark.parametrize("dtype", [d for d in TORCH_DTYPES if d.itemsize <= 2], ids=str)
def test_every_code_of_a_tensor_is_read_as_torch_reads_it(dtype, assert_same):
    codes = torch.arange(2 ** (8 * dtype.itemsize))
    tensor = codes.to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype)
    ar = TorchArithmetic(TORCH_DTYPES[dtype], mcf.Rounding())
    assert_same(ar.round(tensor).numpy(), tensor.to(torch.float32).numpy())
    assert torch_dtype(TORCH_DTYPES[dtype]) == dtype


def test_views_share_memory():
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16).t()
    array = as_array(tensor)
    assert array.shape == (4, 3)
    flat(tensor)[1:3] = np.array([1.5, 2.5], dtype=np.float32)
    assert tensor[0].tolist() == [0.0, 1.5, 2.5]
    assert array[0].astype(np.float32).tolist() == [0.0, 1.5, 2.5]


def test_shapes_and_nesting():
    ar = mcf.arithmetic("bfloat16", backend="torch")
    a, b = torch.randn(4, 1, 3).bfloat16(), torch.randn(5, 1).bfloat16()
    s, e = mcf.two_sum(ar, a, b)
    assert s.shape == e.shape == (4, 5, 3)
    assert torch.equal(s.double() + e.double(), a.double() + b.double())
    x = mcf.grow(ar, (a, torch.zeros_like(a)), b)
    assert len(x) == 2
    assert ar.add(torch.tensor(1.0), torch.tensor(2.0)).shape == ()
    assert ar.add(torch.zeros(0, 2), 1.0).shape == (0, 2)
    assert ar.round(torch.tensor(0.3)).shape == ()
    assert ar.round(torch.tensor([257])).tolist() == [256.0]
    assert ar.add(256.0, 1.0) == 256.0
    assert isinstance(ar.add(256.0, 1.0), float)
    assert isinstance(ar, mcf.Arithmetic)
    assert repr(ar).startswith("TorchArithmetic(bfloat16")


def test_many_blocks_and_threads(assert_same):
    x = np.random.default_rng(1).standard_normal(100_003)
    expected = mcf.arithmetic("float16").round(x)
    ar = mcf.arithmetic("float16", backend="torch", threads=2)
    t = ar.round(torch.from_numpy(x))
    assert_same(t.numpy(), expected)
    assert_same(ar.mul(t, t).numpy(), mcf.arithmetic("float16").mul(expected, expected))


def test_what_is_refused():
    ar = mcf.arithmetic("bfloat16", backend="torch")
    with pytest.raises(ValueError, match=r"'cuda:99'.*supported: 'cpu'"):
        mcf.arithmetic("bfloat16", backend="torch", device="cuda:99")
    with pytest.raises(TypeError, match="only dense CPU tensors"):
        ar.add(torch.zeros(2, device="meta"), 1.0)
    with pytest.raises(TypeError, match="only dense CPU tensors"):
        ar.add(torch.zeros(2).to_sparse(), 1.0)
    with pytest.raises(TypeError, match="no plain real numbers"):
        ar.add(torch.zeros(2, dtype=torch.complex64), 1.0)
    with pytest.raises(TypeError, match="no array of real numbers"):
        ar.add(torch.zeros(2, dtype=torch.bool), 1.0)
    with pytest.raises(ValueError, match=r"bring numbers in with \.round"):
        ar.add(torch.tensor([0.3]), 1.0)
    with pytest.raises(ValueError, match="no torch dtype holds"):
        torch_dtype(mcf.get_format("e6m9"))


def test_gradients_are_not_lost_silently():
    ar = mcf.arithmetic("bfloat16", backend="torch")
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match=r"detach\(\)"):
        ar.add(weight, 1.0)
    with torch.no_grad():
        assert not ar.add(weight, 1.0).requires_grad


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 5], [BLOCK], [BLOCK + 1, 7, 2 * BLOCK]])
def test_blocks_cover_everything_once(sizes):
    seen = [[] for _ in sizes]
    for pieces in cut(sizes):
        places = np.concatenate([np.arange(place.start, place.stop) for _, _, place in pieces])
        assert places.tolist() == list(range(len(places)))
        assert 0 < len(places) <= BLOCK
        for index, part, place in pieces:
            assert part.stop - part.start == place.stop - place.start
            seen[index] += range(part.start, part.stop)
    assert seen == [list(range(size)) for size in sizes]
