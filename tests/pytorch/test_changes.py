"""Recorded changes are the differences of bytes, whoever makes the steps."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from experiments import weight_transfers
from experiments.common import read_result
from mcfsim.checks import SpoiltStateError
from mcfsim.torch import AdamW, apply_delta, change_log, changes, step_in_backward, straight_step, watch
from mcfsim.torch import step as steps
from tests.pytorch import runs
from tests.pytorch.runs import assert_same_states, backward, give_hard, listed, made, net
from tests.shared.kinds import STORED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")]
CASES = range(len(runs.strategies()))


def taken(optimizer):
    """Return a copy of the bytes of all parameters, one row an element."""
    found = []
    for p in listed(optimizer):
        x = p.detach().clone(memory_format=torch.contiguous_format)
        found.append(x.reshape(-1, 1).view(torch.uint8).numpy())
    return found


def assert_are_the_changes(recorder, optimizer, before, **options):
    """Compare all that is told of changes with the bytes of a snapshot."""
    for p, old, new in zip(listed(optimizer), before, taken(optimizer), strict=True):
        expected = (old != new).any(axis=1)
        mask = recorder.mask(p, **options)
        assert mask.shape == p.shape
        assert np.array_equal(mask.reshape(-1).numpy(), expected)
        assert np.array_equal(recorder.indices(p, **options).numpy(), np.flatnonzero(expected))
        values = recorder.values(p, **options)
        assert values.dtype == p.dtype
        assert values.view(torch.uint8).numpy().tobytes() == new[expected].tobytes()


@pytest.mark.parametrize("way", ["loop", "written out", "numpy"])
@pytest.mark.parametrize("place", CASES)
@pytest.mark.sampled(32, each=False)
def test_on_the_cpu_they_are_the_difference_of_bytes(place, way, monkeypatch):
    """Compiled, by a loop that NumPy runs, and an operation at a time; and the steps stay what they are."""
    if way != "loop":
        monkeypatch.setattr("mcfsim.compile.choice.is_available", lambda: False)
    if way == "numpy":
        monkeypatch.setattr(straight_step.HostStep, "_bound_loop", lambda *given: None)
    ours, unseen = (made(*runs.strategies()[place]) for _ in range(2))
    with changes(ours) as recorder:
        for count in range(4):
            recorder.clear()
            before = taken(ours)
            for optimizer in (ours, unseen):
                give_hard(listed(optimizer), count)
                optimizer.step()
            assert_are_the_changes(recorder, ours, before)
    assert_same_states(ours, unseen)
    assert not ours.watches


#: Triton's interpreter takes ten seconds to draw for the kernels of a few steps.
INTERPRETED = [
    pytest.param(place, bool(place % 2), marks=pytest.mark.exhaustive if "stochastic" in strategy else ())
    for place, (_, strategy, _) in enumerate(runs.strategies())
]


@pytest.mark.costly("Triton's interpreter takes a second for the kernels of a few steps")
@pytest.mark.parametrize(("place", "kept"), INTERPRETED)
@pytest.mark.sampled(24, each=False)
def test_on_a_device_they_are_the_difference_of_bytes(place, kept, on_device):
    """Of codes of NaN, too, which a GPU makes otherwise."""
    optimizer = made(*runs.strategies()[place])
    on_device(True)
    recorder = changes(optimizer, before=kept)
    for count in range(3):
        recorder.clear()
        before = taken(optimizer)
        give_hard(listed(optimizer), count)
        optimizer.step()
        assert_are_the_changes(recorder, optimizer, before)
    give_hard(listed(optimizer), 3)
    optimizer.step()
    if kept:
        assert_are_the_changes(recorder, optimizer, before, returned=False)


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("place", CASES)
def test_on_a_gpu_they_are_the_difference_of_bytes(place, kept):
    optimizer = made(*runs.strategies()[place], device="cuda")
    recorder = changes(optimizer, before=kept)
    for count in range(4):
        recorder.clear()
        before = [p.detach().clone() for p in listed(optimizer)]
        give_hard(listed(optimizer), count)
        optimizer.step()
        for p, old in zip(listed(optimizer), before, strict=True):
            whole = [x.detach().reshape(-1, 1).view(torch.uint8) for x in (p, old)]
            assert torch.equal(recorder.mask(p).reshape(-1), (whole[0] != whole[1]).any(1))


HUNDREDS = pytest.mark.exhaustive, pytest.mark.costly("Hundreds of steps are compared with snapshots")
#: More than thirty pairs of a strategy and a low format.
MANY = [
    *((name, "bfloat16") for name in STORED),
    *((name, low) for name in ("plain", "kahan", "collage-light", "collage-plus", "fp32-master", "stochastic")
      for low in ("float16", "float8_e5m2", "float8_e4m3fn")),
]  # fmt: skip


LENGTHS = [(*MANY[0], 50), *(pytest.param(*pair, 200, marks=HUNDREDS) for pair in MANY)]


@pytest.mark.parametrize(("strategy", "low", "last"), LENGTHS)
def test_hundreds_of_steps(strategy, low, last):
    """Of all since the last beginning: what ever changed, and what differs in the end."""
    optimizer = made("adamw", strategy, low, shapes=((60, 5), (7,), ()))
    given, generator = listed(optimizer), torch.Generator().manual_seed(1)
    recorder, after = changes(optimizer, before=True), taken(optimizer)
    for count in range(last):
        if count % (last // 5) == 0:
            recorder.clear()
            begun, ever = after, [np.zeros(p.numel(), bool) for p in given]
        before = after
        for p in given:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()
        after = taken(optimizer)
        for p, there, old, new in zip(given, ever, before, after, strict=True):
            there |= (old != new).any(1)
            assert np.array_equal(recorder.mask(p).reshape(-1).numpy(), there)
        if count % 10 == 9:
            assert_are_the_changes(recorder, optimizer, begun, returned=False)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_bits_are_packed_on_a_device_as_by_numpy(size):
    x = torch.rand(size, generator=torch.Generator().manual_seed(size)) < 0.5
    bits = change_log._packed_there(x)
    assert bits.tolist() == np.packbits(x.numpy(), bitorder="little").tolist()
    assert torch.equal(change_log._unpacked_there(bits, size), x)


def turning(sign, count):
    """Return an optimizer that moves a weight to and fro."""
    p = torch.nn.Parameter(torch.full((count,), 0.5).bfloat16())
    p.grad = torch.full_like(p, sign)
    return p, mcf.torch.SGD([p], lr=2.0**-8, momentum=0.0, strategy="plain")


def test_codes_that_return_have_changed_and_do_not_differ():
    p, optimizer = turning(1.0, 9)
    with changes(optimizer, before=True) as recorder:
        optimizer.step()
        assert recorder.share() == recorder.share(returned=False) == 1
        p.grad[2:] = -1.0
        optimizer.step()
    assert recorder.indices(p).tolist() == list(range(9))
    assert recorder.indices(p, returned=False).tolist() == [0, 1]
    assert recorder.mask(p, returned=False).tolist() == [True, True] + [False] * 7
    assert recorder.values(p, returned=False).tolist() == [0.5 - 2**-7] * 2
    assert recorder.share(returned=False) == 2 / 9
    assert recorder.delta(p).before.tolist() == [0x3F00] * 2
    optimizer.step()  # which is no more recorded
    assert recorder.mask(p).all()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("strategy", ["plain", "fp32-master", "fp32"])
@pytest.mark.sampled(2)
def test_what_is_sent_after_several_steps_gives_all_weights(strategy, kept):
    optimizer = made("adamw", strategy)
    there = [p.detach().clone() for p in listed(optimizer)]
    recorder = changes(optimizer, before=kept)
    for sync in range(2):
        for count in range(3):
            give_hard(listed(optimizer), 3 * sync + count)
            optimizer.step()
        for p, x in zip(listed(optimizer), there, strict=True):
            for encoding in ("gaps", "mask", "indices", *["xor"] * kept):
                other = x.clone()
                apply_delta(recorder.delta(p).encode(encoding, compress=True), other)
                assert runs.codes(other)[0].tobytes() == runs.codes(p)[0].tobytes()
            assert apply_delta(recorder.delta(p).encode("gaps"), x) == recorder.delta(p).places.size
        recorder.clear()
        assert recorder.share() == 0


def test_a_change_is_applied_to_a_negated_view():
    p = torch.nn.Parameter(torch.tensor([-1.0]))
    optimizer = AdamW([p], 0.1, strategy="fp32")
    recorder, negated = changes(optimizer), torch.complex(torch.zeros(1), torch.ones(1)).conj().imag
    p.grad = torch.ones(1)
    optimizer.step()
    sent = recorder.delta(p).encode("gaps")
    assert negated.is_neg()
    assert negated.is_contiguous()
    assert apply_delta(sent, negated) == 1
    assert torch.equal(negated, p)


@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
def test_changes_of_a_negated_view_are_recorded(kind):
    p = torch.nn.Parameter(torch.complex(torch.zeros(1, 1), torch.ones(1, 1)).conj().imag)
    optimizer = getattr(mcf.torch, kind)([p], 0.1, strategy="fp32")
    with changes(optimizer) as recorder:
        p.grad = torch.ones(1, 1)
        optimizer.step()
    assert p.is_neg()
    assert recorder.mask(p).tolist() == [[True]]
    assert torch.equal(recorder.values(p), p.detach().reshape(-1))


def published_sizes():
    """Yield names and shapes of a published model's tensors, and the root mean squares of their weights."""
    for line in read_result("real_audit")["printed"]:
        name, *rest = line.split() or [""]
        if "." in name and rest[:1] and rest[0].isdigit():  # its shape, as 64 x 3, and the root mean square
            last = 1 + 2 * rest.count("x")
            yield name, [int(x) for x in rest[:last:2]], float(rest[last])


