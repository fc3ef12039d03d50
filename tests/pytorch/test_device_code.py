"""What compilers make of kernels for GPUs: nothing fused, flushed or approximated; and traps are noticed."""

import random
import re
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version

import pytest

import mcfsim as mcf
from experiments import instructions
from experiments.common import read_result
from experiments.machine_code import device_code as code_of_devices
from experiments.machine_code.device_code import faults
from experiments.machine_code.throughput import DEVICES, PIPES, THROUGHPUT, Device, by_pipe, limits
from mcfsim.compile import trace
from mcfsim.compile.kernel import Kernel
from mcfsim.compile.launch import function
from mcfsim.compile.lines import AsBits
from mcfsim.compile.program import Register
from mcfsim.compile.triton_source import kernel_source
from mcfsim.formats import get_format
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.element.machine import F32, F64, I32, I64
from mcfsim.optim.declaration import straight_optimizers
from mcfsim.optim.step_programs import record_step
from mcfsim.random import RandomWords
from mcfsim.storage.files import write_text
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.compiled import Predicates, recordable
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.verification import prepare
from tests.pytorch.runs import first
from tests.shared.algorithms import every
from tests.shared.kinds import PLAIN, rotating
from tests.shared.lines import of_all_verbs

pytest.importorskip("triton", reason="Triton is not installed")

VANISHING = pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.slow, VANISHING]


@pytest.fixture
def compiled(monkeypatch, pytestconfig):
    """Keep for the runs that follow what Triton compiles, and its text: names say what they are made of."""
    folder, disassembled = pytestconfig.rootpath / "build" / "cache" / "triton", code_of_devices._disassembled

    def kept(cubin):
        path = folder / f"{sha256(cubin).hexdigest()} by {version('triton')}"
        if not path.exists():
            write_text(path, disassembled(cubin))
        return path.read_text()

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    monkeypatch.setattr(code_of_devices, "_disassembled", kept)


_MADE = {}


def device_code(source, lowered, capability=90, **options):
    """Return the device's code of a kernel; each is compiled once.

    A kernel has no global values: Triton compares them at each launch, where a NaN differs from itself.
    """
    key = (source, capability, *options.items())
    if key not in _MADE:
        _MADE[key] = code_of_devices.device_code(source, lowered, capability, **options)
        assert not function(source, interpreted=False).used_global_vals
    return _MADE[key]


def products_in_sums(ar, a, b, c):
    return ar.add(a, b), ar.mul(a, b), ar.sub(ar.mul(a, c), b), ar.neg(c)


def written(program, **options):
    """Return the source and the line of a program's kernel, with the numbers that it has."""
    kernel, given = Kernel(program, many="joined" in options, **options), program.reals()
    return kernel.source(given), kernel.line(given)


def code_of(program, capability=90, **options):
    source, lowered = written(program, **options)
    return source, lowered, device_code(source, lowered, capability)


def assert_noticed(told, source, lowered, pattern, instead, hardware=False):
    """Fail if something else in the place of a pattern is not told of."""
    altered, count = re.subn(pattern, instead, source, count=1)
    assert count
    found = faults(device_code(altered, lowered), lowered, hardware=hardware)
    assert any(told in fault for fault in found), found


def step(optimizer, strategy, mode="nearest_even"):
    hyper = straight_optimizers()[optimizer]()
    chosen = mcf.strategy(strategy) if isinstance(strategy, str) else strategy
    words = {"random": RandomWords(1)} if mode == "stochastic" or chosen.draws else {}
    roles = chosen.roles(mode, **words)
    scalars = hyper.scalars(roles, chosen, 3, 1e-3, decayed=True)
    return record_step(hyper, chosen, roles, scalars, gradient=chosen.gradient.format)


@pytest.mark.parametrize("kind", [F32, F64, I32, I64])
@pytest.mark.sampled(4, each=False)
def test_every_verb_is_exact_on_a_gpu(kind):
    """Here by instructions; in test_emitters by what they make."""
    frame, results = of_all_verbs(kind)
    lowered = frame.lowered([*results.values()])
    assert faults(device_code(kernel_source(lowered, "All verbs."), lowered), lowered) == []


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "up", "to_odd", "stochastic"])
@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "tf32", "posit8", "int8"])
@pytest.mark.sampled(30, each=False)
def test_every_operation_is_exact_on_a_gpu(fmt, mode):
    capability = 80 if mode in ("up", "to_odd") else 90
    _, lowered, code = code_of(trace(every, fmt, mode), capability, checked=True)
    assert faults(code, lowered) == []
    if has_codes(get_format(fmt)):
        _, lowered, code = code_of(trace(lambda ar, x: (ar.exp(x), ar.log(x)), fmt, mode), capability)
        assert faults(code, lowered) == []


