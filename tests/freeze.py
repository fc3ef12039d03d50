"""Digests of the bits of this project, to compare before and after a change that keeps them.

``python -m tests.freeze before.txt`` writes a line for each thing that is computed: its name and the digest
of its bits. Of NaN only that it is one counts, of a refusal its words. After the change run the same command
with another file; ``diff before.txt after.txt`` shows what is no longer the same.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.models.saving import save_state
from mcfsim.models.weights import open_tensors
from mcfsim.optim.declaration import optimizers, straight_optimizers
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.training.problems import PROBLEMS

#: Operations by how many operands they take.
OPERATIONS = {1: ("neg", "abs", "sign", "sqrt"), 2: ("add", "sub", "mul", "div"), 3: ("fma",)}
MODES = [mode.value for mode in mcf.rounding.Mode if mode.value != "stochastic"]
#: Real scalars that enter operations: short, long, at the ends, special.
SCALARS = (0.1, -1 / 3, 1.0, 2.0**-9, 1e30, 3e-39, 1e300, 5e-324, -0.0, float("inf"), float("nan"), 7)
WORDS = mcf.RandomWords(3, 1, 4)
Digests = Iterator[tuple[str, Callable[[], Any]]]


def digest(found: Any) -> str:
    """Return the digest of arrays, numbers, text, and what holds them."""
    made = hashlib.sha256()

    def take(x: Any) -> None:
        if isinstance(x, dict):
            for key in x:
                take(str(key))
                take(x[key])
        elif isinstance(x, list | tuple):
            made.update(b"[%d]" % len(x))
            for item in x:
                take(item)
        elif isinstance(x, str | bytes | type(None)) or (isinstance(x, int) and not isinstance(x, bool)):
            made.update(repr(x).encode())
        else:
            x = np.array(x)
            if x.dtype.kind == "f":
                x[np.isnan(x)] = np.nan
            made.update(f"{x.dtype.str}{x.shape}".encode() + x.tobytes())

    take(found)
    return made.hexdigest()[:16]


def outcome(call: Callable[[], Any]) -> str:
    """Return the digest of what a call gives, or what it refuses with."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return digest(call())
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        return f"{type(error).__name__} {digest(str(error))}"


def values_of(fmt: Any) -> Any:
    """Return all values of a format of up to 8 bits, of a longer one hard and random ones, in binary64."""
    rng = np.random.default_rng(1)
    if fmt.bits is not None and fmt.bits <= 8:
        return np.asarray(mcf.codec.decode(np.arange(1 << fmt.bits), fmt), np.float64)
    ends = [float(fmt.max), 1.0, 0.0, -0.0, np.inf, np.nan]
    if isinstance(fmt, mcf.Format):
        ends += [float(x) for x in (fmt.smallest_normal, fmt.smallest_subnormal)]
        low, high = max(fmt.emin - fmt.precision, -1070), min(fmt.emax + 1, 1023)
    else:
        low, high = -20, 20
    near = np.ldexp(rng.uniform(1, 2, 600), rng.integers(low, high, 600))
    with np.errstate(all="ignore"):
        drawn = np.concatenate([ends, near, rng.standard_normal(300)])
        return np.asarray(mcf.round_to(np.concatenate([drawn, -drawn]), fmt), np.float64)


def operands_of(fmt: Any, count: int) -> list[Any]:
    """Return operands: all tuples of a format of few values, else some thousand."""
    values = values_of(fmt)
    if values.size**count <= 1 << 16:
        return [x.ravel() for x in np.meshgrid(*[values] * count, indexing="ij")]
    rng = np.random.default_rng(count)
    return [values[rng.integers(0, values.size, 1 << 12)] for _ in range(count)]


