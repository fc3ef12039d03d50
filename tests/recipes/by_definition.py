"""Linear layers by the published recipes, written from their papers: fractions, one number at a time.

`PAPERS` says each recipe anew. Random words: a layer has a stream, `words`, and operand p takes the words of
operation 4 p after it, the left and the right one of the forward product (p = 0, 1), of dgrad (2, 3) and of
wgrad (4, 5). An element takes 16 bits, those of its index in row-major order, in the matrix as it is
quantised: contracted axis last, filled up with zeros, rotated. By EDEN the words are the scales'. Both
operands of a product are rotated by the same signs: the upper bits of words of 32 bits, of operation 24 for
the forward product, 28 for dgrad and 32 for wgrad.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mcfsim.formats import FORMATS
from mcfsim.oracle import round_float
from mcfsim.products import UNITS
from mcfsim.scaled import ScaledFormat
from tests.products.units_by_definition import Definition
from tests.scaled.definition import power_scale, real_scale
from tests.scaled.published import RULES, Blocks, by_published, element_of
from tests.shared.rationals import single

BF16, F32 = FORMATS["bfloat16"], FORMATS["float32"]
E4M3, E5M2, E2M1 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"], FORMATS["float4_e2m1fn"]
E8M0 = FORMATS["float8_e8m0fnu"]
TE_SIGNS = [-1.0 if x == "-" else 1.0 for x in "+++-+------+-+--"]


# -- operands ---------------------------------------------------------------------------------------------
def _fp4(rule, block=16, **others):
    """Return NVFP4: elements E2M1, scales E4M3 and one of the tensor in binary32."""
    return ScaledFormat("", element=E2M1, block=block, scale=E4M3, rule=rule, tensor_scale=F32, **others)


def _fp8(element, rule, block):
    return ScaledFormat("", element=element, block=block, scale=F32, rule=rule)


class Kind(NamedTuple):
    """How an operand is quantised: its format, None for single bfloat16 numbers, and the rounding."""

    format: ScaledFormat | None
    mode: str = "nearest_even"


class Way(NamedTuple):
    """A product: its operands, the order of the rotation and its signs, and the output."""

    left: Kind
    right: Kind
    order: int = 0
    signs: str = ""
    output: object = BF16


class Paper(NamedTuple):
    """A recipe: three products, whether gradients take what the forward product took, and of what."""

    forward: Way
    dgrad: Way
    wgrad: Way
    taken: str = ""


def _fp8_tensor():
    ahead, back = (Kind(_fp8(x, "current", None)) for x in (E4M3, E5M2))
    return Paper(Way(ahead, ahead), Way(back, ahead), Way(back, ahead, output=None))


def _deepseek():
    rows, tiles = (Kind(_fp8(E4M3, "deepseek", block)) for block in (128, (128, 128)))
    return Paper(Way(rows, tiles), Way(rows, tiles), Way(rows, rows, output=None), taken="x")


def _nvidia():
    rows, tiles = Kind(_fp4("transformer_engine")), Kind(_fp4("transformer_engine", (16, 16)))
    drawn = Kind(_fp4("transformer_engine"), "stochastic")
    return Paper(Way(rows, tiles), Way(drawn, tiles), Way(drawn, rows, 16, "te", None))


def _all_the_way():
    near, drawn = Kind(_fp4("absmax")), Kind(_fp4("absmax"), "stochastic")
    return Paper(Way(near, near), Way(drawn, near), Way(drawn, drawn, output=None))


def _quartet():
    quest = Kind(ScaledFormat("", element=E2M1, block=32, scale=E8M0, rule="quest"))
    back = ScaledFormat("", element=E2M1, block=32, scale=E8M0, rule="quartet", tensor_scale=F32)
    drawn = Kind(back, "stochastic")
    gradient = Way(drawn, drawn, 32, "random")
    return Paper(Way(quest, quest, 32), gradient, gradient._replace(output=None), taken="xw")


def _quartet2():
    near, eden = Kind(_fp4("four_six_mse")), Kind(_fp4("eden", group=128))
    gradient = Way(eden, eden, 128, "random")
    return Paper(Way(near, near), gradient, gradient._replace(output=None), taken="xw")


def _alike(kind):
    return Paper(Way(kind, kind), Way(kind, kind), Way(kind, kind, output=None))


_MXFP8 = Kind(ScaledFormat("", element=E4M3, block=32, scale=E8M0, rule="round_up"))
PAPERS = {
    "bf16": _alike(Kind(None)),
    "bf16-truncating": _alike(Kind(None)),
    "mxfp8": _alike(_MXFP8),
    "fp8-tensor": _fp8_tensor(),
    "fp8-blocks": _deepseek(),
    "nvfp4": _nvidia(),
    "fp4-all": _all_the_way(),
    "quartet": _quartet(),
    "quartet2": _quartet2(),
}


# -- binary32, by binary64 --------------------------------------------------------------------------------
def plus(a, b):
    """Return a sum of binary32 numbers rounded once: 53 bits are enough for it to be rounded twice."""
    with np.errstate(all="ignore"):
        return float(np.float32(a + b))


def times(a, b):
    """Return a product of binary32 numbers rounded once: binary64 holds it."""
    with np.errstate(all="ignore"):
        return float(np.float32(a * b))


def rotated(x, order, signs, back=False):
    """Return rows times Sylvester's matrix over sqrt(order), by butterflies in binary32."""
    factor = single(Fraction(math.isqrt(2**200 // order)) / 2**100)
    found = np.zeros((len(x), -(-x.shape[1] // order) * order), np.float32)
    for row, start in np.ndindex(len(x), found.shape[1] // order):
        part = slice(start * order, (start + 1) * order)
        numbers = [float(a) for a in x[row, part]]
        numbers += [0.0] * (order - len(numbers))
        if not back:
            numbers = [times(a, s) for a, s in zip(numbers, signs, strict=True)]
        stride = 1
        while stride < order:
            numbers = [
                plus(numbers[i ^ stride], -a) if i & stride else plus(a, numbers[i ^ stride])
                for i, a in enumerate(numbers)
            ]
            stride *= 2
        numbers = [times(a, factor) for a in numbers]
        if back:
            numbers = [times(a, s) for a, s in zip(numbers, signs, strict=True)]
        found[row, part] = numbers
    return found


# -- operands quantised -----------------------------------------------------------------------------------
class Quantised:
    """A matrix as it enters a product: elements, the scale of each, and the tensor's."""

    def __init__(self, x, kind, words):
        self.format, self.tensor = kind.format, None
        self.along = 0
        if kind.format is None:
            self.elements = np.array([[round_float(float(a), BF16) for a in row] for row in x])
            self.elements, self.scale = self.elements.reshape(x.shape), None
            self.values = self.elements.astype(np.float32)
            return
        fmt, rule = kind.format, str(kind.format.rule)
        blocks = Blocks(x, fmt)
        drawn = words if kind.mode == "stochastic" or rule == "eden" else None
        count = x.size if rule != "eden" else math.prod(blocks.grid)
        given = None if drawn is None else drawn.words(0, count, bits=16)
        given = None if given is None else given.reshape(blocks.grid if rule == "eden" else x.shape)
        exact = rule not in RULES
        made = by_exact_rule if exact else by_published
        scales, self.tensor, self.elements = made(x, fmt, kind.mode, given)
        self.scale, self.clipped = np.zeros(x.shape), np.zeros(x.shape, bool)
        for key, places in blocks.places.items():
            for place in places:
                self.scale[place] = scales[key]
        self.along = fmt.block[1] if isinstance(fmt.block, tuple) else fmt.block or 0
        self.values = np.zeros(x.shape, np.float32)
        for place, element in np.ndenumerate(self.elements):
            scale = self.scale[place]
            by = (
                math.nan
                if scale != scale
                else Fraction(scale) * Fraction(1 if self.tensor is None else self.tensor)
            )
            if by == by and math.isfinite(element):
                number = single(Fraction(element) * by)
                self.values[place] = number or math.copysign(0.0, element)
            else:
                self.values[place] = math.nan
            inside = by == by and math.isfinite(x[place]) and abs(Fraction(float(x[place]))) < 6 * by
            self.clipped[place] = not inside

    def scales(self, row, size):
        """Return the scales of a row's blocks."""
        return [float(x) for x in self.scale[row, ::size]] if self.along else []


@lru_cache(maxsize=1024)
def entered(data, shape, order, signs, kind, words):
    """Return a binary32 matrix as it enters a product, rotated first; all units take the same one."""
    x = np.ndarray(shape, np.float32, data)
    return Quantised(rotated(x, order, signs) if order else x, kind, words)


def by_exact_rule(x, fmt, mode, words):
    """Return scales, the tensor scale and elements by ``round_up`` and ``absmax``: exact quotients."""
    blocks = Blocks(x, fmt)
    largest, tensor = Fraction(fmt.element.max), None
    if fmt.tensor_scale:
        tensor = real_scale(Fraction(blocks.overall) / (largest * Fraction(fmt.scale.max)), F32)
    scales, elements = np.zeros(blocks.grid), np.zeros(x.shape)
    for key, places in blocks.places.items():
        amax, scale = blocks.amax[key], math.nan
        if amax == amax and fmt.tensor_scale:
            scale = real_scale(Fraction(amax) / (largest * tensor), fmt.scale) if tensor else Fraction(0)
        elif amax == amax:
            scale = power_scale(Fraction(amax), fmt.element, fmt.rule, fmt.scale)
        scales[key] = float(scale)
        for place in places:
            if amax != amax:
                elements[place] = math.nan if fmt.element.has_nan else 0.0
                continue
            by, number = scale * (1 if tensor is None else tensor), float(x[place])
            quotient = Fraction(number) / by if by else Fraction(0)
            word = None if mode != "stochastic" else int(words[place])
            elements[place] = element_of(quotient, number, fmt, mode, word)
    return scales, None if tensor is None else float(tensor), elements


# -- products ---------------------------------------------------------------------------------------------
def multiplied(a, b, unit, output):
    """Return ``a b'`` by a unit: one that takes scales, or one that multiplies elements."""
    unit = UNITS[unit]
    judge, fused = Definition(unit), Definition(UNITS["cdna3_fp32"])
    own = [x.format.element if x.format else BF16 for x in (a, b)]
    formats = [x if x in unit.inputs else unit.input for x in own]
    tensors = [x.tensor for x in (a, b) if x.tensor is not None]
    found = np.zeros((len(a.elements), len(b.elements)), np.float32)
    size = max(a.along, b.along)
    for i, j in np.ndindex(*found.shape):
        left, right = ([float(v) for v in x.elements[k]] for x, k in ((a, i), (b, j)))
        by = 1.0
        for tensor in tensors:
            by = times(by, tensor)
        if unit.scales:
            scales = [x.scales(k, x.along) for x, k in ((a, i), (b, j))]
            total = judge.element(left, right, 0.0, formats, scales, size)
        elif size:
            total = 0.0
            shared = [x.scales(k, size) or [1.0] * len(left) for x, k in ((a, i), (b, j))]
            for block, start in enumerate(range(0, len(left), size)):
                part = slice(start, start + size)
                sums = judge.element(left[part], right[part], 0.0, formats)
                total = fused._fused(times(shared[0][block], shared[1][block]), sums, total)
        else:
            total = judge.element(left, right, 0.0, formats)
            if a.format and len(left):
                by = times(float(a.scale[i, 0]), float(b.scale[j, 0]))
        found[i, j] = times(total, by) if tensors or (a.format and not size) else total
    return to_output(found, output)


def to_output(x, output):
    if output is None:
        return x
    made = [[round_float(float(a), output) for a in row] for row in x]
    return np.array(made, np.float32).reshape(x.shape)


class Layer:
    """A layer by a paper, as `mcfsim.recipes.linear` has it; `unit` sums all products."""

    def __init__(self, paper, x, weight, words, unit):
        self.paper, self.words, self.unit = paper, words, unit
        self.x, self.weight = (np.asarray(a, np.float32) for a in (x, weight))
        self.taken = self.operands("forward", self.x, self.weight)
        self.y = multiplied(*self.taken, unit, paper.forward.output)

    def operands(self, name, left, right):
        way, number = getattr(self.paper, name), ("forward", "dgrad", "wgrad").index(name)
        quantised, signs = [], tuple(self.signs(name))
        for side, (x, kind) in enumerate(((left, way.left), (right, way.right))):
            own = None if self.words is None else self.words.of(4 * (2 * number + side))
            quantised.append(entered(np.float32(x).tobytes(), x.shape, way.order, signs, kind, own))
        return quantised

    def signs(self, name):
        way, number = getattr(self.paper, name), ("forward", "dgrad", "wgrad").index(name)
        if way.signs == "te":
            return TE_SIGNS
        if way.signs != "random":
            return [1.0] * way.order
        drawn = self.words.of(24 + 4 * number).words(0, way.order)
        return [-1.0 if word >> 31 else 1.0 for word in drawn.tolist()]

    def gradient(self, name, dy, letter):
        """Return dX for the weights' letter and dW for the activations'."""
        way, forward = getattr(self.paper, name), self.paper.forward
        given = {"w": self.weight, "x": self.x}[letter]
        through = letter in self.paper.taken
        quantised = self.taken[letter == "w"]
        right = quantised.values if through else given
        found = multiplied(*self.operands(name, dy, right.T), self.unit, way.output)
        wanted = self.taken[letter != "w"]
        if through and wanted.format and str(wanted.format.rule) == "quest":
            for place, clipped in np.ndenumerate(wanted.clipped):
                found[place] = times(float(found[place]), 0.0 if clipped else 1.0)
        if through and forward.order:
            found = rotated(found, forward.order, self.signs("forward"), back=True)
            found = to_output(found[:, : given.shape[1]], way.output)
        return found

    def backward(self, dy):
        dy = np.asarray(dy, np.float32)
        return self.gradient("dgrad", dy, "w"), self.gradient("wgrad", dy.T, "x")
