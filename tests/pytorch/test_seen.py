"""What is seen of a run: measures, weights that something else writes, and gradients that are recorded."""

import copy
import csv
import math
import re
import shlex
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mcfsim as mcf
from mcfsim import metrics
from mcfsim.models.recording import open_recording
from mcfsim.torch import AdamW, OutsideWriteWarning, Seen, adopt, record, step_in_backward, watch, watcher
from mcfsim.torch import step as steps
from mcfsim.training.metrics import Tally
from tests.cli.runner import call
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, backward, dtype_of, listed, net, parameters, put, run
from tests.shared.kinds import STORED
from tests.shared.pages import page
from tests.shared.places import no_room
from tests.shared.refusals import check, refused

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = ((40, 7), (300,), (5,))


def arrays(tensors):
    return {str(i): x.detach().float().numpy() for i, x in enumerate(tensors)}


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Let a step be made as one of the CPU's tensors, or as one of a GPU's by PyTorch's operations."""
    if request.param == "device":
        monkeypatch.setattr(steps, "_is_host", lambda device: False)
    return request.param


@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(23, each=False)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
def test_the_measures_are_those_of_the_simulated_optimizer(strategy, place, monkeypatch):
    """To look at a run changes nothing of it."""
    monkeypatch.setattr(watcher, "AT_ONCE", 250)  # so that they are joined
    given, other = (parameters(SHAPES, dtype_of(strategy)) for _ in range(2))
    start, hyper = arrays(given), mcf.AdamW(weight_decay=0.01)
    reference = mcf.Optimizer(hyper, mcf.strategy(strategy), start, {*start})
    optimizer, unseen = (AdamW(x, 1e-3, strategy=strategy) for x in (given, other))
    seen = watch(optimizer, 2).seen
    for step in range(6):
        for x in (optimizer, unseen):
            run(x, [2 * step])
        before = reference.represented()
        update = reference.step(reference.receive(arrays(p.grad for p in given)), 1e-3)
        if step % 2:
            effective = metrics.effective_update(before, reference.represented())
            found = seen[-1]
            assert (found.step, found.group) == (step + 1, 0)
            assert found.lost == metrics.lost_fraction(update, effective)
            assert found.edq == pytest.approx(metrics.normalized_edq(update, effective), rel=1e-12)
    assert len(seen) == 3
    assert_same_states(optimizer, unseen)


@pytest.mark.parametrize("strategy", ["dqt-int8", "dqt-ternary", "bitnet"])
def test_a_first_step_is_seen_from_the_grid(strategy, place):
    """Also without `start`, which puts weights there before."""
    given, other = (parameters(SHAPES, dtype_of(strategy)) for _ in range(2))
    start, hyper = arrays(given), mcf.AdamW(weight_decay=0.01)
    reference = mcf.Optimizer(hyper, mcf.strategy(strategy), start, {*start})
    optimizer, unseen = (AdamW(x, 1e-3, strategy=strategy) for x in (given, other))
    seen = watch(optimizer, 1).seen
    for x in (optimizer, unseen):
        run(x, [0])
    before = reference.represented()
    update = reference.step(reference.receive(arrays(p.grad for p in given)), 1e-3)
    effective = metrics.effective_update(before, reference.represented())
    assert seen[0].lost == metrics.lost_fraction(update, effective)
    assert seen[0].edq == pytest.approx(metrics.normalized_edq(update, effective), rel=1e-12)
    assert_same_states(optimizer, unseen)


