"""Files that anyone may have damaged or made: the right content, or a ValueError that names the file."""

import io
import itertools
import json
import operator
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.storage import archive
from mcfsim.storage.sweeps.journal import Journal
from mcfsim.theorems.certificate import Certificate
from mcfsim.training.problems import Quadratic
from tests.shared.mutations import changed, damaged

pytestmark = pytest.mark.slow


class Kind(NamedTuple):
    """A kind of file."""

    make: Callable[[Path], object]
    load: Callable[[Path], str]  # equal contents have equal texts
    agrees: Callable[[str, str], bool] = operator.eq  # whether what is read is as right as it must be
    kept: bool = True  # whether one that is refused keeps every byte


def train(path: Path | None, **options: Any) -> mcf.Run:
    arguments = {"strategies": ["collage-light", "exact"], "steps": 4, "record_every": 2, "progress": False}
    return mcf.simulate(Quadratic(2, 3.0), **arguments | options, checkpoint=path)


def text_of(run: mcf.Run) -> str:
    series = {name: {key: x.tobytes().hex() for key, x in of.items()} for name, of in run.series.items()}
    return json.dumps([run.settings, run.versions, run.results, run.steps.tolist(), series])


def make_journal(path: Path) -> None:
    with Journal(path) as journal:
        for job, start in itertools.product(("one", "two"), range(0, 90, 9)):
            journal.record(job, start, start + 9, json.dumps({"job": job, "cases": 9, "start": start}))


def read_journal(path: Path) -> str:
    jobs = ("one", "two")
    with Journal(path) as journal:
        rows = [[job, *row] for job in jobs for row in sorted(journal.results(job).items())]
        journal.record("three", 100, 101, "{}")  # or this one finds the damage
        return json.dumps(rows)


def no_more(found: str, expected: str) -> bool:
    """Whether all rows found are among the expected ones: what a journal has lost is worked out again."""
    return all(row in json.loads(expected) for row in json.loads(found))


PLAIN = {"strategies": ["plain", "fp32"]}
#: Arrays and JSON data in one file.
ARCHIVES = {
    "run": Kind(lambda path: train(None, **PLAIN).save(path), lambda path: text_of(mcf.Run.load(path))),
    "checkpoint": Kind(train, lambda path: text_of(train(path))),
}
#: Another kind of file is one line here.
KINDS = {
    **ARCHIVES,
    "certificate": Kind(
        lambda path: mcf.verify("lost_iff", "float6_e3m2fn", "up").save(path),
        lambda path: Certificate.load(path).digest,
    ),
    # SQLite counts the writers of a file in it, before it finds the damage.
    "journal": Kind(make_journal, read_journal, no_more, kept=False),
}


def content_or_refusal(kind: Kind, path: Path) -> tuple[str | None, str | None]:
    """Return what a file holds, or why it is refused: by name, and left as it is."""
    data = path.read_bytes()
    try:
        return kind.load(path), None
    except ValueError as error:
        refusal = str(error)
    assert path.name in refusal, refusal
    assert path.read_bytes() == data or not kind.kept
    return None, refusal


def check(kind: Kind, path: Path, data: bytes, expected: str) -> bool:
    """Whether a file is refused; otherwise it must be read as it was."""
    for beside in path.parent.glob(f"{path.name}-*"):  # what SQLite left of the one before
        beside.unlink()
    path.write_bytes(data)
    content, refusal = content_or_refusal(kind, path)
    assert refusal or kind.agrees(str(content), expected)
    return refusal is not None


