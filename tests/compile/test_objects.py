"""Machine code of loops: the bits of NumPy, kept as files, compiled anew where those are of no use."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

import mcfsim as mcf
from mcfsim.codec import encode
from mcfsim.compile import llvm_source, loops, objects
from mcfsim.compile.device_rounding import rounding_program
from mcfsim.compile.loops import CompilationError, Loop
from mcfsim.compile.program import Scalar
from mcfsim.compile.tracing import trace
from mcfsim.random import RandomWords
from tests.shared.algorithms import every, values, with_scalar

PROGRAMS = {
    "every operation": ((every, "float16"), {}),
    "in binary64": ((every, "float8_e5m2"), {"wide": True}),
    "checked": ((mcf.two_sum, "bfloat16"), {"checked": True}),
    "codes": ((mcf.two_sum, "bfloat16"), {"packed": True}),
    "random words": ((every, "bfloat16", mcf.Rounding("stochastic", random_bits=8)), {}),
    "a number": ((with_scalar, "bfloat16"), {}),
}
NEGATIVE = trace(lambda ar, x: ar.neg(x), "bfloat16", lines=False)


@pytest.fixture
def fresh(cache_folder):
    """Return where objects lie, with none there, and what forgets all that this process has loaded."""
    loaded = (objects._engine, loops._word_loop, loops._word_rows)

    def forget():
        for function in loaded:
            function.cache_clear()

    forget()
    yield cache_folder / "mcfsim" / "loops", forget
    forget()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.costly("LLVM compiles")
@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
def test_a_loop_from_its_file_has_the_bits_of_numpy(name, fresh, assert_same):
    (function, fmt, *rounding), options = PROGRAMS[name]
    real = {"rate": 0.3} if function is with_scalar else {}
    operands = (*"ab", *(Scalar("rate"),)) if real else None
    program = trace(function, fmt, *rounding, operands=operands, lines=False)
    drawn = {"words": {0: RandomWords(5)}} if program.drawn else {}
    Loop(program, **options).with_scalars(real)
    fresh[1]()
    loop = Loop(program, **options)
    assert loop.is_saved(program.reals(real))
    own, numpys = (
        loop.with_scalars(real),
        Loop(program, wide=options.get("wide", False)).on_numpy(program.reals(real)),
    )
    if drawn:
        own, numpys = (x.drawing(drawn["words"]) for x in (own, numpys))
    for size in (0, 1, 63, 1000):
        given = [values(fmt, size, k) for k in range(len(program.inputs))]
        expected = [np.empty(size, dtype) for dtype in numpys.results]
        assert numpys([x.astype(d) for x, d in zip(given, numpys.operands, strict=True)], expected, 7)
        if options.get("packed"):
            given, expected = ([encode(x, fmt) for x in part] for part in (given, expected))
        found = [np.empty(size, dtype) for dtype in own.results]
        assert own([x.astype(d) for x, d in zip(given, own.operands, strict=True)], found, 7)
        for mine, other in zip(found, expected, strict=True):
            assert_same(mine, other)
    if options.get("checked"):
        given = [np.full(9, np.pi, np.float32)] * 2
        assert not own(given, [np.empty(9, np.float32) for _ in range(2)])


@pytest.mark.slow
def test_words_are_drawn_as_by_numpy(fresh):
    stream = RandomWords(3, step=2, stream=1)
    for _ in range(2):  # compiled, and from the file
        assert np.array_equal(loops.draw(stream, 5, 9, 32, "test"), stream.words(5, 9))
        rows = np.zeros((2, 8), np.int32)
        loops.draw_rows(stream, np.arange(2), 0, rows)
        assert np.array_equal(rows.view(np.uint32), [stream.of(place).words(0, 8) for place in range(2)])
        fresh[1]()


@pytest.mark.slow
def test_threads_compile_a_loop_once(fresh, monkeypatch):
    made, compiled = [], objects.compiled
    monkeypatch.setattr(objects, "compiled", lambda *given: made.append(given) or compiled(*given))
    loop = Loop(trace(mcf.two_sum, "bfloat16", lines=False))
    with ThreadPoolExecutor(8) as pool:
        bound = list(pool.map(lambda _: loop.with_scalars({}), range(32)))
    assert len(made) == 1
    assert len({id(x._loop) for x in bound}) == 1


# -- files ---------------------------------------------------------------------------------------------------
_ROUNDS = """
import sys, numpy as np, mcfsim as mcf
from mcfsim.compile import elf, objects
made, compiled = [], objects.compiled
objects.compiled = lambda *given: made.append(given) or compiled(*given)
x = np.random.default_rng(3).standard_normal(1000)
for rounding in ("nearest_even", "stochastic"):
    options = {} if rounding == "nearest_even" else {"random": mcf.RandomWords(1)}
    found, expected = (mcf.round_to(x, "bfloat16", rounding, compiled=c, **options) for c in (True, False))
    assert np.array_equal(found, expected)