@pytest.mark.slow
def test_what_is_seen_is_told(tmp_path):
    """To a function, a file, a writer and a list, until it is removed; of groups in their steps."""
    given, told, scalars = parameters(SHAPES), [], []

    class Writer:
        def add_scalar(self, *given):
            scalars.append(given)

    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}], 1e-3, strategy="plain")
    path = tmp_path / "seen.csv"
    watches = [watch(optimizer, 3, to) for to in (told.append, path, Writer(), None)]
    for step in range(7):
        runs.give(given, 2 * step, (1, 2) if step == 6 else ())
        optimizer.step()
    runs.give(given, 14)
    optimizer.step()
    seen = watches[0].seen
    assert seen == told == watches[3].seen
    assert [(x.step, x.group) for x in seen] == [(s, group) for s in (3, 6) for group in (0, 1, None)]
    assert 0 < min(x.lost for x in seen[:2]) < seen[2].lost < max(x.lost for x in seen[:2]) < 1
    with path.open(newline="") as file:
        head, *lines = csv.reader(file)
    assert tuple(head) == Seen._fields
    assert seen == [Seen(int(a), int(b) if b else None, float(c), float(d)) for a, b, c, d in lines]
    names = [f"{name}/{of}" for of in ("group 0", "group 1", "all") for name in ("lost", "edq")]
    told_of = zip(names * 2, [x for s in seen for x in (s.lost, s.edq)], [3] * 6 + [6] * 6, strict=True)
    assert scalars == [(f"mcfsim/{name}", x, step) for name, x, step in told_of]
    for x in watches * 2:  # twice does no harm
        x.remove()
    run(optimizer, [16])
    assert len(told) == 6
    again = watch(optimizer, 1, str(path))
    run(optimizer, [18])
    assert len(path.read_text().splitlines()) == 1 + 6 + 2
    assert [(x.step, x.group) for x in again.seen] == [(10, 0), (9, 1)]


def test_numbers_that_are_not_finite_are_not_averaged_away():
    given = parameters(SHAPES)
    optimizer = AdamW([{"params": given[:1]}, {"params": given[1:]}])
    seen = watch(optimizer, 1).seen
    runs.give(given, 0)
    given[0].grad[3, 3] = math.inf
    optimizer.step()
    assert [math.isnan(x) for x in (seen[0].lost, seen[0].edq, seen[1].lost, seen[2].lost)] == [1, 1, 0, 1]
    nothing = Tally()
    nothing.add([], [[]], [[]])
    assert math.isnan(nothing.lost)
    assert math.isnan(nothing.normalized_edq)


def test_what_cannot_be_watched_or_told_is_refused(tmp_path):
    optimizer, other = (kind(parameters(SHAPES)) for kind in (AdamW, torch.optim.SGD))
    errors, nowhere = (TypeError, ValueError, OSError), tmp_path / "nowhere" / "seen.csv"
    check(
        [
            *refused(TypeError, r"only optimizers of mcfsim\.torch are watched, not SGD", watch, other),
            *refused(errors, "every", watch, *((optimizer, every, None) for every in (0, -3, 1.5, "x"))),
            *refused(errors, "to must be a function", watch, (optimizer, 1, 5)),
            *refused(errors, "nowhere", watch, (optimizer, 1, nowhere)),
        ]
    )
    assert not optimizer.watches


def test_an_error_of_who_is_told_begins_no_state():
    """A master copy of then would undo what is written until the next step."""
    given = parameters(SHAPES)
    optimizer = AdamW(given, strategy="fp32-master")
    seen = watch(optimizer, 1, lambda seen: 1 / 0)
    runs.give(given, 0)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert not any(optimizer.state.values())
    seen.remove()
    with torch.no_grad():
        given[0].fill_(5.0)
    optimizer.step()
    assert (given[0] > 4.9).all()


@pytest.mark.parametrize("room", [0, 5])
def test_a_disk_that_becomes_full_is_told_by_name(room, tmp_path):
    """And leaves no part of a line, which a later one would go on."""
    path = tmp_path / "seen.csv"
    optimizer = AdamW(parameters(SHAPES))
    watch(optimizer, 1, path)
    runs.give(optimizer.param_groups[0]["params"], 0)
    told, before = pytest.raises(OSError, match=re.escape(f"cannot write {path}: ")), path.read_bytes()
    with told, no_room(path.stat().st_size + room):
        optimizer.step()
    assert path.read_bytes() == before
    optimizer.step()
    assert [line.split(",")[:2] for line in path.read_text().splitlines()[1:]] == [["1", "0"]]


# -- what others write ---------------------------------------------------------------------------------------
WRITTEN = ((5, 3), (7,), (), (130,))
#: Of what the state holds a part of the parameter.
BESIDE = {name for name, x in mcf.STRATEGIES.items() if x.extra or x.parameter.components > 1}


def made(kind, strategy):
    given = runs.hard_parameters(dtype_of(strategy), shapes=WRITTEN)
    return runs.KINDS[kind](given, 1e-2, strategy=strategy)


