"""Statements in families: those of one family differ in exactly one thing that they reach, by a number."""

import re
import types
from collections import defaultdict, deque, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property, lru_cache, partial, wraps

import mpmath
import numpy as np

import mcfsim as mcf
from mcfsim.rounding import Mode
from mcfsim.theorems import claim, relative_error
from mcfsim.theorems.claims import all_of, bounded, error_relative_to, exact_sum, root_error, sum_of
from mcfsim.theorems.hypotheses import exponent_gap, hypothesis, of_format
from mcfsim.theorems.logic import OfFormat, Word
from mcfsim.theorems.symbolic import u
from tests.theorems.trying import mine

#: By its name: what makes a statement of a number.
FAMILIES = {}


def run(source, **names):
    space = {"__name__": "elsewhere", "np": np, "mcf": mcf, "types": types, "partial": partial}
    space |= {"lru_cache": lru_cache, "wraps": wraps, **names}
    exec(source, space)
    return space["test"]


def holding(x):
    """Return a test that reads one thing, by its closure."""
    return lambda t: t.finite & bool(x)


def _add(table, make):
    FAMILIES.update({name: partial(make, x) for name, x in table.items()})


# -- functions ----------------------------------------------------------------------------------------------
MODULE = "helpers = types.ModuleType('helpers')\nexec('def helper(x): return x >= {n}', vars(helpers))\n"
#: A test by its text, in which the number is written, or which reads it.
TEXTS = {
    "closure cell": "def f(c): return lambda t: abs(t['a']) >= c\ntest = f(N / 8)",
    "default": "def test(t, bound=N): return t['a'] >= bound",
    "keyword default": "def test(t, *, bound=N): return t['a'] >= bound",
    "a global": "def test(t): return t['a'] >= N",
    "global of a nested function": "def test(t):\n def inner(x): return x >= N\n return inner(t['a'])",
    "callee": "def helper(x): return x >= {n}\ndef test(t): return helper(t['a'])",
    "callee of a callee": "def f(x): return x >= {n}\ndef g(x): return f(x)\ndef test(t): return g(t['a'])",
    "global of a callee": "def helper(x): return x >= N\ndef test(t): return helper(t['a'])",
    "callees that call each other": (
        "def f(x, k): return x >= {n} if k else g(x, k + 1)\n"
        "def g(x, k): return f(x, k)\n"
        "def test(t): return g(t['a'], 0)"
    ),
    "constant of a lambda": "test = lambda t: t['a'] >= {n}",
    "method called": "def test(t): return t.results[0].method{n}()",
    "nested function": "def test(t):\n def inner(x): return x >= {n}\n return inner(t['a'])",
    "handler of an exception": "def test(t):\n try: return t['a'] >= 1\n except KeyError: return {n}",
    "partial argument": "test = partial(lambda bound, t: t['a'] >= bound, N)",
    "partial keyword": "test = partial(lambda t, bound: t['a'] >= bound, bound=N)",
    "attribute of a function": "def test(t): return t['a'] >= test.bound\ntest.bound = N",
    "what is remembered": "test = lru_cache(lambda t: t['a'] >= {n})",
    "what is wrapped": "@wraps(abs)\ndef test(t): return t['a'] >= {n}",
    "module": MODULE + "def test(t): return helpers.helper(t['a'])",
    "module by a text": MODULE + "def test(t): return getattr(helpers, 'helper')(t['a'])",
}
_add(TEXTS, lambda text, n: mine(said=run(text.format(n=n), N=n)))
SIGNS = ["<", "<=", ">", ">=", "==", "!="]
FAMILIES["operation"] = lambda n: mine(said=run(f"def test(t): return t['a'] {SIGNS[n % 6]} {n // 6}"))
FAMILIES["straight line"] = lambda n: mine(mcf.straight_line(lambda ar, a, b: (ar.mul(a, n), b)))


