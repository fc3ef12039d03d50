"""What commands read stays as it is, whichever of their outputs has its name, by whatever spelling."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.cli.application import Place, places_of
from mcfsim.storage.files import OutputError
from tests.models.files import checkpoint, raw_safetensors
from tests.models.recordings import recorded

pytestmark = pytest.mark.slow

COMMANDS: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
CALLBACKS: dict[str, Callable[..., Any]] = {
    name: inspect.unwrap(command.callback) for name, command in COMMANDS.items()
}

#: What is given to a parameter that is read, and the files of it; all below one folder.
INPUTS: dict[str, dict[str, list[str]]] = {
    "weights": {
        "m.safetensors": ["m.safetensors"],
        "w.npz": ["w.npz"],
        "shards": ["shards/0.safetensors", "shards/model.safetensors.index.json", "shards/new.safetensors"],
        "shards/model.safetensors.index.json": [
            "shards/1.safetensors",
            "shards/model.safetensors.index.json",
        ],
        "other.json": ["other.json", "one.dat"],
    },
    "state": {"st.npz": ["st.npz"], "states": ["states/s.safetensors"], "st.pt": ["st.pt"]},
    "gradients": {"rec": ["rec/step-00000001.safetensors", "rec/weights.safetensors"]},
    "directory": {
        "rec": ["rec/step-00000002.safetensors", "rec/weights.safetensors", "rec/step-00000009.safetensors"]
    },
    "check": {"certificate.json": ["certificate.json"]},
}
#: What a command needs besides.
ALWAYS = {"audit": ["m.safetensors"], "assign": ["m.safetensors"], "replay": ["rec"], "verify": ["sterbenz"]}
SPELLINGS = ("same", "relative", "dotted", "link", "through a folder's link", "hard link")


@pytest.fixture
def furnished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "all"
    folder.mkdir()
    monkeypatch.chdir(folder)
    tensors = checkpoint(folder / "m.safetensors")
    np.savez("w.npz", **tensors)
    for name in ("shards", "states"):
        (folder / name).mkdir()
    for number, (name, x) in enumerate(tensors.items()):
        raw_safetensors(folder / "shards" / f"{number}.safetensors", {name: ("F32", x)})
    index = {name: f"{number}.safetensors" for number, name in enumerate(tensors)}
    (folder / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "one.dat").write_bytes((folder / "m.safetensors").read_bytes())
    (folder / "other.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "one.dat")}))
    moments = {f"{name}.{kind}": x * x for name, x in tensors.items() for kind in "mv"}
    np.savez("st.npz", step=np.array(3), **moments)
    stored = {name: ("F32", x) for name, x in moments.items()}
    raw_safetensors(folder / "states" / "s.safetensors", {**stored, "step": ("F32", np.ones((), np.float32))})
    (folder / "st.pt").write_bytes(b"a state")
    (folder / "certificate.json").write_text("{}")
    recorded(folder / "rec", 2)
    return folder


def look(folder: Path) -> dict[str, bytes | str]:
    """Return all files and links below a folder."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def spelt(path: str, spelling: str, folder: Path, suffix: str) -> Path | None:
    """Return another name of a file, or None if there is none."""
    real = folder / path
    match spelling:
        case "same":
            return real
        case "relative":
            return Path(path)
        case "dotted":
            return real.parent / ".." / real.parent.name / real.name
        case "link":
            link = folder / f"link{suffix}"
            link.symlink_to(real)
            return link
        case "through a folder's link":
            (folder / "beside").symlink_to(real.parent)
            return folder / "beside" / real.name
    if real.exists():
        (folder / f"hard{suffix}").hardlink_to(real)
        return folder / f"hard{suffix}"
    return None


def pairs() -> list[tuple[str, str, str]]:
    """Return each command with each of its outputs and each of its inputs."""
    found = []
    for command, function in CALLBACKS.items():
        places = places_of(function)
        outputs = [name for name, (_, place) in places.items() if place is not Place.READ]
        inputs = [name for name, (_, place) in places.items() if place is Place.READ]
        found += [(command, output, given) for output in outputs for given in inputs]
    return found


def test_each_path_of_a_command_is_an_input_or_an_output() -> None:
    seen = 0
    for command, function in CALLBACKS.items():
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if re.search(r"\bPath\b", str(parameter.annotation)):
                assert name in places_of(function), (command, name)
                seen += 1
        for name, (label, _) in places_of(function).items():
            (known,) = [item for item in COMMANDS[command].params if item.name == name]
            assert label in known.opts or label == name.upper()
    assert seen > 15
    assert len(pairs()) > 18


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("command", "output", "given"), pairs())
@pytest.mark.sampled(6)
def test_no_output_takes_the_place_of_an_input(command, output, given, spelling, furnished):
    places = places_of(CALLBACKS[command])
    (to, kind), (source, _) = places[output], places[given]
    suffix = ".png" if output == "png" else ""
    for value, files in INPUTS[given].items():
        for file in files:
            place = spelt(file, spelling, furnished, suffix)
            if place is None or (kind is Place.FOLDER and not place.is_file()):
                continue
            before = look(furnished.parent)
            where = place.parent if kind is Place.FOLDER else place
            positional = [value] if source == given.upper() else ALWAYS[command]
            words = [*positional, *([] if source == given.upper() else [source, value]), to, str(where)]
            result = CliRunner().invoke(app, [command, *words])
            assert result.exit_code == 2, (words, result.output)
            assert result.stderr.count("\n") == 1
            if kind is Place.FOLDER or command == "verify":
                assert "is no use" in result.stderr or "the place of what is read" in result.stderr
            else:
                assert f"{to} would take the place of what is read ({source})" in result.stderr, words
            assert look(furnished.parent) == before, words
            for made in (furnished / f"link{suffix}", furnished / "beside", furnished / f"hard{suffix}"):
                made.unlink(missing_ok=True)


@pytest.mark.parametrize("output", ["checkpoint", "output"])
@pytest.mark.parametrize("file", ["w.npz", "rec/step-00000001.safetensors", "rec/weights.safetensors"])
def test_the_library_refuses_it_too(output, file, furnished):
    before = look(furnished)
    with pytest.raises(OutputError, match="the place of what is read"):
        mcf.replay("rec", "adamw", ["plain"], weights="w.npz", **{output: file})
    assert look(furnished) == before


def test_other_names_in_the_folder_of_an_input_are_written_and_written_again(furnished):
    words = ["m.safetensors", "--steps", "2", "--strategy", "plain", "--samples", "16"]
    for weights in ("shards", "shards/model.safetensors.index.json"):
        before = look(furnished)
        for _ in range(2):
            options = ["--json", "shards/a.json", "--checkpoint", "shards/a.npz"]
            result = CliRunner().invoke(app, ["audit", weights, *words[1:], *options])
            assert result.exit_code == 0, result.output
        (furnished / "shards" / "a.json").unlink()
        (furnished / "shards" / "a.npz").unlink()
        assert look(furnished) == before


def test_inputs_that_are_the_same_are_no_matter(furnished):
    result = CliRunner().invoke(
        app, ["replay", "rec", "--weights", "rec/weights.safetensors", "--steps", "1"]
    )
    assert result.exit_code == 0, result.output
