"""The table of the page on recipes is that of `RECIPES`.

`python -m tests.recipes.test_page` writes it.
"""

import re

from experiments.common import ROOT
from mcfsim.formats import FORMATS
from mcfsim.recipes import RECIPES
from mcfsim.recipes.recipe import OperandSource, Signs
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.formats import scaled_table

PAGE = ROOT / "docs" / "howto" / "fp8_fp4.md"
BLOCK = re.compile(r"(<!-- recipes -->\n).*?(<!-- end of recipes -->)", re.DOTALL)
OPERANDS = {"forward": ("X", "W"), "dgrad": ("dY", "W"), "wgrad": ("dY", "X")}
HEAD = ("recipe", "operands", "elements", "scales", "rule", "rounding", "Hadamard", "unit", "high blocks")


def operand_cells(operand):
    """Return the elements, scales, rule and rounding of an operand."""
    fmt = operand.format
    mode = str(operand.rounding.mode).replace("_", " ")
    if not isinstance(fmt, ScaledFormat):
        return fmt.name, "none", "", mode
    row = scaled_table([fmt])[0]
    scales = f"{row['scale']} each {row['block']}".replace("each tensor", "of the tensor")
    scales += " and of the tensor" if fmt.tensor_scale else ""
    drawn = mode if fmt.group is None else f"{mode}, scales stochastic"
    return row["element"], scales, f"`{fmt.rule}`", drawn


def rows():
    """Yield the rows of the table: of each recipe the operands that are alike."""
    for name, recipe in RECIPES.items():
        alike = {}
        for label, product in recipe.products.items():
            signs = "" if product.signs is Signs.NONE else f", {product.signs} signs"
            turned = f"{product.hadamard}{signs}" if product.hadamard else "no"
            for letter, operand in zip(OPERANDS[label], (product.left, product.right), strict=True):
                taken = ", of what forward took" if operand.source is OperandSource.FORWARD else ""
                key = (*operand_cells(operand), turned, product.unit or "binary32")
                alike.setdefault(key, []).append(f"{letter} in {label}{taken}")
            expected = None if label == "wgrad" else FORMATS["bfloat16"]
            assert product.output == expected, "what the page says of outputs"
        high = f"{recipe.first} first, {recipe.last} last" if recipe.first or recipe.last else "none"
        for place, (cells, operands) in enumerate(alike.items()):
            first = len(operands) == 6
            yield (
                f"`{name}`" if not place else "",
                "all" if first else "; ".join(operands),
                *cells,
                high if not place else "",
            )


def table():
    """Return the table as Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *rows()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def filled(text):
    return BLOCK.sub(lambda match: match[1] + table() + match[2], text)


def test_the_table_is_that_of_the_recipes():
    text = PAGE.read_text()
    assert BLOCK.search(text)
    assert filled(text) == text
    assert text.count("\n| `") == len(RECIPES)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
