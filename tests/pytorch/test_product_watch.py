"""A watch on a model's products: the numbers of `audit_products`, and a model that does not notice."""

import copy
import gc
import math
import weakref
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import mcfsim as mcf
from mcfsim import torch as mt
from mcfsim.models.product_rows import read_rows
from mcfsim.recipes import RECIPES, OperandFinding, audit_products

NAMES = ["mxfp8", "fp4-all"]


def model(kind=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(48, 40), torch.nn.ReLU(inplace=True), torch.nn.Linear(40, 24, bias=False)
    ).to(kind)


def batch(place=0, kind=torch.float32):
    return torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(place)).to(kind)


def step(net, place=0, kind=torch.float32):
    net.zero_grad()
    y = net(batch(place, kind))
    y.float().square().sum().backward()
    return y


def array(x):
    return x.detach().float().reshape(-1, x.shape[-1]).numpy()


def expected(recipe, x, weight, dy, words, products=("forward", "dgrad", "wgrad")):
    return audit_products(recipe, array(x), array(weight), array(dy), words, products)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rows_are_of_the_operands_that_training_has(kind):
    net, x = model(kind), batch(0, kind)
    watch = mt.watch_products(net, NAMES, every=1, seed=7)
    step(net, 0, kind)
    watch.remove()
    # By hand, without hooks.
    first = net[0](x).detach()
    middle = first.relu().requires_grad_()
    y = net[2](middle)
    (dy,) = torch.autograd.grad(y.float().square().sum(), y, retain_graph=True)
    (dmiddle,) = torch.autograd.grad(y, middle, dy)
    dfirst = dmiddle * (first > 0)
    for number, (name, args) in enumerate(
        {"0": (x, net[0].weight, dfirst), "2": (middle, net[2].weight, dy)}.items()
    ):
        products = ("forward", "dgrad", "wgrad") if number else ("forward", "wgrad")
        for recipe in NAMES:
            right = expected(recipe, *args, mcf.RandomWords(7, 0, number), products)
            rows = [row for row in watch.rows if (row.layer, row.recipe) == (name, recipe)]
            assert {(row.product, row.operand) for row in rows} == set(right)
            for row in rows:
                one = right[row.product, row.operand]
                assert (row.step, row.calls, row.macs) == (1, 1, 10 * args[1].numel())
                assert (row.error, row.operand_error) == (one.relative_error, one.operand_error)
                shares = one.underflow, one.saturation, one.outlier_blocks
                assert (row.underflow, row.saturation, row.outliers) == shares
    assert watch.unused == []


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.slow
def test_the_model_does_not_notice(emulated):
    nets = [model(), model()]
    for net in nets:
        if emulated:
            mt.emulate(net, replace(RECIPES["fp4-all"], first=Fraction(0), last=Fraction(0)))
    before = torch.get_rng_state()
    watch = mt.watch_products(nets[1], NAMES, every=2)
    for place in range(4):
        assert torch.equal(*(step(net, place) for net in nets))
        for p, q in zip(*(net.parameters() for net in nets), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert torch.equal(torch.get_rng_state(), before)
    assert {row.step for row in watch.rows} == {2, 4}
    watch.remove()
    watch.remove()
    for module in nets[1].modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    count = len(watch.rows)
    step(nets[1])
    step(nets[1])
    assert len(watch.rows) == count


@pytest.mark.slow
def test_steps_are_those_of_the_optimizer_and_calls_add_up():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    watch = mt.watch_products(net, ["mxfp8"], every=2, optimizer=optimizer)
    for _ in range(3):  # of three passes each
        for place in range(3):
            net(batch(place)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = [row for row in watch.rows if (row.layer, row.product, row.operand) == ("0", "forward", "x")]
    assert [(row.step, row.calls, row.macs) for row in rows] == [(2, 3, 30 * 48 * 40)]
    parts = [
        audit_products("mxfp8", array(batch(place)), array(net[0].weight))["forward", "x"]
        for place in range(3)
    ]
    assert rows[0].error == OperandFinding.joined(parts).relative_error
    watch.remove()
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks


class Reused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.twice, self.never = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.aside, self.frozen = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        self.aside(x)  # whose output gets no gradient
        return self.twice(self.twice(self.frozen(x)))


def test_layers_called_twice_never_aside_and_frozen():
    torch.manual_seed(0)
    net = Reused()
    watch = mt.watch_products(net, ["mxfp8"], every=1)
    net(torch.randn(3, 8)).sum().backward()
    found = {(row.layer, row.product): row.calls for row in watch.rows}
    assert found == {
        ("twice", "forward"): 2,
        ("twice", "dgrad"): 1,
        ("twice", "wgrad"): 2,
        ("frozen", "forward"): 1,
    }
    assert watch.unused == ["never", "aside"]
    net(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert ("frozen", "dgrad") in {(row.layer, row.product) for row in watch.rows if row.step == 2}
    assert ("frozen", "wgrad") not in {(row.layer, row.product) for row in watch.rows}
    net.eval()
    net(torch.randn(3, 8)).sum().backward()
    with torch.no_grad():
        net.train()(torch.randn(3, 8))
    assert max(row.step for row in watch.rows) == 2


@pytest.mark.parametrize("again", [False, True])
def test_what_checkpointing_computes_anew_is_measured_once(again):
    """Steps are counted once, and so are layers that need no gradients."""
    found = []
    for checkpointed in (False, True):
        net = model()
        net[0].requires_grad_(False)
        watch = mt.watch_products(net, ["mxfp8"], every=1)
        for place in range(2):
            x = batch(place).requires_grad_(again)
            way = checkpoint(net, x, use_reentrant=again) if checkpointed else net(x)
            way.square().sum().backward()
        found.append(watch.rows)
        watch.remove()
    assert found[0] == found[1]
    assert {row.step for row in found[0]} == {1, 2}


def test_a_second_backward_pass_makes_two_products_more():
    net = model()
    watch = mt.watch_products(net, ["mxfp8"], every=1)
    y = net(batch()).sum()
    y.backward(retain_graph=True)
    y.backward()
    calls = {(row.layer, row.product): row.calls for row in watch.rows}
    assert calls == {
        ("0", "forward"): 1,
        ("0", "wgrad"): 2,
        ("2", "forward"): 1,
        ("2", "dgrad"): 2,
        ("2", "wgrad"): 2,
    }


def test_no_activations_are_kept():
    net = model()
    watch = mt.watch_products(net, ["mxfp8"], every=1)
    kept, clone = [], torch.Tensor.clone

    def seen(x, *args, **options):
        found = clone(x, *args, **options)
        kept.append(weakref.ref(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", seen)
        step(net)
        net(batch(1))  # never goes backward
    gc.collect()
    assert len(kept) >= 4
    assert not any(x() is not None for x in kept)
    assert {row.step for row in watch.rows} == {1}
    place = weakref.ref(net)
    del net
    gc.collect()
    assert place() is None


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(("inputs", "outputs"), [(0, 3), (3, 0)])
def test_layers_without_elements_are_watched(inputs, outputs):
    net = torch.nn.Sequential(torch.nn.Linear(inputs, outputs))
    watch = mt.watch_products(net, ["mxfp8"], every=1)
    net(torch.ones(2, 5, inputs, requires_grad=True)).sum().backward()
    assert {(row.product, row.macs, row.error) for row in watch.rows} == {
        (product, 0, 0.0) for product in ("forward", "dgrad", "wgrad")
    }


@pytest.mark.slow
def test_measurements_are_written_and_layers_chosen(tmp_path):
    net = model()
    watch = mt.watch_products(net, NAMES, every=1)
    for place in range(2):
        step(net, place)
    watch.write(tmp_path / "seen.csv")
    assert repr(read_rows(tmp_path / "seen.csv")) == repr(watch.rows)
    assert len(watch.summary()) == len(watch.rows) / 2
    assert watch.assign("mxfp8", share=0) == []
    assert watch.assign(RECIPES["mxfp8"], share=1) == ["0", "2"]
    worst = max(row.error for row in watch.rows if row.recipe == "fp4-all")
    assert watch.assign("fp4-all", error=worst) == []
    assert watch.assign("fp4-all", error=0) == ["0", "2"]
    high = watch.assign("fp4-all", share=0.45)  # it makes three products of less than half the size
    assert high == ["2"]
    assert mt.emulate(net, "fp4-all", high=high).high == high


def test_the_weight_is_that_of_the_call():
    """`functional_call` takes another one than the module has in the backward pass."""
    net, other, found = model(), model(), []
    with torch.no_grad():
        other[0].weight.mul_(3.7)
    for called in (other, lambda x: torch.func.functional_call(net, dict(other.named_parameters()), x)):
        watched = net if found else other
        watch = mt.watch_products(watched, ["mxfp8"], every=1)
        called(batch()).square().sum().backward()
        watch.remove()
        found.append(watch.rows)
    assert found[0] == found[1]


def test_what_cannot_be_watched_is_refused():
    net = model()
    for given, error, message in (
        (([net], NAMES), TypeError, "Module, not list"),
        ((net, "mxfp8"), TypeError, "sequence of recipes"),
        ((net, None), TypeError, "sequence of recipes"),
        ((net, []), ValueError, "at least one"),
        ((net, ["mxfp8", "mxfp8"]), ValueError, "with different names"),
        ((net, ["nvpf4"]), ValueError, "nvfp4"),
        ((net, NAMES, 0), ValueError, "every"),
        ((torch.nn.ReLU(), NAMES), ValueError, "no linear layer"),
    ):
        with pytest.raises(error, match=message):
            mt.watch_products(*given)
    with pytest.raises(TypeError, match="seed must be an int"):
        mt.watch_products(net, NAMES, seed="x")
    with pytest.raises(TypeError, match="optimizer"):
        mt.watch_products(net, NAMES, optimizer=3)
    assert not net[0]._forward_hooks
    watch = mt.watch_products(net, NAMES, every=1)
    with pytest.raises(RuntimeError, match="no products are measured within"):
        torch.func.grad(lambda x: net(x).sum())(batch())
    watch.remove()
    assert list(mt.watch_products(net, iter(NAMES)).recipes) == NAMES


def test_what_is_not_finite_is_told_and_kept_high():
    net = model()
    watch = mt.watch_products(net, ["mxfp8"], every=1)
    with torch.no_grad():
        net[2].weight[0, 0] = math.nan
    step(net)
    errors = {row.layer: row.error for row in watch.rows if row.product == "forward"}
    assert math.isnan(errors["2"])
    assert np.isfinite(errors["0"])
    with pytest.raises(ValueError, match="not finite"):
        watch.assign("mxfp8", share=0.1)


@pytest.mark.slow
@pytest.mark.costly("PyTorch imports its compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.exhaustive
def test_a_compiled_model_is_measured_in_pieces():
    net, plain = model(), model()
    watch, other = (mt.watch_products(item, ["mxfp8"], every=1) for item in (net, plain))
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager")
    for place in range(2):
        assert torch.equal(step(compiled, place), step(plain, place))
    assert watch.rows == other.rows
    with pytest.raises(Exception, match="disable"):
        torch.compile(copy.deepcopy(plain), backend="eager", fullgraph=True)(batch())
