"""Strategies as declarations: what they store, what they refuse, and how scalars enter."""

from dataclasses import replace

import pytest

from mcfsim import FORMATS, GRID_STRATEGIES, STRATEGIES, Strategy, strategy
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.strategies import LOW, Addition, Stored
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Rule
from tests.shared.kinds import QUANTISED

FLOAT32 = FORMATS["float32"]

#: Bytes a parameter in bfloat16, and of these such as stay where the low format is another.
BYTES = {
    "plain": (8, 0),
    "kahan": (10, 0),
    "collage-light": (10, 0),
    "collage-plus": (12, 0),
    "mcf-2": (14, 0),
    "mcf-3": (20, 0),
    "stochastic-parameter": (8, 0),
    "stochastic": (8, 0),
    "fp32-optim": (12, 8),
    "eco": (12, 8),
    "fp32-master": (16, 12),
    "split-master": (14, None),
    "split-truncated": (14, None),
    "remainder-8": (13, 9),
    "remainder-16": (14, 10),
    "fp8-moments": (10.0625, 6.0625),
    "int8-moments": (10.03125, 6.03125),
    "coat-moments": (10.1875, 6.1875),
    "fp32": (16, 16),
    "exact": (None, None),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_the_papers(name):
    size, fixed = BYTES[name]
    found = strategy(name, "bfloat16").bytes_per_parameter
    assert found == size
    assert isinstance(found, float) == (name in QUANTISED)  # where it is no whole number
    lows = ("float16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn")
    for low, bits in zip(lows, (16, 8, 8, 6, 4), strict=True):
        if fixed is not None:
            assert strategy(name, low).bytes_per_parameter == fixed + (size - fixed) * bits / 16


def test_names_are_their_own_and_unknown_ones_list_the_known_ones_and_the_nearest():
    assert set(BYTES) == set(STRATEGIES)
    known = STRATEGIES | GRID_STRATEGIES
    assert len(known) == len(STRATEGIES) + len(GRID_STRATEGIES)
    assert all(declared.name == name for name, declared in known.items())
    assert strategy("kahan", "bf16") == strategy("kahan", FORMATS["bfloat16"]) == strategy("kahan")
    with pytest.raises(ValueError, match=r"unknown strategy 'colage-plus' \(did you mean 'collage-plus'\?\)"):
        strategy("colage-plus")
    with pytest.raises(ValueError, match=f"known strategies: {', '.join([*STRATEGIES, *GRID_STRATEGIES])}$"):
        strategy("xyz")
    with pytest.raises(ValueError, match="unknown format"):
        strategy("plain", "bfloat17")


# -- what is refused -----------------------------------------------------------------------------------------
SHARED, FEEDBACK = Stored(FLOAT32, shared=True), {"m": Stored(LOW, 2), "addition": Addition.FEEDBACK}
UNLIKE = ("float16", "float8_e5m2", "posit16", "float32")
KAHAN, MASTER = {"addition": "kahan", "extra": Stored(LOW)}, {"addition": "master", "extra": Stored(FLOAT32)}
TOGETHER = "extra = None do not go together"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"addition": "kahan"}, TOGETHER),
        ({"addition": "master"}, TOGETHER),
        ({"extra": Stored(LOW)}, "do not go together"),
        ({"addition": "grow", "extra": Stored(LOW)}, "do not go together"),
        ({"parameter": Stored(LOW, 2)}, "needs addition='grow'"),
        ({"beta2_components": 0}, "must be at least 1"),
        ({"beta2_components": 2}, "multiplies no v of 1"),
        ({**KAHAN, "extra": Stored(LOW, 2)}, "extra holds one number an element, not 2"),
        ({**KAHAN, "extra": Stored(FLOAT32)}, "a compensation is in the parameter's format"),
        ({"addition": "add"}, "unknown addition 'add'; allowed: plain, kahan, grow, master, feedback"),
        ({"gradient": Stored(LOW, rounding="up")}, "a gradient has no rounding of its own"),
        ({**KAHAN, "extra": Stored(LOW, rounding="up")}, "a compensation has no rounding of its own"),
        ({**KAHAN, "extra": Stored(LOW, scaled="mxfp8_e4m3")}, "only moments are kept in a scaled"),
        ({"parameter": Stored(LOW, shared=True)}, "only a master copy shares bits with the parameter"),
        ({**KAHAN, "extra": Stored(LOW, shared=True)}, "only a master copy shares bits with the parameter"),
        (
            {**MASTER, "extra": SHARED},
            "rounds nearest_away or toward_zero, which change these bits by one or not at all; not None",
        ),
        (FEEDBACK, "an m of one component"),
        ({"m": Stored(LOW, grid="int8")}, "mine: only the parameter lies on a grid"),
        ({"parameter": Stored(LOW, grid="int8"), **KAHAN}, "needs addition 'plain' or 'master'"),
        ({"parameter": Stored(LOW, grid="int8"), **MASTER, "extra": Stored(FLOAT32, remainder=8)}, "whole"),
        ({**MASTER, "m": Stored(FLOAT32, remainder=8)}, "only a master copy has a remainder, not m"),
    ],
)
def test_declarations_that_contradict_themselves(fields, message):
    with pytest.raises(ValueError, match=message):
        Strategy("mine", **fields)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"components": 0}, ValueError, "components = 0"),
        ({"rounding": "nearest_evn"}, ValueError, r"unknown rounding 'nearest_evn' \(did you mean"),
        ({"rounding": Rounding("up")}, TypeError, "the rounding of a tensor is the name of a mode"),
        ({"format": None, "rounding": "up"}, ValueError, "exact numbers are not rounded"),
        ({"scaled": "mxfp9"}, ValueError, r"unknown scaled format 'mxfp9' \(did you mean"),
        ({"scaled": "mxfp8_e4m3", "components": 2}, ValueError, "keeps one number of a format an element"),
        ({"shared": 1}, TypeError, "shared must be True or False, not 1"),
        ({"remainder": 1}, ValueError, "remainder"),
        ({"remainder": 17}, ValueError, "remainder"),
        ({"remainder": 8.0}, TypeError, "remainder"),
        ({"random_bits": 4}, ValueError, "random_bits: only rounding 'stochastic' of its own .*, not None"),
        ({"rule": "centred", "rounding": "up"}, ValueError, "rule: only rounding 'stochastic' of its own"),
        ({"rounding": "stochastic", "random_bits": 0}, ValueError, "must lie between 1 and 32"),
        ({"rounding": "stochastic", "random_bits": 2.0}, TypeError, "random_bits must be an int"),
        ({"rounding": "stochastic", "rule": "no"}, ValueError, "unknown rule 'no'"),
        ({"format": "float8_e4m3fn", "grid": "int8"}, ValueError, "does not hold the integers of int8"),
        ({"format": "posit16", "grid": "int4"}, ValueError, "floating-point format with NaN, not posit16"),
        ({"components": 2, "grid": "int4"}, ValueError, "one number of a format"),
    ],
)
def test_tensors_that_cannot_be(fields, error, message):
    with pytest.raises(error, match=message):
        Stored(**{"format": LOW, **fields})


