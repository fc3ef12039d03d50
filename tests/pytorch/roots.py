"""PyTorch's roots of float32, made right: on x86 it has them from Intel MKL, which rounds some wrongly."""

import pytest
from torch import Tensor, backends, float32, sqrt
from torch.overrides import TorchFunctionMode

FUSED_IN_HARDWARE = backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
#: Of tests against PyTorch's own steps, some of whose operations it fuses where the processor does.
fused = pytest.mark.skipif(not FUSED_IN_HARDWARE, reason="PyTorch fuses by AVX2 and AVX-512 alone")


class RightRoots(TorchFunctionMode):
    """Where it is entered, roots of float32 are those of binary64, rounded: correctly rounded ones.

    The root of a float32 number lies 2^-51 of itself or more from the middle between two of them; that of
    binary64 is wrong by a unit in the last place at most, 2^-52.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (sqrt, Tensor.sqrt) and args[0].dtype == float32:
            return args[0].double().sqrt().float()
        return function(*args, **(kwargs or {}))
