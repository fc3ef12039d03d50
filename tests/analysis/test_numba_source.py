"""What Numba keeps of the loops of an analysis: made anew if it is damaged, or calls other functions."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")

import mcfsim as mcf
from mcfsim.analysis import intrinsics, numba_source
from mcfsim.analysis.numba_source import NJIT, called

#: A function as an analysis has them.
TEXT = f"""import numpy as np
from numba import njit
from mcfsim.analysis.intrinsics import prefer_whole_vectors, select


{NJIT}def doubled(x, out):
    prefer_whole_vectors()
    for i in range(x.size):
        out[i] = select(x[i] > 0, 2 * x[i], 0.0)
"""
DAMAGES = {"empty": lambda x: b"", "cut": lambda x: x[: len(x) // 2], "other": lambda x: b"\x80\xff"}


def use():
    x, out = np.array([-1.0, 2.0]), np.empty(2)
    called(TEXT, "doubled", x, out)(x, out)
    assert out.tolist() == [0, 4]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.costly("Numba compiles anew after each damage")
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_damaged_files_are_made_anew(damage, cache_folder):
    assert not numba_source.is_cached(TEXT)
    use()
    assert numba_source.is_cached(TEXT)
    files = {path: path.read_bytes() for path in cache_folder.rglob("*") if path.is_file()}
    assert {path.suffix for path in files} == {".py", ".pyc", ".nbi", ".nbc"}
    for suffix in (".nbi", ".nbc", ".pyc", ".py"):
        for path in files:
            if path.suffix == suffix:
                path.write_bytes(DAMAGES[damage](files[path]))
        use()
        use()  # and what was made anew is whole
        there = [path for path in cache_folder.rglob("loop_*") if path in files]
        assert all(path.stat().st_size > len(files[path]) // 2 for path in there)


def test_paths_depend_on_the_functions_that_sources_call(monkeypatch):
    there = numba_source._path_of("a text")
    assert numba_source._called_functions() == Path(intrinsics.__file__).read_bytes()
    nodes = ast.walk(ast.parse(numba_source._called_functions()))
    modules = {x.module or "" for x in nodes if isinstance(x, ast.ImportFrom)}
    assert not any(x.startswith("mcfsim") for x in modules)
    monkeypatch.setattr(numba_source, "_called_functions", lambda: b"mended")
    assert numba_source._path_of("a text") != there != numba_source._path_of("another")


@pytest.mark.parametrize("loaded_before", [True, False])
def test_where_numba_compiles_nothing_an_analysis_is_numpys(loaded_before, monkeypatch):
    if loaded_before:
        monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    else:
        monkeypatch.delitem(sys.modules, "numba")
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not numba_source.is_available()
    given = (lambda ar, x: ar.add(x, x)), {"x": "normal()"}, "bfloat16"
    with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT"):
        mcf.analyse(*given, count=10, compiled=True)
    mcf.analyse(*given, count=10)
