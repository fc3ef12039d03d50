"""Proofs of theorems about sums for every precision at once, by the solver Z3."""

from mcfsim.theorems.solver.proof import ASSUMED, Answer, Found, prove, prove_all
from mcfsim.theorems.solver.question import Question, check_readable, question_of, readable

__all__ = [
    "ASSUMED",
    "Answer",
    "Found",
    "Question",
    "check_readable",
    "prove",
    "prove_all",
    "question_of",
    "readable",
]
