"""Matrix units beside the tensor cores of the GPU that is there, bit by bit; and false units beside them."""

from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

from mcfsim import torch as mt  # noqa: E402
from mcfsim.products import UNITS, UnitSums  # noqa: E402
from tests.benchmarks.tensor_cores import multiplied  # noqa: E402
from tests.pytorch.tensor_cores import GENERATIONS, KINDS, differ, tensor_cores  # noqa: E402

pytestmark = pytest.mark.slow


def cores(kind):
    """Return the instructions of the GPU that is there, of a kind of units."""
    found = GENERATIONS.get(torch.cuda.get_device_capability(), "")
    some = [x for x in tensor_cores(found) if x.unit == f"{found}_{kind}"]
    if not some:
        pytest.skip(f"no {kind} unit of this GPU is known")
    return some


def altered(unit):
    """Yield units that are like another one, and wrong."""
    if unit.sums is UnitSums.ALIGNED:
        for bits in (unit.fraction_bits - 1, unit.fraction_bits + 1):
            yield replace(unit, fraction_bits=bits)
        yield replace(unit, k=unit.k // 2)
        if unit.output.precision > 11:
            yield replace(unit, least_exponent=-126 if unit.least_exponent is None else None)
        yield replace(
            unit, rounding="toward_zero" if str(unit.rounding) == "nearest_even" else "nearest_even"
        )
        if unit.added != unit.output:
            yield replace(unit, output=unit.added)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_core_has_the_bits_of_its_unit(kind):
    for core in cores(kind):
        given = core.operands(96 * 1024 // core.size, 7)
        made, instructions = core.run(*given)
        assert {x.split(".sync")[0] for x in instructions} == {core.way.split(".sync")[0]}
        assert differ(made, core.emulated(*given)) == 0
        assert np.isnan(made).any()
        assert np.isfinite(made).mean() > 0.5
        for wrong in altered(mcf.get_unit(core.unit)):
            assert differ(made, core.emulated(*given, unit=wrong)) > 0, wrong
        turned = [x[..., ::-1] for x in given[:2]]
        assert (differ(made, core.emulated(*turned, given[2])) > 0) is (
            core.length > mcf.get_unit(core.unit).k
        )


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_on_a_gpu_have_its_bits_too(kind):
    core = cores(kind)[0]
    a, b, c = core.operands(2, 8)
    expected, _ = core.run(a, b, c)
    for place in range(2):
        left, right = (core.there(x[place], fmt) for x, fmt in zip((a, b), core.stored, strict=True))
        found = mt.matmul(left, right.T, core.unit, c=torch.from_numpy(c[place]).cuda())
        assert differ(found.cpu().numpy(), expected[place]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [64, 1024])
@pytest.mark.parametrize(
    ("kind", "fast", "options"),
    [
        ("fp16", False, {}),
        ("bf16", False, {}),
        ("tf32", False, {}),
        ("fp8", True, {}),
        ("fp8", False, {"promote_every": 128}),
    ],
)
def test_products_of_pytorch_on_hopper_are_those_that_the_documentation_says(kind, fast, options, rows):
    (core, *_) = cores(kind)
    if not core.unit.startswith("hopper"):
        pytest.skip("it is said of Hopper")
    a, b, made = multiplied(core, fast, rows, 512)
    left, right = core.typed(a, b)
    assert differ(made, np.asarray(mcf.matmul(left, right.T, unit=core.unit, **options))) == 0


CASES = [(x, kind) for x in ("hopper", "ampere", "ada") for kind in KINDS[:-1] if f"{x}_{kind}" in UNITS]


@pytest.mark.parametrize(
    ("generation", "kind"),
    [pytest.param(*case, marks=pytest.mark.exhaustive if place else ()) for place, case in enumerate(CASES)],
)
def test_units_are_told_from_false_ones_by_these_operands(generation, kind):
    """So that what the tests above find on a GPU means something, this is asked where there is none."""
    core = next(x for x in tensor_cores(generation) if x.unit == f"{generation}_{kind}")
    given = core.operands(24 * 1024 // core.size, 7)
    expected = core.emulated(*given)
    for wrong in altered(mcf.get_unit(core.unit)):
        assert differ(expected, core.emulated(*given, unit=wrong)) > 0, wrong
