"""Names that the package says more than once: of classes and of files. ``make lint`` refuses new ones."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "mcfsim"
#: The optimizers for torch are called as the hyperparameters that they take.
CLASSES = {"AdamW", "SGD", "TorchAdamW"}
#: Commands are called as what they show; and three pairs far from each other.
FILES = {"audit.py", "replay.py", "simulate.py", "codes.py", "exact.py", "posits.py"}


def classes(path: Path) -> Iterator[str]:
    """Yield the names of classes that a file defines."""
    return (node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))


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


if __name__ == "__main__":
    sys.exit("\n".join(homonyms(PACKAGE.rglob("*.py"))) or 0)
