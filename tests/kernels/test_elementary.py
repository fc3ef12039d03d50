"""Elementary functions and selections, against intervals and fractions of the oracle."""

import re
from decimal import Decimal
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.codec import all_values, encode
from mcfsim.compile.llvm_source import source
from mcfsim.kernels import elementary, function_blocks
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.elementary import FUNCTIONS, function_table, odd_value
from mcfsim.kernels.function_blocks import coarse, residual_value
from mcfsim.oracle import OracleArithmetic, operate, same
from mcfsim.oracle.functions import enclosure
from mcfsim.rounding import DETERMINISTIC, Rounding

SMALL = ("e4m3fn", "e5m2", "posit8", "int8", "e4m3fnuz", "e8m0fnu", "e2m1fn", "binary8p3ue")
LARGE = ("bf16", "fp16", "posit16", "e4m11", "tf32", "float32")
POLICIES = [
    *(Rounding(mode) for mode in DETERMINISTIC),
    Rounding(underflow="flush_inputs"),
    Rounding("up", underflow="flush_after"),
    Rounding("nearest_away", overflow="saturate"),
]


def values(fmt):
    """Return all values of a format, NaN too if it has one."""
    found = all_values(fmt)
    return np.append(found, found.dtype.type(np.nan)) if mcf.get_format(fmt).has_nan else found


def sampled(fmt, count, seed=0):
    """Return values of a format of all sizes, the smallest, the largest, 1 and its neighbours among them."""
    fmt, rng = mcf.get_format(fmt), np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(max(fmt.emin - fmt.precision, -140), min(fmt.emax, 127), count))
    near = rng.normal(size=count) * 8
    ends = [0.0, -0.0, 1.0, float(fmt.max), float(fmt.smallest_subnormal), np.inf, -np.inf, np.nan]
    x = np.concatenate([sizes * rng.choice([-1, 1], count), near, 1 + near * 2.0**-fmt.precision, ends])
    return np.unique(np.asarray(mcf.round_to(x, fmt)))


def judged(name, x, fmt, rounding):
    """Compare an operation on numbers with the oracle."""
    made = getattr(mcf.arithmetic(fmt, **policy(rounding)), name)(x)
    right = np.array([operate(name, [number], mcf.get_format(fmt), rounding) for number in x.tolist()])
    wrong = np.flatnonzero(~same(np.asarray(made, np.float64), right))
    assert not wrong.size, [(x[k], made[k], right[k]) for k in wrong[:3]]


@pytest.mark.parametrize("fmt", ["float32", "tf32", "e8m17"])
@pytest.mark.parametrize("name", ["exp", "log"])
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_what_numpy_decides_of_long_formats_rounds_as_the_value(name, fmt, monkeypatch):
    """Whatever NumPy's last nine bits are: an error of 500 units in its last place changes no result."""
    fmt = mcf.get_format(fmt)
    x = sampled(fmt, 4000).astype(np.float32)
    right = function_blocks.odd_values(name, x, fmt)
    for off in (0, 500, -500):
        shifted = {name: lambda x, off=off: (getattr(np, name)(x).view(np.int64) + off).view(np.float64)}
        monkeypatch.setattr(function_blocks, "_ASKED", shifted)
        for rounding in map(Rounding, DETERMINISTIC):
            ar = mcf.arithmetic(fmt, **policy(rounding))
            needed = fmt.precision + rounding.guard_bits
            with np.errstate(all="ignore"):
                found = function_blocks.decided_values(name, x, fmt, needed)
            np.testing.assert_array_equal(ar.round(found), ar.round(right))
    assert (found != right).mean() > 0.5  # NumPy is asked
    wrong = {name: lambda x: getattr(np, name)(x) * (1 + 2.0**-22)}
    monkeypatch.setattr(function_blocks, "_ASKED", wrong)
    assert (ar.round(function_blocks.decided_values(name, x, fmt, needed)) != ar.round(right)).any()


def policy(rounding):
    return {"rounding": rounding.mode, "overflow": rounding.overflow, "underflow": rounding.underflow}


@pytest.mark.sampled(22, each=False)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("fmt", SMALL)
@pytest.mark.slow
def test_all_values_of_small_formats_round_as_the_oracle_says(fmt, name):
    for rounding in POLICIES:
        if rounding.underflow == "gradual" or type(mcf.get_format(fmt)) is mcf.Format:
            judged(name, values(fmt), fmt, rounding)


