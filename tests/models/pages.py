"""Audits to show: of a few tensors whose fates differ, some with names that no page may obey."""

import numpy as np

import mcfsim as mcf
from mcfsim.models.audit import Audit
from mcfsim.models.auditing import audit
from mcfsim.models.plan import Plan
from mcfsim.models.samples import Sample
from mcfsim.report.audit_page import at_rates

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


def some_samples(names: tuple[str, ...] = PLAIN_NAMES) -> list[Sample]:
    """Return samples: matrices of three sizes, ones, and zeros, of which nothing is lost."""
    rng = np.random.default_rng(0)
    sizes = {0: 0.02, 1: 1.0, 2: 0.3, 3: 0.0, 4: 0.004}
    made = []
    for place, name in enumerate(names):
        values = np.ones(64) if place == 1 else rng.standard_normal(64) * sizes[place]
        shape = (64,) if place in (1, 3) else (8 * (place + 1), 16)
        made.append(Sample(name, shape, "bfloat16", values, sizes[place], float(place == 3)))
    return made


def plan(strategies: tuple[str, ...] = STRATEGIES, low: str = "bfloat16", rate: float = 1e-3) -> Plan:
    return Plan(
        hyper=mcf.AdamW(beta2=0.95, weight_decay=0.1),
        schedule=mcf.Schedule(rate, warmup=3, final=0.01),
        steps=15,
        strategies=tuple(mcf.strategy(name, low) for name in strategies),
    )


def some_audits(names: tuple[str, ...] = PLAIN_NAMES) -> list[Audit]:
    """Return audits of the same samples at the rates of a page."""
    samples = some_samples(names)
    return at_rates(samples, audit(samples, plan(), mcf.get_format("bfloat16")))


def beyond(strategies: tuple[str, ...] = ("collage-light", "fp32-master")) -> tuple[list[Sample], Audit]:
    """Return an audit of weights at the end of binary16's range, and of some of which nothing is asked."""
    values = np.full(64, 65500.0), np.full(64, 0.5)
    samples = [
        Sample(name, (8, 8), "F32", x, 1.0, 0.0) for name, x in zip(("edge", "inside"), values, strict=True)
    ]
    return samples, audit(samples, plan(strategies, "float16", rate=8.0), mcf.get_format("float16"))
