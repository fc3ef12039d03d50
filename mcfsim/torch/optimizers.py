"""Optimizers by their torch names: AdamW, TorchAdamW, SGD, and those that other modules declare."""

from __future__ import annotations

from typing import ClassVar

from mcfsim.optim import adamw, sgd, torchadamw
from mcfsim.optim.declaration import optimizers
from mcfsim.torch.step import StoredOptimizer


class AdamW(StoredOptimizer):
    """AdamW with its state stored, and its operations rounded, by a strategy.

    Bit for bit the steps of `mcfsim.Optimizer` with `mcfsim.AdamW`, on a CPU by NumPy, on a GPU by a kernel.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, of the dtype in which the strategy stores parameters. A group may have
        its own of all that follows, a ``name``, and what schedulers write into it; 0 switches decay off.
    lr : float, optional
        The learning rate; schedulers of torch change it.
    betas, eps, weight_decay : optional
        Decay of the two moments; what is added to the root of the second one; decoupled decay. Where no
        gradient but zero has come yet, a step with an ``eps`` of zero is 0 / 0, NaN.
    strategy : str or Strategy, optional
        A name of `mcfsim.STRATEGIES` or a declaration whose formats torch has dtypes for.
    low : Format or str, optional
        The low format.
    rounding : str or Rounding, optional
        Rounding mode of every operation.
    scalars : {"exact", "rounded"}, optional
        How hyperparameters enter, see `mcfsim.Arithmetic`.
    random : RandomWords, optional
        For stochastic rounding, which needs it unless the strategy alone asks for that: each parameter's
        step takes the words of its number, each element those of its index among all elements of all
        parameters, in their order.
    capturable : bool, optional
        Whether steps on a GPU may be part of a captured CUDA graph, see `before_replay`; the others then are
        launched as in one.
    maximize : bool, optional
        Whether a step is that of the gradients with the other sign, of which it makes a copy.
    foreach, fused, differentiable, amsgrad : optional
        Taken as long as they are off, for scripts that name them.

    Raises
    ------
    TypeError, ValueError
        If a parameter is no dense tensor of the right dtype, or a name or setting is unknown or out of range.

    Notes
    -----
    ``state[p]`` holds ``step``, ``m``, ``v``, and ``compensation`` or ``master``; further components of an
    expansion are ``parameter_1``, ``v_1``. A master copy is made at the first step, and from then on what
    others write into the parameter is overwritten from it, unless `resync` is called. Of a split one
    ``remainder`` holds the lower half, as bits in a tensor of bfloat16, and what others write is its upper
    half; of one in few bits it holds these, as uint8 or, beyond 8, as bits in bfloat16, and they count from
    what others write. Of moments whose groups share numbers ``m`` and ``v`` are codes, as uint8, and
    ``m_scales`` and ``v_scales`` lie beside them, with an axis more where a group has several; where all of a
    tensor shares one they lie as float32.

    These are not the bits of `torch.optim.AdamW`, which rounds at other points: those are `TorchAdamW`'s.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or the rate of a group that is added is zero in the format of the moments.
    OutsideWriteWarning
        At a step, once, if something else wrote into a parameter of which the state holds a part; see
        `resync`.
    """

    _declaration = adamw.AdamW
    _defaults: ClassVar = {"weight_decay": 0.01}


class TorchAdamW(AdamW):
    """AdamW with the rounding points of `torch.optim.AdamW`, its state stored by a strategy.

    Bit for bit the steps of ``torch.optim.AdamW(foreach=False, fused=False)`` of PyTorch 2.13 on a CPU with
    AVX2 or AVX-512: strategy ``fp32`` those of float32, ``plain`` those of bfloat16, or of float16 with that
    for `low`. But for roots of float32: these PyTorch has from Intel MKL, which rounds a sixth of them to
    the other neighbour; here they are rounded correctly. What other strategies make of these points is said
    at `mcfsim.optim.torchadamw.torchadamw`.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, strategy, low, rounding, scalars, random, capturable, maximize
        As of `AdamW`. PyTorch's ``amsgrad`` is not here.
    """

    _declaration = torchadamw.TorchAdamW


class SGD(StoredOptimizer):
    """Stochastic gradient descent with momentum, stored and rounded by a strategy.

    The steps of `mcfsim.Optimizer` with `mcfsim.SGD`: unlike in `torch.optim.SGD`, decay is decoupled.

    Parameters
    ----------
    params, lr, weight_decay, strategy, low, rounding, scalars, random, capturable, maximize
        As of `AdamW`.
    momentum : float, optional
        Decay of the one moment.
    """

    _declaration = sgd.SGD


def declared_optimizer(name: str) -> type[StoredOptimizer] | None:
    """Return the optimizer that a module of `mcfsim.optim` declares by a name; None if none does.

    Raises
    ------
    AttributeError
        If its step has means over rows, columns or tensors in it, which tensors of PyTorch do not get.
    """
    declared = optimizers().get(name.lower())
    if declared is None or declared.__name__ != name:
        return None
    if declared.staged:
        raise AttributeError(
            f"mcfsim.torch has no {name}: its steps have means over whole rows, columns or tensors in them, "
            f"by stated sums, which are made of NumPy's arrays alone; mcfsim.Optimizer and mcfsim.simulate "
            "take it"
        )
    text = f"""{name} with its state stored, and its operations rounded, by a strategy.

    The steps of `mcfsim.Optimizer` with `{declared.__module__}.{name}`, by whose names the hyperparameters
    are known, but that ``beta1`` and ``beta2`` are ``betas``, and ``epsilon`` is ``eps``; the other arguments
    are those of `AdamW`.
    """
    body = {"__doc__": text, "__module__": __package__, "_declaration": declared}
    return type(name, (StoredOptimizer,), body)
