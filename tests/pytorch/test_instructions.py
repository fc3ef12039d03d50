"""Instructions of kernels, counted by pipe, and the speed that they allow."""

from importlib.metadata import version

import pytest

from experiments import instructions
from experiments.common import read_result
from mcfsim.compile.device_code import device_code
from mcfsim.compile.instructions import DEVICES, PIPES, THROUGHPUT, Device, by_pipe, limits
from tests.pytorch.test_device_code import compiled  # noqa: F401

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = [pytest.mark.usefixtures("compiled")]


@pytest.mark.parametrize(
    ("pipe", "names"),
    [
        ("binary32", "FADD FMUL FFMA"),
        ("binary64", "DADD DMUL DFMA DSETP"),
        ("bfloat16 and float16", "HADD2 HMUL2 HFMA2"),
        ("conversion", "F2F F2FP I2F F2I I2FP FRND"),
        ("reciprocal and root", "MUFU"),
        ("integer product", "IMAD"),
        (
            "integer and comparison",
            "IADD3 LOP3 SHF SEL FSEL ISETP FSETP HSETP2 PRMT SGXT LEA MOV VIADD P2R FMNMX",
        ),
        ("load and store", "LDG STG LDC STS"),
        ("control", "BRA EXIT BSSY BSYNC CALL RET S2R"),
        ("uniform", "ULDC UIADD3 ULOP3"),
    ],
)
def test_each_instruction_goes_to_its_pipe(pipe, names):
    for name in names.split():
        assert next(own for own, pattern in PIPES.items() if pattern.fullmatch(name)) == pipe


@pytest.mark.slow
@pytest.mark.parametrize("way", instructions.WAYS)
@pytest.mark.parametrize("capability", THROUGHPUT)
@pytest.mark.sampled(4, each=False)
@pytest.mark.costly("Triton compiles, and machine code is read")
def test_the_counts_shown_are_those_of_a_kernel_and_depend_little_on_its_elements(capability, way):
    kernel, numbers = instructions.kernel("two_sum", hardware=instructions.WAYS[way])
    given = kernel.source(numbers), kernel.line(numbers), capability
    few, many = (by_pipe(*given, elements=elements) for elements in (512, 1024))
    pipe = {"integers": "binary32", "instructions": "bfloat16 and float16"}[way]
    assert few[pipe] == many[pipe] == 6  # 2Sum's operations
    for counts in (few, many):
        assert sum(counts[pipe] for pipe in PIPES) == counts["issue"]
    assert many["issue"] < few["issue"] < 1.2 * many["issue"]
    result = read_result("instructions")
    shown = [row for row in result["kernels"] if (row["way"], row["capability"]) == (way, capability)]
    if result["versions"]["triton"] == version("triton"):
        assert shown[0]["counts"] == {pipe: float(f"{count:.6g}") for pipe, count in many.items()}


@pytest.mark.slow
def test_vectors_at_multiples_of_16_bytes_are_read_at_once():
    kernel, numbers = instructions.kernel("two_sum", hardware=True)
    given = kernel.source(numbers), kernel.line(numbers)
    code = device_code(*given, elements=1024, aligned=True)
    assert code.instructions()["LDG"] == code.instructions()["STG"] == 2  # and not 2 * 8
    assert "LDG.E.128" in code.sass


def test_memory_and_each_pipe_allow_so_many_elements():
    device = Device(capability=80, multiprocessors=10, clock=1e9, copied=1e12)
    allowed = limits({"binary32": 2.0, "uniform": 5.0, "conversion": 0.0, "issue": 16.0}, 8, device)
    assert allowed == {"memory": 1.25e11, "binary32": 3.2e11, "issue": 8e10}
    assert all(device.capability in THROUGHPUT for device in DEVICES.values())
    assert all(rates.keys() <= {*PIPES, "issue"} for rates in THROUGHPUT.values())
