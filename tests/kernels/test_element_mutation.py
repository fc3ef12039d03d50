"""The text for one element altered in one place: a battery of hard cases must tell, or it is said why not.

What alterations there are is said in `element_mutants`, and what cases in `element_battery`.
"""

import numpy as np
import pytest

from mcfsim.oracle import same
from tests.shared.element_battery import Judge, battery
from tests.shared.element_mutants import MODULES, made, mutants, statements, unaltered

pytestmark = pytest.mark.slow

#: Of the cases, and of the mutants of each module, a test takes one in so many.
PARTS = 80


@pytest.fixture(scope="module")
def judge():
    return Judge()


#: Mutants that the battery lets live, below the reason why each gives the bits of the text.
ALIVE = """
# a changed sign has one operand, and so has a number of a code
gpu_verbs: _is_upper_half: _is_upper_half(x.operands[0]) -> -_is_upper_half(x.operands[0]); 0 -> -1; 0 -> -1 (2)
# operands in binary64 are no upper halves of codes of binary32
gpu_verbs: note_operation: _BFLOAT16 and (result.type is F32) -> _BFLOAT16
# shifts by nothing, either way
floats: _aligned_draw: bits < cut -> bits <= cut
# zero and what is exact round to themselves, whatever the sign
floats: round_float: x < 0.0 -> x <= 0.0
floats: _below_normal: code < 0 -> code <= 0; 0 -> 1 (2); 0 -> -1 (2)
floats: _within_range: code < 0 -> code <= 0; 0 -> 1; 0 -> -1; code >= 0 -> code > 0; 0 -> 1 (2); 0 -> -1 (2)
# at a quantum of one nothing is lost
floats: _below_normal: scale < 0 -> scale <= 0; 0 -> 1
# no number below 1 is so large
floats: _survives: 1.0 -> 2.0 (2)
# two exact steps in the other order
floats: _below_normal: first, second -> second, first
# an even power
floats: _below_normal: 2.0 -> -2.0 (3)
floats: _whole: 2.0 -> -2.0
# what is beyond the largest number's binade overflows, however it was rounded
floats: _by_addition: fmt.emax + 1 -> fmt.emax; 1 -> 0 (2)
# the same parity
floats: _by_code: fmt.bias - carrier.bias -> fmt.bias + carrier.bias; fmt.bias - carrier.bias -> carrier.bias - fmt.bias
# a longer text: what has the carrier's range takes the general way
floats: round_float: if fmt == _FLOAT32 and rounding.standard: -> if False:
floats: _within_range: rounded if clean else x.equals(x).select(rounded, -> x.equals(x).select(rounded,
floats: _within_range: rounded if keeps_nan else x.equals(x).select(rounded, -> x.equals(x).select(rounded,
floats: _within_range: if carries_over(x.type, fmt, rounding): -> if False:
floats: carries_over: 1 -> 2
codes: _decoded: if _is_top(fmt, kind): -> if False:
codes: encode_element: if _is_top(fmt, x.type): -> if False:
codes: _is_top: carrier.exponent_bits -> carrier.sign_bit; fmt.emin -> fmt.emax
element_rounding: is_kept: type(fmt) is Format -> type(fmt) is not Format
element_rounding: is_kept: type(fmt) is Format and has_range_of(carrier, fmt) and fmt.signed and fmt.zero: -> False:
# a truth value's negative is as true
floats: round_float: has_range_of(carrier, -> -has_range_of(carrier,
# by the code it rounds alike where addition has room
floats: _reaches: cut >= 2 -> cut > 2; 2 -> 3; cut <= carrier.bias -> cut < carrier.bias; 1 -> 2 (2); 1 -> 2 (3)
# at the boundary both ways agree
floats: round_float: abs(x) < float(fmt.smallest_normal) -> abs(x) <= float(fmt.smallest_normal)
element_rounding: round_grid: rounded < low -> rounded <= low; high < rounded -> high <= rounded
floats: _within_range: abs(x) <= largest -> abs(x) < largest
floats: _past_boundary: excess < half -> excess <= half
codes: _decoded: magnitude < 1 -> magnitude <= 1
codes: encode_element: magnitude < least -> magnitude <= least
# what exceeds one unit is rounded to one, by the format or by what is asked
floats: _past_boundary: -fmt.precision -> fmt.precision; -fmt.precision -> fmt.precision (3)
# a format without infinity or NaN saturates by itself
floats: _past_boundary: Overflow.SATURATE -> Overflow.IEEE
# a grid has one exponent
element_rounding: round_grid: fmt.emin -> fmt.emax
# only whether the least normal number is reached is asked, and of smaller numbers alone
floats: module: 0 -> 1
floats: _survives: Underflow.GRADUAL -> Underflow.FLUSH_BEFORE
# no text hands options on
operations: Binary64.evaluate: *operands, **options) -> *operands)
# an overflow is infinite
operations: _brought_back: y > 0.0 -> y >= 0.0; 0.0 -> 1.0
# nothing leaves the range of a wider machine
operations: _brought_back: if fmt.emax < CARRIERS[a.type].bias: -> if False:
# of such a range there are sums alone, which stay within the machine's where the format does
operations: _operated: operation == 'add' and (fmt.emax == CARRIERS[F64].bias) -> fmt.emax == CARRIERS[F64].bias
operations: _operated: 'add' and (fmt.emax == CARRIERS[F64].bias) -> 'add'
# the machine's largest number is carried over by any word but 0
operations: _operated: 1 -> 2 (6)
# a value is in the wider type already
operations: _leave: x.widen() -> x
# a quotient by zero has no residual
operations: _quotient: b < 0.0 -> b <= 0.0
# a sum of three terms, in another order: where the larger ones cancel, they do so exactly
operations: _fma: high, low -> low, high
# of what is exchanged the second makes a result odd that is odd already
operations: _fma: two_sum -> fast_two_sum; two_sum -> fast_two_sum (3)
# an absolute value has no sign to lose
operations: change_element: fmt.has_negative_zero or operation == 'abs' -> fmt.has_negative_zero
# a longer text: NaN is looked for where it is clean
element_rounding: round_element: word, clean=clean) -> word)
operations: Into.rounded: self.word, clean=self.clean) -> self.word)
operations: _rounded: residual=lost, clean=into.clean) -> residual=lost)
# a longer way that rounds alike
operations: _operated: if way == Way.NATIVE: -> if False:; Way.EXACT_WITHIN -> Way.STICKY_WITHIN
operations: _operated: Way.STICKY_WITHIN -> Way.EXACT_WITHIN; list(operands) if within else [x.widen() -> [x.widen()
operations: _operated: if way == Way.WIDE: -> if False:; 2 * fmt.precision <= 53 -> 2 * fmt.precision < 53; 53 -> 52
operations: _operated: if way in (Way.EXACT, Way.EXACT_WITHIN): -> if False:
operations: _narrows: 1 -> 0; CARRIERS[F32].place + 1 -> 1; CARRIERS[F32].place + 1 -> CARRIERS[F32].place
operations: _narrows: CARRIERS[F32].place + 1 -> CARRIERS[F32].place - 1
operations: _narrows: rounding.guard_bits <= CARRIERS[F32].place -> rounding.guard_bits < CARRIERS[F32].place
operations: _narrows: rounding.stochastic and fmt.emax == CARRIERS[F32].bias -> rounding.stochastic
operations: _narrows: rounding.stochastic and fmt.emax -> rounding.stochastic or fmt.emax
operations: _rounded: lost is not None and takes_residual(y.type, fmt, rounding) and (not overflows): -> False:
operations: _rounded: if narrowed: -> if False:; lost is not None -> lost is None
operations: _rounded: narrowed and (not carries_over(y.type, fmt, rounding)) -> narrowed
operations: _rounded: and (not carries_over(y.type, fmt, rounding)) -> or not carries_over(y.type, fmt, rounding); y.narrow() -> y
# any shift beyond the regime gives the sign
element_rounding: round_posit: carrier.sign_place -> carrier.place
# the sign is in no low bit
element_rounding: is_kept: x.bits() -> (-x).bits()
# every code above the largest number's, and of a NaN, is looked at, where there is none, too
codes: _decoded: codes.largest < codes.mask -> codes.largest <= codes.mask; codes.nan > codes.mask -> codes.nan >= codes.mask
codes: _decoded: number) if codes.nan > codes.mask else number -> number)
# the sign of NaN is nothing
codes: _decoded: beyond = number.like(NAN) -> beyond = -number.like(NAN)
# of a sign that is not positive, zeros are none; of equal numbers neither is above; operands in the other order
operations: select_element: sign < 0.0 -> sign <= 0.0; 0.0 -> 1.0 (2); b < a -> b <= a; a, b = operands -> b, a = operands
# NaN, with one operand or both
operations: select_element: a + b -> a - b
# the code of a value lies in the table
operations: function_element: (encode_element(x, fmt) & (1 << fmt.bits) - 1).cut() -> encode_element(x, fmt) & (1 << fmt.bits) - 1
operations: function_element: fmt) & (1 << fmt.bits) - 1 -> fmt); 1 << fmt.bits -> 1 >> fmt.bits; 1 -> 2; 1 -> 0
# -1 is the code of a NaN, which has no residual
floats: _inward: 0 -> -1
operations: make_odd: 0 -> -1
# all modes keep the values, and nothing else
element_rounding: is_kept: Rounding(Mode.TOWARD_ZERO) if isinstance(fmt, Posit) else Rounding() -> Rounding(Mode.TOWARD_ZERO)
element_rounding: is_kept: Rounding(Mode.TOWARD_ZERO) if isinstance(fmt, Posit) else Rounding() -> Rounding()
element_rounding: is_kept: Rounding(Mode.TOWARD_ZERO) if isinstance(fmt, Posit) else Rounding() -> Rounding() if isinstance(fmt, Posit) else Rounding(Mode.TOWARD_ZERO)
element_rounding: is_kept: Mode.TOWARD_ZERO -> Mode.TO_ODD
# one NaN is taken for another
element_rounding: round_posit: with_sign(x.like(NAN), code) -> x.like(NAN)
# a longer way to the same 32 bits
floats: _aligned_draw: draw if kind is I32 else draw.extend() -> draw.extend()
# up to which precision it is shown is for others to ask
operations: module: 24 -> 25; 24 -> 23
"""  # noqa: E501
ROWS = [row.split(": ", 2) for row in ALIVE.split("\n") if row and row[0] != "#"]
KNOWN = [f"{module}: {place}: {what}" for module, place, some in ROWS for what in some.split("; ")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("module", MODULES)
def test_mutants_are_noticed_but_those_that_are_excused(module, part, judge):
    some = mutants(module)[part::PARTS]
    alive = {str(mutant) for mutant in some if judge.against(mutant) is None}
    assert alive == {*KNOWN} & {*map(str, some)}


@pytest.mark.exhaustive
def test_every_statement_is_altered_and_what_is_excused_is_once(judge):
    every = {str(mutant): mutant for module in MODULES for mutant in mutants(module)}
    assert len(every) == sum(len(mutants(module)) for module in MODULES) > 1500
    for module in MODULES:
        assert unaltered(module) == []
        inside = {mutant.line for mutant in mutants(module)} - {None}
        assert len({x.lineno for x in statements(module)} - inside) <= 10  # of the modules themselves
        assert inside <= judge.carried_out(module)
    assert len(KNOWN) == len({*KNOWN})
    assert every.keys() >= {*KNOWN}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.sampled(PARTS, each=False)
def test_of_the_text_as_it_is_nothing_is_noticed_and_the_oracle_says_the_same(part):
    text, judged = made({}), 0
    for case in battery(part, PARTS):
        assert case.wrong(text) is None
        if case.oracle is not None:
            judged += 1
            with np.errstate(all="ignore"):
                assert same(case.oracle(), case.expected).all(), case.name
    assert judged > 9
