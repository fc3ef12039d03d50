"""Assignments under a budget, against all assignments there are, in fractions."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.assigning import assign, candidates_of, choices_of
from mcfsim.models.assignment import Choices, by_demotion, by_sensitivity, group_of
from mcfsim.models.audit import audit
from mcfsim.models.known import RecordedUpdates
from mcfsim.models.plan import NoiseModel
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.audits import assignment_csv, assignment_json, assignment_table, comparison_table
from tests.models import pages
from tests.models.files import adam, checkpoint
from tests.models.pages import BFLOAT16, FLOAT16

STRATEGIES = tuple(map(mcf.strategy, ("plain", "kahan", "collage-light", "collage-plus", "fp32-master")))


def drawn(rng, count):
    """Return numbers of bytes a parameter."""
    return tuple(Fraction(int(x), int(rng.choice([1, 1, 2, 32]))) for x in rng.integers(1, 17, count))


def instance(rng, tensors=None, candidates=None):
    """Return choices of a few tensors whose losses are dyadic, many of them equal or zero, some infinite."""
    tensors, candidates = tensors or int(rng.integers(1, 7)), candidates or int(rng.integers(1, 5))
    losses = rng.integers(0, (2, 9, 1 << 20)[int(rng.integers(3))], (tensors, candidates)) / 64.0
    losses[rng.random(losses.shape) < 0.15] = math.inf
    losses[np.isinf(losses).all(axis=1), 0] = 1.0
    sizes = tuple(int(x) for x in rng.integers(1, (3, 50, 10**9)[int(rng.integers(3))], tensors))
    bytes_ = tuple(drawn(rng, candidates) for _ in range(tensors))
    if rng.random() < 0.5:  # a candidate often takes the same of every tensor
        bytes_ = bytes_[:1] * tensors
    names = tuple(f"layer{place // 2}.w{place}" for place in range(tensors))
    return Choices(names, sizes, STRATEGIES[:candidates], bytes_, losses)


def exact(choices, chosen):
    """Return what an assignment loses, and takes, as fractions; None for both where something overflows."""
    parts = list(zip(choices.losses, choices.sizes, choices.bytes, chosen, strict=True))
    if any(math.isinf(row[item]) for row, *_, item in parts):
        return None, None
    loss = sum((Fraction(float(row[item])) for row, *_, item in parts), Fraction(0))
    return loss, sum((size * taken[item] for _, size, taken, item in parts), Fraction(0))


def best(choices, budget):
    """Return the least loss of all assignments within a budget, in whole numbers; infinity if none is."""
    every = np.indices((len(choices.candidates),) * len(choices.names)).reshape(len(choices.names), -1)
    each = np.array([[int(32 * item) for item in row] for row in choices.bytes])
    taken = np.take_along_axis(each, every, axis=1)
    size = (np.array(choices.sizes)[:, None] * taken).sum(axis=0)  # in 32nds of a byte: below 2^43
    loss = np.take_along_axis(choices.losses, every, axis=1).sum(axis=0)  # in 64ths, and below 2^23
    return loss[size <= math.floor(32 * budget * choices.size)].min(initial=math.inf)


def is_best(choices, budget, chosen):
    loss, size = exact(choices, chosen)
    return loss is not None and size <= budget * choices.size and loss == best(choices, budget)


def some_budget(rng, choices):
    """Return a budget, that of some assignment more often than not, to the last bit."""
    if rng.random() < 0.3:
        return Fraction(float(rng.uniform(1, 17)))
    chosen = [int(rng.choice(np.flatnonzero(np.isfinite(row)))) for row in choices.losses]
    return choices.bytes_of(chosen) / choices.size


@pytest.mark.slow
def test_instances_are_solved_as_by_trying_all_assignments():
    """The judge is asked, too, of assignments with one tensor altered at random."""
    rng, refused, noticed, altered = np.random.default_rng(0), 0, 0, 0
    for _ in range(80):
        choices = instance(rng)
        budget = some_budget(rng, choices)
        if math.isinf(best(choices, budget)):
            refused += 1
            with pytest.raises(ValueError, match="less than the least"):
                by_sensitivity(choices, budget)
            continue
        chosen = by_sensitivity(choices, budget)
        assert is_best(choices, budget, chosen)
        other = list(chosen)
        other[int(rng.integers(len(other)))] = int(rng.integers(len(choices.candidates)))
        if exact(choices, other) != exact(choices, chosen):
            altered += 1
            noticed += not is_best(choices, budget, other)
    assert refused < 40
    assert altered >= 20
    assert noticed >= 0.8 * altered  # an equal loss for other bytes is as good


def test_a_budget_is_kept_to_the_last_byte():
    """An assignment one byte in 10^12 above it would pass within the solver's tolerance."""
    sizes, losses = (10**12, 10**12 + 1), np.array([[4.0, 0.0], [4.0, 0.0]])
    choices = Choices(("a", "b"), sizes, STRATEGIES[:2], ((Fraction(8), Fraction(10)),) * 2, losses)
    for spare, expected in ((0, [1, 1]), (1, [0, 1]), (2, [0, 1]), (3, [1, 0])):
        budget = (choices.bytes_of([1, 1]) - spare) / choices.size
        found = by_sensitivity(choices, budget)
        assert choices.bytes_of(found) <= budget * choices.size
        assert exact(choices, found)[0] == exact(choices, expected)[0]
    tight = choices.bytes_of([1, 0]) / choices.size
    assert by_sensitivity(choices, tight) == [1, 0]
    assert by_sensitivity(choices, tight - Fraction(1, 10**30)) == [0, 0]


