"""Where a larger operand of a matrix unit gives a smaller result: the simplest cases of the units by name.

C grows from the number below a power of two to that power. This raises the largest exponent, so that every
product is cut at a place twice as high. If the products lose more than C has gained, the result falls.

Only products that are odd multiples of the last bit kept before lose something, one bit each. So the result
depends on their number and their sum alone, and the search takes all numbers, and one product that makes the
sum. Fewer products than it finds do not do it, unless the sum must be larger than that product can be.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from experiments.common import each_float, write_result
from experiments.unit_statements import SMALL, certificates
from mcfsim.products import UNITS, Unit, dot, get_unit, is_monotone


def proved_units() -> list[Unit]:
    """Return the units that `is_monotone` can decide."""
    return [unit for unit in UNITS.values() if unit.sums == "aligned" and not unit.scales]


def factors(unit: Unit, multiples: Any, quantum: float) -> tuple[Any, Any]:
    """Return the factors of products that are multiples of a quantum, filled up with zeros."""
    fmt = unit.input
    exponent = int(np.log2(quantum))
    half = max(exponent // 2, fmt.emin - fmt.precision + 1)
    a, b = np.zeros(unit.k), np.ones(unit.k)
    a[: len(multiples)] = np.array(multiples) * 2.0**half
    b[: len(multiples)] = 2.0 ** (exponent - half)
    return a, b


def addends(unit: Unit) -> tuple[float, float, float]:
    """Return the number below a power of two, that power, and the last bit kept below it.

    The power is 2, or so large that the inputs have products so small.
    """
    assert unit.fraction_bits is not None
    least = 2 * (unit.input.emin - unit.input.precision + 1)
    power = 2.0 ** (1 + max(0, least + unit.fraction_bits))
    return power - power * 2.0**-unit.output.precision, power, power * 2.0 ** (-1 - unit.fraction_bits)


def fall(unit: Unit) -> dict[str, Any] | None:
    """Return the case with fewest and smallest products in which C grows and the result falls, or None."""
    before, after, quantum = addends(unit)
    for count in range(1, unit.k + 1):
        cases = [[*[1] * (count - 1), odd] for odd in range(1, 2 ** min(unit.input.precision, 6), 2)]
        a, b = (np.array(x) for x in zip(*(factors(unit, x, quantum) for x in cases), strict=True))
        made = [dot(a, b, unit=unit, c=c) for c in (before, after)]
        falls = np.flatnonzero(made[0] > made[1])
        if falls.size:
            first = int(falls[0])
            return {
                "products": count,
                "multiples": cases[first],
                "quantum": quantum,
                "c": [before, after],
                "result": [float(x[first]) for x in made],
            }
    return None


def fall_across_groups(unit: Unit) -> dict[str, Any] | None:
    """Return a dot product of two groups that falls where a factor grows from zero, or None.

    The first group makes C by the factor, from the number below 2; the second one is that of `fall`.
    """
    found = fall(unit)
    if found is None:
        return None
    before, after = found["c"]
    step = after - before
    first, other = factors(unit, [1], step)
    a, b = factors(unit, found["multiples"], found["quantum"])
    grown, b = np.concatenate([first, a]), np.concatenate([other, b])
    small = grown.copy()
    small[0] = 0.0
    made = [float(dot(x, b, unit=unit, c=before)) for x in (small, grown)]
    if made[0] <= made[1]:
        return None
    return {"a_1": [0.0, float(grown[0])], "b_1": float(b[0]), "c": before, "result": made}


def search() -> dict[str, Any]:
    """Return for each unit what is proved, and what is found."""
    found = {}
    for unit in proved_units():
        proved = {of: is_monotone(unit, of) for of in ("factors", "addend")}
        found[unit.name] = {"proved": proved, "fall": fall(unit), "two groups": fall_across_groups(unit)}
    return found


def order_across_groups(name: str) -> tuple[float, float]:
    """Return the sums of one and many small products, the one first, and the one last.

    Beside the one, a group of small products is cut or rounded to zero; by themselves, they add up.
    """
    unit = get_unit(name)
    _, power, quantum = addends(unit)
    large = 2 * power
    share = large * 2.0 ** (1 - unit.output.precision) / (4 * unit.k)
    small, one = factors(unit, [1] * unit.k, max(quantum, share)), factors(unit, [1], large)
    many = [np.tile(x, 8) for x in small]
    first, last = (
        dot(np.concatenate([x[0], y[0]]), np.concatenate([x[1], y[1]]), unit=unit)
        for x, y in ((one, many), (many, one))
    )
    return float(first), float(last)


def exactly(data: Any) -> Any:
    """Return data with floats as fractions, in text."""
    return each_float(data, lambda x: str(Fraction(x)))


def study() -> None:
    """Try all statements on small units and search the others; write what is found."""
    orders = {unit.name: order_across_groups(unit.name) for unit in proved_units()}
    small = [item for unit in SMALL.values() for item in certificates(unit)]
    found = {"units": search(), "orders": orders, "certificates": small}
    write_result("unit_monotonicity", exactly(found))


if __name__ == "__main__":
    study()
