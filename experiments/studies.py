"""Run the longer sweeps, which take too many minutes for `make figures`, and then make the tables.

Each sweep continues where it was stopped; see `experiments.common.resumed`.
"""

from __future__ import annotations

from experiments import (
    adapters,
    assignment,
    best_rates,
    dqt_bits,
    dqt_published,
    dqt_tensors,
    embedding_steps,
    first_moment,
    fpbench_errors,
    gemm_bias,
    gemm_losses,
    gemm_noise,
    gemm_promotion,
    gemm_underflow,
    late_training,
    lost_update_phase,
    memory_quality,
    muon_losses,
    own_rates,
    posit_quire,
    precision_law,
    real_audit,
    reduced_runs,
    replicas,
    scheme_equivalence,
    sr_random_bits,
    stalled_averages,
    strategy_losses,
    switch,
    tables,
    unit_monotonicity,
)

#: What runs, in turn.
STUDIES = (
    lost_update_phase.study,
    scheme_equivalence.study,
    sr_random_bits.study,
    replicas.study,
    dqt_bits.study,
    dqt_tensors.study,
    first_moment.study,
    best_rates.study,
    own_rates.study,
    strategy_losses.study,
    late_training.study,
    dqt_published.study,
    posit_quire.main,
    fpbench_errors.main,
    memory_quality.study,
    precision_law.study,
    embedding_steps.main,
    assignment.main,
    adapters.study,
    real_audit.study,
    switch.study,
    stalled_averages.study,
    muon_losses.study,
    reduced_runs.study,
    unit_monotonicity.study,
    gemm_promotion.main,
    gemm_losses.study,
    gemm_underflow.study,
    gemm_bias.study,
    gemm_noise.study,
)


def main() -> None:
    """Make all."""
    for study in STUDIES:
        study()
    tables.main()


if __name__ == "__main__":
    main()