@pytest.mark.sampled(8, each=False)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("fmt", LARGE)
def test_values_of_large_formats_round_as_the_oracle_says(fmt, name):
    x = sampled(fmt, 20)
    for mode in ("nearest_even", "up", "toward_zero", "to_odd"):
        judged(name, x, fmt, Rounding(mode))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["exp", "log"])
@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_tables_hold_all_values_rounded_to_odd(fmt, name):
    """The decision of every entry is certain: both ends of an enclosure have the same first 53 bits."""
    x, least = all_values(fmt), 1.0
    table = function_table(name, mcf.get_format(fmt))[encode(x, fmt).astype(int)]
    for number, odd in zip(x.tolist(), table.tolist(), strict=True):
        if not np.isfinite(number) or not number or (name == "log" and (number < 0 or number == 1)):
            continue
        ends = enclosure(name, Fraction(number), 256)
        bits, distance = zip(*map(odd_bits, ends), strict=True)
        assert bits == (odd, odd), (number, odd, bits)
        if abs(number) > 2.0**-40 and 1e-300 < abs(odd) < 1e300:
            least = min(least, *distance)
    assert least > 2.0**-40  # of the 53rd bit: nowhere near what 256 bits leave open


def odd_bits(exact):
    """Return a fraction rounded to odd in binary64, and how far from a number there it is, in ulps."""
    if exact > Fraction(float(np.finfo(float).max)):
        return float(np.finfo(float).max), 1.0
    exponent = max(-1074, len(bin(exact.numerator)) - len(bin(exact.denominator)) - 54)
    scaled = abs(exact) / Fraction(2) ** exponent
    while scaled >= 2**53:
        scaled, exponent = scaled / 2, exponent + 1
    whole = int(scaled)
    rest = scaled - whole
    found = np.ldexp(float(whole | 1), exponent) * (1 if exact > 0 else -1)
    return float(found), float(min(rest, 1 - rest))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.costly("it makes tables of rests")
@pytest.mark.sampled(6, each=False)
def test_rests_are_what_coarse_values_leave(name, monkeypatch):
    """All their bits, also where a value all but is a number of the format."""
    monkeypatch.setattr(mpmath.mp, "prec", 4000)
    for x in sampled("float32", 20).tolist():
        odd = odd_value(name, x)
        base = float(coarse(odd))
        if not (np.isfinite(base) and x and np.isfinite(x)):
            continue
        low, high = enclosure(name, Fraction(x), 2048) if not (name == "log" and x == 1) else (0, 0)
        if name == "erf" and abs(x) > 8:  # of which the oracle says that it is about 1
            tail = mpmath.mp.erfc(min(abs(x), 40.0))
            low = high = (1 - Fraction(int(tail.man)) * Fraction(2) ** int(tail.exp)) * (1 if x > 0 else -1)
        rest = Fraction(residual_value(name, x))
        assert abs(rest - (low - Fraction(base))) <= abs(rest) / 2**50 + Fraction(1, 2**1074), (x, odd)
        assert high - low < Fraction(1, 2**900) or abs(x) > 1


def test_a_function_of_numpy_rounded_once_is_wrong_in_directed_modes():
    """The reason for the tables: exp(tiny) is 1 in binary64, exp(-800) is 0 and exp(800) infinite."""
    x = all_values("bf16")
    x = x[np.isfinite(x)].astype(np.float64)
    wrong = 0
    for mode in ("up", "down", "toward_zero", "to_odd"):
        right = mcf.arithmetic("bf16", mode).exp(x)
        with np.errstate(over="ignore"):
            wrong = max(wrong, int(np.sum(mcf.round_to(np.exp(x), "bf16", mode) != right)))
    assert wrong > 24_000


@pytest.mark.parametrize("name", ["exp", "log1p", "tanh"])
def test_stochastic_results_are_those_of_the_exact_value_for_every_word(name):
    fmt, rounding = mcf.get_format("bf16"), Rounding("stochastic")
    words = np.arange(1 << 16, dtype=np.uint16)

    class Words:
        def of(self, operation):
            return self

        def draws(self, start, count, bits):
            return words[start : start + count]

    for x in (0.3359375, 1.5, 2.0**-10, 5.5):
        low, high = enclosure(name, Fraction(x), 300)
        block = np.full(words.size, x, np.float32)
        made = getattr(BlockArithmetic(fmt, rounding, "exact").at(Words(), 0), name)(block)
        ends = {}
        for exact in (low, high):  # by fractions: between the neighbours, by as many words as the rest has
            below, above = (
                Fraction(operate("add", [exact, 0.0], fmt, Rounding(mode))) for mode in ("down", "up")
            )
            share = (exact - below) / (above - below) * 2**16
            ends[int(share)] = int(np.sum(made == float(above)))
            assert set(np.unique(made).tolist()) <= {float(below), float(above)}
        ((share, ups),) = ends.items()
        assert ups in (share, share + 1)


