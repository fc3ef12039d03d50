"""Bit-exact emulation of low-precision training, with measures of what rounding costs."""

import typing

from mcfsim import codec, eft, packing
from mcfsim.backends.factory import arithmetic
from mcfsim.backends.meter import Meter
from mcfsim.convert import round_to
from mcfsim.eft import fast_two_sum, split, two_prod, two_prod_fma, two_sum
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format, p3109
from mcfsim.models.recorder import Recorder, record
from mcfsim.models.replay import replay
from mcfsim.multiword import double_word, expansion
from mcfsim.multiword.expansion import add as expansion_add
from mcfsim.multiword.expansion import div as expansion_div
from mcfsim.multiword.expansion import expand, grow, renormalize
from mcfsim.multiword.expansion import mul as expansion_mul
from mcfsim.multiword.expansion import scale as expansion_scale
from mcfsim.multiword.expansion import sqrt as expansion_sqrt
from mcfsim.optim.adamw import AdamW, adamw
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.sgd import SGD, sgd
from mcfsim.optim.strategies import GRID_STRATEGIES, STRATEGIES, Strategy, strategy
from mcfsim.optim.strategy import VanishingScalarWarning
from mcfsim.products import UNITS, Accumulator, Unit, dot, get_unit, matmul
from mcfsim.protocol import Arithmetic, straight_line
from mcfsim.random import RandomWords
from mcfsim.rounded_array import RoundedArray, array
from mcfsim.rounding import Rounding
from mcfsim.scaled import (
    SCALED,
    DelayedScale,
    Scaled,
    ScaledFormat,
    ScaleRule,
    get_scaled_format,
    quantize,
)
from mcfsim.scaled.hadamard_transform import hadamard
from mcfsim.training import metrics
from mcfsim.training.problems import get_problem
from mcfsim.training.record import Run
from mcfsim.training.schedule import Schedule
from mcfsim.training.setup import Phase, PrecisionSchedule
from mcfsim.training.simulate import simulate

if typing.TYPE_CHECKING:
    from mcfsim.analysis.analyse import analyse
    from mcfsim.analysis.curves import curve
    from mcfsim.analysis.moving_average import MovingAverage
    from mcfsim.models.adapters import merge_adapter
    from mcfsim.models.transfer import Delta, apply_delta
    from mcfsim.optim.muon import Muon
    from mcfsim.optim.newton_schulz import NewtonSchulz, orthogonalize
    from mcfsim.report.plot import plot
    from mcfsim.theorems import THEOREMS, Certificate, Theorem, verify
    from mcfsim.training.gradients import Reduction, reduce

__all__ = [
    "FORMATS",
    "GRID_STRATEGIES",
    "SCALED",
    "SGD",
    "STRATEGIES",
    "THEOREMS",
    "UNITS",
    "Accumulator",
    "AdamW",
    "Arithmetic",
    "Certificate",
    "DelayedScale",
    "Delta",
    "Format",
    "Grid",
    "Meter",
    "MovingAverage",
    "Muon",
    "NewtonSchulz",
    "Optimizer",
    "Phase",
    "Posit",
    "PrecisionSchedule",
    "RandomWords",
    "Recorder",
    "Reduction",
    "RoundedArray",
    "Rounding",
    "Run",
    "ScaleRule",
    "Scaled",
    "ScaledFormat",
    "Schedule",
    "Strategy",
    "Theorem",
    "Unit",
    "VanishingScalarWarning",
    "adamw",
    "analyse",
    "apply_delta",
    "arithmetic",
    "array",
    "codec",
    "curve",
    "dot",
    "double_word",
    "eft",
    "expand",
    "expansion",
    "expansion_add",
    "expansion_div",
    "expansion_mul",
    "expansion_scale",
    "expansion_sqrt",
    "fast_two_sum",
    "get_format",
    "get_problem",
    "get_scaled_format",
    "get_unit",
    "grow",
    "hadamard",
    "matmul",
    "merge_adapter",
    "metrics",
    "orthogonalize",
    "p3109",
    "packing",
    "plot",
    "quantize",
    "record",
    "reduce",
    "renormalize",
    "replay",
    "round_to",
    "sgd",
    "simulate",
    "split",
    "straight_line",
    "strategy",
    "two_prod",
    "two_prod_fma",
    "two_sum",
    "verify",
]

#: Names whose modules take long to import: imported at first use.
_LATER = {
    **dict.fromkeys(("THEOREMS", "Certificate", "Theorem", "verify"), "mcfsim.theorems"),
    **dict.fromkeys(("NewtonSchulz", "orthogonalize"), "mcfsim.optim.newton_schulz"),
    "Muon": "mcfsim.optim.muon",
    **dict.fromkeys(("Reduction", "reduce"), "mcfsim.training.gradients"),
    "merge_adapter": "mcfsim.models.adapters",
    **dict.fromkeys(("Delta", "apply_delta"), "mcfsim.models.transfer"),
    **{"analyse": "mcfsim.analysis.analyse", "curve": "mcfsim.analysis.curves", "plot": "mcfsim.report.plot"},
    "MovingAverage": "mcfsim.analysis.moving_average",
}
_FOLDERS = ("analysis", "functions", "theorems")


def __getattr__(name: str) -> typing.Any:
    from importlib import import_module

    if name in _FOLDERS:
        return import_module(f"mcfsim.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOLDERS, *_LATER})