# A kernel of mcf-3 takes fifty times as long to compile as those of the others.
@pytest.mark.parametrize(
    ("place", "optimizer", "strategy"),
    [(n, *x) for n, x in enumerate(rotating([name for name in PLAIN if name != "mcf-3"]))],
)
@pytest.mark.exhaustive  # some of them on many tensors, and by instructions
def test_every_step_is_exact_on_a_gpu(optimizer, strategy, place):
    capability = (80, 90)[place % 2]
    _, lowered, code = code_of(step(optimizer, strategy), capability, packed=True)
    assert faults(code, lowered) == []


#: Strategies with their low formats.
TABLES = ("plain", "float8_e5m2"), ("collage-plus", "bfloat16"), ("split-master", "bfloat16")


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("strategy", "low"), first(*TABLES))
@pytest.mark.sampled(2, each=False)
@pytest.mark.costly("a long kernel is compiled twice")
@pytest.mark.exhaustive
def test_many_tensors_are_exact_and_read_sixteen_bytes_at_a_time(strategy, low, capability):
    program = step("adamw", mcf.strategy(strategy, low))
    joined = (
        AsBits(len(program.inputs) - 2, 16, leading=0, rounded=True) if strategy == "split-master" else None
    )
    source, lowered = written(replace(program, results=program.results[:-1]), joined=joined, packed=True)
    code = device_code(source, lowered, capability, many=True)
    assert faults(code, lowered) == []
    wide = device_code(source, lowered, capability, many=True, elements=2048, aligned=True)
    sizes = re.findall(r"(?:ld|st)\.global\.(?:v(\d)\.)?b(\d+) ", wide.ptx)
    longest = Counter(int(count or 1) * int(bits) for count, bits in sizes)
    assert longest[128] >= 2 * len(lowered.results), longest


def rounding(name):
    return trace(lambda ar, x: ar.round(x), name, operands=(Register("x", get_format("float32")),))


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.exhaustive  # bfloat16 in test_hardware_code
def test_rounding_is_exact_on_a_gpu(name):
    _, lowered, code = code_of(rounding(name))
    assert faults(code, lowered) == []


#: Those whose kernels have more than 64 operations, which take minutes to compile.
LONG = ("neumaier_sum", "dot2", "dw_sum", "sum_k")


