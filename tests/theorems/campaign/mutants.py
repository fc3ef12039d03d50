"""The verifier's own text, altered in one place, and judged by the campaign.

Alterations are made systematically, from the syntax tree: every comparison, sum, number and so on, but for
messages, annotations and the limits at the top of a module, which are about cost. An altered module is
imported in a process of its own, forked from one that holds cases and what is true of them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.shared.alterations import alterations, usual, with_altered
from tests.theorems.campaign import brute
from tests.theorems.campaign.draw import draw

#: Modules of tests that use the verifier.
JUDGES = (
    *(f"tests.theorems.campaign.{name}" for name in ("declared", "compare", "numbers")),
    *(f"tests.theorems.{name}" for name in ("test_reach", "test_parity", "drawn", "trying")),
)
#: Seconds of processor time that a mutant has, and bytes of memory.
SECONDS, MEMORY = 60, 4 << 30


@dataclass(frozen=True)
class Mutant:
    """An altered text of a module of `mcfsim.theorems`."""

    module: str
    #: Where and how: the function, the line of text before and after, a number if there are several the same.
    what: str
    made: Callable[[], str] = field(repr=False, compare=False)

    @cached_property
    def source(self) -> str:
        """The whole text."""
        return self.made()


def path_of(module: str) -> Path:
    """Return where a module of `mcfsim.theorems` lies, which need not be imported for it."""
    return Path(__file__).parents[3] / "mcfsim" / "theorems" / f"{module}.py"


@lru_cache
def mutants(module: str) -> list[Mutant]:
    """Return all mutants of a module, in order."""
    tree = ast.parse(path_of(module).read_text())
    count: Counter[str] = Counter()
    made = []
    for function, node, altered in alterations(tree, usual):
        before, after = (ast.unparse(x) for x in (node, altered))
        what = f"{function}: {before} -> {after or 'nothing'}"
        count[what] += 1
        if count[what] > 1:
            what += f" ({count[what]})"
        made.append(Mutant(module, what, partial(_text_of, tree, node, altered)))
    return made


def _text_of(tree: ast.AST, node: ast.AST, altered: ast.AST) -> str:
    return ast.unparse(with_altered(tree, node, altered))


# -- altered modules ----------------------------------------------------------------------------------------
class _Altered(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from an altered text."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.source = f"mcfsim.theorems.{mutant.module}", mutant.source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.name, "exec"), module.__dict__)


#: Of each group of the campaign, how many cases judge a mutant, and of random expressions of exact numbers.
CASES = {
    **{"complete": 60, "long single": 6, "common": 60, "common wide": 30, "common default": 30, "each": 150},
    **{"square": 10, "each three": 3, "unbounded": 3, "common products": 40, "signs": 75},
}
EXPRESSIONS = 250
#: Modules with judges of their own, and of how many cases one judges them, too.
FEWER = {"cells": 3, "reach": 3, "homogeneity": 3, "symmetries": 9}
#: How many random statements judge what is said of cells.
STATEMENTS = 120
#: Modules, and of how many of their mutants one is tried.
TRIED = {
    **{"domain": 9, "cores": 7, "cells": 18, "reach": 18, "homogeneity": 36, "symmetries": 1},
    **{"exact": 9, "two_words": 9},
}
#: Functions that draw or list more operands where a core does not stand for all: nothing rests on them.
OTHERS = ("_sample", "_spread", "_edges", "_drawn", "_families", "_fewest", "_core_of_pairs", "unbounded")

#: Of a module that also tries what it cannot read, the names that read.
READING = {"symmetries": ("indifferent", "_SignReader", "_one_of")}


def chosen(module: str) -> list[Mutant]:
    """Return the mutants that are tried: a systematic sample."""
    named = (m for m in mutants(module) if m.what.startswith(READING.get(module, "")))
    return [m for m in named if not m.what.startswith(OTHERS)][:: TRIED[module]]


def judges(module: str) -> list[Any]:
    """Return the cases that judge a module, and what is true of them, each group's first ones first."""
    places = [(n / count, group, n) for group, count in CASES.items() for n in range(count)]
    if module in ("exact", "two_words"):
        places = [x for x in places if x[1].startswith("long")]
    places.sort(key=lambda x: x[0])
    cases = []
    for _, group, number in places[:: FEWER.get(module, 1)]:
        case = draw(group, number)
        tried = brute.run(case.statement.line, brute.toy(case.format, case.rounding))
        truth = brute.judge(case.statement, tried)
        tried._known = {}
        cases.append((case, truth, tried))
    return cases


