"""What libraries of PyTorch quantise beside what mcfsim does: codes and scales, and why some differ.

A difference has a reason, a predicate on the blocks that is computed apart from both; what no reason covers
is counted as unexplained.
"""

import importlib.util
import sys
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import mcfsim as mcf

#: The rules of torchao's MX formats by the names there.
MX_RULES = {"floor": "FLOOR", "ceil": "CEIL", "even": "EVEN", "round_up": "RCEIL"}
MX_ELEMENTS = {"mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp4": "float4_e2m1fn_x2"}


@dataclass
class Tally:
    """Counts of one comparison: blocks, blocks and elements that differ, and elements by their reason."""

    name: str
    blocks: int = 0
    scales: int = 0
    elements: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    unexplained: int = 0

    def add(self, scales, elements, reasons: Mapping[str, np.ndarray]) -> None:
        """Count blocks, the last axis of `elements` within a block; reasons are arrays of truth by block."""
        self.blocks += scales.size
        self.scales += int(scales.sum())
        self.elements += int(elements.sum())
        left = elements | scales[..., None]
        for reason, where in reasons.items():
            where = where if where.ndim == left.ndim else where[..., None]
            found = left & where
            self.reasons[reason] = self.reasons.get(reason, 0) + int(found.sum())
            left = left & ~where
        self.unexplained += int(left.sum())


def in_blocks(x, size):
    return x.reshape(*x.shape[:-1], -1, size)


def amax_of(x, size):
    return np.abs(in_blocks(x, size)).max(-1)


def no_number(x, size):
    return ~np.isfinite(in_blocks(x, size)).all(-1)


def logarithm_off(numbers, log2=lambda x: torch.log2(torch.from_numpy(x)).numpy()):
    """Return where a binary32 logarithm, rounded down, is not the exponent of a positive number."""
    with np.errstate(all="ignore"):
        theirs = np.floor(log2(np.ascontiguousarray(numbers, np.float32)))
    exact = np.frexp(numbers.astype(np.float64))[1] - 1
    return (numbers > 0) & np.isfinite(numbers) & (theirs != exact)


# -- torchao ----------------------------------------------------------------------------------------------
def torchao_mx(x, name, rule, tally):
    """MX formats by torchao's `to_mx`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.kernels import unpack_uint4
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
    element = getattr(torch, MX_ELEMENTS[name])
    scale, q = to_mx(torch.from_numpy(x), element, 32, ScaleCalculationMode[MX_RULES[rule]])
    codes = (unpack_uint4(q) if name == "mxfp4" else q.view(torch.uint8)).numpy().reshape(x.shape)
    ours = mcf.quantize(x, name, rule=rule)
    theirs, own = scale.view(torch.uint8).numpy().reshape(ours.scale.shape), ours.scale_codes
    off = log2_rounds(amax_of(x, 32), float(ours.format.element.max))
    reasons = {
        "no number in the block": no_number(x, 32),
        "scale 2^-127 is divided by as 2^-126 or 1": own == 0,
        "their log2 rounds": (rule == "round_up") & off,
    }
    tally.add(theirs != own, in_blocks(codes != ours.codes, 32), reasons)


def log2_rounds(amax, top):
    """Return where the binary32 logarithm of ``amax / M``, rounded up, is not the least power above it."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(amax, np.float32) / np.float32(top)
        theirs = np.ceil(torch.log2(torch.from_numpy(quotient)).numpy())
    mantissa, exponent = np.frexp(quotient.astype(np.float64))
    return theirs != np.where(mantissa == 0.5, exponent - 1, exponent)


def torchao_nvfp4(x, tally, two_scales=True):
    """NVFP4 by torchao's `nvfp4_quantize`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.kernels import unpack_uint4
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
    tensor = torch.from_numpy(x)
    finite = np.where(no_number(x, 16)[..., None], 0, in_blocks(x, 16)).astype(np.float32)
    shared = per_tensor_amax_to_scale(torch.from_numpy(finite).abs().max()) if two_scales else None
    scale, q = nvfp4_quantize(tensor, 16, shared)
    fmt = mcf.SCALED["nvfp4"]
    if not two_scales:
        fmt = mcf.ScaledFormat("one", element=fmt.element, block=16, scale=fmt.scale, rule="torchao")
    ours = mcf.quantize(x, fmt, rule="torchao")
    theirs = scale.view(torch.uint8).numpy().reshape(ours.scale.shape)
    codes = unpack_uint4(q).numpy().reshape(x.shape)
    tiny = np.full(theirs.shape, two_scales and not np.isfinite(1 / np.float32(shared or 1)))
    reasons = {"no number in the block": no_number(x, 16), "1 / tensor scale overflows": tiny}
    tally.add(theirs != ours.scale_codes, in_blocks(codes != ours.codes, 16), reasons)


# -- microxcaling -----------------------------------------------------------------------------------------
def microxcaling(x, name, tally):
    """MX formats by microxcaling's `_quantize_mx`, to nearest even; numbers are compared."""
    from mx.mx_ops import _quantize_mx

    element = {"mxfp8_e4m3": "fp8_e4m3", "mxfp8_e5m2": "fp8_e5m2", "mxfp6_e3m2": "fp6_e3m2"}
    element |= {"mxfp6_e2m3": "fp6_e2m3", "mxfp4": "fp4_e2m1"}
    given = torch.from_numpy(x.copy())
    found = _quantize_mx(given, 8, element[name], axes=[-1], block_size=32, round="even").numpy()
    ours = mcf.quantize(x, name)
    numbers = ours.dequantize()
    differ = (found != numbers) & ~(np.isnan(found) & np.isnan(numbers))
    with np.errstate(all="ignore"):
        quotients = np.abs(in_blocks(x, 32)).astype(np.float64) / ours.scale[..., None]
    reasons = {
        "no number in the block": no_number(x, 32),
        "their log2 of amax rounds": logarithm_off(amax_of(x, 32)),
        "their log2 of a quotient rounds": logarithm_off(quotients.astype(np.float32)),
    }
    tally.add(np.zeros(ours.scale.shape, bool), in_blocks(differ, 32), reasons)


