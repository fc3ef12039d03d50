"""A figure of certificates: the verdict of each, and how near its worst error comes to the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

from mcfsim.report.plotting import COLOURS, subplots
from mcfsim.theorems.certificate import Certificate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def certificate_figure(certificates: Sequence[Certificate]) -> Iterator[Figure]:
    """Draw a row for each certificate: what was tried, the verdict, and the worst error found.

    The bar is the worst error as a share of the claimed bound, which is at 1. There is none without errors.

    Parameters
    ----------
    certificates : sequence of Certificate

    Yields
    ------
    figure : matplotlib Figure

    Raises
    ------
    ValueError
        If there are none.
    """
    if not certificates:
        raise ValueError("no certificate, no figure")
    with subplots(1, 1, width=10, height=1.3 + 0.5 * len(certificates)) as (figure, ((panel,),)):
        for place, item in enumerate(certificates):
            share = item.worst and float(Fraction(item.worst.constant) / Fraction(item.worst.bound))
            colour = COLOURS["vermilion" if item.violations else "blue"]
            panel.barh(place, share or 0, color=colour, height=0.5)
            found = "no error is measured" if share is None else f"worst error {share:.4f} of the bound"
            said = f"{item.verdict}: {item.violations:,} of {item.applicable:,} cases violate it; {found}"
            panel.text(0.01, place - 0.42, said, fontsize=8.5, color=colour if item.violations else "black")
        panel.axvline(1, color=COLOURS["black"], linewidth=1)
        labels = [f"{item.theorem}\n{item.format}, {item.rounding}" for item in certificates]
        panel.set_yticks(range(len(certificates)), labels)
        panel.set(ylim=(len(certificates) - 0.4, -0.7), xlabel="worst error found, as a share of the bound")
        panel.grid(axis="y", visible=False)
        panel.set_axisbelow(True)
        violated = sum(item.violations > 0 for item in certificates)
        figure.suptitle(f"{len(certificates)} tried, {violated} violated", x=0.01, ha="left")
        yield figure
