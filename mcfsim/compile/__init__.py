"""Texts recorded as programs, and programs compiled to loops."""

from mcfsim.compile.program import Program as Program
from mcfsim.compile.recording import trace as trace
