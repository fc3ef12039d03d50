"""The faults of the code released with Collage, each beside the right algorithm: in v, and in a training.

A v that is too small makes every update too long. So the right algorithm is also trained with a learning rate
that is larger by the same factor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.collage_options import LATE, summarize
from experiments.common import FIGURES, RESULTS, in_processes, read_result, write_result
from experiments.released_code import FAULTS, NONE, RIGHT, STEADY, Faulty, chosen, end, length
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel
from mcfsim.training.schedule import RecordedRates

SEEDS = (0, 1, 2)
REFERENCE = "fp32-master"


class Study(NamedTuple):
    """How long the language model is trained, by beta2, and how large it is."""

    name: str
    steps: Mapping[float, int]
    shape: Mapping[str, int]


#: The long study trains the model of the other experiments, and takes many minutes.
STUDIES = {
    "short": Study("released_code_audit", {0.999: 200, 0.95: 200}, {"width": 32, "context": 32, "batch": 8}),
    "long": Study("released_code_audit_long", {0.999: 1200, 0.95: 800}, {}),
}


class Training(NamedTuple):
    """A training of the language model under some strategies.

    Attributes
    ----------
    name : str
    beta2 : float
    strategies : tuple of str
    faults : mapping of str to Any
        Arguments of `Faulty`; none for the right algorithm.
    rates_of : str, optional
        The fault whose longer or shorter updates the learning rates are to make.
    """

    name: str
    beta2: float
    strategies: tuple[str, ...]
    faults: Mapping[str, Any]
    rates_of: str | None = None


TRAININGS = (
    Training("right", 0.999, ("plain", "collage-light", RIGHT, REFERENCE), {}),
    Training("aliased", 0.999, (RIGHT,), FAULTS["aliased"]),
    Training("rates of aliased", 0.999, (REFERENCE,), {}, "aliased"),
    Training("both", 0.999, (RIGHT,), FAULTS["both"]),
    Training("rates of both", 0.999, (REFERENCE,), {}, "both"),
    Training("rounded", 0.999, (REFERENCE,), {"rounded": True}),
    Training("right", 0.95, (RIGHT, REFERENCE), {}),
    Training("aliased", 0.95, (RIGHT,), FAULTS["aliased"]),
    Training("rates of aliased", 0.95, (REFERENCE,), {}, "aliased"),
)


def train(study: Study, about: Training, seed: int, folder: Path | None) -> mcf.Run:
    """Train the language model; with a folder, from the checkpoint that is there."""
    steps, planned = study.steps[about.beta2], mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
    schedule: mcf.Schedule | RecordedRates = planned
    if about.rates_of is not None:
        rates = planned.rates(steps)
        schedule = RecordedRates(tuple((rates * length(about.beta2, about.rates_of, steps)).tolist()))
    label = f"{about.beta2} {about.name} {seed}".replace(" ", "-")
    return mcf.simulate(
        LanguageModel(**study.shape),
        (Faulty if about.faults else mcf.AdamW)(beta2=about.beta2, **about.faults),
        about.strategies,
        steps,
        schedule,  # type: ignore[arg-type]
        seed,
        record_every=10,
        checkpoint=None if folder is None else folder / f"{label}.ckpt",
        progress=False,
    )


Runs = Mapping[tuple[float, str], list[mcf.Run]]


def rows(runs: Runs) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of trainings beside fp32 master weights, by beta2 and by training and strategy."""
    return {
        str(beta2): {
            f"{about.name}, {name}": summarize(runs[beta2, about.name], name, runs[beta2, "right"])
            for about in TRAININGS
            if about.beta2 == beta2
            for name in about.strategies
        }
        for beta2 in (0.999, 0.95)
    }


def steady() -> dict[str, dict[str, list[float]]]:
    """Return v / g^2 at the end of a constant gradient: least, median and largest of all significands."""
    jobs = list(product(STEADY, FAULTS))
    found: dict[str, dict[str, list[float]]] = {}
    for (beta2, fault), ratio in zip(jobs, in_processes(end, jobs), strict=True):
        found.setdefault(str(beta2), {})[fault] = [float(of(ratio)) for of in (np.min, np.median, np.max)]
    return found


