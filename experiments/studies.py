"""The longer sweeps, which take too many minutes for `make figures`, and then the tables.

Each goes on where it was stopped, from its journal in the folder ``build``.
"""

from __future__ import annotations

from experiments import assignment, embedding_steps, memory_quality, precision_law, tables

#: What trains, in turn.
STUDIES = (memory_quality.study, precision_law.study, embedding_steps.main, assignment.main)


def main() -> None:
    """Make all."""
    for study in STUDIES:
        study()
    tables.main()


if __name__ == "__main__":
    main()
