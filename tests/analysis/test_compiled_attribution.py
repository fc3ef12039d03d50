"""The compiled loop of an analysis against NumPy's way, and against itself with one operation altered."""

import ast
import ctypes
import itertools
import random
import re
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.analysis import compiled_attribution, secants
from mcfsim.analysis.analyse import _columns, analyse
from mcfsim.analysis.blame import SUMMED, Blame
from mcfsim.analysis.compiled_attribution import COLUMNS, AttributionLoop, LoopPlan, source
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Rounding
from tests.analysis.algorithms import ALGORITHMS
from tests.analysis.test_attribution import FINE, in_formats, question
from tests.shared.random_programs import ARITY

pytestmark = pytest.mark.slow

FORMATS = ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", FINE]
#: Tables of every function in a format of 16 bits take seconds.
LOOPED = [pytest.param(x, marks=pytest.mark.exhaustive if "16" in str(x) else ()) for x in FORMATS]
#: Operations that NumPy and compilers compute by other functions, whose last bits differ.
APPROXIMATE = {"exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"}


def everything(ar, x, y):
    """Use every operation, each with an effect on the result, on numbers of which some are zeros or equal."""
    s, p = ar.add(x, y), ar.mul(x, y)
    a, b, c, d = ar.tanh(s), ar.sin(p), ar.cos(s), ar.erf(p)
    e, g = ar.expm1(a), ar.exp(ar.neg(ar.abs(s)))
    logs = ar.add(ar.log1p(ar.abs(p)), ar.log(ar.add(ar.abs(s), 0.25)))
    root = ar.sqrt(ar.add(ar.mul(a, a), ar.abs(p)))
    total = ar.round(0.3)
    for term in (
        *(ar.maximum(b, c), ar.minimum(d, e), ar.choose(ar.sub(b, e), d, g), ar.sign(ar.sub(c, d))),
        *(ar.fma(a, b, c), ar.div(c, ar.add(root, 1.0)), logs),
        *(
            ar.div(ar.mul(c, 0.9), 1.1),
            ar.sub(ar.minimum(d, 0.5), 0.7),
            ar.mul(1.5, ar.div(3.0, ar.add(root, 2.0))),
        ),
    ):
        total = ar.add(total, ar.mul(term, term))
    return total


def some(ar, x, y):
    """Use an operation of each kind that the loop treats in its own way; an infinity has no error."""
    p, q = ar.choose(ar.sub(x, 2.0**69), np.inf, ar.mul(x, y)), ar.mul(y, 0.9)
    chosen = ar.choose(ar.sub(p, 0.7), ar.exp(ar.mul(x, 0.4)), ar.mul(p, p))
    number = ar.choose(ar.sub(ar.mul(p, 1.1), ar.mul(p, q)), 0.3, q)
    return ar.fma(ar.mul(chosen, chosen), ar.mul(q, q), ar.sub(ar.sub(number, ar.round(0.3)), ar.mul(q, q)))


#: Zeros, equal numbers, both signs, and numbers whose product overflows or vanishes.
NUMBERS = np.concatenate([[0, 0, 1, -1, 2.0**70, 2.0**-70, -(2.0**70)], np.linspace(-3, 3, 57)])
HOSTILE = {"x": NUMBERS, "y": np.roll(NUMBERS, 3)}


def operations(asked):
    return {step.operation for step in asked.program.steps}


def both(asked, **how):
    """Return sums and columns of the first block, by NumPy and by a loop."""
    found, blame = asked.block(0), Blame(asked.program)
    loop = AttributionLoop(asked, blame.row_of, **how)
    with np.errstate(all="ignore"):
        return (blame.summed(found), _columns(found)), loop(0)