def write(optimizer, seed=9):
    """Write other numbers of all kinds into parameters, as a swap of averages or a pruning does."""
    put(optimizer, runs.hard_parameters(listed(optimizer)[0].dtype, seed, WRITTEN))


@pytest.mark.parametrize(("kind", "strategy"), runs.in_turn(STORED))
@pytest.mark.sampled(2, each=False)
def test_what_was_written_is_what_the_optimizer_goes_on_with(kind, strategy):
    """As one does that began with these numbers, and has the same moments and counts.

    It is told of once where it is seen, if the state has a part of the parameter, and never after `resync`.
    """

    def meant():
        return torch.cat([ours.represented(p).flatten().nan_to_num(7.0) for p in listed(ours)])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours, theirs = made(kind, strategy), made(kind, strategy)
        run(ours, range(2))
        write(ours)
        undone = meant()
        ours.resync()
        whole = torch.cat([p.detach().double().flatten() for p in listed(ours)])
        if strategy in ("remainder-8", "remainder-16"):  # beside an infinity there is no remainder
            whole[~whole.isfinite()] = torch.nan
        assert torch.equal(meant(), whole.nan_to_num(7.0))
        assert torch.equal(meant(), undone) != (strategy in BESIDE)
        write(theirs)
        for p, q in zip(listed(ours), listed(theirs), strict=True):
            kept = {name: x for name, x in ours.state[p].items() if name.split("_")[0] in ("step", "m", "v")}
            theirs.state[q] = theirs._start(q, theirs.group_of(q)) | copy.deepcopy(kept)
        assert_same_states(ours, theirs)
        for optimizer in (ours, theirs):
            run(optimizer, [2])
        assert_same_states(ours, theirs)
        assert not [x for x in told if issubclass(x.category, OutsideWriteWarning)]
        for seed in (11, 12):
            write(ours, seed)
            run(ours, [3])
    told = [str(x.message) for x in told if issubclass(x.category, OutsideWriteWarning)]
    assert len(told) == (strategy in BESIDE)
    assert all("optimizer.resync()" in x for x in told)


def test_one_parameter_or_some():
    optimizer = AdamW(runs.parameters(WRITTEN), 1e-2, strategy="fp32-master")
    given = listed(optimizer)
    optimizer.resync()  # which has nothing to do yet
    assert not optimizer.state
    run(optimizer, range(2))
    write(optimizer)

    def meant():
        return [optimizer.represented(p).nan_to_num(7.0) for p in given]

    before, kept = meant(), runs.states(optimizer)
    tensors = [id(x) for p in given for x in optimizer.state[p].values()]
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.resync(given[0], torch.ones(3))
    assert_same_states(optimizer, kept)
    optimizer.resync(given[1], given[3])
    assert [torch.equal(x, y) for x, y in zip(meant(), before, strict=True)] == [True, False, True, False]
    assert [id(x) for p in given for x in optimizer.state[p].values()] == tensors


def test_nobody_is_told_of_what_training_does():
    """Loading states, clipping, copies, other dtypes, steps in the backward pass, adoption."""

    def train(model, by=None):
        for step in range(2):
            runs.backward(model, step)
            if by is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                by.step()
                by.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = torch.nn.Linear(3, 2).bfloat16()
        optimizer = AdamW(given.parameters(), 1e-2, strategy="fp32-master")
        train(given, optimizer)
        saved = copy.deepcopy((given.state_dict(), optimizer.state_dict()))
        for order in ((0, 1), (1, 0)):
            train(given, optimizer)
            for which in order:
                (given, optimizer)[which].load_state_dict(saved[which])
        train(given, optimizer)
        others, other = copy.deepcopy((given, optimizer))
        train(others, other)
        step_in_backward(other)
        train(others)
        single = torch.nn.Linear(3, 2)
        theirs = torch.optim.AdamW(single.parameters())
        train(single, theirs)
        train(single, adopt(theirs, "collage-plus"))


# -- gradients, recorded -------------------------------------------------------------------------------------
STEPS = 6


