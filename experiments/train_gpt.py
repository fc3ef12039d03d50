"""Train a small GPT in PyTorch under every option of Collage, and compare with fp32 master weights.

Every strategy starts from the same weights and sees the same batches, so differences of losses are paired.
Runs that are in the result file are not made again. On other machines PyTorch multiplies matrices by other
kernels, and the digits differ: each table is from one machine.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.common import RESULTS, in_processes, processor, read_result, write_result
from mcfsim.models.audit import audit
from mcfsim.models.plan import Plan
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.installed import versions

if TYPE_CHECKING:
    from experiments.gpt_training import Settings

STRATEGIES = ("plain", "fp32-optim", "kahan", "collage-light", "collage-plus", "fp32-master")
REFERENCE = "fp32-master"
#: Steps by beta2.
STEPS = {0.999: 1200, 0.95: 800}
#: Result files that tables are made from: of all strategies on a CPU, and of a larger model on a GPU.
NAME, LARGE = "train_gpt", "train_gpt_100M"
#: The text in place of a table that has no result yet.
NOT_RUN = "**Not run yet**: `python -m experiments.train_gpt` takes a quarter of an hour on two cores."
NOT_MEASURED = (
    "**Not measured**: no GPU has trained this model yet. On a machine with one:\n\n"
    "```sh\npython -m experiments.train_gpt --device cuda --size 100M --precision bfloat16 --forecast \\\n"
    "    --strategies plain collage-light collage-plus fp32-master --seeds 0 --beta2 .95 --steps 2000 \\\n"
    "    --every 50 --name train_gpt_100M\n```"
)
#: How forward and backward pass are computed, by precision.
PASSES = {
    "float32": "forward and backward pass in binary32 on the bfloat16 weights, gradients rounded to bfloat16",
    "bfloat16": "forward and backward pass in bfloat16",
}


def settings_of(given: argparse.Namespace) -> list[Settings]:
    """Return the trainings that are asked for."""
    from experiments.gpt_training import Settings

    betas = STEPS if given.beta2 is None else [given.beta2]
    return [
        Settings(
            strategy, beta2, seed, STEPS[beta2] if given.steps is None else given.steps,
            given.size, given.precision, given.device, given.every,
        )
        for beta2, seed, strategy in product(betas, given.seeds, given.strategies)
    ]  # fmt: skip


def tools() -> dict[str, str]:
    """Return the versions of the software that computes."""
    return {**versions(), "torch": version("torch")}


def common_settings(first: Settings) -> dict[str, Any]:
    """Return what all trainings have in common, as JSON data: the model, its text and the machine."""
    from experiments.gpt import SIZES, text
    from experiments.gpt_training import model_of

    size = SIZES[first.size]
    kept = ("size", "precision", "device", "every")
    return {
        **{label: getattr(first, label) for label in kept},
        "shape": dict(size._asdict()),
        "parameters": sum(p.numel() for p in model_of(first).parameters()),
        "text": text(size.modules).source,
        "machine": machine(first.device),
    }


def machine(device: str) -> str:
    """Return the name of the device that computes."""
    if not device.startswith("cuda"):
        return processor()
    import torch

    return str(torch.cuda.get_device_name(device))


def named(settings: Settings) -> dict[str, Any]:
    """Return the settings that distinguish a run from the others of a result file."""
    return {label: getattr(settings, label) for label in ("strategy", "beta2", "steps", "seed")}


def key(settings: Settings) -> str:
    """Return the name of a run in the result file."""
    return "{strategy}, beta2 = {beta2}, {steps} steps, seed {seed}".format(**named(settings))


def made(name: str, about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the runs, and forecasts, that a result file has; none if there is no file.

    Raises
    ------
    ValueError
        If they are of other settings, or of other versions of what computes.
    """
    if not (RESULTS / f"{name}.json").exists():
        return {"forecast": {}, "runs": {}}
    result = read_result(name)
    for part, ours in about.items():
        theirs = result[part]
        asked = ours if part == "versions" else {*ours, *theirs}  # a file names the versions of more
        if other := sorted(label for label in asked if ours.get(label) != theirs.get(label)):
            raise ValueError(
                f"{RESULTS / name}.json has other {part}: {', '.join(other)} differ; "
                "remove it, or take another --name"
            )
    return {part: result[part] for part in ("forecast", "runs")}


