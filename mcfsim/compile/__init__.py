"""Programs: algorithms recorded as straight lines of operations, lowered to machine operations, and run.

`tracing` records a `program`. `lowering` turns it into a line of machine operations; `scalars` and `lines`
say how real numbers enter. Each target has one emitter: `loops` (calls of NumPy), `llvm_source`,
`torch_calls`, `triton_source`. `loops`, `torch_loops`, `kernel` and `launch` run their output. `choice`
decides whether compiling pays and has a thread do it, `objects` makes and keeps machine code, `elf` loads it.
Imports `kernels`. Begin with `program`, then `lowering`.
"""

from mcfsim.compile.program import Program as Program
from mcfsim.compile.tracing import trace as trace
