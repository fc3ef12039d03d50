"""Run every experiment, several at a time, and then make the tables of the README from the results."""

from __future__ import annotations

from importlib import import_module

from experiments import collage_options, dqt_bits, precision_curves, released_code_audit, tables
from experiments.common import in_processes

#: Experiments that compute in one process, and the function that is run of each, the longest first. Of those
#: that take many minutes, only the drawing is run.
ALONE = (
    ("rounding_points", "main"),
    ("long_sums", "main"),
    ("beta2_expansion", "main"),
    ("lost_directions", "main"),
    ("reduced_gradients", "main"),
    ("muon_losses", "draw"),
    ("stalled_averages", "draw"),
    ("precision_law", "draw"),
    ("audit_forecast", "main"),
    ("every_p", "main", ["--quick"]),
    ("instructions", "main"),
    ("lost_update_phase", "draw"),
    ("late_training", "draw"),
    ("fast_two_sum_map", "main"),
    ("floors", "main"),
    ("memory_quality", "draw"),
    ("grow_error", "main"),
    ("sr_random_bits", "draw"),
    ("dqt_published", "draw"),
    ("own_rates", "draw"),
    ("embedding_steps", "draw"),
    ("switch", "draw"),
    ("adapters", "draw"),
    ("gemm_group", "main"),
    ("gemm_promotion", "draw"),
    ("gemm_losses", "draw"),
    ("gemm_underflow", "draw"),
    ("gemm_bias", "draw"),
    ("gemm_noise", "draw"),
)
#: Experiments that share their runs among processes.
SHARED = (collage_options, precision_curves, dqt_bits, released_code_audit)


def carried_out(name: str, part: str, *arguments: list[str]) -> None:
    """Run a part of an experiment."""
    getattr(import_module(f"experiments.{name}"), part)(*arguments)


def main() -> None:
    """Run all."""
    in_processes(carried_out, ALONE)
    for experiment in SHARED:
        experiment.main()
    tables.main()


if __name__ == "__main__":
    main()