def run(settings: Settings) -> dict[str, Any]:
    """Make one training, on one thread, which sums in one order."""
    import torch

    from experiments.gpt_training import train

    torch.set_num_threads(1)
    return train(settings)


def forecast_stops(settings: Settings) -> dict[str, int]:
    """Return the step at which each tensor that stops is forecast to: by the audit of its start.

    Nothing is known of the updates but the learning rates and betas.
    """
    from safetensors.torch import save_file

    from experiments.gpt_training import SCHEDULE, STOPPED, model_of

    low = mcf.get_format("bfloat16")
    plan = Plan(
        mcf.AdamW(beta2=settings.beta2),
        SCHEDULE,
        settings.steps,
        (mcf.strategy(settings.strategy, low),),
        stopped=STOPPED,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({name: p.detach().cpu() for name, p in model_of(settings).named_parameters()}, path)
        found = audit(scan(open_weights(path), 1024), plan, low)
    stops = {tensor.name: tensor.found[settings.strategy].stops for tensor in found.tensors}
    return {name: step for name, step in stops.items() if step is not None}


def summary(result: Mapping[str, Any], beta2: float, strategy: str) -> dict[str, Any] | None:
    """Return means over the seeds, and differences of losses that are paired; None if there is no run."""
    runs = [found for found in result["runs"].values() if found["beta2"] == beta2]
    others = {(found["steps"], found["seed"]): found for found in runs if found["strategy"] == REFERENCE}
    ours = [found for found in runs if found["strategy"] == strategy]
    if not ours:
        return None
    measures = ("validation_loss", "lost", "late_lost", "normalized_edq", "late_normalized_edq")
    pairs = [(found, others.get((found["steps"], found["seed"]))) for found in ours]
    return {
        **{label: float(np.mean([found[label] for found in ours])) for label in measures},
        "differences": [a["validation_loss"] - b["validation_loss"] for a, b in pairs if b is not None],
    }


def against_reference(differences: Sequence[float]) -> str:
    """Return a mean, and of several differences its 95 % interval."""
    if len(differences) > 1:
        return paired.shown(differences)
    return "".join(f"{number:+.4f}" for number in differences)


def table(name: str = NAME) -> str:
    """Return what each option costs and loses, for every beta2."""
    if not (RESULTS / f"{name}.json").exists():
        return NOT_RUN
    result = read_result(name)
    betas = dict.fromkeys(found["beta2"] for found in result["runs"].values())
    rows = []
    for beta2, strategy in product(sorted(betas, reverse=True), STRATEGIES):
        found = summary(result, beta2, strategy)
        if found is None:
            continue
        edq = f"{found['normalized_edq']:.4f} ({found['late_normalized_edq']:.4f})"
        rows.append(
            {
                "option": f"`{strategy}`",
                "bytes": f"{mcf.strategy(strategy).bytes_per_parameter:g}",
                "beta2": f"{beta2}",
                "lost arithmetic (late)": f"{found['lost']:.3f} ({found['late_lost']:.3f})",
                "normalised EDQ (late)": edq,
                "validation loss": f"{found['validation_loss']:.4f}",
                "minus `fp32-master`": against_reference(found["differences"])
                if strategy != REFERENCE
                else "",
            }
        )
    return f"{markdown_table(rows)}\n\n{described(result)}"


def described(result: Mapping[str, Any]) -> str:
    """Return a sentence that says what a table shows, and where it was made."""
    about, tools, runs = result["settings"], result["versions"], list(result["runs"].values())
    shape = about["shape"]
    lengths = dict.fromkeys(f"{run['steps']} steps at beta2 = {run['beta2']}" for run in runs)
    parameters = f"{about['parameters']:,}".replace(",", " ")
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
    return (
        f"{parameters} parameters: {shape['layers']} layers, width {shape['width']}, context "
        f"{shape['context']}, batch {shape['batch']}; {PASSES[about['precision']]}; {', '.join(lengths)}; "
        f"seeds {seeds}. Made on {about['machine']} by torch {tools['torch']}, Python {tools['python']}; the "
        f"text is {about['text']['description']}, SHA-256 {about['text']['digest'][:16]}..."
    )


def stops_table(name: str = LARGE) -> str:
    """Return when tensors of a kind were forecast to stop, and when they did, under each strategy."""
    if not (RESULTS / f"{name}.json").exists():
        return NOT_MEASURED
    result = read_result(name)
    rows = []
    for label, forecast in result["forecast"].items():
        if (run := result["runs"].get(label)) is None:  # not made yet
            continue
        kinds: dict[str, list[str]] = {}
        for tensor in dict.fromkeys([*forecast, *run["stops"]]):
            kinds.setdefault(re.sub(r"\.\d+\.", ".*.", tensor), []).append(tensor)
        for kind, tensors in kinds.items():
            both = [x for x in tensors if x in forecast and x in run["stops"]]
            ratios = [forecast[x] / run["stops"][x] for x in both]
            rows.append(
                {
                    "strategy": f"`{run['strategy']}`",
                    "tensors": f"`{kind}`",
                    "stop, forecast": _steps([forecast[x] for x in tensors if x in forecast]),
                    "stop, trained": _steps([run["stops"][x] for x in tensors if x in run["stops"]]),
                    "forecast / trained": f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
                }
            )
    return "\n\n".join([table(name), markdown_table(rows) if rows else "No tensor stops."])


def _steps(found: Sequence[int]) -> str:
    """Return how many tensors stop, and from which step to which."""
    return f"{len(found)}: step {min(found)} to {max(found)}" if found else "none"


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m experiments.train_gpt")
    parser.add_argument("--size", default="116k", choices=("tiny", "116k", "100M"), help="of the model")
    parser.add_argument("--device", default="cpu", help="of PyTorch: cpu, cuda")
    parser.add_argument(
        "--precision", default="float32", choices=("float32", "bfloat16"), help="of forward and backward pass"
    )
    parser.add_argument("--beta2", type=float, help="one alone; by default .999 and .95")
    parser.add_argument("--steps", type=int, help="by default 1200 at beta2 = .999, 800 at .95")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--every", type=int, default=20, help="steps between two that are measured")
    parser.add_argument("--forecast", action="store_true", help="beside when tensors stop, by the audit")
    parser.add_argument("--name", default=NAME, help="of the result file")
    given = parser.parse_args(arguments)
    if given.steps is None and given.beta2 is not None and given.beta2 not in STEPS:
        parser.error(f"--beta2 {given.beta2} needs --steps; only {', '.join(map(str, STEPS))} have a length")
    return given


def main(arguments: Sequence[str] = ()) -> None:
    """Make the runs that the result file lacks, and write it after each of them."""
    given = options(arguments)
    if find_spec("torch") is None:
        print("experiments.train_gpt is skipped: it needs PyTorch, pip install 'mcfsim[torch]'")
        return
    jobs = settings_of(given)
    about = {"settings": common_settings(jobs[0]), "versions": tools()}
    found = made(given.name, about)
    if given.forecast:
        found["forecast"] |= {
            key(job): forecast_stops(job) for job in jobs if key(job) not in found["forecast"]
        }

    def keep(job: tuple[Settings], result: dict[str, Any]) -> None:
        found["runs"][key(job[0])] = {**named(job[0]), **result}
        write_result(given.name, about | {part: dict(sorted(rows.items())) for part, rows in found.items()})

    missing = [(job,) for job in jobs if key(job) not in found["runs"]]
    if given.device == "cpu":
        in_processes(run, missing, keep)
    else:
        for job in missing:
            keep(job, run(*job))
    print(table(given.name))


if __name__ == "__main__":
    main(sys.argv[1:])
