"""Statements on two values a and b, drawn at random: algorithms of a few steps, and propositions on them."""

from fractions import Fraction

from mcfsim.formats import Format
from mcfsim.rounding import DETERMINISTIC, Overflow, Rounding, Underflow
from mcfsim.theorems import logic as lg
from mcfsim.theorems.claims import Claim
from mcfsim.theorems.hypotheses import hypothesis
from tests.theorems.trying import PAIR, mine, text_at_random

FORMATS = [
    Format("", precision=3, emin=-7, emax=8),
    Format("", precision=3, emin=-6, emax=8, specials="fn"),  # which lacks the largest significand
    Format("", precision=2, emin=-6, emax=7),
    Format("", precision=4, emin=-9, emax=8, specials="none"),
]
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "neg": 1, "abs": 1, "scale": 1, "divided": 1}


def algorithm(draw):
    """Return a text of a few random steps, which need not scale; its results are the last two numbers."""
    text = text_at_random(draw, 2, ARITY, (0.5, 3.0, -1.25, 0.0, 12.0))
    return lambda ar, *given: (*given, *text(ar, *given))[-2:]


def constant(draw):
    shown = Fraction(draw.choice((1, 3))) * Fraction(2) ** draw.randint(-12, 12)
    return draw.choice((lg.LARGEST, lg.SMALLEST_NORMAL, lg.SMALLEST, shown, shown, -shown))


def term(draw, depth=2):
    kind = draw.randrange(9) if depth else draw.randrange(4)
    if kind < 2:
        return draw.choice((lg.Word, lg.Operand))("ab"[kind])
    if kind < 4:
        return lg.Result(draw.randrange(2)) if kind == 2 else lg.Results()
    if kind == 4:
        return abs(term(draw, depth - 1))
    if kind == 5:
        return term(draw, depth - 1) * draw.choice((Fraction(1, 4), 3, term(draw, depth - 1)))
    if kind == 6:
        return lg.Ulp(lg.Word(draw.choice("ab")))
    if kind == 7:
        return abs(lg.UlpTowards(lg.Word(draw.choice("ab")), term(draw, 0)))
    return term(draw, depth - 1) - term(draw, depth - 1)


def exponents(draw):
    x, y = (
        lg.Exponent(draw.choice((lg.Word("a"), lg.Word("b"), lg.Result(draw.randrange(2))))) for _ in range(2)
    )
    form = draw.choice((x, x + y, x - y, abs(x - y)))
    number = draw.randint(-9, 9)
    bound = lg.OfFormat("some", lambda *_: number)
    return draw.choice((form <= bound, form >= bound, form < bound, lg.equal(form, bound), x <= y))


def proposition(draw, depth=1):
    kind = draw.randrange(10 if depth else 7)
    if kind < 2:
        x, y = term(draw), draw.choice((term, constant))(draw)
        return draw.choice((x <= y, x < y, x >= y, x > y, lg.equal(x, y)))
    if kind == 2:
        return lg.IsValue(term(draw))
    if kind == 3:
        return draw.choice(
            (
                lg.IsMultiple(term(draw, 0), lg.Ulp(lg.Word("b"))),
                lg.IsMultiple(lg.Word("a") * lg.Word("b"), lg.SMALLEST),
            )
        )
    if kind == 4:
        return exponents(draw)
    if kind == 5:
        return lg.Finite(lg.Result(draw.randrange(2)))
    if kind == 6:
        return lg.Within(term(draw), term(draw), lg.Bound(1, 1))
    one, other = proposition(draw, 0), proposition(draw, 0)
    return draw.choice(
        (one & other, one | other, ~one, one & lg.HasBits(lg.Word("a"), lg.OfFormat("2", lambda *_: 2)))
    )


def statement(draw, proposition=proposition):
    """Return a statement, which need not scale, a format and a rounding."""
    fmt, scaling = draw.choice(FORMATS), draw.choice(("each", "common"))
    rounding = Rounding(
        draw.choice(DETERMINISTIC),
        overflow=draw.choice([Overflow.IEEE, Overflow.SATURATE]),
        underflow=draw.choice([Underflow.GRADUAL, *Underflow]),
    )
    where = [hypothesis(proposition(draw))] if draw.random() < 0.4 else []
    return mine(algorithm(draw), Claim(proposition(draw)), PAIR, where=where, scaling=scaling), fmt, rounding
