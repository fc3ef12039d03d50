"""Sentences of the pages that compare options, as data: the words, the paired differences, and their sign."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import (
    adapters,
    dqt_published,
    dqt_tensors,
    first_moment,
    gemm_bias,
    gemm_losses,
    gemm_noise,
    gemm_underflow,
    late_training,
    own_rates,
    paired,
    stalled_averages,
    strategy_losses,
    switch,
)
from experiments.common import ROOT, read_result
from mcfsim.optim.strategies import GRID_STRATEGIES, STRATEGIES
from mcfsim.report.tables import markdown_table

Array = np.ndarray[Any, Any]


# -- claims -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Statement(ABC):
    """A sentence of a page that rests on a result file.

    Parameters
    ----------
    page : str
        Its path in the repository.
    says : str
        The words, as they stand there; line breaks count as blanks.
    experiment : str
        The module of `experiments` that measures what it rests on.
    """

    page: str
    says: str
    experiment: str

    def errors(self, page: str | None = None) -> list[str]:
        """Return what is wrong with it: it is not on the page, or the results do not bear it out."""
        text = (ROOT / self.page).read_text() if page is None else page
        there = self.says in " ".join(text.split())
        return [*(() if there else [f"{self.page} does not say {self.says!r}"]), *self.unfounded()]

    @abstractmethod
    def unfounded(self) -> list[str]:
        """Return what the results do not bear out."""

    @abstractmethod
    def shown(self) -> str:
        """Return the numbers that it rests on, as a table shows them."""


@dataclass(frozen=True)
class Claim(Statement):
    """What a page says of two options, or equally of several pairs.

    Parameters
    ----------
    sign : {-1, 0, 1}
        Whether the first option's loss is said to be below the second's, above it, or not told apart.
    differences : callable
        Returns the paired differences, first less second, one a seed; several arrays for several pairs.
    """

    sign: int
    differences: Callable[[], Sequence[Array]]

    def unfounded(self) -> list[str]:
        """Return the intervals that say otherwise."""
        found = []
        for gap in self.differences():
            low, high = paired.interval(gap)
            if (low > 0) - (high < 0) != self.sign:
                found.append(f"{self.says!r}: the interval {low:+.5f} to {high:+.5f} says otherwise")
        return found

    def shown(self) -> str:
        """Return each difference with its interval."""
        return "; ".join(map(paired.shown, self.differences()))


@dataclass(frozen=True)
class Number(Statement):
    """A number on a page that is a mean over seeds, and the ends between which the page says that it lies.

    Parameters
    ----------
    low, high : float
        The ends.
    numbers : callable
        Returns the numbers, one a seed; several arrays for several numbers that are said alike.
    """

    low: float
    high: float
    numbers: Callable[[], Sequence[Array]]

    def unfounded(self) -> list[str]:
        """Return the means that are not between the ends."""
        means = [float(np.mean(x)) for x in self.numbers()]
        return [f"{self.says!r}: {mean:.5g} is not" for mean in means if not self.low <= mean <= self.high]

    def shown(self) -> str:
        """Return each mean with its interval."""
        return "; ".join(paired.shown(x).replace("+", "") for x in self.numbers())


def measured(measure: str, *options: str) -> Callable[[], list[Array]]:
    """Return a function that gives a measure of options at their own best rates, one number a seed."""
    return lambda: [np.array(read_result(own_rates.RESULT)["runs"][name][measure], float) for name in options]


def own(*options: str) -> Callable[[], list[Array]]:
    """Return a function that gives options' losses less the reference's, each at its own best rate."""
    return lambda: [own_rates.difference(option) for option in options]


def stepwise(beta2: str, *names: str) -> Callable[[], list[Array]]:
    """Return a function that gives small models' losses less the reference's, each at its own best rate."""
    return lambda: [
        np.array(read_result("collage_options")["table"][beta2][name]["differences"]) for name in names
    ]


def between(first: str, second: str) -> Callable[[], list[Array]]:
    """Return a function that gives the losses of one option less another's, each at its own best rate."""
    return lambda: [own_rates.difference(first) - own_rates.difference(second)]


def on_grids(choice: str, *shapes: tuple[int, int]) -> Callable[[], list[Array]]:
    """Return a function that gives the relative gaps of 8-bit weights to BitNet, by width and steps."""
    return lambda: [dqt_tensors.above_bitnet(dqt_tensors.losses()[choice, *shape]) for shape in shapes]


