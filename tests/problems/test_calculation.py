"""Transformers in a format: each result against a second text in single numbers, rounded by the judge."""

import json
import math
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest

from mcfsim import Accumulator, arithmetic, functions, get_problem, round_to
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import OracleArithmetic, round_float, round_fraction
from mcfsim.training.problems import Digits, LanguageModel, Llama, _rounded_transformer, _transformer
from mcfsim.training.problems._transformer import matmul
from mcfsim.training.problems.calculation import Calculation
from tests.problems.test_digits import batch
from tests.problems.test_problems import TEXT, generic


# -- a second text ------------------------------------------------------------------------------------------
class Written:
    """A transformer's loss and gradient of a batch, number by number."""

    def __init__(self, model):
        self.model = model
        self.of, self.wide = (
            OracleArithmetic(getattr(model.calculation, x)) for x in ("format", "reductions")
        )

    def round(self, x):
        return round_float(float(x), self.of.format)

    def widened(self, x):
        return round_float(x, self.wide.format)

    @property
    def depth(self):
        return self.model.width // self.model.heads

    def product(self, a, b, first=None):
        """Return rows times a matrix: blocks of exact products are added to a first number, and rounded."""
        by = self.model.calculation.products
        columns, size = list(zip(*b, strict=True)), by.block or len(b)

        def entry(row, column, total):
            if not any(row) and not total:
                return 0.0
            terms = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
            for start in range(0, len(terms), size):
                total = Fraction(round_fraction(total + sum(terms[start : start + size]), by.format))
            return float(round_fraction(total, self.of.format))

        pairs = [*zip(columns, map(Fraction, first or [0] * len(columns)), strict=True)]
        return [[entry(row, column, added) for column, added in pairs] for row in a]

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

    def scored(self, row, target):
        """Return the loss of a row of scores, and its gradient."""
        raised = [*map(self.widened, row)]
        below = [self.wide.sub(x, max(raised)) for x in raised]
        total = self.sum([self.wide.exp(x) for x in below])
        loss = -self.wide.sub(below[target], self.wide.log(total))
        return loss, [self.of.sub(p, float(i == target)) for i, p in enumerate(self.softmax(row))]

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
            loss, d = self.scored(row, target)
            losses.append(loss)
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
@pytest.mark.sampled(4, each=False)
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


@pytest.mark.parametrize("text", ["bfloat16,bfloat16,float32,3", "float8_e4m3fn,bfloat16,bfloat16,4"])
@pytest.mark.slow
def test_digits_by_a_calculation(text):
    problem = Digits(hidden=3, batch=2, calculation=text)
    parameters, written = generic(problem), Written(problem)
    loss, gradient = problem.loss_and_gradient(parameters, 1, 2)
    images, labels = batch(problem, 1, 2)
    w = {name: np.vectorize(written.round)(x).tolist() for name, x in parameters.items()}
    x = np.vectorize(written.round)(images).tolist()
    inside = written.product(x, w["hidden.weight"], w["hidden.bias"])
    active = [[max(z, 0.0) for z in row] for row in inside]
    scores = written.product(active, w["output.weight"], w["output.bias"])
    losses, errors = zip(*map(written.scored, scores, labels), strict=True)
    errors = [[written.of.div(d, 2.0) for d in row] for row in errors]
    back = written.product(errors, np.transpose(w["output.weight"]).tolist())
    back = [
        [d if z > 0 else 0.0 for d, z in zip(*rows, strict=True)] for rows in zip(back, active, strict=True)
    ]
    judged = []
    for given, d in ((x, back), (active, errors)):
        judged += [written.product(np.transpose(given).tolist(), d), written.product([[1.0, 1.0]], d)[0]]
    assert loss == math.fsum(losses) / 2
    assert problem.validation_loss(parameters) == pytest.approx(loss, rel=0.5)
    for found, right in zip(gradient.values(), judged, strict=True):
        np.testing.assert_array_equal(found, right)
    with pytest.raises(ValueError, match="a calculation says what format, loss_format and sums would"):
        Digits(format="bfloat16", calculation=text)


