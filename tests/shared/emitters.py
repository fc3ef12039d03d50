"""Every way in which a line is carried out: a function of a line and its operands that returns results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from mcfsim.compile.llvm_source import source
from mcfsim.compile.loops import calls, draw, drawn_by_numpy
from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.machine import DTYPES, run
from mcfsim.kernels.elementary import table_of
from tests.shared.lines import START, STREAM

Arrays = Sequence[Any]
#: The numbers that are the same for all elements, by their names.
SINGLE = {"s": np.float32(-3.0), "t": np.float64(1 / 3)}


def _numbers(lowered: Lowered) -> list[Any]:
    return [SINGLE[str(x.constant)] for x in lowered.numbers]


def _words(lowered: Lowered, size: int, take: Callable[..., Any] = drawn_by_numpy) -> list[Any]:
    return [
        take(STREAM.of(x.operation), START, size, bits, f"emitted {place}")
        for place, (x, bits) in enumerate(lowered.draws.items())
    ]


def _empty(lowered: Lowered, size: int) -> list[Any]:
    return [np.full(size, 77).astype(lowered.dtype(x)) for x in lowered.results]


def given(lowered: Lowered, arrays: Arrays) -> dict[Any, Any]:
    """Return what each input of a line is given: integers for codes and words."""
    pairs = zip(lowered.operands, arrays, strict=True)
    found = {x: a if x.type.is_float else a.astype(np.int32) for x, a in pairs}
    found |= {x: np.asarray([n]) for x, n in zip(lowered.numbers, _numbers(lowered), strict=True)}
    words = _words(lowered, arrays[0].size)
    return found | {x: a.astype(np.int64) for x, a in zip(lowered.words, words, strict=True)}


def by_verbs(lowered: Lowered, arrays: Arrays) -> list[Any]:
    """NumPy, an operation a verb."""
    named = {str(x.constant): a for x, a in given(lowered, arrays).items()}
    found = run(lowered.line, lowered.results, **named)
    return [a.astype(lowered.dtype(x)) for x, a in zip(lowered.results, found, strict=True)]


def by_calls(lowered: Lowered, arrays: Arrays, **options: Any) -> list[Any]:
    """NumPy's functions with memory that is used again; codes enter as integers."""
    plain = replace(lowered, packed={})
    taken = [a if a.dtype.kind == "f" else a.astype(np.int32) for a in arrays]
    out = [np.full(arrays[0].size, 77).astype(DTYPES[x.type]) for x in lowered.results]
    calls(plain)(*taken, *_words(lowered, arrays[0].size), *_numbers(lowered), *out, **options)
    return [a.astype(lowered.dtype(x)) for x, a in zip(lowered.results, out, strict=True)]


def by_llvm(lowered: Lowered, arrays: Arrays, in_place: bool = False, **options: Any) -> list[Any]:
    """A compiled loop; in place, a result goes to an operand's memory as far as there are operands."""
    pytest.importorskip("llvmlite", reason="LLVM is not installed")
    from mcfsim.compile.objects import called

    operands, out = [x.copy() for x in arrays], _empty(lowered, arrays[0].size)
    if in_place:
        left = list(operands)
        for place, x in enumerate(out):
            found = next((k for k, y in enumerate(left) if y.dtype == x.dtype), None)
            out[place] = x if found is None else left.pop(found)
    tables = [table_of(key) for key in lowered.tables]
    rest = [
        *tables,
        *operands,
        *_words(lowered, arrays[0].size, draw),
        *_numbers(lowered),
        *out,
    ]
    loop = called(source(lowered, "A line.", **options), "loop", *rest)
    assert loop(*rest) == 0
    return out


def by_torch(lowered: Lowered, arrays: Arrays, device: str = "cpu") -> list[Any]:
    """PyTorch's operations."""
    torch = pytest.importorskip("torch")
    from mcfsim.compile.torch_loops import BoundTensorLoop, calls_of

    bound_loop = BoundTensorLoop(lowered, tuple(map(float, _numbers(lowered))), calls_of(lowered))
    return _on_tensors(torch, bound_loop, lowered, arrays, device)


