"""Optimizers by their torch names: AdamW, TorchAdamW, SGD, and those that other modules declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.optim import adamw, sgd, torchadamw
from mcfsim.optim.declaration import Declaration, optimizers
from mcfsim.optim.strategies import Strategy
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.torch.step import StoredOptimizer, number


class AdamW(StoredOptimizer):
    """AdamW with its state stored, and its operations rounded, by a strategy.

    Bit for bit the steps of `mcfsim.Optimizer` with `mcfsim.AdamW`, on a CPU by NumPy, on a GPU by a kernel.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, of the dtype in which the strategy stores parameters. A group may have
        its own ``lr``, ``betas``, ``eps`` and ``weight_decay``; 0 switches decay off.
    lr : float, optional
        The learning rate; schedulers of torch change it.
    betas, eps, weight_decay : optional
        Decay of the two moments; what is added to the root of the second one; decoupled decay.
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

    Raises
    ------
    TypeError, ValueError
        If a parameter is no dense tensor of the right dtype, or a setting is unknown or out of range.

    Notes
    -----
    ``state[p]`` holds ``step``, ``m``, ``v``, and ``compensation`` or ``master``; further components of an
    expansion are ``parameter_1``, ``v_1``. A master copy is made at the first step, and from then on what
    others write into the parameter is overwritten from it. Of a split one ``remainder`` holds the lower half,
    as bits in a tensor of bfloat16, and what others write is its upper half. Of moments whose groups share
    scales ``m`` and ``v`` are codes, as uint8, and ``m_scales`` and ``v_scales`` lie beside them; where all
    of a tensor shares one they lie as float32.

    These are not the bits of `torch.optim.AdamW`, which rounds at other points: those are `TorchAdamW`'s.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or the rate of a group that is added is zero in the format of the moments.
    """

    _declaration = adamw.AdamW

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        strategy: Strategy | str = "collage-plus",
        low: Format | str = "bfloat16",
        rounding: Rounding | str = "nearest_even",
        scalars: Scalars = "exact",
        random: RandomWords | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            strategy=strategy, low=low, rounding=rounding, scalars=scalars, random=random,
            capturable=capturable,
        )  # fmt: skip

    @classmethod
    def _hyper(cls, group: Mapping[str, Any]) -> Declaration:
        kind: Any = cls._declaration
        given = (*group["betas"], group["eps"], group["weight_decay"])
        hyper: Declaration = kind(*(number(x) for x in given))
        return hyper


class TorchAdamW(AdamW):
    """AdamW with the rounding points of `torch.optim.AdamW`, its state stored by a strategy.

    Bit for bit the steps of ``torch.optim.AdamW(foreach=False, fused=False)`` of PyTorch 2.13 on a CPU with
    AVX2 or AVX-512: strategy ``fp32`` those of float32, ``plain`` those of bfloat16, or of float16 with that
    for `low`. But for roots of float32: these PyTorch has from Intel MKL, which rounds a sixth of them to
    the other neighbour; here they are rounded correctly. What other strategies make of these points is said
    at `mcfsim.optim.torchadamw.torchadamw`.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, strategy, low, rounding, scalars, random, capturable
        As of `AdamW`. PyTorch's ``amsgrad`` and ``maximize`` are not here.
    """

    _declaration = torchadamw.TorchAdamW


class SGD(StoredOptimizer):
    """Stochastic gradient descent with momentum, stored and rounded by a strategy.

    The steps of `mcfsim.Optimizer` with `mcfsim.SGD`: unlike in `torch.optim.SGD`, decay is decoupled.

    Parameters
    ----------
    params, lr, weight_decay, strategy, low, rounding, scalars, random, capturable
        As of `AdamW`.
    momentum : float, optional
        Decay of the one moment.
    """

    _declaration = sgd.SGD

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        strategy: Strategy | str = "collage-plus",
        low: Format | str = "bfloat16",
        rounding: Rounding | str = "nearest_even",
        scalars: Scalars = "exact",
        random: RandomWords | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay,
            strategy=strategy, low=low, rounding=rounding, scalars=scalars, random=random,
            capturable=capturable,
        )  # fmt: skip


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
    return _of(declared)


def _of(declared: type[Declaration]) -> type[StoredOptimizer]:
    """Return the optimizer of a declaration, whose hyperparameters are keywords and settings of a group."""
    settings = {field.name: field.default for field in fields(cast(Any, declared))}

    def begin(
        self: Any,
        params: Any,
        lr: float = 1e-3,
        *,
        strategy: Strategy | str = "collage-plus",
        low: Format | str = "bfloat16",
        rounding: Rounding | str = "nearest_even",
        scalars: Scalars = "exact",
        random: RandomWords | None = None,
        capturable: bool = False,
        **hyper: Any,
    ) -> None:
        if stray := sorted(hyper.keys() - settings.keys()):
            raise TypeError(f"{declared.__name__} has no {', '.join(stray)}; it takes {', '.join(settings)}")
        StoredOptimizer.__init__(
            self, params, lr=lr, **{**settings, **hyper},
            strategy=strategy, low=low, rounding=rounding, scalars=scalars, random=random,
            capturable=capturable,
        )  # fmt: skip

    text = f"""{declared.__name__} with its state stored, and its operations rounded, by a strategy.

    The steps of `mcfsim.Optimizer` with `{declared.__module__}.{declared.__name__}`, whose hyperparameters
    are keywords; the other arguments are those of `AdamW`.
    """
    body = {"__init__": begin, "__doc__": text, "__module__": __package__, "_declaration": declared}
    return type(declared.__name__, (StoredOptimizer,), body)
