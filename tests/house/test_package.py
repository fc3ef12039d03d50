"""The package as a whole: imports, public names, examples, floors of its parts, its source's digest."""

import doctest
import inspect
import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import mcfsim as mcf
from experiments.floors import contracted_floors
from mcfsim.storage.sweeps import installed
from mcfsim.theorems import check
from mcfsim.theorems.verification import prepare
from tests.shared.pages import page

PACKAGE = Path(mcf.__file__).parent
ROOT = Path(__file__).parents[2]

# -- what an import does, each in a fresh interpreter -------------------------------------------------------
HEAVY = ("torch", "matplotlib", "scipy", "typer", "rich", "sklearn", "pandas", "numba", "dask")
LOOKS = """
import json, os, sys
import numpy as np
def state():
    return dict(os.environ), np.geterr(), np.get_printoptions()
before = state()
import mcfsim
same, loaded = state() == before, list(sys.modules)
lazy = "mcfsim.theorems" not in sys.modules and {"THEOREMS", "theorems", "verify"} <= set(dir(mcfsim))
alike = mcfsim.verify is mcfsim.theorems.verify and mcfsim.THEOREMS is mcfsim.theorems.THEOREMS
print(json.dumps({"same": same, "loaded": loaded, "lazy": lazy, "alike": alike}))
"""


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_an_import_is_light_and_leaves_all_alone():
    """Nothing is printed, the environment and NumPy stay as they were, theorems wait for their first use."""
    found = json.loads(python(LOOKS))
    assert "mcfsim" in found["loaded"]
    assert not set(found["loaded"]) & set(HEAVY)
    assert (found["same"], found["lazy"], found["alike"]) == (True, True, True)


@pytest.mark.slow
@pytest.mark.sampled(4, each=False)
@pytest.mark.parametrize("name", ["Theorem", "THEOREMS", "Certificate", "verify"])
def test_each_is_imported_first(name):
    code = f"from mcfsim import {name} as a; from mcfsim.theorems import {name} as b; print(a is b)"
    assert python(code) == "True\n"


# -- the public names ---------------------------------------------------------------------------------------
def test_all_names_are_there_and_documented():
    assert len(set(mcf.__all__)) == len(mcf.__all__)
    namespace = {}
    exec("from mcfsim import *", namespace)
    for name in mcf.__all__:
        thing = namespace[name]
        assert thing is getattr(mcf, name)
        assert inspect.getdoc(thing) or not (callable(thing) or isinstance(thing, ModuleType)), name
    things = {name: thing for name, thing in vars(mcf).items() if not name.startswith("_")}
    assert {name for name, thing in things.items() if not isinstance(thing, ModuleType)} <= set(mcf.__all__)
    with pytest.raises(AttributeError, match="module 'mcfsim' has no attribute 'theorem'"):
        mcf.theorem  # noqa: B018


#: Parameters that are promised, which come first.
PROMISED = {
    mcf.round_to: ["x", "fmt", "rounding", "overflow"],
    mcf.arithmetic: ["fmt", "rounding"],
    mcf.simulate: ["problem", "optimizer", "strategies", "steps"],
    mcf.strategy: ["name", "low"],
    mcf.metrics.edq: ["intended", "effective"],
}


EXAMPLES = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=str)
@pytest.mark.sampled(9, each=False)
def test_examples_in_docstrings_print_what_they_show(path):
    """On their own, with the names of their module."""
    if path.parts[0] == "torch":
        pytest.importorskip("torch", reason="needs PyTorch")
    name = ".".join(("mcfsim", *path.with_suffix("").parts)).removesuffix(".__init__")
    assert doctest.testmod(import_module(name)).failed == 0


def test_names_that_users_rely_on():
    for function, names in PROMISED.items():
        assert list(inspect.signature(function).parameters)[: len(names)] == names, function
    assert mcf.get_format("bf16") is mcf.FORMATS["bfloat16"]
    assert {"bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"} <= mcf.FORMATS.keys()
    assert list(mcf.STRATEGIES) == [
        *("plain", "kahan", "collage-light", "collage-plus", "mcf-2", "mcf-3"),
        *("stochastic-parameter", "stochastic", "fp32-optim", "eco", "fp32-master"),
        *("split-master", "split-truncated", "remainder-8", "remainder-16"),
        *("fp8-moments", "int8-moments", "coat-moments", "fp32", "exact"),
    ]


# -- the floors: what `make lint` holds, what the design page prints, and what lies in the folder -----------
#: Of every floor: what gives the package its public names, and how it is started.
ABOVE = {"__init__", "__main__"}


def test_everything_has_its_floor_as_the_design_page_prints_and_there_are_few():
    floors = [set(names) for names in contracted_floors()]
    table = page("design").read_text().split("| floor | what lives there |\n|---|---|\n")[1]
    rows = table.split("\n\n")[0].splitlines()
    assert [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in rows] == floors
    there = {x.stem for x in PACKAGE.iterdir() if x.suffix == ".py" or (x / "__init__.py").is_file()}
    assert sorted(name for floor in floors for name in floor) == sorted(there - ABOVE)
    folders = [path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    assert len(floors) <= 9
    assert len(folders) <= 19
    assert len(there - ABOVE) <= 29


def test_no_module_is_hidden_by_a_name_of_its_package():
    folders = {path.parent for path in PACKAGE.rglob("__init__.py")}
    if find_spec("torch") is None:
        folders.remove(PACKAGE / "torch")
    for folder in folders:
        whole = import_module(".".join(folder.relative_to(PACKAGE.parent).parts))
        names = {item.stem for item in folder.iterdir() if item.suffix == ".py" or item.is_dir()} - ABOVE
        hidden = [name for name in names if not isinstance(getattr(whole, name, whole), ModuleType)]
        assert not hidden, folder


# -- the digest of the source: of every file's path and content, and in the key of every check --------------
@pytest.mark.slow
@pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_file_counts(every, tmp_path):
    package = Path(shutil.copytree(PACKAGE, tmp_path / "copy"))
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "eft.pyc").write_bytes(b"compiled")
    assert installed._digest(package) == installed.DIGEST
    digests = {installed.DIGEST}
    files = sorted(package.rglob("*.py"))
    assert len(files) > 100
    files = files[::every]
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"#")  # of the same length
        digests.add(installed._digest(package))
        file.write_bytes(content)
    files[-1].rename(files[-1].with_name("another.py"))
    digests.add(installed._digest(package))
    assert len(digests) == len(files) + 2


@pytest.mark.slow
def test_results_of_another_source_are_not_taken_from_a_journal(monkeypatch):
    one = prepare("two_sum", "float8_e5m2", "nearest_even")
    key = one.key
    assert prepare("two_sum", "float8_e5m2", "nearest_even").key == key
    monkeypatch.setattr(check, "DIGEST", "of another source")
    assert one.key != key
