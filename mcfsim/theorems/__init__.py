"""Statements about rounded algorithms, tried on every operand of a format or proved for every precision p.

A statement (`statement`) is data: an algorithm, its `operands`, hypotheses and a claim (`logic`). The known
ones are in the `catalogue`. A trial goes through `domain` (which operands), `check` (ranges of them), `judge`
(one block) and `findings` (counts). `verification` makes a `certificate` of the findings; `examination`
rechecks it. `every_p` and `solver` prove statements for every p. This package may import all others of
mcfsim except `report`, `cli` and `torch`. Begin with `statement`, then `judge`.
"""

from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Verdict
from mcfsim.theorems.claims import claim, exact_sum, exactly, normalised, relative_error
from mcfsim.theorems.counterexamples import Witness
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
