"""What stands for numbers and is none: no protocol of Python's answers as if it were one."""

import importlib
import math
import operator
import pkgutil
import random
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.checks.opaque import Opaque
from mcfsim.compile.program import Scalar
from mcfsim.compile.recording import Traced, trace
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import F64, Line, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic import SymbolicArithmetic, SymbolicValue, u
from mcfsim.theorems import elementwise, homogeneity, paths, recorded, recorded_exact, trial, value
from mcfsim.theorems.compiled import RecordedTrial
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.solver import forms, numbers
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.two_words import TwoWords
from tests.shared.branching import DECISIONS, branching

BFLOAT16, STOCHASTIC = get_format("bfloat16"), Rounding(Mode.STOCHASTIC)


@pytest.fixture(scope="module")
def modules():
    """Import all of the package that can be imported here."""
    found = []
    for module in pkgutil.walk_packages(mcf.__path__, "mcfsim."):
        with suppress(ImportError):
            found.append(importlib.import_module(module.name))
    return found


def _below(kind):
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _trial():
    ar = BlockArithmetic(BFLOAT16, Rounding(), "exact")
    a, b = np.float32([1, 2]), np.float32([2, 3])
    return trial.Trial(ar, ("x", "a"), ((a, b), a), (b, a))


def _exact(*given):
    return Exact.of(np.array(given, np.float64))


def _traced():
    seen = []
    trace(lambda ar, a, b: seen.append((a, ar.add(a, b))) or a, "bfloat16")
    return seen[0]


def _line():
    line = Line()
    return line, line.input("a", F64), line.input("b", F64)


def _recorded():
    line, a, b = _line()
    recorder = recorded.Recorder(line, lambda x: recorded_exact.RecordedExact.of(x))
    return tuple(recorded.Recorded(recorder, x, get_format("float8_e4m3fn")) for x in (a, b))


def _paths():
    ar = paths.EveryPath(BlockArithmetic(BFLOAT16, STOCHASTIC, "exact"), 2)
    a = np.float32([1, 2])
    return ar, (ar.add(a, a), ar.neg(a))


def _quantities():
    ar = homogeneity.Scales(BFLOAT16, Rounding(), 2, False)
    return ar.operand(0), ar.operand(1)


def _unknown():
    ar = UnknownArithmetic()
    return ar, ar.operand(value("a")), ar.operand(value("b"))


def _mixed():
    x = _exact(1, 2)
    return trial.Mixed(x, x, x, Fraction(1), Fraction(2)), trial.Mixed(x, x, x, Fraction(1), Fraction(2))


#: Two instances of each class.
PAIRS = {
    Traced: _traced,
    Scalar: lambda: (Scalar("a"), Scalar("b")),
    Value: lambda: _line()[1:],
    SymbolicValue: lambda: tuple(map(SymbolicArithmetic().value, (1 + 2 * u, 1 - u))),
    numbers.Number: lambda: _unknown()[1:],
    forms.Form: lambda: tuple(x.value for x in _unknown()[1:]),
    forms.Formula: lambda: (forms.Formula(), forms.TRUE),
    forms.Comparison: lambda: tuple(forms.Comparison(x.value, False) for x in _unknown()[1:]),
    forms.AllOf: lambda: (forms.AllOf(()), forms.TRUE),
    forms.AnyOf: lambda: (forms.AnyOf(()), forms.AnyOf(())),
    homogeneity.Quantity: _quantities,
    paths._Value: lambda: _paths()[1],
    recorded.Recorded: _recorded,
    recorded_exact.RecordedExact: lambda: tuple(map(recorded_exact.RecordedExact.of, _recorded())),
    Exact: lambda: (_exact(1, 2), _exact(2, 2)),
    TwoWords: lambda: (TwoWords.of(np.arange(3)), TwoWords.of(np.ones(3, np.int64))),
    trial.Measured: lambda: (trial.Measured(_exact(1, 2), _exact(1, 1)),) * 1 + _mixed()[:1],
    trial.Mixed: _mixed,
    trial.Trial: lambda: (_trial(), _trial()),
    paths.Paths: lambda: (lambda ar, x: (ar.trial(("a",), x[:1], x), ar.trial(("a",), x[:1], x)))(*_paths()),
    RecordedTrial: lambda: tuple(RecordedTrial(None, ("a",), (x,), (x,)) for x in _recorded()),
    elementwise.Components: lambda: (_trial().results, _trial().operands[0]),
}
ABSTRACT = {elementwise.Elementwise, elementwise.Whole}

ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
COMPARISONS = {"==": operator.eq, "!=": operator.ne, **ORDER}
#: Of two things, of which the first is looked at; the other is another one, or a number.
BINARY = {
    **COMPARISONS,
    "in": operator.contains,
    "among": lambda x, y: x in [y],
    "index": lambda x, y: [y].index(x),
    "count": lambda x, y: [y].count(x),
    "min": min,
    "max": max,
    "sorted": lambda x, y: sorted([x, y]),
    "tuples": lambda x, y: (x,) == (y,),
    "copysign": lambda x, y: math.copysign(1.0, x),
    "isclose": lambda x, y: math.isclose(x, 1.0),
    "np.maximum": np.maximum,
    "np.equal": np.equal,
    "divmod": divmod,
}
UNARY = {
    "truth": bool,
    "not": operator.not_,
    "any": lambda x: any([x]),
    "hash": hash,
    "key": lambda x: {x: 1},
    "iter": iter,
    "next": next,
    "list": list,
    "len": len,
    "reversed": reversed,
    "float": float,
    "int": int,
    "complex": complex,
    "round": round,
    "round to": lambda x: round(x, 2),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "isnan": math.isnan,
    "operator.index": operator.index,
    "range": range,
    "bytes": memoryview,
    "np.sign": np.sign,
    "np.isnan": np.isnan,
    "np.nonzero": np.nonzero,
    "np.any": np.any,
}
#: What a class answers, and with what: something of each element, or a formula. Nothing else is answered.
ANSWERED = {
    Value: (recorded.Value, {*ORDER}),
    forms.Form: (forms.Formula, {*ORDER}),
    recorded.Recorded: (recorded.Recorded, {*COMPARISONS, "np.maximum", "np.equal", "np.sign", "np.isnan"}),
    recorded_exact.RecordedExact: (recorded.Recorded, {*COMPARISONS}),
    Exact: (np.ndarray, {*COMPARISONS}),
    TwoWords: (np.ndarray, {*COMPARISONS}),
}
#: Answers that are not about numbers: which register it is, for whoever carries a line out; whether a real
#: scalar takes part; the parts of a tuple.
HARMLESS = {
    Value: {"==", "!=", "among", "count", "tuples", "hash", "key"},
    Scalar: {"truth", "not", "any"},
    elementwise.Components: {"iter", "list", "len", "reversed", "np.nonzero", "np.any"},
}


