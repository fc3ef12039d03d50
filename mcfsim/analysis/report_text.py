"""The text of a report: how large errors are, which expressions cause them, and what bounds say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mcfsim.analysis.expressions import Expression

if TYPE_CHECKING:
    from mcfsim.analysis.error_report import Report

#: Expressions that are shown.
_ROWS = 8


def report_text(report: Report, rows: int = _ROWS) -> str:
    """Return a report as lines of text."""
    question, truth = report.question, report.truth
    lines = [
        f"{question.program.name}, {report.format}, {question.rounding.mode}: "
        f"{len(question.program.steps)} operations, {question.inputs.size} inputs ({question.inputs})"
    ]
    if truth is not None:
        lines.append(
            f"truth    {truth.compared} of {truth.inputs} errors compared with mpmath, {truth.bits} bits: "
            f"{truth.off:.1g} off"
        )
        if truth.constants > 2.0**-60:
            lines.append(
                f"         constants rounded into the format change exact results by up to "
                f"{truth.constants / report.u:.3g} u: the program is not the function"
            )
    lines.append(f"error    {error_text(report)}")
    shown = [row for row in report.blame() if row.rms > 0 or row.nonfinite or row.stagnant or row.turned]
    for place, row in enumerate(shown[:rows]):
        where = row.expression
        name, line = (where.text, where.where) if isinstance(where, Expression) else (where, "")
        notes = [
            f"{count} {what}"
            for count, what in (
                (row.nonfinite, "first infinite or NaN"),
                (row.stagnant, "sums that stay"),
                (row.turned, "choices turned"),
            )
            if count
        ]
        explains = f"{100 * row.explains:5.0f} %" if np.isfinite(row.explains) else "      -"
        lines.append(
            f"{'blame' if not place else '':8s} rms {row.rms:8.3g} u   explains {explains}   "
            f"{name}   {line}{'   ' + ', '.join(notes) if notes else ''}".rstrip()
        )
    if len(shown) > rows:
        lines.append(f"         and {len(shown) - rows} more")
    for place, bound in enumerate(report.bounds()):
        holds = "holds" if not bound.exceeded else f"exceeded by {bound.exceeded} of {bound.inputs}"
        head = "" if place else "bounds"
        lines.append(
            f"{head:8s} {bound.name}: {bound.over:.3g} times the error in the median; {holds} ({bound.claim})"
        )
    return "\n".join(lines)


def error_text(report: Report) -> str:
    """Return the sizes of errors in one line, in units of u."""
    u, ratio = report.u, report.ratio
    known = ratio[np.isfinite(ratio)]
    text = f"median {report.median() / u:.3g} u, largest {report.worst() / u:.3g} u"
    if known.size:
        text += f"; / (cond u) largest {known.max():.3g}"
    turned = int(np.count_nonzero(report.columns["turned"]))
    text += f"; {turned} inputs with a turned choice" if turned else ""
    if lost := int(np.count_nonzero(~report.finite)):
        text += f"; {lost} infinite or NaN"
    if report.zeros:
        text += f"; {report.zeros} with an exact result of 0, which has no relative error"
    return text
