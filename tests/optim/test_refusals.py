"""What optimizers, strategies and what these are made of refuse, and what they say."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import Strategy, strategy
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.models.plan import Plan
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.declaration import Declaration, Slot, optimizers
from mcfsim.optim.layout import Layout
from mcfsim.optim.state import error_weight
from mcfsim.optim.stored import WeightGrid
from mcfsim.optim.strategies import FLOAT32, LOW, Stored
from mcfsim.optim.torchadamw import TorchAdamW
from mcfsim.optim.torchmuon import TorchMuon
from mcfsim.report.algorithms import record
from mcfsim.rounding import Rounding
from mcfsim.scaled.quantisers import DynamicMap, RangeExpansion
from tests.optim.stored import Changing, Stretches, made, some_tensors
from tests.shared.kinds import UNPACKED


def rows(make, error, *cases):
    """Return rows of a table: of options that a call with them raises an error with a message."""
    return [(make, error, *case) for case in cases]


# -- strategies ----------------------------------------------------------------------------------------------
KAHAN, MASTER = {"addition": "kahan", "extra": Stored(LOW)}, {"addition": "master", "extra": Stored(FLOAT32)}
SHARED, UP = Stored(FLOAT32, shared=True), Stored(LOW, rounding="up")
ON_GRID, EIGHT = {"parameter": Stored(LOW, grid="int8")}, Stored(FLOAT32, remainder=8)
APART, OF_PARAMETER = "do not go together", "only a master copy shares bits with the parameter"
AWAY = "rounds nearest_away or toward_zero, which change these bits by one or not at all, not None"
DECLARED = rows(
    partial(Strategy, "mine"),
    ValueError,
    *(({"addition": name}, "extra = None do not go together") for name in ("kahan", "master")),
    *(({"addition": name, "extra": Stored(LOW)}, APART) for name in ("plain", "grow")),
    ({"parameter": Stored(LOW, 2)}, "needs addition='grow'"),
    ({"beta2_components": 0}, "must be at least 1"),
    ({"beta2_components": 2}, "cannot multiply a v of 1"),
    (KAHAN | {"extra": Stored(LOW, 2)}, "extra holds one number per element, not 2"),
    (KAHAN | {"extra": Stored(FLOAT32)}, "a compensation is in the parameter's format"),
    ({"addition": "add"}, "unknown addition 'add'; allowed: plain, kahan, grow, master, feedback"),
    ({"gradient": UP}, "a gradient has no rounding of its own"),
    (KAHAN | {"extra": UP}, "a compensation has no rounding of its own"),
    (KAHAN | {"extra": Stored(LOW, scaled="mxfp8_e4m3")}, "only moments are kept in a scaled"),
    ({"parameter": Stored(LOW, shared=True)}, OF_PARAMETER),
    (KAHAN | {"extra": Stored(LOW, shared=True)}, OF_PARAMETER),
    (MASTER | {"extra": SHARED}, AWAY),
    ({"m": Stored(LOW, 2), "addition": "feedback"}, "an m of one component"),
    ({"m": Stored(LOW, grid="int8")}, "mine: only the parameter lies on a grid"),
    (KAHAN | ON_GRID, "needs addition 'plain' or 'master'"),
    (MASTER | ON_GRID | {"extra": EIGHT}, "whole"),
    (MASTER | {"m": EIGHT}, "only a master copy has a remainder, not m"),
    (MASTER | {"extra": EIGHT, "parameter": UP}, "which must round to nearest, not up"),
)
stored, DRAWN = partial(Stored, format=LOW), {"rounding": "stochastic"}
STORED = rows(
    stored,
    ValueError,
    ({"components": 0}, "components = 0"),
    ({"rounding": "nearest_evn"}, r"unknown rounding 'nearest_evn' \(did you mean"),
    ({"format": None, "rounding": "up"}, "exact numbers are not rounded"),
    ({"scaled": "mxfp9"}, r"unknown scaled format 'mxfp9' \(did you mean"),
    ({"scaled": "mxfp8_e4m3", "components": 2}, "keeps one number of a format per element"),
    ({"scaled": "nvfp4_16x16"}, "tiles of a matrix"),
    ({"scaled": "nvfp4_eden"}, "rule 'eden' is for operands of products; moments take floor, ceil"),
    *(({"remainder": bits}, "remainder") for bits in (1, 17)),
    ({"random_bits": 4}, "random_bits: only a rounding of its own that is 'stochastic' .*, not None"),
    ({"rule": "centred", "rounding": "up"}, "rule: only a rounding of its own that is 'stochastic'"),
    (DRAWN | {"random_bits": 0}, "must lie between 1 and 32"),
    (DRAWN | {"rule": "no"}, "unknown rule 'no'"),
    ({"format": "float8_e4m3fn", "grid": "int8"}, "does not hold the integers of int8"),
    ({"format": "posit16", "grid": "int4"}, "floating-point format with NaN, not posit16"),
    ({"components": 2, "grid": "int4"}, "one number of a format"),
)
STORED += rows(
    stored,
    TypeError,
    ({"rounding": Rounding("up")}, "the rounding of a tensor is the name of a mode"),
    ({"shared": 1}, "shared must be True or False, not 1"),
    ({"remainder": 8.0}, "remainder"),
    (DRAWN | {"random_bits": 2.0}, "random_bits must be an int"),
)
#: Fields of a strategy that go together with others, but not in these formats.
CHANGED = rows(
    lambda name, low="bfloat16", **changes: replace(strategy(name, low), **changes),
    UnsupportedFormatError,
    *(
        ({"name": "split-master", "low": low}, f"codes of {low} are not the leading bits of those")
        for low in ("float16", "float8_e5m2", "posit16", "float32")
    ),
    ({"name": "split-master", "extra": Stored("float64", shared=True)}, "not the .* bits .* of float64"),
    ({"name": "remainder-8", "extra": Stored("float64", remainder=8)}, "lower than float32"),
    *(({"name": "remainder-8", "parameter": Stored(x)}, "lower than float32") for x in (FLOAT32, "posit16")),
    *(({"name": name, "low": "posit16"}, "posit16") for name in ("collage-light", "collage-plus", "mcf-2")),
)
BOTH = {"extra": Stored(FLOAT32, remainder=8, shared=True)}
CHANGED += rows(partial(replace, strategy("split-master")), ValueError, (BOTH, "not both"))
CHANGED += rows(partial(replace, strategy("remainder-8")), ValueError, (BOTH, "rounds nearest_away"))
BITS = "under overflow 'ieee' and underflow 'gradual', not"
POLICIES = [({"overflow": "saturate"}, BITS), ({"underflow": "flush_after"}, BITS)]
CHANGED += rows(strategy("split-master").roles, ValueError, *POLICIES)
BITS = "underflow must be 'gradual', not flush_after"
CHANGED += rows(strategy("remainder-8").roles, ValueError, ({"underflow": "flush_after"}, BITS))
#: Names, grids and quantisers.
NAMES = [
    *rows(
        strategy,
        ValueError,
        ({"name": "colage-plus"}, r"unknown strategy 'colage-plus' \(did you mean 'collage-plus'\?\)"),
        ({"name": "xyz"}, f"known strategies: {', '.join([*mcf.STRATEGIES, *mcf.GRID_STRATEGIES])}$"),
        ({"name": "plain", "low": "bfloat17"}, "unknown format"),
        ({"name": Strategy("x", Stored(LOW, grid="int8")), "low": "float8_e5m2"}, "does not hold"),
    ),
    *rows(
        partial(WeightGrid, integers="int8"),
        ValueError,
        ({"integers": "int1"}, "unknown grid 'int1'"),
        ({"integers": mcf.Grid(low=-8, high=7, fraction_bits=2)}, "has fractions of them"),
        ({"reach": "maxx"}, r"unknown reach 'maxx' \(did you mean 'max'\?\)"),
        ({"start": "fixed"}, "is not 'fixed'"),
        ({"rounding": "random"}, "unknown rounding 'random'"),
    ),
    (WeightGrid, TypeError, {"integers": 8}, "lie on integers, such as 'int8' or 'ternary', not on 8"),
    (partial(DynamicMap, "x", signed=True), ValueError, {"block": 0}, "block = 0 must be at least 1"),
    (partial(RangeExpansion, "x"), ValueError, {"block": 100}, "must be a multiple of 32"),
    (partial(RangeExpansion, "x"), ValueError, {"steps": 0}, "steps = 0 must be at least 1"),
]

# -- declarations and optimizers -----------------------------------------------------------------------------
M, V = mcf.AdamW.slots
BARE, OTHERS = replace(V, average=None), ("n", "mv", "", "v2", "M", "parameter", None, 0, ("m",))
NAMED = r"a slot is named 'm' or 'v', not .* cannot be declared"
MASKED = np.ma.masked_equal([1.0, 2.0, 3.0], 2.0)
WIDE = Strategy("wide", m=Stored("float64"), v=Stored("float64"))
BY_CHANCE = Adafactor(accumulator=mcf.Accumulator("bfloat16", "stochastic", block=2))
PACKED = [("exact", "exact numbers have no codes"), ("bitnet", "'bitnet' keeps weights on a grid, as")]
PACKED += [(name, "its codes are of no") for name in UNPACKED]
WITHOUT = [kind() for name, kind in optimizers().items() if name not in ("adamw", "sgd")]
FED = "has no formula for that; these have: AdamW, SGD"
OPTIMIZERS = [
    *rows(
        partial(made, 3),
        ValueError,
        *(({"strategy": name, "packed": True}, text) for name, text in PACKED),
        *(({"strategy": "eco", "hyper": x}, FED) for x in WITHOUT),
        ({"hyper": BY_CHANCE}, "sums of a mean are not rounded at random"),
        ({"hyper": Adafactor(), "underflow": "flush_inputs"}, "flush_inputs"),
    ),
    *rows(
        lambda start=3, **given: made(start, **given),  # and not at a first step, which spoils the state
        UnsupportedFormatError,
        ({"hyper": Adafactor(), "strategy": WIDE}, "float64"),
        ({"low": "float64"}, "fma in float64, rounding nearest_even, has no exact path"),
        ({"hyper": mcf.Muon(), "low": "float64"}, "fma in float64"),
        ({"low": "float64", "rounding": "up"}, "mul in float64, rounding up, has no exact path"),
        ({"low": mcf.Format("wide", precision=41, emin=-1022, emax=1023)}, "mul in wide"),
        ({"hyper": TorchMuon(), "start": some_tensors(), "underflow": "flush_after"}, "choose in bfloat16"),
    ),
    (partial(made, 3), TypeError, {"packed": 1}, "packed must be True or False"),
    (Adafactor, TypeError, {"accumulator": "bf16"}, "accumulator must be an Accumulator or None, not 'bf16'"),
    *((partial(Slot, average=M.average), ValueError, {"name": name}, NAMED) for name in OTHERS),
]


def own(**fields):
    return type("Own", (Declaration,), fields)


OPTIMIZERS += [
    (own, ValueError, {"slots": (M, M)}, "each slot of state is named once"),
    (own, ValueError, {"slots": (M, BARE)}, "slot 'v' needs an average; only steps in stages go without"),
    (own, TypeError, {"slots": (M, None)}, r"slots must be Slot\(name, average\)"),
]


# -- calls of several things ---------------------------------------------------------------------------------
X = some_tensors()
LAYOUT, SHORTER, ONE = Layout(X), {"bias": X["bias"]}, {"a": Changing(np.ones(6))}
CUT = X | {"cube": Stretches(X["cube"], end=5)}
NEGLIGIBLE = r"'eco' divides the errors that it feeds back by the learning rate, and 5e-324 is too small"
OTHER_POINTS = r"an audit is of mcfsim.AdamW\(...\), not of TorchAdamW\(beta1=0.9"
recorded = partial(record, "adamw", mcf.get_format("bf16"), Rounding())


def audit(hyper, name="plain"):
    return Plan(hyper, mcf.Schedule(), 10, (strategy(name),))


CALLS = [
    (lambda: Adafactor().step(*[None] * 5), TypeError, "a step of Adafactor is no straight line"),
    (lambda: error_weight(strategy("eco"), -0.1, 5e-324), ValueError, NEGLIGIBLE),
    (lambda: Layout({}), ValueError, "there are no parameters"),
    (lambda: Layout(X, {"matrix", "no"}), ValueError, r"\['no'\] are not among the parameters"),
    (lambda: LAYOUT.join(SHORTER), ValueError, r"expected the tensors .* not \['bias'\]"),
    (lambda: LAYOUT.blocks(SHORTER, 4), ValueError, "expected the tensors"),
    (lambda: LAYOUT.join(X | {"matrix": X["matrix"].T}), ValueError, r"shape \(2, 3\), not \(3, 2\)"),
    (lambda: LAYOUT.blocks(X | {"cube": Stretches([1])}, 4), ValueError, "'cube' must have shape"),
    (lambda: LAYOUT.blocks(X | {"bias": MASKED}, 4), TypeError, "tensor 'bias' is a masked array"),
    (lambda: list(LAYOUT.blocks(CUT, 4)[1]), ValueError, r"'cube' gives .* shape \(3,\) .* 2 to 6"),
    (lambda: list(Layout(ONE).blocks(ONE, 4)[1]), ValueError, "float64 from element 4 on, float32 before"),
    # Audits and records of the points of other steps, or that grids follow.
    (partial(audit, TorchAdamW()), TypeError, OTHER_POINTS),
    (partial(audit, mcf.AdamW(), "dqt-int8"), ValueError, "an audit forecasts nothing about"),
    (partial(made, 3, backend="native"), UnsupportedFormatError, "fma in native bfloat16: .*backend='numpy'"),
    (partial(recorded, strategy="dqt-int8"), ValueError, "puts its weights on a grid after each step"),
]


@pytest.mark.parametrize(
    ("make", "error", "given", "message"), [*DECLARED, *STORED, *CHANGED, *NAMES, *OPTIMIZERS]
)
def test_options(make, error, given, message):
    with pytest.raises(error, match=message):
        make(**given)


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()
