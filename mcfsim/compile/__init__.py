"""Texts recorded as programs, and programs compiled to loops."""

from mcfsim.compile.program import Program as Program
from mcfsim.compile.tracing import trace as trace
