"""The public optimizer classes: AdamW, TorchAdamW, SGD, and those made from other declarations."""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import isabstract
from typing import Any, ClassVar

from mcfsim.optim import adamw, amsgrad, muon, sgd, torchadamw, torchmuon
from mcfsim.optim.declaration import Declaration, optimizers
from mcfsim.torch.step import StoredOptimizer


class AdamW(StoredOptimizer):
    """AdamW with its state stored, and its operations rounded, as a strategy says.

    Makes the steps of `mcfsim.Optimizer` with `mcfsim.AdamW`, bit for bit: by NumPy, or a kernel on a GPU.

    Parameters
    ----------
    params : iterable
        Parameters or groups of parameters, in the dtype in which the strategy stores parameters. A group may
        override all arguments below, and may have a ``name`` and entries of schedulers.
    lr : float, optional
        The learning rate; torch's schedulers change it.
    betas, eps, weight_decay : optional
        Decay of the two moments; the number added to the root of the second one; decoupled decay, which 0
        turns off. If ``eps`` is zero, a step is 0 / 0, NaN, as long as all gradients have been zero.
    strategy : str or Strategy, optional
        A name of `mcfsim.STRATEGIES`, or a declaration whose formats torch has dtypes for.
    low : Format or str, optional
        The low format.
    rounding : str or Rounding, optional
        Rounding mode of every operation.
    scalars : {"exact", "rounded", "float32"}, optional
        How hyperparameters enter, see `mcfsim.Arithmetic`.
    random : RandomWords, optional
        The words of stochastic rounding; required if `rounding` is stochastic, unless the strategy itself
        rounds stochastically. Step t of a parameter uses the words of step t. An element uses those of its
        index among all elements of all parameters, in order.
    capturable : bool, optional
        Whether steps on a GPU may be part of a captured CUDA graph, see `before_replay`; steps outside a
        graph are then launched in the same way.
    maximize : bool, optional
        Whether a step uses the negated gradients, in a copy.
    foreach, fused, differentiable, amsgrad : optional
        Accepted only if they are off, for scripts that pass them.

    Raises
    ------
    TypeError, ValueError
        If a parameter is no dense tensor of the right dtype, or a name or setting is unknown or out of range.

    Notes
    -----
    ``state[p]`` holds ``step``, ``m``, ``v``, and ``compensation`` or ``master``; further components of an
    expansion are ``parameter_1``, ``v_1``. A master copy is made at the first step. From then on each step
    overwrites the parameter from it, whatever others wrote there, unless `resync` is called. Two kinds of
    master copies have a ``remainder`` instead, which continues the parameter as others left it. A split copy
    has its upper half in the parameter, and its lower half in the remainder, as bits in a bfloat16 tensor.
    One in few bits has these in the remainder, as uint8 or, beyond 8, as bits in bfloat16. If groups of a
    moment share numbers, ``m`` and ``v`` are uint8 codes, and ``m_scales`` and ``v_scales`` the shared
    numbers, with one more axis if a group has several. If a whole tensor shares one, the moments are stored
    as float32.

    The bits are not those of `torch.optim.AdamW`, which rounds at other points; `TorchAdamW` has those.

    Warns
    -----
    VanishingScalarWarning
        If a hyperparameter or the rate of an added group is zero in the format of the moments.
    OutsideWriteWarning
        At a step, once, if others wrote into a parameter that the state holds a part of; see `resync`.
    """

    _declaration = adamw.AdamW
    _defaults: ClassVar = {"weight_decay": 0.01}


class TorchAdamW(AdamW):
    """AdamW with the rounding points of `torch.optim.AdamW`, and its state stored as a strategy says.

    Its steps are, bit for bit, those of ``torch.optim.AdamW(foreach=False, fused=False)`` of PyTorch 2.13 on
    a CPU with AVX2 or AVX-512: in float32 with strategy ``fp32``, in bfloat16 with ``plain``, in float16 with
    ``plain`` and that `low`. The exception is roots in float32. PyTorch takes these from Intel MKL, which
    rounds a sixth of them to the other neighbour; here they are rounded correctly. For the rounding points
    under other strategies see `mcfsim.optim.torchadamw.torchadamw`.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, strategy, low, rounding, scalars, random, capturable, maximize
        As for `AdamW`. With ``amsgrad`` PyTorch's steps are those of `TorchAMSGrad`.
    """

    _declaration = torchadamw.TorchAdamW