def demoted(choices, budget, groups):
    """Return the assignment of the fewest demoted groups, by trying each number of them."""
    size_of = dict.fromkeys(groups, 0)
    for size, group in zip(choices.sizes, groups, strict=True):
        size_of[group] += size
    order = sorted(size_of, key=lambda name: (-size_of[name], groups.index(name)))
    for count in range(len(order) + 1):
        wanted = [int(group in order[:count]) for group in groups]
        pairs = zip(choices.losses, wanted, strict=True)
        chosen = [item if math.isfinite(row[item]) else 1 - item for row, item in pairs]
        if exact(choices, chosen)[1] <= budget * choices.size:
            return chosen
    return None


@pytest.mark.slow
def test_demotion_is_that_of_the_largest_groups():
    assert [group_of(x) for x in ("layers.0.weight", "layers.0.bias", "head")] == ["layers.0"] * 2 + ["head"]
    rng, done = np.random.default_rng(3), 0
    for _ in range(250):
        choices = instance(rng, candidates=2)
        if choices.bytes[0][0] < choices.bytes[0][1]:  # the first candidate is to be high
            bytes_ = tuple(row[::-1] for row in choices.bytes)
            choices = replace(choices, bytes=bytes_, losses=choices.losses[:, ::-1])
        groups = [group_of(name) for name in choices.names]
        given = choices, (budget := some_budget(rng, choices))
        if any(high <= low for high, low in choices.bytes):
            with pytest.raises(ValueError, match="takes no more than"):
                by_demotion(*given)
        elif (expected := demoted(choices, budget, groups)) is None:
            with pytest.raises(ValueError, match="all is demoted that does not overflow"):
                by_demotion(*given)
        else:
            done += 1
            assert by_demotion(*given) == expected
    assert done > 40


# -- from audits ---------------------------------------------------------------------------------------------
def planned(tmp_path, names=(), lows=(BFLOAT16,), updates=None, beta2=0.95, steps=5):
    path = tmp_path / "m.safetensors"
    if not path.exists():
        checkpoint(path)
    samples = scan(open_weights(path), 64)
    rest = {"steps": steps, "beta2": beta2, "decay": 0.0, "updates": updates or NoiseModel()}
    made = replace(pages.plan(schedule=(3e-4, 0, 1.0), **rest), strategies=candidates_of(lows, names))
    return audit(samples, made, lows[0]), samples


def test_a_tensor_that_stops_gets_components_first(tmp_path):
    """The gain at one stops in plain bfloat16 and is small: a hair above 8 bytes it is kept going."""
    found = assign(*planned(tmp_path, ["plain", "collage-light", "fp32-master"]), Fraction(82, 10))
    by_name = {tensor.name: strategy.name for tensor, strategy, _ in found.tensors()}
    assert (by_name["gain"], by_name["matrix"]) == ("collage-light bfloat16", "plain bfloat16")
    assert found.bytes <= Fraction(82, 10) * 816
    assert found.lost() < found.lost((0, 0, 0))
    lost = sum(float(row["lost"]) for row in assignment_table(found))
    assert lost == pytest.approx(found.lost(), abs=2e-4)
    assert [row["in budget"] for row in comparison_table(found)] == ["yes", "yes", "no", "no"]
    lines, data = assignment_csv(found).splitlines(), assignment_json(found, {})
    assert lines[0].startswith("name,shape,parameters,strategy,format")
    assert len(lines) == 4
    assert data["bytes"] == sum(row["parameters"] * row["bytes_per_parameter"] for row in data["tensors"])


def test_losses_are_those_of_the_audit(tmp_path):
    found, samples = planned(tmp_path, ["plain", "collage-light"], beta2=0.999)
    choices, asked = choices_of(found, samples, 0.25)
    for row, tensor in enumerate(found.tensors):
        assert asked[row] == pytest.approx(tensor.size * tensor.direction_rms**2)
        for column, item in enumerate(choices.candidates):
            share = abs(1 - tensor.found[item.name].edq) + 0.25  # of v no significand decays
            assert choices.losses[row, column] == pytest.approx(asked[row] * share)


