"""Named shapes: as many parameters as the models that were published."""

import math
from dataclasses import replace

import pytest

from mcfsim.models.shapes import SHAPES, Shape, get_shape


@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("gpt-")])
def test_gpt_has_as_many_parameters_as_its_name_says(name):
    """To the two digits of Brown et al., Table 2.1, or three."""
    shape = SHAPES[name]
    assert (
        f"{shape.size / (1e6 if name.endswith('m') else 1e9):.{'0' if name.endswith('m') else '1'}f}"
        == (name.removeprefix("gpt-")[:-1])
    )


@pytest.mark.parametrize(
    ("name", "changed", "published"),
    [
        ("gpt-125m", {"context": 1024}, 124_439_808),  # GPT-2 small
        ("gpt-125m", {"vocabulary": 50272, "context": 2050}, 125_239_296),  # facebook/opt-125m
        ("gpt-1.3b", {"vocabulary": 50272, "context": 2050}, 1_315_758_080),  # facebook/opt-1.3b
        ("openllama-7b", {}, 6_738_415_616),  # openlm-research/open_llama_7b
    ],
)
def test_totals_of_released_models(name, changed, published):
    assert replace(SHAPES[name], **changed).size == published


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_total_in_closed_form(shape):
    d, inner, layers = shape.width, shape.inner, shape.layers
    if shape.gated:
        layer, ends = 4 * d * d + 3 * d * inner + 2 * d, 2 * shape.vocabulary * d + d
    else:
        layer, ends = 12 * d * d + 13 * d, (shape.vocabulary + shape.context + 2) * d
    assert shape.size == layers * layer + ends


def test_every_tensor_is_listed_once():
    shape = Shape("small", 2, 6, vocabulary=11, context=5, inner=24)
    assert len(shape.tensors) == 2 + 2 * 16 + 2
    assert shape.tensors["layer1.inner.down.weight"] == (6, 24)
    assert shape.size == sum(math.prod(extent) for extent in shape.tensors.values())
    gated = replace(shape, gated=True, context=0)
    assert len(gated.tensors) == 1 + 2 * 9 + 2
    assert not any(name.endswith("bias") for name in gated.tensors)


@pytest.mark.parametrize("field", ["layers", "width", "vocabulary", "inner"])
def test_dimensions_that_there_cannot_be(field):
    with pytest.raises(ValueError, match=f"gpt-125m: {field} = 0 must be at least 1"):
        replace(SHAPES["gpt-125m"], **{field: 0})
    with pytest.raises(TypeError, match=f"gpt-125m: {field} must be an int"):
        replace(SHAPES["gpt-125m"], **{field: 2.0})


def test_unknown_names():
    assert get_shape("gpt-6.7b") is SHAPES["gpt-6.7b"]
    with pytest.raises(ValueError, match=r"unknown shape 'gpt6.7b' \(did you mean 'gpt-6.7b'\?\); known"):
        get_shape("gpt6.7b")
