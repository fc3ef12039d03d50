"""Matrix units beside MMA-Sim, a program whose authors state that it is bit-equal to the hardware; and speed.

``python -m tests.benchmarks.matrix_units PATH`` takes a checkout of MMA-Sim (arXiv 2511.10909), runs its
instructions on random and hostile operands, an element at a time, and counts elements that differ from
`mcfsim.dot`, which takes that program's rule for a Hopper's zeros here. ``--speed`` measures products a
second instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

import numpy as np

import mcfsim as mcf
from mcfsim.products import UnitSums
from tests.products.units_by_definition import hostile, values

#: By unit: the class of the instruction, its architecture, and its name.
_ARCHITECTURES = {"volta": "Volta", "turing": "Turing", "ampere": "Ampere", "ada": "Ada Lovelace"}
INSTRUCTIONS = {
    "volta_fp16": ("mma", "Volta", "m8n8k4.f32.f16.f16.f32"),
    "volta_fp16_to_fp16": ("mma", "Volta", "m8n8k4.f16.f16.f16.f16"),
    "turing_fp16": ("mma", "Turing", "m16n8k8.f32.f16.f16.f32"),
    "turing_fp16_to_fp16": ("mma", "Turing", "m16n8k8.f16.f16.f16.f16"),
    **{
        f"{x}_{kind}": ("mma", _ARCHITECTURES[x], name)
        for x in ("ampere", "ada")
        for kind, name in {
            "fp16": "m16n8k16.f32.f16.f16.f32",
            "fp16_to_fp16": "m16n8k16.f16.f16.f16.f16",
            "bf16": "m16n8k16.f32.bf16.bf16.f32",
            "tf32": "m16n8k8.f32.tf32.tf32.f32",
            "fp64": "m8n8k4.f64.f64.f64.f64",
        }.items()
    },
    "ada_fp8": ("mma", "Ada Lovelace", "m16n8k32.f32.e4m3.e5m2.f32"),
    "ada_fp8_to_fp16": ("mma", "Ada Lovelace", "m16n8k32.f16.e4m3.e5m2.f16"),
    **{
        f"{x}_{kind}": (method, x.title(), f"m64n8{name}")
        for x, method in {"hopper": "wgmma", "blackwell": "tcgen05mma"}.items()
        for kind, name in {
            "fp16": "k16.f32.f16.f16",
            "fp16_to_fp16": "k16.f16.f16.f16",
            "bf16": "k16.f32.bf16.bf16",
            "tf32": "k8.f32.tf32.tf32",
            "fp8": "k32.f32.e4m3.e5m2",
            "fp8_to_fp16": "k32.f16.e4m3.e5m2",
        }.items()
    },
    "hopper_fp64": ("mma", "Hopper", "m16n8k16.f64.f64.f64.f64"),
    "blackwell_fp64": ("mma", "Blackwell", "m8n8k4.f64.f64.f64.f64"),
    "blackwell_mxfp8": ("tcgen05mma_block_scale", "Blackwell", "m128n8k32.block32.f32.e4m3.e5m2.ue8m0"),
    "blackwell_mxfp4": ("tcgen05mma_block_scale", "Blackwell", "m128n8k64.block32.f32.e2m1.e2m1.ue8m0"),
    "blackwell_nvfp4": ("tcgen05mma_block_scale", "Blackwell", "m128n8k64.block16.f32.e2m1.e2m1.ue4m3"),
    "cdna1_fp32": ("mfma", "CDNA1", "f32_32x32x2f32"),
    "cdna2_fp32": ("mfma", "CDNA2", "f32_32x32x2f32"),
    "cdna3_fp32": ("mfma", "CDNA3", "f32_32x32x2_f32"),
    "cdna2_fp64": ("mfma", "CDNA2", "f64_16x16x4f64"),
    "cdna3_fp64": ("mfma", "CDNA3", "f64_16x16x4_f64"),
    **{f"cdna{x}_fp16": ("mfma", f"CDNA{x}", "f32_32x32x8f16") for x in (1, 2)},
    **{f"cdna{x}_bf16": ("mfma", f"CDNA{x}", "f32_32x32x4bf16") for x in (1, 2)},
    "cdna2_bf16_1k": ("mfma", "CDNA2", "f32_32x32x8bf16_1k"),
    "cdna3_fp16": ("mfma", "CDNA3", "f32_32x32x8_f16"),
    "cdna3_bf16": ("mfma", "CDNA3", "f32_32x32x8_bf16"),
    "cdna3_xf32": ("mfma", "CDNA3", "f32_16x16x8_xf32"),
    "cdna3_fp8": ("mfma", "CDNA3", "f32_16x16x32_fp8_bf8"),
}
_AT_ONCE = 1000


class Program:
    """An instruction of MMA-Sim, run for one element of the result at a time."""

    def __init__(self, name):
        import torch
        from mmasim.simulator import amd, nv_ptx

        kind, architecture, instruction = INSTRUCTIONS[name]
        self._run = getattr(amd if kind == "mfma" else nv_ptx, kind)(architecture, instruction)
        self.k, self.torch = self._run.k, torch
        self._run.m = self._run.n = 1
        if getattr(self._run, "operation_type", "") == "pairwise":
            # It asserts that operands are float32, which those of its own instructions are not.
            if not hasattr(amd, "given_dot"):
                amd.given_dot = amd.pairwise_dot
            amd.pairwise_dot = lambda a, b, flush: amd.given_dot(a.float(), b.float(), flush)

    def __call__(self, a, b, c, scales=None):
        """Return results for rows of operands in float64, as float64."""
        run, torch = self._run, self.torch
        out = np.empty(len(a))
        a, b = (self._typed(x, kind) for x, kind in ((a, run.a_type), (b, run.b_type)))
        c = torch.from_numpy(np.asarray(c)).to(run.c_type)
        shared = [] if scales is None else [torch.from_numpy(x).to(run.s_type) for x in scales]
        for row in range(len(out)):
            given = [x[row][None, :] for x in shared[:1]] + [x[row][:, None] for x in shared[1:]]
            made = run(a[row][None, :], b[row][:, None], c[row].reshape(1, 1), *given)
            out[row] = _wide(made)
        return out

    def _typed(self, x, kind):
        if kind == self.torch.uint8:
            codes = mcf.codec.encode(x, "float4_e2m1fn")
            return self.torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
        return self.torch.from_numpy(x).to(kind)


def _wide(made):
    """Return a tensor's number, with the code of a NaN."""
    x = made.reshape(())
    if x.itemsize == 2:
        return float(x.view(dtype=_torch().int16).numpy().view(np.float16))
    return x.numpy().astype(np.float64)