@pytest.mark.parametrize("strategy", ["plain", "fp32-master"])
@pytest.mark.sampled(2, each=False)
def test_the_forecast_is_what_steps_change(strategy, monkeypatch):
    """Of weights as large as a published model's, at 3e-6: less than one code in a hundred."""
    monkeypatch.setattr(weight_transfers, "BEFORE", 60)
    monkeypatch.setattr(weight_transfers, "STEPS", 60)
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    weights = {
        name: rms * rng.standard_normal(min(int(np.prod(shape)), 2048))
        for name, shape, rms in published_sizes()
    }
    assert len(weights) == 15
    given = [torch.nn.Parameter(torch.tensor(x).bfloat16()) for x in weights.values()]
    optimizer, shares = AdamW(given, lr=3e-6, weight_decay=0.0, strategy=strategy), []
    recorder = changes(optimizer)
    for step in range(120):
        recorder.clear()
        for p in given:
            p.grad = (1e-3 * torch.randn(p.shape, generator=generator)).to(p.dtype)
        optimizer.step()
        shares += [recorder.share()] if step >= 60 else []
    expected = weight_transfers.forecast(weights, strategy)
    assert 0 < expected < 0.01
    assert expected == pytest.approx(np.mean(shares), rel=0.1)


def test_steps_in_the_backward_pass_are_recorded():
    given = net(4, 4, 4, dtype=torch.bfloat16)
    optimizer = AdamW(given.parameters(), 1e-4, strategy="plain")
    step_in_backward(optimizer)
    recorder, before = changes(optimizer), taken(optimizer)
    backward(given, 0)
    assert 0 < recorder.share() < 1
    assert_are_the_changes(recorder, optimizer, before)


