"""The longer sweeps, which take too many minutes for `make figures`, and then the tables.

Each goes on where it was stopped, see `experiments.common.resumed`.
"""

from __future__ import annotations

from experiments import dqt_bits, tables

#: What trains, in turn.
STUDIES = (dqt_bits.study,)


def main() -> None:
    """Make all."""
    for study in STUDIES:
        study()
    tables.main()


if __name__ == "__main__":
    main()
