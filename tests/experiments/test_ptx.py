"""PTX without repeats: what is left out was made before, by another reading of PTX, and no more is left."""

import random
import re

import numpy as np
import pytest

from experiments.machine_code.ptx import without_repeats

OPERATIONS = {
    **{f"{name}.rn.{kind}": 2 for name in ("add", "sub", "mul") for kind in ("f32", "f64")},
    **{f"{name}.{kind}": 1 for name in ("abs", "neg") for kind in ("f32", "f64")},
    **{"cvt.f64.f32": 1, "cvt.rn.f32.f64": 1, "mov.b32": 1},
}
DO = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "abs": np.abs, "neg": np.negative},
    **{"cvt": np.copy, "mov": np.copy},
}


def types_of(name):
    """Return the types of an instruction's operands and of its result."""
    result = "f32" if name in ("mov.b32", "cvt.rn.f32.f64") else name.split(".")[-1]
    operand = {"cvt.f64.f32": "f32", "cvt.rn.f32.f64": "f64"}.get(name, result)
    return operand, "f64" if name == "cvt.f64.f32" else result


def program(seed, rows=60, registers=6):
    """Return random rows; registers are few, so that they are written again and again."""
    rng = random.Random(seed)
    for _ in range(rows):
        name = rng.choice([*OPERATIONS])
        operand, result = types_of(name)
        given = [f"%{operand}_{rng.randrange(registers)}" for _ in range(OPERATIONS[name])]
        if operand == "f32" and rng.random() < 0.1:
            given[-1] = rng.choice(["0f3FC00000", "0fBF800000"])
        yield f"\t{name} \t%{result}_{rng.randrange(registers)}, {', '.join(given)};"
        if rng.random() < 0.1:
            kind, place = rng.choice(["f32", "f64"]), rng.randrange(registers)
            yield f"\t@%p1 ld.global.b32 {{ %{kind}_{place} }}, [ %rd1 + 0 ];"


def values(rows, numbers):
    """Yield for each row what its result is, carried out by NumPy on numbers in the registers."""
    kinds, held = {"f32": np.float32, "f64": np.float64}, {}

    def read(operand):
        if operand.startswith("0f"):
            return np.full(len(numbers), int(operand[2:], 16), np.uint32).view(np.float32)
        if operand not in held:
            held[operand] = np.roll(numbers, sum(map(ord, operand))).astype(kinds[operand[1:4]])
        return held[operand]

    for place, row in enumerate(rows):
        if loaded := re.search(r"\{ (%\w+) \}", row):
            held[loaded[1]] = np.roll(numbers, 7 * place + 1).astype(kinds[loaded[1][1:4]])
            yield None
            continue
        name, result, *operands = re.findall(r"[%\w.]+", row)
        with np.errstate(all="ignore"):
            made = DO[name.split(".")[0]](*map(read, operands)).astype(kinds[types_of(name)[1]])
        held[result] = made
        yield name, made.tobytes()


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.sampled(2, each=False)
def test_what_is_left_out_was_made_before_and_all_repeats_are(seed):
    rows = list(program(seed))
    left = iter(without_repeats("\n".join(rows)).split("\n"))
    numbers = np.random.default_rng(seed).standard_normal(50) * 2.0 ** np.arange(-25, 25)
    seen, following = set(), next(left)
    for row, made in zip(rows, values(rows, numbers), strict=True):
        if row == following:
            following = next(left, None)
        else:
            assert made in seen, row
        seen.add(made)
    assert following is None
    repeated = []
    for place, row in enumerate(rows):
        name, result, *operands = re.findall(r"[%\w.]+", row)
        copied = name in OPERATIONS and name != "mov.b32" and result not in operands
        repeated += [row, f"\t{name} \t%copy_{place}, {', '.join(operands)};"][: 1 + copied]
    assert len(repeated) > 90
    assert "copy" not in without_repeats("\n".join(repeated))


ADDED = "add.rn.f32 %a, %x, %y;"
#: Rows, and how many of them are left.
ROWS = [
    ([ADDED, "add.rn.f32 %b, %y, %x;"], 1),
    (["sub.rn.f32 %a, %x, %y;", "sub.rn.f32 %b, %y, %x;"], 2),
    ([ADDED, "add.rn.f64 %b, %x, %y;"], 2),
    (["add.rn.f32 %a, %x, 0f3F800000;", "add.rn.f32 %b, %x, 0fBF800000;"], 2),
    # the same by way of others that are the same
    (["cvt.f64.f32 %a, %x;", "abs.f64 %b, %a;", "abs.f32 %c, %x;", "cvt.f64.f32 %d, %c;"], 3),
    (["cvt.f64.f32 %a, %x;", "neg.f64 %b, %a;", "abs.f32 %c, %x;", "cvt.f64.f32 %d, %c;"], 4),
    (["mov.b32 %y, %x;", "add.rn.f32 %a, %x, %x;", "add.rn.f32 %b, %y, %x;"], 2),
    # a register that is written between
    ([ADDED, "mov.b32 %x, %a;", "add.rn.f32 %b, %x, %y;"], 3),
    ([ADDED, "ld.global.b32 { %x }, [ %rd1 ];", "add.rn.f32 %b, %x, %y;"], 3),
    ([ADDED, "@%p1 mov.b32 %x, %a;", "add.rn.f32 %b, %x, %y;"], 3),
    ([ADDED, "asked %x;", "add.rn.f32 %b, %x, %y;"], 3),
    # a loop
    (["$L:", ADDED, "add.rn.f32 %b, %x, %y;", "bra $L;"], 4),
]


@pytest.mark.parametrize(("rows", "left"), ROWS)
def test_the_same_is_what_the_same_makes(rows, left):
    assert len(without_repeats("\n".join(rows)).split("\n")) == left
