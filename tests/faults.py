"""Faults put into the package, one at a time, and whether its tests notice them.

``python -m tests.faults results.jsonl`` tries each fault on the quick tests, first on those that name its
module, and what these miss on all tests of its folders and of the files that name it. A line of the result is
a fault; those that are there are not tried again. As long as the package is the same, the same seed gives the
same faults.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from tests.shared.alterations import alterations, usual

HERE = Path(__file__).resolve().parents[1]
FOLDERS = ("kernels", "compile", "backends", "optim", "torch", "theorems", "models", "storage")
#: Processor time that the whole of the files may take.
SECONDS = 300


class Fault(NamedTuple):
    """One altered place of a module, whose path is from the repository's root."""

    path: str
    line: int
    was: str
    now: str
    start: int  # in the bytes of the module
    end: int

    def put_into(self, text: bytes) -> bytes:
        return text[: self.start] + self.now.encode() + text[self.end :]


def _altered(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is exchanged for: what tests of algorithms exchange, and nothing for a statement."""
    yield from usual(node)
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple):
        yield ast.Pass()


def faults_of(path: str) -> list[Fault]:
    """Return all faults of a module, in order."""
    data, found = (HERE / path).read_bytes(), []
    lines = [0, *accumulate(map(len, data.splitlines(keepends=True)))]
    for _, node, altered in alterations(ast.parse(data), _altered):
        # A branch that is not entered has another condition.
        place, now = (node.test, "False") if isinstance(node, ast.If) else (node, ast.unparse(altered))
        if isinstance(place, ast.expr | ast.stmt):
            start = lines[place.lineno - 1] + place.col_offset
            end = lines[place.end_lineno - 1] + place.end_col_offset
            now = now if isinstance(node, ast.stmt) else f"({now})"
            found.append(Fault(path, node.lineno, data[start:end].decode(), now, start, end))
    return found


def chosen(count: int, seed: int) -> list[Fault]:
    """Return so many faults, spread over the modules by their lines."""
    drawn = random.Random(seed)
    modules = (x for folder in FOLDERS for x in (HERE / "mcfsim" / folder).rglob("*.py"))
    paths = sorted(str(x.relative_to(HERE)) for x in modules)
    sizes = [len((HERE / path).read_bytes().splitlines()) for path in paths]
    found: dict[Fault, None] = {}
    while len(found) < count:
        (path,) = drawn.choices(paths, sizes)
        if faults := faults_of(path):
            found[drawn.choice(faults)] = None
    return list(found)


def naming(path: str, tests: Path) -> list[str]:
    """Return the test files that name a module."""
    *parents, last = Path(path).with_suffix("").parts
    parent = r"\.".join(parents)
    named = re.compile(rf"\b{parent}\.{last}\b|from {parent} import [^\n]*\b{last}\b")
    return sorted(str(x) for x in tests.rglob("test_*.py") if named.search(x.read_text()))


def noticed(root: Path, *options: str) -> tuple[str | None, float]:
    """Return the first test that fails, None if none does, and the seconds of a processor that it took."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # What a case costs says nothing of a fault, here.
    asked = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "--cost-limit", str(SECONDS)]
    command = [sys.executable, "-m", "pytest", *asked, *options]
    how = {"cwd": root, "env": os.environ | {"PYTHONPATH": str(root)}, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **how, preexec_fn=limited, timeout=4 * SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "no end", float(SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode in (0, 5):
        return None, seconds
    told = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return told[1] if told else f"ended with {done.returncode}", seconds


def forget(path: Path) -> None:
    """Remove what was compiled of a module: it would be taken for a text of one length and second."""
    for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        kept.unlink()


def judged(fault: Fault, root: Path) -> dict[str, Any]:
    path = root / fault.path
    text = path.read_bytes()
    path.write_bytes(fault.put_into(text))
    forget(path)
    try:
        files = naming(fault.path, root / "tests")
        named = (root / "tests" / x.replace("torch", "pytorch") for x in Path(fault.path).parts[1:-1])
        folders = [x for x in named if x.is_dir()]
        whole = [*(x for x in files if not any(map(Path(x).is_relative_to, folders))), *map(str, folders)]
        stages = {"quick, by name": ["--quick", *files], "quick": ["--quick"], "whole": whole}
        spent, by, how = 0.0, None, "none"
        for stage, options in stages.items():
            if stage != "quick, by name" or files:
                by, seconds = noticed(root, *options)
                spent += seconds
                if by is not None:
                    how = stage
                    break
    finally:
        path.write_bytes(text)
        forget(path)
    return {**fault._asdict(), "by": by, "stage": how, "seconds": round(spent, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="which of how many parts, from 0")
    given = parser.parse_args()
    known = given.results.read_text().splitlines() if given.results.exists() else []
    tried = {(x["path"], x["start"], x["now"]) for x in map(json.loads, known)}
    with tempfile.TemporaryDirectory() as folder, given.results.open("a") as results:
        root = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(HERE), str(root)], check=True)
        failed, _ = noticed(root, "--quick")
        if failed is not None:
            raise SystemExit(f"{failed} fails without a fault")
        part, parts = given.part
        for fault in chosen(given.count, given.seed)[part::parts]:
            if (fault.path, fault.start, fault.now) not in tried:
                print(json.dumps(judged(fault, root)), file=results, flush=True)


if __name__ == "__main__":
    main()