# -- selections ---------------------------------------------------------------------------------------------
@pytest.mark.costly("all pairs, one by one")
@pytest.mark.sampled(8, each=False)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("fmt", ["e4m3fn", "e4m3fnuz", "int8", "posit8"])
@pytest.mark.exhaustive
def test_extremes_of_all_pairs(fmt, name):
    x = values(fmt)
    a, b = (part.reshape(-1) for part in np.meshgrid(x, x))
    oracle = getattr(OracleArithmetic(mcf.get_format(fmt)), name)
    right = np.array([oracle(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)])
    assert same(np.asarray(getattr(mcf.arithmetic(fmt), name)(a, b), float), right).all()


@pytest.mark.parametrize("fmt", ["e2m1fn", "e5m2", "float32"])
@pytest.mark.slow
def test_choices(fmt):
    x = values(fmt)[::17] if fmt == "e5m2" else sampled(fmt, 2) if fmt == "float32" else values(fmt)
    s, a, b = (part.reshape(-1) for part in np.meshgrid(x, x, x))
    oracle = OracleArithmetic(mcf.get_format(fmt))
    right = np.array([oracle.choose(*case) for case in zip(s.tolist(), a.tolist(), b.tolist(), strict=True)])
    assert same(np.asarray(mcf.arithmetic(fmt).choose(s, a, b), float), right).all()


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.slow
def test_real_scalars_enter_exactly_and_are_rounded_once(mode):
    ar, oracle = mcf.arithmetic("bf16", mode), OracleArithmetic(mcf.get_format("bf16"), Rounding(mode))
    x = sampled("bf16", 12)
    for scalar in (0.3, Fraction(1, 3), -1, 0.0, 1e300, float("nan")):
        for name in ("maximum", "minimum"):
            right = [getattr(oracle, name)(number, scalar) for number in x.tolist()]
            assert same(np.asarray(getattr(ar, name)(x, scalar), float), np.array(right)).all()
        right = [oracle.choose(number, scalar, number) for number in x.tolist()]
        assert same(np.asarray(ar.choose(x, scalar, x), float), np.array(right)).all()
        for name in FUNCTIONS:
            if abs(scalar) < 1e200 or name == "exp":
                made = np.array([getattr(ar, name)(scalar)])
                assert same(made, np.array([getattr(oracle, name)(scalar)])).all(), (name, scalar)


def test_choices_and_scalars_that_have_no_one_meaning_are_refused():
    with pytest.raises(UnsupportedFormatError, match="sign does not compare"):
        mcf.arithmetic("bf16", underflow="flush_after").choose(np.float32([1]), 1.0, 2.0)
    ar = mcf.arithmetic("bf16", "stochastic", random=mcf.RandomWords(0))
    with pytest.raises(UnsupportedFormatError, match="round"):
        ar.maximum(np.float32([1]), 0.3)
    assert ar.maximum(np.float32([1]), 2.0).tolist() == [2.0]
    with pytest.raises(UnsupportedFormatError, match="bits that decide"):
        mcf.arithmetic("float64", "up").exp(np.array([1.0]))


# -- every way to carry them out -----------------------------------------------------------------------------
def function_text(ar, a, b):
    m = ar.maximum(a, b)
    return ar.exp(ar.sub(a, m)), ar.choose(ar.sub(a, b), ar.sin(a), ar.log(ar.abs(b))), ar.minimum(a, 0.3)


@pytest.mark.costly("LLVM compiles a loop with four tables")
@pytest.mark.sampled(5, each=False)
@pytest.mark.parametrize("fmt", ["bf16", "fp16", "e4m3fn"])
@pytest.mark.parametrize("mode", ["nearest_even", "down", "to_odd"])
def test_loops_and_tensors_have_the_same_bits(fmt, mode):
    pytest.importorskip("llvmlite")
    a, b = (np.resize(sampled(fmt, 300, seed), 1500) for seed in (1, 2))
    right = function_text(mcf.arithmetic(fmt, mode, compiled=False), a, b)
    compiled = mcf.arithmetic(fmt, mode, compiled=True).evaluate(function_text, a, b)
    for made, expected in zip(compiled, right, strict=True):
        assert same(made, expected).all()
    torch = pytest.importorskip("torch")
    from mcfsim.backends.torch_device import DeviceArithmetic

    ar = DeviceArithmetic(mcf.get_format(fmt), Rounding(mode), device="cpu")
    for made, expected in zip(ar.evaluate(function_text, *map(torch.from_numpy, (a, b))), right, strict=True):
        assert same(made.numpy(), expected).all()


