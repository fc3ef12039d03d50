"""Statements at every precision at once: what an algorithm returns for a family, and its error."""

from mcfsim.theorems.every_p.family_certificate import EveryCertificate
from mcfsim.theorems.every_p.family_check import recheck
from mcfsim.theorems.every_p.family_proof import Proof, Sharpness, best, covering, prove

__all__ = ["EveryCertificate", "Proof", "Sharpness", "best", "covering", "prove", "recheck"]
