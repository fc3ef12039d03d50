"""Files of the package: names of their own, as classes have, and sizes that one reads at a sitting.

``make lint`` refuses others.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "mcfsim"
#: The optimizers for torch are called as the hyperparameters that they take.
CLASSES = {"AdamW", "SGD", "TorchAdamW"}
#: Commands are called as what they show; and a pair far from each other.
FILES = {"analyse.py", "audit.py", "simulate.py", "exact.py"}

#: Lines of a file: what is shorter lies better beside its user, what is longer has two subjects.
LEAST, MOST = 50, 400
#: Others: how a package is started; what imports the compiler, for two seconds; a class or function of many
#: branches, which would be torn apart.
SHORT = {"__init__.py", "__main__.py", "disabled.py"}
LONG = {"numpy.py", "floats.py", "forms.py"}


@lru_cache(maxsize=1024)
def classes(path: Path) -> tuple[str, ...]:
    """Return the names of classes that a file defines."""
    tree = ast.walk(ast.parse(path.read_text()))
    return tuple(node.name for node in tree if isinstance(node, ast.ClassDef))


def homonyms(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each name that several files or classes have, but for those that may be."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        if path.name != "__init__.py":
            where[f"file {path.name}"].append(str(path))
        for name in classes(path):
            where[f"class {name}"].append(str(path))
    allowed = {f"class {name}" for name in CLASSES} | {f"file {name}" for name in FILES}
    for name, found in where.items():
        if len(found) > 1 and name not in allowed:
            yield f"{name} is there {len(found)} times: {', '.join(found)}"


def sizes(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each file that is too short or too long, but for those that may be."""
    for path in sorted(paths):
        lines = path.read_text().count("\n")
        if lines < LEAST and path.name not in SHORT:
            yield f"{path} has {lines} lines, fewer than {LEAST}"
        if lines > MOST and path.name not in LONG:
            yield f"{path} has {lines} lines, more than {MOST}"


if __name__ == "__main__":
    files = [*PACKAGE.rglob("*.py")]
    sys.exit("\n".join([*homonyms(files), *sizes(files)]) or 0)
