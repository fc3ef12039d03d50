"""Theorems about sums for every precision at once, by a solver."""

from mcfsim.theorems.solver.proof import ASSUMED, Answer, Found, prove, prove_all
from mcfsim.theorems.solver.questions import CLAIMS, Question, check_known, question_of

__all__ = [
    "ASSUMED",
    "CLAIMS",
    "Answer",
    "Found",
    "Question",
    "check_known",
    "prove",
    "prove_all",
    "question_of",
]