def operations() -> Digests:
    """Yield roundings and operations of every format, in every mode, of arrays, alone and compiled."""
    x = np.random.default_rng(0).standard_normal(1 << 12)
    x = np.concatenate([x * 2.0 ** np.random.default_rng(1).integers(-160, 140, x.size), x, SCALARS])
    for name, fmt in mcf.FORMATS.items():
        for mode, overflow in itertools.product(MODES, ("ieee", "saturate")):
            rounding = mcf.Rounding(mode=mode, overflow=overflow)
            label = f"{name} {mode} {overflow}"
            for kind in (np.float32, np.float64):
                yield (
                    f"round {label} {kind.__name__}",
                    lambda f=fmt, r=rounding, k=kind: mcf.round_to(x.astype(k), f, r),
                )
            for count, names in OPERATIONS.items():
                for operation, compiled in itertools.product(names, (False, True)):
                    if compiled and (overflow == "saturate" or count == 1):
                        continue
                    yield (
                        f"{operation} {label} {'compiled' if compiled else 'eager'}",
                        lambda o=operation, f=fmt, r=rounding, n=count, c=compiled: operated(o, f, r, n, c),
                    )
            yield f"scalars {label}", lambda f=fmt, r=rounding: with_scalars(f, r)
        for bits in (4, 16, 32):
            rounding = mcf.Rounding(mode="stochastic", random_bits=bits)
            yield (
                f"round {name} stochastic {bits}",
                lambda f=fmt, r=rounding: mcf.arithmetic(f, rounding=r, random=WORDS).round(x),
            )
            yield f"add {name} stochastic {bits}", lambda f=fmt, r=rounding: operated("add", f, r, 2, False)
        yield f"codes {name}", lambda f=fmt: mcf.codec.encode(mcf.round_to(x, f), f)


def operated(operation: str, fmt: Any, rounding: Any, count: int, compiled: bool) -> Any:
    """Return an operation's results."""
    words = {"random": WORDS} if rounding.stochastic else {}
    ar = mcf.arithmetic(fmt, rounding=rounding, compiled=compiled, **words)
    arrays = [ar.round(x) for x in operands_of(fmt, count)]
    if compiled:
        return ar.evaluate(lambda ar, *x: getattr(ar, operation)(*x), *arrays)
    return getattr(ar, operation)(*arrays)


def with_scalars(fmt: Any, rounding: Any) -> Any:
    """Return products and sums with real scalars under each policy."""
    found = []
    for policy in ("exact", "rounded", "float32"):
        ar = mcf.arithmetic(fmt, rounding=rounding, scalars=policy)
        values = ar.round(operands_of(fmt, 1)[0])
        for number in SCALARS:
            found += [outcome(lambda n=number, a=ar, v=values: (a.mul(v, n), a.sub(n, v), a.div(v, n)))]
    return found


