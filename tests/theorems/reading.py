"""Cases at random, with results right and wrong, and what each interpreter of propositions says of them."""

from fractions import Fraction

import numpy as np

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.element.machine import F32, F64, Line
from mcfsim.kernels.element.on_numpy import run
from mcfsim.rounding import Rounding
from mcfsim.theorems.compiled import RecordedTrial, _OnLine, _truth
from mcfsim.theorems.judge import structured, try_block
from mcfsim.theorems.logic.on_arrays import holds
from mcfsim.theorems.logic.on_numbers import Case
from mcfsim.theorems.operands import belongs, finite_values, unbounded
from mcfsim.theorems.paths import Paths
from mcfsim.theorems.recorded import Recorded, Recorder
from mcfsim.theorems.recorded_exact import RecordedExact
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.trial import Trial, flat
from tests.theorems.solving import Assigned


def formats_of(theorem):
    """Return formats on which a statement is read: small ones, so that their ends and ties are met often."""
    least = max(theorem.precision, 2)
    if theorem.range == "unbounded":
        return [unbounded(least), unbounded(least + 2)]
    return [Format("", precision=p, emin=-p - 4, emax=p + 4) for p in (least, least + 1, least + 3)]


def propositions(theorem):
    """Return the hypotheses of a statement, and its claim."""
    return [*(hypothesis.said for hypothesis in theorem.where), theorem.claim.said]


# -- operands and results -----------------------------------------------------------------------------------
def operands_of(theorem, fmt, draw, count):
    """Return blocks of operands, component by component."""
    blocks = []
    for operand in theorem.operands:
        if not operand.paired:
            blocks += [_values(fmt, draw, count) for _ in range(operand.components)]
            continue
        high = _values(fmt, draw, count)
        depth = np.array([draw.choice((0, 0, 1, 2, fmt.precision)) for _ in range(count)])
        half = np.frexp(high.astype(np.float64))[1] - 1 - fmt.precision
        few = np.ldexp(
            _values(unbounded(fmt.precision), draw, count, near=0).astype(np.float64), half - depth - 1
        )
        low = _on_grid(fmt, few.astype(carrier_of(fmt)))
        fits = (high != 0) & belongs(operand, (high, low), fmt)
        blocks += [high, np.where(fits, low, low.dtype.type(0))]
    return blocks


def _values(fmt, draw, count, near=None):
    """Return finite values: of a small format any, or of exponents near zero."""
    p, carrier = fmt.precision, carrier_of(fmt)
    if near is None and fmt.emax < 30:
        values = finite_values(fmt)
        few = values[[draw.randrange(values.size) for _ in range(6)]]
        # Some come again, for equal ones and differences.
        return np.array(
            [draw.choice((draw.choice(few), values[draw.randrange(values.size)])) for _ in range(count)]
        )
    reach, top = (2 * p + 3 if near is None else near), 1 << (p - 1)
    numbers = (
        draw.choice((0, *8 * (1, -1)))
        * draw.choice((top, 2 * top - 1, draw.randrange(top, 2 * top)))
        * 2.0 ** (draw.randint(-reach, reach) - p + 1)
        for _ in range(count)
    )
    return np.array(list(numbers), carrier)


def _on_grid(fmt, block):
    """Return numbers as values of the format; infinities and NaN as they are."""
    finite = np.isfinite(block)
    nearest = BlockArithmetic(fmt, Rounding(), "exact").round(np.where(finite, block, block.dtype.type(0)))
    return np.where(finite, nearest, block)


def trial_of(theorem, fmt, rounding, draw, count):
    """Return cases of a statement with what its algorithm returns."""
    ar = BlockArithmetic(fmt, rounding, "exact")
    with np.errstate(all="ignore"):
        return try_block(theorem, ar, operands_of(theorem, fmt, draw, count))


