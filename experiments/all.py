"""Every experiment in turn, and then the tables of the README from what they measured."""

from __future__ import annotations

from experiments import (
    audit_forecast,
    beta2_expansion,
    collage_options,
    every_p,
    fast_two_sum_map,
    grow_error,
    instructions,
    long_sums,
    precision_curves,
    released_code_audit,
    rounding_points,
    tables,
)


def main() -> None:
    """Run all; of what takes many minutes only the drawing."""
    every_p.main(["--quick"])
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
    audit_forecast.main()
    released_code_audit.main()
    instructions.main()
    tables.main()


if __name__ == "__main__":
    main()