def test_formats_and_policies_that_do_not_go_together():
    float64, posit = Stored("float64", shared=True), Stored("posit16")
    for name, low, changes, message in (
        *(("split-master", low, {}, f"codes of {low} are not the leading bits of those") for low in UNLIKE),
        ("split-master", "bfloat16", {"extra": float64}, "not the .* bits .* of float64"),
        ("remainder-8", "bfloat16", {"extra": Stored("float64", remainder=8)}, "lower than float32"),
        ("remainder-8", "bfloat16", {"parameter": Stored(FLOAT32)}, "lower than float32"),
        ("remainder-8", "bfloat16", {"parameter": posit}, "lower than float32"),
        *((name, "posit16", {}, "posit16") for name in ("collage-light", "collage-plus", "mcf-2")),
    ):
        with pytest.raises(UnsupportedFormatError, match=message):
            replace(strategy(name, low), **changes)
    both, bits = Stored(FLOAT32, remainder=8, shared=True), "by overflow 'ieee' and underflow 'gradual' alone"
    for name, message in (("split-master", "not both"), ("remainder-8", "rounds nearest_away")):
        with pytest.raises(ValueError, match=message):
            replace(strategy(name), extra=both)
    for name, policy, message in (
        ("split-master", {"overflow": "saturate"}, bits),
        ("split-master", {"underflow": "flush_after"}, bits),
        ("remainder-8", {"underflow": "flush_after"}, "takes underflow 'gradual' alone, not flush_after"),
    ):
        with pytest.raises(ValueError, match=message):
            strategy(name).roles(**policy)


# -- arithmetics ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", [*Rule, None])
@pytest.mark.parametrize("bits", [1, 3, 16, None])
def test_a_tensor_rounds_with_its_own_bits_and_rule(bits, rule):
    stored = Stored(LOW, rounding="stochastic", random_bits=bits, rule=rule)
    roles = strategy(replace(STRATEGIES["plain"], parameter=stored)).roles(random=RandomWords(3))
    expected = Rounding(Mode.STOCHASTIC, random_bits=bits or 16, rule=rule or Rule.TRUNCATE)
    assert (roles.parameter.rounding, roles.moments.rounding) == (expected, Rounding())
    of_run = Rounding(Mode.STOCHASTIC, random_bits=5, rule="centred")
    roles = strategy(replace(STRATEGIES["plain"], parameter=stored)).roles(of_run, random=RandomWords(3))
    assert roles.parameter.rounding == replace(of_run, random_bits=bits or 5, rule=rule or Rule.CENTRED)


def test_roles_take_the_options_of_arithmetics():
    roles = strategy("fp32-master").roles("toward_zero", scalars="rounded", overflow="saturate")
    for ar in roles:
        assert (ar.rounding.mode, ar.rounding.overflow, ar.scalars) == ("toward_zero", "saturate", "rounded")
    assert strategy("exact").roles(precision=77).moments.precision == 77
