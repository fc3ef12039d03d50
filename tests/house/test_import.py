"""What `import mcfsim` does, and does not: each in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import mcfsim

pytestmark = pytest.mark.slow

HEAVY = ("torch", "matplotlib", "scipy", "typer", "rich", "sklearn", "pandas", "numba", "dask")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_nothing_heavy_is_imported() -> None:
    loaded = set(python("import sys, mcfsim; print(*sys.modules)").split())
    assert "mcfsim" in loaded
    assert not loaded & set(HEAVY)


def test_the_environment_is_left_alone() -> None:
    changed = python(
        "import os, numpy; before = dict(os.environ); import mcfsim; print(dict(os.environ) == before)"
    )
    assert ast.literal_eval(changed)


def test_numpy_is_left_alone() -> None:
    state = "(np.geterr(), np.get_printoptions())"
    assert ast.literal_eval(python(f"import numpy as np; a = {state}; import mcfsim; print(a == {state})"))


def test_nothing_is_printed() -> None:
    assert python("import mcfsim") == ""


def test_theorems_are_imported_at_their_first_use() -> None:
    """They take as long to import as all the rest."""
    code = """
import sys, mcfsim
print("mcfsim.theorems" in sys.modules, {"THEOREMS", "theorems", "verify"} <= set(dir(mcfsim)))
print(mcfsim.verify is mcfsim.theorems.verify, mcfsim.THEOREMS is mcfsim.theorems.THEOREMS)
"""
    assert python(code).split() == ["False", "True", "True", "True"]


@pytest.mark.parametrize("name", ["Theorem", "THEOREMS", "Certificate", "verify"])
def test_each_is_imported_first(name: str) -> None:
    code = f"from mcfsim import {name} as a; from mcfsim.theorems import {name} as b; print(a is b)"
    assert python(code) == "True\n"


def test_what_there_is_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'mcfsim' has no attribute 'theorem'"):
        mcfsim.theorem  # noqa: B018
