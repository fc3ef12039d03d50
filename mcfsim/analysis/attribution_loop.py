"""The loop that `mcfsim.analysis.compiled_attribution` compiles; it takes a few inputs at a time.

``M[x, field, j]`` is a number of the j-th of these inputs: x stands for an input, result or constant of the
program, and the fields are named below. ``K[s, 2 n, j]`` and ``K[s, 2 n + 1, j]`` are the slope and the
derivative of step s with respect to its operand n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mcfsim.analysis.secants import select

#: The inputs that are taken at a time: their numbers stay in the cache.
LANES = 64
#: Computed number, own error, error so far, running bound (later the factor by which the output changes),
#: sensitivity.
VALUE, OWN, ERROR, BOUND, SENSITIVITY = range(5)
FACTOR = BOUND
FIELDS = 5
#: Running bounds are multiplied by this, to cover the errors of computing them in binary64.
MARGIN = 1.0 + 2.0**-40


def row_float32(address: Any, size: Any) -> Any:
    """Return the numbers at an address; compiled loops have a function of their own for this."""
    raise NotImplementedError


row_float64 = row_float32


def entered() -> None:
    """Stand for the code that rounds an input, if the loop does so: `attribution_source` inserts it."""
    raise NotImplementedError


def performed() -> None:
    """Stand for the code that performs a step, if the loop does so, and applies its operation's rules."""
    raise NotImplementedError


def prefer_whole_vectors() -> None:
    """Ask for the widest vectors: only compiled loops have them."""


def times(slope: Any, x: Any) -> Any:
    """Return a slope times a number; zero if either of them is zero."""
    return select((slope == 0) | (x == 0), 0.0, slope * x)