def apart(asked, right, made):
    """Return what differs: names of columns and sums."""
    (sums, columns), (loop_sums, loop_columns) = right, made
    approximate = bool(operations(asked) & APPROXIMATE)
    found = []
    with np.errstate(all="ignore"):
        # An error that is left of larger ones has the last bits of these.
        size = {"error": np.abs(columns["error"]) + 1e-3 * np.abs(columns["first order"])}
        for name in COLUMNS:
            a, b = columns[name], loop_columns[name]
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            near = np.abs(a - b) <= 1e-10 * size.get(name, np.abs(a)) if approximate else False
            found += [] if (same | near).all() else [name]
        count, _, square = sums.total
        squares = sums.rows[:, 1]
        largest = {"share": np.sqrt(count * squares), "product": np.sqrt(square * squares)}
        for k, name in enumerate(SUMMED):
            a, b = sums.rows[:, k], loop_sums.rows[:, k]
            tolerance = 0 if name in SUMMED[4:] else 1e-9 * largest.get(name, np.abs(a))
            found += [] if ((a == b) | (np.abs(a - b) <= tolerance)).all() else [name]
    if not np.allclose(sums.total, loop_sums.total, rtol=1e-9):
        found.append("total")
    if sums.sample.shape != loop_sums.sample.shape or not np.allclose(
        sums.sample, loop_sums.sample, rtol=1e-9, atol=1e-9 * sums.sample.max(initial=0)
    ):
        found.append("sample")
    return found


# -- the loop run by Python ----------------------------------------------------------------------------------
def rows(kind):
    return lambda address, size: np.ctypeslib.as_array((kind * int(size)).from_address(int(address)))


def interpreted(text):
    """Return the loop of a module's text, run by Python."""
    body = ast.parse(text).body
    body = [
        x
        for x in body
        if not (isinstance(x, ast.ImportFrom) and x.module in ("numba", "mcfsim.analysis.intrinsics"))
    ]
    names = {
        "njit": lambda *given, **options: given[0] if given else (lambda function: function),
        "select": lambda condition, yes, no: yes if condition else no,
        "row_float32": rows(ctypes.c_float),
        "row_float64": rows(ctypes.c_double),
        "prefer_whole_vectors": lambda: None,
        "sqrt": np.sqrt,
    }
    for bits in (32, 64):
        kinds = [getattr(np, f"{kind}{bits}") for kind in ("float", "int", "uint")]
        names |= {f"{letter}{bits}": kind for letter, kind in zip("fiu", kinds, strict=True)}
        names[f"bits{bits}"] = lambda x, kind=kinds[1]: x.view(kind)
        names[f"number{bits}"] = lambda x, kind=kinds[0]: x.view(kind)
    exec(compile(ast.Module(body, []), "loop", "exec"), names)
    names["LANES"] = 16  # so that few inputs are taken at several times
    return names["attribution"]


@pytest.fixture
def in_python(monkeypatch):
    """Have Python run the loops."""
    found = {}

    def loop(*parts):
        if parts not in found:
            found[parts] = interpreted(source(*parts))
        return found[parts]

    monkeypatch.setattr(compiled_attribution, "_loop", loop)


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(42, each=False)
@pytest.mark.parametrize(
    ("mode", "data"), [*((mode, "format") for mode in Mode), ("nearest_even", "real"), ("stochastic", "real")]
)
@pytest.mark.parametrize("fmt", LOOPED)
def test_the_loop_finds_what_numpy_finds(fmt, mode, data, in_python):
    asked = question(everything, HOSTILE, fmt, mode, data=data)
    assert operations(asked) == set(secants.SLOPES)
    performs = LoopPlan.of(asked).entering != ""
    assert performs == (asked.format.bits <= 16 and not asked.rounding.stochastic)
    for here in {performs, False}:
        assert apart(asked, *both(asked, performs=here)) == []


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.parametrize(("function", "fmt"), in_formats("float8_e4m3fn", "bfloat16"))
@pytest.mark.sampled(5, each=False)
def test_the_loop_finds_what_numpy_finds_for_every_function(function, fmt, in_python):
    asked = question(function, ALGORITHMS[function], fmt, count=50)
    assert apart(asked, *both(asked)) == []


