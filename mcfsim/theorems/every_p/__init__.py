"""Proofs of an algorithm's results and error for a family of operands at every precision at once."""

from mcfsim.theorems.every_p.family_certificate import EveryCertificate, recheck
from mcfsim.theorems.every_p.family_proof import Proof, Sharpness, best, covering, prove

__all__ = ["EveryCertificate", "Proof", "Sharpness", "best", "covering", "prove", "recheck"]
