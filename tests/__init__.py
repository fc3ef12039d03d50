"""Tests, each in a process with one thread: they are split over processes, which threads would only slow."""

import os

# Before NumPy is imported, and for all that tests start.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
