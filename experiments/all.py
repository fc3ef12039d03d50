"""Every experiment in turn, and then the tables of the README from what they measured."""

from __future__ import annotations

from experiments import (
    audit_forecast,
    beta2_expansion,
    collage_options,
    dqt_bits,
    dqt_published,
    embedding_steps,
    every_p,
    fast_two_sum_map,
    grow_error,
    instructions,
    late_training,
    long_sums,
    lost_update_phase,
    memory_quality,
    own_rates,
    precision_curves,
    precision_law,
    released_code_audit,
    rounding_points,
    sr_random_bits,
    tables,
)


def main() -> None:
    """Run all; of what takes many minutes only the drawing."""
    every_p.main(["--quick"])
    for study in (
        own_rates,
        late_training,
        dqt_published,
        lost_update_phase,
        sr_random_bits,
        memory_quality,
        precision_law,
        embedding_steps,
    ):
        study.draw()
    for experiment in (
        beta2_expansion,
        fast_two_sum_map,
        grow_error,
        long_sums,
        precision_curves,
        rounding_points,
    ):
        experiment.main()
    collage_options.main()
    dqt_bits.main()
    audit_forecast.main()
    released_code_audit.main()
    instructions.main()
    tables.main()


if __name__ == "__main__":
    main()