def _torch():
    import torch

    return torch


def operands(name, k, rows, rng):
    """Return operands of a unit, half of them random and half hostile, their formats, and scales."""
    unit = mcf.get_unit(name)
    formats = (unit.inputs[0], unit.inputs[-1 if name.startswith("cdna") else min(1, len(unit.inputs) - 1)])
    given = tuple(mcf.get_format("float32") if unit.cut else x for x in formats)
    half = rows // 2
    a, b = (mcf.round_to(rng.standard_normal((half, k)), fmt) for fmt in given)
    c = mcf.round_to(rng.standard_normal(half) * rng.choice([0, 1e-3, 1, 30], half), unit.added)
    a, b, c = (
        np.concatenate(x) for x in zip((a, b, c), hostile(unit, given, k, rows - half, rng), strict=True)
    )
    if not unit.scales:
        return formats, a, b, c, None
    block = {"blackwell_mxfp8": 32, "blackwell_mxfp4": 32, "blackwell_nvfp4": 16}[name]
    scales = []
    for _ in range(2):
        x = abs(values(unit.scales[0], rng, (rows, k // block), 200))
        x[:half] = abs(values(unit.scales[0], rng, (half, k // block), 2))
        x[rng.random(x.shape) < 0.01] = np.nan
        if unit.scales[0].zero:
            x[rng.random(x.shape) < 0.01] = 0.0
        scales.append(x)
    return formats, a, b, c, scales


def ours(name, formats, a, b, c, scales):
    """Return the results of `mcfsim.dot` as float64, with zeros as in MMA-Sim also on Hopper."""
    unit = mcf.get_unit(name)
    unit = replace(unit, least_exponent=None) if unit.sums is UnitSums.ALIGNED else unit
    if scales is None:
        # One unit for each pair of formats: the first is what a float array has.
        if formats[0] == formats[1]:
            return np.float64(mcf.dot(a, b, unit=unit, c=c))
        import ml_dtypes

        a, b = (x.astype(getattr(ml_dtypes, str(fmt))) for x, fmt in zip((a, b), formats, strict=True))
        return np.float64(mcf.dot(a, b, unit=unit, c=c))
    block = a.shape[1] // scales[0].shape[1]
    kinds = {32: "mxfp8_e4m3" if name.endswith("8") else "mxfp4", 16: "nvfp4"}
    fmt = replace(mcf.get_scaled_format(kinds[block]), tensor_scale=None)
    made = [
        mcf.Scaled(replace(fmt, element=own), x, s, None, 1)
        for own, x, s in zip(formats, (a, b), scales, strict=True)
    ]
    return np.float64(mcf.dot(*made, unit=unit, c=c))


def differing(found, expected):
    """Return where results differ, and where both are NaN with other codes."""
    nan = np.isnan(found) & np.isnan(expected)
    same = found.view(np.int64) == expected.view(np.int64)
    return ~same & ~nan, ~same & nan


def compare(name, groups, seed, seconds):
    """Compare a unit with the program; print what differs."""
    program, rng = Program(name), np.random.default_rng(seed)
    done = wrong = codes = refused = 0
    begun = time.monotonic()
    each = -(-program.k // mcf.get_unit(name).k)
    while done * each < groups and time.monotonic() - begun < seconds:
        formats, a, b, c, scales = operands(name, program.k, _AT_ONCE, rng)
        if name in ("blackwell_mxfp4", "blackwell_nvfp4"):  # where the program fails
            refused += int(np.isinf(c).sum())
            c = np.where(np.isinf(c), 0.0, c)
        expected, found = program(a, b, c, scales), ours(name, formats, a, b, c, scales)
        bad, other = differing(found, expected)
        for row in np.flatnonzero(bad)[: max(0, 3 - wrong)]:
            print(f"  {a[row]} {b[row]} {c[row]} {scales and [x[row] for x in scales]}", file=sys.stderr)
            print(f"  here {found[row].hex()}, there {expected[row].hex()}", file=sys.stderr)
        done, wrong, codes = done + len(a), wrong + int(bad.sum()), codes + int(other.sum())
    spent = time.monotonic() - begun
    print(
        f"{name:22} {done:8} elements {done * each:8} groups {wrong:6} differ {codes:6} codes of NaN differ "
        f"{refused:6} infinite addends left out {spent:6.0f} s",
        flush=True,
    )


def speed(name, shape=(256, 1024, 512)):
    """Print the products a second of a unit on one core."""
    unit, rng = mcf.get_unit(name), np.random.default_rng(0)
    m, k, n = shape
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((m, k), (k, n)))
    if unit.scales:
        kind = {"8": "mxfp8_e4m3"}.get(name[-1], "nvfp4" if "nv" in name else "mxfp4")
        a, b = mcf.quantize(a, kind), mcf.quantize(b, kind, axis=0)
    else:
        a, b = (mcf.round_to(x, unit.input) for x in (a, b))
    begun = time.perf_counter()
    mcf.matmul(a, b, unit=unit)
    first, best = time.perf_counter() - begun, np.inf
    for _ in range(3):
        begun = time.perf_counter()
        mcf.matmul(a, b, unit=unit)
        best = min(best, time.perf_counter() - begun)
    print(f"{name:22} {m * k * n / best / 1e6:6.0f} million products/s, first {first:.2f} s", flush=True)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", help="a checkout of MMA-Sim")
    parser.add_argument("--units", nargs="*", default=list(INSTRUCTIONS))
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=np.inf, help="at most so many for each unit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", action="store_true")
    given = parser.parse_args()
    if not given.speed and given.path is None:
        parser.error("give the path of a checkout of MMA-Sim, or --speed")
    if not given.speed:
        sys.path.insert(0, given.path)
        _torch().set_num_threads(1)
    for name in given.units:
        if given.speed:
            speed(name)
        else:
            compare(name, given.groups, given.seed, given.seconds)


if __name__ == "__main__":
    main()