class SGD(StoredOptimizer):
    """Stochastic gradient descent with momentum, stored and rounded as a strategy says.

    Makes the steps of `mcfsim.Optimizer` with `mcfsim.SGD`; unlike in `torch.optim.SGD`, decay is decoupled,
    and the momentum is .9 unless another one is given.

    Parameters
    ----------
    params, lr, weight_decay, strategy, low, rounding, scalars, random, capturable, maximize
        As for `AdamW`.
    momentum, dampening : float, optional
        Decay of the moment; and the share of a gradient, after the first, that does not enter it.
    """

    _declaration = sgd.SGD


#: Declarations that differ from another one only in rounding points, so that a run may go on with either.
_LIKE: dict[type[Declaration], type[Declaration]] = {
    torchadamw.TorchAdamW: adamw.AdamW,
    amsgrad.TorchAMSGrad: amsgrad.AMSGrad,
    torchmuon.TorchMuon: muon.Muon,
}


#: Declarations of what PyTorch's AdamW does by an option; they have its defaults.
_BY_AN_OPTION = (amsgrad.AMSGrad, amsgrad.TorchAMSGrad)


@cache
def declared_optimizer(name: str) -> type[StoredOptimizer] | None:
    """Return the one optimizer class for a name that `mcfsim.optim` declares; None if it does not."""
    declared = optimizers().get(name.lower())
    if declared is None or declared.__name__ != name:
        return None
    written: dict[type[Declaration], type[StoredOptimizer]]
    written = {kind._declaration: kind for kind in (AdamW, TorchAdamW, SGD)}
    if declared in _BY_AN_OPTION:
        return optimizer(declared(**AdamW._defaults))
    return written.get(declared) or optimizer(declared)


def family(kind: type[StoredOptimizer]) -> type[Declaration]:
    """Return the declaration that stands for all those whose runs an optimizer may take over."""
    return _LIKE.get(kind._declaration, kind._declaration)


def optimizer(declaration: type[Declaration] | Declaration) -> type[StoredOptimizer]:
    """Return the optimizer class that makes the steps of a declaration, also of one of your own.

    Parameters
    ----------
    declaration : Declaration or a subclass of it
        An instance's hyperparameters are the defaults of the class that is returned.

    Returns
    -------
    type
        Its arguments are those of `AdamW`, with the declaration's hyperparameters: ``beta1`` and ``beta2`` as
        ``betas``, ``epsilon`` as ``eps``. A step in stages, with numbers made of whole rows, columns or
        matrices, is made on the CPU; its moments are vectors of their parts unless each element has one.
        If processes share parameters, each process makes the whole step of each parameter, one after another:
        it needs memory for the gradient, the numbers and the state of the largest one.

    Raises
    ------
    TypeError
        If it is no declaration, or an incomplete one; or if a hyperparameter has the name of another entry of
        groups, such as ``lr``, ``rounding`` or ``name``.

    Examples
    --------
    >>> optimizer(sgd.SGD(momentum=0.8)).__name__
    'SGD'
    """
    declared = declaration if isinstance(declaration, type) else type(declaration)
    if not issubclass(declared, Declaration) or isabstract(declared) or not is_dataclass(declared):
        raise TypeError(
            "an optimizer is made of a Declaration that is a dataclass and has a step, not of "
            f"{declaration!r}"
        )
    given: dict[str, Any] = {}
    if isinstance(declaration, Declaration):
        given = {x.name: getattr(declaration, x.name) for x in fields(declaration) if x.init}
    name = declared.__name__
    text = f"""{name} with its state stored, and its operations rounded, by a strategy.

    Makes the steps of `mcfsim.Optimizer` with `{declared.__module__}.{name}`. The hyperparameters have the
    names that they have there, except that ``beta1`` and ``beta2`` are ``betas``, and ``epsilon`` is ``eps``;
    the other arguments are those of `AdamW`.
    """
    body = {"__doc__": text, "__module__": __package__, "_declaration": declared, "_defaults": given}
    return _Made(name, (StoredOptimizer,), {**body, "_made_of": declaration})


class _Made(ABCMeta):  # so that users may mix in an ABC
    """The type of optimizer classes that `optimizer` has made; modules need not have them by name."""


def _reduced(made: _Made) -> str | tuple[Any, ...]:
    """Return what pickles such a class: its name if it is found by that, or what it was made of."""
    own = vars(made).get("_made_of")
    found = own is None or declared_optimizer(made.__name__) is made
    return made.__qualname__ if found else (optimizer, (own,))


copyreg.pickle(_Made, _reduced)
