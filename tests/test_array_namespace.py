"""The array API's functions of rounded arrays: sums from left to right, and nothing converted in silence."""

import copy
import pickle
from functools import reduce

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.array_namespace import _CREATING, _CREATING_LIKE, _SHARED

FORMATS = ("bfloat16", "float8_e4m3fn", "float64", "int8")


def some(fmt, shape=(3, 4), seed=0):
    a = mcf.array(np.random.default_rng(seed).standard_normal(shape) * 3, fmt)
    return a, a.__array_namespace__(), mcf.arithmetic(fmt)


def along(values, axis):
    """Return the terms of sums along axes, in turn, as columns."""
    gone = tuple(range(values.ndim)) if axis is None else (axis % values.ndim,)
    kept = [place for place in range(values.ndim) if place not in gone]
    return values.transpose(*gone, *kept).reshape(-1, *(values.shape[place] for place in kept))


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("fmt", FORMATS)
def test_sums_and_products_are_operations_from_left_to_right(fmt, axis, assert_same):
    a, xp, ar = some(fmt)
    terms = [np.atleast_1d(x) for x in along(a.values, axis)]
    for function, name in ((xp.sum, "add"), (xp.prod, "mul")):
        expected = reduce(getattr(ar, name), terms)
        assert_same(function(a, axis=axis).values.ravel(), expected.ravel())
        kept = function(a, axis=axis, keepdims=True).shape
        assert kept == np.sum(a.values, axis=axis, keepdims=True).shape
    if fmt != "int8" or axis is not None:  # where 12 is a number of the format
        mean = ar.div(reduce(ar.add, terms), len(terms))
        assert_same(xp.mean(a, axis=axis).values.ravel(), mean.ravel())


#: Formats without a number that sums of products could be multiplied by, or by way of it.
NO_ONE = (
    mcf.Grid(low=-128, high=127, fraction_bits=8),
    mcf.Format(precision=2, emin=4, emax=20),
    mcf.Format(precision=4, emin=-20, emax=-2),
)


@pytest.mark.parametrize(
    ("fmt", "options"), [*((fmt, {}) for fmt in NO_ONE), ("bfloat16", {"underflow": "flush_inputs"})], ids=str
)
def test_sums_need_no_one_and_flush_operands(fmt, options, assert_same):
    fmt, rng = mcf.get_format(fmt), np.random.default_rng(1)
    a = mcf.array(float(fmt.max) * rng.uniform(-0.3, 0.3, (3, 4)), fmt, **options)
    terms = list(a.values.T)
    assert_same(np.sum(a, axis=1).values, reduce(a.arithmetic.add, terms))
    assert_same(np.mean(a, axis=1).values, a.arithmetic.div(reduce(a.arithmetic.add, terms), 4))
    if options:
        terms = [a.arithmetic.mul(a.values[:, k, None], a.values[None, k]) for k in range(3)]
        assert_same((a[:, :3] @ a).values, reduce(a.arithmetic.add, terms))


@pytest.mark.parametrize("underflow", ["flush_before", "flush_after"])
def test_sums_flush_what_additions_give_and_no_terms(underflow, assert_same):
    ar = mcf.arithmetic("bfloat16", underflow=underflow)
    x = np.float32([[2.0**-130, 0.75 * 2.0**-126, 0.5 * 2.0**-126], [2.0**-130, 2.0**-126, -(2.0**-126)]])
    a = mcf.RoundedArray(x, ar)
    assert_same(np.sum(a[:, :1], axis=1).values, x[:, 0])
    assert_same(np.sum(a, axis=1).values, reduce(ar.add, x.T.copy()))
    assert_same(np.sum(a[:, 1:], axis=1).values, np.float32([1.25 * 2.0**-126, 0]))


def test_sums_and_products_of_matrices_draw_words():
    a = mcf.array(np.full((40, 3), 1 / 3), "bf16", "stochastic", random=mcf.RandomWords(1))
    for made in (lambda: np.sum(a, axis=1), lambda: a @ a.T, lambda: a @ a[0], lambda: a[0] @ a.T):
        one, two = made(), made()
        assert one.shape == two.shape
        assert (one != two).any()
    assert (a[:, :0] @ a[:0]).values.tolist() == np.zeros((40, 3)).tolist()
    with pytest.raises(ValueError, match="mismatch"):
        a @ a


@pytest.mark.parametrize("fmt", FORMATS)
def test_cumulative_forms_keep_every_result(fmt, assert_same):
    a, xp, ar = some(fmt)
    for function, name, begin in ((xp.cumulative_sum, "add", 0.0), (xp.cumulative_prod, "mul", 1.0)):
        found = [a.values[:, 0]]
        for column in a.values.T[1:]:
            found.append(getattr(ar, name)(found[-1], column))
        assert_same(function(a, axis=1).values, np.stack(found, axis=1))
        longer = function(a, axis=1, include_initial=True).values
        assert_same(longer, np.stack([np.full(3, begin), *found], axis=1))
    with pytest.raises(ValueError, match="give axis="):
        xp.cumulative_sum(a)


