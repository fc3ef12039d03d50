"""Audits to show: of a few tensors whose fates differ, some with names that no page may obey."""

from functools import cache
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.models.audit import Audit, audit
from mcfsim.models.plan import Plan
from mcfsim.models.samples import TensorSample
from mcfsim.report.audit_report import at_rates

BFLOAT16, FLOAT16 = mcf.get_format("bfloat16"), mcf.get_format("float16")
#: Names of tensors that are markup, ends of scripts, or characters that few expect.
HOSTILE = (
    "<script>window.owned = true</script>",
    "</script><img src=x onerror='window.owned = true'>",
    "<!-- <b>bold</b> &amp; $data ${1}",
    "javascript:alert(1)\"'`\\",
    "\u202e\u2028 中文 $\\frac{1}{2}$",
)
PLAIN_NAMES = ("embedding", "layer.gain", "layer.up", "layer.zeros", "head")
STRATEGIES = ("plain", "collage-plus", "fp32-master")


def some_samples(names: tuple[str, ...] = PLAIN_NAMES) -> list[TensorSample]:
    """Return samples: matrices of three sizes, ones, and zeros, of which nothing is lost."""
    rng, made = np.random.default_rng(0), []
    for place, (name, size) in enumerate(zip(names, (0.02, 1.0, 0.3, 0.0, 0.004), strict=False)):
        values = np.ones(64) if place == 1 else rng.standard_normal(64) * size
        shape = (64,) if place in (1, 3) else (8 * (place + 1), 16)
        made.append(TensorSample(name, shape, "bfloat16", values, size, float(place == 3)))
    return made


def plan(
    strategies: Any = STRATEGIES,
    low: str = "bfloat16",
    schedule: tuple[float, int, float] = (1e-3, 3, 0.01),
    steps: int = 15,
    **rest: Any,
) -> Plan:
    """Return a plan by names of strategies, the rate with its warm-up and its end, and its other fields."""
    named = tuple(mcf.strategy(name, low) for name in strategies)
    hyper = mcf.AdamW(beta2=rest.pop("beta2", 0.95), weight_decay=rest.pop("decay", 0.1))
    return Plan(hyper, mcf.Schedule(*schedule), steps, named, **rest)


@cache
def some_audits(names: tuple[str, ...] = PLAIN_NAMES) -> tuple[Audit, ...]:
    """Return audits of the same samples at the rates of a page."""
    samples = some_samples(names)
    return tuple(at_rates(samples, audit(samples, plan(), BFLOAT16)))


def beyond() -> tuple[list[TensorSample], Audit]:
    """Return an audit of weights at the end of binary16's range, and of some of which nothing is asked."""
    pairs = (("edge", 65500.0), ("inside", 0.5))
    samples = [TensorSample(name, (8, 8), "F32", np.full(64, x), 1.0, 0.0) for name, x in pairs]
    made = plan(("collage-light", "fp32-master"), "float16", (8.0, 3, 0.01))
    return samples, audit(samples, made, FLOAT16)
