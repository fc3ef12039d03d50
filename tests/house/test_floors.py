"""The floors: what `make lint` holds, what the design page prints, and what lies in the folder."""

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
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


@pytest.fixture(scope="module")
def packages():
    """Return the packages by their folders, that of PyTorch where it is installed."""
    folders = {path.parent for path in PACKAGE.rglob("__init__.py")}
    if find_spec("torch") is None:
        folders.remove(PACKAGE / "torch")
    return {folder: import_module(".".join(folder.relative_to(PACKAGE.parent).parts)) for folder in folders}


def test_no_module_is_hidden_by_a_name_of_its_package(packages):
    for folder, whole in packages.items():
        names = {item.stem for item in folder.iterdir() if item.suffix == ".py" or item.is_dir()} - ABOVE
        hidden = [name for name in names if not isinstance(getattr(whole, name, whole), ModuleType)]
        assert not hidden, folder
