"""What `import mcfsim` does, and does not: each in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys

HEAVY = ("torch", "matplotlib", "scipy", "typer", "rich", "sklearn", "pandas", "numba", "dask")
#: Seconds that the package may take on top of NumPy, and how often a busy machine may try.
ALLOWED, ATTEMPTS = 0.3, 5


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


def test_the_import_is_quick() -> None:
    code = "import numpy, time; t = time.perf_counter(); import mcfsim; print(time.perf_counter() - t)"
    took = []
    for _ in range(ATTEMPTS):
        took.append(float(python(code)))
        if took[-1] < ALLOWED:
            return
    raise AssertionError(f"import mcfsim took {took} s on top of NumPy, more than {ALLOWED} s each time")