#: Functions with one error: of an operation on values, and on scalars of few and of many digits.
SINGLE = {
    **{
        name: lambda ar, x, y, name=name: getattr(ar, name)(x)
        for name in (*APPROXIMATE, "sqrt", "neg", "abs", "sign")
    },
    **{
        name: lambda ar, x, y, name=name: getattr(ar, name)(x, y)
        for name in ("add", "sub", "mul", "div", "maximum")
    },
    **{
        f"{name} 0.9": lambda ar, x, y, name=name: getattr(ar, name)(x, 0.9)
        for name in ("add", "sub", "mul", "div")
    },
    **{
        f"0.9 {name}": lambda ar, x, y, name=name: getattr(ar, name)(0.9, x)
        for name in ("add", "sub", "mul", "div")
    },
    "minimum 0.9": lambda ar, x, y: ar.minimum(x, 0.9),
    "choose 0.5": lambda ar, x, y: ar.choose(x, 0.5, y),
    "exp of a subnormal number": lambda ar, x, y: ar.exp(ar.mul(ar.mul(ar.sign(x), 2.0**-8), 2.0**-7)),
    "fma": lambda ar, x, y: ar.fma(x, y, x),
    "round twice": lambda ar, x, y: ar.round(ar.like(mcf.get_format("float64"), Rounding()).round(x)),
    "round": lambda ar, x, y: ar.like(mcf.get_format("float8_e4m3fn"), Rounding()).round(x),
}
SMALL = np.concatenate(
    [2.0 ** np.arange(-140.0, -1, 17), [0, 0.1, -0.3, 1, 2.5, -7, 30, 2.0**120, -(2.0**-127), -128]]
)


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(8, each=False)
@pytest.mark.parametrize(
    ("fmt", "underflow"),
    [*itertools.product(("bfloat16", "float8_e5m2", FINE), ("gradual", "flush_inputs")), ("int8", "gradual")],
    ids=str,
)
def test_the_error_of_one_operation_is_numpys_to_the_last_bit(fmt, underflow, in_python):
    performed, rounding = set(), Rounding(underflow=underflow)
    for name, function in SINGLE.items():
        if fmt == "float8_e5m2" or name not in APPROXIMATE - {"exp"}:  # other tables take seconds
            with suppress(UnsupportedFormatError):
                asked = question(function, {"x": SMALL, "y": SMALL[::-1].copy()}, fmt, rounding)
                (_, right), (_, made) = both(asked)
                assert np.array_equal(right["error"], made["error"], equal_nan=True), name
                performed |= {name} if LoopPlan.of(asked).entering else set()
    if fmt in ("bfloat16", "float8_e5m2"):
        assert {"add", "mul 0.9", "div 0.9", "fma", "neg", "round", "round twice"} <= performed
        assert ({"exp", "choose 0.5"} <= performed) == (underflow == "gradual")


#: Numbers in random programs: of few and of many digits, zeros, and some that overflow or vanish.
SCALARS = (
    0.5,
    1,
    -1,
    3,
    0.1,
    -0.7,
    Fraction(1, 3),
    Fraction(1, 4),
    0,
    -0.0,
    1e30,
    1e-30,
    255,
    2.0**-20,
    65504,
)
OPERANDS = ARITY | dict.fromkeys(("maximum", "minimum"), 2) | {"choose": 3}
OPERANDS |= dict.fromkeys(("exp", "log", "tanh", "erf"), 1)


def random_program(draw):
    """Return a function of some operations on values and scalars; some round in another format and mode."""
    steps = [
        (
            draw.random() < 0.2 and (draw.choice(FORMATS[:5]), draw.choice(["nearest_even", "up"])),
            name := draw.choice(list(OPERANDS)),
            [draw.choice(SCALARS) if draw.random() < 0.25 else draw.random() for _ in range(OPERANDS[name])],
            [draw.random() < 0.75 for _ in range(OPERANDS[name])],
        )
        for _ in range(draw.randint(1, 7))
    ]

    def function(ar, x, y):
        pool = [x, y]
        for other, name, numbers, are_values in steps:
            here = ar if not other else ar.like(mcf.get_format(other[0]), Rounding(other[1]))
            given = [
                here.round(pool[int(place * 997) % len(pool)]) if value else place
                for place, value in zip(numbers, are_values, strict=True)
            ]
            pool.append(ar.round(getattr(here, name)(*given)))
        return pool[-1]

    return function


