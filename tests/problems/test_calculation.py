"""Transformers in a format: each result against a second text in single numbers, rounded by the judge."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim import Accumulator
from mcfsim.formats import get_format
from mcfsim.oracle import OracleArithmetic, round_float, round_fraction
from mcfsim.training.problems import LanguageModel, Llama
from mcfsim.training.problems.calculation import Calculation
from tests.problems.test_problems import TEXT, generic


# -- a second text ------------------------------------------------------------------------------------------
class Written:
    """A transformer's loss and gradient of a batch, number by number."""

    def __init__(self, model):
        self.model = model
        self.of, self.wide = (
            OracleArithmetic(getattr(model.calculation, x)) for x in ("format", "reductions")
        )
        self.depth = model.width // model.heads

    def round(self, x):
        return round_float(float(x), self.of.format)

    def widened(self, x):
        return round_float(x, self.wide.format)

    def product(self, a, b):
        """Return rows times a matrix: blocks of exact products are added and rounded."""
        by = self.model.calculation.products
        columns, size = list(zip(*b, strict=True)), by.block or len(b)

        def entry(row, column):
            if not any(row):
                return 0.0
            terms = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
            total = 0
            for start in range(0, len(terms), size):
                total = Fraction(round_fraction(total + sum(terms[start : start + size]), by.format))
            return float(round_fraction(total, self.of.format))

        return [[entry(row, column) for column in columns] for row in a]

    def added(self, a, b):
        return [[self.of.add(x, y) for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]

    def sum(self, terms):
        total, *rest = map(self.widened, terms)
        for term in rest:
            total = self.wide.add(total, term)
        return total

    def dot(self, x, y):
        pairs = zip(map(self.widened, x), map(self.widened, y), strict=True)
        return self.sum([self.wide.mul(a, b) for a, b in pairs])

    def normed(self, row):
        mean = self.wide.div(self.dot(row, row), float(len(row)))
        scale = self.round(self.wide.div(1.0, self.wide.sqrt(self.wide.add(mean, 1e-5))))
        return scale, [self.of.mul(x, scale) for x in row]

    def norm(self, rows, gain):
        return [[self.of.mul(x, g) for x, g in zip(self.normed(row)[1], gain, strict=True)] for row in rows]

    def norm_back(self, rows, gain, dy):
        of, found = self.of, []
        for row, d in zip(rows, dy, strict=True):
            scale, unit = self.normed(row)
            given = [of.mul(x, g) for x, g in zip(d, gain, strict=True)]
            share = self.round(self.wide.div(self.dot(given, unit), float(len(row))))
            found.append(
                [of.mul(scale, of.sub(x, of.mul(u, share))) for x, u in zip(given, unit, strict=True)]
            )
        units = [self.normed(row)[1] for row in rows]
        pairs = zip(zip(*dy, strict=True), zip(*units, strict=True), strict=True)
        return found, [self.product([d], [[x] for x in unit])[0][0] for d, unit in pairs]

    def softmax(self, row, ar=None):
        parts = [self.of.exp(self.of.sub(x, max(row))) for x in row]
        total = self.round(self.sum(parts))
        return [self.of.div(x, total) for x in parts]

    def turned(self, row, position, sign=1):
        if not isinstance(self.model, Llama):
            return row
        half, found = self.depth // 2, list(row)
        for i in range(half):
            with mpmath.workprec(400):
                angle = mpmath.mpf(position * float(mpmath.mpf(10_000) ** (mpmath.mpf(-i) / half)))
                c, s = (self.round_mp(f(angle)) for f in (mpmath.cos, mpmath.sin))
            x, y, of = row[i], row[half + i], self.of
            found[i] = of.sub(of.mul(x, c), of.mul(y, sign * s))
            found[half + i] = of.add(of.mul(y, c), of.mul(x, sign * s))
        return found

    def round_mp(self, x):
        sign, mantissa, exponent, _ = x._mpf_
        return float(round_fraction((-1) ** sign * mantissa * Fraction(2) ** exponent, self.of.format))

    def activation(self, row):
        if not isinstance(self.model, Llama):
            return [self.of.mul(max(x, 0.0), max(x, 0.0)) for x in row]
        half = len(row) // 2
        return [self.of.mul(self.silu(a)[0], b) for a, b in zip(row[:half], row[half:], strict=True)]

    def silu(self, a):
        of = self.of
        e = of.exp(-abs(a))
        share = of.div(1.0 if a >= 0 else e, of.add(1.0, e))
        value = of.mul(a, share)
        return value, of.add(share, of.mul(value, of.sub(1.0, share)))

    def activation_back(self, row, d):
        of, half = self.of, len(row) // 2
        if not isinstance(self.model, Llama):
            return [of.mul(of.mul(g, max(x, 0.0)), 2.0) for x, g in zip(row, d, strict=True)]
        triples = list(zip(row[:half], row[half:], d, strict=True))
        gates = [of.mul(of.mul(g, b), self.silu(a)[1]) for a, b, g in triples]
        return gates + [of.mul(g, self.silu(a)[0]) for a, b, g in triples]

    def attention(self, qkv, dmixed=None):
        """Return what heads mix, of one sequence; or the gradient by `qkv`."""
        of, length, width, depth = self.of, len(qkv), self.model.width, self.depth
        mixed, back = [[] for _ in qkv], [[[], [], []] for _ in qkv]
        for head in range(0, width, depth):
            q, k, v = ([row[start + head :][:depth] for row in qkv] for start in (0, width, 2 * width))
            scale = 1 / math.sqrt(depth)
            q = [self.turned([of.mul(x, scale) for x in row], i) for i, row in enumerate(q)]
            k = [self.turned(row, i) for i, row in enumerate(k)]
            scores = self.product(q, list(zip(*k, strict=True)))
            weights = [self.softmax(row[: i + 1]) + [0.0] * (length - i - 1) for i, row in enumerate(scores)]
            for i, row in enumerate(self.product(weights, v)):
                mixed[i] += row
            if dmixed is None:
                continue
            d = [row[head:][:depth] for row in dmixed]
            dweights, dscores = self.product(d, list(zip(*v, strict=True))), []
            for i, (p, g) in enumerate(zip(weights, dweights, strict=True)):
                shared = self.round(self.dot(p[: i + 1], g[: i + 1]))
                row = [of.mul(a, of.sub(b, shared)) for a, b in zip(p[: i + 1], g[: i + 1], strict=True)]
                dscores.append(row + [0.0] * (length - i - 1))
            dq, dk = self.product(dscores, k), self.product(list(zip(*dscores, strict=True)), q)
            dv = self.product(list(zip(*weights, strict=True)), d)
            for i in range(length):
                back[i][0] += [of.mul(x, scale) for x in self.turned(dq[i], i, -1)]
                back[i][1] += self.turned(dk[i], i, -1)
                back[i][2] += dv[i]
        return mixed if dmixed is None else [[*q, *k, *v] for q, k, v in back]

    def by_sequence(self, function, *rows):
        length = self.model.context
        starts = range(0, len(rows[0]), length)
        return [row for start in starts for row in function(*(x[start : start + length] for x in rows))]

    def loss_and_gradient(self, parameters, windows):
        model, of = self.model, self.of
        w = {name: np.vectorize(self.round)(x).tolist() for name, x in parameters.items()}
        tokens, targets = windows[:, :-1].ravel().tolist(), windows[:, 1:].ravel().tolist()
        stream, gradient, saved = [w["embedding"][t] for t in tokens], {}, []
        if "positions" in w:
            stream = self.added(stream, w["positions"] * model.batch)
        for layer in range(model.layers):
            for kind, into, out in (("attention", "qkv", "out"), ("mlp", "up", "down")):
                names = [f"layer{layer}.{kind}.{name}" for name in ("gain", into, out)]
                normal = self.norm(stream, w[names[0]])
                inside = self.product(normal, w[names[1]])
                attends = kind == "attention"
                mixed = (
                    self.by_sequence(self.attention, inside) if attends else [*map(self.activation, inside)]
                )
                saved.append((names, stream, normal, inside, mixed))
                stream = self.added(stream, self.product(mixed, w[names[2]]))
        normal, head = self.norm(stream, w["gain"]), "head" if "head" in w else "embedding"
        logits = self.product(normal, list(zip(*w[head], strict=True)))
        losses, dlogits = [], []
        for row, target in zip(logits, targets, strict=True):
            raised = [*map(self.widened, row)]
            below = [self.wide.sub(x, max(raised)) for x in raised]
            total = self.sum([self.wide.exp(x) for x in below])
            losses.append(-self.wide.sub(below[target], self.wide.log(total)))
            d = [of.sub(p, float(i == target)) for i, p in enumerate(self.softmax(row))]
            dlogits.append([of.div(x, float(len(tokens))) for x in d])

        def turn(rows):
            return list(zip(*rows, strict=True))

        dhead = self.product(turn(dlogits), normal)
        d, gradient["gain"] = self.norm_back(stream, w["gain"], self.product(dlogits, w[head]))
        for names, before, normal, inside, mixed in reversed(saved):
            gradient[names[2]] = self.product(turn(mixed), d)
            dmixed = self.product(d, turn(w[names[2]]))
            if "attention" in names[0]:
                dinside = self.by_sequence(self.attention, inside, dmixed)
            else:
                dinside = [self.activation_back(*rows) for rows in zip(inside, dmixed, strict=True)]
            gradient[names[1]] = self.product(turn(normal), dinside)
            dstream, gradient[names[0]] = self.norm_back(
                before, w[names[0]], self.product(dinside, turn(w[names[1]]))
            )
            d = self.added(d, dstream)
        if "positions" in w:
            sequences = np.reshape(d, (model.batch, -1)).tolist()
            (summed,) = self.product([[1.0] * model.batch], sequences)
            gradient["positions"] = np.reshape(summed, (model.context, model.width))
        ones = [[float(t == i) for t in tokens] for i in range(256)]
        gradient["embedding"] = self.product(ones, d)
        if "head" in w:
            gradient["head"] = dhead
        else:
            gradient["embedding"] = self.added(gradient["embedding"], dhead)
        return math.fsum(losses) / len(losses), gradient


CALCULATIONS = [
    (LanguageModel, Calculation("bfloat16", "float32", Accumulator(get_format("float32"), block=2))),
    (Llama, Calculation("float16", "bfloat16")),
    (LanguageModel, Calculation("float8_e5m2", "float16", Accumulator(get_format("bfloat16"), block=None))),
    (Llama, Calculation("bfloat16", "bfloat16", Accumulator(get_format("bfloat16"), block=1))),
]


def small(kind, calculation, **more):
    shape = {"layers": 1, "width": 4, "heads": 2, "context": 2, "batch": 2, **more}
    return kind(TEXT, calculation=calculation, **shape)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "calculation"), CALCULATIONS)
@pytest.mark.sampled(2, each=False)
def test_every_result_is_rounded_where_the_documentation_says(kind, calculation):
    model = small(kind, calculation, **({"heads": 1, "context": 3, "batch": 1} if kind is Llama else {}))
    parameters = generic(model)  # no values of the format: they are rounded first
    loss, gradient = model.loss_and_gradient(parameters, 1, 2)
    right, judged = Written(model).loss_and_gradient(parameters, model.training_batch(1, 2))
    assert loss == right
    assert gradient.keys() == judged.keys()
    for name, found in gradient.items():
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.array(judged[name]), err_msg=name)
