"""The faults of the code released with Collage, in words of our own, on the text of the right algorithm.

Two concern v and beta2 in two components: a product that is computed in the place of its own factor, and a
rest of beta2 that is taken against PyTorch's default dtype. One chooses the strategy by the identity of two
strings, one rounds the update before it reaches the master weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
from mcfsim.multiword.expansion import grow
from mcfsim.optim.adamw import AdamWScalars, adamw
from mcfsim.optim.state import State, Step, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic, Value

LOW, RIGHT = "bfloat16", "collage-plus"
#: The value of the option that asks for the plain algorithm.
NONE = "none"
#: By beta2, enough steps of a constant gradient for v to be steady, or to grow without end.
STEADY = {0.95: 500, 0.98: 1000, 0.99: 1500, 0.999: 5000}
#: One gradient for each of the 128 significands of bf16.
SIGNIFICANDS = 1 + np.arange(128, dtype=np.float32) / 128
Words = tuple[Value, ...]


def aliased_product(ar: Arithmetic, beta: Words, v: Words) -> Words:
    """Return v times beta2 as it comes out where the product overwrites the factor.

    What is then taken for the factor is the product itself, and so its error is about (beta2 - 1) of it. The
    sum overwrites the product in its turn, so that nothing seems lost in it, and all of the second word is
    kept beside a first one that has it already. Together v is multiplied by beta2 (2 beta2 - 1).
    """
    b, rest_of_b = beta
    product = ar.mul(v[0], b)
    error = ar.fma(product, b, ar.neg(product))
    rest = ar.add(ar.fma(v[1], b, ar.mul(product, rest_of_b)), error)
    return ar.add(product, rest), rest


@dataclass(frozen=True)
class Faulty(mcf.AdamW):
    """AdamW with faults of the released code.

    Parameters
    ----------
    aliased : bool
        Whether v is multiplied by `aliased_product`.
    default : str, optional
        The format against which the second component of beta2 is taken; None for that of v, which is right.
    rounded : bool
        Whether an update is rounded to the low format before it is added to a master copy.
    """

    aliased: bool = False
    default: str | None = None
    rounded: bool = False

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> AdamWScalars:
        """Return the scalars of a step, with the rest of beta2 as the released code has it."""
        right = super().scalars(roles, strategy, step, rate, decayed=decayed)
        if self.default is None or not isinstance(right.beta2, tuple):
            return right
        rest = self.beta2 - float(mcf.round_to(self.beta2, self.default))
        return right._replace(beta2=(right.beta2[0], roles.second_moment.round(rest)))

    def step(
        self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: AdamWScalars
    ) -> Step:
        """Make one step: that of `adamw`, but for the faults."""
        other = {"second_moment": self.second_moment} if self.aliased else {}
        found = adamw(roles, strategy, state, gradient, scalars, **other)
        if not self.rounded:
            return found
        parameter, extra = move(roles, strategy, state, roles.model.round(found.update))
        return Step(found.state._replace(parameter=parameter, extra=extra), found.update)

    def second_moment(self, ar: Arithmetic, v: Words, gradient: Value, scalars: AdamWScalars) -> Words:
        """Return v moved by a gradient."""
        square = ar.mul(ar.mul(gradient, gradient), scalars.gain2)
        return grow(ar, aliased_product(ar, scalars.beta2, v), square)


def chosen(option: str) -> str:
    """Return the strategy that runs where an option is compared with `NONE` by identity, not by equality.

    A string read from a command line is an object of its own, so what is to be plain is not.
    """
    return "plain" if option is NONE else "collage-light"


#: What goes wrong with v: by name, the arguments of `Faulty`.
FAULTS: Mapping[str, Mapping[str, Any]] = {
    "right": {},
    "aliased": {"aliased": True},
    "default": {"default": "float32"},
    "both": {"aliased": True, "default": "float32"},
}


@lru_cache
def follow(beta2: float, fault: str, steps: int) -> np.ndarray[Any, Any]:
    """Return v / g^2 of a constant gradient, of every step and significand: the component that is used."""
    strategy = mcf.strategy(RIGHT, LOW)
    roles, hyper = strategy.roles(), Faulty(beta2=beta2, **FAULTS[fault])
    moved = hyper.second_moment if hyper.aliased else hyper.slots[1].average
    scalars = hyper.scalars(roles, strategy, 1, 1.0, decayed=True)
    # With so few numbers, calls of single operations would take most of the time.
    operands = ("high", "low"), "gradient"
    move = Loop(trace(lambda ar, v, gradient: moved(ar, v, gradient, scalars), LOW, operands=operands))
    v: Words = (np.zeros_like(SIGNIFICANDS),) * 2
    history = np.empty((steps, SIGNIFICANDS.size))
    for step in range(steps):
        v = move(v, SIGNIFICANDS)
        history[step] = v[0]
    return history / SIGNIFICANDS.astype(np.float64) ** 2


def length(beta2: float, fault: str, steps: int) -> np.ndarray[Any, Any]:
    """Return the median of sqrt(right v / v), step by step: how much longer a fault makes updates."""
    ratio = follow(beta2, "right", steps) / follow(beta2, fault, steps)
    return np.sqrt(np.median(ratio, axis=1))


def end(beta2: float, fault: str) -> np.ndarray[Any, Any]:
    """Return v / g^2 where a constant gradient ends."""
    return follow(beta2, fault, STEADY[beta2])[-1]