def one_ulp(label: str, than: str) -> Callable[[], list[Array]]:
    """Return a function that gives the losses of one beta1 less those of another, by beta2."""

    def differences() -> list[Array]:
        found = read_result(first_moment.RESULT)["trainings"]
        return [np.subtract(rows, found[than][beta2])[:, 2] for beta2, rows in found[label].items()]

    return differences


def lengths(label: str) -> Callable[[], list[Array]]:
    """Return a function that gives the late length of m, relative to exact arithmetic, by beta2."""
    return lambda: [
        np.array(rows)[:, 0] for rows in read_result(first_moment.RESULT)["trainings"][label].values()
    ]


def adapted(label: str, *options: str) -> Callable[[], list[Array]]:
    """Return a function that gives losses of adapters less the reference's, at the best or low rates."""
    return lambda: [adapters.difference(label, option) for option in options]


def in_fp32(label: str, *parts: str) -> Callable[[], list[Array]]:
    """Return a function that gives losses with parts of adapters in fp32, less those of plain bf16."""
    return lambda: [adapters.without(label, part) for part in parts]


def adapters_forecast(known: str) -> Callable[[], list[Array]]:
    """Return a function that gives forecast less measured shares, by rate and part."""
    return lambda: [
        np.subtract(found["forecast"][known][part], found["lost"]["plain"][part])
        for found in map(read_result(adapters.RESULT).get, ("best", "low"))
        for part in adapters.PARTS
    ]


def grids(result: str, *names: str) -> Callable[[], list[Array]]:
    """Return a function that gives the relative gaps of weights on grids to BitNet."""

    def differences() -> list[Array]:
        found = read_result(result)["table"]
        return [np.array(found[name]["above_bitnet"]) for name in names]

    return differences


def in_ternary(*bits: int) -> Callable[[], list[Array]]:
    """Return a function that gives losses of weights put on a ternary grid, less those of training on it."""

    def differences() -> list[Array]:
        found = read_result("dqt_bits")["table"]
        trained = np.array(found["dqt-ternary"]["losses"])
        return [np.array(found[f"dqt-int{number}"]["ternary_losses"]) - trained for number in bits]

    return differences


def late(option: str, *schedules: str) -> Callable[[], list[Array]]:
    """Return a function that gives losses at the end, less the reference's, by schedule and size."""
    return lambda: [
        late_training.gap(size, schedule, option) for schedule in schedules for size in late_training.MODELS
    ]


def arriving(measure: str, option: str, *schedules: str) -> Callable[[], list[Array]]:
    """Return a function that gives a measure in the last fifth of the second half, by schedule and size."""
    return lambda: [
        np.mean([run[measure][option][-4:] for run in late_training.runs(size, schedule)], axis=1)
        for schedule in schedules
        for size in late_training.MODELS
    ]


def forecast_errors() -> list[Array]:
    """Return how far forecasts of plain bf16 are off, in the mean over steps, by schedule and size."""
    return [
        np.array([late_training.forecast_error(run) for run in late_training.runs(size, schedule)])
        for schedule in late_training.SCHEDULES
        for size in late_training.MODELS
    ]


def all_strategies(kind: str, chosen: Callable[[str], bool]) -> list[Array]:
    """Return losses less the reference's, of the chosen strategies, at the common rate or their own."""
    found = strategy_losses.losses(kind)
    reference = found.pop(strategy_losses.REFERENCE)
    return [x - reference for name, x in found.items() if chosen(name)]


def as_published(
    choice: str,
    *optimizers: str,
    widths: Collection[int] = dqt_published.WIDTHS,
    steps: Collection[int] = (dqt_published.STEPS,),
) -> Callable[[], list[Array]]:
    """Return a function that gives relative gaps to BitNet, by optimizers, at widths and lengths of run."""
    return lambda: [
        gap
        for optimizer in optimizers or dqt_published.HYPERS
        for (named, width, length), gap in dqt_published.gaps(optimizer, None).items()
        if named == choice and width in widths and length in steps
    ]


def by_recipe(*names: str, than: str = gemm_losses.REFERENCE) -> Callable[[], list[Array]]:
    """Return a function that gives losses under recipes less those under another, seed by seed."""
    return lambda: [gemm_losses.difference(name, than) for name in names]