@pytest.mark.costly("it makes tables of functions and of their rests")
@pytest.mark.sampled(40, each=False)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_have_the_sums_of_numpy(seed, in_python):
    draw, numbers = random.Random(seed), np.concatenate([NUMBERS[:24], [1e30, -3e-5, 6e4, 448, 1e-40, 0.1]])
    performed = 0
    for _ in range(25):
        function, mode = random_program(draw), draw.choice(list(Mode))
        rounding = Rounding(
            mode, underflow=draw.choice(["gradual", "gradual", "flush_inputs", "flush_after"])
        )
        given = {"x": numbers, "y": np.roll(numbers, draw.randrange(13))}
        fmt, data = draw.choice(["float8_e5m2", "float8_e4m3fn", "float32"]), draw.choice(["format", "real"])
        with suppress(UnsupportedFormatError):
            asked = question(function, given, fmt, rounding, data=data)
            asked = replace(asked, scalars=draw.choice(["exact", "rounded"]))
            if asked.program.steps:
                # Last bits of functions decide whether an exact result of zero is one, and divides nothing.
                relative = (
                    {"condition", "total", "sample", *SUMMED[:4]} if operations(asked) & APPROXIMATE else {}
                )
                differ = [x for x in apart(asked, *both(asked)) if x not in relative]
                assert differ == [], [str(x) for x in asked.program.steps]
                performed += LoopPlan.of(asked).entering != ""
    assert performed > 5


def test_a_function_without_operations_is_analysed():
    report = analyse(lambda ar, x: x, {"x": "normal()"}, count=50, data="real", compiled=True)
    assert np.abs(report.columns["error"]).max() > 0


# -- the loop compiled ---------------------------------------------------------------------------------------
@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_compiled_loop_finds_what_numpy_finds(fmt):
    for mode in Mode:
        asked = question(everything, HOSTILE, fmt, mode, data="real")
        assert apart(asked, *both(asked, performs=False)) == []


def performed_here(ar, x, y):
    """Use what a loop performs: a table, scalars and a choice."""
    p = ar.mul(ar.exp(x), 0.9)
    return ar.choose(ar.sub(p, 0.5), p, y)


@pytest.mark.exhaustive
def test_reports_are_the_same_by_blocks_and_threads():
    given = {"x": "normal()", "y": "normal()"}
    one = analyse(performed_here, given, count=9000, truth=0, compiled=True)
    more = analyse(performed_here, given, count=9000, truth=0, compiled=True, threads=3)
    plain = analyse(performed_here, given, count=9000, truth=0, compiled=False)
    assert LoopPlan.of(one.rounded).entering
    for name, column in one.columns.items():
        assert np.array_equal(column, more.columns[name], equal_nan=True)
    assert one.blame() == more.blame()
    for name in ("computed", "turned"):
        assert np.array_equal(one.columns[name], plain.columns[name])
    for row, other in zip(one.blame(), plain.blame(), strict=True):
        assert row.expression == other.expression
        assert (row.nonfinite, row.stagnant, row.turned) == (other.nonfinite, other.stagnant, other.turned)
        assert row.rms == pytest.approx(other.rms, rel=1e-9)
        assert row.explains == pytest.approx(other.explains, rel=1e-9, abs=1e-12)


# -- the loop altered ----------------------------------------------------------------------------------------
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
OTHER = {"VALUE": "ERROR", "OWN": "ERROR", "ERROR": "OWN", "BOUND": "ERROR"}
OTHER |= {"FACTOR": "SENSITIVITY", "SENSITIVITY": "FACTOR"}


def alter(node):
    """Alter a node, and return how to take that back; None if there is nothing to alter."""
    name, value = None, None
    match node:
        case ast.BinOp(op=op, right=right) if type(op) in SWAPPED and ast.unparse(right) not in {"0", *OTHER}:
            name, value = "op", SWAPPED[type(op)]()
        case ast.AugAssign(op=ast.Add()):
            name, value = "op", ast.Sub()
        case ast.Compare(ops=[ast.Gt()]):
            name, value = "ops", [ast.Lt()]
        case ast.Compare(ops=[ast.Lt()]):
            name, value = "ops", [ast.Gt()]
        case ast.Call(func=ast.Name(id="abs")):
            name, value = "func", ast.Name("float", ast.Load())
        case ast.Name(id=field) if field in OTHER:
            name, value = "id", OTHER[field]
        case ast.Constant(value=bool()):
            name, value = "value", not node.value
    if name is None:
        return None
    before = getattr(node, name)
    setattr(node, name, value)
    return lambda: setattr(node, name, before)