def by_triton(lowered: Lowered, arrays: Arrays, device: str = "cpu") -> list[Any]:
    """A kernel of Triton; on a CPU it is interpreted."""
    torch, text = _kernel(lowered, many=False)
    from mcfsim.compile.launch import Launcher

    launcher = Launcher(lowered, tuple(map(float, _numbers(lowered))), text)
    return _on_tensors(torch, launcher, lowered, arrays, device)


def by_triton_table(lowered: Lowered, arrays: Arrays, device: str = "cpu") -> list[Any]:
    """The same on sets of vectors in a table: here two, that begin anywhere."""
    torch, text = _kernel(lowered, many=True)
    from mcfsim.compile.kernel import Table
    from mcfsim.compile.launch import Launcher

    launcher = Launcher(lowered, tuple(map(float, _numbers(lowered))), text)
    tensors = _tensors(torch, [*arrays, *_empty(lowered, arrays[0].size)], device)
    vectors = launcher.checked(tensors[: len(arrays)], tensors[len(arrays) :])
    cut = arrays[0].size // 3
    table = Table([[x[:cut] for x in vectors], [x[cut:] for x in vectors]], [START, START + cut])
    table.fill(launcher, {0: STREAM})
    return _arrays(lowered, tensors[len(arrays) :])


def by_ptx(lowered: Lowered, arrays: Arrays) -> list[Any]:
    """A kernel as compiled for a GPU: its virtual instructions."""
    _, text = _kernel(lowered, many=False)
    from experiments.machine_code.device_code import device_code
    from tests.shared.ptx_machine import THREADS, Kernel

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        code = device_code(text, lowered)
    size, results = arrays[0].size, _empty(lowered, arrays[0].size)
    memory = dict(enumerate([*map(np.ascontiguousarray, arrays), *results]))
    numbers = zip(lowered.numbers, _numbers(lowered), strict=True)
    alike = {str(x.type): np.array([n]) for x, n in numbers}
    memory |= {kind: alike[kind] for kind in ("f32", "f64") if kind in alike}
    if lowered.draws:
        streams = [STREAM.of(x.operation) for x in lowered.draws]
        memory["key"] = np.array([*STREAM.key, STREAM.step, *(x.place for x in streams)], np.int64)
    memory |= {key: table_of(key) for key in lowered.tables}
    Kernel(code.ptx, memory | {"start": START, "size": size}, -(-size // THREADS))
    return results


def _kernel(lowered: Lowered, *, many: bool) -> tuple[Any, str]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton", reason="Triton is not installed")
    from mcfsim.compile.triton_source import kernel_source

    return torch, kernel_source(lowered, "A line.", many=many)


def _on_tensors(torch: Any, bound_loop: Any, lowered: Lowered, arrays: Arrays, device: str) -> list[Any]:
    tensors = _tensors(torch, [*arrays, *_empty(lowered, arrays[0].size)], device)
    operands, results = tensors[: len(arrays)], tensors[len(arrays) :]
    bound_loop(operands, results, START, {0: STREAM})
    return _arrays(lowered, results)


def _tensors(torch: Any, arrays: Arrays, device: str) -> list[Any]:
    """Return arrays as tensors; codes lie in signed integers."""
    signed = [a.view(f"i{a.itemsize}") if a.dtype.kind == "u" else a for a in arrays]
    return [torch.from_numpy(a.copy()).to(device) for a in signed]


def _arrays(lowered: Lowered, tensors: Sequence[Any]) -> list[Any]:
    found = zip(lowered.results, tensors, strict=True)
    return [x.cpu().numpy().view(lowered.dtype(value)) for value, x in found]


#: What carries lines out, by name: one a language, and the same by other memory or on a GPU.
MACHINES: dict[str, Callable[..., list[Any]]] = {
    "verbs": by_verbs,
    "calls": by_calls,
    "LLVM": by_llvm,
    "PyTorch": by_torch,
    "Triton": by_triton,
    "PTX": by_ptx,
    "PyTorch on a GPU": partial(by_torch, device="cuda"),
    "Triton on a GPU": partial(by_triton, device="cuda"),
}
EMITTERS = MACHINES | {
    "calls in parts": partial(by_calls, at_once=25),
    "LLVM, cut": partial(by_llvm, apart=True),
    "LLVM, cut, in place": partial(by_llvm, apart=True, in_place=True),
    "Triton, table": by_triton_table,
    "Triton, table, on a GPU": partial(by_triton_table, device="cuda"),
}
