"""Files that commands write: refused before any work for them, and never in the place of what is read."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.cli.application import Place, places_of
from mcfsim.storage.files import OutputError
from tests.cli.runner import COMMANDS, FUNCTIONS, call, refused
from tests.models.files import checkpoint, raw_safetensors, recorded
from tests.shared.places import look, no_file

pytestmark = pytest.mark.slow

#: What is given to a parameter that is read, and the files of it; all below one folder.
INPUTS = {
    "weights": {
        "m.safetensors": ["m.safetensors"],
        "w.npz": ["w.npz"],
        "shards": ["shards/0.safetensors", "shards/model.safetensors.index.json", "shards/new.safetensors"],
        "shards/model.safetensors.index.json": ["shards/1.safetensors"],
        "other.json": ["other.json", "one.dat"],
    },
    "state": {"st.npz": ["st.npz"], "states": ["states/s.safetensors"], "st.pt": ["st.pt"]},
    "gradients": {"rec": ["rec/step-00000001.safetensors", "rec/weights.safetensors", "rec/steps.json"]},
    "directory": {
        "rec": [f"rec/{x}.safetensors" for x in ("step-00000002", "weights", "step-00000009")]
        + ["rec/steps.json", "rec/step-run.npz"]
    },
    "check": {"certificate.json": ["certificate.json"]},
    "products": {"seen.csv": ["seen.csv"]},
}
ALWAYS = {"audit": ["m.safetensors"], "assign": ["m.safetensors"], "replay": ["rec"]}
ALWAYS |= {"verify": ["sterbenz"], "show": ["two_sum"]}
SPELLINGS = ("same", "relative", "dotted", "link", "through a folder's link", "hard link")


def places(command: str, *kinds: Place) -> dict[str, str]:
    """Return the parameters of a command that are places of these kinds, and how they are called."""
    found = places_of(FUNCTIONS[command]).items()
    return {name: label for name, (label, kind) in found if kind in kinds}


def test_each_path_of_a_command_is_an_input_or_an_output() -> None:
    seen = 0
    for command, function in FUNCTIONS.items():
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if re.search(r"\bPath\b", str(parameter.annotation)):
                assert name in places_of(function), (command, name)
                seen += 1
        for name, label in places(command, *Place).items():
            (known,) = [item for item in COMMANDS[command].params if item.name == name]
            assert label in known.opts or label == name.upper()
    assert seen > 15


# -- before any work ----------------------------------------------------------------------------------------
WRITTEN = [(command, label) for command in FUNCTIONS for label in places(command, Place.WRITTEN).values()]
TWO = {(command, *[label for one, label in WRITTEN if one == command][:2]) for command, _ in WRITTEN}
TWO = sorted(found for found in TWO if len(found) == 3)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where training or verifying begins."""
    for name in ("training.simulate.simulate", "theorems.verification.run"):
        monkeypatch.setattr(f"mcfsim.{name}", lambda *_, **__: pytest.fail("work has begun"))


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("how", ["pipe", "folder", "read-only", "link to read-only"])
@pytest.mark.parametrize(("command", "option"), [*WRITTEN, ("verify", "certificate")])
@pytest.mark.sampled(4)
def test_a_place_for_no_file_is_refused_before_any_work(command, option, how, tmp_path):
    path, words = tmp_path / "out.png", (command, *ALWAYS.get(command, ()))
    if option == "certificate":
        path = tmp_path / "sterbenz-float4_e2m1fn-nearest_even.json"
        given = ("--format", "float4_e2m1fn", "--output", tmp_path, "--journal", tmp_path / "journal")
    else:
        given = (option, path)
    no_file(how, path)
    before = look(tmp_path)
    assert refused(*words, *given).startswith(f"Error: cannot write {path}: it is ")
    assert look(tmp_path) == before


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(("command", "one", "other"), TWO)
def test_two_outputs_are_no_one_file(command, one, other, tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("a checkpoint")
    (tmp_path / "link").symlink_to("a.npz")
    (tmp_path / "hard").hardlink_to(path)
    for name in (path, tmp_path / "link", tmp_path / "hard", tmp_path / ".." / tmp_path.name / "a.npz"):
        for places in ((one, path, other, name), (one, name, other, path)):
            said = refused(command, *ALWAYS.get(command, ()), *places)
            assert f"{one} and {other} are one and the same file" in said
    assert path.read_text() == "a checkpoint"


PATHS = [(command, label) for command in FUNCTIONS for label in places(command, *Place).values()]


@pytest.mark.parametrize(("command", "path"), PATHS)
def test_an_empty_path_is_refused(command, path, monkeypatch, tmp_path):
    """Python takes it for the working folder."""
    monkeypatch.chdir(tmp_path)
    before = ALWAYS.get(command, []) if path.startswith("--") else []
    for words in ([path, ""], [f"{path}="]) if path.startswith("--") else ([""],):
        assert refused(command, *before, *words) == f"Error: {path} is empty: it names no file or folder\n"


# -- outputs and inputs -------------------------------------------------------------------------------------
@pytest.fixture
def furnished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "all"
    for name in ("shards", "states"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
    tensors = checkpoint(folder / "m.safetensors")
    np.savez("w.npz", **tensors)
    index = {name: f"{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in index.items():
        raw_safetensors(folder / "shards" / file, {name: tensors[name]})
    (folder / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "one.dat").write_bytes((folder / "m.safetensors").read_bytes())
    (folder / "other.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "one.dat")}))
    moments = {f"{name}.{kind}": x * x for name, x in tensors.items() for kind in "mv"}
    np.savez("st.npz", step=np.array(3), **moments)
    raw_safetensors(folder / "states" / "s.safetensors", {**moments, "step": np.ones((), np.float32)})
    (folder / "st.pt").write_bytes(b"a state")
    (folder / "certificate.json").write_text("{}")
    (folder / "seen.csv").write_text("step,layer\n")
    return recorded(folder / "rec", 2).parent


def spelt(path, spelling, folder, suffix):
    """Return another name of a file, or None if there is none."""
    real, link = folder / path, folder / f"made{suffix}"
    if spelling in ("same", "relative"):
        return real if spelling == "same" else Path(path)
    if spelling == "dotted":
        return real.parent / ".." / real.parent.name / real.name
    if spelling == "hard link" and real.exists():
        link.hardlink_to(real)
        return link
    if spelling == "hard link":
        return None
    link.symlink_to(real if spelling == "link" else real.parent)
    return link if spelling == "link" else link / real.name


#: Each command with each of its outputs and each of its inputs.
PAIRS = [
    (command, output, given)
    for command in FUNCTIONS
    for output in places(command, Place.WRITTEN, Place.FOLDER)
    for given in places(command, Place.READ)
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("command", "output", "given"), PAIRS)
@pytest.mark.sampled(12)
def test_no_output_takes_the_place_of_an_input(command, output, given, spelling, furnished):
    (to, kind), (source, _) = (places_of(FUNCTIONS[command])[name] for name in (output, given))
    suffix = ".png" if output == "png" else ""
    for value, file in ((value, file) for value, files in INPUTS[given].items() for file in files):
        place = spelt(file, spelling, furnished, suffix)
        if place is not None and (kind is not Place.FOLDER or place.is_file()):
            before = look(furnished.parent)
            positional = [value] if source == given.upper() else [*ALWAYS[command], source, value]
            said = refused(command, *positional, to, place.parent if kind is Place.FOLDER else place)
            told = f"{to} would take the place of what is read ({source})"
            assert told in said or (command == "verify" and "--check writes nothing" in said)
            assert look(furnished.parent) == before
        (furnished / f"made{suffix}").unlink(missing_ok=True)


@pytest.mark.parametrize("output", ["checkpoint", "output"])
@pytest.mark.parametrize(
    "file",
    [
        "w.npz",
        *(f"rec/{x}" for x in ("step-00000001.safetensors", "weights.safetensors", "steps.json", "step-run")),
    ],
)
def test_the_library_refuses_it_too(output, file, furnished):
    before = look(furnished)
    with pytest.raises(OutputError, match="the place of what is read"):
        mcf.replay("rec", "adamw", ["plain"], weights="w.npz", **{output: file})
    assert look(furnished) == before


@pytest.mark.parametrize("weights", ["shards", "shards/model.safetensors.index.json"])
def test_other_names_in_the_folder_of_an_input_are_written_and_written_again(weights, furnished):
    before = look(furnished)
    words = "--steps 2 --strategy plain --samples 16 --json shards/a.json --checkpoint shards/a.npz"
    for _ in range(2):
        call("audit", weights, *words.split())
    for name in ("a.json", "a.npz"):
        (furnished / "shards" / name).unlink()
    assert look(furnished) == before
    # Inputs that are the same are no matter.
    call("replay", "rec", "--weights", "rec/weights.safetensors", "--steps", "1")


@pytest.mark.parametrize("option", ["--json", "--html", "--png"])
def test_an_analysis_takes_the_place_of_no_source_and_no_numbers(option, tmp_path):
    source, numbers = tmp_path / "own.py", tmp_path / "own.npy"
    lines = ("@straight_line", "def twice(ar, x):", "    return ar.add(x, x)")
    source.write_text("\n".join(("from mcfsim.protocol import straight_line", *lines)))
    np.save(numbers, np.arange(1.0, 4.0))
    before = source.read_bytes(), numbers.read_bytes()
    for place, name in ((source, "FUNCTION"), (numbers, "--input x")):
        target = place
        if option == "--png":
            target = tmp_path / "link.png"
            target.unlink(missing_ok=True)
            target.symlink_to(place)
        given = f"x=values(source='{numbers}')*2" if option == "--json" else f"x=values('{numbers}')"
        said = refused("analyse", f"{source}:twice", "--input", given, "--count", "5", option, target)
        assert f"would take the place of what is read ({name})" in said
    assert before == (source.read_bytes(), numbers.read_bytes())
