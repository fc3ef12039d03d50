"""The function `analyse`: what rounding does to a function, and which expression is to blame."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis import bounds
from mcfsim.analysis.attribution import Attribution, Output, RoundedFunction
from mcfsim.analysis.blame import Blame, ShareSums
from mcfsim.analysis.compiled_attribution import COLUMNS, AttributionLoop, pays
from mcfsim.analysis.error_report import Report
from mcfsim.analysis.numba_source import is_available
from mcfsim.analysis.samplers import Inputs, in_order, inputs_of, operand_names
from mcfsim.analysis.truth import TruthCheck, of_function, of_program
from mcfsim.checks import check_threads, whole_number
from mcfsim.compile.choice import check_compiled
from mcfsim.formats import Format, get_format
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.rounding import Rounding, get_rounding

Array = NDArray[np.float64]
#: Exponents run from minus this to this in formats that are to differ in precision alone.
_WIDEST = 400


def analyse(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    formats: Format | str | Sequence[Format | str] = "bfloat16",
    *,
    precisions: Iterable[int] | None = None,
    count: int = 1000,
    seed: int = 0,
    rounding: Rounding | str = "nearest_even",
    scalars: Scalars = "exact",
    output: Output = 0,
    data: Literal["format", "real"] = "format",
    options: Mapping[str, Any] = MappingProxyType({}),
    truth: int = 20,
    threads: int = 1,
    compiled: bool | None = None,
    progress: bool | None = None,
) -> Any:
    """Find what rounding does to a function, and which of its expressions is to blame.

    Parameters
    ----------
    function : callable
        ``function(ar, *operands, **options)``, branch-free: it passes operands to the arithmetic alone.
    inputs : mapping of str to Sampler, str, array or tuple
        For each operand a sampler of `mcfsim.analysis.samplers`, or its text, such as ``"normal()*16"`` for a
        tuple of 16 numbers; or an array with a number for each input, or a tuple of arrays.
    formats : Format or str, or a sequence of them, optional
        The format of all operations, unless the function asks for another by ``ar.like``.
    precisions : iterable of int, optional
        Precisions to analyse instead of `formats`, in formats whose exponents run from -400 to 400.
    count : int, optional
        Number of inputs, for samplers.
    seed : int, optional
        Seed of samplers and of stochastic rounding.
    rounding : Rounding or str, optional
        The rounding of all operations.
    scalars : {"exact", "rounded"}, optional
        How Python numbers in the function enter; either way they count as exact.
    output : int or "sum", optional
        The result that is analysed, by its place; or the sum of all results, for expansions.
    data : {"format", "real"}, optional
        Whether the data are the rounded inputs, or the numbers before they are rounded.
    options : mapping, optional
        Options of the function.
    truth : int, optional
        How many inputs are compared with mpmath, 4096 at most.
    threads : int, optional
        Threads that share blocks of inputs; no result depends on it.
    compiled : bool, optional
        Whether a loop compiled by Numba computes errors, shares and bounds; by default where that saves time.
        The results are the same, except for the last bits of sums over inputs and of functions in secants.
    progress : bool, optional
        Whether to show a progress bar; by default if stderr is a terminal and there are many blocks.

    Returns
    -------
    Report, or a list of Report for a sequence of formats or precisions

    Raises
    ------
    TypeError, ValueError
        If the function branches on a value; if an operand is missing or unknown; if an argument is out of
        range.
    ImportError
        If a loop must be compiled, but Numba is not installed or is switched off.
    UnsupportedFormatError
        If an operation has no exact path in the format.

    Notes
    -----
    The exact error of each operation is known (`mcfsim.Meter`). Secant slopes pass it on to the result
    without a remainder, so that the shares of all operations add up to the error, across `maximum`, `abs` and
    `choose` too (analyse.md). Subnormal numbers are counted with their own error; infinities and NaN
    have no share, and the report says where they appear first.

    Examples
    --------
    >>> import mcfsim
    >>> def mean(ar, x, y):
    ...     return ar.mul(ar.add(x, y), 0.5)
    >>> report = mcfsim.analyse(mean, {"x": "uniform(1, 2)", "y": "uniform(1, 2)"}, "bfloat16", count=100)
    >>> [row.expression.text for row in report.blame()]
    ['ar.add(x, y)', 'ar.mul(ar.add(x, y), 0.5)']
    """
    if precisions is not None:
        made = [
            Format(f"p{p}", precision=whole_number("a precision", p, least=2), emin=-_WIDEST, emax=_WIDEST)
            for p in precisions
        ]
    elif isinstance(formats, Format | str):
        made = [get_format(formats)]
    else:
        made = [get_format(x) for x in formats]
    if not made:
        raise ValueError("at least one format, or precision, is needed")
    if data not in ("format", "real"):
        raise ValueError(f"data must be 'format' or 'real', not {data!r}")
    if scalars not in ("exact", "rounded"):
        raise ValueError(
            f"scalars must be 'exact' or 'rounded', so that a result is rounded once, not {scalars!r}"
        )
    check_threads(threads)
    check_compiled(compiled)
    if compiled and not is_available():
        raise ImportError(
            "a compiled analysis needs Numba, which NUMBA_DISABLE_JIT switches off: pip install 'mcfsim[jit]'"
        )
    whole_number("truth", truth, least=0)
    for label, given in (("inputs", inputs), ("options", options)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{label} must be a mapping of names, not {given!r}")
    drawn = inputs_of(function, inputs, options, count, seed)
    function = in_order(function, operand_names(function, options, inputs))
    policy = get_rounding(rounding)
    asked = (RoundedFunction(function, drawn, fmt, policy, scalars, output, data, options) for fmt in made)
    found = [_report(rounded, truth, threads, compiled, progress) for rounded in asked]
    single = precisions is None and isinstance(formats, Format | str)
    return found[0] if single else found


def _report(
    rounded: RoundedFunction, truth: int, threads: int, compiled: bool | None, progress: bool | None
) -> Report:
    """Go through all blocks of inputs, and put the report together."""
    blame, columns = Blame(rounded.program), dict[str, list[Array]]()
    numbers = range(rounded.inputs.blocks)
    shown = progress if progress is not None else sys.stderr.isatty() and len(numbers) > 8

    loop = None
    if rounded.program.steps and (compiled or (compiled is None and pays(rounded))):
        loop = AttributionLoop(rounded, blame.row_of)

    def work(number: int) -> tuple[ShareSums, dict[str, Array]]:
        if loop is not None:
            return loop(number)
        found = rounded.block(number)
        return blame.summed(found), _columns(found)

    def take(results: Iterable[tuple[ShareSums, dict[str, Array]]], told: Callable[[int], None]) -> None:
        for sums, made in results:
            blame.add(sums, inputs=rounded.data == "real")
            for name, column in made.items():
                columns.setdefault(name, []).append(column)
            told(made["computed"].size)

    def go(told: Callable[[int], None]) -> None:
        if threads == 1:
            take(map(work, numbers), told)
            return
        with ThreadPoolExecutor(threads) as pool:  # a few blocks ahead, so that memory stays bounded
            for start in range(0, len(numbers), 2 * threads):
                take(pool.map(work, numbers[start : start + 2 * threads]), told)

    if shown:
        from mcfsim.storage.sweeps.progress import Bar

        with Bar() as bar:
            bar.expect(rounded.inputs.size)
            bar.label(f"{rounded.program.name}, {rounded.format}")
            go(bar.count)
    else:
        go(lambda done: None)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Report(rounded, blame, whole, _checked(rounded, truth))


def _columns(found: Attribution) -> dict[str, Array]:
    turned = np.broadcast_to(np.asarray(found.turned, np.float64), found.computed.shape)
    first, sigma = bounds.first_order(found)
    columns = (found.computed, found.error, found.condition, turned, first, sigma, bounds.running(found))
    return {name: np.array(column) for name, column in zip(COLUMNS, columns, strict=True)}


def _checked(rounded: RoundedFunction, truth: int) -> TruthCheck | None:
    """Compare the errors of the first inputs with mpmath's."""
    if not truth:
        return None
    size = min(truth, rounded.inputs.size, Inputs.BLOCK)
    numbers = [x[:size] for x in rounded.inputs.block(0)]
    found = rounded.at(numbers)
    given = numbers if rounded.data == "real" else rounded.rounded_inputs(numbers)[0]
    by_program = of_program(rounded, given)
    error, bits = by_program.error_of(found.computed), by_program.bits
    with np.errstate(all="ignore"):
        off = np.abs(found.error - error) / np.abs(error)
        usable = np.isfinite(found.error) & np.isfinite(error) & (error != 0)
    constants = np.nan
    # A function that asks for the format of its arithmetic does not run in exact arithmetic, which has none.
    with suppress(AttributeError, LookupError, TypeError), np.errstate(all="ignore"):
        by_function = of_function(rounded, given)
        apart = np.abs((by_function.nearest - by_program.nearest) + (by_function.rest - by_program.rest))
        apart = apart / np.abs(by_function.nearest)
        if not (np.isnan(by_function.nearest) & ~np.isnan(by_program.nearest)).all():  # it ran for some input
            constants, bits = float(apart[np.isfinite(apart)].max(initial=0.0)), max(bits, by_function.bits)
    return TruthCheck(
        inputs=size,
        compared=int(usable.sum()),
        off=float(off[usable].max(initial=0.0)),
        bits=bits,
        constants=constants,
    )