PUBLISHED = dqt_published.RESULT
PRODUCTS = "docs/background/gemm_results.md"
SWITCH_PAGE = "docs/howto/switch.md"
STRATEGIES_PAGE = "docs/howto/strategies.md"
ADAPTERS = "docs/howto/adapters.md"
LATE, (COSINE, SMALL) = late_training.RESULT, late_training.SCHEDULES
FINDINGS, RESULTS, DQT = (
    "docs/background/findings.md", "docs/background/results.md", "docs/howto/dqt.md",
)  # fmt: skip
WIDE = "dqt-int8, wide start"
STALLED, AVERAGES = stalled_averages.RESULT, "docs/howto/average.md"
_STATED: tuple[Statement, ...] = (
    Claim(
        PRODUCTS, "No recipe of FP8 is told apart from float32", "gemm_losses", 0,
        by_recipe("mxfp8", "fp8-tensor", "fp8-blocks"),
    ),
    Claim(
        PRODUCTS, "FP4 costs .022 nats a byte by `fp4-all`", "gemm_losses", 1,
        by_recipe("fp4-all", "quartet2"),
    ),
    Claim(
        PRODUCTS, "cost is not told from nothing", "gemm_losses", 0, by_recipe("nvfp4", "quartet"),
    ),
    *(
        Claim(
            PRODUCTS, "nor from what these two cost", "gemm_losses", 0,
            by_recipe("nvfp4", "quartet", than=other),
        )
        for other in ("fp4-all", "quartet2")
    ),
    Number(
        PRODUCTS, "FP4 costs .022 nats a byte by `fp4-all`", "gemm_losses", 0.0215, 0.0225,
        by_recipe("fp4-all"),
    ),
    Number(
        PRODUCTS, "and .015 by `quartet2`", "gemm_losses", 0.0145, 0.0155, by_recipe("quartet2"),
    ),
    Claim(
        PRODUCTS, "No part of the recipe is told apart", "gemm_losses", 0,
        by_recipe(*gemm_losses.PARTS, than=gemm_losses.WHOLE),
    ),
    Claim(
        PRODUCTS, "6 % under `nvfp4`, and 18 % under `fp4-all`", "gemm_underflow", -1,
        lambda: [
            np.subtract(*(gemm_underflow.by_layer("wgrad", x).mean(axis=0) for x in ("nvfp4", "fp4-all")))
        ],
    ),
    Claim(
        PRODUCTS, "**NVFP4 rounded at random is not without bias**", "gemm_bias", -1,
        lambda: [gemm_bias.slope("NVFP4", "stochastic")],
    ),
    Number(
        PRODUCTS, "gradients are .9 % too short", "gemm_bias", 0.0081, 0.0089,
        lambda: [-gemm_bias.slope("NVFP4", "stochastic")],
    ),
    Claim(
        PRODUCTS, "is not told apart from no bias**, and neither is MXFP8", "gemm_bias", 0,
        lambda: [
            gemm_bias.slope(x, "stochastic") for x in ("MXFP8", "NVFP4, rotated; at random by MS-EDEN")
        ],
    ),
    Claim(
        PRODUCTS, "**MXFP4 with scales rounded down is 5.4 % too short**", "gemm_bias", -1,
        lambda: [gemm_bias.slope("MXFP4, scales rounded down", "stochastic")],
    ),
    Claim(
        PRODUCTS, "Below sqrt(3), in 3 and 2 bits, training ends .16 to .17", "gemm_noise", 1,
        lambda: [gemm_noise.gap(name) for name in ("int3", "int2")],
    ),
    Claim(
        PRODUCTS, "in 3 and 2 bits, training ends", "gemm_noise", -1,
        lambda: [gemm_noise.ratio(name) - gemm_noise.LIMIT for name in ("int3", "int2")],
    ),
    Number(
        PRODUCTS, ".16 to .17 nats a byte higher", "gemm_noise", 0.155, 0.175,
        lambda: [gemm_noise.gap(name) for name in ("int3", "int2")],
    ),
    Claim(
        PRODUCTS, "as in NVFP4, no loss is told apart", "gemm_noise", 0,
        lambda: [gemm_noise.gap(name) for name in ("MXFP8", "NVFP4", "int6")],
    ),
    Claim(
        PRODUCTS, "In 4 bits gradients are 2.4 times as long as their noise, above sqrt(3)", "gemm_noise", 1,
        lambda: [gemm_noise.ratio("int4") - gemm_noise.LIMIT],
    ),
    Claim(
        PRODUCTS, "the loss is .056 higher", "gemm_noise", 1, lambda: [gemm_noise.gap("int4")],
    ),
    Claim(
        PRODUCTS, "That is less than in 3 bits, by .116", "gemm_noise", 1,
        lambda: [gemm_noise.gap("int3") - gemm_noise.gap("int4")],
    ),
    Claim(
        FINDINGS, "At its best rate plain bf16 ends .010 above fp32 master weights.", "own_rates", 1,
        own("plain"),
    ),
    Number(
        FINDINGS, "65 % of its weights ignore their update", "own_rates", 0.645, 0.655,
        measured("late_lost", "plain"),
    ),
    Number(
        FINDINGS, "82 % of what the optimizer asked for arrives", "own_rates", 0.815, 0.825,
        measured("late_normalized_edq", "plain"),
    ),
    Claim(FINDINGS, "`fp32-optim` ends .009 above", "own_rates", 1, own("fp32-optim")),
    Number(
        FINDINGS, "one weight in a hundred ignores its update late", "own_rates", 0.008, 0.012,
        measured("late_lost", "kahan", "collage-light"),
    ),
    Claim(
        FINDINGS, "the losses are not told apart from fp32 master weights", "own_rates", 0,
        own("kahan", "collage-light"),
    ),
    Claim(
        FINDINGS, "Nor are those of `collage-plus`, and of stochastic rounding at 8 bytes", "own_rates", 0,
        own("collage-plus", "stochastic-parameter", "stochastic"),
    ),
    Claim(
        FINDINGS, "no loss is told by it", "own_rates", 0,
        lambda: [*between("kahan", "collage-plus")(), *between("collage-light", "collage-plus")()],
    ),
    Number(
        FINDINGS, "m is .06 % too long", "first_moment", 1.00055, 1.00067, lengths("double(.9)"),
    ),
    Number(
        FINDINGS, "it is .03 % too short", "first_moment", 0.9996, 0.9997, lengths("double(.9) -1 ulp"),
    ),
    Claim(
        FINDINGS, "and the loss is not told apart", "first_moment", 0,
        one_ulp("double(.9) -1 ulp", "double(.9)"),
    ),
    Claim(
        FINDINGS, "the loss is .008 higher at a rate of 3e-4", "first_moment", 1,
        lambda: one_ulp("double(.9), scalars rounded", "double(.9)")()[:1],
    ),
    Claim(
        RESULTS, "trainings on both sides of it are not told apart", "first_moment", 0,
        one_ulp("double(.9) -1 ulp", "double(.9)"),
    ),
    Claim(
        RESULTS, "it is .0001 higher than with exact ones", "first_moment", 1,
        one_ulp("double(.9), scalars in float32", "double(.9)"),
    ),
    Claim(
        RESULTS, "it is higher by .0002 at beta2 = .95", "first_moment", 1,
        lambda: one_ulp("double(.9), m in 2 components", "double(.9)")()[1:],
    ),
    Claim(
        RESULTS, "and not told apart at .999", "first_moment", 0,
        lambda: one_ulp("double(.9), m in 2 components", "double(.9)")()[:1],
    ),
    Claim(
        RESULTS, "**Rounded scalars cost .008 to .011** at this rate", "first_moment", 1,
        one_ulp("double(.9), scalars rounded", "double(.9)"),
    ),
    Claim(RESULTS, "**The control holds.**", "own_rates", 0, own("split-master")),
    Claim(RESULTS, "**`plain` ends .010 above `fp32-master`**", "own_rates", 1, own("plain")),
    Claim(RESULTS, "`fp32-optim` .009 above", "own_rates", 1, own("fp32-optim")),
    Claim(
        RESULTS, "- **Not told apart from it** are `kahan`", "own_rates", 0,
        own(
            *("kahan", "collage-light", "collage-plus", "stochastic-parameter", "stochastic"),
            *("remainder-8", "fp8-moments", "int8-moments"),
        ),
    ),
    Claim(RESULTS, "`eco` ends .009 below.", "own_rates", -1, own("eco")),
    Number(
        RESULTS, "a third of its updates arrive late", "own_rates", 0.3, 0.37,
        measured("late_normalized_edq", "eco"),
    ),
    Claim(
        RESULTS, "`plain` and `fp32-optim` end .03 above", "collage_options", 1,
        stepwise("0.95", "plain", "fp32-optim"),
    ),
    Claim(
        RESULTS, "at .999 not even they are told apart", "collage_options", 0,
        stepwise("0.999", "plain", "fp32-optim"),
    ),
    Claim(
        RESULTS, "`collage-plus` ends .006 above at .95", "collage_options", 1,
        stepwise("0.95", "collage-plus"),
    ),
    Claim(
        RESULTS, "with m in two components .009 below at .999", "collage_options", -1,
        stepwise("0.999", "collage-plus, m in 2"),
    ),
    Claim(
        RESULTS, "the eight seeds of the larger model do not tell `collage-plus` apart", "own_rates", 0,
        own("collage-plus"),
    ),
    Number(
        AVERAGES, "17 % of the numbers do not move in the last 50 steps", STALLED, 0.165, 0.175,
        lambda: [stalled_averages.last("0.999", name) for name in ("bf16", stalled_averages.TORCH)],
    ),
    Number(
        AVERAGES, "v is 18 % too large in the median", STALLED, 1.175, 1.185,
        lambda: [stalled_averages.ratios("0.999", name) for name in ("bf16", stalled_averages.TORCH)],
    ),
    Number(
        AVERAGES, "in two components, and in float32, all of them move", STALLED, 0.0, 0.0,
        lambda: [stalled_averages.last("0.999", name) for name in ("bf16, 2 components", "fp32")],
    ),
    Number(
        AVERAGES, "At .95 all numbers of bf16 move", STALLED, 0.0, 0.0,
        lambda: [stalled_averages.last("0.95", name) for name in stalled_averages.STYLES],
    ),
    Claim(FINDINGS, "ends above fp32 master weights: by", LATE, 1, late("plain", *late_training.SCHEDULES)),
    Number(FINDINGS, "by .008 to .014 after a cosine", LATE, 0.0075, 0.0145, late("plain", COSINE)),
    Number(FINDINGS, "by .05 to .08 at a constant small rate", LATE, 0.0485, 0.0805, late("plain", SMALL)),
    Claim(
        RESULTS, "**Plain bf16 ends above fp32 master weights at every size and by both schedules**", LATE, 1,
        late("plain", *late_training.SCHEDULES),
    ),
    Number(RESULTS, "by .008 to .014 after the cosine", LATE, 0.0075, 0.0145, late("plain", COSINE)),
    Number(RESULTS, "by .05 to .08 at the constant small rate", LATE, 0.0485, 0.0805, late("plain", SMALL)),
    Number(
        RESULTS, "a quarter of the update arrives or less", LATE, 0, 0.255,
        arriving("normalized_edq", "plain", SMALL),
    ),
    Number(
        RESULTS, "88 to 95 % of the weights ignore theirs", LATE, 0.875, 0.955,
        arriving("lost", "plain", SMALL),
    ),
    Number(
        RESULTS, "is off by .02 to .06 in the mean over the recorded steps", LATE, 0.015, 0.065,
        forecast_errors,
    ),
    Number(
        RESULTS, "of each recorded one .999 or more arrives", LATE, 0.999, 1.001,
        arriving("normalized_edq", "collage-plus", *late_training.SCHEDULES),
    ),
    Claim(
        DQT, "**With all tensors on the released grid 8 bits end 78 % above BitNet at width 64", PUBLISHED, 1,
        as_published(dqt_published.PUBLISHED, widths=(64, 128, 256)),
    ),
    Number(
        DQT, "8 bits end 78 % above BitNet at width 64", PUBLISHED, 0.775, 0.785,
        as_published(dqt_published.PUBLISHED, "AdamW", widths=(64,)),
    ),
    Number(
        DQT, "50 % at 128", PUBLISHED, 0.495, 0.505,
        as_published(dqt_published.PUBLISHED, "AdamW", widths=(128,)),
    ),
    Number(
        DQT, "20 % at 256", PUBLISHED, 0.195, 0.206,
        as_published(dqt_published.PUBLISHED, "AdamW", widths=(256,)),
    ),
    Claim(
        DQT, "at 512 three seeds do not tell it from zero", PUBLISHED, 0,
        as_published(dqt_published.PUBLISHED, "AdamW", widths=(512,)),
    ),
    Claim(
        DQT, "8 bits are not told apart from it after 150 steps at any width by AdamW", PUBLISHED, 0,
        as_published(dqt_published.MATRICES, "AdamW"),
    ),
    Claim(
        DQT, "nor at 64 to 256 by Adafactor", PUBLISHED, 0,
        as_published(dqt_published.MATRICES, "Adafactor", widths=(64, 128, 256)),
    ),
    Claim(
        DQT, "Adafactor ends 7 % above it", PUBLISHED, 1,
        as_published(dqt_published.MATRICES, "Adafactor", widths=(512,)),
    ),
    Claim(
        DQT, "after 300 steps they end 4 % above it at width 128", PUBLISHED, 1,
        as_published(dqt_published.MATRICES, steps=(300,)),
    ),
    Claim(
        DQT, "after 75 steps 3 % below it", PUBLISHED, -1,
        as_published(dqt_published.MATRICES, steps=(75,)),
    ),
    Claim(
        DQT, "8 bits are not told apart from BitNet at any width or length", PUBLISHED, 0,
        as_published(dqt_published.WIDE, steps=dqt_published.LENGTHS),
    ),
    Claim(
        STRATEGIES_PAGE, "end 1.8 to 2.1 above fp32 master weights", "strategy_losses", 1,
        lambda: all_strategies("own", lambda name: name.startswith("dqt")),
    ),
    Claim(
        STRATEGIES_PAGE, "No other strategy is told apart from `fp32-master`", "strategy_losses", 0,
        lambda: [
            *all_strategies("own", lambda name: not name.startswith("dqt")),
            *all_strategies("common", lambda name: not name.startswith("dqt")),
        ],
    ),
    Claim(
        DQT, "above BitNet, whose grid grows", "dqt_bits", 1,
        grids("dqt_bits", *(f"dqt-int{bits}" for bits in (6, 7, 8))),
    ),
    Claim(SWITCH_PAGE, "ends .003 below plain bf16", "switch", -1, lambda: [-switch.lower(switch.LAST[0])]),
    Claim(
        SWITCH_PAGE, ".075 above fp32 master weights", "switch", 1,
        lambda: [switch.gap() - switch.lower(switch.LAST[0])],
    ),
    Claim(
        SWITCH_PAGE, "are not told apart from those in `fp32`", "switch", 0,
        lambda: [switch.lower(last) - switch.lower(last, switch.LATE[1]) for last in switch.LAST],
    ),
    Claim(DQT, "8 bits end below BitNet.", "dqt_bits", -1, grids("dqt_bits", WIDE)),
    Claim(
        DQT, "weights of 4 bits and more ends below training in ternary", "dqt_bits", -1,
        in_ternary(4, 5, 6, 7, 8),
    ),
    Claim(DQT, "of 3 bits three seeds do not tell it from training in ternary", "dqt_bits", 0, in_ternary(3)),
    Claim(DQT, "8 bits end 71 % above BitNet at this width", "dqt_bits", 1, grids("dqt_long", "dqt-int8")),
    Claim(DQT, "8 bits end 2 % above;", "dqt_bits", 1, grids("dqt_long", "dqt-int8, max-abs scale")),
    Claim(DQT, "three seeds do not tell them from BitNet", "dqt_bits", 0, grids("dqt_long", WIDE)),
    Claim(DQT, "they end 4 % below it", "dqt_bits", -1, grids("dqt_long", f"{WIDE}, max-abs scale")),
    Claim(
        DQT, "8 bits end 2 % above BitNet after 400 steps", "dqt_tensors", 1,
        on_grids(dqt_tensors.MATRICES, (64, 400)),
    ),
    Claim(
        DQT, "not told apart after 120", "dqt_tensors", 0,
        on_grids(dqt_tensors.MATRICES, *((width, 120) for width in dqt_tensors.WIDTHS)),
    ),
    Claim(
        ADAPTERS, "plain bf16 ends .013 above fp32 master weights", "adapters", 1, adapted("best", "plain"),
    ),
    Number(
        ADAPTERS, "plain bf16 ends .013 above fp32 master weights", "adapters", 0.0125, 0.0135,
        adapted("best", "plain"),
    ),
    Claim(ADAPTERS, "at an eighth of that rate .017 above", "adapters", 1, adapted("low", "plain")),
    Number(
        ADAPTERS, "at an eighth of that rate .017 above", "adapters", 0.0165, 0.0175, adapted("low", "plain"),
    ),
    Claim(
        ADAPTERS, "`collage-light` are not told apart from fp32 master weights at their best rates",
        "adapters", 0, adapted("best", "kahan", "collage-light"),
    ),
    Claim(
        ADAPTERS, "at the low rate they end .0002 below", "adapters", -1,
        adapted("low", "kahan", "collage-light"),
    ),
    Claim(ADAPTERS, "end .016 below plain bf16", "adapters", -1, in_fp32("low", "gains")),
    Number(ADAPTERS, "end .016 below plain bf16", "adapters", -0.0165, -0.0155, in_fp32("low", "gains")),
    Claim(ADAPTERS, "A and B in fp32 end .001 below it", "adapters", -1, in_fp32("low", "A and B")),
    Claim(
        ADAPTERS, "eight seeds do not tell gains in fp32 from plain bf16, nor A and B in fp32", "adapters", 0,
        in_fp32("best", "gains", "A and B"),
    ),
    Number(
        ADAPTERS, "off by .01 at most, in the mean of the seeds", "adapters", -0.01, 0.01,
        adapters_forecast("gradients"),
    ),
    Number(
        ADAPTERS, "from the start alone by .07 at most", "adapters", -0.07, 0.07,
        adapters_forecast("nothing"),
    ),
)  # fmt: skip