def hostile(size: int, seed: int) -> Any:
    """Return numbers of all sizes, with zeros, subnormals, the largest, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size) * 2.0 ** rng.integers(-30, 30, size)
    special = [0.0, -0.0, 1e-40, -1e-45, 3.3e38, -3.3e38, 1e-38, 1.0]
    special += [np.inf, -np.inf, np.nan] if seed % 2 else []
    x[rng.integers(0, size, 2 * len(special))] = np.tile(special, 2)
    return x


#: Tensors of a step: one of some blocks, small ones, and one without elements.
SHAPES = {"w": (130, 40), "b": (40,), "scalar": (), "none": (0, 3)}
#: Formats and modes in which steps are made.
LOWS = (("bfloat16", "nearest_even"), ("bfloat16", "stochastic"), ("float16", "toward_zero"))


def _tensors(seed: int) -> dict[str, Any]:
    return {
        name: hostile(int(np.prod(shape)), seed).reshape(shape)
        if np.prod(shape) > 50
        else np.random.default_rng(seed).standard_normal(shape)
        for name, shape in SHAPES.items()
    }


def _settings(mode: str) -> tuple[Any, dict[str, Any]]:
    return (mcf.Rounding(mode=mode), {"random": WORDS} if mode == "stochastic" else {})


def steps() -> Digests:
    """Yield states after five steps of every optimizer by every strategy, packed and not."""
    names = [*mcf.STRATEGIES, *mcf.GRID_STRATEGIES]
    for name, item, (low, mode), packed in itertools.product(optimizers(), names, LOWS, (False, True)):
        if item != "exact":
            yield (
                f"step {name} {item} {low} {mode} {'packed' if packed else 'numbers'}",
                lambda *_, n=name, i=item, f=low, m=mode, p=packed: stepped(n, i, f, m, p),
            )


def stepped(name: str, item: str, low: str, mode: str, packed: bool) -> Any:
    """Return what a state holds after five steps, and where few others do so, by compiled loops, too."""
    rounding, words = _settings(mode)
    found = []
    compiles = mode == "nearest_even" and low == "bfloat16" and (name == "adamw" or item == "collage-plus")
    for compiled in (False, True)[: 1 + compiles]:
        optimizer = mcf.Optimizer(
            optimizers()[name](),
            mcf.strategy(item, low),
            _tensors(0),
            ["w"],
            rounding,
            packed=packed,
            compiled=compiled,
            **words,
        )
        for count in range(1, 6):
            optimizer.step(optimizer.receive(_tensors(count)), 10.0**-count)
        found += [optimizer.weights(), *optimizer.represented()]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            try:
                save_state(optimizer, path)
            except ValueError as error:
                found.append(str(error))
            else:
                found.append({key: x.read() for key, x in sorted(open_tensors(path).items())})
                # On grids the sign of a NaN, and so the file, may depend on what is compiled already.
                if item not in mcf.GRID_STRATEGIES:
                    found.append(contents(path))
    return found


def contents(path: Path) -> list[str | bytes]:
    """Return header and data of a safetensors file; entries of a header have any order."""
    written = path.read_bytes()
    start = 8 + int.from_bytes(written[:8], "little")
    return [json.dumps(json.loads(written[8:start]), sort_keys=True), written[start:]]


def tensors() -> Digests:
    """Yield states after five steps on tensors; interpreted kernels, which take minutes, are left out."""
    if find_spec("torch") is None:
        return
    for name, item, (low, mode) in itertools.product(straight_optimizers(), mcf.STRATEGIES, LOWS):
        if item != "exact":
            yield (
                f"tensors {name} {item} {low} {mode}",
                lambda *_, n=name, i=item, f=low, m=mode: stepped_on_tensors(n, i, f, m),
            )


def stepped_on_tensors(name: str, item: str, low: str, mode: str) -> Any:
    """Return parameters and states after five steps on tensors."""
    import torch

    import mcfsim.torch

    rounding, words = _settings(mode)
    kind = getattr(mcfsim.torch, optimizers()[name].__name__)
    chosen = mcf.strategy(item, low)
    fmt = chosen.parameter.format
    dtype = getattr(torch, {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}[fmt.name])
    given = [torch.nn.Parameter(torch.from_numpy(np.asarray(x)).to(dtype)) for x in _tensors(0).values()]
    optimizer = kind(given, lr=0.01, strategy=item, low=low, rounding=rounding, **words)
    for count in range(1, 6):
        for p, x in zip(given, _tensors(count).values(), strict=True):
            p.grad = torch.from_numpy(np.asarray(x)).to(dtype)
        optimizer.step()
    held = {
        f"{place} {key}": _bits(x)
        for place, p in enumerate(given)
        for key, x in sorted(optimizer.state[p].items())
        if isinstance(x, torch.Tensor)
    }
    return [_bits(p.detach()) for p in given], held


def _bits(x: Any) -> Any:
    """Return a tensor's numbers; NumPy has no bfloat16, and binary64 holds all."""
    import torch

    wide = x.to(torch.float64) if x.dtype.is_floating_point else x
    return wide.contiguous().numpy()


