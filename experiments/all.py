"""Every experiment in turn, and then the tables of the README from what they measured."""

from __future__ import annotations

from experiments import beta2_expansion, collage_options, long_sums, precision_curves, tables


def main() -> None:
    """Run all."""
    for experiment in (beta2_expansion, long_sums, precision_curves, collage_options, tables):
        experiment.main()


if __name__ == "__main__":
    main()
