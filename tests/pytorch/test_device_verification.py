"""Statements judged on a device: the certificates of the CPU, by kernels that NumPy or a GPU carries out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mcfsim.backends import torch_device
from mcfsim.compile.kernel import Kernel
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, claim, compiled, findings, verification, verify
from mcfsim.theorems import device as devices
from mcfsim.theorems.device import Device, DeviceJudge
from mcfsim.theorems.parts import Pieces, Sample, Selection
from mcfsim.theorems.verification import prepare, run
from tests.cli.runner import call
from tests.theorems.campaign.declared import theorem
from tests.theorems.campaign.draw import GROUPS, draw

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = pytest.mark.slow
#: Where kernels are interpreted, however few the cases are.
CPU = Device(torch.device("cpu"), least=0)


@pytest.fixture
def there(device, request):
    """Return where kernels judge, however few the cases are: a GPU, or the CPU where they are interpreted."""
    if device == "cpu":
        request.getfixturevalue("interpreted")
    devices._launcher.cache_clear()
    return Device(torch.device(device), least=0, at_once=1 << 17, unit=1 << 18)


@pytest.fixture
def open_cases(monkeypatch):
    """Return a list to which each batch adds how many cases it has, and how many it leaves open."""
    found, judge = [], DeviceJudge.__call__

    def counted(self, *given):
        tally = judge(self, *given)
        found.append((tally.cases, tally.open[0].size))
        return tally

    monkeypatch.setattr(DeviceJudge, "__call__", counted)
    return found


def certificate(check, device=None, **options):
    with Sweep(**options) as sweep:
        return replace(next(run([check], sweep, device=device)), seconds=0)


def tried(check, ranges, device=None):
    return [{**check(*part, device), "seconds": 0} for part in ranges]


def assert_judged_alike(check, there, ranges=None, judged=True):
    """Compare what a device finds with what the CPU finds, of ranges or of all cases."""
    assert (check.judge_on(there) is not None) is judged
    found, expected = (
        certificate(check, device) if ranges is None else tried(check, ranges, device)
        for device in (there, None)
    )
    assert found == expected, check


def some_of_each_part(check, most):
    parts = zip(check.domain().starts(), check.domain().parts, strict=True)
    halves = ((first + part.size // 2, part.size - part.size // 2) for first, part in parts)
    return [(middle, middle + min(size, most)) for middle, size in halves]


#: Of each kind of statement one: each is tried by another of its modes.
STATEMENTS = (
    *("two_sum", "two_sum_any", "two_sum_flushed", "fast_two_sum_unordered_error", "split"),
    *("lost_iff_directed", "add_error_representable_faithful", "prod_error_exponents_iff", "div_remainder"),
    *("sqrt_remainder_directed", "two_prod_floor_split", "two_prod_fma_any", "sqrt_via_bfloat16_any"),
)


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.sampled(20, each=False)
def test_certificates_are_those_of_the_cpu(name, fmt, there):
    modes = sorted(THEOREMS[name].modes)
    assert_judged_alike(prepare(name, fmt, modes[STATEMENTS.index(name) % len(modes)]), there)


@pytest.mark.parametrize("name", THEOREMS)
@pytest.mark.sampled(100, each=False)
def test_cases_of_longer_formats_are_judged_as_by_the_cpu(name, there):
    fmt = ("bfloat16", "float16")[[*THEOREMS].index(name) % 2]
    for mode in sorted(THEOREMS[name].modes)[:2]:
        check = prepare(name, fmt, mode, Selection(limit=1 << 20, samples=1 << 11))
        if check.refusal() is None and check.judge_on(there) is not None:
            assert_judged_alike(check, there, some_of_each_part(check, 1 << 10))


#: Of each group of random statements so many.
MANY = 12


@pytest.mark.parametrize("start", range(0, MANY, 3))
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.sampled(72, each=False)
def test_random_statements_are_judged_as_by_the_cpu(group, start, interpreted):
    """Many of them are false, in few cases or in most."""
    for number in range(start, start + 3):
        case = draw(group, number)
        try:
            check = prepare(theorem(case.statement), case.format, case.rounding, Selection(samples=500))
            size = check.domain().size
        except ValueError:  # a reduction that is not valid, or nothing to try
            continue
        if size and check.judge_on(CPU) is not None:
            assert tried(check, [(0, size)], CPU) == tried(check, [(0, size)]), str(case)


@pytest.mark.parametrize(("at_once", "unit"), [(9999, 1 << 28), (1 << 14, 20_011), (1 << 25, 40_009)])
@pytest.mark.parametrize("name", ["two_sum_any", "fast_two_sum_unordered_error"])
@pytest.mark.sampled(6, each=False)
def test_batches_and_units_do_not_matter(name, at_once, unit, interpreted):
    check = prepare(name, "float8_e5m2", "nearest_even")
    there = Device(torch.device("cpu"), least=0, at_once=at_once, unit=unit)
    assert_judged_alike(check, there)


def test_operands_are_those_of_the_cpu(there, assert_same):
    kinds = set()
    for name, fmt in (("two_sum", "bfloat16"), ("two_prod_fma", "bfloat16"), ("dw_plus_fp", "float8_e5m2")):
        check = prepare(name, fmt, "nearest_even", Selection(limit=1 << 20, samples=3000))
        judge = check.judge_on(there)
        for part in check.domain().parts:
            kinds.add(type(part))
            rng = np.random.default_rng(part.size)
            for start in {0, max(0, part.size - 2000), *rng.integers(0, part.size, 4).tolist()}:
                stop = min(start + 2000, part.size)
                expected = part.at(np.arange(start, stop))
                for mine, other in zip(judge._operands(part, start, stop), expected, strict=True):
                    assert mine.device.type == there.device.type
                    assert_same(mine.cpu().numpy(), other)
    assert {Pieces, Sample} < kinds


# -- what the CPU does --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "fmt", "few"),
    [("div_remainder", "float8_e4m3fn", False), ("two_sum_faithful_error", "float8_e5m2", True)],
)
def test_open_cases_are_judged_by_the_cpu(name, fmt, few, there, open_cases):
    """Where no error is left those are the few whose sums binary64 does not hold."""
    check = prepare(name, fmt, "nearest_even")
    assert_judged_alike(check, there)
    found = sum(left for _, left in open_cases)
    assert 0 < found < check.domain().size / 100 if few else found > 1000


@pytest.mark.parametrize("size", [1, 3000, 1 << 18])
def test_a_kernel_that_leaves_all_open_is_given_up(size, interpreted, monkeypatch, open_cases):
    check = prepare("two_sum_any", "float8_e5m2", "nearest_even")
    expected = certificate(check)
    judge = DeviceJudge.__call__

    def open_all(self, batch, extremes, wanted):
        tally = judge(self, batch, extremes, wanted)
        operands = [x.numpy() for x in self._operands(batch.part, batch.start, batch.stop)]
        return replace(tally, applicable=0, violations=0, first=[], open=[np.arange(tally.cases), *operands])

    monkeypatch.setattr(DeviceJudge, "__call__", open_all)
    monkeypatch.setattr(findings, "_TRUSTED", 1)
    monkeypatch.setattr(findings, "LARGE_BLOCK", 1000)
    assert certificate(check, Device(torch.device("cpu"), least=0, at_once=2 * size)) == expected
    assert len(open_cases) == 1


def test_what_no_kernel_judges_the_cpu_does(interpreted, open_cases):
    there = Device(torch.device("cpu"), least=1 << 12)
    whole = replace(THEOREMS["two_sum"], name="own", claim=claim("-", lambda t: np.arange(t.size) >= 0))
    for check in (
        prepare("two_sum_sr_exact", "float8_e4m3fn", "stochastic", Selection(samples=64)),
        prepare("sqrt_remainder", "float8_e4m3fn", "nearest_even"),
        prepare(whole, "float8_e4m3fn", "nearest_even"),
    ):
        assert_judged_alike(check, there, judged=False)
    assert not open_cases


#: NaN stays NaN where the arithmetic doubles it.
OF_NAN = replace(
    THEOREMS["two_sum_any"],
    name="own",
    where=(),
    claim=claim("-", lambda t: np.isnan(t.ar.add(t.results[1], t.results[1])) == np.isnan(t.results[1])),
)


def clean_predicates(patch):
    made = compiled._OnLine.__init__
    patch.setattr(compiled._OnLine, "__init__", lambda self, *x, clean: made(self, *x, clean=True))


def clean_line(patch):
    line = Kernel._line
    patch.setattr(Kernel, "_line", lambda self, ways, **_: line(self, ways, clean=True))


@pytest.mark.parametrize(
    ("clean", "statement", "fmt"),
    [(clean_line, "sqrt_via_bfloat16", "float8_e5m2"), (clean_predicates, OF_NAN, "bfloat16")],
)
def test_a_line_that_counts_on_clean_codes_of_nan_is_found_out(
    clean, statement, fmt, interpreted, monkeypatch
):
    """So the tests here see what a GPU makes of NaN."""
    check = prepare(statement, fmt, "nearest_even", Selection("all"))  # from the largest operands on
    ranges = [(0, min(check.domain().size, 3000))]
    expected = tried(check, ranges)
    devices._launcher.cache_clear()
    assert tried(check, ranges, CPU) == expected
    with monkeypatch.context() as patch:
        clean(patch)
        devices._launcher.cache_clear()
        assert tried(check, ranges, CPU) != expected
    devices._launcher.cache_clear()


#: A predicate may look at codes, and a GPU's NaN has another.
OF_CODES = replace(OF_NAN, claim=claim("-", lambda t: t.results[1].view(np.int32) & 1 == 0))


def test_codes_of_nan_are_in_doubt(interpreted):
    check = prepare(OF_CODES, "float8_e5m2", "nearest_even")
    assert certificate(check, CPU) == certificate(check)


# -- asked for by name --------------------------------------------------------------------------------------
def test_verify_hands_the_device_on(there, monkeypatch, open_cases):
    monkeypatch.setattr(verification, "find_device", lambda name, **_: there)
    found = verify("two_sum_any", "float8_e5m2", device="cuda")
    assert open_cases
    assert replace(found, seconds=0) == certificate(prepare("two_sum_any", "float8_e5m2", "nearest_even"))


def test_the_command_writes_the_certificates_of_the_cpu(there, monkeypatch, tmp_path, open_cases):
    monkeypatch.setattr("typer.get_app_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(devices, "find_device", lambda name, **_: there if name == "cuda" else None)
    texts, found = ("two_sum", "grow_zero_high"), []
    for name in ("cuda", "cpu"):
        (folder := tmp_path / name).mkdir()
        done = call("verify", *texts, "--format", "e5m2", "--device", name, "--output", folder)
        loaded = [verification.Certificate.load(path) for path in sorted(folder.iterdir())]
        shown = [line.split()[:5] for line in done.output.splitlines()[2:4]]
        found.append([shown, *(replace(x, seconds=0) for x in loaded)])
        assert len(loaded) == len(texts)
        assert bool(open_cases) == (name == "cuda")
        open_cases.clear()
    assert found[0] == found[1]


def test_a_journal_keeps_devices_apart(interpreted, tmp_path):
    path = tmp_path / "journal"
    check = prepare("two_sum_any", "float8_e5m2", "nearest_even")
    expected = certificate(check)
    for device, cases in ((CPU, 0), (None, 0), (CPU, 248**2), (None, 248**2)):
        with Sweep(journal=path) as sweep:
            assert replace(next(run([check], sweep, device=device)), seconds=0) == expected
            assert sweep.resumed == cases


def test_a_device_that_does_not_serve_is_refused(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device 'cuda' cannot be used: .*CUDA"):
            verify("two_sum", "float8_e5m2", device="cuda")
    monkeypatch.setattr(torch_device, "found_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"capability 8\.0, and device 'cuda:1' has 7\.5"):
        devices.find_device("cuda:1")
