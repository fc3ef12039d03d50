"""Rounding and operations on one element, written once, without branches, over some twenty verbs of a machine."""
