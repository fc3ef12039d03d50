"""Rounding and operations on one element: written once, without branches, over twenty verbs of a machine."""