@pytest.mark.parametrize("cases", [24, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_read_as_they_were(name, cases, tmp_path):
    kind, path = KINDS[name], tmp_path / "file.npz"
    kind.make(path)
    data, random = path.read_bytes(), np.random.default_rng(cases)
    expected = kind.load(path)
    refused = sum(check(kind, path, damaged(data, random), expected) for _ in range(cases))
    assert refused > cases // 8


# -- whole by their checksums, and yet wrong ----------------------------------------------------------------
def parts(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return archive.read_archive(path, lambda about, forms: None)


def valid_run(run: mcf.Run) -> bool:
    steps = run.steps.tolist()
    lengths = {len(numbers) for series in run.series.values() for numbers in series.values()}
    return (
        steps == sorted(set(steps))
        and lengths <= {len(steps)}
        and all(0 <= t <= run.settings.get("steps", t) for t in steps)
        and all(isinstance(x, int | float) for numbers in run.results.values() for x in numbers.values())
    )


def altered(arrays: dict[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return arrays of which one is missing, renamed, of another form, or has another number."""
    name = str(random.choice(sorted(arrays)))
    array = arrays[name]
    rest = {key: x for key, x in arrays.items() if key != name}
    number = array.dtype.type(random.choice([0, -1, 7, 1000])) if array.dtype.kind in "fi" else "1/0"
    spoilt = array.copy()
    spoilt.flat[:1] = number
    cast = array.astype("<f4" if array.dtype != np.float32 else "<f8") if number != "1/0" else None
    others = [array[:-1], np.append(array, array[-1:]), array[0], array[None], cast, spoilt]
    choices = [rest, {**rest, name + "x": array}, {**rest, "|": array}, {**arrays, "more|loss": array}]
    choices += [{**rest, name: other} for other in others if other is not None]
    return {key: np.asarray(x) for key, x in choices[int(random.integers(len(choices)))].items()}


@pytest.mark.parametrize("cases", [30, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.sampled(4, each=False)
def test_files_made_anew_with_wrong_content_are_refused_or_valid(name, cases, tmp_path):
    kind, path = KINDS[name], tmp_path / "file.npz"
    kind.make(path)
    about, arrays = parts(path)
    random, refused = np.random.default_rng(cases), 0
    for _ in range(cases):
        if random.integers(2):
            try:
                archive.write_archive(path, changed(about, random), arrays)
            except (ValueError, TypeError):  # no JSON, as an endless number
                continue
        else:
            archive.write_archive(path, about, altered(arrays, random))
        _, refusal = content_or_refusal(kind, path)
        refused += refusal is not None
        if refusal is None and name == "run":
            assert valid_run(mcf.Run.load(path))
    assert refused > cases // 4


# In fp8 epsilon vanishes, in int8 much else: what a file may hold does not depend on it.
@pytest.mark.filterwarnings("ignore::mcfsim.optim.strategy.VanishingScalarWarning")
@pytest.mark.parametrize(
    ("strategy", "low", "fields"),
    [
        *(("plain", low, ("parameter0", "m0", "v0")) for low in ("bfloat16", "posit8", "int8")),
        ("kahan", "float8_e4m3fn", ("extra0",)),
        ("collage-plus", "bfloat16", ("parameter1",)),
    ],
)
def test_a_number_that_is_no_value_of_its_format_is_refused(strategy, low, fields, tmp_path):
    path = tmp_path / "file.npz"
    train(path, strategies=[strategy], low=low)
    about, arrays = parts(path)
    wide = 1e30 if low != "bfloat16" else 2.0**-140
    for field, number in itertools.product(fields, (0.1, 1 + 2.0**-20, wide)):
        spoilt = arrays[f"{strategy}|{field}"].copy()
        spoilt[0] = number
        archive.write_archive(path, about, {**arrays, f"{strategy}|{field}": spoilt})
        with pytest.raises(ValueError, match=rf"file\.npz has .* which is no value of {low}"):
            train(path, strategies=[strategy], low=low)


NO_NUMBERS = (
    *("", "None", "1/3", "0.5", "0x1", "0x1p", "0x10p0", "0x2p-1", "+0x1p0", "0x1p-0", "0X1p0", "0x01p0"),
    *("x" * 999, "0x" + "1" * 101 + "p0", "-0x0p0", "1e5", "infinity", "NaN", "٣"),
)


def test_a_step_that_the_run_has_not_and_a_text_that_is_no_exact_number_are_refused(tmp_path):
    path, key = tmp_path / "file.npz", "exact|parameter0"
    train(path)
    about, arrays = parts(path)
    wrong = [({"step": step}, {}, "") for step in (-5, -1, 5, 10**400, 2.0, "4", None, True, [4])]
    wrong += [({}, {key: np.array([x, str(arrays[key][1])])}, " has .* which is no") for x in NO_NUMBERS]
    for described, held, told in wrong:
        archive.write_archive(path, about | described, arrays | held)
        with pytest.raises(ValueError, match=rf"file\.npz{told}"):
            train(path)
    archive.write_archive(path, about, arrays)
    train(path)


# -- files made by hand --------------------------------------------------------------------------------------
def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, times: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there
        for name, data in [*members.items()] * times:
            made.writestr(name, data)
    return file.getvalue()


def saved(save: Callable[..., None] = np.savez_compressed, *given: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, *given, **arrays)
    return file.getvalue()


def text_member(text: str) -> bytes:
    return saved(np.save, np.array(text))


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
RUN = {"format": "mcfsim-run-2", "settings": {}, "versions": {}, "results": {}, "digest": "0"}


def described(text: str, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    """Return an archive with a description, and other members."""
    return zipped({"about.npy": text_member(text), **{f"{k}.npy": x for k, x in members.items()}}, method)


def listed(shape: Any, dtype: Any = "<f8") -> str:
    return json.dumps({**RUN, "arrays": {"steps": ["<i8", shape], "plain|loss": [dtype, shape]}})


@cache
def bomb() -> bytes:
    return described(listed([2**22]), steps=npy(HEADER % ("<i8", "(4194304,)"), bytes(2**25)))


def claiming(size: int) -> bytes:
    """Return an archive whose last member is said to have so many bytes."""
    data = described(listed([1]), steps=b"")
    place = data.rindex(b"PK\x01\x02") + 24
    return data[:place] + size.to_bytes(4, "little") + data[place + 4 :]


HUGE = HEADER % ("<f8", f"({10**12},)")
ACTING = b"cos\nsystem\n(S'exit 3'\ntR."
LOSS = {"plain|loss": npy(HEADER % ("<f8", "(1,)"))}
CRAFTED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"hello",
    "no members": lambda: zipped({}),
    "no description": lambda: saved(x=np.ones(3)),
    "pickles": lambda: saved(about=np.array([{"format": "mcfsim-run-2"}], dtype=object)),
    "a pickle that acts": lambda: zipped({"about.npy": npy(HEADER % ("|O", "()"), ACTING)}),
    "JSON too deep": lambda: described("[" * 100_000),
    "JSON deep in settings": lambda: described('{"settings": ' + '{"a":' * 50_000 + "0" + "}" * 50_001),
    "numbers too long": lambda: described('{"step": ' + "9" * 10_000 + "}"),
    "no array of text": lambda: saved(about=np.ones(3)),
    "header too deep": lambda: zipped({"about.npy": npy("(" * 9000)}),
    "header of code": lambda: zipped({"about.npy": npy("__import__('os').abort()")}),
    "header cut off": lambda: zipped({"about.npy": b"\x93NUMPY\x01\x00\xff\xff{"}),
    "description of 10^12": lambda: zipped({"about.npy": npy(HEADER % ("<U1000000000000", "()"))}),
    "steps of 10^12": lambda: described(listed([10**12]), steps=npy(HUGE), **LOSS),
    "steps of 10^400": lambda: described(listed([10**400]), steps=b""),
    "more dimensions": lambda: described(listed([1] * 100), steps=b""),
    "an object": lambda: described(listed([1], "|O"), **LOSS),
    "parts": lambda: described(listed([1], "f8,f8"), **LOSS),
    "no list of arrays": lambda: described(json.dumps(RUN)),
    "arrays of nothing": lambda: described(json.dumps({**RUN, "arrays": {"a": None}})),
    "a member twice": lambda: zipped({"about.npy": text_member(json.dumps(RUN))}, times=2),
    "lzma": lambda: described(json.dumps(RUN), zipfile.ZIP_LZMA),
    "a zip bomb": bomb,
    "a claim of 2^28": lambda: claiming(2**28),
    "a bomb of a description": lambda: zipped({"about.npy": bytes(2**26 + 1)}),
    "a number as settings": lambda: saved(about=json.dumps({**RUN, "settings": 3, "arrays": {}})),
}


@pytest.mark.parametrize("crafted", CRAFTED)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(4, each=False)
def test_crafted_files_are_refused(name, crafted, tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(CRAFTED[crafted]() or (b"" if name != "journal" else b"no journal"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"file\.npz"):
        KINDS[name].load(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["file.npz"]


def test_no_more_memory_is_taken_than_a_file_has_bytes(tmp_path):
    import tracemalloc

    path, large = tmp_path / "file.npz", ("steps of 10^12", "description of 10^12", "a zip bomb")
    told = {"a claim of 2^28": ".* claims to hold more than", "a bomb of a description": ".* description has"}
    for name, text in {**dict.fromkeys(large, ""), **told}.items():
        path.write_bytes(CRAFTED[name]())
        tracemalloc.start()
        with pytest.raises(ValueError, match=f"file{text}"):
            mcf.Run.load(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**22, (name, peak)