# -- what functions hold ------------------------------------------------------------------------------------
KINDS = {
    "a list": lambda n: [1, 2, n],
    "a list's order": lambda n: [*range(n), 99, *range(n, 30)],
    "a dict's value": lambda n: {"a": n},
    "a dict's key": lambda n: {n: 1},
    "a set": lambda n: {"a", "b", str(n)},
    "a frozen set": lambda n: frozenset({("x", n), ("y", 1)}),
    "a set of functions": lambda n: {abs, partial(pow, n)},
    "a tuple in a list in a dict": lambda n: {"x": [(1, (n,))]},
    "a deque": lambda n: deque([n], maxlen=3),
    "numbers": lambda n: np.arange(3.0) + n,
    "numbers' form": lambda n: np.zeros((n + 1, 2)),
    "numbers' type": lambda n: np.zeros(2, ["f4", "f8", "i4", "i8", "u1", "c8"][n % 6] + "," + f"({n},)f4"),
    "masked numbers": lambda n: np.ma.array(np.zeros(64), mask=np.arange(64) == n),
    "objects of NumPy": lambda n: np.array([Fraction(n, 3), None], object),
    "a number of NumPy": lambda n: np.float32(n),
    "a view": lambda n: np.arange(100)[n:],
    "a text": lambda n: f"text {n}",
    "bytes": lambda n: bytes([n]),
    "a fraction": lambda n: Fraction(n, 7),
    "a range": lambda n: range(n),
    "a slice": lambda n: slice(1, n),
    "a complex number": lambda n: complex(0, n),
    "a large number": lambda n: 10**5000 + n,
    "a name space": lambda n: types.SimpleNamespace(x=n),
    "a proxy": lambda n: types.MappingProxyType({"x": n}),
    "a format": lambda n: mcf.Format("same", precision=3 + n, emin=-20, emax=20),
    "kinds of numbers": lambda n: [1, 1.0, True, "1", b"1", 1j + 1, Fraction(1), None, -0.0, 0.0, 0][n % 11],
    "a method's instance": lambda n: [n].append,
    "a pattern": lambda n: re.compile(f"x{{{n}}}"),
    "a default of a dict": lambda n: defaultdict(lambda: n),
    "a named tuple": lambda n: namedtuple("Own", "a b")(1, n),
    "records": lambda n: np.rec.array([(n, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
    "a matrix of mpmath": lambda n: mpmath.matrix([n]),
    "random words by a seed": mcf.RandomWords,
    "an arithmetic": lambda n: mcf.arithmetic(f"e{2 + n % 5}m{1 + n // 5}"),
    "a function of numbers": lambda n: np.vectorize(lambda x: x >= n),
}
_add(KINDS, lambda make, n: mine(said=holding(make(n))))


# -- classes and instances ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bound:
    bound: object

    def test(self, t):
        return t["a"] >= self.bound

    @cached_property
    def twice(self):
        return 2 * self.bound


def of_class(body):
    return run(f"class Own:\n {body}\ndef test(t): return Own().get(t)")


def instance(n, body):
    return run(f"class Own:\n {body}\ntest = Own()\ntest.n = N", N=n)


HIDING = "def __getstate__(self): return {}\n def __reduce__(self): return Own, ()"
INSTANCES = {
    "a method's self": lambda n: Bound(n).test,
    "an instance that is called": lambda n: instance(n, "def __call__(self, t): return t['a'] >= self.n"),
    "a field of a field": lambda n: holding(Bound([Bound(n)])),
    "a slot": lambda n: holding(instance(n, "__slots__ = ('n',)")),
    "what a copy leaves out": lambda n: holding(instance(n, HIDING)),
    "items of a kind of list": lambda n: holding(run("class Own(list): pass\ntest = Own([N])", N=n)),
    "a method": lambda n: of_class(f"def get(self, t): return t['a'] >= {n}"),
    "a static method": lambda n: of_class(f"get = staticmethod(lambda t: t['a'] >= {n})"),
    "a method of a class": lambda n: of_class(f"get = classmethod(lambda own, t: t['a'] >= {n})"),
    "a property": lambda n: of_class(f"get = property(lambda self: lambda t: t['a'] >= {n})"),
    "a class's attribute": lambda n: of_class(f"x = {n}\n def get(self, t): return t['a'] >= self.x"),
    "a base": lambda n: run(f"class A:\n def get(self, t): return {n}\nclass B(A): pass\ntest = B().get"),
    "a member": lambda n: holding(IntEnum("Own", {"x": n}).x),
    "another member": lambda n: run("def test(t): return own(3)", own=IntEnum("Own", {"x": n, "y": 99})),
}
_add(INSTANCES, lambda make, n: mine(said=make(n)))


# -- what theorems have -------------------------------------------------------------------------------------
def near(constant):
    return relative_error(constant, sum_of("a", "b"), text="c u")


THEOREMS_PARTS = {
    "relative error": lambda n: {"said": near(n)},
    "relative error, a function": lambda n: {"said": near(lambda p: Fraction(n))},
    "relative error, a function of p": lambda n: {"said": near(lambda p: Fraction(p, n + 1))},
    "root": lambda n: {"said": root_error(lambda p: Fraction(n), sum_of("a"))},
    "reference": lambda n: {"said": error_relative_to(1, sum_of("a"), lambda t: t.exact("b") * n, text="c")},
    "several claims": lambda n: {"said": all_of(exact_sum(), near(n))},
    "error": lambda n: {"said": bounded(lambda t: t.exact("a") * n, sum_of("b"), 1)},
    "bound": lambda n: {"said": bounded(sum_of("a"), sum_of("b"), lambda p: Fraction(n))},
    "formula": lambda n: {"said": bounded(sum_of("a"), sum_of("b"), 1 + n * u)},
    "unit": lambda n: {"said": bounded(sum_of("a"), sum_of("b"), 1, unit=n)},
    "a constant of a term": lambda n: {"said": claim(Word("a") <= n * abs(Word("b")))},
    "a number of the format": lambda n: {"said": claim(Word("a") <= OfFormat("c", lambda fmt, _: n))},
    "words of the claim": lambda n: {"said": claim(f"words {n}", lambda t: t.finite)},
    "families": lambda n: {"families": lambda p: [(Fraction(n), Fraction(1))]},
    "witnesses": lambda n: {"witnesses": lambda fmt, rounding: [(n, 1)]},
    "gaps": lambda n: {"gaps": lambda p: (-n, p)},
    "worst": lambda n: {"worst": lambda p: Fraction(n)},
    "hypothesis": lambda n: {"where": [hypothesis("it is", lambda t: t["a"] >= n)]},
    "hypothesis of the library": lambda n: {"where": [exponent_gap("a", "b", n)]},
    "format of a hypothesis": lambda n: {"where": [of_format("it is", lambda fmt, _: fmt.precision > n)]},
    "rounding of a hypothesis": lambda n: {"where": [of_format("it is", lambda _, r: r.random_bits > n)]},
    "number of hypotheses": lambda n: {"where": [hypothesis("it is", lambda t: t.finite)] * n},
    "algorithm": lambda n: {"algorithm": lambda ar, a, b: (ar.mul(a, n), b)},
    "precision": lambda n: {"precision": n},
    "modes": lambda n: {"modes": list(Mode)[: 1 + n % 5], "precision": n // 5},
    "sharp": lambda n: {"sharp": f"text {n}"},
    "scaling": lambda n: {"scaling": ["common", "each", "square", "none"][n % 4], "precision": n // 4},
}
_add(THEOREMS_PARTS, lambda facts, n: mine(**facts(n)))
