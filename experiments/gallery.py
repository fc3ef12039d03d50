"""All figures, each with the page that explains it and the code that draws it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from experiments.common import FIGURES, PAGES, ROOT

#: The code that draws a figure, if it is not the experiment of that name.
DRAWN = {
    "audit": "tests/browser/screenshot.py",
    "audit_page": "tests/browser/screenshot.py",
    "every_p_three": "experiments/every_p.py",
}
PAGE = ROOT / "docs" / "background" / "gallery.md"


def table() -> str:
    """Return the figures in the order of their names, by the words of the page that shows them.

    Raises
    ------
    ValueError
        If no page shows a figure, or nothing draws it.
    """
    shown = {}
    for page in PAGES:
        if page != PAGE:
            for words, name in re.findall(r"!\[([^]]*)\]\([^)]*figures/(\w+)\.png\)", page.read_text()):
                shown.setdefault(name, (words, page))
    return "\n\n".join(
        _entry(path, *shown.get(path.stem, (None, None))) for path in sorted(FIGURES.glob("*.png"))
    )


def _entry(figure: Path, words: str | None, page: Path | None) -> str:
    code = ROOT / DRAWN.get(figure.stem, f"experiments/{figure.stem}.py")
    if words is None or page is None or not code.exists():
        raise ValueError(f"no page shows {figure.name}, or there is no {code}")
    module = ".".join(code.relative_to(ROOT).with_suffix("").parts)
    linked = f"[{page.stem}]({os.path.relpath(page, PAGE.parent)})"
    if page.stem == "README":  # it is not a page of the site
        linked = "the start page of the repository"
    picture = os.path.relpath(figure, PAGE.parent)
    return f"## {words}\n\n![{words}]({picture})\n\nShown in {linked}; drawn by `python -m {module}`."
