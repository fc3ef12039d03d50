"""Statements about rounded algorithms, tried on every operand, a core of them, or a sample."""

from mcfsim.theorems.cases import Witness
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Verdict
from mcfsim.theorems.claims import claim, exact_sum, exactly, normalised, relative_error
from mcfsim.theorems.examination import Examination, examine, recheck
from mcfsim.theorems.hypotheses import hypothesis
from mcfsim.theorems.operands import double_word, relaxed_pair, sequence, value
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.verification import verify

__all__ = [
    "THEOREMS",
    "Certificate",
    "Examination",
    "Scaling",
    "Theorem",
    "Verdict",
    "Witness",
    "claim",
    "double_word",
    "exact_sum",
    "exactly",
    "examine",
    "hypothesis",
    "normalised",
    "recheck",
    "relative_error",
    "relaxed_pair",
    "sequence",
    "value",
    "verify",
]