#: What an answer of a mutant begins with that came to an end.
ENDED = "it says: "
#: How many cases were tried, and in how many questions they stand for all.
Tried = tuple[int, int]


def fate(mutant: Mutant, cases: list[Any], right: list[Tried]) -> str:
    """Return what the campaign finds against a mutant, or nothing.

    It is tried in a fork of this process, which imports the verifier once more.

    Parameters
    ----------
    right : list
        What the text itself tries, by `answers`.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, _verdict(mutant, cases, right).encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return text.removeprefix(ENDED) if text.startswith(ENDED) else text or "it did not return"


def _verdict(mutant: Mutant, cases: list[Any], right: list[Tried]) -> str:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # it ends the process, which then has said nothing
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in [*sys.modules]:
        if name.startswith(("mcfsim.theorems", *JUDGES)):
            del sys.modules[name]
    sys.meta_path.insert(0, _Altered(mutant))
    try:
        return ENDED + found(mutant.module, cases, right)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} at {Path(last.filename).name}:{last.lineno}"


def answers(module: str, cases: list[Any]) -> Iterator[tuple[str | None, Tried]]:
    """Return, question by question, what is found against a module as it is imported, and what was tried."""
    check, cores, identity, verification = (
        importlib.import_module(f"mcfsim.theorems.{x}")
        for x in ("check", "cores", "identity", "verification")
    )
    compare, numbers = (
        importlib.import_module(f"tests.theorems.campaign.{x}") for x in ("compare", "numbers")
    )
    # It is not looked at again and again whether a statement is what it was, half of the time.
    none = identity.Identity("")
    identity._look = lambda theorem: none
    if module in ("exact", "two_words"):
        yield numbers.first_wrong(EXPRESSIONS), (0, 0)
    if module in ("cells", "reach", "homogeneity"):
        wrong, count, _ = importlib.import_module("tests.theorems.test_reach").first_unlike(STATEMENTS)
        yield wrong, (count, 0)
    if module in ("homogeneity", "symmetries"):
        wrong, read = importlib.import_module("tests.theorems.test_parity").first_unlike(STATEMENTS)
        yield wrong, (0, read)
    # What a statement declares is not tried first, as `verify` does: the core is judged, not the trial.
    check.Check.try_reductions = lambda check: None
    # Nor is anything rested on random operands, and on pairs of all exponents, which are tried besides.
    compare.SAMPLES = 1
    cores._spread = lambda fmt, middle: ()
    # Nor whether it answers alike when it is asked twice, nor is a violation made simpler.
    check.Check.rehearse = lambda check: None
    verification._simplest = lambda check, first: None
    for case, truth, tried in cases:
        certificate = compare.certified(case)
        wrong = compare.contradiction(case, certificate, truth, tried)
        count = 0 if wrong else sum(part.cases for part in certificate.parts)
        yield wrong and f"{case.name}: {wrong}", (count, 0 if wrong else int(certificate.covers))


def found(module: str, cases: list[Any], right: list[Tried]) -> str:
    """Return what is found against a module as it is imported, or nothing.

    To try more cases than the text does is a fault, too, if no false one; so is to say less.
    """
    for (wrong, (tried, covers)), (most, least) in zip(answers(module, cases), right, strict=True):
        if wrong is not None:
            return wrong
        if tried > most or covers < least:
            return f"{tried} cases, covering {covers}, instead of {most}, {least}"
    return ""


def keep_all() -> None:
    """Let caches of what is not altered, as lines of operations, have room for all cases."""
    kept: dict[int, Any] = {}
    for name, module in [*sys.modules.items()]:
        if name.startswith("mcfsim.") and not name.startswith("mcfsim.theorems"):
            for called, what in [*vars(module).items()]:
                if hasattr(what, "cache_parameters"):
                    larger = lru_cache(None, what.cache_parameters()["typed"])(what.__wrapped__)
                    setattr(module, called, kept.setdefault(id(what), larger))


def main(module: str, *known: str) -> None:
    """Print, as a line of JSON each, what the mutants of a module come to.

    Those that are known to be as good as the text are asked a third of the cases: none ends early.
    """
    keep_all()
    cases = judges(module)
    said = list(answers(module, cases))  # here, so that forks have what is kept
    assert not any(wrong for wrong, _ in said), said
    right, first = [tried for _, tried in said], len(said) - len(cases)
    asked = (cases, right), (cases[::3], right[:first] + right[first::3])
    for mutant in chosen(module):
        print(json.dumps([mutant.what, fate(mutant, *asked[mutant.what in known])]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
