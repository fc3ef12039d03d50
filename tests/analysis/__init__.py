"""Tests of error analysis."""
