"""The faults of the code released with Collage, each beside the right algorithm: in v, and in a training.

The faults are modelled in words of our own, on the text of the right algorithm. Two concern v at beta2 in two
components: a product that is computed in the place of its own factor, and a rest of beta2 that is taken
against PyTorch's default dtype. One chooses the strategy by the identity of two strings, one rounds the update
before it reaches the master weights. A v that is too small makes every update too long; so the right algorithm
is trained with a learning rate that is longer by as much, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments.collage_options import LATE, summarize
from experiments.common import FIGURES, RESULTS, in_processes, read_result, write_result
from mcfsim.multiword.expansion import grow
from mcfsim.optim.adamw import AdamWScalars, adamw
from mcfsim.optim.state import State, Step, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.problems import LanguageModel
from mcfsim.protocol import Arithmetic, Value
from mcfsim.report.plotting import COLOURS, label_ends, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.schedule import RecordedRates

SEEDS = (0, 1, 2)
REFERENCE, RIGHT = "fp32-master", "collage-plus"
#: Steps of a constant gradient, so many that v is steady, or grows without end.
STEADY = {0.95: 1000, 0.98: 1000, 0.99: 2000, 0.999: 5000}
#: One gradient for each of the 128 significands of bf16.
SIGNIFICANDS = 1 + np.arange(128, dtype=np.float32) / 128
Words = tuple[Value, ...]


class Study(NamedTuple):
    """How long the language model is trained, by beta2, and how large it is."""

    name: str
    steps: Mapping[float, int]
    shape: Mapping[str, int]


#: The long one is that of the other experiments' model, and takes many minutes.
STUDIES = {
    "short": Study("released_code_audit", {0.999: 200, 0.95: 200}, {"width": 32, "context": 32, "batch": 8}),
    "long": Study("released_code_audit_long", {0.999: 1200, 0.95: 800}, {}),
}


# -- the faults ---------------------------------------------------------------------------------------------
def aliased_product(ar: Arithmetic, beta: Words, v: Words) -> Words:
    """Return v times beta2 as it comes out where the product overwrites the factor.

    What is then taken for the factor is the product itself, and so its error is about (beta2 - 1) of it; the
    sum overwrites the product in its turn, so that nothing seems lost in it, and all of the second word is kept
    beside a first one that has it already. Together v is multiplied by beta2 (2 beta2 - 1).
    """
    b, rest_of_b = beta
    product = ar.mul(v[0], b)
    error = ar.fma(product, b, ar.neg(product))
    rest = ar.add(ar.fma(v[1], b, ar.mul(product, rest_of_b)), error)
    return ar.add(product, rest), rest


@dataclass(frozen=True)
class Faulty(mcf.AdamW):
    """AdamW with faults of the released code.

    Parameters
    ----------
    aliased : bool
        Whether v is multiplied by `aliased_product`.
    default : str, optional
        The format against which the second component of beta2 is taken; None for that of v, which is right.
    rounded : bool
        Whether an update is rounded to the low format before it is added to a master copy.
    """

    aliased: bool = False
    default: str | None = None
    rounded: bool = False

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> AdamWScalars:
        """Return the scalars of a step, with the rest of beta2 as the released code has it."""
        right = super().scalars(roles, strategy, step, rate, decayed=decayed)
        if self.default is None or not isinstance(right.beta2, tuple):
            return right
        rest = self.beta2 - float(mcf.round_to(self.beta2, self.default))
        return right._replace(beta2=(right.beta2[0], roles.second_moment.round(rest)))

    def step(
        self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: AdamWScalars
    ) -> Step:
        """Make one step: that of `adamw`, but for the faults."""
        other = {"second_moment": self.second_moment} if self.aliased else {}
        found = adamw(roles, strategy, state, gradient, scalars, **other)
        if not self.rounded:
            return found
        parameter, extra = move(roles, strategy, state, roles.model.round(found.update))
        return Step(found.state._replace(parameter=parameter, extra=extra), found.update)

    def second_moment(self, ar: Arithmetic, v: Words, gradient: Value, scalars: AdamWScalars) -> Words:
        """Return v moved by a gradient."""
        square = ar.mul(ar.mul(gradient, gradient), scalars.gain2)
        return grow(ar, aliased_product(ar, scalars.beta2, v), square)


#: What the option says that asks for the plain algorithm.
NONE = "none"


def chosen(option: str) -> str:
    """Return the strategy that runs where an option is compared with `NONE` by identity, not by equality.

    A string read from a command line is an object of its own, so what is to be plain is not.
    """
    return "plain" if option is NONE else "collage-light"


#: What goes wrong with v: by name, the arguments of `Faulty`.
FAULTS: Mapping[str, Mapping[str, Any]] = {
    "right": {},
    "aliased": {"aliased": True},
    "default": {"default": "float32"},
    "both": {"aliased": True, "default": "float32"},
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
    Training("rates of aliased", 0.95, (RIGHT, REFERENCE), {}, "aliased"),
)


# -- what they do to v --------------------------------------------------------------------------------------
@lru_cache
def follow(beta2: float, fault: str, steps: int) -> np.ndarray[Any, Any]:
    """Return v / g^2 of a constant gradient, of every step and significand: the component that is used."""
    strategy = mcf.strategy(RIGHT, "bfloat16")
    roles, hyper = strategy.roles(), Faulty(beta2=beta2, **FAULTS[fault])
    moved = hyper.second_moment if hyper.aliased else hyper.slots[1].average
    v: Words = (np.zeros_like(SIGNIFICANDS),) * 2
    scalars = hyper.scalars(roles, strategy, 1, 1.0, decayed=True)
    history = np.empty((steps, SIGNIFICANDS.size))
    for step in range(steps):
        v = moved(roles.second_moment, v, SIGNIFICANDS, scalars)
        history[step] = v[0]
    return history / SIGNIFICANDS.astype(np.float64) ** 2


def length(beta2: float, fault: str, steps: int) -> np.ndarray[Any, Any]:
    """Return by how much a fault makes updates longer, step by step: sqrt(v right / v), the median."""
    ratio = follow(beta2, "right", steps) / follow(beta2, fault, steps)
    return np.sqrt(np.median(ratio, axis=1))


# -- what they do to a training -----------------------------------------------------------------------------
def train(study: Study, about: Training, seed: int, folder: Path | None) -> mcf.Run:
    """Train the language model; with a folder, from the checkpoint that is there."""
    steps, planned = study.steps[about.beta2], mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
    schedule: mcf.Schedule | RecordedRates = planned
    if about.rates_of is not None:
        rates = np.array([planned.rate(step, steps) for step in range(1, steps + 1)])
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


def rows(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return what each training came to, beside fp32 master weights, by beta2 and by training and strategy."""
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
    found = {}
    for beta2, steps in STEADY.items():
        ends = {fault: follow(beta2, fault, steps)[-1] for fault in FAULTS}
        found[str(beta2)] = {
            fault: [float(v.min()), float(np.median(v)), float(v.max())] for fault, v in ends.items()
        }
    return found