def _repeated() -> Iterator[Statement]:
    """Yield the findings that the README repeats, in the same words, as statements of the README."""
    text = " ".join((ROOT / "README.md").read_text().split())
    for item in _STATED:
        if item.page == FINDINGS and item.says in text:
            yield replace(item, page="README.md")


CLAIMS = (*_STATED, *_repeated())


def table(page: str = FINDINGS) -> str:
    """Return what a page says, with the numbers, their intervals and the command that measures them."""
    return markdown_table(
        [
            {
                "sentence": item.says.replace("|", "\\|"),
                "mean (95 % interval)": item.shown(),
                "`python -m`": f"`experiments.{item.experiment}`",
            }
            for item in CLAIMS
            if item.page == page
        ]
    )


# -- sentences that compare ---------------------------------------------------------------------------------
_COMPARES = re.compile(r"\b(better|worse|below|above|higher|lower|beats?|ahead|behind)\b")
_NAMES = "|".join(sorted((re.escape(f"`{name}`") for name in (*STRATEGIES, *GRID_STRATEGIES)), key=len))
_OPTION = re.compile(rf"{_NAMES}|master weights|master copy|BitNet|plain bf16|bits end|trainings?\b", re.I)
#: Words of sentences that compare something other than losses.
ELSEWHERE: tuple[str, ...] = (
    "q being the quotient above",
    "only the lower half is stored beside it",
    "the lower half's first bit",
    "a zero may hide lower magnitudes",
    "One training is said to be above another where",
    "where `lost` is below .01",
    "and beta2 above .996?",
    "a mean below its loss included",
)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page, without its code, tables and pictures."""
    text = re.sub(
        r"```.*?```|<!-- table.*?<!-- end of table -->|!\[[^\]]*\]\([^)]*\)",
        " ",
        page.read_text(),
        flags=re.S,
    )
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-#|]|\d+\.) )", text):
        if not block.lstrip().startswith("|"):
            yield from re.split(r"(?<=[.:;!?])\**\s+(?=[*`A-Z(\[])", " ".join(block.split()))


def unsupported(page: Path) -> list[str]:
    """Return the sentences of a page that compare options without being the subject of a claim."""
    name = page.relative_to(ROOT).as_posix()
    known = [claim.says for claim in CLAIMS if claim.page == name]
    return [
        sentence
        for sentence in sentences(page)
        if _COMPARES.search(sentence)
        and _OPTION.search(sentence)
        and not any(says in sentence or sentence in says for says in known)
        and not any(words in sentence for words in ELSEWHERE)
    ]
