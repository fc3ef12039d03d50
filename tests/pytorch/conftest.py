"""The devices on which the arithmetic of tensors is tested, and the ways in which it is carried out there."""

import importlib.util
from functools import partial

import numpy as np
import pytest

from tests.pytorch.interpreter import hasten
from tests.sampling import checksum, is_exhaustive

#: Without PyTorch there are random programs alone to test here.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_[!r]*.py"]
#: All bits but the sign: what a GPU makes of a NaN.
GPU_NAN = {np.dtype(np.float32): 0x7FFFFFFF, np.dtype(np.float64): 0x7FFFFFFFFFFFFFFF}
#: Kernels that NumPy interprets take their time: of so many cases of a test one is run by `make test`.
EVERY = 30


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Let the next test have gradients, also where this one broke PyTorch off at the end of `no_grad`."""
    if not collect_ignore_glob:
        import torch

        torch.set_grad_enabled(True)


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none."""
    if not collect_ignore_glob and any(item.get_closest_marker("gpu") for item in items):
        import torch

        for item in items if not torch.cuda.is_available() else ():
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="PyTorch finds no CUDA device"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc):
    """Leave to the exhaustive tests most cases of kernels that are interpreted."""
    yield
    test = metafunc.definition.nodeid
    slow = [case for case in metafunc._calls if is_interpreted(case) and not is_exhaustive(case)]
    for place, case in enumerate(sorted(slow, key=partial(checksum, test))):
        case.marks.append(pytest.mark.slow.mark)
        if place >= -(-len(slow) // EVERY):
            case.marks.append(pytest.mark.exhaustive.mark)


def is_interpreted(case):
    return case.params.get("kernels") is True and case.params.get("device") == "cpu"


@pytest.fixture(scope="session", autouse=True)
def _compiler():
    """Import what PyTorch itself imports at the first optimizer, which is no matter of a test."""
    if not collect_ignore_glob:
        import torch._dynamo  # noqa: F401


@pytest.fixture
def few_steps(monkeypatch):
    """Let no steps follow: those of few elements are not compiled, which would be of no use to a test."""
    monkeypatch.setattr("mcfsim.torch.straight_step.AHEAD", 0)
    monkeypatch.setattr("mcfsim.torch.whole_step.AHEAD", 0)


@pytest.fixture
def one_thread():
    """Let PyTorch sum in one order, whatever the machine has; threads are of no use to small matrices."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(params=[None, False, True], ids=["chosen", "eager", "kernels"])
def kernels(request, device):
    """Whether lines are kernels of Triton, if that is not left open; on a CPU they are interpreted."""
    if request.param:
        pytest.importorskip("triton", reason="Triton is not installed")
        if device == "cpu":
            request.getfixturevalue("interpreted")
    return request.param


@pytest.fixture
def interpreted(monkeypatch):
    """Let NumPy interpret kernels, and make every NaN that an operation results in one of a GPU's."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    hasten(monkeypatch)

    def as_on_a_gpu(operation):
        def call(*given, **named):
            result = operation(*given, **named)
            data = getattr(result, "data", None)
            if isinstance(data, np.ndarray) and data.dtype in GPU_NAN:
                unsigned = np.dtype(f"u{data.itemsize}")
                codes = np.where(np.isnan(data), unsigned.type(GPU_NAN[data.dtype]), data.view(unsigned))
                result.data = codes.view(data.dtype)
            return result

        return call

    for name in ("binary_op", "unary_op", "cast_impl"):
        if hasattr(interpreter.InterpreterBuilder, name):
            whole = getattr(interpreter.InterpreterBuilder, name)
            monkeypatch.setattr(interpreter.InterpreterBuilder, name, as_on_a_gpu(whole))


@pytest.fixture(params=["kernel", "operations"])
def on_device(request, monkeypatch):
    """Let tensors of the CPU be moved as a GPU's: by kernels, interpreted, or by PyTorch's operations."""
    from mcfsim.torch import step, straight_step
    from tests.pytorch.runs import no_triton

    if request.param == "kernel":
        request.getfixturevalue("interpreted")
    else:
        monkeypatch.setattr(straight_step, "check_kernels", no_triton)
    return lambda on: monkeypatch.setattr(step, "_is_host", lambda device: not on)
