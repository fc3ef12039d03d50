"""Whether machines do what lines say: each emitter answers one suite; a new one is done when it passes."""

import importlib.util
from functools import cache

import numpy as np
import pytest

from mcfsim.kernels.element import machine
from mcfsim.kernels.element.machine import F32, F64, I32, I64
from tests.shared.emitters import EMITTERS, MACHINES, given
from tests.shared.lines import Frame, at_random, by_definition, hard, of_all_verbs, operands, pairs

#: Of so many random lines `make test` takes so few; those that compile or interpret take their time.
LINES = {True: (60, 400), False: (5, 60)}


@cache
def verbs(kind):
    """Return a line of all verbs, hard operands, and what it makes of them."""
    size = len(hard(F32)) ** 2 if kind in (F32, I32) else None  # more would be the same pairs again
    return asked(*of_all_verbs(kind), [x[:size] for x in pairs()])


@cache
def line(seed):
    """Return a random line of 3 to 200 verbs, operands, and what it makes of them."""
    frame, results = at_random(seed, (3, 5, 8, 12, 20, 30, 45, 70, 110, 200)[seed % 10])
    return asked(frame, results, operands(seed, 60, (0.02, 0.3, 1.0)[seed % 3]))


def asked(frame, results, arrays):
    lowered = frame.lowered([*results.values()])
    inputs = {x: a.tolist() for x, a in given(lowered, arrays).items()}
    # Of what is written as a number the bits are looked at.
    wanted = [x.operands[0] if x.verb == "number" else x for x in lowered.results]
    return lowered, arrays, by_definition(frame.line, wanted, inputs)


def answered(emitter, lowered, arrays, expected):
    """Compare what an emitter makes of a line with the definition of its verbs, and name a witness."""
    with np.errstate(all="ignore"):
        found = emitter(lowered, arrays)
    for value, one, numbers in zip(lowered.results, found, expected, strict=True):
        bits = one.view(f"i{one.itemsize}") if value.verb == "number" else one
        with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
            other = np.array(numbers).astype(bits.dtype)
        differ = bits.view(f"u{one.itemsize}") != other.view(f"u{one.itemsize}")
        if bits.dtype.kind == "f":
            differ &= ~(np.isnan(one) & np.isnan(other))
        if differ.any():
            place = int(np.flatnonzero(differ)[0])
            told = {str(x.constant): a[place % a.size].item() for x, a in given(lowered, arrays).items()}
            made = value.operands[0] if value.verb == "number" else value
            pytest.fail(
                f"{differ.sum()} of {one.size} differ in r{made.number}, which is {made.verb} of "
                f"{[f'{x.verb} {x.number}' for x in made.operands]}: {told} give {bits[place]!r}, not "
                f"{other[place]!r}"
            )


