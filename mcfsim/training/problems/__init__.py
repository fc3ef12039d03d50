"""Objectives with gradients, for comparing optimizers: one file a problem, known by name in `registry`."""

from mcfsim.training.problems.base import Problem
from mcfsim.training.problems.calculation import Calculation
from mcfsim.training.problems.digits import Digits
from mcfsim.training.problems.language_model import Corpus, LanguageModel
from mcfsim.training.problems.llama import Llama
from mcfsim.training.problems.logistic import LogisticRegression
from mcfsim.training.problems.quadratic import Quadratic
from mcfsim.training.problems.registry import get_problem
from mcfsim.training.problems.rosenbrock import Rosenbrock

__all__ = [
    "Calculation",
    "Corpus",
    "Digits",
    "LanguageModel",
    "Llama",
    "LogisticRegression",
    "Problem",
    "Quadratic",
    "Rosenbrock",
    "get_problem",
]