@pytest.mark.slow
def test_formats_that_do_not_reach_are_out_of_the_question_until_gradients_say_otherwise(tmp_path):
    with pytest.raises(ValueError, match="only recorded gradients could say"):
        assign(*planned(tmp_path, ["plain"], [FLOAT16]), 8)
    both = planned(tmp_path, ["plain", "collage-light"], [BFLOAT16, FLOAT16])
    assert {item.parameter.format for _, item, _ in assign(*both, 10).tensors()} == {BFLOAT16}
    start = checkpoint(tmp_path / "m.safetensors")
    # Squares of 0.5 are well within float16; those of 1e-5 vanish in it.
    for size, fmt in ((0.5, FLOAT16), (1e-5, BFLOAT16)):
        folder, rng = tmp_path / f"recorded{size}", np.random.default_rng(0)
        recorder, gradients = mcf.record(start, folder), []
        for _ in range(3):
            signs = {name: np.float32(size * rng.choice([-1.0, 1.0], x.shape)) for name, x in start.items()}
            recorder.step(signs, 3e-4)
            gradients.append(signs["matrix"].astype(float))
        given = planned(tmp_path, ["plain"], [BFLOAT16, FLOAT16], RecordedUpdates(folder), beta2=0.5, steps=3)
        found = assign(*given, 8)
        (place,) = (i for i, (tensor, *_) in enumerate(found.tensors()) if tensor.name == "matrix")
        assert [*found.tensors()][place][1].parameter.format == fmt
        pairs = zip(gradients, adam(gradients, mcf.AdamW(beta2=0.5)), strict=True)
        asked = sum(3e-4 * (g * direction).sum() for g, direction in pairs)
        assert found.asked[place] == pytest.approx(asked, rel=0.2)


def test_demotion_is_the_same_whichever_candidate_is_named_first(tmp_path):
    found = []
    for names in (["plain", "kahan"], ["kahan", "plain"]):
        made = assign(*planned(tmp_path, names), 9, "demotion")
        found.append([made.choices.candidates[place].name for place in made.chosen])
    assert found[0] == found[1]
    assert {*found[0]} == {"plain bfloat16", "kahan bfloat16"}


def test_what_makes_no_sense_is_refused(tmp_path):
    good = {"names": ("a", "b"), "sizes": (1, 2), "candidates": STRATEGIES[:2], "losses": np.zeros((2, 2))}
    good |= {"bytes": ((Fraction(8), Fraction(10)),) * 2}
    assert by_sensitivity(Choices(**good), Fraction(8)) == [0, 0]
    for given, text in (
        ({"names": ()}, "it takes one of each"),
        ({"sizes": (1,)}, "do not fit"),
        ({"sizes": (1, 0)}, "must be positive"),
        ({"bytes": ((Fraction(8), Fraction(10)), (Fraction(8), Fraction(0)))}, "must be positive"),
        ({"bytes": ((Fraction(8), Fraction(10)), (Fraction(8),))}, "do not fit"),
        ({"bytes": ((Fraction(8), Fraction(10)),)}, "do not fit"),
        ({"losses": np.zeros((2, 3))}, "do not fit"),
        ({"losses": np.array([[0.0, np.nan], [0, 0]])}, "must be numbers"),
        ({"losses": np.array([[0.0, -1.0], [0, 0]])}, "must be numbers"),
        ({"losses": np.array([[math.inf, math.inf], [0, 0]])}, "a can be stored in no way"),
    ):
        with pytest.raises(ValueError, match=text):
            Choices(**good | given)
    found = planned(tmp_path, ["plain", "kahan", "fp32"])
    for given, text in (
        ({"budget": 0}, "budget = 0 must be positive"),
        ({"budget": math.inf}, "budget"),
        ({"budget": 7.999}, "less than the least, 8"),
        ({"method": "size"}, "known methods: sensitivity, demotion"),
        ({"method": "demotion"}, "not among plain bfloat16, kahan bfloat16, fp32 float32"),
        ({"frozen_cost": 1.5}, "must lie in"),
    ):
        with pytest.raises(ValueError, match=text):
            assign(*found, **{"budget": 10} | given)
    for lows, names, text in (
        ([FLOAT16], ["split-master"], "leading bits"),
        ([BFLOAT16], ["exact"], "exact numbers"),
        ([], ["plain"], "at least one"),
    ):
        with pytest.raises(ValueError, match=text):
            candidates_of(lows, names)


def test_candidates_are_none_twice():
    names = [item.name for item in candidates_of([BFLOAT16, FLOAT16], ["plain", "fp32"])]
    assert names == ["plain bfloat16", "plain float16", "fp32 float32"]
    assert "split-master float16" not in {item.name for item in candidates_of([FLOAT16])}
