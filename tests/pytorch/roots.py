"""PyTorch's square roots of float32, made right: on x86 it has them from Intel MKL, which rounds some wrongly."""

from torch import Tensor, float32, sqrt
from torch.overrides import TorchFunctionMode


class RightRoots(TorchFunctionMode):
    """Where it is entered, roots of float32 are those of binary64, rounded: correctly rounded ones.

    A root of a float32 number lies far from the middle between two: by 2^-26 of itself or more, if it is none.
    So that of binary64, wrong by a unit in the last place at most, has the right neighbour.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (sqrt, Tensor.sqrt) and args[0].dtype == float32:
            return args[0].double().sqrt().float()
        return function(*args, **(kwargs or {}))
