"""One script per claim: each measures, writes a small result file, and draws a figure.

The rounding of sums in matrix products depends on OpenBLAS's kernel, which it picks by the processor. Before
NumPy is imported, a kernel that every x86-64 processor with AVX2 can run is chosen here, so that results
repeat to the last digit. Other processors have other kernels, and there the last digits may differ. Threads
would divide the sums, too, so there is only one.
"""

import os
import platform
import sys

if "numpy" not in sys.modules:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if platform.machine().lower() in ("x86_64", "amd64"):
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"