@pytest.mark.parametrize("name", first("two_sum", *([name] for name in THEOREMS if name != "two_sum")))
def test_every_judgement_of_a_statement_is_exact_on_a_gpu(name):
    place = [*THEOREMS].index(name)
    fmt, capability = ("bfloat16", "float8_e4m3fn")[place % 2], (80, 90)[place // 2 % 2]
    check = prepare(name, fmt, min(THEOREMS[name].modes), Selection(limit=1 << 16, samples=1 << 8))
    predicates = Predicates(check.theorem, check.domain().format, check.rounding, quotients=True)
    program = recordable(predicates)
    computed = program is not None and not check.rounding.stochastic and check.domain().size
    if not computed or get_format(fmt).precision < check.theorem.precision:  # or no hypothesis holds
        return
    assert (len(program.steps) > 64) is (name in LONG)
    _, lowered, code = code_of(program, capability, epilogue=predicates)
    assert faults(code, lowered) == []
    assert code.instructions()["STG"] == len(lowered.results)


def test_twice_a_number_may_be_its_sum_with_itself():
    twice = Register("x", get_format("float32"))
    source, lowered, code = code_of(trace(lambda ar, x: ar.mul(x, 2.0), "float32", operands=(twice,)))
    assert faults(code, lowered) == []
    altered = re.sub(r"(= )(\w+ \* \w+)\n", r"\1\2 + 1.5\n", source, count=1)
    assert altered != source
    assert faults(device_code(altered, lowered), lowered) != []


def test_sums_are_counted_and_one_that_is_made_twice_is_one():
    _, lowered, code = code_of(trace(mcf.two_sum, "bfloat16"), packed=True)
    found = code.instructions()
    assert found["FADD"] == 6
    assert found["LDG"] == found["STG"] == 2
    assert not found["FFMA"]
    assert sum(found.values()) < 150
    sums = re.findall(r"\s(?:add|sub)\.rn\.f32 .*;\n", code.ptx)
    assert len(sums) == 6
    for row in sums:
        again = re.sub(r"%r\d+,", "%r9999,", row, count=1)
        assert faults(code._replace(ptx=code.ptx.replace(row, row + again)), lowered) == []
        other_sign = again.replace("add.", "sub.") if "add." in again else again.replace("sub.", "add.")
        for another in (other_sign, re.sub(r"%r\d+;", "%r8888;", again)):
            changed = code._replace(ptx=code.ptx.replace(row, row + another))
            assert faults(changed, lowered) == ["PTX: 7 sums of f32, more than the line has"]


#: What a writer of kernels would do, each of which is inexact on a GPU.
TRAPS = {
    "an operator divides": (r"tl\.math\.div_rn\((\w+), (\w+)\)", r"\1 / \2", "div.full"),
    "tl.sqrt": (r"tl\.math\.sqrt_rn\(", "tl.sqrt(", "approx"),
    "unary minus": (r"(\w+) \* -1\.0", r"-\1", "arith.subf"),
    "fma": (r"= (\w+) \* (\w+)\n", r"= tl.fma(\1, \2, \1)\n", "fma"),
    "a quotient by multiplication": (r"tl\.math\.div_rn\((\w+), (\w+)\)", r"\1 * (1.0 / \2)", "arith.mulf"),
    "an exponential": (r"tl\.abs\((\w+)\)", r"tl.exp(\1)", "math.exp"),
    "another product": (r"= (\w+) - (\w+)\n", r"= \1 - \2 * 1.5\n", "arith.mulf"),
    "bfloat16 by the processor": (
        r"    (r\d+) = (\w+ \+ \w+)\n", r"    \1 = \2\n    \1 = \1.to(tl.bfloat16).to(tl.float32)\n", "ar",
    ),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.sampled(8, each=False)
def test_traps_are_noticed(trap):
    pattern, instead, told = TRAPS[trap]
    assert_noticed(told, *written(trace(every, "bfloat16")), pattern, instead)


@pytest.mark.parametrize(
    ("fmt", "told"),
    # Of bfloat16 roundings in between prevent it, but that is luck.
    [("float32", "fma"), ("bfloat16", "whose rounding is left open")],
)
@pytest.mark.costly("Triton compiles, and machine code is read")
def test_fusing_is_noticed(fmt, told):
    source, lowered = written(trace(products_in_sums, fmt))
    found = faults(device_code(source, lowered, enable_fp_fusion=True), lowered)
    assert any(told in fault for fault in found), found


def others_of(name):
    """Yield names of an instruction of PTX with other modifiers: rounded otherwise, flushed, saturated."""
    parts = name.split(".")
    kinds = [place for place, part in enumerate(parts) if part.startswith(("f", "bf"))]
    for modifier in ("ftz", "sat", "rz", "rm", "rp", "approx", "full", "relu", "ftz.sat"):
        yield ".".join([*parts[: kinds[0]], modifier, *parts[kinds[0] :]])
        if "rn" in parts:
            yield name.replace("rn", modifier)
    yield name.replace("rn.", "") if "rn" in parts else f"{name}x2"


OTHERS = ("FADD.RZ", "FMUL.SAT", "FADD.FTZ", "DADD.RZ", "DMUL.RP", "FFMA.RM", "DFMA.RZ", "MUFU.EX2", "HMMA")
ALTERED = ("float32", {}), ("bfloat16", {}), ("tf32", {}), ("float16", {"hardware": True, "packed": True})


@pytest.mark.parametrize("where", ["beside", pytest.param("instead", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("fmt", "options"), first(*ALTERED))
@pytest.mark.costly("every instruction of a kernel is altered in many ways")
def test_each_instruction_that_is_not_known_is_noticed(fmt, options, where):
    """In the place of each that is, which is missed then, too; and beside it."""
    _, lowered, code = code_of(trace(every, fmt), **options)
    assert faults(code, lowered, hardware=bool(options)) == []

    def assert_noticed_in(name, row, altered, beside):
        """Put an altered row into PTX or SASS, in the place of another or beside it."""
        text = getattr(code, name).replace(row, beside if where == "beside" else altered, 1)
        assert faults(code._replace(**{name: text}), lowered, hardware=bool(options)), altered

    for row in {row.split()[0]: row for row in re.findall(r"\t(\w+\.\S*f\d\d\S* [^;]*;)", code.ptx)}.values():
        for other in set(others_of(row.split()[0])):
            altered = row.replace(row.split()[0], other)
            assert_noticed_in("ptx", row, altered, f"{row}\n\t{altered}")
    own, _ = code.parts()
    named = r"^(\s+/\*\w+\*/\s+(?:@!?P\d\s+)?)((?:[FDH]|MUFU)[A-Z0-9_.]*)( [^;]*;.*)$"
    rows = {found[2]: found for found in re.finditer(named, own, re.MULTILINE)}
    assert {"FADD", "FSEL"} & rows.keys()
    for name, row in rows.items():
        for modifier in ("FTZ", "SAT", "RZ", "RM", "RP", "FMZ", "RELU"):
            altered = f"{row[1]}{name}.{modifier}{row[3]}"
            assert_noticed_in("sass", row[0], altered, f"{row[0]}\n{altered}")
    for name in OTHERS:
        row = next(iter(rows.values()))
        beside = f"{row[0]}\n{row[1]}{name} R1, R2, R3 ;"
        assert_noticed_in("sass", row[0], beside, beside)


#: Other signs for one.
ANOTHER = {" + ": [" - ", " * "], " - ": [" + ", " * "], " * ": [" + ", " - "]}


@pytest.mark.parametrize("seed", range(80))
@pytest.mark.sampled(80, each=False)
def test_another_operation_on_numbers_is_noticed(seed):
    """One sign of one operation on numbers in a step of an optimizer is another one."""
    rng = random.Random(seed)
    program = step(rng.choice(["adamw", "sgd"]), rng.choice(["plain", "collage-plus", "fp32-master"]))
    source, lowered = written(program, packed=True)
    values = [x for x in lowered.line.values if x.type.is_float and x.verb in ("add", "sub", "mul")]
    numbers, rows = {f"r{x.number}" for x in values}, source.splitlines(keepends=True)
    chosen = rng.choice([place for place, row in enumerate(rows) if row.strip().split(" = ")[0] in numbers])
    sign = next(sign for sign in ANOTHER if sign in rows[chosen])
    rows[chosen] = rows[chosen].replace(sign, rng.choice(ANOTHER[sign]))
    assert faults(device_code("".join(rows), lowered), lowered) != []


# -- instructions by pipe, and the speed that they allow -----------------------------------------------------
#: Instructions of each pipe.
OF_PIPES = {
    "binary32": "FADD FMUL FFMA",
    "binary64": "DADD DMUL DFMA DSETP",
    "bfloat16 and float16": "HADD2 HMUL2 HFMA2",
    "conversion": "F2F F2FP I2F F2I I2FP FRND",
    "reciprocal and root": "MUFU",
    "integer product": "IMAD",
    "integer and comparison": "IADD3 LOP3 SHF SEL FSEL ISETP FSETP HSETP2 PRMT SGXT LEA MOV VIADD P2R FMNMX",
    "load and store": "LDG STG LDC STS",
    "control": "BRA EXIT BSSY BSYNC CALL RET S2R",
    "uniform": "ULDC UIADD3 ULOP3",
}


@pytest.mark.parametrize("pipe", OF_PIPES)
def test_each_instruction_goes_to_its_pipe(pipe):
    for name in OF_PIPES[pipe].split():
        assert next(own for own, pattern in PIPES.items() if pattern.fullmatch(name)) == pipe


@pytest.mark.parametrize("way", instructions.WAYS)
@pytest.mark.parametrize("capability", THROUGHPUT)
@pytest.mark.sampled(4, each=False)
@pytest.mark.costly("Triton compiles, and machine code is read")
def test_the_counts_shown_are_those_of_a_kernel_and_depend_little_on_its_elements(capability, way):
    kernel, numbers = instructions.kernel("two_sum", hardware=instructions.WAYS[way])
    given = kernel.source(numbers), kernel.line(numbers), capability
    few, many = (by_pipe(*given, elements=elements) for elements in (512, 1024))
    pipe = {"integers": "binary32", "instructions": "bfloat16 and float16"}[way]
    assert few[pipe] == many[pipe] == 6  # 2Sum's operations
    for counts in (few, many):
        assert sum(counts[pipe] for pipe in PIPES) == counts["issue"]
    assert many["issue"] < few["issue"] < 1.2 * many["issue"]
    result = read_result("instructions")
    shown = [row for row in result["kernels"] if (row["way"], row["capability"]) == (way, capability)]
    if result["versions"]["triton"] == version("triton"):
        assert shown[0]["counts"] == {pipe: float(f"{count:.6g}") for pipe, count in many.items()}


def test_vectors_at_multiples_of_16_bytes_are_read_at_once():
    kernel, numbers = instructions.kernel("two_sum", hardware=True)
    given = kernel.source(numbers), kernel.line(numbers)
    code = device_code(*given, elements=1024, aligned=True)
    assert code.instructions()["LDG"] == code.instructions()["STG"] == 2  # and not 2 * 8
    assert "LDG.E.128" in code.sass


def test_memory_and_each_pipe_allow_so_many_elements():
    device = Device(capability=80, multiprocessors=10, clock=1e9, copied=1e12)
    allowed = limits({"binary32": 2.0, "uniform": 5.0, "conversion": 0.0, "issue": 16.0}, 8, device)
    assert allowed == {"memory": 1.25e11, "binary32": 3.2e11, "issue": 8e10}
    assert all(device.capability in THROUGHPUT for device in DEVICES.values())
    assert all(rates.keys() <= {*PIPES, "issue"} for rates in THROUGHPUT.values())