def rounded_update() -> float:
    """Return the relative error of an update of normal numbers that is rounded to bf16."""
    update = np.random.default_rng(0).standard_normal(100_000)
    return mcf.metrics.relative_error(mcf.round_to(update, "bfloat16"), update)


def draw(found: Mapping[str, Mapping[str, list[float]]], runs: Runs) -> None:
    """Draw v under each fault, and what each does to the loss beside the right algorithm."""
    with subplots(2, 2, width=11, height=6.6) as (figure, ((second, aliased), (both, others))):
        _draw_steady(second, found)
        for panel, beta2, fault, label in (
            (aliased, 0.95, "aliased", "as released"),
            (both, 0.999, "both", "both faults"),
        ):
            rated = "fp32 master, rate\ntimes sqrt(1 / v)"
            lines = (
                ("right", RIGHT, "collage-plus, right", "blue", "-"),
                (fault, RIGHT, f"collage-plus,\n{label}", "vermilion", "-"),
                (f"rates of {fault}", REFERENCE, rated, "black", (0, (4, 2))),
            )
            _draw_losses(panel, runs, beta2, lines)
        aliased.set_title(
            "beta2 = 0.95, v a third of what it should be: with a\n"
            "larger learning rate fp32 master weights gain about as much"
        )
        both.set_title(
            "beta2 = 0.999, v too large: with a smaller\n"
            "learning rate fp32 master weights lose a similar amount"
        )
        light = chosen(NONE.upper().lower())
        lines = (
            ("right", "plain", "plain bf16, right", "orange", "-"),
            ("right", light, "plain bf16, as released:\nCollage-light", "vermilion", "-"),
            ("rounded", REFERENCE, "fp32 master,\nupdates rounded", "sky", "-"),
        )
        _draw_losses(others, runs, 0.999, lines)
        others.set_title(
            "beta2 = 0.999: the released plain bf16 is Collage-light;\n"
            "rounded updates cost master weights next to nothing"
        )
        message(
            figure,
            "The released Collage-plus beats fp32 master weights by longer updates, not by precision",
        )
        save(figure, FIGURES / "released_code_audit")


