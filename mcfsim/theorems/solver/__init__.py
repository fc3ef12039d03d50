"""Theorems about sums for every precision at once, by a solver."""

from mcfsim.theorems.solver.proof import ASSUMED, Answer, Found, prove, prove_all
from mcfsim.theorems.solver.questions import CLAIMS, Question, question_of

__all__ = ["ASSUMED", "CLAIMS", "Answer", "Found", "Question", "prove", "prove_all", "question_of"]
