"""Matrix units (tensor cores, matrix cores): how each sums products, as data, and a table of named ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mcfsim.checks import check_int, chosen, hint
from mcfsim.formats import FORMATS, Format, Specials, get_format
from mcfsim.rounding import Mode

#: The most bits of an input's significand, so that a sum of binary64 cuts products of two exactly.
_MOST_BITS = 12
#: The most bits of an aligned sum in binary64.
_SUM_BITS = 50
#: Products of binary32 numbers have no exponent below minus this; that of a subnormal number is -126.
_MOST_BELOW = 252


class UnitSums(StrEnum):
    """The way in which a matrix unit adds the products of a group to what it carries, C.

    ``aligned``: E is the largest exponent of a product or of C. A product's exponent is the sum of its
    factors' exponents: it is not normalised again. Each term is cut (toward zero) to a multiple of
    ``2**(E - fraction_bits)``; their sum is exact, and rounded once. Scales of blocks join the exponents.
    ``aligned_sums``: as ``aligned``, with other terms: exact sums of 16 products, times the significands of
    both scales; the exponent of such a term is that of the scales alone.
    ``floored``: products are cut and summed as ``aligned``, without C. Let E now be the largest exponent,
    that of C included. The sum is rounded down to a multiple of ``2**(E - fraction_bits - 7)``, and C to one
    of ``2**(E - fraction_bits)``; their sum is rounded once. A product of 2**128 or more is infinite.
    ``floored_halves``: the same, with one sum of the products at even places and one of those at odd
    places, so k is at least 2; both are rounded down to the larger one's ``2**(E - fraction_bits)`` and
    added. A C more than ``fraction_bits + 1`` binades below E is left out.
    ``pairwise``: binary32 products and a binary32 tree of them, neighbours first, each rounded to nearest;
    then C plus that. k is a power of two.
    ``chain``: fused multiply-adds in order.
    """

    ALIGNED = "aligned"
    ALIGNED_SUMS = "aligned_sums"
    FLOORED = "floored"
    FLOORED_HALVES = "floored_halves"
    PAIRWISE = "pairwise"
    CHAIN = "chain"

    @property
    def aligns(self) -> bool:
        """Whether terms are cut at a multiple of a common power of two."""
        return self not in (UnitSums.PAIRWISE, UnitSums.CHAIN)

    @property
    def floors(self) -> bool:
        """Whether sums are rounded down before they are rounded to the output's format."""
        return self in (UnitSums.FLOORED, UnitSums.FLOORED_HALVES)