def _draw_steady(panel: Any, found: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Draw v / g^2 of a constant gradient by beta2: median, and range of the significands."""
    styles = {
        "right": ("right", "blue", "o"),
        "aliased": ("product overwrites its factor", "vermilion", "s"),
        "default": ("beta2 against float32", "purple", "^"),
        "both": ("both faults", "black", "x"),
    }
    for place, (fault, (label, colour, marker)) in enumerate(styles.items()):
        low, median, high = np.array([row[fault] for row in found.values()]).T
        at = np.arange(len(median)) + 0.12 * (place - 1.5)
        panel.errorbar(
            at, median, yerr=[median - low, high - median],
            label=label, color=COLOURS[colour], marker=marker, linestyle="none", markersize=5, linewidth=1.2,
        )  # fmt: skip
    panel.set_yscale("log")
    panel.set_yticks([0.25, 0.5, 1, 2, 5], ["1/4", "1/2", "1", "2", "5"])
    panel.minorticks_off()
    panel.set_xticks(range(len(found)), list(found))
    panel.set_xlabel("beta2")
    panel.set_ylabel("v / g^2 after a long\nconstant gradient")
    panel.set_title(
        "v / g^2 should be 1: faults of the released code\nmake it a third, or let it grow without end"
    )
    panel.legend(fontsize=8.5, loc="upper left")


def _draw_losses(
    panel: Any, runs: Runs, beta2: float, lines: tuple[tuple[str, str, str, str, Any], ...]
) -> None:
    """Draw losses minus that of fp32 master weights on the same batches: mean, and range of the seeds."""
    references = runs[beta2, "right"]
    for about, name, label, colour, dashes in lines:
        gaps = np.array(
            [
                run.series[name]["loss"] - reference.series[REFERENCE]["loss"]
                for run, reference in zip(runs[beta2, about], references, strict=True)
            ]
        )
        steps, shade = references[0].steps, COLOURS[colour]
        panel.plot(steps, gaps.mean(axis=0), label=label, color=shade, linestyle=dashes)
        panel.fill_between(steps, gaps.min(axis=0), gaps.max(axis=0), color=shade, alpha=0.15, linewidth=0)
    panel.axhline(0, color=COLOURS["grey"], linewidth=0.8, zorder=0)
    panel.set_xlim(0, references[0].steps[-1])
    panel.set_ylabel("loss minus that of fp32 master\nweights, same batches (nats)")
    panel.set_xlabel("step")
    label_ends(panel, gap=0.16)  # labels have two lines


def table() -> str:
    """Return what each fault does, and what a learning rate gives, of each study that was made."""
    made = [study for study in STUDIES.values() if (RESULTS / f"{study.name}.json").exists()]
    return "\n\n".join(_table(read_result(study.name)) for study in made)


def _table(result: dict[str, Any]) -> str:
    found, shown = result["table"], []

    def gap(beta2: str, name: str) -> str:
        return paired.shown(found[beta2][name]["differences"])

    def add(fault: str, does: str, beta2: str, name: str, beside: str) -> None:
        ratio = f"{found[beta2][name]['late_v_ratio']:.3f}"
        row = {"fault": fault, "what it does": does, "beta2": beta2, "v / exact, late": ratio}
        shown.append({**row, "loss minus `fp32-master`": gap(beta2, name), "the right one beside it": beside})

    for beta2 in ("0.95", "0.999"):
        add("none: `collage-plus`", "", beta2, f"right, {RIGHT}", "")
    labels = {"aliased": "the product overwrites its factor", "both": "the same, and beta2 against float32"}
    for beta2, fault in (("0.95", "aliased"), ("0.999", "aliased"), ("0.999", "both")):
        v = result["steady"][beta2][fault][1]
        does = (
            f"v / g^2 is {v:.3g}, not {result['steady'][beta2]['right'][1]:.3g}: updates times {v**-0.5:.2f}"
        )
        rated = f"`{REFERENCE}`, rate times sqrt(1 / v): {gap(beta2, f'rates of {fault}, {REFERENCE}')}"
        add(labels[fault], does, beta2, f"{fault}, {RIGHT}", rated)
    plain = gap("0.999", "right, plain")
    does = "the baseline runs `collage-light`"
    add("identity of strings", does, "0.999", "right, collage-light", f"`plain` itself: {plain}")
    does = f"each update is off by {result['rounded_update']:.2g}"
    add("update rounded before the master", does, "0.999", f"rounded, {REFERENCE}", "")
    model, seeds = result["settings"]["problem"], len(result["settings"]["seeds"])
    said = ", ".join(f"{steps} steps at beta2 = {beta2}" for beta2, steps in result["steps"].items())
    shape = ", ".join(f"{label} {model[label]}" for label in ("layers", "width", "context", "batch"))
    about = f"Language model: {shape}; {said}; {seeds} seeds, paired; 95 % intervals of the means."
    return f"{markdown_table(shown)}\n\n{about}"


def main(arguments: Sequence[str] = ()) -> None:
    """Follow v, train and write the numbers; for the short study also draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m experiments.released_code_audit")
    parser.add_argument("--study", choices=STUDIES, default="short", help="how long, and how large a model")
    parser.add_argument("--folder", type=Path, help="checkpoints, from which an interrupted study goes on")
    given = parser.parse_args(arguments)
    study = STUDIES[given.study]
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    jobs = [(study, about, seed, given.folder) for about in TRAININGS for seed in SEEDS]
    runs: dict[tuple[float, str], list[mcf.Run]] = {}
    for (_, about, *_), run in zip(jobs, in_processes(train, jobs), strict=True):
        runs.setdefault((about.beta2, about.name), []).append(run)
    found, first = steady(), runs[0.999, "right"][0]
    write_result(
        study.name,
        {
            "settings": {**first.settings, "seeds": SEEDS},
            "steps": {str(beta2): steps for beta2, steps in study.steps.items()},
            "late": LATE,
            "steady": found,
            "rounded_update": rounded_update(),
            "table": rows(runs),
        },
    )
    if given.study == "short":
        draw(found, runs)


if __name__ == "__main__":
    main(sys.argv[1:])