def test_exact_and_native_arithmetics_have_them():
    exact, native = mcf.arithmetic(None, backend="exact"), mcf.arithmetic("float64", backend="native")
    x = np.array([0.3, 1.7])
    for name in FUNCTIONS:
        assert np.allclose(getattr(exact, name)(x).astype(float), getattr(native, name)(x), 1e-14, 0)
    assert [float(x) for x in exact.choose(np.array([-1.0, 0.0]), 2.0, 3.0)] == [3.0, 2.0]
    assert native.choose(np.array([-1.0, 0.0, np.nan]), 2.0, 3.0).tolist()[:2] == [3.0, 2.0]
    with pytest.raises(ValueError, match="not positive"):
        exact.log(0.0)


# -- files ---------------------------------------------------------------------------------------------------
def test_tables_are_kept_in_files_and_made_anew_where_these_are_damaged(tmp_path, monkeypatch):
    fmt = mcf.get_format("e3m2")
    monkeypatch.setattr(elementary, "_path", lambda name, fmt: tmp_path / "deep" / f"{name}.npz")
    make = partial(function_table.__wrapped__, "exp", fmt)
    first = make()
    (path,) = (tmp_path / "deep").iterdir()
    monkeypatch.setattr(elementary, "_computed", None)
    assert np.array_equal(make(), first, equal_nan=True)  # read, not computed
    monkeypatch.undo()
    monkeypatch.setattr(elementary, "_path", lambda name, fmt: path)
    whole = path.read_bytes()
    for damage in (
        b"",
        whole[:-30],
        whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
    ):
        path.write_bytes(damage)
        assert np.array_equal(make(), first, equal_nan=True)
        assert path.read_bytes() == whole
    assert not first.flags.writeable


def test_a_generated_loop_names_its_table_and_stays_inside_of_it():
    from mcfsim.compile.lowering import lower
    from mcfsim.compile.tracing import trace

    lowered = lower(trace(lambda ar, x: ar.exp(x), "bf16"), (), checked=True)
    text = source(lowered, "a test")
    assert "@loop(ptr %table0, i64 %table0.size, ptr %x0" in text
    (place, last) = re.findall(r"@llvm.umin.i32\(i32 (%v\d+), i32 (%v\d+)\)", text)[0]
    assert f"{last} = trunc i64" in text  # whatever number comes, the place is one of the table
    assert f"{place} = " in text


@pytest.mark.sampled(4, each=False)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_binary64_rounds_to_nearest_as_the_oracle_says(name):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.normal(size=20) * 8, np.exp2(rng.uniform(-200, 9, 20)), [0.0, -0.0, 1.0, 709.9, -745.2]]
    )
    judged(name, x, "float64", Rounding())
    judged(name, np.array([1e300, -1e300, np.inf, -np.inf, np.nan]), "float64", Rounding())
    ar, oracle = mcf.arithmetic("float64"), OracleArithmetic(mcf.get_format("float64"))
    for scalar in (0.3, Fraction(1, 3)):
        assert getattr(ar, name)(scalar) == getattr(oracle, name)(scalar)


@pytest.mark.parametrize("fmt", ["int8", "ternary", "float4_e2m1fn", "float6_e3m2fn"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays_nan_where_it_has_no_code(name, fmt):
    made = getattr(mcf.arithmetic(fmt), name)(np.float32([np.nan, 1.0]))
    assert np.isnan(made).tolist() == [True, False]


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_ends_are_reached_by_numbers_beyond_binary64(name):
    for number in (10**400, Fraction(10**400, 3), Decimal("1e400")):
        for fmt in ("bf16", "float64"):
            assert [getattr(mcf.arithmetic(fmt), name)(x) for x in (number, -number)] == [1.0, -1.0]


@pytest.mark.parametrize(
    "scalar", [Fraction(10**40, 3), Fraction(1, 10**30), Fraction(10**3000), Fraction(10**300, 7)]
)
@pytest.mark.parametrize("name", ["exp", "sin"])
def test_large_and_small_fractions(name, scalar):
    for mode in ("up", "down"):
        made = getattr(mcf.arithmetic("bf16", mode), name)(scalar)
        assert same(
            np.array([made]), np.array([operate(name, [scalar], mcf.get_format("bf16"), Rounding(mode))])
        )