# -- Transformer Engine -----------------------------------------------------------------------------------
def transformer_engine(checkout):
    """Return Transformer Engine's references for NVFP4 and for blocks of FP8, without its compiled parts."""
    folder = Path(checkout)
    recipes = "transformer_engine.pytorch.custom_recipes"
    stubs = {
        **{name: {} for name in ("transformer_engine", "transformer_engine.pytorch", recipes)},
        f"{recipes}.gemm": {"MMParams": object, "GEMMType": types.SimpleNamespace(FPROP=0)},
        "transformer_engine.pytorch.quantized_tensor": {
            "QuantizedTensorStorage": object,
            "Quantizer": type("Quantizer", (), {"__init__": lambda self, rowwise, columnwise: None}),
        },
    }
    for name, members in stubs.items():
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(members, __path__=[])
    for name in (f"{recipes}.reference_utils", f"{recipes}.reference_nvfp4"):
        loaded(name, folder / (name.replace(".", "/") + ".py"))
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, sys.modules[name])
    sys.modules[recipes].gemm = sys.modules[f"{recipes}.gemm"]
    references = folder / "tests/pytorch/references"
    sys.modules.setdefault("references", types.ModuleType("references"))
    for name in ("quantize_scale_calc", "blockwise_quantizer_reference"):
        loaded(f"references.{name}", references / f"{name}.py")
    return sys.modules[f"{recipes}.reference_nvfp4"], sys.modules["references.blockwise_quantizer_reference"]


