"""How large models are: bytes of strategies, and named shapes as published."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from mcfsim.models.memory import SHAPES, Shape, footprint, footprints, get_shape
from mcfsim.optim.strategies import LOW, STRATEGIES, Stored, Strategy, strategy
from tests.shared.kinds import LEADING


@pytest.mark.parametrize("low", ["bfloat16", "float8_e5m2", "float6_e2m3fn"])
def test_the_parts_add_up_to_what_a_strategy_counts(low):
    found, left_out = footprints(low), {"exact", *(() if low == "bfloat16" else LEADING)}
    assert [*found] == [name for name in STRATEGIES if name not in left_out]
    for name, stored in found.items():
        assert stored.total == Fraction(strategy(name, low).bytes_per_parameter)


def test_a_strategy_of_ones_own():
    mine = Strategy("mine", Stored(LOW, 3), m=Stored(LOW, 2), addition="grow").at(strategy("plain").m.format)
    stored = footprint(mine)
    assert (stored.parameter, stored.m, stored.components, stored.total) == (2, 2, 6, 14)
    assert stored.saving(footprint(strategy("fp32-master"))) == Fraction(1, 8)


# -- shapes --------------------------------------------------------------------------------------------------
def test_shapes_have_as_many_parameters_as_published():
    """GPT's to the two digits of Brown et al., Table 2.1, or three; some to the last one."""
    for name, shape in SHAPES.items():
        if name.startswith("gpt-"):
            size = f"{shape.size / 1e6:.0f}m" if name.endswith("m") else f"{shape.size / 1e9:.1f}b"
            assert name == f"gpt-{size}"
    for name, changed, published in (
        ("gpt-125m", {"context": 1024}, 124_439_808),  # GPT-2 small
        ("gpt-125m", {"vocabulary": 50272, "context": 2050}, 125_239_296),  # facebook/opt-125m
        ("gpt-1.3b", {"vocabulary": 50272, "context": 2050}, 1_315_758_080),  # facebook/opt-1.3b
        ("openllama-7b", {}, 6_738_415_616),  # openlm-research/open_llama_7b
    ):
        assert replace(SHAPES[name], **changed).size == published, name


def test_every_tensor_is_listed_once():
    shape = Shape("small", 2, 6, vocabulary=11, context=5, inner=24)
    gated = replace(shape, gated=True, context=0)
    assert [len(item.tensors) for item in (shape, gated)] == [2 + 2 * 16 + 2, 1 + 2 * 9 + 2]
    assert shape.tensors["layer1.inner.down.weight"] == (6, 24)
    assert shape.size == sum(map(math.prod, shape.tensors.values()))
    assert not any(name.endswith("bias") for name in gated.tensors)


def test_shapes_that_there_cannot_be():
    for field in ("layers", "width", "vocabulary", "inner"):
        for x, error, text in ((0, ValueError, "= 0 must be at least 1"), (2.0, TypeError, "must be an int")):
            with pytest.raises(error, match=f"gpt-125m: {field} {text}"):
                replace(SHAPES["gpt-125m"], **{field: x})
    assert get_shape("gpt-6.7b") is SHAPES["gpt-6.7b"]
    with pytest.raises(ValueError, match=r"unknown shape 'gpt6.7b' \(did you mean 'gpt-6.7b'\?\); known"):
        get_shape("gpt6.7b")
