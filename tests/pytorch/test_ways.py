"""Real scalars that enter as almost all do, where a cheaper way would serve: the same bits."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.compile.program import Register, Scalar
from mcfsim.compile.scalars import ScalarEncoding
from mcfsim.compile.torch_loops import TensorLines
from mcfsim.compile.tracing import trace
from mcfsim.kernels.carriers import UnsupportedFormatError
from tests.pytorch.devices import WITH_SCALARS

SCALARS = (
    *(3e-4, 0.1, 0.9, 0.999, 1 - 0.999**7, 1 / 3, 0.5, 1.0, -2.0, -0.3, 1e-8, 1e30, 2.0**-140),
    *(float("inf"), float("nan"), 0.0, -0.0, Fraction(1, 3), Fraction(-7, 3)),
)


class LinesByWays(TensorLines):
    """Lines that real scalars enter in given ways, as the kernels do that captured graphs repeat."""

    given = None

    def _entering(self, numbers, ways=None):
        return super()._entering(numbers, self.given if ways is None else ways)


def filled(lines, numbers, operands, ways=None):
    """Return what a line makes of codes, all NaN alike."""
    fmt = lines.program.inputs[0].format
    result = torch.empty_like(operands["x"])
    given = [operands[register.name] for register in lines.program.inputs]
    lines.given = ways
    lines.with_numbers(numbers)(given, [result])
    lines.given = None
    codes = result.numpy().view(f"u{result.itemsize}")
    return np.where(np.isnan(mcf.codec.decode(codes, fmt)), -1, codes)


@pytest.mark.slow
@pytest.mark.sampled(144, each=False)
@pytest.mark.parametrize("underflow", ["gradual", "flush_inputs", "flush_after"])
@pytest.mark.parametrize("policy", ["exact", "rounded", "float32"])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "up", "to_odd"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
def test_the_general_way_has_the_bits_of_the_cheapest(name, mode, policy, underflow):
    fmt, random, differ = mcf.get_format(name), np.random.default_rng(1), set()
    codes = [random.integers(0, 2**fmt.bits, 3000).astype(f"u{fmt.bits // 8}") for _ in "xy"]
    operands = {name: torch.from_numpy(x.view(f"i{x.itemsize}")) for name, x in zip("xy", codes, strict=True)}
    registers = Register("x", fmt), Register("y", fmt), Scalar("s")
    rounding = mcf.rounding.get_rounding(mode, "ieee", underflow)
    for text, operation in WITH_SCALARS.items():
        program = trace(operation, fmt, rounding, operands=registers, lines=False)
        lines = LinesByWays(program, policy)
        for scalar in SCALARS:
            numbers = program.reals({"s": scalar})
            try:
                ways = lines.ways(numbers)
            except UnsupportedFormatError:
                continue
            if (general := lines.general(numbers)) != ways:
                differ.add((text, ways))
                found, cheapest = (filled(lines, numbers, operands, x) for x in (general, None))
                np.testing.assert_array_equal(found, cheapest, f"{text}, {scalar}")
    assert len(differ) >= len(WITH_SCALARS) + (policy != "float32")  # whose products have no stand-in


def test_a_scalar_that_does_not_enter_in_a_way_is_refused():
    fmt = mcf.get_format("bfloat16")
    program = trace(WITH_SCALARS["x s"], fmt, operands=(Register("x", fmt), "y", Scalar("s")), lines=False)
    lines = LinesByWays(program)
    for scalar, way in (
        (0.0, ScalarEncoding.CARRIER),
        (0.1, ScalarEncoding.VALUE),
        (Fraction(1, 3), ScalarEncoding.REAL),
    ):
        lines.given = [way]
        with pytest.raises(UnsupportedFormatError, match="is beyond what is compiled already"):
            lines.with_numbers([scalar])
