"""Statements about rounded algorithms, verified by trying every operand."""

from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.certificate import Certificate, Witness
from mcfsim.theorems.check import verify
from mcfsim.theorems.statement import Theorem

__all__ = ["THEOREMS", "Certificate", "Theorem", "Witness", "verify"]