@pytest.mark.exhaustive  # steps that are compiled in test_trainers
def test_compiled_steps_are_recorded():
    torch.compiler.reset()
    optimizer = made("adamw", "collage-plus", shapes=((5, 3), (7,)))
    compiled = torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)
    recorder, before = changes(optimizer), taken(optimizer)
    give_hard(listed(optimizer), 5)
    compiled()
    assert recorder.share() > 0
    assert_are_the_changes(recorder, optimizer, before)


def test_a_watch_beside_it_changes_nothing():
    ours, unseen = (made("adamw", "collage-plus") for _ in range(2))
    recorder, other = changes(ours), watch(ours, 1)
    before = taken(ours)
    for optimizer in (ours, unseen):
        give_hard(listed(optimizer), 4)
        optimizer.step()
    assert len(other.seen)
    assert_are_the_changes(recorder, ours, before)
    assert_same_states(ours, unseen)


def test_parameters_without_gradients_and_groups_that_come_later():
    optimizer = made("adamw", "plain")
    recorder, (p, *_) = changes(optimizer), listed(optimizer)
    assert not recorder.mask(p).any()
    assert recorder.indices(p).dtype == torch.int64
    assert recorder.delta(p).places.size == recorder.values(p).numel() == 0
    new = torch.nn.Parameter(torch.ones(5).bfloat16())
    optimizer.add_param_group({"params": [new], "lr": 0.5})
    new.grad = torch.ones_like(new)
    optimizer.step()
    assert recorder.mask(new).all()
    assert not recorder.mask(p).any()
    assert np.isnan(changes(AdamW([torch.nn.Parameter(torch.ones(0).bfloat16())])).share())


def test_a_parameter_that_was_resized_meanwhile_is_refused():
    """Codes beyond its former ones would have been forgotten."""
    (p,) = given = runs.parameters([(3,)])
    optimizer = AdamW(given)
    changes(optimizer)
    runs.run(optimizer, [0])
    p.grad, p.data = None, torch.ones(5).bfloat16()
    optimizer.state.clear()
    with pytest.raises(ValueError, match=r"shape \(5,\) had another one when its changes began"):
        runs.run(optimizer, [1])
    optimizer.whole.check()


def test_what_is_refused(monkeypatch):
    optimizer = made("adamw", "plain")
    recorder, (p, *_) = changes(optimizer), listed(optimizer)
    sent = recorder.delta(p).encode("gaps")
    for why, call, error in (
        ("not by Adam", lambda: changes(torch.optim.Adam([torch.ones(1)])), TypeError),
        ("before must be", lambda: changes(made("adamw", "plain"), before=1), TypeError),
        ("recorded already", lambda: changes(optimizer), ValueError),
        ("no parameter of", lambda: recorder.mask(torch.ones(3)), ValueError),
        ("before=True", lambda: recorder.mask(p, returned=False), ValueError),
        ("before=True", lambda: recorder.share(returned=False), ValueError),
        ("not to a list", lambda: apply_delta(sent, [1.0]), TypeError),
        ("35 codes of 2 bytes", lambda: apply_delta(sent, torch.ones(3)), ValueError),
    ):
        with pytest.raises(error, match=why):
            call()

    def broken(*given, **named):
        raise KeyboardInterrupt

    give_hard(listed(optimizer), 4)
    monkeypatch.setattr(straight_step.HostStep, "move", broken)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    with pytest.raises(SpoiltStateError):
        recorder.mask(p)


def test_steps_of_a_captured_graph_are_refused(monkeypatch):
    optimizer = made("adamw", "plain", capturable=True)
    changes(optimizer)
    give_hard(listed(optimizer), 4)
    monkeypatch.setattr(steps, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="watched or recorded"):
        optimizer.step()