def loaded(name, path):
    """Return the module of a file, loaded under a name."""
    if name not in sys.modules or not hasattr(sys.modules[name], "__file__"):
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def te_nvfp4(x, module, tally, tile=(1, 16), four_six=None):
    """NVFP4 by Transformer Engine's reference."""
    quantizer = module.NVFP4QuantizerRef(
        module.reference_utils.Fp4Formats.E2M1,
        rowwise=True,
        columnwise=False,
        quant_tile_shape=tile,
        **({} if four_six is None else {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": four_six}),
        **({} if four_six is None else {"nvfp4_e4m3_max": 256}),
    )
    quantizer.rowwise_usage, quantizer.columnwise_usage = True, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q, scale, *_ = quantizer._quantize(torch.from_numpy(x))
    codes = np.stack([q.numpy() & 15, q.numpy() >> 4], axis=-1).reshape(x.shape)
    rule = "transformer_engine" if four_six is None else f"four_six_{four_six.lower()}"
    ours = mcf.quantize(x, "nvfp4" if tile == (1, 16) else "nvfp4_16x16", rule=rule)
    own = np.repeat(ours.scale_codes, tile[0], axis=0)[: x.shape[0]]
    theirs = scale.view(torch.uint8).numpy().reshape(own.shape)
    zero = in_blocks((codes & 7 == 0) & (ours.codes & 7 == 0), 16)
    reasons = {"no number in the block": no_number(x, 16), "a zero loses its sign there": zero}
    tally.add(theirs != own, in_blocks(codes != ours.codes, 16), reasons)


def by_blocks(x, codes, theirs, ours, tile, tally):
    """Count what differs in blocks of FP8 with scales of float32, row by row of a tile."""
    own, theirs = (np.repeat(scale, tile[0], axis=0)[: len(x)] for scale in (ours.scale, theirs))
    differ = (theirs != own) & ~(np.isnan(theirs) & np.isnan(own))
    hidden = np.maximum.reduceat(no_number(x, 128), range(0, len(x), tile[0]))
    hidden = np.repeat(hidden, tile[0], axis=0)[: len(x)]
    tally.add(differ, in_blocks(codes != ours.codes, 128), {"no number in the block": hidden})


def te_fp8(x, module, tally, tile, power=True):
    """FP8 by Transformer Engine's reference for blocks."""
    reference = module.BlockwiseQuantizerReference()
    found = reference.quantize(
        torch.from_numpy(x),
        torch.float8_e4m3fn,
        pow_2_scales=power,
        quant_tile_shape=tile,
        munge_scale_shapes=False,
    )
    name = "fp8_e4m3_1x128" if tile == (1, 128) else "fp8_e4m3_128x128"
    ours = mcf.quantize(x, name, rule=None if power else "current")
    codes, theirs = found.data.view(torch.uint8).numpy(), found.scale.numpy()
    by_blocks(x, codes, theirs, ours, tile, tally)


# -- DeepGEMM ---------------------------------------------------------------------------------------------
def deep_gemm(x, module, tally, tile, power):
    """FP8 by DeepGEMM's casts."""
    cast = module.per_token_cast_to_fp8 if tile == (1, 128) else module.per_block_cast_to_fp8
    q, scale = cast(torch.from_numpy(x), power)
    name = "fp8_e4m3_1x128" if tile == (1, 128) else "fp8_e4m3_128x128"
    ours = mcf.quantize(x, name, rule="deepseek_power" if power else "deepseek")
    codes = q.view(torch.uint8).numpy()
    by_blocks(x, codes, scale.numpy(), ours, tile, tally)


# -- Quartet and Quartet II -------------------------------------------------------------------------------
def interpreted(path, stubs=()):
    """Return a module of Triton kernels, run by Triton's interpreter; TRITON_INTERPRET must be 1.

    The interpreter's cast to float8_e4m3fn loses the carry into the exponent: PyTorch's takes its place.
    """
    from triton.runtime import interpreter

    plain = interpreter._convert_float

    def cast(data, source, target, mode):
        if "e4nv" not in str(target):
            return plain(data, source, target, mode)
        numbers = torch.from_numpy(np.ascontiguousarray(data).view(np.float32).copy())
        return numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(np.shape(data))

    interpreter._convert_float = cast
    for name in stubs:
        sys.modules.setdefault(name, types.ModuleType(name))
        vars(sys.modules[name]).setdefault("rtn_1x16s_fp4_kernel_wrapper", None)
    return loaded(Path(path).stem, path)


def quartet(x, module, tally, quest):
    """MXFP4 by Quartet's kernel, without a rotation, to nearest; numbers and QuEST's mask are compared."""
    found, mask = torch.empty(x.shape), torch.empty(x.shape, dtype=torch.bool)
    module.mxfp4_forward_kernel.fn[(x.size // 4096,)](
        torch.from_numpy(x),
        torch.eye(32),
        found,
        mask,
        n_elements=x.size,
        hadamard_dim=32,
        group_size=32,
        gaussian_scale=2.92247856 / 6.0 if quest else 0.75,
        stochastic_round=False,
        seed=None,
        quest=quest,
        BLOCK_SIZE=4096,
    )
    ours = mcf.quantize(x, "mxfp4" if quest else "mxfp4_quartet", rule="quest" if quest else None)
    # Their product of element and scale is rounded to binary32.
    differ = found.numpy() != ours.dequantize().astype(np.float32)
    differ |= (mask.numpy() != ours.inside(x)) & quest
    with np.errstate(all="ignore"):
        by = ours.scale.astype(np.float32) * np.float32(ours.tensor_scale or 1)
        quotient = np.abs(in_blocks(x, 32) / by[..., None])
        exact = in_blocks(x, 32).astype(np.float64)
        overflows = (exact**2).mean(-1) >= 2.0**123  # a sum of 32 squares
    reasons = {
        "ties go toward zero there": np.isin(quotient, np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])),
        "scales below 2^-127 there": (ours.scale_codes == 0) & (amax_of(x, 32) > 0),
        "NaN there, as squares overflow": overflows & quest,
        "their log2 of amax rounds": logarithm_off(amax_of(x, 32), np.log2) & (not quest),
    }
    tally.add(np.zeros(ours.scale.shape, bool), in_blocks(differ, 32), reasons)


def quartet_2(x, module, tally):
    """NVFP4 by Quartet II's MS-EDEN kernel, without a rotation: a block has one of two scales."""
    found, amax = torch.empty(x.shape), torch.from_numpy(x).abs().max().reshape(1)
    module.eden_1x16s_fp4_kernel.fn[(x.size // 4096,)](
        torch.from_numpy(x),
        torch.eye(128),
        amax,
        found,
        torch.zeros(1),
        n_elements=x.size,
        hadamard_dim=128,
        scale_override=(17 / 16) * 0.93,
        group_size=16,
        seed=7,
        BLOCK_SIZE=4096,
    )
    theirs, differ = in_blocks(found.numpy(), 16), True
    for word in (0, 2**16 - 1):
        words = np.full((len(x), x.shape[1] // 16), word, np.uint16)
        ours = mcf.quantize(x, "nvfp4_eden", rounding="nearest_away", random=words)
        scale = ours.scale.astype(np.float32)[..., None]
        differ = differ & (in_blocks(ours.elements, 16) * scale * np.float32(ours.tensor_scale) != theirs)
    tally.add(np.zeros(ours.scale.shape, bool), differ, {})
