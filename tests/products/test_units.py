"""Matrix units against their definition in fractions, on operands that are hard for them, in every way."""

from dataclasses import replace
from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile.contraction import Contraction
from mcfsim.formats import FORMATS
from mcfsim.products import UNITS, Unit, dot, get_unit, matmul, unit_lines, unit_products
from mcfsim.scaled import Scaled, quantize
from tests.products.units_by_definition import Definition, hostile, to_format, values
from tests.shared.refusals import check, refusals, refused

#: Units of each kind of sums, and of each width.
FEW = ("hopper_fp16", "ada_fp8", "blackwell_mxfp8", "blackwell_nvfp4", "cdna3_bf16", "cdna3_fp8")
OTHERS = ("volta_fp16_to_fp16", "ampere_tf32", "cdna2_bf16_1k", "cdna1_fp32", "hopper_fp64")
MX = {"blackwell_mxfp8": "mxfp8_e4m3", "blackwell_mxfp4": "mxfp4", "blackwell_nvfp4": "nvfp4"}


class Case:
    """Operands of a unit, and their results by its definition."""

    def __init__(self, unit, rows, length, seed, block=None):
        rng = np.random.default_rng(seed)
        self.unit, self.formats = unit, (unit.inputs[0], unit.inputs[seed % len(unit.inputs)])
        given = tuple(FORMATS["float32"] if unit.cut else x for x in self.formats)
        self.a, self.b, self.c = hostile(unit, given, length, rows, rng)
        self.scales = self.block = None
        if unit.scales:
            self.block = block or unit.blocks[-1]
            shape = (rows, -(-length // self.block))
            self.scales = [abs(values(unit.scales[0], rng, shape, rng.choice([2, 300]))) for _ in range(2)]
            for x in self.scales:
                x[rng.random(shape) < 0.02] = np.nan
                x[rng.random(shape) < 0.05] = float(unit.scales[0].smallest_subnormal)
                if unit.scales[0].zero:
                    x[rng.random(shape) < 0.05] = 0.0

    def operands(self):
        """Return the operands as `dot` takes them."""
        if self.scales is not None:
            kind = replace(mcf.get_scaled_format(MX["blackwell_mxfp8"]), block=self.block)
            kind = replace(kind, scale=self.unit.scales[0])
            pairs = zip((self.a, self.b), self.formats, self.scales, strict=True)
            return [Scaled(replace(kind, element=fmt), x, s, None, 1) for x, fmt, s in pairs]
        if self.formats[0] == self.formats[1]:
            return [self.a, self.b]
        pairs = zip((self.a, self.b), self.formats, strict=True)
        return [x.astype(getattr(ml_dtypes, str(fmt))) for x, fmt in pairs]

    def expected(self):
        """Return the results by the definition."""
        definition, found = Definition(self.unit), []
        for row in range(len(self.a)):
            scales = None if self.scales is None else [x[row].tolist() for x in self.scales]
            given = self.a[row].tolist(), self.b[row].tolist(), float(self.c[row])
            found.append(definition.element(*given, self.formats, scales, self.block))
        return np.array(found)

    def wrong(self, unit=None):
        """Return how many results of a unit, by default this one, are not those of the definition."""
        made = np.float64(dot(*self.operands(), unit=unit or self.unit, c=self.c))
        expected = self.expected()
        same = (made == expected) & (np.signbit(made) == np.signbit(expected))
        return int((~(same | (np.isnan(made) & np.isnan(expected)))).sum())


@pytest.fixture
def ways(monkeypatch):
    """Return a function that makes all contractions go one way, compiled or by NumPy."""

    def choose(compiled):
        monkeypatch.setattr(Contraction, "pays", lambda *_: compiled)

    return choose


# -- every unit -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
def test_elements_are_those_of_the_definition(name, ways, assert_same):
    ways(False)
    unit = get_unit(name)
    for seed, length in enumerate((unit.k, 2 * unit.k + max(1, unit.k // 2))):
        case = Case(unit, 30, length, seed)
        made = dot(*case.operands(), unit=name, c=case.c)
        assert_same(np.float64(made), case.expected(), range(30))


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.exhaustive
def test_many_elements_are_those_of_the_definition(name):
    unit = get_unit(name)
    for seed in range(4):
        assert not Case(unit, 300, unit.k * (1 + seed % 3), 100 + seed).wrong()


@pytest.mark.parametrize("name", [*FEW, *OTHERS])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_compiled_loops_give_the_same_as_numpy(name, ways):
    pytest.importorskip("llvmlite")
    unit = get_unit(name)
    case, rng = Case(unit, 40, 2 * unit.k, 3), np.random.default_rng(5)
    columns = rng.permutation(40)
    found = []
    for compiled in (False, True):
        ways(compiled)
        left, right = case.operands()
        if isinstance(right, Scaled):
            turned = Scaled(right.format, right.elements[columns].T, right.scale[columns].T, None, 0)
        else:
            turned = right[columns].T
        c = np.resize(case.c, (40, 40))
        found.append((matmul(left, turned, unit=unit, c=c), dot(left, right, unit=unit, c=case.c)))
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("name", ["blackwell_mxfp4", "blackwell_nvfp4"])
def test_four_bits_take_blocks_of_either_length(name, block):
    assert not Case(get_unit(name), 30, 96, 1, block=block).wrong()


@pytest.mark.slow
def test_own_units_are_those_of_the_definition():
    rng = np.random.default_rng(11)
    for seed in range(6):
        fmt = mcf.Format(precision=int(rng.integers(2, 13)), emin=-int(rng.integers(1, 40)), emax=30)
        output = mcf.Format(precision=int(rng.integers(2, 25)), emin=-int(rng.integers(5, 126)), emax=60)
        rounding = rng.choice(["toward_zero", "nearest_even"])
        k, bits = int(rng.integers(1, 20)), int(rng.integers(2, 40))
        least = [None, int(rng.integers(-252, 20))][seed % 2]
        common = {"k": k, "fraction_bits": bits, "least_exponent": least}
        unit = Unit("own", fmt, output=output, rounding=str(rounding), **common)
        assert not Case(unit, 30, 2 * k, seed).wrong()


@pytest.mark.parametrize("name", ["hopper_fp64", "cdna1_fp32"])
@pytest.mark.slow
def test_fused_sums_are_rounded_once_at_the_ends_of_the_range(name, assert_same):
    unit, rng = get_unit(name), np.random.default_rng(3)
    fmt, rows = unit.output, 1000
    span = fmt.emax - fmt.emin + fmt.precision
    exponents = rng.integers(-span, span, rows)
    a = np.ldexp(1 + rng.integers(0, 8, rows) / 8, np.clip(exponents // 2, fmt.emin, fmt.emax))
    b = np.ldexp(
        1 + rng.integers(0, 2**20, rows) / 2**20, np.clip(exponents - exponents // 2, fmt.emin, fmt.emax)
    )
    b *= rng.choice([-1, 1], rows)
    place = np.clip(
        exponents + rng.integers(-fmt.precision - 3, fmt.precision + 3, rows), fmt.emin - 20, fmt.emax
    )
    c = mcf.round_to(np.ldexp(1 + rng.integers(0, 4, rows) / 4, place) * rng.choice([-1, 1], rows), fmt)
    definition = Definition(unit)
    expected = [
        definition.element([x], [y], z, None)
        for x, y, z in zip(*(x.tolist() for x in (a, b, c)), strict=True)
    ]
    assert_same(np.float64(dot(a[:, None], b[:, None], unit=name, c=c)), np.array(expected), a, b, c)


# -- what the judge catches -------------------------------------------------------------------------------
def mutated(field, by):
    return lambda unit: replace(unit, **{field: by(getattr(unit, field))})


WRONG = {
    "a bit more": mutated("fraction_bits", lambda x: x + 1),
    "a bit less": mutated("fraction_bits", lambda x: x - 1),
    "rounded otherwise": mutated(
        "rounding", lambda x: "nearest_even" if x == "toward_zero" else "toward_zero"
    ),
    "groups half as long": mutated("k", lambda x: x // 2),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", [x for x, unit in UNITS.items() if unit.sums.aligns and not unit.scales])
@pytest.mark.sampled(36, each=False)
@pytest.mark.slow
def test_a_unit_with_other_data_is_caught(name, wrong):
    case = Case(get_unit(name), 200, get_unit(name).k, 5)
    assert not case.wrong()
    assert case.wrong(WRONG[wrong](case.unit))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("hopper_bf16", x) for x in (None, -133)),
        *(("ampere_tf32", x) for x in (-126, -132)),
        ("ada_fp8", -126),
        *(("hopper_fp16_to_fp16", x) for x in (-14, -21)),
    ],
)
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_another_least_exponent_is_caught(name, wrong):
    case = Case(get_unit(name), 400, get_unit(name).k, 6)
    assert not case.wrong()
    assert case.wrong(replace(case.unit, least_exponent=wrong))


def renormalised(unit, left, right, carried):
    """Sum as `aligned`, but by exponents of normalised products."""
    terms = [x * y for x, y in zip(left[: unit.k], right[: unit.k], strict=True)]
    powers = [unit_lines._power(x, -300) for x in terms]
    return unit_lines._with_carried(unit, terms, powers, carried)


TEXTS = {
    "renormalises": ("_GROUPS", unit_lines._GROUPS | {"aligned": renormalised, "floored": renormalised}),
    "rounds terms": ("_NEARLY_HALF", 0.0),
    "takes zeros for small": ("_OF_ZERO", -1000),
    "cuts where it should round down": ("_floor", unit_lines._cut),
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *product(("turing_fp16", "ampere_bf16", "ada_fp8"), list(TEXTS)[:3]),
        *product(("hopper_bf16",), list(TEXTS)[:2]),
        ("cdna3_bf16", "cuts where it should round down"),
    ],
)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_a_text_that_does_otherwise_is_caught(name, wrong, monkeypatch):
    case = Case(get_unit(name), 200, get_unit(name).k, 6)
    monkeypatch.setattr(unit_lines, *TEXTS[wrong])
    kept = unit_lines.group_line, unit_lines.operand_line, unit_products._contraction
    for cache in kept:
        cache.cache_clear()
    try:
        assert case.wrong()
    finally:
        for cache in kept:
            cache.cache_clear()


# -- partial sums, shapes ---------------------------------------------------------------------------------
def partial_sums(case, ranges):
    """Return sums of ranges of products, from zero each, by the definition."""
    definition = Definition(case.unit)
    return [
        [
            definition.element(
                case.a[row, first:last].tolist(), case.b[row, first:last].tolist(), 0.0, case.formats
            )
            for row in range(len(case.a))
        ]
        for first, last in ranges
    ]


@pytest.mark.slow
def test_partial_sums_are_added_in_binary32(assert_same):
    unit = get_unit("hopper_fp8")
    case = Case(unit, 12, 300, 4)
    case.c = np.where(np.isfinite(case.c), case.c, 1.0)
    sums = np.float32(partial_sums(case, [(0, 128), (128, 256), (256, 300)]))
    promoted = partial(dot, *case.operands(), unit=unit, promote_every=128)
    with np.errstate(all="ignore"):
        assert_same(promoted(), (sums[0] + sums[1]) + sums[2])
        assert_same(promoted(c=case.c), ((sums[0] + sums[1]) + sums[2]) + np.float32(case.c))
        # 10 groups of 32 in 3 parts: 4, 4 and 2.
        assert_same(dot(*case.operands(), unit=unit, split_k=3), (sums[0] + sums[1]) + sums[2])
        halves = np.float32(partial_sums(case, [(0, 64), (64, 128), (128, 160)]))
        others = np.float32(partial_sums(case, [(160, 224), (224, 288), (288, 300)]))
        expected = ((halves[0] + halves[1]) + halves[2]) + ((others[0] + others[1]) + others[2])
        assert_same(dot(*case.operands(), unit=unit, split_k=2, promote_every=64), expected)


def test_what_no_unit_adds_is_not_flushed():
    least, flushed = np.float32(2.0**-149), partial(dot, [0.0], [0.0], unit="cdna2_fp16")
    assert flushed(c=least) == 0
    assert flushed(c=least, promote_every=4) == flushed(c=least, split_k=2) == least


def test_deepseek_promotes_because_thirteen_bits_stop_growing():
    ones = np.ones(20000)
    assert dot(ones, ones, unit="hopper_fp8") == 2**14
    assert dot(ones, ones, unit="hopper_fp8", promote_every=128) == len(ones)


def test_shapes_combine_as_in_numpy(assert_same):
    rng = np.random.default_rng(0)
    a, b = (np.float32(rng.integers(-4, 5, shape)) for shape in ((3, 1, 5, 9), (2, 9, 4)))
    given = partial(matmul, unit="ampere_fp16")
    assert_same(given(a, b), a @ b)
    assert_same(given(a, b, threads=2), a @ b)
    assert_same(given(a, b[0]), a @ b[0])
    assert_same(given(a[0, 0, 0], b[0]), a[0, 0, 0] @ b[0])
    assert_same(given(a[0, 0], b[0, :, 0]), a[0, 0] @ b[0, :, 0])
    assert_same(given(a, b, c=np.float32(3)), a @ b + 3)
    assert given(a[0, 0, 0], b[0, :, 0], out_rounding=mcf.Rounding()) == a[0, 0, 0] @ b[0, :, 0]
    assert given(np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0.0] * 3] * 2
    assert given(np.ones((2, 0)), np.ones((0, 3)), c=2.5).tolist() == [[2.5] * 3] * 2
    assert given(np.ones((0, 3)), np.ones((3, 2))).shape == (0, 2)
    large = np.float32(rng.integers(-2, 3, (300, 40))), np.float32(rng.integers(-2, 3, (40, 150)))
    assert_same(given(*large), large[0] @ large[1])
    assert_same(given(*large, threads=2), large[0] @ large[1])


def test_scales_of_whole_tensors_come_last(assert_same):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 100)).astype("f4"), rng.standard_normal((100, 4)).astype("f4")
    left, right = quantize(a, "nvfp4"), quantize(b, "nvfp4", axis=0)
    plain = [replace(x, tensor_scale=1.0) for x in (left, right)]
    by = np.float32(left.tensor_scale) * np.float32(right.tensor_scale)
    made = matmul(left, right, unit="blackwell_nvfp4")
    assert_same(made, matmul(*plain, unit="blackwell_nvfp4") * by)
    assert np.allclose(made, left.dequantize() @ right.dequantize(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "code"),
    [("hopper_fp16", 0x7FFFFFFF), ("hopper_fp16_to_fp16", 0x7FFFE000), ("cdna3_fp16", 0x7FC00000)],
)
def test_nan_has_the_code_of_the_unit(name, code):
    found = dot([np.nan, 1.0], [1.0, 1.0], unit=name)
    assert found.view(np.uint32) == code
    assert np.float64(dot([np.inf], [-0.0], unit="hopper_fp64")).view(np.uint64) == 0x7FF8 << 48


def test_a_nan_of_the_bits_that_tf32_lacks_is_an_infinity():
    codes = np.array([0x7F801FFF, 0xFF800001, 0x7F802000, 0x7FC00001], np.uint32)
    for dtype in ("<f4", ">f4"):
        x = codes.view(np.float32).astype(dtype)[:, np.newaxis]
        found = matmul(x, np.ones((1, 1), np.float32), unit="hopper_tf32")[:, 0]
        assert np.array_equal(found, [np.inf, -np.inf, np.nan, np.nan], equal_nan=True)


def test_formats_of_arrays_decide_where_a_subnormal_number_is_cut():
    # 2^-9 is subnormal in e4m3, with the exponent -6, and normal in e5m2.
    c, x = np.float32(2.0**-27), np.array([2.0**-9])
    kinds = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
    found = [float(dot(x.astype(k), x.astype(k), unit="hopper_fp8", c=c)) for k in kinds]
    assert found == [2.0**-18, 2.0**-18 + 2.0**-27]
    assert [to_format(1, 3, -14, 15, False), to_format(-7, 2, 0, 2, True)] == [1.0, -float("inf")]


def test_what_is_carried_is_cut_at_its_own_exponent():
    # A carried 2^-28 is no number of float16, the format of C, whose least exponent is -14.
    unit = Unit("own", "float16", k=1, fraction_bits=24, output="float32", addend="float16")
    a, b = [2.0**-14 * (1 + 2.0**-10), 2.0**-24], [2.0**-14 * (1 + 2.0**-9), 2.0**-12]
    assert float(dot(a, b, unit=unit)) == a[0] * b[0] + a[1] * b[1]
    assert not Case(unit, 40, 3, 5).wrong()


def test_large_integers_are_taken_if_their_numbers_are():
    given = np.array([2**63, 2**60], np.uint64)
    assert float(dot(given, [1, -8], unit="hopper_bf16")) == 0.0
    assert float(dot(np.array([-(2**63)]), [1], unit="hopper_bf16")) == -(2.0**63)


def test_the_sum_of_no_products_is_that_of_a_group_of_zeros():
    own = Unit("own", "float16", k=4, fraction_bits=20, output="float16", addend="float32")
    for unit, c in product((*map(get_unit, FEW[:2]), *map(get_unit, OTHERS), own), (1 + 2.0**-10, -0.0, 0.5)):
        zeros = np.zeros(unit.k)
        made, of_zeros = dot([], [], unit=unit, c=c), dot(zeros, zeros, unit=unit, c=c)
        assert made.tobytes() == of_zeros.tobytes()
    assert np.isinf(dot([], [], unit=own, c=2.0**100))
    assert float(matmul(np.ones((1, 0)), np.ones((0, 1)), unit="hopper_fp8", c=1 + 2.0**-20)[0, 0]) == 1.0
    none = quantize(np.ones(0, "f4"), "nvfp4")
    assert float(dot(none, none, unit="blackwell_nvfp4")) == 0.0


def test_each_operand_has_its_own_format_of_scales():
    unit = Unit(
        "own", "e4m3fn", k=4, fraction_bits=10, output="float32", scales=("e4m3fn", "e5m2"), blocks=(4,)
    )
    kind = replace(mcf.get_scaled_format("mxfp8_e4m3"), block=4)
    x, wide = np.array([1.0, 0.0, 0.0, 0.0]), replace(kind, scale=FORMATS["float8_e5m2"])
    a = Scaled(wide, x, np.array([2.0**-12]), None, 0)
    b = Scaled(replace(kind, scale=FORMATS["float8_e4m3fn"]), x, np.array([1.0]), None, 0)
    # With the exponent -6 of the least normal number of e4m3fn, c of 2**-18 would be cut off.
    assert float(dot(a, b, unit=unit, c=2.0**-18)) == 2.0**-12 + 2.0**-18


# -- what is refused --------------------------------------------------------------------------------------
ONE, FIVES, ALONE = np.ones(4), np.full(64, 5.0), mcf.Accumulator("float32", block=1)
SCALED = quantize(np.ones((2, 64), "f4"), "mxfp8_e4m3")
NVFP4 = quantize(np.ones(64, "f4"), "nvfp4")


def by(unit="hopper_fp16", **options):
    return partial(dot, unit=unit, **options)


def least(exponent):
    return lambda name: replace(get_unit(name), least_exponent=exponent)


@refusals(
    refused(TypeError, "neither is given", dot, (ONE, ONE)),
    refused(TypeError, "both is given", by(), (ONE, ONE, ALONE)),
    refused(ValueError, r"a\[1\] = 0.1 is no number of float16.*round it first", by(), ([1.0, 0.1], ONE[:2])),
    refused(ValueError, r"b\[0\] = 70000.0 is no", by(), ([1.0], [70000.0])),
    refused(ValueError, "round it first$", by("hopper_tf32"), ([0.1], [1.0])),
    refused(ValueError, "18446744073709551615 is no", by("hopper_fp64"), (np.uint64([2**64 - 1]), [1])),
    refused(TypeError, "a is scaled.*dequantize", dot, (SCALED, ONE, mcf.Accumulator("bf16", block=1))),
    refused(ValueError, r"a\[0\] = inf.*float8_e5m2 are", by("hopper_fp8"), ([np.inf], [1.0])),
    refused(ValueError, r"c\[\] = 0.1 is no number of float16", by("volta_fp16_to_fp16", c=0.1), (ONE, ONE)),
    refused(ValueError, "'hoper_fp16' .did you mean 'hopper_fp16'", by("hoper_fp16"), (ONE, ONE)),
    refused(
        ValueError, "is for aligned sums without scales, not for floored ones", least(-126), "cdna3_fp16"
    ),
    refused(ValueError, "not for scaled ones", least(-126), "blackwell_mxfp8"),
    refused(TypeError, "must be an int", least(1.5), "hopper_fp16"),
    refused(ValueError, "at least -252", least(-253), "hopper_fp16"),
    refused(ValueError, "at most 127", least(128), "hopper_fp16"),
    refused(TypeError, "must be a Unit or a name", by(3), (ONE, ONE)),
    refused(ValueError, "= 100 is no multiple of hopper_fp16's 16", by(promote_every=100), (ONE, ONE)),
    refused(TypeError, "split_k must be an int", by(split_k=2.0), (ONE, ONE)),
    refused(ValueError, "added in binary32", by("hopper_fp64", split_k=2), (ONE, ONE)),
    refused(ValueError, "out_format", by(out_format="bf16"), (ONE, ONE)),
    refused(ValueError, "are for a unit", by(None, split_k=2), (ONE, ONE, ALONE)),
    refused(TypeError, "takes no scales", by(), (SCALED, SCALED)),
    refused(TypeError, "a has no scales; .* takes blocks of 32 of", by("blackwell_mxfp8"), (ONE, ONE)),
    refused(ValueError, "blocks of 32 float8_e4m3fn", by("blackwell_mxfp4"), (SCALED, SCALED)),
    refused(ValueError, "along axis 1, not .* 0", partial(matmul, unit="blackwell_mxfp8"), (SCALED, SCALED)),
    refused(ValueError, "does not broadcast", by(c=np.ones(3)), (ONE, ONE)),
    *(
        refused(ValueError, message, by("blackwell_nvfp4"), (replace(NVFP4, **a), replace(NVFP4, **b)))
        for message, a, b in (
            ("a has the tensor scale 0.1, no number of float32", {"tensor_scale": 0.1}, {}),
            (r"b\[0\] = 5.0 is no number of float4_e2m1fn, which .* first$", {}, {"elements": FIVES}),
            (r"scale of a\[0\] = 0.3 is no number of float8_e4m3fn", {"scale": np.full(4, 0.3)}, {}),
            ("the scale of b is negative somewhere, and .* no sign there", {}, {"scale": -NVFP4.scale}),
        )
    ),
)
def test_calls_that_make_no_sense_are_refused(rows):
    check(rows)


FOUR = {"inputs": "e2m1fn", "sums": "aligned_sums", "k": 16, "blocks": 16}
TWO = {"scales": "e4m3fn", "blocks": 2}
PAIRS = {"sums": "pairwise", "fraction_bits": None, "rounding": "nearest_even"}
OWN = {"name": "own", "inputs": "fp16", "k": 8, "fraction_bits": 24, "output": "fp32"}


@refusals(
    *(
        refused(error, message, lambda x=options: Unit(**{**OWN, **x}), ())
        for error, message, options in (
            (ValueError, "k = 0 must be at least 1", {"k": 0}),
            (TypeError, "fraction_bits must be an int", {"fraction_bits": 2.5}),
            (ValueError, "need fraction_bits", {"fraction_bits": None}),
            (ValueError, "beyond binary64", {"fraction_bits": 48}),
            (ValueError, "float32 is no binary format of 12 bits", {"inputs": "fp32"}),
            (ValueError, "float64 is no binary", {"output": "fp64"}),
            (ValueError, "output: float8_e4m3fn lacks .* infinity", {"output": "e4m3fn"}),
            (ValueError, "at least one", {"inputs": ()}),
            (ValueError, "unknown sums 'tree'", {"sums": "tree"}),
            (ValueError, "rounds toward_zero or", {"rounding": "up"}),
            (ValueError, "align nothing", {"sums": "chain"}),
            (ValueError, "round to nearest_even", {"sums": "chain", "fraction_bits": None}),
            (ValueError, "go together", {"scales": "e8m0fnu"}),
            (ValueError, "do not divide", {"scales": "e8m0fnu", "blocks": (5,)}),
            (ValueError, "posit8", {"inputs": "posit8"}),
            (ValueError, "float32 is no binary format of 1 bits", {"scales": "fp32", "blocks": 8}),
            (ValueError, "scales: posit8 is no", {"inputs": "e4m3fn", "scales": "posit8", "blocks": 8}),
            (ValueError, "8 bits.*has 8 bits.*most 24", {"inputs": "e4m3fn", "scales": "tf32", "blocks": 8}),
            (ValueError, "scales: bfloat16 is no.*of 6 bits", {**FOUR, "scales": ("e4m3fn", "bf16")}),
            (ValueError, "beyond binary64", {"inputs": "e4m3fn", **TWO, "k": 2, "fraction_bits": 46}),
            (ValueError, "k = 1: floored_halves", {"sums": "floored_halves", "k": 1}),
            (ValueError, "k = 3: pairwise .* power of two", {**PAIRS, "k": 3}),
            (TypeError, "inputs must be a sequence of formats, not None", {"inputs": None}),
            (TypeError, "scales must be a sequence of formats, not 3", {"scales": 3}),
            (TypeError, "blocks must be a sequence of lengths, not None", {"blocks": None}),
            (ValueError, "only pairwise ones can flush", {"flush": True}),
            (ValueError, "cut to tf32, not to tf32, float16", {"inputs": ("tf32", "fp16"), "cut": True}),
            (TypeError, "name must be a string, not 3", {"name": 3}),
        )
    )
)
def test_a_unit_that_makes_no_sense_is_refused(rows):
    check(rows)
