"""What `import mcfsim` does, and does not: each in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import mcfsim as mcf

pytestmark = pytest.mark.slow

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
FIRST = """
import os, sys, numpy, dataclasses, fractions
for name in sys.argv[1:]:  # each in a process of its own, where nothing of it is imported
    if (child := os.fork()) == 0:
        exec(f"from mcfsim import {name} as a; from mcfsim.theorems import {name} as b; print(name, a is b)")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def python(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_an_import_is_light_and_leaves_all_alone() -> None:
    """Nothing is printed, the environment and NumPy stay as they were, theorems wait for their first use."""
    found = json.loads(python(LOOKS))
    assert "mcfsim" in found["loaded"]
    assert not set(found["loaded"]) & set(HEAVY)
    assert (found["same"], found["lazy"], found["alike"]) == (True, True, True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.costly("a process of its own")
def test_each_is_imported_first() -> None:
    names = ("Theorem", "THEOREMS", "Certificate", "verify")
    assert python(FIRST, *names).splitlines() == [f"{name} True" for name in names]


def test_what_there_is_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'mcfsim' has no attribute 'theorem'"):
        mcf.theorem  # noqa: B018
