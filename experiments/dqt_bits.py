"""Train with weights that are integers of 2 to 8 bits and a scale, without a master copy.

Direct quantised training (Zhao et al., arXiv 2412.04787) beside BitNet b1.58, which keeps a master copy, and
beside fp32 master weights; weights are rounded at random, and to nearest. Every strategy starts from the same
weights and sees the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.common import FIGURES, RESULTS, read_result, resumed, write_result
from mcfsim.formats.grids import grid
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.stored import FLOAT8_GROUPS, Reach
from mcfsim.optim.strategies import LOW, Stored
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table

INTEGERS = ("ternary", *(f"int{bits}" for bits in range(2, 9)))
SEEDS = (0, 1, 2)
STEPS, LONG = 60, 400
RATE = 5e-4
HYPER = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.01)
#: The tensor whose first step is compared with what is asked: its start has a standard deviation of .02.
TENSOR = "layer0.mlp.up"
BITNET, REFERENCE = "bitnet", "fp32-master"
RANDOM, NEAREST, WIDE = "at random", "to nearest", "wide start"


def changed(name: str, label: str, **fields: Any) -> mcf.Strategy:
    """Return a strategy on a grid under another name, with other fields of its grid."""
    chosen = mcf.GRID_STRATEGIES[name]
    placed: Any = chosen.parameter.grid
    return replace(
        chosen, name=f"{name}, {label}", parameter=replace(chosen.parameter, grid=replace(placed, **fields))
    )


def with_states(name: str, label: str, stored: Stored) -> mcf.Strategy:
    """Return a strategy on a grid whose moments are stored otherwise."""
    return replace(mcf.GRID_STRATEGIES[name], name=f"{name}, {label}", m=stored, v=stored)


#: What `make figures` trains: every grid by both roundings, and the options it is compared with.
BITS: tuple[mcf.Strategy, ...] = (
    *(mcf.GRID_STRATEGIES[f"dqt-{name}"] for name in INTEGERS),
    *(changed(f"dqt-{name}", NEAREST, rounding="nearest_even") for name in INTEGERS),
    changed("dqt-int8", WIDE, start=Reach.ABSMAX),
    mcf.GRID_STRATEGIES[BITNET],
    mcf.STRATEGIES[REFERENCE],
)


class Run(NamedTuple):
    """What is trained: a strategy, activations of so many bits if not 0, and an optimizer at a rate."""

    strategy: mcf.Strategy
    bits: int = 0
    hyper: Any = HYPER
    rate: float = RATE

    @property
    def label(self) -> str:
        """The name of the run in tables."""
        activations = f", int{self.bits} activations" if self.bits else ""
        return self.strategy.name + activations + (f", {ADAFACTOR}" if self.hyper is BY_MEANS else "")


#: Adafactor's rate is relative to a tensor's size, a deviation of .02: so updates are as long as AdamW's.
ADAFACTOR, BY_MEANS, RELATIVE = "Adafactor", Adafactor(weight_decay=HYPER.weight_decay), RATE / 0.02
#: What `make studies` trains for longer: scales, starts, states, activations and optimizers.
STUDIES = (
    Run(mcf.GRID_STRATEGIES["dqt-ternary"]),
    Run(mcf.GRID_STRATEGIES["dqt-int8"]),
    Run(mcf.GRID_STRATEGIES["dqt-int8"], bits=8),
    Run(changed("dqt-int8", "max-abs scale", reach=Reach.ABSMAX)),
    Run(changed("dqt-int8", "mean scale", reach=Reach.ABSMEAN)),
    Run(changed("dqt-int8", "fixed scale", reach=Reach.FIXED)),
    Run(changed("dqt-int8", WIDE, start=Reach.ABSMAX)),
    Run(changed("dqt-int8", "wide start, max-abs scale", start=Reach.ABSMAX, reach=Reach.ABSMAX)),
    Run(with_states("dqt-int8", "bf16 states", Stored(LOW))),
    Run(with_states("dqt-int8", "fp8 states", Stored("float32", scaled=FLOAT8_GROUPS))),
    Run(mcf.GRID_STRATEGIES["dqt-ternary"], hyper=BY_MEANS, rate=RELATIVE),
    Run(mcf.GRID_STRATEGIES["dqt-int8"], hyper=BY_MEANS, rate=RELATIVE),
    Run(mcf.GRID_STRATEGIES[BITNET]),
    Run(mcf.GRID_STRATEGIES[BITNET], bits=8),
    Run(mcf.GRID_STRATEGIES[BITNET], hyper=BY_MEANS, rate=RELATIVE),
    Run(mcf.STRATEGIES[REFERENCE]),
    Run(mcf.STRATEGIES[REFERENCE], hyper=BY_MEANS, rate=RELATIVE),
)


def train(
    strategy: mcf.Strategy, hyper: Any, rate: float, seed: int, steps: int, bits: int, tensor: str
) -> dict[str, Any]:
    """Train one seed under one strategy, at a constant rate, and return what is kept of it.

    Activations are of so many bits, if not 0; a tensor's measures are kept besides those of all.
    """
    run = mcf.simulate(
        mcf.get_problem("language-model", activation_bits=bits),
        hyper,
        strategy,
        steps=steps,
        schedule=mcf.Schedule(peak=rate, warmup=0, final=1.0),
        seed=seed,
        low="bfloat16",
        record_every=steps // 6,
        progress=False,
    )
    series, measures = run.series[strategy.name], ("changed", "at_ends", "grid_size")
    kept = ["loss", *(name for name in measures if name in series)]
    kept += [f"{name}/{tensor}" for name in measures if name in series]
    return {
        "steps": run.steps.tolist(),
        **{name: series[name].tolist() for name in kept},
        **run.results[strategy.name],
        "settings": run.settings,
    }


def clipped(integers: str, within: float = 0.0) -> float:
    """Return the share of normal weights beyond the ends of their grid at the start.

    The largest integer Q stands for the mean magnitude, sqrt(2 / pi) standard deviations, and the least for
    -low / Q times as much: ``Phi(-c) + Phi(c low / Q)``. Ends may lie so far within the grid's.
    """
    found, mean = grid(integers), math.sqrt(2 / math.pi)
    ends = (end - within for end in (found.high, -found.low))
    return sum(math.erfc(mean * end / found.high / math.sqrt(2)) / 2 for end in ends)


def at_ends(integers: str) -> float:
    """Return the share of normal weights that the start rounds to the ends of their grid."""
    return clipped(integers, 0.5)


def expected(integers: str, asked: float) -> float:
    """Return the share of weights that change in a first step, given in distances between neighbours.

    Each changes with that probability, but one at an end cannot leave the grid, as half of them would.
    """
    return min(1.0, asked) * (1 - at_ends(integers) / 2)


def asked(integers: str, seed: int) -> float:
    """Return the first step's update, the rate, in distances between neighbours, in `TENSOR`."""
    weights = mcf.round_to(mcf.get_problem("language-model").initial_parameters(seed)[TENSOR], "bfloat16")
    return RATE * grid(integers).high / float(np.abs(weights.astype(np.float64)).mean())


