"""`mcfsim audit`, `assign`, `memory` and `replay`: what they print and write, and how they end otherwise."""

import csv
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.audit import audit
from mcfsim.models.memory import SHAPES, get_model
from mcfsim.models.memory import Model as Named
from mcfsim.models.plan import NoiseModel
from mcfsim.models.product_rows import ProductRow, write_rows
from mcfsim.models.replay import RecordedGradients
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.audit_report import at_rates, audit_page
from mcfsim.report.audits import audit_json
from tests.cli import runner
from tests.models import pages
from tests.models.files import SHAPES as RECORDED
from tests.models.files import checkpoint, raw_safetensors, recorded, weights
from tests.shared.places import look

pytestmark = pytest.mark.slow

#: What each command is given before what a test gives it.
FIRST = {"audit": "m.safetensors --steps 5 --samples 16", "replay": "r", "memory": ""}
FIRST["assign"] = FIRST["audit"].replace("16", "64")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a checkpoint and a recording."""
    folder = tmp_path_factory.mktemp("files")
    checkpoint(folder / "m.safetensors")
    recorded(folder / "r")
    return folder


@pytest.fixture(autouse=True)
def _here(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)


def run(command, words="", status=0):
    return runner.call(command, *FIRST[command].split(), *shlex.split(words), status=status)


def refused(command, words):
    """Return the one line of a refusal, which may write nothing."""
    before = look(Path())
    told = runner.refused(command, *FIRST[command].split(), *shlex.split(words))
    assert look(Path()) == before
    return told


def load(path):
    return json.loads(Path(path).read_text())


def test_a_transfer_costs_what_the_share_that_changes_takes():
    """Printed as it is in the file; each tensor has a head, and codes that change by the forecast."""
    told = run("audit", "--rl --strategy plain --strategy fp32 --json found.json --lr 3e-6").output
    found = load("found.json")
    assert "Bytes that send what a step changes:" in told
    assert "Bytes" not in run("audit", "--strategy plain").output
    for total in found["strategies"]:
        name, sent, width = total["name"], total["transfer_bytes"], {"plain": 2, "fp32": 4}[total["name"]]
        changed = [(x["parameters"], x["strategies"][name]["changed"]) for x in found["tensors"]]
        assert total["changed"] == pytest.approx(sum(n * share for n, share in changed) / found["parameters"])
        assert sent["dense"] == sum(32 + n * width for n, _ in changed)
        assert sent["indices"] == pytest.approx(sum(32 + n * share * (4 + width) for n, share in changed))
        (row,) = (
            line.split() for line in told.partition("Bytes that")[2].splitlines() if name in line.split()
        )
        assert row[1:] == [
            f"{total['changed']:.4f}",
            *(f"{sent[x]:.4g}" for x in ("mask", "indices", "gaps", "dense")),
            f"{min(sent.values()) / sent['dense']:.4f}",
        ]


# -- refusals ------------------------------------------------------------------------------------------------
NO_NUMBERS = ("2.5", "sNaN", "inf", "1e999999999", "1e-999999999")


@pytest.mark.parametrize(
    ("command", "words", "text"),
    [
        ("audit", "--schedule step", "known schedules: cosine, constant"),
        ("audit", "--schedule constant --final 0.5", "is for the cosine"),
        ("audit", "--state none.safetensors", "none.safetensors"),
        ("audit", "--resume", "--resume needs --checkpoint"),
        ("audit", "--resume --checkpoint none.npz", "there is no checkpoint none.npz"),
        ("audit", "--json /nonexistent/x", "no folder"),
        ("audit", "--products m.safetensors", "--products needs --html, on whose page"),
        ("audit", "--html x.html --products r/weights.safetensors", "weights.safetensors"),
        ("audit", "--png x.pdf", "a figure's name ends in .svg or .png"),
        ("audit", "--json x.json --html x.html --lr 1e308 --warmup 9", "must be finite"),
        ("assign", "--budget 7", "less than the least, 8"),
        ("replay", "--resume", "--resume needs --checkpoint, which names the file"),
        ("replay", "--checkpoint-every 2", "--checkpoint-every needs --checkpoint, which names the file"),
        ("replay", "--steps 6", "steps = 6: "),
        ("replay", "--per-tensor -1", "per_tensor = -1 must not be negative"),
        ("memory", "0", "0 parameters: it must be a whole number from 1 to 1e+18"),
        *(("memory", x, f"{x} parameters: it must be a whole number") for x in NO_NUMBERS),
        ("memory", "gpt-13b", "no known shape (did you mean 'gpt-1.3b'?); known shapes: gpt-125m"),
        ("memory", "1e9 none.npz", "'none.npz' is no number, no file and no known shape"),
        ("memory", "damaged.safetensors", "damaged.safetensors"),
        ("memory", "--strategy exact", "strategy 'exact' stores exact numbers, which have no fixed size"),
        ("memory", "--low posit16 --strategy collage-plus", "posit16 is no format for several components"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_written(command, words, text):
    Path("damaged.safetensors").write_bytes(b"\xff" * 40)
    assert text in refused(command, words)


def test_bad_numbers_are_named_and_nothing_is_written():
    bad = {"a": np.float32([1, np.nan]), "b": np.float32([np.inf] * 3)}
    good = {name: np.ones_like(x) for name, x in bad.items()}
    shutil.rmtree("r")
    Path("r").mkdir()
    for name, tensors in (("m", bad), ("r/weights", good), ("r/step-1", good), ("r/step-2", bad)):
        raw_safetensors(Path(f"{name}.safetensors"), tensors)
    numbers, place = "a: 1 NaN, 0 infinite; b: 0 NaN, 3 infinite", Path("r/step-2.safetensors")
    assert numbers in refused("audit", "--json x.json")
    told = refused("replay", "--lr 0.1 --output run.npz")
    assert told == f"Error: {place}: has numbers that are not finite: {numbers}\n"


# -- audit ---------------------------------------------------------------------------------------------------
def test_an_audit_prints_the_worst_first_and_what_is_enough():
    text = run("audit", "--betas 0.9 0.95").stdout
    assert f"{32 * 24 + 48:,} parameters in 3 tensors" in text
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("gain", "matrix", "bias"))]
    assert (names[0], {*names}) == ("gain", {"gain", "matrix", "bias"})
    assert "Recommended: kahan. kahan is the cheapest of the 14 tried whose updates arrive" in text
    assert "normally distributed directions" in text[text.index("Recommended") :]


def test_an_audit_fails_a_job_where_a_tensor_stops():
    words = "--strategy plain --strategy fp32-master --json x.json"
    for name in ("plain", "fp32-master"):
        stops = any(
            item["strategies"][name]["stops"] is not None
            for item in (run("audit", words), load("x.json"))[1]["tensors"]
        )
        assert stops == (name == "plain")
        assert "Supposed: " in run("audit", f"{words} --fail-if-stops {name}", status=int(stops)).stdout
        assert load("x.json")["tensors"], "it is written all the same"
    told = refused("audit", "--strategy plain --fail-if-stops kahan")
    assert told == "Error: --fail-if-stops kahan: tried are plain\n"


def test_an_audit_writes_what_the_library_finds():
    run(
        "audit",
        "--lr 1e-3 --warmup 2 --final 0.5 --weight-decay 0.2 --eps 1e-6 --update-rms 0.4 --threshold 0.9"
        " --stopped 0.25 --strategy plain --strategy kahan --low float16 --json x.json",
    )
    plan = pages.plan(
        *(("plain", "kahan"), "float16", (1e-3, 2, 0.5), 5),
        **{"beta2": 0.999, "decay": 0.2, "updates": NoiseModel(0.4), "threshold": 0.9, "stopped": 0.25},
    )
    plan = replace(plan, hyper=replace(plan.hyper, epsilon=1e-6))
    expected = audit_json(audit(scan(open_weights(Path("m.safetensors")), 16), plan, pages.FLOAT16), {})
    assert load("x.json") == json.loads(json.dumps(expected))


def test_a_checkpoint_is_gone_on_from_with_the_same_files_alone(monkeypatch):
    which = "--strategy plain --strategy kahan --checkpoint kept.npz"
    first = run("audit", which).stdout
    shutil.copy("m.safetensors", "other.safetensors")
    before = look(Path())
    assert run("audit", f"{which} --resume").stdout == first
    assert look(Path()) == before
    monkeypatch.setitem(FIRST, "audit", FIRST["audit"].replace("m.", "other."))
    assert "files differ" in refused("audit", which)


def test_an_audit_writes_the_page_and_the_picture():
    which = " ".join(f"--strategy {name}" for name in pages.STRATEGIES)
    rows = [
        ProductRow(1, "a", "mxfp8", "forward", name, 1, 8, 0.5, 0.1, 0.0, 0.0, 0.0) for name in ("x", "dy")
    ]
    write_rows("seen.csv", rows)
    options = "--lr 1e-3 --warmup 3 --final 0.01 --weight-decay 0.1 --betas 0.9 0.95"
    options += " --html x.html --png x.png --products seen.csv"
    text = run("audit", f"{which} {options}").stdout
    assert all(f"saved x.{kind}" in text for kind in ("html", "png")), text
    samples = scan(open_weights(Path("m.safetensors")), 16)
    found = at_rates(samples, audit(samples, pages.plan(steps=5), pages.BFLOAT16))
    assert Path("x.html").read_text() == audit_page("m.safetensors", found, {}, rows)
    assert Path("x.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# -- assign --------------------------------------------------------------------------------------------------
def test_an_assignment_prints_each_tensor_and_writes_the_same():
    text = run("assign", "--budget 9 --lr 3e-4 --json x.json --csv x.csv").stdout
    data, rows = load("x.json"), list(csv.DictReader(Path("x.csv").read_text().splitlines()))
    assert data["budget"] == 9 >= data["bytes_per_parameter"]
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    for item, row in zip(data["tensors"], rows, strict=True):
        assert [item["strategy"], item["format"]] == [row["strategy"], row["format"]]
        assert {item["strategy"], item["format"]} <= set(lines[item["name"]])
        assert int(row["parameters"]) == item["parameters"]
    assert "as assigned" in text
    assert "at most 9 bytes a parameter, by sensitivity" in text
    run("assign", "--by demotion --budget 10 --json x.json")  # between fp32-master and plain
    found = {item["name"]: item["strategy"] for item in load("x.json")["tensors"]}
    assert found == {"matrix": "plain", "bias": "fp32-master", "gain": "fp32-master"}


# -- memory --------------------------------------------------------------------------------------------------
def table(words):
    """Return the headings of a Markdown table, and the cells of each strategy."""
    text = run("memory", f"{words} --markdown").stdout
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return lines[0], {cells[0]: cells[1:] for cells in lines[2:]}


def test_the_bytes_of_each_tensor():
    headings, rows = table("1073741824 --low float8_e4m3fn")
    tensors = ["parameter", "gradient", "m", "v", "components", "master"]
    counted = ["bytes / parameter", "saved against fp32-master", "1073741824, GiB"]
    assert headings == ["strategy", *tensors, *counted]
    assert rows["collage-plus"] == ["1", "1", "1", "1", "2", "-", "6", "57.1%", "6.00"]
    assert rows["kahan"] == ["1", "1", "1", "1", "1", "-", "5", "64.3%", "5.00"]
    assert rows["fp32-master"] == ["1", "1", "4", "4", "-", "4", "14", "0.0%", "14.00"]
    assert rows["fp32"][-3:] == ["16", "-14.3%", "16.00"]
    assert "exact" not in rows


def test_models_stand_side_by_side_and_strategies_in_the_order_given():
    headings, rows = table("gpt-1.3b 7e9 gpt-1.3b --strategy plain --strategy kahan --strategy plain")
    assert (headings[-2:], [*rows]) == (["gpt-1.3b, GiB", "7e9, GiB"], ["plain", "kahan"])
    assert rows["plain"][-2:] == [f"{8 * size / 2**30:.2f}" for size in (SHAPES["gpt-1.3b"].size, 7e9)]


def test_the_floating_numbers_of_files_count():
    a, b, step = np.zeros((3, 5), ml_dtypes.bfloat16), np.zeros(7, np.float16), np.zeros(1, np.int64)
    folder = Path("folder")
    folder.mkdir()
    raw_safetensors(folder / "model.safetensors", {"a": a, "b": b.astype(np.float32), "step": step})
    np.savez(folder / "model.npz", a=a.astype(float), b=b, step=np.array(1))
    index = {"weight_map": dict.fromkeys(("a", "b", "step"), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (folder, *folder.iterdir()):
        assert get_model(str(path)) == Named(str(path), 22)
        assert table(str(path))[0][-1] == f"{path}, GiB"


# -- replay --------------------------------------------------------------------------------------------------
def test_a_replay_prints_and_saves_the_run_that_the_library_makes():
    options = "--strategy plain --strategy fp32-master --beta2 0.99 --per-tensor 1"
    out = run("replay", f"{options} --output run.npz").stdout
    again = mcf.Run.load("run.npz")
    assert again == mcf.replay("r", mcf.AdamW(beta2=0.99), ["plain", "fp32-master"])
    lines = out.splitlines()
    assert lines[0].startswith("16 parameters, adamw: beta1 = 0.9, beta2 = 0.99, ")
    assert lines[0].endswith("; rates recorded, steps = 5, low = bfloat16")
    whole, tensor = (line.split() for line in lines if line.startswith("plain"))
    lost, edq = again.late("plain", "lost"), again.late("plain", "normalized_edq")
    assert whole[1:4] == ["8", f"{lost:.2%}", f"{edq:.4f}"]
    far = {name: abs(again.late("plain", f"normalized_edq/{name}") - 1) for name in weights()}
    assert tensor[:2] == ["plain", max(far, key=far.__getitem__)]
    assert "validation loss" not in out
    assert lines[-1] == "saved run.npz"


def test_options_of_a_replay_are_those_of_the_library():
    np.savez("start.npz", **weights())
    options = {"weights": "start.npz", "steps": 4, "seed": 3, "clip": 0.5, "record_every": 2}
    options |= {"truth_sample": 2, "low": "float16", "rounding": "stochastic", "scalars": "rounded"}
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    run("replay", f"{words} --optimizer sgd --decay-all --strategy kahan --lr 0.5 --output run.npz")
    expected = mcf.replay("r", "sgd", "kahan", mcf.Schedule(0.5), decayed=[*RECORDED], **options)
    assert mcf.Run.load("run.npz") == expected


def test_ctrl_c_saves_and_names_the_command_that_goes_on(monkeypatch):
    words = "--strategy plain --checkpoint 'a place.npz'"
    whole = run("replay", "--strategy plain --output whole.npz").stdout
    taken = RecordedGradients.gradient

    def interrupted(self, *arguments):
        if arguments[1] == 3:
            raise KeyboardInterrupt
        return taken(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RecordedGradients, "gradient", interrupted)
        patch.setattr(sys, "argv", ["mcfsim", "replay", "r", *shlex.split(words)])
        ended = run("replay", f"{words} --output run.npz", status=130)
        before, _, command = ended.stderr.strip().partition(" To go on: ")
        assert before == "Ended; what is finished is in a place.npz."
        assert shlex.split(command) == sys.argv
    assert not Path("run.npz").exists()
    again = run("replay", f"{words} --resume --output run.npz").stdout
    assert again.replace("run.npz", "whole.npz") == whole
    assert Path("run.npz").read_bytes() == Path("whole.npz").read_bytes()


def test_a_strategy_that_diverges_ends_with_status_1():
    out = run("replay", "--optimizer sgd --lr 3e38 --warmup 0 --strategy plain --output run.npz", 1).stdout
    at = mcf.Run.load("run.npz").results["plain"]["diverged_at"]
    assert f"plain diverged at step {at}: its state is infinite or NaN" in out


@pytest.mark.parametrize("option", ["--checkpoint", "--output"])
def test_a_full_disk_is_told_before_the_first_step(option, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    monkeypatch.setattr(RecordedGradients, "gradient", lambda *_: pytest.fail("a step was begun"))
    told = refused("replay", f"{option} kept.npz")
    assert re.search(r"kept\.npz: it takes .*and the disk has 100 bytes left", told), told


@pytest.mark.parametrize("strategies", [["plain", "collage-plus"], ["plain", "exact"]])
def test_the_room_that_is_looked_for_is_that_of_the_series(strategies, monkeypatch):
    asked = []
    monkeypatch.setattr("mcfsim.training.simulate.check_space", lambda _, size: asked.append(size))
    found = mcf.replay("r", "sgd", strategies, record_every=2, truth_sample=2, output="run.npz")
    assert asked == [sum(x.nbytes for series in found.series.values() for x in series.values())]
    assert mcf.Run.load("run.npz") == found