def bits(model, parameters):
    loss, gradient = model.loss_and_gradient(parameters, 1, 2)
    return [loss, *(x.tobytes() for x in gradient.values())]


@pytest.mark.slow
def test_each_entry_of_a_calculation_matters_and_data_and_texts_are_read_as_one():
    texts = [
        "bfloat16",
        "float8_e5m2",
        "bfloat16,bfloat16",
        "bfloat16,float32,bfloat16",
        "bfloat16,float32,blas",
    ]
    texts += ["bfloat16,float32,bfloat16,3", "float8_e5m2,bfloat16, bfloat16,all"]
    pairwise = Accumulator(get_format("bfloat16"), block=1, order="pairwise", products="rounded")
    given = [*texts, Calculation("bfloat16", "float32", pairwise), Calculation("bfloat16", "float32", "blas")]
    found = []
    for calculation in given:
        model = small(LanguageModel, calculation)
        parameters = generic(model)
        settings = json.loads(json.dumps(model.settings()))
        again = get_problem(settings, corpus=TEXT)
        assert again.settings() == model.settings()
        assert again.calculation == model.calculation == Calculation.of(settings["calculation"])
        found.append(bits(model, parameters))
        assert bits(again, parameters) == found[-1]
    assert found[4] == found[-1]  # the text means this
    others = [
        found[i] for i in (0, 1, 2, 5, 6, 7)
    ]  # of 3 and 4, the first one rounds less often, or by NumPy
    assert len({repr(x) for x in others}) == len(others)
    assert "calculation" not in LanguageModel(TEXT, context=5).settings()
    assert Calculation.of("float16,bfloat16").settings() == {
        "format": "float16",
        "reductions": "bfloat16",
        "products": {
            "format": "float32",
            "block": None,
            "order": "sequential",
            "lanes": 1,
            "products": "exact",
        },
    }


REFUSED = [
    ("float8_e4m3fn", ValueError, "attention needs a format with infinities"),
    ("posit16", ValueError, "attention needs a format with infinities"),
    ("float64", UnsupportedFormatError, "float32, which gradients are handed on in, does not hold"),
    ("bfloat16,float64", UnsupportedFormatError, "float32, which gradients are handed on in, does not hold"),
    ("bfloat17", ValueError, "unknown format 'bfloat17'"),
    ("bfloat16,float32,float32,x", ValueError, "a number, or all, not 'x'"),
    ("bfloat16,float32,float32,0", ValueError, "block = 0"),
    ("bfloat16,float32,blas,2", ValueError, "a calculation in text is"),
    ("bfloat16,,blas", ValueError, "a calculation in text is"),
    ("", ValueError, "a calculation in text is"),
    (3, TypeError, "a calculation is a Calculation, its data, or a text"),
    ({"format": "bfloat16"}, ValueError, "data of a calculation have the entries"),
    (
        Calculation("bfloat16").settings() | {"products": {"format": "float32", "bock": 1}},
        ValueError,
        r"have the entries \['block', 'format', 'lanes', 'order', 'products'\], not \['bock', 'format'\]",
    ),
    (Calculation(None), ValueError, "attention needs a format with infinities"),
    ("nvpf4", ValueError, "unknown format 'nvpf4'.* may begin with a recipe: .*nvfp4, fp4-all"),
    ("nvfp4,", ValueError, "a calculation in text is"),
    ("nvfp4,mxfp8", ValueError, "unknown format 'mxfp8'"),
    ("nvfp4,float8_e4m3fn", ValueError, "attention needs a format with infinities"),
    ({"recipe": "nvpf4"}, ValueError, "unknown recipe 'nvpf4'"),
    ({"recipe": 3}, TypeError, "recipe must be a Recipe or a name, not 3"),
    ({"recipe": None}, ValueError, "attention needs a format with infinities"),
    ({"recipe": "nvfp4", "format": "bfloat16"}, ValueError, "data of a calculation have the entries"),
]