@pytest.mark.slow
def test_sums_may_be_of_another_format():
    a, xp, _ = some("bfloat16", (400,))
    wide = xp.sum(a, dtype=xp.float32)
    assert wide.format == mcf.get_format("float32")
    assert wide.values == xp.sum(a.astype("float32")).values
    assert xp.sum(a[:0]).values == 0
    assert xp.cumulative_sum(a[:0], dtype=xp.float32).format == xp.cumulative_sum(a, dtype=xp.float32).format
    assert xp.prod(a[:0]).values == 1
    with pytest.raises(TypeError, match="must be a format, not <class 'float'>"):
        xp.sum(a, dtype=float)


def test_every_name_is_there_and_what_arithmetics_lack_is_not():
    a, xp, _ = some("bfloat16")
    for name in {*_SHARED, *_CREATING, *_CREATING_LIKE, *mcf.FORMATS, *(x for x in dir(xp) if x[0] != "_")}:
        assert getattr(xp, name) is not None or name == "newaxis"
    for name in ("pow", "atan2", "var", "std", "linalg", "fft", "conj", "no_such_name"):
        assert not hasattr(xp, name), name
    with pytest.raises(ValueError, match=r"of version 2024\.12, not '2030\.12'"):
        a.__array_namespace__(api_version="2030.12")
    for again in (copy.copy(xp), copy.deepcopy(xp), pickle.loads(pickle.dumps(xp))):
        assert repr(again) == repr(xp) == "<array namespace of bfloat16>"
        assert again.asarray([0.1]).values == xp.asarray([0.1]).values


def test_arrays_that_mix_have_one_namespace():
    arrays = [mcf.array(x, "bfloat16") for x in (1.0, [2.0])]
    others = [mcf.array(1.0, "float16"), mcf.array(1.0, "bfloat16", "up")]
    assert len({x.__array_namespace__() for x in arrays}) == 1
    assert len({x.__array_namespace__() for x in (*arrays, *others)}) == 3
    assert arrays[0].__array_namespace__() != "bfloat16"


def test_what_chooses_or_moves_keeps_values(assert_same):
    a, xp, ar = some("bfloat16")
    values = a.values
    assert_same(xp.where(values > 0, a, 0.1).values, np.where(values > 0, values, ar.round(0.1)))
    clipped = ar.minimum(ar.maximum(values, -1), 0.3)
    for bounds in ((-1, 0.3), {"min": -1, "max": 0.3}, {"a_min": -1, "a_max": 0.3}):
        named = bounds if isinstance(bounds, dict) else {}
        assert_same(xp.clip(a, *(() if named else bounds), **named).values, clipped)
    for name in ("max", "min", "sort", "argsort", "argmax", "count_nonzero", "tril", "matrix_transpose"):
        assert_same(np.asarray(getattr(xp, name)(a)), getattr(np, name)(values))
    assert_same(np.asarray(xp.sort(a, descending=True)), -np.sort(-values))
    assert_same(np.asarray(xp.argsort(mcf.array([1, 1, 2], "int8"), descending=True)), [2, 0, 1])
    assert [x.values.tolist() for x in xp.unstack(a)] == values.tolist()
    for name in ("floor", "ceil", "trunc", "round"):
        assert_same(getattr(xp, name)(a).values, getattr(np, name)(values))
    assert_same(np.around(a).values, np.around(values))
    assert_same(xp.reciprocal(a).values, ar.div(1, values))
    assert_same(xp.copysign(a, -1.0).values, -np.abs(values))
    crossed = [x.values for x in xp.meshgrid(a[0], a[1])]
    for found, expected in zip(crossed, np.meshgrid(values[0], values[1]), strict=True):
        assert_same(found, expected)
    with pytest.raises(ValueError, match="unknown indexing 'yx'; allowed: xy, ij"):
        xp.meshgrid(a[0], a[1], indexing="yx")
    for options in ({"initial": 0.1}, {"out": a}, {"where": values > 0, "initial": 0.1}):
        with pytest.raises(
            TypeError, match="numpy.max of rounded arrays takes no " + ", ".join(sorted(options))
        ):
            xp.max(a, **options)
    with pytest.raises(TypeError, match="to integers alone"):
        xp.round(a, 2)
    with pytest.raises(TypeError, match="truth values"):
        xp.where(a, a, a)