@pytest.fixture(scope="module", autouse=True)
def _kept():
    """Compile each kernel for a GPU once; its machine code is not looked at."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from experiments.machine_code import device_code

    made, make = {}, device_code.device_code

    def once(text, lowered):
        if text not in made:
            made[text] = make(text, lowered)
        return made[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_code, "_disassembled", lambda cubin: "")
        patch.setattr(device_code, "device_code", once)
        yield


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("gpu"):
        if not pytest.importorskip("torch").cuda.is_available():
            pytest.skip("PyTorch finds no CUDA device")
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    else:
        if importlib.util.find_spec("triton") is not None:
            import triton  # noqa: F401  # its own functions are to be compiled
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def known(emitters):
    """Return emitters as parameters: those of GPUs on GPUs alone."""
    return [pytest.param(x, marks=pytest.mark.gpu if x.endswith("on a GPU") else ()) for x in emitters]


@pytest.mark.parametrize("kind", [F32, F64, I32, I64])
@pytest.mark.parametrize("emitter", known(MACHINES))
@pytest.mark.costly("some are compiled")
@pytest.mark.slow
def test_every_verb_on_hard_operands(emitter, kind):
    answered(EMITTERS[emitter], *verbs(kind))


@pytest.mark.parametrize("emitter", known(EMITTERS))
def test_one_element(emitter):
    frame, results = of_all_verbs(F32)
    answered(EMITTERS[emitter], *asked(frame, results, [x[5:6] for x in pairs()]))


def seeds():
    """Return emitters with the seeds of the lines that they answer."""
    for emitter in EMITTERS:
        usual, every = LINES[emitter in ("verbs", "calls", "calls in parts", "PyTorch")]
        for seed in range(every):
            marks = [pytest.mark.exhaustive] if seed >= usual else []
            marks += [pytest.mark.gpu] if emitter.endswith("on a GPU") else []
            yield pytest.param(emitter, 7 * seed + 3, marks=marks)


@pytest.mark.parametrize(("emitter", "seed"), [*seeds()])
@pytest.mark.sampled(15, each=False)
def test_random_lines(emitter, seed):
    answered(EMITTERS[emitter], *line(seed))


def test_a_result_lies_where_an_operand_is_read_to_the_end():
    """Although the long line is cut, and the result is there early."""
    frame = Frame()
    z, w = frame.numbers[2:]
    totals = [z]
    for _ in range(60):
        totals.append(totals[-1] * w + z)
    results = {"early": totals[2], "late": totals[-1]}
    answered(EMITTERS["LLVM, cut, in place"], *asked(frame, results, operands(7, 60, 0.3)))


# -- would it be noticed? -----------------------------------------------------------------------------------
def flushed(x):
    return np.where(abs(x) < np.finfo(x.dtype).tiny, x * 0, x)


#: What a machine might do instead of a verb: another, or the same with subnormal numbers or last bits lost.
ANOTHER = [
    *(("add", np.subtract), ("sub", np.add), ("mul", np.add), ("div", np.multiply), ("sqrt", np.abs)),
    *(("lt", np.less_equal), ("le", np.less), ("sar", machine.VERBS["shr"]), ("shr", np.right_shift)),
    *(("neg", lambda x: 0 - x), ("abs", lambda x: x), ("shl", lambda x, by: x << (by & 15))),
    ("eq", lambda a, b: a.view(f"i{a.itemsize}") == b.view(f"i{b.itemsize}")),
    ("select", lambda by, yes, no: np.where(by, no, yes)),
    ("add", lambda a, b: flushed(a + b) if a.dtype.kind == "f" else a + b),
    ("sub", lambda a, b: flushed(a) - flushed(b) if a.dtype.kind == "f" else a - b),
    ("mul", lambda a, b: np.nextafter(a * b, a.dtype.type(0)) if a.dtype.kind == "f" else a * b),
]


@pytest.mark.parametrize("place", range(len(ANOTHER)))
@pytest.mark.slow
def test_another_verb_is_noticed(place, monkeypatch):
    monkeypatch.setattr(machine, "VERBS", dict(machine.VERBS) | dict([ANOTHER[place]]))
    with pytest.raises(pytest.fail.Exception, match=r"differ in r\d+, which is \w+ of .* give .*, not"):
        assert [answered(EMITTERS["verbs"], *verbs(kind)) for kind in (F32, F64, I32, I64)]


#: Of PTX: what is there, and another instruction in its place.
INSTEAD = {
    F32: [
        *(("add.rn.f32", "sub.rn.f32"), ("mul.rn.f32", "add.rn.f32"), ("div.rn.f32", "mul.rn.f32")),
        *(("setp.le.f32", "setp.lt.f32"), ("setp.num.f32", "setp.nan.f32"), ("and.b32", "or.b32")),
    ],
    I32: [
        *(("shr.s32", "shr.u32"), ("min.s32", "max.s32"), ("mul.lo.s32", "add.s32"), ("xor.b32", "or.b32")),
        *(("setp.lt.s32", "setp.lt.u32"), ("not.b32", "neg.s32")),
    ],
}


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.sampled(2, each=False)
@pytest.mark.costly("every altered kernel is carried out anew")
@pytest.mark.slow
def test_another_instruction_is_noticed(kind, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    from experiments.machine_code import device_code

    compiled = device_code.device_code
    for was, now in INSTEAD[kind]:

        def altered(text, lowered, was=was, now=now):
            code = compiled(text, lowered)
            assert was in code.ptx
            return code._replace(ptx=code.ptx.replace(was, now, 1))

        monkeypatch.setattr(device_code, "device_code", altered)
        with pytest.raises(pytest.fail.Exception, match="differ in"):
            answered(EMITTERS["PTX"], *verbs(kind))
    monkeypatch.setattr(device_code, "device_code", lambda *given: compiled(*given)._replace(ptx=FUSED))
    with pytest.raises(ValueError, match=r"fma\.rn\.f32 is not known"):
        answered(EMITTERS["PTX"], *verbs(kind))


FUSED = ".entry kernel(\n\tmov.b32 %r1, 0f3F800000;\n\tfma.rn.f32 %r2, %r1, %r1, %r1;\n\tret;\n}"