@pytest.mark.slow
def test_there_are_two_of_each(modules):
    assert len(BINARY) + len(UNARY) > 40
    there = {kind for kind in _below(Opaque) if kind.__module__.startswith("mcfsim")}
    assert there == {*PAIRS, *ABSTRACT}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_no_protocol_answers(kind):
    x, y = PAIRS[kind]()
    assert type(x) is kind
    assert x is not y
    answer, answered = ANSWERED.get(kind, (None, ()))
    calls = [(name, ask, (x,)) for name, ask in UNARY.items()]
    calls += [(name, ask, (x, other)) for name, ask in BINARY.items() for other in (y, 0, 1.5, None)]
    calls += [(name, ask, (other, x)) for name, ask in COMPARISONS.items() for other in (0, np.float64(1))]
    for name, ask, given in calls:
        if name in HARMLESS.get(kind, ()):
            continue
        try:
            found = ask(*given)
        except (TypeError, ValueError):
            # As it is refused for another one, so it may be for what is none of its kind.
            assert name not in answered or given[-1] is not y or given[0] is not x, name
            continue
        assert name in answered, (name, found)
        assert isinstance(found, answer), (name, found)
        assert not isinstance(found, np.ndarray) or found.shape, name


# -- the arithmetics ----------------------------------------------------------------------------------------
#: Each arithmetic of the package, by whether what it computes with are numbers.
COMPUTES = {
    *("NumpyArithmetic", "BlockArithmetic", "_Operations", "NativeArithmetic", "TorchNativeArithmetic"),
    *("TorchArithmetic", "DeviceArithmetic", "ExactArithmetic", "Meter", "OracleArithmetic"),
    "FractionArithmetic",
}
STANDS_FOR = {
    "TraceArithmetic": lambda: _traced()[1],
    "SymbolicArithmetic": lambda: SymbolicArithmetic().add(1, 2),
    "UnknownArithmetic": lambda: _unknown()[0].add(*[_unknown()[0].number()] * 2),
    "Scales": lambda: homogeneity.Scales(BFLOAT16, Rounding(), 2, False).add(1, 1),
    "EveryPath": lambda: _paths()[1][0],
}


@pytest.mark.slow
def test_every_arithmetic_computes_with_numbers_or_with_what_answers_nothing(modules):
    found = {
        kind.__name__
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and kind.__module__.startswith("mcfsim")
        and all(callable(getattr(kind, name, None)) for name in ("add", "sub", "neg", "evaluate"))
    }
    assert found - {"Arithmetic", "Emulation"} - COMPUTES == {*STANDS_FOR}
    for name, result in STANDS_FOR.items():
        assert isinstance(result(), Opaque), name


# -- texts that branch --------------------------------------------------------------------------------------
@pytest.mark.parametrize("decision", [*DECISIONS, None])
def test_a_text_that_branches_is_not_recorded(decision):
    """Of each decision two, and some whose decision is drawn as well."""
    draw = random.Random(3)
    for _ in range(100 if decision is None else 2):
        text = branching(draw, 3, decision=decision)
        with pytest.raises((TypeError, AttributeError)):
            trace(text, "bfloat16", operands=("a", "b", "c"), lines=False)
