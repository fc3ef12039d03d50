"""Stochastic rounding: expectations and paths, against all draws, one by one."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Rule
from mcfsim.theorems import THEOREMS, Verdict, value, verify
from mcfsim.theorems.catalogue import stochastic
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.operands import finite_values
from tests.theorems.trying import mine

pytestmark = pytest.mark.slow

P3 = Format("p3", precision=3, emin=-4, emax=4)


def stochastically(random_bits=16, rule=Rule.TRUNCATE):
    return Rounding("stochastic", random_bits=random_bits, rule=rule)


def pairs(fmt, first=slice(None)):
    values = np.unique(finite_values(fmt) + 0.0)  # one zero
    some = values[first]
    return np.repeat(some, values.size), np.tile(values, some.size)


@dataclass(frozen=True)
class Script(RandomWords):
    """Random words of which each operation has one number in its highest bits."""

    numbers: tuple[int, ...] = ()

    def draws(self, start, count, bits):
        return np.full(count, self.numbers[self.operation] << (16 - bits), np.uint16)


def drawn(algorithm, operations, rounding, a, b):
    emulator = BlockArithmetic(P3, rounding, "exact")
    for numbers in itertools.product(range(2**rounding.random_bits), repeat=operations):
        block = emulator.at(Script(0, numbers=numbers), 0)
        with np.errstate(all="ignore"):
            yield algorithm(block, a, b)
        assert block.operations == operations


def everything(ar, a, b):
    return ar.fma(ar.sqrt(ar.abs(a)), ar.neg(b), ar.round(ar.div(a, 3.0)))


def codes(case, results):
    """Number results: in units of the smallest number, and what is not finite as none of these."""
    for x in results if isinstance(results, tuple) else (results,):
        with np.errstate(invalid="ignore"):
            units = np.where(np.isfinite(x), x * 2.0**6, 2000 + np.isnan(x))
        case = case * 4096 + units.astype(np.int64) + 2048
    return case


TEXTS = [(THEOREMS["sr_unbiased"].algorithm, 1, 6), (everything, 4, 2)]
TEXTS += [(mcf.fast_two_sum, 3, 2), (mcf.two_sum, 6, 1)]


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize(("algorithm", "operations", "random_bits"), TEXTS)
@pytest.mark.sampled(6)
def test_paths_have_the_share_of_all_draws_that_lead_to_them(rule, algorithm, operations, random_bits):
    a, b = (x.astype(np.float32) for x in pairs(P3, slice(None, None, 8)))
    rounding = stochastically(random_bits, rule)
    made = [codes(np.arange(a.size), x) for x in drawn(algorithm, operations, rounding, a, b)]
    expected, counts = np.unique(np.concatenate(made), return_counts=True)
    ar = BlockArithmetic(P3, rounding, "exact")
    paths = try_block(replace(THEOREMS["two_sum"], algorithm=algorithm), ar, [a, b])
    found, which = np.unique(codes(paths.whose, paths.results), return_inverse=True)
    shares = np.bincount(which, weights=paths.probability.numbers())
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(shares * 2 ** (operations * random_bits), counts)


# -- verdicts -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "rule"), [(theorem.name, rule) for theorem in stochastic.THEOREMS for rule in theorem.rules]
)
@pytest.mark.sampled(24, each=False)
def test_verdicts_by_every_rule(name, rule):
    theorem = THEOREMS[name]
    certificate = verify(theorem, "float8_e5m2", stochastically(2, rule))
    assert certificate.as_expected
    assert certificate.covers
    assert certificate.applicable > 1000
    expected = "open" if theorem.name == "sr_unbiased_any" else "holds" if theorem.holds else "fails"
    assert certificate.expected == expected


FOUND = [
    ("sr_unbiased_any", "float8_e4m3fn", 8, 63804, 10108, None),
    ("sr_unbiased_any", "float8_e5m2", 32, 60952, 0, None),
    ("sr_variance", "float8_e4m3fn", 16, 63680, 0, "1/4"),
    ("sr_bias", "float8_e5m2", 16, 61140, 0, "8191/8192"),
    ("two_sum_sr", "float8_e5m2", 32, 60722, 0, None),
    ("fast_two_sum_sr_exact", "float8_e4m3fn", 16, 34226, 13440, None),
    ("sr_fast_two_sum_path_error", "float8_e4m3fn", 16, 34226, 0, "87296/43691"),
    ("sr_fast_two_sum_path_error_unordered", "float8_e4m3fn", 16, 63460, 24896, "768/17"),
    ("sr_two_sum_path_error", "float8_e5m2", 32, 60722, 0, "4294967232/2147483647"),
]


@pytest.mark.parametrize(("name", "fmt", "random_bits", "applicable", "violations", "constant"), FOUND)
@pytest.mark.sampled(9, each=False)
def test_counts_and_constants(name, fmt, random_bits, applicable, violations, constant):
    certificate = verify(name, fmt, stochastically(random_bits))
    assert (certificate.applicable, certificate.violations) == (applicable, violations)
    assert (certificate.worst and certificate.worst.constant) == constant


@pytest.mark.parametrize("name", ["fast_two_sum_sr_near", "two_sum_sr_near"])
@pytest.mark.parametrize("p", [2, 3, *(pytest.param(p, marks=pytest.mark.exhaustive) for p in (4, 5, 6))])
def test_near_operands_lose_nothing_on_any_path_and_those_one_further_do(name, p):
    fmt, rounding = Format(f"p{p}", precision=p, emin=-p - 3, emax=p + 3), stochastically(32)
    assert verify(name, fmt, rounding).verdict is Verdict.VERIFIED
    a, b = np.float32([1.0]), np.float32([(1 + 2.0 ** (1 - p)) * 2.0 ** (-p - 1)])
    paths = try_block(THEOREMS[name], BlockArithmetic(fmt, rounding, "exact"), [a, b])
    assert not (paths.result() - paths.exact("a") - paths.exact("b")).is_zero().all()


# -- certificates and refusals ------------------------------------------------------------------------------
def test_a_certificate_says_what_was_drawn_and_a_witness_has_every_path():
    certificate = verify("fast_two_sum_sr_exact", P3, stochastically(2))
    operands = [np.float32([float(x)]) for x in certificate.simplest.operands]
    results = list(map(float, certificate.simplest.results))
    found = {(float(s[0]), float(e[0])) for s, e in drawn(mcf.fast_two_sum, 3, stochastically(2), *operands)}
    assert set(zip(results[::2], results[1::2], strict=True)) == found
    assert any(s + e != sum(operands)[0] for s, e in found)
    certificate = verify("two_sum_sr_exact", "float8_e5m2", stochastically(5, Rule.CENTRED))
    (draws,) = certificate.reductions
    assert ("2^5" in draws, "centred" in draws, certificate.rounding) == (True, True, "stochastic")
    sampled = verify("two_sum_sr", "bfloat16", "stochastic", samples=1 << 12)
    assert sampled.verdict is Verdict.SAMPLED
    assert {part.kind for part in sampled.parts} == {"sample"}


def test_a_name_takes_the_rule_of_the_statement():
    assert "centred" in verify("sr_bias_centred", "float8_e5m2", "stochastic").reductions[0]
    other = verify("sr_bias_centred", "float8_e5m2", stochastically(2, Rule.TRUNCATE))
    assert (other.expected, other.holds) == ("open", False)


def test_rules_and_modes_that_do_not_fit():
    for rules, problem in (((), "has no rule"), (("fair",), "fair")):
        with pytest.raises(ValueError, match=problem):
            replace(THEOREMS["sr_bias"], rules=rules)
    with pytest.raises(ValueError, match="'two_sum' says nothing about stochastic rounding"):
        verify("two_sum", "float8_e5m2", "stochastic")
    for theorem in stochastic.THEOREMS:
        assert theorem.modes == {Mode.STOCHASTIC}
        assert verify(theorem, P3, "nearest_even").expected == "open"


def test_an_operation_on_numbers_alone_draws_for_all_cases():
    """A third is 2.67 units of 1/8, and 2.5 of them with two random bits: half of the draws give 3."""
    text = mine(lambda ar, a: ar.div(1.0, 3.0), lambda t: t.results[0] > 0, (value("a"),))
    fmt = Format("", precision=2, emin=-4, emax=4)
    found = try_block(text, BlockArithmetic(fmt, stochastically(2), "exact"), [np.ones(3)])
    assert found.results[0].tolist() == 3 * [0.25, 0.375]
    assert (found.probability == Exact(np.ones(6), -1, 1)).all()
    assert found.whose.tolist() == [0, 0, 1, 1, 2, 2]