def verdicts() -> Digests:
    """Yield what the catalogue comes to in two small formats."""
    for name in THEOREMS:
        for fmt, mode in itertools.product(("float8_e4m3fn", "float8_e5m2"), ("nearest_even", "toward_zero")):
            yield f"verify {name} {fmt} {mode}", lambda *_, n=name, f=fmt, m=mode: verified(n, f, m)


def verified(name: str, fmt: str, mode: str) -> Any:
    """Return verdict, counts, constant and witnesses of a statement."""
    found = mcf.verify(name, fmt, mode)
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "c.json")
        assert mcf.Certificate.load(Path(folder) / "c.json") == found
    parts = [(x.text, x.cases, x.applicable, x.violations) for x in found.parts]
    worst = found.worst and (found.worst.ratio, found.worst.constant, str(found.worst.case))
    return [str(found.verdict), parts, worst, str(found.simplest), [*map(str, found.witnesses)], found.digest]


def runs() -> Digests:
    """Yield the series of a short run of every problem by every strategy."""
    for problem in PROBLEMS:
        for name in straight_optimizers():
            yield f"run {problem} {name}", lambda *_, p=problem, n=name: simulated(p, n)


def simulated(problem: str, name: str) -> Any:
    """Return series and results of twelve steps, and of the same run read from its file."""
    chosen = [x for x in mcf.STRATEGIES if x != "exact"] if name == "adamw" else ["plain", "collage-plus"]
    if name == "adamw" and problem in ("quadratic", "rosenbrock"):
        chosen.append("exact")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        run = mcf.simulate(problem, name, chosen, 12, record_every=3, output=path, progress=False)
        again = mcf.Run.load(path)
    return [run.settings, run.steps, run.series, run.results, again == run]


COMMANDS = (
    *("formats", "memory", "show", "verify --list", "inspect 0.1 --format bfloat16 --plan"),
    *(
        f"show {name} --as {kind}"
        for name in ("two_sum", "adamw --strategy collage-plus", "adafactor.rows")
        for kind in ("pseudocode", "text")
    ),
    "simulate --problem quadratic --steps 8 --strategy plain --strategy collage-plus",
    "simulate --problem quadratic --optimizer lion --steps 8 --strategy kahan --low float8_e4m3fn",
    "verify dw_times_dw1 --every-p",
)


def commands() -> Digests:
    """Yield what commands print, and how they end."""
    for line in COMMANDS:
        yield f"mcfsim {line}", lambda line=line: printed(line)


def printed(line: str) -> Any:
    """Return the standard output of a command, and its status."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            app(line.split(), prog_name="mcfsim")
            status = None
        except SystemExit as end:
            status = end.code
    # Where a line of source stands is no bit.
    return [re.sub(r"\w+\.py:\d+", "", out.getvalue()), status]


SECTIONS = {
    **{"operations": operations, "steps": steps, "tensors": tensors, "verdicts": verdicts, "runs": runs},
    "commands": commands,
}
#: Into how many parts a section is cut, for processes to share.
PARTS = 20


def lines(section: str, part: int, every: int) -> list[str]:
    """Return the lines of a part of a section, or of one thing in so many of these."""
    calls = itertools.islice(SECTIONS[section](), part, None, PARTS)
    return [f"{name}\t{outcome(call)}\n" for name, call in itertools.islice(calls, 0, None, every)]


def main() -> None:
    """Write digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS])
    parser.add_argument("--every", type=int, default=1, help="one thing in so many alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    tasks = [(section, part, given.every) for section in given.only for part in range(PARTS)]
    with ProcessPoolExecutor(given.jobs) as pool:
        found = [*pool.map(lines, *zip(*tasks, strict=True))]
    written = sorted(itertools.chain.from_iterable(found))
    given.path.write_text("".join(written))
    refused = sum("Error " in line for line in written)
    print(f"{len(written)} digests, {refused} of them of a refusal")


if __name__ == "__main__":
    main()
