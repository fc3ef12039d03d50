"""Strategies as declarations: what they store, what they refuse, and how scalars enter."""

from dataclasses import replace

import pytest

from mcfsim import FORMATS, GRID_STRATEGIES, STRATEGIES, strategy
from mcfsim.optim.strategies import LOW, Stored
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Rule
from tests.shared.kinds import QUANTISED

FLOAT32 = FORMATS["float32"]

#: Bytes a parameter in bfloat16, and of these such as stay where the low format is another.
BYTES = {
    **{
        "plain": (8, 0),
        "kahan": (10, 0),
        "collage-light": (10, 0),
        "collage-plus": (12, 0),
        "mcf-2": (14, 0),
    },
    **{"mcf-3": (20, 0), "stochastic-parameter": (8, 0), "stochastic": (8, 0), "fp32-optim": (12, 8)},
    **{"eco": (12, 8), "fp32-master": (16, 12), "split-master": (14, None), "split-truncated": (14, None)},
    **{"remainder-8": (13, 9), "remainder-16": (14, 10), "fp8-moments": (10.0625, 6.0625)},
    **{"int8-moments": (10.03125, 6.03125), "coat-moments": (10.1875, 6.1875), "fp32": (16, 16)},
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
