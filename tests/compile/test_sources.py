"""What Numba keeps of generated sources: where, and made anew if it is damaged or calls other functions."""

import ast
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")

import mcfsim as mcf
from mcfsim.compile import intrinsics, sources, words
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
from mcfsim.random import RandomWords

NEGATIVE = trace(lambda ar, x: ar.neg(x), "bfloat16", lines=False)
DAMAGES = {"empty": lambda x: b"", "cut": lambda x: x[: len(x) // 2], "other": lambda x: b"\x80\xff"}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where sources lie, and what forgets all that this process has loaded of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    loaded = (sources._loaded, words._loop, words._rows)

    def forget():
        for function in loaded:
            function.cache_clear()

    forget()
    yield tmp_path, forget
    forget()


def negative():
    x = np.arange(8, dtype=np.float32)
    assert np.array_equal(Loop(NEGATIVE)(x), -x)


def drawn():
    stream = RandomWords(3, step=2, stream=1)
    assert np.array_equal(words.draw(stream, 5, 9, 32, "test"), stream.words(5, 9))
    rows = np.zeros((2, 8), np.int32)
    words.draw_rows(stream, np.arange(2), 0, rows)
    assert np.array_equal(rows.view(np.uint32), [stream.of(place).words(0, 8) for place in range(2)])


@pytest.mark.parametrize(("use", "damage"), [*((negative, damage) for damage in DAMAGES), (drawn, "empty")])
@pytest.mark.costly("Numba compiles anew after each damage")
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_damaged_files_are_made_anew(use, damage, kept):
    folder, forget = kept
    use()
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.suffix for path in files} == {".py", ".pyc", ".nbi", ".nbc", ".object"}
    for suffix in (".nbi", ".nbc", ".pyc", ".py"):
        for path in files:
            if path.suffix == suffix:
                path.write_bytes(DAMAGES[damage](files[path]))
        forget()
        use()
        forget()
        use()  # and what was made anew is whole
        there = [path for path in folder.rglob("loop_*") if path in files]
        assert all(path.stat().st_size > len(files[path]) // 2 for path in there)


@pytest.mark.slow
def test_a_cache_folder_that_is_a_file_is_made_elsewhere(kept):
    folder, _ = kept
    (folder / "mcfsim").write_text("in the way")
    negative()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write anywhere")
def test_a_cache_that_cannot_be_written_is_made_elsewhere(kept):
    kept[0].chmod(0o500)
    assert not str(sources.folder()).startswith(str(kept[0]))


# -- what they depend on -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_sources_call_what_their_names_depend_on_and_nothing_else(monkeypatch):
    for text, called in (
        (Loop(NEGATIVE).with_scalars({}).source, {"mcfsim.compile.intrinsics"}),
        (words.source_of_words(), {"mcfsim.compile.intrinsics"}),
        (sources._called_functions().decode(), set()),
    ):
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in nodes}
        assert {name for name in names if name.startswith("mcfsim")} == called
    there = sources.path_of("a text")
    assert sources._called_functions() == Path(intrinsics.__file__).read_bytes()
    monkeypatch.setattr(sources, "_called_functions", lambda: b"mended")
    assert sources.path_of("a text") != there != sources.path_of("another")


# -- without a compiler --------------------------------------------------------------------------------------
@pytest.mark.parametrize("loaded_before", [True, False])
@pytest.mark.slow
def test_where_numba_compiles_nothing_numpy_does_the_work(loaded_before, monkeypatch, tmp_path):
    if loaded_before:
        monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    else:
        monkeypatch.delitem(sys.modules, "numba")
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    for call, *given in ((mcf.arithmetic, "bfloat16"), (mcf.round_to, [1.0], "bfloat16")):
        with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT switches off"):
            call(*given, compiled=True)
    x = np.ones(2**22, np.float32)
    assert np.array_equal(mcf.arithmetic("bfloat16").add(x, x), 2 * x)


def test_a_compiler_that_is_switched_off_elsewhere_is_named(monkeypatch, kept):
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    with pytest.raises(RuntimeError, match="could not be compiled: Numba is told to compile nothing"):
        Loop(NEGATIVE).with_scalars({})