def mark_idle(functions, case):
    """Mark what has no effect in a branch: operands that a rule does not use, and what only they use."""
    for call in (x for x in ast.walk(case) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)):
        if (rule := functions.get(call.func.id)) is not None:
            used = {x.id for x in ast.walk(rule) if isinstance(x, ast.Name)}
            for operand, name in zip(call.args, rule.args.args, strict=True):
                for x in ast.walk(operand):
                    x.idle = name.arg not in used
    loads = [x for x in ast.walk(case) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)]
    live = {x.id for x in loads if not getattr(x, "idle", False)}
    for statement in (x for x in ast.walk(case) if isinstance(x, ast.Assign)):
        if isinstance(target := statement.targets[0], ast.Name) and target.id not in live:
            for x in ast.walk(statement):
                x.idle = True


def altered(text, names):
    """Yield the operation and what is altered in the loop, and its text with that."""
    tree = ast.parse(text)
    functions = {x.name: x for x in tree.body if isinstance(x, ast.FunctionDef)}
    loop = functions.pop("attribution")
    for case in ast.walk(loop):
        if isinstance(case, ast.If) and ast.unparse(case.test).startswith("operations[s] == "):
            branch = ast.Module(case.body, [])
            mark_idle(functions, branch)
            for part in ast.walk(branch):
                part.operation = names[case.test.comparators[0].value]
    for statement in [x for x in ast.walk(loop) if isinstance(x, ast.Assign | ast.AugAssign | ast.If)]:
        parts = [statement.test] if isinstance(statement, ast.If) else [statement, statement.value]
        before = ast.unparse(parts[0])
        for node in [
            x
            for part in dict.fromkeys(parts)
            for x in ast.walk(part)
            if (isinstance(part, ast.expr) or x is part) and not getattr(x, "idle", False)
        ]:
            if (restore := alter(node)) is not None:
                operation = getattr(statement, "operation", "all")
                yield f"{operation}: {before}  ->  {ast.unparse(parts[0])}", ast.unparse(tree)
                restore()


#: Alterations that change nothing: what inputs have twice, signs of squares, and what no output depends on.
SAME = (
    r"^(choose|round): total [+]= .*k\[0\]|^round: M\[r, BOUND, j\]",  # slopes of zero, errors of zero
    r"^all: M\[x, BOUND, j\] = .*  ->  .*ERROR",
    r"^all: M\[x, SENSITIVITY, j\] [+]= 1 ",
    r"^all: Q\[row, j\] .*  ->  (.*-=|.*M\[x, ERROR)|^all: term = .*  ->  .*M\[x, ERROR",
    r"^all: exact = M\[x, .*  ->  .*OWN",
    r"^exp: k = .*  ->  k = slope_exp\(y, M\[a, ERROR",  # of errors beyond -40, as no error here is
    r"^exp: g = .*  ->  g = slope_exp\(exact, .*, 0.0\)",
    r"^all: strange ",  # a first look, before each number is asked
)


def turning():
    """Return inputs whose products lie about where `some` chooses the other branch."""
    x = np.linspace(0.8, 0.9, 26)
    return {"x": np.concatenate([NUMBERS[:24], x]), "y": np.concatenate([HOSTILE["y"][:24], 0.7 / x])}


@pytest.mark.costly("it runs a loop by Python thirty times")
@pytest.mark.sampled(8, each=False)
@pytest.mark.parametrize("chunk", range(8))
@pytest.mark.exhaustive
def test_an_altered_loop_is_noticed(chunk, monkeypatch):
    cases = (("bfloat16", "nearest_even", "real"), ("float8_e5m2", "down", "format"), (FINE, "up", "real"))
    asked = [question(some, turning(), fmt, mode, data=data) for fmt, mode, data in cases]
    plans = [LoopPlan.of(x, performs=False) for x in asked]
    names, text = [x.operation for x in plans[0].branches], source(plans[0].branches)
    assert len({x.branches for x in plans}) == 1

    def noticed(loop):
        monkeypatch.setattr(compiled_attribution, "_loop", lambda *parts: loop)
        return any(apart(x, *both(x, performs=False)) for x in asked)

    assert not noticed(interpreted(text))
    tried = 0
    for what, made in [*altered(text, names)][chunk::8]:
        if not any(re.search(pattern, what) for pattern in SAME):
            with suppress(IndexError, TypeError, ValueError, ZeroDivisionError):
                assert noticed(interpreted(made)), what
            tried += 1
    assert tried > 15
