"""One script a claim: each measures, writes a small result file, and draws a figure.

Sums in matrix products are rounded in the order of OpenBLAS's kernel, which it picks by the processor. One
that every x86-64 processor with AVX2 has is chosen here, before NumPy is imported, so that results repeat to
the last digit. Other processors have kernels of their own, and there the last digits may differ. Threads
would divide the sums, too: there is one.
"""

import os
import platform
import sys

if "numpy" not in sys.modules:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if platform.machine().lower() in ("x86_64", "amd64"):
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"
