"""Kernels, interpreted on the CPU: the bits of the emulator on NumPy, also where NaN has a GPU's code."""

import copy

import numpy as np
import pytest
import torch

import mcfsim as mcf
from experiments import common
from experiments import gpu as table
from mcfsim.compile import launch, trace
from mcfsim.compile.kernel import Kernel
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, Rule
from tests.benchmarks import gpu
from tests.pytorch import devices

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.slow]


def launched(launcher, given, start=0, words=None):
    """Return what a kernel makes of arrays, and whether it finds all to be values."""
    dtypes = [launcher.lowered.dtype(x) for x in launcher.lowered.results]
    results = [torch.empty(given[0].size, dtype=getattr(torch, str(dtype))) for dtype in dtypes]
    good = launcher([torch.from_numpy(x) for x in given], results, start, words)
    return [x.numpy() for x in results], good


def hard(fmt, count=20_000):
    """Return operands of all sizes, near each other, and the special ones, in the format."""
    rng = np.random.default_rng(1)
    sizes = 2.0 ** rng.integers(max(fmt.emin - fmt.precision, -140), min(fmt.emax, 120), count)
    near = rng.standard_normal(count)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, float(fmt.max), float(fmt.smallest_subnormal)]
    pool = np.concatenate([rng.standard_normal(count) * sizes, near, near, np.repeat(special, 200)])
    with np.errstate(all="ignore"):
        pool = mcf.round_to(pool, fmt).astype(carrier_of(fmt))
    return [rng.choice(pool, count) for _ in range(3)]


@pytest.mark.parametrize("start", [0, 5, 2**33 + 7])
@pytest.mark.parametrize(
    ("fmt", "rounding"),
    [("bfloat16", "stochastic"), ("float8_e5m2", Rounding("stochastic", rule=Rule.CENTRED, random_bits=20))],
    ids=["halves", "whole words"],
)
@pytest.mark.sampled(6, each=False)
def test_random_words_are_those_of_numpy(fmt, rounding, start, assert_same):
    words = RandomWords(2**60 + 3, step=2**32 - 1, stream=9)
    a, b, _ = hard(get_format(fmt), 3000)
    found, _ = launched(Kernel(trace(mcf.two_sum, fmt, rounding)).with_numbers([]), (a, b), start, {0: words})
    ar = mcf.arithmetic(fmt, rounding, random=words, compiled=False).on_block(words.step, start)
    with np.errstate(all="ignore"):
        expected = mcf.two_sum(ar, a, b)
    for mine, other in zip(found, expected, strict=True):
        assert_same(mine, other, a, b)


