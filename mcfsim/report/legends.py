"""What the headings and words of the printed tables mean: under the tables, and in each command's help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Legend = Mapping[str, str]

FORMATS: Legend = {
    "p": "significand bits, the implicit one included",
    "emin, emax": "exponents of the smallest normal and of the largest number",
    "max, smallest": "rounded to 6 digits",
    "u": "unit roundoff, the largest relative error of rounding to nearest",
    "-0": "whether the format has a negative zero",
}
INSPECT: Legend = {
    "relative error": "(rounded - number) / |number|, to 6 digits",
    "error in ulp": "the same difference in units in the last place of the number",
    "below, above": "the next values of the format, their codes in parentheses",
    "ulp": "distance of the values there, exactly, or about what it is in decimal",
    "components": "values of the format, each of them what the ones before it leave, rounded",
    "residual": "number - sum of the components, to 17 digits",
    "-": "there is none",
}
PLAN: Legend = {
    "values": "how an operation on values of the format is carried out",
    "reals": "the same with a real scalar that is no value",
    "native": "in the carrier, and rounded into the format",
    "wide": "in binary64, and rounded into the format",
    "exact": "in binary64, which holds the result, and rounded",
    "sticky": "in binary64 with what it lost, made odd, and rounded",
    "refused": "not at all",
}
COST: Legend = {
    "operands": "whether all are values of the format, or one is a real scalar",
    "way": "how the operation is carried out, before its one rounding",
    "native": "in the carrier",
    "wide": "in binary64",
    "exact": "in binary64, which holds the result; a sign or a rounding alone, in the carrier",
    "sticky": "in binary64 with what it lost, made odd",
    "exact within, sticky within": "the same in the carrier",
    "refused": "not at all",
    "depth": "operations that follow one another on the longest way to a result",
    "live registers": "values that are wanted at once, at the most",
    "random words": "one for each operation that rounds at random; drawn before, by a loop of their own that "
    "is not counted",
    "machine": "operations of the generated line, a comparison counted for what it compares; numbers "
    "taken for their codes are left out",
    "bytes in carriers": "each value as a float32 or float64 number",
    "bytes in codes": "each value in the bits of its format",
}
NETWORK: Legend = {
    "●": "a value is taken",
    "○": "the same as subtrahend, as divisor or as an fma's addend",
    "RN, RU, RD, RZ, RO, SR": "rounding to nearest, up, down, toward zero, to odd, at random",
    "word0 ...": "the random word by which a result is rounded",
}
SIMULATE: Legend = {
    "late": "mean over the last fifth of the recorded steps",
    "lost": "share of the parameters that were to change and did not",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that was asked for and the "
    "change E that came of it: 1 if nothing is lost",
    "v / exact": "median ratio of the stored second moment to that of the same gradients in binary64",
    "one-step error": "||E - exact update|| / ||exact update||",
    "distance to exact": "||parameters - those of the exact run|| / ||those||",
    "minus fp32-master": "difference of the validation losses",
    "-": "not measured",
}
REPLAY: Legend = {
    **{term: text for term, text in SIMULATE.items() if term != "minus fp32-master"},
    "tensor": "those of each strategy whose EDQ is furthest from 1",
}
MEMORY: Legend = {
    "strategy": "those that cannot be had in the low format are left out",
    "parameter ... master": "bytes of each tensor for one parameter",
    "components": "those of expansions after the first, and a compensation",
    "master": "copy of the parameter to which the update is added",
    "saved": "share of the bytes of fp32 master weights",
    "GiB": "of the whole model, in 2^30 bytes, without activations",
    "-": "not stored",
}
AUDIT: Legend = {
    "lost": "share of the weights that were to change and would not: over the run, each step weighted by its "
    "rate",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that is asked for and the "
    "change E that would come of it, in the same mean: 1 if nothing is lost",
    "least EDQ, of tensor": "that of the worst tensor, and which it is",
    "rms": "root mean square of the weights",
    "stop": "tensors that stop before the end",
    "stops at": "the step from which to the end EDQ stays below --stopped; beyond: from which on weights are "
    "out of the format's range",
    "decay idle": "share of the weights that weight decay alone does not move at the largest rate",
    "v frozen": "share of numbers that beta2 does not move in the second moment: where it is not 0, v cannot "
    "decay. Of numbers that share a scale: where all decay together, to where the largest of them stays",
    "in the mix": "the cheapest strategy that does for the tensor, where that takes less than one for all",
    "enough": "whether EDQ of every tensor reaches --threshold, and v can decay",
    "bytes": "of parameter, gradient, moments and all else that is stored",
}
ASSIGN: Legend = {
    "bytes / parameter": "of parameter, gradient, moments and all else that is stored",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that is asked for and the "
    "change E that would come of it: over the run, each step weighted by its rate; 1 if nothing is lost",
    "lost": "share of all that is asked of all tensors which is lost, of one tensor or in all",
    "in budget": "whether all tensors may be stored so",
    "-": "some tensor cannot be stored so, or nothing is asked",
}
VERIFY: Legend = {
    "verified": "by trying every operand, or as many as stand for all",
    "core verified": "every operand of a stated core, the others sampled",
    "no counterexample": "among samples",
    "refuted": "there is a counterexample",
    "vacuous": "no operand meets the hypotheses",
    "holds": "expected, since it is claimed here",
    "fails": "expected, since it is known to be false here",
    "open": "neither is claimed or known here, and either verdict will do",
    "cases, applicable, violations": "operands tried, those that meet the hypotheses, those that fail",
    "M/s": "million cases a second",
    "worst, bound": "the largest constant found before the power of u, and the one that is claimed",
    "at": "where the worst is reached: the operands in parentheses, component by component, and the results",
    "counterexample": "operands and results in the same form, the simplest found that fail",
}
LISTING: Legend = {
    "is": "claimed, or false: stated because it is not so, and refuted where it can be",
}
TEXTS: Legend = {
    "takes": "operands, tuples in parentheses; of a tuple that may have any length, two",
}

#: How tables are laid out, for the help.
LAYOUT = (
    "Tables are laid out for the width of the terminal, or COLUMNS if that is set: a row that is too wide "
    "goes on in the lines below it. To a file or pipe each row is one line, with all columns."
)


def under(legend: Legend, headings: Iterable[str], cells: Iterable[str]) -> Legend:
    """Return the part of a legend that explains these headings, or words that are cells of the table."""
    words = " ".join(headings)
    texts = {part for cell in cells for part in cell.split(", ")}
    return {
        term: text
        for term, text in legend.items()
        if any(part in texts or (part in words and part != "-") for part in re.split(r", | \.\.\. ", term))
    }


def help_text(*legends: Legend) -> str:
    """Return legends as paragraphs for a command's help."""
    lines = [f"{term}: {text}." for legend in legends for term, text in legend.items()]
    return "\n\n".join([*lines, LAYOUT])