@pytest.mark.parametrize(("given", "kind", "message"), REFUSED)
def test_what_is_no_calculation_of_a_transformer_is_refused(given, kind, message):
    with pytest.raises(kind, match=message):
        small(LanguageModel, given)


def test_calculations_refuse_other_sums():
    with pytest.raises(ValueError, match="products are summed to nearest even"):
        Calculation("bfloat16", products=Accumulator(get_format("float32"), "down", block=1))
    with pytest.raises(TypeError, match="must be an Accumulator or 'blas', not 'mkl'"):
        Calculation("bfloat16", products="mkl")
    with pytest.raises(ValueError, match="exclude each other"):
        small(LanguageModel, "bfloat16", activation_bits=8)


@pytest.mark.parametrize("kind", [LanguageModel, Llama])
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_in_float32_it_is_what_is_computed_without_a_calculation(kind, monkeypatch):
    """Up to rounding: gradients of that are compared with differences."""
    monkeypatch.setattr("mcfsim.training.problems.language_model.VALIDATION_BATCHES", 1)
    shape = {"layers": 2, "context": 5, "width": 8, "batch": 3}
    model, plain = small(kind, "float32", **shape), small(kind, None, **shape)
    parameters = generic(model)
    loss, gradient = model.loss_and_gradient(parameters, 3, 4)
    right, exact = plain.loss_and_gradient(parameters, 3, 4)
    assert loss == pytest.approx(right, rel=1e-6)
    assert model.validation_loss(parameters) == pytest.approx(plain.validation_loss(parameters), rel=1e-6)
    for name, x in gradient.items():
        assert np.abs(x - exact[name]).max() < 1e-5 * np.abs(exact[name]).max()


@pytest.mark.parametrize("kind", [LanguageModel, Llama])
def test_later_bytes_do_not_change_earlier_logits(kind):
    model = small(kind, "float16", context=4)
    parameters = generic(model)
    first, last = (model.logits(parameters, np.array([[1, 2, 3, x]], np.uint8)) for x in (4, 5))
    np.testing.assert_array_equal(first[:, :3], last[:, :3])
    assert (first[:, 3] != last[:, 3]).any()


def test_a_score_that_overflows_where_no_token_sees_it_does_not_count():
    pieces = _rounded_transformer.RoundedPieces(Calculation("float16"))
    qkv = np.array([[300, 300, 1, 1, 1, 2], [1, 1, 300, 300, 3, 4]], np.float32)
    mixed, _ = pieces.causal_attention(qkv, 1, 1)
    assert mixed[0].tolist() == [1, 2]
    mixed, _ = pieces.causal_attention(qkv[::-1], 1, 1)
    assert mixed[0].tolist() == [3, 4]
    qkv[1, :2] = 300  # and now the second token sees it
    assert np.isnan(pieces.causal_attention(qkv, 1, 1)[0][1]).all()


def test_gradients_of_what_no_token_sees_do_not_count_where_they_overflow():
    pieces = _rounded_transformer.RoundedPieces(Calculation("float16"))
    qkv = np.zeros((2, 6), np.float32)
    qkv[1, 4:] = 60000.0  # the value of the second token, which the first does not see
    _, back = pieces.causal_attention(qkv, 1, 1)
    found = back(np.array([[60000.0, 60000.0], [0, 0]], np.float32))
    assert np.isfinite(found).all()
    seen = back(np.array([[0, 0], [60000.0, 60000.0]], np.float32))
    assert not np.isfinite(seen).all()


@pytest.mark.parametrize("kind", [LanguageModel, Llama])
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_overflow_and_nan_reach_the_loss_without_a_warning(kind, monkeypatch):
    monkeypatch.setattr("mcfsim.training.problems.language_model.VALIDATION_BATCHES", 1)
    model = small(kind, "float16")
    parameters = {name: x.astype(np.float32) for name, x in generic(model).items()}
    wild = {name: np.float32(3000) * x for name, x in parameters.items()}
    for given in (wild, parameters | {"gain": np.full_like(parameters["gain"], np.nan)}):
        loss, gradient = model.loss_and_gradient(given, 1, 2)
        assert math.isnan(loss)
        assert any(np.isnan(x).any() for x in gradient.values())
        assert {x.dtype for x in gradient.values()} == {np.dtype(np.float32)}
        assert math.isnan(model.validation_loss(given))
    # One infinite score is a loss of infinity or NaN, never a number.
    pieces = _rounded_transformer.RoundedPieces(Calculation("float16"))
    for score in (math.inf, math.nan, -math.inf):
        loss, back = pieces.cross_entropy(np.array([[1, score]], np.float32), np.array([1]))
        assert not math.isfinite(loss)
        assert np.isfinite(back()).all() == (score == -math.inf)