def altered(trial, draw, share=0.4, finite=False):
    """Return a trial with other results: neighbours, operands, zeros, ends of the range, infinities, NaN."""
    fmt, size = trial.format, trial.results[0].size
    given, made = flat(trial.operands), [np.array(result) for result in trial.results]
    ends = (0.0, float(fmt.max), float(fmt.smallest_subnormal))
    beyond = () if finite else (np.inf, -np.inf, np.nan)
    for element in range(size):
        for result in made:
            if draw.random() < share:
                x, ulp = (
                    result[element],
                    np.spacing(result[element]) * 2.0 ** (np.finfo(result.dtype).nmant + 1),
                )
                near = (-x, x + ulp / 2.0**fmt.precision, x - ulp / 2.0 ** (fmt.precision + 1))
                others = draw.choice(made)[element], draw.choice(given)[element]
                result[element] = draw.choice((*near, *others, *ends, *beyond))
    with np.errstate(all="ignore"):
        results = tuple(_on_grid(fmt, result) for result in made)
    if finite:
        results = tuple(np.where(np.isfinite(result), result, result.dtype.type(0)) for result in results)
    if isinstance(trial, Paths):
        paths = {"whose": trial.whose, "probability": trial.probability}
        return Paths(trial.ar, trial.names, trial.operands, results, **paths)
    return Trial(trial.ar, trial.names, tuple(map(_bare, trial.operands)), results)


def _bare(operand):
    return tuple(operand) if isinstance(operand, tuple) else operand


# -- readings -----------------------------------------------------------------------------------------------
def by_arrays(said, trial):
    """Return what arrays say, a truth value a case."""
    with np.errstate(all="ignore"):
        return trial.throughout(holds(said, trial))


def by_fractions(theorem, said, trial):
    """Return what fractions say, a truth value a case."""
    return np.array([case.holds(said) for case in cases_of(theorem, trial)])


def cases_of(theorem, trial):
    """Yield the cases of a trial in fractions."""
    whose = trial.whose if isinstance(trial, Paths) else np.arange(trial.size)
    starts = np.flatnonzero(np.diff(whose, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], whose.size], strict=True):
        words = {
            operand.name: [Fraction(float(block[start])) for block in flat(given)]
            for operand, given in zip(theorem.operands, trial.operands, strict=True)
        }
        paths = []
        for path in range(start, stop):
            share = trial.probability.fraction(path) if isinstance(trial, Paths) else Fraction(1)
            paths.append((share, [_number(block[path]) for block in trial.results]))
        yield Case(trial.format, trial.rounding, words, paths)


def _number(x):
    return Fraction(float(x)) if np.isfinite(x) else float(x)


def by_line(theorem, said, trial):
    """Return what a recorded line says, a truth value a case, and where it leaves that open."""
    line, fmt = Line(), trial.format
    recorder = Recorder(line, RecordedExact.of)
    blocks = [*flat(trial.operands), *trial.results]
    kind = F32 if carrier_of(fmt) == np.float32 else F64
    names = [f"x{place}" for place in range(len(blocks))]
    taken = [Recorded(recorder, line.input(name, kind), fmt) for name in names]
    count = theorem.components
    ar = _OnLine(fmt, trial.rounding, clean=True)
    recorded = RecordedTrial(
        ar, trial.names, structured(theorem.operands, taken[:count]), tuple(taken[count:])
    )
    with np.errstate(all="ignore"):
        held = _truth(holds(said, recorded))
    return run(line, (held, recorder.doubts()), **dict(zip(names, blocks, strict=True)))


def by_solver(question, trial, ties):
    """Yield of each case what the solver's formulas say: what is supposed, and what is claimed."""
    for case in range(trial.size):
        ar = UnknownArithmetic()
        operands = [ar.operand(operand) for operand in question.operands]
        results = [ar.number(f"result {place}") for place in range(len(trial.results))]
        supposed, claimed = question.read(ar, operands, results)
        values = {}
        for operand, given in zip(question.operands, trial.operands, strict=True):
            words = [Fraction(float(block[case])) for block in flat(given)]
            names = [f"{operand.name}h", f"{operand.name}l"] if operand.paired else [operand.name]
            values |= dict(zip(names, words, strict=True))
        values |= {f"result {i}": Fraction(float(block[case])) for i, block in enumerate(trial.results)}
        assigned = Assigned(ar, values, trial.format.precision, ties)
        yield assigned.meet(supposed), assigned.meet(claimed)