def rounded_update() -> float:
    """Return the relative error of an update of normal numbers that is rounded to bf16."""
    update = np.random.default_rng(0).standard_normal(100_000)
    return mcf.metrics.relative_error(mcf.round_to(update, "bfloat16"), update)


def draw(found: Mapping[str, Mapping[str, list[float]]], runs: Runs) -> None:
    """Draw v under each fault, and what each does to the loss beside the right algorithm."""
    with subplots(2, 2, width=10, height=6.4) as (figure, ((second, aliased), (both, others))):
        _draw_steady(second, found)
        titles = {0.95: (aliased, "aliased"), 0.999: (both, "both")}
        for beta2, (panel, fault) in titles.items():
            label = {"aliased": "the product aliased", "both": "and beta2 against float32"}[fault]
            lines = (
                ("right", RIGHT, "plus, right", "blue", "-"),
                (fault, RIGHT, f"plus, {label}", "vermilion", "-"),
                (f"rates of {fault}", REFERENCE, "fp32 master, its rate\ntimes sqrt(1 / v)", "black", (0, (4, 2))),
            )
            _draw_losses(panel, runs, beta2, lines)
        aliased.set_title("the product aliased, beta2 = .95: all that it gains\nis a longer learning rate")
        both.set_title("aliased, and beta2 against float32,\nbeta2 = .999")
        lines = (
            ("right", "plain", "plain, right", "orange", "-"),
            ("right", chosen(NONE.upper().lower()), "plain, chosen by identity", "vermilion", "-"),
            ("rounded", REFERENCE, "fp32 master,\nupdate rounded first", "sky", "-"),
        )
        _draw_losses(others, runs, 0.999, lines)
        others.set_title("the baseline runs light, and fp32 master weights\nget rounded updates, beta2 = .999")
        figure.suptitle(
            "The released Collage-plus beats fp32 master weights by longer updates, not by precision",
            fontsize=11.5, fontweight="bold", x=0.01, ha="left",
        )  # fmt: skip
        save(figure, FIGURES / "released_code_audit")