@pytest.mark.parametrize("calculation", [None, "bfloat16"])
def test_every_product_of_a_layer_is_made_by_the_multiplier(calculation, monkeypatch):
    """Another one can be put in its place, and is told the tensor's name."""
    asked = []

    def multiplier(x, weight, name):
        asked.append(name)
        y, back = matmul(x, weight)
        return y / 3, lambda dy: tuple(part / 3 for part in back(dy))

    model = small(Llama, calculation)
    parameters = {name: x.astype(np.float32) for name, x in generic(model).items()}
    calculation = model.calculation
    pieces = (
        partial(_rounded_transformer.RoundedPieces, calculation)
        if calculation
        else _transformer.TransformerPieces
    )
    monkeypatch.setattr(model, "_pieces", lambda step, seed: pieces(multiplier=multiplier))
    _, gradient = model.loss_and_gradient(parameters, 1, 2)
    assert asked == [name for name, shape in model.shapes.items() if len(shape) == 2][1:]
    fmt = "float32" if calculation is None else calculation.format
    assert all((round_to(x, fmt) == x).all() for x in gradient.values())


#: Transformers that round elsewhere, or sum elsewhere: what would not be seen if the judge were blind to it.
FALSE = {
    "softmax": lambda f: lambda ar, x, **_: f(ar, x),
    "softmax_gradient": lambda f: lambda ar, *x, **_: f(ar, *x),
    "cross_entropy_gradient": lambda f: lambda ar, *x, **_: f(ar, *x),
    "rms_norm": lambda f: lambda ar, *x, epsilon, accumulator: f(ar, *x, epsilon=epsilon),
    "rms_norm_gradient": lambda f: lambda ar, *x, epsilon, accumulator: f(ar, *x, epsilon=epsilon),
    "log_softmax": lambda f: lambda ar, x: f(arithmetic("bfloat16"), x),
    "silu": lambda f: lambda ar, x: ar.div(x, ar.add(1.0, ar.exp(ar.neg(x)))),
    "silu_gradient": lambda f: lambda ar, x, upstream: ar.mul(f(ar, x, ar.round(1.0)), ar.neg(upstream)),
    "rotation": lambda f: lambda ar, c, s, x, y: f(ar, c, -s, x, y),
}


@pytest.mark.parametrize("name", FALSE)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_false_versions_are_told_from_the_right_one(name, monkeypatch):
    model = small(Llama, "bfloat16", heads=1, context=9, batch=3)
    parameters = generic(model)
    right = bits(model, parameters)
    monkeypatch.setattr(functions, name, FALSE[name](getattr(functions, name)))
    if name == "log_softmax":
        monkeypatch.setattr(_rounded_transformer, "emulated", lambda _: arithmetic("bfloat16"))
    assert bits(model, parameters) != right


def test_products_are_those_of_the_accumulator_rounded_once_more():
    a, b = np.float32([[256, 1, 1]]), np.ones((3, 1), np.float32)
    short = Accumulator(get_format("bfloat16"), block=1)
    ways = [Calculation("bfloat16"), Calculation("bfloat16", products="blas")]
    ways += [Calculation("bfloat16", products=short), Calculation("float8_e5m2")]
    assert [float(way.product(a, b)[0, 0]) for way in ways] == [258, 258, 256, 256]
    assert [float(way.product(a, b, np.float32([[4]]))[0, 0]) for way in ways[:3]] == [262, 262, 260]