@pytest.mark.sampled(8, each=False)
@pytest.mark.parametrize("packed", [False, True], ids=["values", "codes"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_functions_of_all_codes_in_every_mode_are_read_from_tables(fmt, packed, assert_same):
    words, codes = RandomWords(5), np.arange(2 ** get_format(fmt).bits)
    codes = codes.astype(f"u{get_format(fmt).bits // 8}")
    x = mcf.codec.decode(codes, fmt).astype(np.float32)
    for mode in devices.MODES:
        kernel = Kernel(trace(lambda ar, x: ar.exp(x), fmt, mode), packed=packed).with_numbers([])
        (found,), _ = launched(kernel, [codes.view(f"i{codes.itemsize}") if packed else x], 7, {0: words})
        drawn = {"random": words} if mode == "stochastic" else {}
        ar = mcf.arithmetic(fmt, mode, compiled=False, **drawn).on_block(words.step, 7)
        with np.errstate(all="ignore"):
            expected = ar.exp(x)
        assert_same(mcf.codec.decode(found.view(codes.dtype), fmt) if packed else found, expected, x)


@pytest.mark.costly("kernels are interpreted, or PyTorch compiles")
def test_what_is_no_value_is_noticed_wherever_it_is(monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", 1024)  # an instance works on so many
    launcher = Kernel(trace(mcf.two_sum, "bfloat16"), checked=True).with_numbers([])
    for size in (0, 1, 2, 1024, 1100):
        a = np.ones(size, np.float32)
        assert launched(launcher, (a, a))[1]
        for place in {0, size // 2, size - 1} if size else ():
            b = a.copy()
            b[place] = 1 + 2**-20
            assert not launched(launcher, (a, b))[1]


def test_what_a_kernel_does_not_take_is_refused_before_anything_is_written(monkeypatch):
    packed, wide = (Kernel(trace(mcf.two_sum, "bfloat16"), packed=x).with_numbers([]) for x in (True, False))
    drawing = Kernel(trace(mcf.two_sum, "bfloat16", "stochastic"), packed=True).with_numbers([])
    half, out = torch.zeros(8, dtype=torch.bfloat16), [torch.full((8,), 7, dtype=torch.int16) for _ in "se"]
    for launcher, given, error, text in (
        (packed, [half], ValueError, "takes 4 vectors, not 3"),
        (packed, [half, half[:4]], ValueError, "have 8 elements on cpu, and 4 on cpu"),
        (packed, [half, half.float()], TypeError, "codes of 2 bytes do not fit a tensor of torch.float32"),
        (packed, [half.reshape(2, 4), half], ValueError, "contiguous vectors, not a tensor of shape"),
        (packed, [half, half.repeat(2)[::2]], ValueError, "contiguous vectors"),
        (wide, [half.float(), half.double()], TypeError, r"a tensor of float32, not of torch\.float64"),
        (drawing, [half, half], ValueError, "words must have those of source 0"),
    ):
        with pytest.raises(error, match=text):
            launcher(given, [x.float() for x in out] if launcher is wide else out)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="kernels take tensors of a GPU"):
        packed([half, half], out)
    assert all((x == 7).all() for x in out)


NAMES = ("size", "key", "step", "inside", "tl", "kernel", "numbers64", "words16", "C6", "add_bfloat16")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(5, each=False)
def test_operands_may_be_called_as_a_kernel_calls_its_own(name, assert_same):
    def text(ar, x, y):
        return ar.mul(ar.add(x, y), 0.3)

    words, (a, b, _) = RandomWords(5), hard(get_format("bfloat16"), 500)
    program = trace(text, "bfloat16", "stochastic", operands=(name, "start"))
    (found,), _ = launched(Kernel(program, checked=True).with_scalars({}), (a, b), 0, {0: words})
    ar = mcf.arithmetic("bfloat16", "stochastic", random=words, compiled=False)
    assert_same(found, ar.evaluate(text, a, b))


# -- the benchmark -------------------------------------------------------------------------------------------
@pytest.mark.costly("the whole benchmark, its kernels interpreted")
@pytest.mark.exhaustive
def test_the_benchmark_runs_through_in_miniature(monkeypatch, capsys, tmp_path):
    """It writes nothing."""
    monkeypatch.setattr("sys.argv", ["gpu", "--size", "2", "--device", "cpu"])
    monkeypatch.setattr(gpu, "keep", None)
    few = {name: mcf.STRATEGIES[name] for name in ("collage-plus", "exact")}
    monkeypatch.setattr(mcf, "STRATEGIES", few)
    kept, measured = [], gpu.measured
    monkeypatch.setattr(gpu, "measured", lambda *given: kept.extend(measured(*given)) or kept)
    gpu.main()
    printed = capsys.readouterr().out
    assert all(x in printed for x in ("copy", "float32 to bfloat16", "two_sum, bfloat16")), printed
    assert all(x in printed for x in ("AdamW, collage-plus", "2 tensors of 16")), printed
    for module in (common, table):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert table.measured() == table.NOT_MEASURED
    table.keep(kept[-1])
    one = table.measured()
    assert "a CPU, in miniature: torch" in one
    assert one.count("| AdamW, ") == len(few)
    assert "collage-plus " in one.partition("Parameters that are not the exact first step")[2]

    other = copy.deepcopy(kept[-1] | {"device": "NVIDIA X1 2GB"})
    (renamed := other["rows"]["steps"][0])["name"] = "AdamW, of X1"
    renamed["seconds"] = 0.25
    table.keep(other)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.measured().split("\n")]
    heads = next(line for line in lines if line)
    (row,) = (dict(zip(heads, line, strict=True)) for line in lines if line[:1] == ["AdamW, of X1"])
    assert (row["ms, X1"], row["ms, a"]) == ("250", "")
    assert len({line[0] for line in lines if line}) == sum(map(bool, lines))
