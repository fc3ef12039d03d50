"""What stands for numbers and is none: no protocol of Python's answers as if it were one."""

import importlib
import pkgutil
import random
from contextlib import suppress

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.analysis import expressions
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.checks import Opaque
from mcfsim.compile.tracing import record, trace
from mcfsim.formats import get_format
from mcfsim.kernels.element.machine import F64, Line, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems import homogeneity, paths, recorded, value
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.recorded import RecordedExact
from mcfsim.theorems.solver import unknown_numbers
from mcfsim.theorems.solver.unknown_numbers import UnknownArithmetic
from mcfsim.theorems.symbolic import SymbolicArithmetic
from mcfsim.theorems.two_words import TwoWords
from tests.shared.branching import DECISIONS, branching

BFLOAT16 = get_format("bfloat16")


def _below(kind):
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


@pytest.fixture(scope="module")
def kinds():
    """Return all classes of the package that can be imported here."""
    found = {*_below(Opaque)}
    for module in pkgutil.walk_packages(mcf.__path__, "mcfsim."):
        with suppress(ImportError):
            found |= {x for x in vars(importlib.import_module(module.name)).values() if isinstance(x, type)}
    found |= {*_below(Opaque)}
    return {kind for kind in found if kind.__module__.startswith("mcfsim.")}


#: By which Python asks a thing for truth, order, a number, its elements, and by which NumPy does.
PROTOCOLS = [
    f"__{name}__"
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "bool", "hash", "contains", "iter", "next", "len", "reversed"),
        *("float", "int", "complex", "round", "floor", "ceil", "trunc", "index", "divmod", "buffer"),
        *("array", "array_interface", "array_struct", "array_function", "array_ufunc"),
    )
]
ORDER, EQUAL = {"__lt__", "__le__", "__gt__", "__ge__"}, {"__eq__", "__ne__"}
#: What a class answers by itself, nearly always with something of each element, or with a formula.
DEFINED = {
    # By their own "==" and "<=", which they have not.
    **dict.fromkeys(("Elementwise", "ExactNumbers"), ORDER - {"__le__"} | {"__ne__"}),
    **dict.fromkeys(("Exact", "TwoWords", "RecordedExact", "RecordedNear"), ORDER | EQUAL),
    # By NumPy's operators, which ask for its own ways of being an operand.
    "Recorded": ORDER | EQUAL | {"__divmod__", "__array__", "__array_function__", "__array_ufunc__"},
    "LinearForm": ORDER,
    "Value": ORDER | EQUAL | {"__hash__"},  # which register it is, for whoever carries a line out
    "Scalar": {"__bool__"},  # whether a real scalar takes part
    "Components": {"__iter__", "__len__"},  # the parts of a tuple
}


@pytest.mark.slow
def test_no_class_answers_a_protocol_but_those_that_are_known(kinds):
    opaque = {kind for kind in kinds if issubclass(kind, Opaque) and kind is not Opaque}
    assert len(opaque) > 20

    def answers(kind, name):
        return getattr(kind, name, None) not in (None, getattr(Opaque, name, None))

    found = {kind.__name__: {name for name in PROTOCOLS if answers(kind, name)} for kind in opaque}
    assert {name: answered for name, answered in found.items() if answered} == DEFINED


def _recorded():
    line = Line()
    recorder = recorded.PredicateRecorder(line)
    inputs = (line.input(name, F64) for name in "ab")
    return [recorded.Recorded(recorder, x, get_format("float8_e4m3fn")) for x in inputs]


#: Of each class that is compared two instances, and what it answers with.
PAIRS = {
    Value: (lambda: [x.value for x in _recorded()], Value),
    unknown_numbers.LinearForm: (
        lambda: [UnknownArithmetic().operand(value(name)).value for name in "ab"],
        unknown_numbers.Formula,
    ),
    recorded.Recorded: (_recorded, recorded.Recorded),
    RecordedExact: (lambda: list(map(RecordedExact.of, _recorded())), recorded.Recorded),
    Exact: (lambda: [Exact.of(np.array([x, 2.0])) for x in (1.0, 2.0)], np.ndarray),
    TwoWords: (lambda: [TwoWords.of(np.arange(3)), TwoWords.of(np.ones(3, np.int64))], np.ndarray),
}
#: Decisions that ask which register it is.
BY_REGISTER = {"==", "!=", "== 0", "0 !=", "np.float64 ==", "in", "index", "tuples", "hash", "key", "set"}
BY_REGISTER |= {"matched"}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_what_is_compared_answers_for_each_element(kind):
    make, answer = PAIRS[kind]
    x, y = make()
    assert type(x) is kind
    for name, decide in DECISIONS.items():
        if name.startswith(".") or (kind is Value and name in BY_REGISTER):
            continue
        try:
            found = decide(x, y)
        except (TypeError, ValueError):
            assert name not in ("<", ">"), name
            continue
        if (name, kind) != ("np.maximum", recorded.Recorded):
            assert isinstance(found, answer), (name, found)
            assert not isinstance(found, np.ndarray) or found.shape, (name, found)


@pytest.mark.parametrize("decision", [*DECISIONS, None])
def test_a_text_that_branches_is_not_recorded(decision):
    """Of each decision two, and some whose decision is drawn as well."""
    draw = random.Random(3)
    for _ in range(100 if decision is None else 2):
        text = branching(draw, 3, decision=decision)
        with pytest.raises((TypeError, AttributeError)):
            trace(text, "bfloat16", operands=("a", "b", "c"), lines=False)


# -- the arithmetics ----------------------------------------------------------------------------------------
#: Each arithmetic of the package, by whether what it computes with are numbers.
COMPUTES = {
    *("NumpyArithmetic", "BlockArithmetic", "_Operations", "LibraryArithmetic"),
    *("TorchArithmetic", "DeviceArithmetic", "ExactArithmetic", "Meter", "OracleArithmetic"),
    *("NativeArithmetic", "TorchNativeArithmetic", "FractionArithmetic", "RangeWatch"),
}


def _traced(**kind):
    seen = []
    record(lambda ar, a, b: seen.append(ar.add(a, b)) or a, BFLOAT16, Rounding(), **kind)
    return seen[0]


def _path():
    ar, a = BlockArithmetic(BFLOAT16, Rounding(Mode.STOCHASTIC), "exact"), np.float32([1, 2])
    return paths.AllDraws(ar, 2).add(a, a)


STANDS_FOR = {
    "TraceArithmetic": _traced,
    "_Recorder": lambda: _traced(arithmetic=expressions._Recorder),
    "SymbolicArithmetic": lambda: SymbolicArithmetic().add(1, 2),
    "UnknownArithmetic": lambda: (ar := UnknownArithmetic()).add(ar.number(), ar.number()),
    "Scales": lambda: homogeneity.Scales(BFLOAT16, Rounding(), 2, False).add(1, 1),
    "AllDraws": _path,
}


@pytest.mark.slow
def test_every_arithmetic_computes_with_numbers_or_with_what_answers_nothing(kinds):
    needed = "add", "sub", "neg", "evaluate"
    found = {x.__name__ for x in kinds if all(callable(getattr(x, name, None)) for name in needed)}
    assert found - {"Arithmetic", "Emulation", "Forwarding", "Settling"} - COMPUTES == {*STANDS_FOR}
    for name, result in STANDS_FOR.items():
        assert isinstance(result(), Opaque), name
