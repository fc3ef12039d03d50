"""Compiled loops as object files: the bits of Numba's own call, without Numba; and none where that fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba", reason="Numba is not installed")

import mcfsim as mcf
from mcfsim.codec import encode
from mcfsim.compile import objects, sources, words
from mcfsim.compile.loops import Loop
from mcfsim.compile.program import Scalar
from mcfsim.compile.tracing import trace
from mcfsim.random import RandomWords
from tests.shared.texts import every, values, with_scalar

PROGRAMS = {
    "every operation": ((every, "float16"), {}),
    "in binary64": ((every, "float8_e5m2"), {"wide": True}),
    "checked": ((mcf.two_sum, "bfloat16"), {"checked": True}),
    "codes": ((mcf.two_sum, "bfloat16"), {"packed": True}),
    "random words": ((every, "bfloat16", mcf.Rounding("stochastic", random_bits=8)), {}),
    "a number": ((with_scalar, "bfloat16"), {}),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return where sources and objects lie, with nothing compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = (sources._loaded, words._loop, words._rows)
    for function in kept:
        function.cache_clear()
    yield tmp_path / "mcfsim" / "loops"
    for function in kept:
        function.cache_clear()


def loaded(text, name, *arguments):
    """Return a function from its object."""
    return objects.load(*sources.object_of(text, name, arguments))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.costly("Numba compiles")
@pytest.mark.slow
def test_an_object_gives_the_bits_of_numbas_call(name, folder, assert_same):
    (function, fmt, *rounding), options = PROGRAMS[name]
    real = {"rate": 0.3} if function is with_scalar else {}
    operands = (*"ab", *(Scalar("rate"),)) if real else None
    program = trace(function, fmt, *rounding, operands=operands, lines=False)
    loop = Loop(program, **options)
    compiled = loop.with_scalars(real)
    if program.drawn:
        compiled = compiled.drawing({source: RandomWords(5, source) for source in (0,)})
    lowered, text = loop._lowered(loop.ways(program.reals(real)))
    own = replace(compiled, _loop=loaded(text, *loop._first_call(lowered)))
    assert isinstance(own._loop, objects.MachineCode)
    for size in (0, 1, 63, 1000):
        given = [
            encode(x, fmt) if options.get("packed") else x.astype(dtype)
            for dtype, x in zip(
                compiled.operands, (values(fmt, size, k) for k in range(len(program.inputs))), strict=True
            )
        ]
        found = [[np.empty(size, dtype) for dtype in compiled.results] for _ in range(2)]
        assert all(bound(given, out, 7) for bound, out in zip((compiled, own), found, strict=True))
        for mine, other in zip(*found, strict=True):
            assert_same(mine, other)
    if options.get("checked"):
        given = [np.full(9, np.pi, np.float32)] * 2
        assert not own(given, [np.empty(9, np.float32) for _ in range(2)])


@pytest.mark.slow
def test_words_are_drawn_from_objects(folder):
    text, first = words.source_of_words(), words.FIRST_CALL
    sources.called(text, *first)
    stream, drawn = RandomWords(3, step=2, stream=1), np.empty(400, np.int32)
    loaded(text, *first)(*map(np.int64, (*stream.key, stream.step, stream.place, 25)), drawn)
    assert np.array_equal(drawn.view(np.uint32), stream.words(100, 400))


# -- in a process of its own ---------------------------------------------------------------------------------
_ROUNDS = """
import sys, numpy as np, mcfsim as mcf
x = np.random.default_rng(3).standard_normal(1000)
for rounding in ("nearest_even", "stochastic"):
    options = {} if rounding == "nearest_even" else {"random": mcf.RandomWords(1)}
    found, expected = (mcf.round_to(x, "bfloat16", rounding, compiled=c, **options) for c in (True, False))
    assert np.array_equal(found, expected)
print("numba" in sys.modules)
"""


@pytest.mark.costly("six processes, four of which compile")
@pytest.mark.slow
def test_a_process_that_finds_objects_imports_no_numba_and_mends_damaged_ones(folder):
    def imports_numba():
        said = subprocess.run([sys.executable, "-c", _ROUNDS], capture_output=True, text=True, check=False)
        assert not said.returncode, said.stderr
        return said.stdout.split() == ["True"]

    assert imports_numba()
    assert not imports_numba()
    files = list(folder.glob("*.object"))
    assert len(files) == 3
    for path, damage in zip(files, (lambda x: b"", lambda x: x[:-1], lambda x: b"x" + x), strict=True):
        path.write_bytes(damage(path.read_bytes()))
        assert imports_numba()
    assert not imports_numba()


# -- what they refuse ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_arguments_of_another_kind_are_refused(folder):
    loop = Loop(trace(lambda ar, x: ar.neg(x), "bfloat16", lines=False))
    loop.with_scalars({})
    lowered, text = loop._lowered(())
    function, out = loaded(text, *loop._first_call(lowered)), np.empty(4, np.float32)
    for x in (np.ones(4), np.ones((2, 2), np.float32), np.ones(8, np.float32)[::2]):
        with pytest.raises(TypeError, match="takes a contiguous array of float32 in 1 dimensions"):
            function(x, out)
    with pytest.raises(ValueError, match="shorter"):
        function(out)


_ALLOCATES = """import numpy as np
from numba import njit


@njit(cache=True)
def loop(x, out):
    kept = np.empty(x.size)
    kept[:] = x
    out[:] = kept[::-1]
    return 0
"""


@pytest.mark.costly("Numba is imported, and compiles")
@pytest.mark.slow
def test_what_takes_more_than_machine_code_has_no_object(folder, monkeypatch):
    x, out = np.arange(3.0), np.empty(3)
    assert sources.called(_ALLOCATES, "loop", x, out)(x, out) == 0
    assert out.tolist() == [2, 1, 0]
    assert not list(folder.glob("*.object"))
    assert objects.kinds_of((x, True)) is None
    assert objects.kinds_of((np.float16(1),)) is None
    assert objects.kinds_of((np.ones((1, 2)), np.float32(1))) == (("float64", 2), ("float32", 0))


@pytest.mark.slow
def test_an_object_for_another_processor_is_not_loaded(folder, monkeypatch):
    text, first = words.source_of_words(), words.FIRST_CALL
    sources.called(text, *first)
    assert loaded(text, *first) is not None
    monkeypatch.setattr(objects, "_target", lambda: "another")
    assert loaded(text, *first) is None
    monkeypatch.setattr(objects, "_host", lambda: ("another",))
    assert not sources.is_saved(text, *first)
