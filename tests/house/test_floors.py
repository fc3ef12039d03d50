"""The floors: what `make lint` holds, what the design page prints, and what lies in the folder."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import mcfsim

ROOT = Path(__file__).parents[2]
PACKAGE = Path(mcfsim.__file__).parent
#: Of every floor: what gives the package its public names, and how it is started.
ABOVE = {"__init__", "__main__"}


def contract_floors():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [{name.strip().removeprefix("mcfsim.") for name in floor.split(":")} for floor in layers]


def printed_floors():
    text = (ROOT / "docs" / "design.md").read_text()
    table = text.split("| floor | what lives there |\n|---|---|\n")[1].split("\n\n")[0]
    return [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()]


def test_the_design_page_prints_the_floors_that_are_held():
    assert printed_floors() == contract_floors()


def test_everything_has_its_floor_and_there_are_few():
    entries = {
        item.stem for item in PACKAGE.iterdir() if item.suffix == ".py" or (item / "__init__.py").is_file()
    }
    floors = contract_floors()
    assert sum(map(len, floors)) == len(set().union(*floors))
    assert set().union(*floors) == entries - ABOVE
    assert len(entries - ABOVE) <= 26


@pytest.mark.parametrize(
    "package",
    [".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("__init__.py")],
)
def test_no_module_is_hidden_by_a_name_of_its_package(package):
    if package == "mcfsim.torch":
        pytest.importorskip("torch")
    whole = import_module(package)
    folder = Path(whole.__file__).parent
    names = {item.stem for item in folder.iterdir() if item.suffix == ".py" or item.is_dir()} - ABOVE
    hidden = [name for name in names if not isinstance(getattr(whole, name, whole), ModuleType)]
    assert not hidden
