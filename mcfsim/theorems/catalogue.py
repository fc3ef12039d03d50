"""The statements that `verify` knows, each a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mcfsim.arithmetic import Arithmetic
from mcfsim.eft import fast_two_sum, split, two_prod_fma, two_sum
from mcfsim.theorems import statement as st
from mcfsim.theorems.statement import EVERY_MODE, Theorem


def difference(ar: Arithmetic, a: Any, b: Any) -> tuple[Any]:
    """Return ``a - b``, rounded, as a tuple."""
    return (ar.sub(a, b),)


def _catalogue(*theorems: Theorem) -> Mapping[str, Theorem]:
    return MappingProxyType({theorem.name: theorem for theorem in theorems})


#: By id.
THEOREMS: Mapping[str, Theorem] = _catalogue(
    Theorem(
        "sterbenz",
        difference,
        operands=2,
        where=st.within_factor_two,
        claim=st.exact_difference,
        statement="b/2 <= a <= 2b, of one sign: a - b is not rounded",
        source="Sterbenz, Floating-Point Computation, 1974, Theorem 4.3.1",
        modes=EVERY_MODE,
    ),
    Theorem(
        "two_sum",
        two_sum,
        operands=2,
        where=st.first_not_largest,
        claim=st.exact_sum,
        statement="|a + b| <= max, |a| < max: s + e = a + b exactly",
        source="Knuth, TAOCP 2, 4.2.2, Theorem B; overflow: Boldo, Graillat, Muller, TOMS 44(1), 2017",
    ),
    Theorem(
        "two_sum_any",
        two_sum,
        operands=2,
        where=st.sum_in_range,
        claim=st.exact_sum,
        statement="|a + b| <= max: s + e = a + b exactly (false: |a| = max can overflow on the way)",
        source="Boldo, Graillat, Muller, TOMS 44(1), 2017",
        holds=False,
    ),
    Theorem(
        "fast_two_sum",
        fast_two_sum,
        operands=2,
        where=st.ordered,
        claim=st.exact_sum,
        statement="|a| >= |b|, |a + b| <= max: s + e = a + b exactly",
        source="Dekker, Numer. Math. 18, 1971",
    ),
    Theorem(
        "fast_two_sum_unordered",
        fast_two_sum,
        operands=2,
        where=st.sum_in_range,
        claim=st.exact_sum,
        statement="|a + b| <= max, operands in any order: s + e = a + b exactly (false)",
        source="Dekker, Numer. Math. 18, 1971, on why operands are ordered",
        holds=False,
    ),
    Theorem(
        "split",
        split,
        operands=1,
        where=st.splits_in_range,
        claim=st.exact_split,
        statement="p >= 3, (2^s + 1) |x| <= max: high + low = x exactly, high in floor(p/2) bits",
        source="Veltkamp 1968; Dekker, Numer. Math. 18, 1971",
        precision=3,
    ),
    Theorem(
        "two_prod_fma",
        two_prod_fma,
        operands=2,
        where=st.product_of_quanta,
        claim=st.exact_product,
        statement="|a b| <= max, a b a multiple of the smallest subnormal: p + e = a b exactly",
        source="Boldo, Daumas, ARITH 2003",
        modes=EVERY_MODE,
    ),
    Theorem(
        "two_prod_fma_any",
        two_prod_fma,
        operands=2,
        where=st.product_in_range,
        claim=st.exact_product,
        statement="|a b| <= max: p + e = a b exactly (false where the product's error underflows)",
        source="Boldo, Daumas, ARITH 2003",
        holds=False,
    ),
)