@dataclass(frozen=True)
class Unit:
    """A matrix unit: what it multiplies, how many products at a time, and where it cuts bits off.

    The products of an element are taken in groups of `k`, in ascending order. The result of a group, in the
    output format, is what the next group carries. A last group that is shorter is filled up with zeros.

    Parameters
    ----------
    name : str
        A label, ignored by comparison and hashing.
    inputs : Format or str or sequence of them
        Formats of the operands, which may differ. Arrays whose dtype names none of them have the first one.
    k : int
        Products of a group.
    fraction_bits : int or None
        Bits kept below the largest exponent; None for sums that align nothing.
    output : Format or str
        Format of the result, and of what is carried; with the zeros, infinities and NaN of IEEE 754.
    sums : str, optional
        See `UnitSums`.
    rounding : {"toward_zero", "nearest_even"}, optional
        How a sum is rounded into the output format. It overflows to infinity at ``2**(emax + 1)``, also
        toward zero.
    addend : Format or str, optional
        Format of C at the start; by default the output format.
    cut : bool, optional
        Whether binary32 operands lose their last 13 bits, so that a NaN with no other bits set becomes
        infinite; for tf32.
    flush : bool, optional
        Whether subnormal operands, addends and results become zeros.
    scales : sequence of Format or str, optional
        Formats of the scales; a unit that has any takes `Scaled` operands. The significands of an input and
        of a scale have at most 12 bits together, so that a product with both scales has 24.
    blocks : sequence of int, optional
        Lengths of blocks that share a scale.
    least_exponent : int or None, optional
        The least E of `aligned` sums, in which a zero has no exponent. With None it has the exponent -126, so
        that 0 times 2**127 cuts a C of 1. `hopper` units have -126, as an H200 shows.

    Raises
    ------
    TypeError
        If a number is not an int.
    ValueError
        If a name is unknown, a number is out of range, or fields contradict each other.

    Notes
    -----
    A zero has the exponent -126, or none (`least_exponent`). Subnormal numbers have the least exponent of
    their format (C and what is carried, the lesser of addend and output), and are not normalised. A result is
    NaN or infinite if the exact sum is. NaN is 0x7FFFFFFF, in float16 0x7FFF, and the usual quiet NaN where
    units do not align, or floor. Exact zeros are +0, and so are aligned sums that underflow, but no others.

    References
    ----------
    Xie, Wang, Yang, Yang, MMA-Sim: Bit-accurate reference model of tensor cores and matrix cores,
    arXiv 2511.10909, 2025. The model of a group is theirs; their program states each unit.
    Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7:e330,
    2021.
    Khattak, Mikaitis, Accurate models of NVIDIA tensor cores, arXiv 2512.07004, 2025. Their models of a group
    are these units with a `least_exponent` of ``output.emin + 18 - fraction_bits``.

    Examples
    --------
    >>> Unit("mine", "bf16", k=32, fraction_bits=20, output="fp32").input.name
    'bfloat16'
    """

    name: str = field(compare=False)
    inputs: tuple[Format, ...]
    _: KW_ONLY
    k: int
    fraction_bits: int | None
    output: Format
    sums: UnitSums = UnitSums.ALIGNED
    rounding: Mode = Mode.TOWARD_ZERO
    addend: Format | None = None
    cut: bool = False
    flush: bool = False
    scales: tuple[Format, ...] = ()
    blocks: tuple[int, ...] = ()
    least_exponent: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, not {self.name!r}")
        for label in ("inputs", "scales"):
            given = self._several(label, "formats", Format | str)
            object.__setattr__(self, label, tuple(map(get_format, given)))
        object.__setattr__(self, "output", get_format(self.output))
        object.__setattr__(self, "addend", get_format(self.addend or self.output))
        object.__setattr__(self, "sums", chosen("sums", self.sums, UnitSums))
        object.__setattr__(self, "rounding", chosen("rounding", self.rounding, Mode))
        object.__setattr__(self, "blocks", self._several("blocks", "lengths", int))
        if not self.inputs:
            raise ValueError("inputs: at least one format is needed")
        check_int("k", self.k, 1)
        for block in self.blocks:
            check_int("blocks", block, 1)
            if self.k % block or (block % 16 and self.sums is UnitSums.ALIGNED_SUMS):
                raise ValueError(
                    f"blocks of {block} do not divide a group of {self.k}, or hold no whole sums of 16"
                )
        if self.sums.aligns:
            self._check_aligned()
        elif self.fraction_bits is not None:
            raise ValueError(f"fraction_bits = {self.fraction_bits}: {self.sums!s} sums align nothing")
        else:
            self._check_rounded()
        if self.sums is UnitSums.FLOORED_HALVES and self.k < 2:
            raise ValueError(f"k = {self.k}: {self.sums!s} sums have products at even and at odd places")
        if self.sums is UnitSums.PAIRWISE and self.k & (self.k - 1):
            raise ValueError(f"k = {self.k}: {self.sums!s} sums are trees, and need a power of two")
        if bool(self.scales) != bool(self.blocks) or (self.sums is UnitSums.ALIGNED_SUMS and not self.scales):
            raise ValueError(f"scales and blocks go together, and {UnitSums.ALIGNED_SUMS!s} sums need them")
        if self.flush and self.sums is not UnitSums.PAIRWISE:
            raise ValueError(
                f"flush: {self.sums!s} sums keep subnormal numbers; only pairwise ones can flush"
            )
        if self.cut and set(self.inputs) != {FORMATS["tf32"]}:
            raise ValueError(f"cut: binary32 is cut to tf32, not to {', '.join(map(str, self.inputs))}")
        if self.least_exponent is not None:
            self._check_least_exponent(self.least_exponent)
        if self.scales and self.sums not in (UnitSums.ALIGNED, UnitSums.ALIGNED_SUMS):
            raise ValueError(f"{self.sums!s} sums take no scales")
        if self.scales:
            self._check_scales()

    def _several(self, label: str, what: str, one: Any) -> tuple[Any, ...]:
        """Return a field as a tuple; a single entry may be given by itself."""
        given = getattr(self, label)
        if isinstance(given, one):
            return (given,)
        if not isinstance(given, Iterable):
            raise TypeError(f"{label} must be a sequence of {what}, not {given!r}")
        return tuple(given)

    def _check_scales(self) -> None:
        """Refuse scales that make products too long for a sum to cut exactly."""
        bits = 2 * max(fmt.precision for fmt in self.inputs)
        if self.sums is UnitSums.ALIGNED_SUMS:
            bits = (16 * _quanta(self.inputs) ** 2).bit_length()
        most = (2 * _MOST_BITS - bits) // 2
        for fmt in self.scales:
            if type(fmt) is not Format or fmt.precision > most or fmt.emax > 127 or fmt.emin < -127:
                raise ValueError(
                    f"scales: {fmt} is no binary format of {most} bits and exponents from -127 to 127: "
                    f"a term of these inputs has {bits} bits, and with two scales at most {2 * _MOST_BITS}"
                )

    def _check_least_exponent(self, least: int) -> None:
        check_int("least_exponent", least, -_MOST_BELOW)
        if least > 127:
            raise ValueError(f"least_exponent = {least} must be at most 127")
        if self.sums is not UnitSums.ALIGNED or self.scales:
            kind = "scaled" if self.scales else str(self.sums)
            raise ValueError(
                f"least_exponent is for {UnitSums.ALIGNED!s} sums without scales, not for {kind} ones"
            )

    def _check_aligned(self) -> None:
        if self.fraction_bits is None:
            raise ValueError(f"{self.sums!s} sums need fraction_bits")
        check_int("fraction_bits", self.fraction_bits, 2)
        self._check_formats(self.inputs, _MOST_BITS, "inputs")
        self._check_formats([self.output, self.added], 24, "outputs and addends")
        if not (self.output.signed and self.output.zero and self.output.specials is Specials.IEEE):
            raise ValueError(f"output: {self.output} lacks a sign, a zero, infinity or NaN, which sums have")
        if self.rounding not in (Mode.TOWARD_ZERO, Mode.NEAREST_EVEN):
            raise ValueError(f"rounding {self.rounding!s}: a unit rounds toward_zero or to nearest_even")
        if self.sums is UnitSums.ALIGNED_SUMS and (_quanta(self.inputs) > 64 or self.k % 16):
            raise ValueError(f"{self.sums!s} sums take 4-bit numbers in multiples of 16, not {self.k}")
        terms, each = self.k, 2 if self.sums is UnitSums.ALIGNED else 9
        each += 2 * any(fmt.precision > 1 for fmt in self.scales)
        if self.sums is UnitSums.ALIGNED_SUMS:  # of 16 products of at most 36, times significands below 2
            terms, each = self.k // 16, 12
        if self.fraction_bits + each + terms.bit_length() > _SUM_BITS:
            raise ValueError(f"fraction_bits = {self.fraction_bits} and k = {self.k} are beyond binary64")

    def _check_rounded(self) -> None:
        allowed = ["float32", "float64"] if self.sums is UnitSums.CHAIN else ["float32"]
        if self.output not in map(get_format, allowed) or self.rounding is not Mode.NEAREST_EVEN:
            raise ValueError(f"{self.sums!s} sums round to nearest_even, in {' or '.join(allowed)}")
        if self.added != self.output:
            raise ValueError(f"{self.sums!s} sums have addends of their output format, {self.output}")
        self._check_formats(self.inputs, self.output.precision, "inputs", self.output.emax)

    def _check_formats(
        self, formats: list[Format] | tuple[Format, ...], most: int, label: str, emax: int = 127
    ) -> None:
        for fmt in formats:
            if type(fmt) is not Format or fmt.precision > most or fmt.emax > emax or fmt.emin < 1 - emax:
                raise ValueError(f"{label}: {fmt} is no binary format of {most} bits and exponents to {emax}")

    def check_parts(self, promote_every: int | None, split_k: int = 1) -> None:
        """Raise unless sums can begin again at zero, and be added in binary32; see `mcfsim.matmul`.

        Raises
        ------
        TypeError
            If a number is not an int.
        ValueError
            If a number is out of range or not a multiple of `k`, or binary32 does not hold the unit's
            results.
        """
        check_int("split_k", split_k, 1)
        if promote_every is not None:
            check_int("promote_every", promote_every, 1)
            if promote_every % self.k:
                raise ValueError(
                    f"promote_every = {promote_every} is no multiple of {self}'s {self.k} products"
                )
        if (promote_every is not None or split_k > 1) and self.output.precision > 24:
            raise ValueError(f"sums are added in binary32, which does not hold {self}'s {self.output}")

    def __str__(self) -> str:
        return self.name

    @property
    def input(self) -> Format:
        """The format of operands whose dtype does not say it."""
        return self.inputs[0]

    @property
    def added(self) -> Format:
        """The format of C."""
        return get_format(self.addend or self.output)


