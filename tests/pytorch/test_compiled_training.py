"""What torch.compile makes of a training step with these optimizers, and of arithmetic: it keeps the bits."""

from functools import partial
from shutil import which

import pytest
import torch

import mcfsim as mcf
from mcfsim.backends.torch_device import DeviceArithmetic
from mcfsim.torch import SGD, AdamW
from tests.pytorch.runs import backward, first, net

pytestmark = [pytest.mark.slow, pytest.mark.costly("torch's compiler looks through all that is called")]


def trained(optimizer_of, step_of, count=4):
    """Return the weights after some steps, each made by a function of the optimizer."""
    given = net(8, 16, 1, dtype=torch.bfloat16)
    optimizer = optimizer_of(given.parameters())
    step = step_of(optimizer)
    for place in range(count):
        backward(given, place)
        step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:  # torch's compiler does not look into what its schedulers wrap
            group["lr"] *= 0.9
    assert {state["step"] for state in optimizer.state.values()} == {count}
    return [p.detach() for p in given.parameters()]


BACKENDS = {
    "eager": partial(AdamW, lr=1e-2, strategy="stochastic"),
    "aot_eager": partial(AdamW, lr=1e-2),
    "inductor": partial(SGD, lr=1e-1, strategy="kahan"),
}


@pytest.mark.parametrize("backend", first("eager", ["aot_eager"], ["inductor"]))
@pytest.mark.filterwarnings("ignore")  # those of torch's compiler, of its own
def test_a_compiled_step_has_the_bits_of_one_that_is_not(backend):
    if backend == "inductor" and which("g++") is None:
        pytest.skip("torch's compiler needs one of C++, and there is none")
    torch.compiler.reset()
    calls = []

    def compiled(optimizer):
        step = torch.compile(lambda: optimizer.step(), backend=backend, fullgraph=True)
        return lambda: calls.append(step())

    expected = trained(BACKENDS[backend], lambda optimizer: optimizer.step)
    found = trained(BACKENDS[backend], compiled)
    assert all(map(torch.equal, found, expected))
    assert len(calls) == 4


@pytest.mark.parametrize(("device", "longer"), first(("cpu", False), ("cpu", True), ("device", True)))
@pytest.mark.filterwarnings("ignore")
def test_compiled_arithmetic_has_the_bits_of_what_is_not(device, longer):
    """It computes with NumPy, which torch's compiler would take for operations of torch's."""
    ar = mcf.arithmetic("bfloat16", backend="torch")
    if device == "device":  # as that of a GPU does
        ar = ar._over(DeviceArithmetic(ar.format, ar.rounding, device="cpu"))
    x, y = (mcf.round_to(torch.randn(1000), "bfloat16") for _ in range(2))

    def text(x, y):
        s, e = mcf.two_sum(ar, x, y)
        found = s + mcf.round_to(e, "float8_e5m2")
        return (found, ar.div(s, ar.add(y, 0.1)), ar.evaluate(mcf.two_sum, x, y)[1]) if longer else (found,)

    torch.compiler.reset()
    compiled = torch.compile(text, backend="aot_eager" if longer else "eager")
    for found, expected in zip(compiled(x, y), text(x, y), strict=True):
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
