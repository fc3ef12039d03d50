"""Optimizers as plain functions of arithmetics, and storage strategies as data."""