def test_arrays_are_made_of_the_format_or_of_integers(assert_same):
    _, xp, ar = some("bfloat16")
    assert_same(xp.linspace(0, 1, 7).values, ar.round(np.linspace(0, 1, 7)))
    assert_same(xp.arange(0, 1, 0.3).values, ar.round(np.arange(0, 1, 0.3)))
    assert_same(xp.full((2, 2), 0.1).values, np.full((2, 2), ar.round(0.1)))
    for made in (xp.asarray([1, 2]), xp.arange(3), xp.full(2, 5), xp.zeros(2, dtype=xp.int8)):
        assert isinstance(made, np.ndarray)
        assert made.dtype.kind == "i"
    assert xp.asarray([True]).dtype == bool
    ones = xp.ones(2)
    for made in (xp.asarray([0.5]), ones, xp.eye(2), xp.zeros_like(ones), xp.from_dlpack(np.ones(2))):
        assert made.dtype == xp.bfloat16
    assert xp.asarray([0.1], dtype=xp.float8_e5m2).values == mcf.round_to(0.1, "float8_e5m2")
    assert xp.astype(xp.asarray([2.7]), xp.int64).tolist() == [2]
    with pytest.raises(TypeError, match="dtype must be a format, bool or an integer, not float64"):
        xp.asarray([1.0], dtype=float)
    with pytest.raises(ValueError, match="are a copy"):
        xp.asarray([1.0], copy=False)
    with pytest.raises(ValueError, match="on device 'cpu', not 'cuda'"):
        xp.ones(2, device="cuda")


def test_dtypes_are_formats_and_do_not_mix():
    a, xp, _ = some("bfloat16")
    info, about = xp.finfo(a), xp.__array_namespace_info__()
    fmt = mcf.get_format("bfloat16")
    assert (info.bits, info.eps, info.max, info.dtype) == (16, 2.0**-7, float(fmt.max), fmt)
    assert info.smallest_normal == 2.0**-126
    assert xp.iinfo(xp.asarray([1], dtype=xp.int8)).max == 127
    assert xp.isdtype(fmt, "real floating")
    assert xp.isdtype(fmt, ("bool", "numeric"))
    assert not xp.isdtype(fmt, "integral")
    assert xp.isdtype(xp.int8, "integral")
    assert xp.result_type(a, fmt, 1.0) == fmt
    assert xp.result_type(xp.int8, xp.int32) == np.int32
    for others in ((a, xp.float16), (a, xp.int8)):
        with pytest.raises(TypeError, match="do not mix"):
            xp.result_type(*others)
    assert xp.can_cast(fmt, fmt)
    assert not xp.can_cast(fmt, xp.float32)
    assert about.default_dtypes()["real floating"] == fmt
    assert about.dtypes(kind="bool") == {"bool": np.dtype(bool)}
    assert about.dtypes(kind="real floating")["bfloat16"] == fmt
    assert about.devices() == [about.default_device()]
    assert about.capabilities()["boolean indexing"]


@pytest.mark.parametrize(
    ("fmt", "least", "step"),
    [
        *(("int8", -128.0, 1.0), ("float8_e8m0fnu", 2.0**-127, 1.0), ("posit16", -(2.0**56), 2.0**-11)),
        (mcf.Grid(low=0, high=15, fraction_bits=2), 0.0, 0.25),
    ],
    ids=str,
)
def test_what_is_known_of_a_format_holds_for_every_kind(fmt, least, step):
    fmt = mcf.get_format(fmt)
    info = mcf.array([1.0], fmt).__array_namespace__().finfo(fmt)
    assert (info.min, info.max, info.eps) == (least, float(fmt.max), step)


def test_code_of_the_standard_runs_on_a_format():
    """A softmax that knows nothing of formats rounds each operation as the library's own text does."""

    def softmax(x):
        xp = x.__array_namespace__()
        shifted = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return shifted / xp.sum(shifted, axis=-1, keepdims=True)

    a, _, ar = some("bfloat16", (5, 8))
    exps = ar.exp(ar.sub(a.values, a.values.max(axis=1, keepdims=True)))
    total = reduce(ar.add, exps.T)[:, np.newaxis]
    assert np.array_equal(softmax(a).values, ar.div(exps, total))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_are_whole_parts_or_refused(dtype):
    info = np.iinfo(dtype)
    inside = [-0.9, 1.5, 100.0, *([-1.99] if info.min else [])]
    x = mcf.array(inside, "float64")
    xp = x.__array_namespace__()
    for found in (xp.astype(x, dtype), xp.asarray(x, dtype=dtype), np.asarray(x, dtype)):
        assert (found.dtype, found.tolist()) == (np.dtype(dtype), [int(number) for number in inside])
    least, beyond = float(info.min), float(int(info.max) + 1)
    assert np.asarray(mcf.array([least], "float64"), dtype).tolist() == [int(info.min)]
    for wrong in (beyond, least * 2 - 2.0**12, np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=rf"element \(1,\) = .* has no whole part in {np.dtype(dtype)}"):
            xp.astype(mcf.array([1.0, wrong], "float64"), dtype)