print(len(made))
assert "numba" not in sys.modules
assert made or ("llvmlite" in sys.modules) == (not elf.is_known())
"""


@pytest.mark.costly("four processes, two of which compile")
@pytest.mark.slow
def test_a_process_that_finds_objects_compiles_nothing_and_mends_damaged_ones(fresh):
    def compiles():
        said = subprocess.run([sys.executable, "-c", _ROUNDS], capture_output=True, text=True, check=False)
        assert not said.returncode, said.stderr
        return int(said.stdout)

    assert compiles() == 3
    assert compiles() == 0
    files = list(fresh[0].glob("*.object"))
    assert len(files) == 3
    for path, damage in zip(files, (lambda x: b"", lambda x: x[:-1], lambda x: b"x" + x), strict=True):
        path.write_bytes(damage(path.read_bytes()))
    assert compiles() == 3
    assert compiles() == 0


@pytest.mark.slow
def test_an_object_for_another_processor_is_not_found(fresh, monkeypatch):
    Loop(NEGATIVE).with_scalars({})
    text = Loop(NEGATIVE).source([])
    assert objects.is_saved(text)
    monkeypatch.setattr(objects, "_host", lambda: ("another",))
    assert not objects.is_saved(text)


def test_an_object_is_of_the_llvmlite_that_is_installed():
    assert f"llvmlite-{version('llvmlite')}." in objects._host()[0]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners")
def test_an_object_of_another_user_is_not_run(fresh, monkeypatch):
    Loop(NEGATIVE).with_scalars({})
    (path,) = fresh[0].glob("*.object")
    assert objects._kept(path) is not None
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert objects._kept(path) is None


def test_a_loop_that_cannot_be_saved_is_compiled_all_the_same(fresh, monkeypatch):
    def full(path):
        raise OSError("no space left")

    monkeypatch.setattr(objects, "replacing", full)
    x = np.arange(8, dtype=np.float32)
    assert np.array_equal(Loop(NEGATIVE)(x), -x)
    assert not list(fresh[0].glob("*.object"))


# -- what they refuse ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_arguments_of_another_kind_are_refused(fresh):
    function, out = Loop(NEGATIVE).with_scalars({})._loop, np.empty(4, np.float32)
    for x in (np.ones(4), np.ones((2, 2), np.float32), np.ones(8, np.float32)[::2]):
        with pytest.raises(TypeError, match="takes a contiguous array of float32 in 1 dimensions"):
            function(x, out)
    with pytest.raises(ValueError, match="shorter"):
        function(out)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="a result is a read-only array"):
        function(np.ones(4, np.float32), out)
    assert function(out, np.ones(4, np.float32)) == 0


def test_arrays_of_another_dtype_object_are_taken(fresh):
    """As an array has that was pickled: its dtype is equal to the usual one, but is another object."""
    bound, out = Loop(NEGATIVE).with_scalars({}), np.empty(8, np.float32)
    x = np.arange(8, dtype=pickle.loads(pickle.dumps(np.dtype(np.float32))))
    assert x.dtype is not out.dtype
    assert bound([x], [out])
    assert np.array_equal(out, -x)


def test_arrays_that_lie_otherwise_are_not_read(fresh, monkeypatch):
    monkeypatch.setattr(objects.llvm_text, "DTYPE", objects.llvm_text.DATA)
    objects._check_arrays.cache_clear()
    with pytest.raises(RuntimeError, match="are not laid out as loops read them"):
        objects._check_arrays()


# -- binary16 -----------------------------------------------------------------------------------------------
def rounding_to_float16(packed, monkeypatch, *, half):
    monkeypatch.setattr(llvm_source, "has_half", lambda: half)
    program = rounding_program(np.dtype(np.float32), mcf.get_format("float16"), mcf.Rounding())
    bound = Loop(program, packed=packed).with_scalars({})
    assert ("to half" in bound.source) == half
    return bound


@pytest.mark.skipif(not objects.has_half(), reason="this processor has no binary16")
@pytest.mark.parametrize("packed", [False, "results"])
@pytest.mark.parametrize("every", [1031, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_the_processors_rounding_to_binary16_is_that_of_the_text(packed, every, fresh, monkeypatch):
    """Of all numbers of binary32, NaN included."""
    own, text = (rounding_to_float16(packed, monkeypatch, half=half) for half in (True, False))
    size = 1 << 22
    found, expected = (np.empty(size, own.results[0]) for _ in range(2))
    codes = np.dtype(f"u{found.itemsize}")
    for start in range(0, (1 << 32) // every, size):
        x = ((np.arange(start, start + size, dtype=np.uint64) * every) & 0xFFFFFFFF).astype(np.uint32)
        own([x.view(np.float32)], [found])
        text([x.view(np.float32)], [expected])
        assert np.array_equal(found.view(codes), expected.view(codes))


@pytest.mark.slow
def test_the_processors_numbers_of_binary16_codes_are_those_of_the_text(fresh, monkeypatch):
    codes, found = np.arange(1 << 16, dtype=np.uint16), []
    for half in (objects.has_half(), False):
        monkeypatch.setattr(llvm_source, "has_half", lambda half=half: half)
        found.append(np.empty(codes.size, np.float32))
        Loop(trace(lambda ar, x: x, "float16", lines=False), packed="operands").with_scalars({})(
            [codes], found[-1:]
        )
    assert np.array_equal(*(x.view(np.uint32) for x in found))


def test_a_source_that_llvm_refuses_says_why(fresh, monkeypatch):
    with pytest.raises(RuntimeError, match="expected"):
        objects.called("nonsense +", "loop", np.empty(0))
    monkeypatch.setattr(Loop, "_emitted", lambda *given: "nonsense +")
    with pytest.raises(CompilationError, match=r"(?s)could not be compiled: .*expected"):
        Loop(NEGATIVE).with_scalars({})
    assert not list(fresh[0].glob("*.object"))