def attribution(
    operations: Any,
    operands: Any,
    outputs: Any,
    constants: Any,
    reached: Any,
    rows: Any,
    units: Any,
    ends: Any,
    spreads: Any,
    rounded: Any,
    judged: Any,
    numbers: Any,
    values: Any,
    wide: Any,
    errors: Any,
    given: Any,
    columns: Any,
    sums: Any,
    totals: Any,
    sample: Any,
) -> None:
    """Fill columns, sums and the sample of a block; `AttributionLoop` says what the arrays are."""
    prefer_whole_vectors()
    size, steps, registers = columns.shape[1], operations.size, reached.size
    inputs = registers - steps
    M, K = np.zeros((registers + constants.size, FIELDS, LANES)), np.zeros((steps, 6, LANES))
    P, Q = np.zeros((sums.shape[0], LANES)), np.zeros((sums.shape[0], LANES))
    # The output's computed, error, condition, turned, first order, squares, running; scale, relative error.
    found = np.zeros((9, LANES))
    there, bad, usable = np.zeros(LANES, np.bool_), np.zeros(LANES, np.bool_), np.zeros(LANES, np.bool_)
    for x in range(constants.size):
        M[registers + x, VALUE] = constants[x]
    for start in range(0, size, LANES):
        m = min(LANES, size - start)
        stop = start + m
        for x in range(registers):
            if values[x] and wide[x]:
                long = row_float64(values[x], size)[start:stop]
                for j in range(m):
                    M[x, VALUE, j] = long[j]
            elif values[x]:
                short = row_float32(values[x], size)[start:stop]
                for j in range(m):
                    M[x, VALUE, j] = short[j]
            if errors[x]:
                long = row_float64(errors[x], size)[start:stop]
                for j in range(m):
                    M[x, OWN, j] = long[j]
        for j in range(LANES):
            there[j] = j < m
            bad[j] = j >= m
        found[:] = 0
        for x in range(inputs):
            entered()
            for j in range(LANES):
                M[x, ERROR, j] = M[x, OWN, j]
                M[x, BOUND, j] = abs(M[x, OWN, j])
        # Forward: errors, slopes, running bounds, and where infinities and NaNs first appear.
        for s in range(steps):
            r, row = inputs + s, rows[inputs + s]
            performed()
            unit, least, low, high = units[s, 0], units[s, 1], ends[s, 0], ends[s, 1]
            own, strange = select(rounded[s], 1.0, 0.0), 0
            for j in range(LANES):
                v = M[r, VALUE, j]
                bound = (M[r, BOUND, j] + times(max(abs(v) * unit, least), own)) * MARGIN
                M[r, BOUND, j] = select((own == 0) | ((v > low) & (v < high)), bound, np.inf)
                strange |= v - v != 0
            if strange:
                for j in range(LANES):
                    if not np.isfinite(M[r, VALUE, j]) and not bad[j]:
                        bad[j] = True
                        sums[row, 4] += 1
        # Backward: by how much each result changes the output.
        for x in outputs:
            for j in range(LANES):
                found[0, j] += M[x, VALUE, j]
                found[1, j] += M[x, ERROR, j]
                found[6, j] += M[x, BOUND, j]
        for x in range(registers):
            for j in range(LANES):
                M[x, FACTOR, j] = 0.0
                M[x, SENSITIVITY, j] = 0.0
        for x in outputs:
            for j in range(LANES):
                M[x, FACTOR, j] += 1
                M[x, SENSITIVITY, j] += 1
        for s in range(steps - 1, -1, -1):
            r = inputs + s
            for n in range(3):
                x = operands[s, n]
                if 0 <= x < registers and reached[r]:
                    for j in range(LANES):
                        M[x, FACTOR, j] += times(K[s, 2 * n, j], M[r, FACTOR, j])
                        M[x, SENSITIVITY, j] += times(K[s, 2 * n + 1, j], M[r, SENSITIVITY, j])
        # Shares by row, bounds of first order, condition.
        P[:] = 0
        Q[:] = 0
        for x in range(0 if given else inputs, registers):
            if reached[x]:
                row = rows[x]
                for j in range(LANES):
                    P[row, j] += times(M[x, FACTOR, j], M[x, OWN, j])
        for s in range(steps):
            r, row = inputs + s, rows[inputs + s]
            if reached[r] and rounded[s]:
                unit, least, spread = units[s, 0], units[s, 1], spreads[s]
                low, high = ends[s, 0], ends[s, 1]
                if errors[r]:  # without the error that a turned choice adds
                    long = row_float64(errors[r], size)[start:stop]
                    for j in range(m):
                        Q[row, j] += times(M[r, SENSITIVITY, j], long[j])
                else:
                    for j in range(LANES):
                        Q[row, j] += times(M[r, SENSITIVITY, j], M[r, OWN, j])
                for j in range(LANES):
                    v = M[r, VALUE, j]
                    largest = max(abs(v - M[r, ERROR, j]) * unit, least)
                    largest = select((v > low) & (v < high), largest, np.inf)
                    term = times(abs(M[r, SENSITIVITY, j]), largest)
                    found[4, j] += term
                    found[5, j] += np.square(term * spread)
        for x in range(inputs):
            if reached[x]:
                row = rows[x]
                for j in range(LANES):
                    exact = M[x, VALUE, j] - M[x, ERROR, j]
                    found[2, j] += abs(M[x, SENSITIVITY, j] * exact)
                    Q[row, j] += times(M[x, SENSITIVITY, j], M[x, OWN, j])
                    term = abs(times(M[x, SENSITIVITY, j], M[x, OWN, j]))
                    found[4, j] += term
                    found[5, j] += np.square(term)
        for j in range(m):
            exact = abs(found[0, j] - found[1, j])
            usable[j] = np.isfinite(found[1, j]) and np.isfinite(exact) and exact > 0
            found[7, j] = select(usable[j], exact, 1.0)
            found[8, j] = select(usable[j], found[1, j] / found[7, j], 0.0)
            found[2, j] /= exact
            found[5, j] = 3.0 * np.sqrt(found[5, j])
            for k in range(4, 7):
                found[k, j] = select(np.isnan(found[k, j]), np.inf, found[k, j])
            totals[0] += usable[j]
            totals[1] += found[8, j]
            totals[2] += np.square(found[8, j])
        for k in range(7):
            column = columns[k, start:stop]
            for j in range(m):
                column[j] = found[k, j]
        for row in range(sums.shape[0]):
            magnitude = sample[row, start:stop]
            for j in range(m):
                part = select(usable[j], P[row, j] / found[7, j], 0.0)
                ahead = select(usable[j], Q[row, j] / found[7, j], 0.0)
                sums[row, 0] += part
                sums[row, 1] += np.square(part)
                sums[row, 2] += part * found[8, j]
                sums[row, 3] += np.square(ahead)
                magnitude[j] = select(usable[j], abs(part), np.nan)