def _quanta(formats: tuple[Format, ...]) -> int:
    """Return the largest number of any of these formats, as a multiple of its smallest one."""
    return max(int(x.max / x.smallest_subnormal) for x in formats)


# -- the table --------------------------------------------------------------------------------------------
_E8M13 = Format("e8m13", precision=14, emin=-126, emax=127)
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_SMALL = (*_FP8, "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn")


def _unit(name: str, inputs: Any, k: int, bits: int | None, output: Any = "float32", **fields: Any) -> Unit:
    """Return a unit of formats given by name; `bits` are its fraction bits."""
    return Unit(name, inputs, k=k, fraction_bits=bits, output=output, **fields)


def _nvidia(
    name: str, bits: int, groups: Mapping[str, int], fp8: tuple[int, int, Any] | None = None, **fields: Any
) -> Iterator[Unit]:
    """Return the units of an architecture, given how many products a group has for each input."""
    for kind, k in groups.items():
        yield _unit(f"{name}_{kind}", kind, k, bits, cut=kind == "tf32", **fields)
        if kind == "fp16":
            yield _unit(f"{name}_fp16_to_fp16", kind, k, bits, "float16", rounding="nearest_even", **fields)
    if fp8 is not None:
        k, bits, output = fp8
        taken = _FP8 if output == _E8M13 else _SMALL
        yield _unit(f"{name}_fp8", taken, k, bits, output, addend="float32", **fields)
        yield _unit(f"{name}_fp8_to_fp16", taken, k, bits, "float16", rounding="nearest_even", **fields)