def summarize(runs: list[dict[str, Any]], references: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds; for losses and quotients also the sample standard deviation."""
    losses = np.array([run["validation_loss"] for run in runs])
    quotients = losses / [run["validation_loss"] for run in references] - 1
    found: dict[str, Any] = {
        "bytes_per_parameter": runs[0]["bytes_per_parameter"],
        "losses": losses.tolist(),
        "validation_loss": float(losses.mean()),
        "spread": float(losses.std(ddof=1)),
        "above_bitnet": quotients.tolist(),
        "loss": np.mean([run["loss"] for run in runs], axis=0).tolist(),
    }
    for name in ("changed", "at_ends", "grid_size", *(f"{name}/{TENSOR}" for name in ("changed", "at_ends"))):
        if name in runs[0]:
            found[name] = np.mean([run[name] for run in runs], axis=0).tolist()
    for name in ("clipped_at_start", "ternary_validation_loss"):
        if name in runs[0]:
            found[name] = float(np.mean([run[name] for run in runs]))
    if "ternary_validation_loss" in runs[0]:
        found["ternary_losses"] = [run["ternary_validation_loss"] for run in runs]
    return found


def make(name: str, given: Sequence[Run], steps: int) -> dict[str, Any]:
    """Make the runs of all seeds, except those in the journal, and return their summaries."""
    jobs = [(seed, run) for seed in SEEDS for run in given]
    made = resumed(
        name,
        train,
        [(run.strategy, run.hyper, run.rate, seed, steps, run.bits, TENSOR) for seed, run in jobs],
    )
    runs: dict[str, list[dict[str, Any]]] = {}
    for (_, run), result in zip(jobs, made, strict=True):
        runs.setdefault(run.label, []).append(result)
    first = made[0]
    kept = ("problem", "optimizer", "schedule", "low", "clip")
    return {
        "settings": {**{label: first["settings"][label] for label in kept}, "steps": steps, "seeds": SEEDS},
        "recorded": first["steps"],
        "table": {label: summarize(group, runs[BITNET]) for label, group in runs.items()},
    }


def bits_table() -> str:
    """Return what each grid loses, rounded at random and to nearest."""
    result = read_result("dqt_bits")
    found, rows = result["table"], []
    for integers in INTEGERS:
        row, still = found[f"dqt-{integers}"], found[f"dqt-{integers}, {NEAREST}"]
        rows.append(
            {
                "integers": integers,
                "bytes": f"{row['bytes_per_parameter']:g}",
                "clipped at the start": f"{row['clipped_at_start']:.1%} ({clipped(integers):.1%})",
                "asked": f"{result['asked'][integers]:.2%}",
                "expected": f"{expected(integers, result['asked'][integers]):.2%}",
                "changed": f"{row[f'changed/{TENSOR}'][0]:.2%}",
                "all tensors, first and last step": f"{row['changed'][0]:.1%}, {row['changed'][-1]:.1%}",
                "the same to nearest": f"{still['changed'][0]:.1%}, {still['changed'][-1]:.1%}",
                "loss": f"{row['validation_loss']:.3f} +- {row['spread']:.3f}",
                "loss to nearest": f"{still['validation_loss']:.3f} +- {still['spread']:.3f}",
                "in ternary": f"{row['ternary_validation_loss']:.3f}"
                if "ternary_validation_loss" in row
                else "",
            }
        )
    others = (f"dqt-int8, {WIDE}", BITNET, REFERENCE)
    words = "; ".join(
        f"`{name}` {found[name]['validation_loss']:.3f} +- {found[name]['spread']:.3f} "
        f"({found[name]['bytes_per_parameter']:g} bytes)"
        for name in others
    )
    return f"{markdown_table(rows)}\n\nBeside them: {words}."


def long_table() -> str:
    """Return what scales, starts and states are worth in a longer run."""
    if not (RESULTS / "dqt_long.json").exists():
        return "Not trained yet; `make studies` does."
    rows = []
    for name, row in read_result("dqt_long")["table"].items():
        grown = f"{row['grid_size'][-1]:.2f}" if "grid_size" in row else ""
        ternary = f"{row['ternary_validation_loss']:.3f}" if "ternary_validation_loss" in row else ""
        against = paired.percent(row["above_bitnet"])
        rows.append(
            {
                "strategy": name,
                "bytes": f"{row['bytes_per_parameter']:g}",
                "grid, end / start": grown,
                "changed, last step": f"{row['changed'][-1]:.1%}" if "changed" in row else "",
                "validation loss": f"{row['validation_loss']:.3f} +- {row['spread']:.3f}",
                "against `bitnet` (95 % interval)": "" if name == BITNET else against,
                "in ternary": ternary,
            }
        )
    return markdown_table(rows)


def draw(result: Mapping[str, Any]) -> None:
    """Draw how many weights change, and the loss, by the integers of the grid."""
    found, places = result["table"], range(len(INTEGERS))
    names = ["3\nvalues", *(f"{bits}\nbits" for bits in range(2, 9))]
    kinds = (
        (RANDOM, "dqt-{}", COLOURS["blue"], "o"),
        (NEAREST, f"dqt-{{}}, {NEAREST}", COLOURS["vermilion"], "s"),
    )
    with subplots(1, 2, width=10, height=3.9) as (figure, axes):
        shares, losses = axes[0]
        shares.plot(
            places, [expected(name, result["asked"][name]) for name in INTEGERS],
            color=COLOURS["grey"], linestyle="--", label="expected of rounding at random",
        )  # fmt: skip
        for label, name, colour, marker in kinds:
            rows = [found[name.format(integers)] for integers in INTEGERS]
            shares.plot(
                places,
                [row[f"changed/{TENSOR}"][0] for row in rows],
                color=colour,
                marker=marker,
                label=label,
            )
            losses.errorbar(
                places, [row["validation_loss"] for row in rows], [row["spread"] for row in rows],
                color=colour, marker=marker, label=f"rounded {label}",
            )  # fmt: skip
        wide = found[f"dqt-int8, {WIDE}"]
        losses.plot(
            [places[-1]], [wide["validation_loss"]],
            color=COLOURS["blue"], marker="*", markersize=11, linestyle="", label="8 bits, up to the largest",
        )  # fmt: skip
        for name, colour, label in (
            (BITNET, "green", "BitNet: 3 values, fp32 master"),
            (REFERENCE, "black", "fp32 master"),
        ):
            losses.axhline(found[name]["validation_loss"], color=COLOURS[colour], linestyle=":", label=label)
        shares.set_title("share of weights that change in step 1")
        steps = result["settings"]["steps"]
        losses.set_title(f"loss (nats) after {steps} steps, all on grids, tied embedding too")
        losses.set_ylim(3.1, 6.3)
        for panel, columns in ((shares, 1), (losses, 2)):
            panel.set_xticks(places, names)
            panel.legend(fontsize=8, ncols=columns, loc="upper left")
        message(
            figure,
            "Without a master copy, weights of few bits learn when rounded at random, not to nearest",
        )
        save(figure, FIGURES / "dqt_bits")


def main() -> None:
    """Train on every grid, summarize and draw."""
    result = make("dqt_bits", [Run(strategy) for strategy in BITS], STEPS)
    result["asked"] = {name: float(np.mean([asked(name, seed) for seed in SEEDS])) for name in INTEGERS}
    write_result("dqt_bits", result)
    draw(read_result("dqt_bits"))


def study() -> None:
    """Train for longer, by other scales, starts and states."""
    write_result("dqt_long", make("dqt_long", STUDIES, LONG))


if __name__ == "__main__":
    main()
