"""Objectives with gradients, for comparing optimizers."""

from .base import Problem
from .corpus import Corpus
from .digits import Digits
from .language_model import LanguageModel
from .logistic import LogisticRegression
from .quadratic import Quadratic
from .registry import get_problem
from .rosenbrock import Rosenbrock

__all__ = [
    "Corpus",
    "Digits",
    "LanguageModel",
    "LogisticRegression",
    "Problem",
    "Quadratic",
    "Rosenbrock",
    "get_problem",
]