def _nearest(name: str, sums: str, inputs: Any, k: int, bits: int | None = None, **fields: Any) -> Unit:
    """Return a unit that rounds to nearest even."""
    return _unit(name, inputs, k, bits, sums=sums, rounding="nearest_even", **fields)


def _units() -> Iterator[Unit]:
    yield from _nvidia("volta", 23, {"fp16": 4})
    yield from _nvidia("turing", 24, {"fp16": 8})
    yield from _nvidia("ampere", 24, {"fp16": 8, "bf16": 8, "tf32": 4})
    yield from _nvidia("ada", 24, {"fp16": 8, "bf16": 8, "tf32": 4}, (16, 13, _E8M13))
    of_hopper = {"fp16": 16, "bf16": 16, "tf32": 8}
    yield from _nvidia("hopper", 25, of_hopper, (32, 13, _E8M13), least_exponent=-126)
    yield from _nvidia("blackwell", 25, of_hopper, (32, 25, "float32"))
    yield _unit("blackwell_mxfp8", _SMALL, 32, 25, scales="float8_e8m0fnu", blocks=32)
    four: dict[str, Any] = {"sums": "aligned_sums", "blocks": (16, 32)}
    yield _unit("blackwell_mxfp4", "float4_e2m1fn", 64, 35, scales="float8_e8m0fnu", **four)
    yield _unit("blackwell_nvfp4", "float4_e2m1fn", 64, 35, scales="float8_e4m3fn", **four)
    for name in ("ampere", "ada", "hopper", "blackwell"):
        yield _nearest(f"{name}_fp64", "chain", "float64", 1, output="float64")
    for number in (1, 2, 3):
        yield _nearest(f"cdna{number}_fp32", "chain", "float32", 1)
    for number in (2, 3):
        yield _nearest(f"cdna{number}_fp64", "chain", "float64", 1, output="float64")
    for number in (1, 2):
        yield _nearest(f"cdna{number}_fp16", "pairwise", "float16", 4, flush=number == 2)
        yield _nearest(f"cdna{number}_bf16", "pairwise", "bfloat16", 2, flush=number == 2)
    yield _nearest("cdna2_bf16_1k", "pairwise", "bfloat16", 4, flush=True)
    yield _nearest("cdna3_fp16", "floored", "float16", 8, 24)
    yield _nearest("cdna3_bf16", "floored", "bfloat16", 8, 24)
    yield _nearest("cdna3_xf32", "floored", "tf32", 4, 24, cut=True)
    yield _nearest("cdna3_fp8", "floored_halves", ("float8_e4m3fnuz", "float8_e5m2fnuz"), 16, 24)


#: Units by name: architecture and inputs; results are float32 unless the name says another format.
UNITS: Mapping[str, Unit] = MappingProxyType({unit.name: unit for unit in _units()})


def get_unit(spec: Unit | str) -> Unit:
    """Return the unit with a name of `UNITS`; return a `Unit` unchanged.

    Raises
    ------
    TypeError
        If `spec` is neither a Unit nor a string.
    ValueError
        If the name is unknown; the message lists the known ones.

    Examples
    --------
    >>> get_unit("hopper_fp8").fraction_bits
    13
    """
    if isinstance(spec, Unit):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"unit must be a Unit or a name, not {spec!r}")
    name = spec.strip().lower().replace("-", "_")
    if name not in UNITS:
        known = ", ".join(UNITS)
        raise ValueError(
            f"unknown unit {spec!r}{hint(name, UNITS, 3)}; known units: {known}; or mcfsim.Unit(...)"
        )
    return UNITS[name]