def _draw_steady(panel: Any, found: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Draw v / g^2 of a constant gradient by beta2: median, and range of the significands."""
    styles = {
        "right": ("right", "blue", "o"),
        "aliased": ("product aliased", "vermilion", "s"),
        "default": ("beta2 against float32", "purple", "^"),
        "both": ("both", "black", "x"),
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
    panel.set_xticks(range(len(found)), [f"beta2 = {beta2}" for beta2 in found])
    panel.set_title("v / g^2 of a constant gradient, steady:\na third of what it should be, or without end")
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
    label_ends(panel, gap=0.12)


def table() -> str:
    """Return what each fault does, and what a learning rate gives, of each study that was made."""
    made = [study for study in STUDIES.values() if (RESULTS / f"{study.name}.json").exists()]
    return "\n\n".join(_table(read_result(study.name)) for study in made)


def _table(result: dict[str, Any]) -> str:
    found, shown = result["table"], []

    def gap(beta2: str, name: str) -> str:
        row = found[beta2][name]
        return f"{row['difference']:+.4f} +- {row['spread']:.4f}"

    def add(fault: str, does: str, beta2: str, name: str, beside: str) -> None:
        ratio = f"{found[beta2][name]['late_v_ratio']:.3f}"
        row = {"fault": fault, "what it does": does, "beta2": beta2, "v / exact, late": ratio}
        shown.append({**row, "loss minus `fp32-master`": gap(beta2, name), "beside it": beside})

    for beta2 in ("0.95", "0.999"):
        add("none: `collage-plus`", "", beta2, f"right, {RIGHT}", "")
    labels = {"aliased": "the product overwrites its factor", "both": "the same, and beta2 against float32"}
    for beta2, fault in (("0.95", "aliased"), ("0.999", "aliased"), ("0.999", "both")):
        v = result["steady"][beta2][fault][1]
        does = f"v / g^2 is {v:.3g}, not {result['steady'][beta2]['right'][1]:.3g}: updates times {v**-0.5:.2f}"
        rated = f"`{REFERENCE}`, its rate times sqrt(1 / v): {gap(beta2, f'rates of {fault}, {REFERENCE}')}"
        add(labels[fault], does, beta2, f"{fault}, {RIGHT}", rated)
    plain = gap("0.999", "right, plain")
    does = "the baseline runs `collage-light`"
    add("identity of strings", does, "0.999", "right, collage-light", f"`plain` itself: {plain}")
    does = f"each update is off by {result['rounded_update']:.2g}"
    add("update rounded before the master", does, "0.999", f"rounded, {REFERENCE}", "")
    model, seeds = result["settings"]["problem"], len(result["settings"]["seeds"])
    said = ", ".join(f"{steps} steps at beta2 = {beta2}" for beta2, steps in result["steps"].items())
    shape = f"{model['layers']} layers, width {model['width']}, context {model['context']}, batch {model['batch']}"
    return f"{markdown_table(shown)}\n\n{shape}; {said}; {seeds} seeds, the spread is that of paired differences."


def main(arguments: Sequence[str] = ()) -> None:
    """Follow v, train, write the numbers; of the short study the figure, too."""
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
            "versions": first.versions,
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
