"""Double rounding: when an operation in a wider format, rounded again, is as if rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

from mcfsim.formats import FORMATS, Format
from mcfsim.rounding import Mode, Underflow
from mcfsim.theorems.claims import same_results
from mcfsim.theorems.operands import value
from mcfsim.theorems.rounding_twice import held, quantum, suffices, twice, wider
from mcfsim.theorems.statement import DIRECTED, EVERY_MODE, FAITHFUL, Scaling, Theorem

FORMULAS = {"add": "a + b", "mul": "a b", "div": "a / b", "sqrt": "sqrt(a)", "fma": "a b + c"}
OPERANDS = {"add": "ab", "mul": "ab", "div": "ab", "sqrt": "a", "fma": "abc"}
SCALINGS = {
    "add": Scaling.COMMON,
    "mul": Scaling.EACH,
    "div": Scaling.EACH,
    "sqrt": Scaling.SQUARE,
    "fma": Scaling.NONE,
}
CARRIERS = ("float16", "bfloat16", "float32", "float64")

FIGUEROA = "Figueroa, SIGNUM Newsl. 30(3), 1995; Roux, J. Formaliz. Reason. 7(1), 2014"
BOLDO_MELQUIOND = "Boldo, Melquiond, IEEE Trans. Comput. 57(4), 2008"
MONOTONY = "rounding is monotone, and the values of the format are among those of the wider one"
OWN = "from the bits of exact results; no published source is known to us"


def _statement(name: str, operation: str, algorithm: Callable[..., Any], how: str, **facts: Any) -> Theorem:
    return Theorem(
        name,
        algorithm,
        tuple(map(value, OPERANDS[operation])),
        same_results(f"{FORMULAS[operation]} {how}, rounded again, is as if rounded once"),
        scaling=SCALINGS[operation],
        **facts,
    )


# -- so many bits, without overflow and underflow on the way ------------------------------------------------
def _innocuous(operation: str, more: int, **facts: Any) -> Theorem:
    """State that ``2p + more`` bits suffice."""
    bits = f"2p{more:+}" if more else "2p"
    name = f"innocuous_{operation}_2p{'_minus_' if more < 0 else ''}{abs(more) or ''}"
    algorithm = twice(operation, wider(lambda p: 2 * p + more))
    return _statement(name, operation, algorithm, f"rounded to {bits} bits", source=FIGUEROA, **facts)


def _same_direction(operation: str) -> Theorem:
    algorithm = twice(operation, wider(lambda p: p + 1))
    how = "rounded to p+1 bits in the same direction"
    return _statement(f"directed_{operation}", operation, algorithm, how, source=MONOTONY, modes=FAITHFUL)


def _odd(operation: str, more: int, **facts: Any) -> Theorem:
    """State that rounding to odd with ``p + more`` bits is innocuous."""
    algorithm = twice(operation, wider(lambda p: p + more), Mode.TO_ODD)
    name = f"round_to_odd_{operation}" + ("" if more == 2 else f"_p{more}")
    how = f"rounded to odd with p+{more} bits"
    return _statement(name, operation, algorithm, how, source=BOLDO_MELQUIOND, **facts)


def _span(fmt: Format) -> int:
    """Return how many bits a sum may have."""
    return fmt.emax + 1 - quantum(fmt)


# -- carriers -----------------------------------------------------------------------------------------------
def _via(operation: str, carrier: str) -> Theorem:
    """State that a carrier with the bits and the range needed serves."""
    fmt = FORMATS[carrier]
    return _statement(
        f"{operation}_via_{carrier}",
        operation,
        twice(operation, lambda _: fmt, Mode.NEAREST_EVEN),
        f"in {carrier}",
        where=(suffices(operation, fmt),),
        source=OWN if operation == "fma" else f"{FIGUEROA}; what underflow needs: {OWN}",
    )


def _via_any(operation: str, carrier: str, refuted: Iterable[str], **facts: Any) -> Theorem:
    """State the same of every carrier that holds the operands, which is false of some formats."""
    fmt, known = FORMATS[carrier], [FORMATS[name] for name in refuted]
    return _statement(
        f"{operation}_via_{carrier}_any",
        operation,
        twice(operation, lambda _: fmt, Mode.NEAREST_EVEN),
        f"in {carrier}",
        where=(held(fmt),),
        source="a common belief",
        holds=False,
        refuted=lambda fmt, mode: fmt in known,
        **facts,
    )


def _beside_midpoints(p: int) -> Iterator[tuple[Fraction, ...]]:
    """Yield a b + c where a b is midway between two values and a carrier drops c, which decides."""
    product = 2**p + (1 if p % 2 else 5)  # a multiple of 3
    for c in (20, 50):
        yield Fraction(3), Fraction(product, 3), Fraction(1, 2**c)


#: Their product lies just above half the smallest subnormal number of tf32, and is that half in float32.
TINY = (Fraction(1044, 2**79), Fraction(2009, 2**79))

THEOREMS: tuple[Theorem, ...] = (
    _innocuous("add", 1),
    _innocuous("add", 0, holds=False, refuted=lambda fmt, mode: _span(fmt) > 2 * fmt.precision),
    _innocuous("mul", 0),
    _innocuous("mul", -1, holds=False, refuted=lambda fmt, mode: fmt.precision >= 4),
    _innocuous("div", 0),
    _innocuous("div", -1, holds=False, refuted=lambda fmt, mode: fmt.precision >= 3),
    _innocuous("sqrt", 2),
    _innocuous("sqrt", 1, holds=False),
    *map(_same_direction, FORMULAS),
    _statement(
        "directed_add_after_nearest",
        "add",
        twice("add", wider(lambda p: 2 * p + 1), Mode.NEAREST_EVEN),
        "rounded to nearest with 2p+1 bits",
        source=OWN,
        modes=DIRECTED,
        holds=False,
        refuted=lambda fmt, mode: _span(fmt) > 2 * fmt.precision + 1,
        gaps=lambda p: (-2 * p - 4, 2 * p + 4),
    ),
    *(_odd(operation, 2, modes=EVERY_MODE) for operation in FORMULAS),
    *(
        _odd(operation, 1, holds=False, refuted=lambda fmt, mode: fmt.precision >= 3)
        for operation in FORMULAS
    ),
    *(_via(operation, carrier) for operation in ("add", "mul", "div", "sqrt") for carrier in CARRIERS),
    *(_via("fma", carrier) for carrier in ("float16", "float32", "float64")),
    _via_any("add", "bfloat16", ["float8_e4m3fn"]),
    _via_any("sqrt", "bfloat16", ["float8_e4m3fn"]),
    _via_any("mul", "float32", ["tf32"], families=lambda p: [TINY]),
    _via_any("fma", "float16", ["float8_e4m3fn"], families=_beside_midpoints),
    _via_any("fma", "float32", ["float8_e5m2", "float16", "bfloat16", "tf32"], families=_beside_midpoints),
    _via_any("fma", "float64", ["bfloat16", "tf32"], families=_beside_midpoints),
    _statement(
        "mul_via_float32_flushed",
        "mul",
        twice("mul", lambda _: FORMATS["float32"], Mode.NEAREST_EVEN, Underflow.FLUSH_AFTER),
        "in float32 without subnormal numbers",
        where=(suffices("mul", FORMATS["float32"]),),
        source=OWN,
        holds=False,
        refuted=lambda fmt, mode: fmt == FORMATS["bfloat16"],
    ),
)