def recorded(model, folder, steps=STEPS, after=None, then=lambda step: None):
    recorder = record(model, folder, after=after)
    for step in range((after or 0) + 1, steps + 1):
        model.zero_grad()
        backward(model, step)
        recorder.step(0.1 / step)
        then(step)
    assert recorder.count == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradients_are_recorded_bit_for_bit(dtype, tmp_path):
    model, expected = net(6, 8, 2, dtype=dtype), []
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def keep(step):
        expected.append({name: p.grad.clone() for name, p in model.named_parameters()})

    recorded(model, tmp_path, then=keep)
    for path, tensors in zip(sorted(tmp_path.glob("*.safetensors")), [*expected, start], strict=True):
        found = load_file(path)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype
            assert torch.equal(found[name], tensor)
    whole = open_recording(tmp_path)
    assert whole.rates() == tuple(0.1 / step for step in range(1, STEPS + 1))
    recorded(model, tmp_path, after=2)  # a loop that went back goes on from there
    assert open_recording(tmp_path).digest() == whole.digest()


@pytest.mark.parametrize("strategy", ["plain", "collage-plus"])
@pytest.mark.slow
def test_a_replay_makes_the_steps_that_were_trained(strategy, tmp_path):
    """The weights at the end are those of torch's model, which the same strategy trained."""
    model = net(6, 8, 2, dtype=torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.99), weight_decay=0.1, strategy=strategy)

    def then(step):
        optimizer.param_groups[0]["lr"] = 0.1 / step
        optimizer.step()

    recorded(model, tmp_path / "r", then=then)
    names = [name for name, _ in model.named_parameters()]
    hyper = mcf.AdamW(beta1=0.9, beta2=0.99, weight_decay=0.1)
    mcf.replay(tmp_path / "r", hyper, strategy, decayed=names, checkpoint=tmp_path / "kept.npz")
    with np.load(tmp_path / "kept.npz") as archive:
        final = archive[f"{strategy}|parameter0"]
    trained = torch.cat([p.detach().float().ravel() for p in model.parameters()])
    np.testing.assert_array_equal(final, trained.numpy())


def test_what_is_not_trained_is_left_out_and_what_is_shared_is_one(tmp_path):
    model = net(6, 6, 6)
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(3))
    record(model, tmp_path)
    assert [item.name for item in tmp_path.glob("*.safetensors")] == ["weights.safetensors"]
    with pytest.raises(ValueError, match="has no step"):
        open_recording(tmp_path)
    recorded(model, tmp_path, 1, after=0)
    assert set(open_recording(tmp_path).weights.shapes) == {"0.weight", "2.bias"}


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (None, r"1 parameters have no gradient, '2\.bias' first; exclude untrained ones"),
        (torch.zeros(2).to_sparse(), r"parameter '2\.bias': a tensor on device 'cpu' with layout"),
    ],
    ids=["none", "sparse"],
)
def test_what_is_refused_writes_nothing(gradient, message, tmp_path):
    model = net(6, 8, 2)
    recorder = record(model, tmp_path)
    backward(model, 1)
    model[2].bias.grad = gradient
    with pytest.raises((TypeError, ValueError), match=message):
        recorder.step()
    assert [item.name for item in tmp_path.glob("*.safetensors")] == ["weights.safetensors"]
    for wrong in (None, torch.nn.Tanh(), torch.nn.Linear(2, 2, dtype=torch.complex64)):
        with pytest.raises((TypeError, ValueError)):
            record(wrong, tmp_path / "new")
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("commands", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_the_page_works_from_top_to_bottom(commands, tmp_path, monkeypatch):
    """In one folder; the examples are alternatives, and none stands in the way of the next."""
    monkeypatch.chdir(tmp_path)
    blocks, names = re.findall(r"```(python|sh)\n(.*?)```", page("replay").read_text(), re.DOTALL), {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, "replay.md", "exec"), names)
        for line in text.splitlines() * (commands and kind == "sh"):
            program, *words = shlex.split(line, comments=True)
            assert (program, call(*words).exit_code) == ("mcfsim", 0), line
    assert [kind for kind, _ in blocks] == ["python", "python", "sh", "sh", "python"]
    assert [len(open_recording(folder).rates()) for folder in ("recording", "of_arrays")] == [20, 20]
    assert names["run"].settings["steps"] == 20
    assert names["run"].series["plain"]["lost/gain"].size == 5
    assert sorted(path.name for path in tmp_path.glob("r*.*")) == ["replay.ckpt", "run.npz"] * commands
