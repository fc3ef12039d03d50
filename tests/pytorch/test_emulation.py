"""Models whose matrix products are emulated: the bits of `recipes.linear`, in whatever shape and dtype."""

import copy
import itertools
import pickle
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from shutil import which

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim import torch as mt
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe, linear
from mcfsim.torch import emulated_products
from mcfsim.torch.emulated_layers import EmulatedLinear
from mcfsim.torch.emulated_products import Placed, number_of
from tests.pytorch.beside import assert_one_graph
from tests.pytorch.runs import first

#: A product of operands as they come.
PLAIN = ProductRecipe(OperandRecipe(), OperandRecipe(), output=None)
#: A unit whose sums have an order, so that bits do not depend on the machine.
CHAIN = "cdna3_fp32"


def anywhere(name):
    """Return a recipe without layers in high precision."""
    return replace(RECIPES[name], first=Fraction(0), last=Fraction(0))


def model(kind=torch.float32, inputs=48):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 40), torch.nn.Tanh(), torch.nn.Linear(40, 24, bias=False)
    ).to(kind)


def words(layer, call=0, seed=0):
    return mcf.RandomWords(seed, call, layer)


@pytest.mark.parametrize("name", [x for x in RECIPES if x != "bf16-truncating"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(2)
def test_a_layer_computes_what_the_recipe_says(name, kind, assert_same):
    net, recipe = model(kind), anywhere(name).with_unit(CHAIN)
    x = torch.randn(5, 7, 48, dtype=kind, requires_grad=True)
    given = torch.randn(5, 7, 40, dtype=kind)
    weight, bias = net[0].weight, net[0].bias
    rows, matrix = (t.detach().float().numpy() for t in (x.reshape(-1, 48), weight))
    expected, backward = linear(recipe, rows, matrix, words(0))
    dx, dweight = backward(given.reshape(-1, 40).float().numpy())
    mt.emulate(net, recipe)
    y = net[0](x)
    y.backward(given)
    product = torch.from_numpy(expected).to(kind).reshape(5, 7, 40)
    assert_same(y.detach().float(), (product + bias.detach()).float())
    for found, right in ((x.grad, dx), (weight.grad, dweight)):
        assert found.dtype == kind
        assert_same(found.float(), torch.from_numpy(right).to(kind).float().reshape(found.shape))


def test_products_in_binary32_differ_by_their_sums_alone():
    x, weight = torch.randn(9, 48), torch.randn(40, 48)
    for name in RECIPES:
        if RECIPES[name].forward.unit:
            continue
        net = torch.nn.Sequential(torch.nn.Linear(48, 40, bias=False))
        net[0].weight.data.copy_(weight)
        mt.emulate(net, replace(anywhere(name), forward=replace(RECIPES[name].forward, output=None)))
        exact = linear(
            replace(anywhere(name).with_unit(None), forward=replace(RECIPES[name].forward, output=None)),
            x.numpy(),
            weight.numpy(),
            words(0),
        )[0]
        bound = 48 * 2.0**-24 * (x.abs() @ weight.abs().T) * 2
        assert (abs(net(x).detach() - torch.from_numpy(exact)) <= bound).all()


# -- what stays as it is ------------------------------------------------------------------------------------
def test_the_model_is_given_back():
    net = model(torch.bfloat16)
    before, hooks = copy.deepcopy(net), []
    net[0].register_forward_hook(lambda *_: hooks.append(1))
    names, tensors = list(net.state_dict()), [*net.parameters()]
    optimizer = mt.AdamW(net.parameters(), lr=1e-2, strategy="plain")
    done = mt.emulate(net, "mxfp8")
    assert done.emulated == ["0", "2"]
    assert not done.high
    assert list(net.state_dict()) == names
    assert all(a is b for a, b in zip(net.parameters(), tensors, strict=True))
    assert isinstance(net[0], torch.nn.Linear)
    net(torch.randn(3, 48, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert hooks == [1]
    assert done.restore() is net
    assert [type(m) for m in net.modules()] == [type(m) for m in before.modules()]
    assert all(vars(m).keys() == vars(b).keys() for m, b in zip(net.modules(), before.modules(), strict=True))
    assert not torch.equal(net[0].weight, before[0].weight)
    mt.restore(net)


def test_layers_stay_high_by_the_recipe_by_name_and_as_heads():
    blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(32, 32)) for _ in range(8)])
    heads = {name: torch.nn.Linear(32, 8) for name in ("lm_head", "own")}
    net = torch.nn.ModuleDict({"blocks": blocks, **heads})
    done = mt.emulate(net, replace(RECIPES["nvfp4"], first=Fraction(1, 8), last=Fraction(1, 4)), high=["own"])
    assert done.high == ["blocks.0.0", "blocks.6.0", "blocks.7.0", "lm_head", "own"]
    assert done.emulated == [f"blocks.{place}.0" for place in range(1, 6)]
    mt.restore(net)
    assert "lm_head" in mt.emulate(net, "mxfp8", head=True).emulated
    # A block counts by its place, whatever number it has as a name.
    own = torch.nn.ModuleDict({name: torch.nn.Linear(32, 32) for name in ("10", "12", "14")})
    assert mt.emulate(own, replace(RECIPES["mxfp8"], first=Fraction(1, 3))).high == ["10"]


def test_a_head_that_shares_its_weight_is_a_head():
    layers = {"up": torch.nn.Linear(32, 32), "down": torch.nn.Linear(32, 8, bias=False)}
    net = torch.nn.ModuleDict({"table": torch.nn.Embedding(8, 32), **layers})
    net["down"].weight = net["table"].weight
    assert mt.emulate(net, "mxfp8").high == ["down"]


def test_models_are_copied_pickled_and_moved(tmp_path):
    net, x = model(), torch.randn(3, 48)
    mt.emulate(net, "mxfp8")
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    torch.save(net, tmp_path / "model.pt")
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False)(x), expected)
    assert net.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("attention", [False, True])
def test_a_pickled_model_computes_the_same_in_a_new_process(attention, monkeypatch):
    """Where other recipes have come before, or none."""
    tokens = torch.arange(6)
    layers = {"table": torch.nn.Embedding(8, 32), "linear": torch.nn.Linear(32, 32)}
    net = Attentive(layers) if attention else torch.nn.Sequential(*layers.values())
    done = mt.emulate(net, anywhere("fp4-all"), embeddings=True, attention=attention)
    expected, saved = net(tokens), pickle.dumps((net, done))
    for earlier in ((), ("bf16",)):
        monkeypatch.setattr(emulated_products, "_PLACED", {})
        monkeypatch.setattr(emulated_products, "_NUMBERS", {})
        for name in earlier:
            mt.emulate(torch.nn.Sequential(torch.nn.Linear(32, 32)), name)
        loaded, same = pickle.loads(saved)
        same.load_state_dict(dict.fromkeys(same.state_dict(), 0))
        assert torch.equal(loaded(tokens), expected)
        assert not torch.equal(mt.restore(loaded)(tokens), expected)


def test_a_number_means_the_same_in_every_process(monkeypatch):
    """Compiled graphs that PyTorch keeps on disk hold it."""
    placed = [Placed(*x) for x in itertools.product(RECIPES.values(), (0, 1), (0, 1))]
    found = [number_of(x) for x in placed]
    assert len(set(found)) == len(placed)
    for digest in (sha256, lambda text: sha256()):
        monkeypatch.setattr(emulated_products, "_PLACED", {})
        monkeypatch.setattr(emulated_products, "_NUMBERS", {})
        monkeypatch.setattr(emulated_products, "sha256", digest)
        again = [number_of(x) for x in reversed(placed)][::-1]
        assert again == found if digest is sha256 else len(set(again)) == len(placed)


class Attentive(torch.nn.ModuleDict):
    """Its layers, and attention of what they give."""

    def forward(self, x):
        for layer in self.values():
            x = layer(x)
        return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])


class Conv1D(torch.nn.Module):
    """As Hugging Face's, of 32 inputs."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(*x)) for x in ((32, 8), (8,)))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_layers_of_gpt2_are_copied_and_pickled():
    net, x = torch.nn.Sequential(Conv1D()), torch.randn(3, 32)
    mt.emulate(net, "bf16")
    expected = net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x), expected)
        assert type(mt.restore(other)[0]) is Conv1D


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["mxfp8", "quartet2"])
def test_operands_that_no_gradient_needs_may_be_changed(name, frozen):
    """Activations of a frozen weight, and the weight of a layer whose input needs no gradient."""
    found, x = [], torch.randn(3, 48)
    for changed in (False, True):
        net, given = model()[0], x.clone().requires_grad_(frozen)
        net.weight.requires_grad_(not frozen)
        mt.emulate(net, anywhere(name))
        entered = given * 1
        y = net(entered)
        if changed:
            (entered if frozen else net.weight).detach().zero_()
        y.sum().backward()
        found.append(given.grad if frozen else net.weight.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("unit", [None, CHAIN])
def test_memory_of_weights_may_be_resized(unit):
    """As FSDP2 does after each call."""
    net, x = model(), torch.randn(3, 48, requires_grad=True)
    mt.emulate(net, replace(anywhere("quartet").with_unit(unit), forward=PLAIN))
    mt.watch_products(net, ["mxfp8"], every=1)
    net(x).sum().backward()
    assert all(p.untyped_storage().resizable() for p in net.parameters())


def test_a_layer_that_has_become_another_is_not_given_back():
    net = model()
    mt.emulate(net, "bf16")
    torch.nn.utils.parametrizations.weight_norm(net[2])
    with pytest.raises(ValueError, match=r"'2' has become a ParametrizedEmulatedLinear"):
        mt.restore(net)
    assert type(net[0]) is EmulatedLinear
    torch.nn.utils.parametrize.remove_parametrizations(net[2], "weight")
    assert type(mt.restore(net)[2]) is torch.nn.Linear


def test_counts_outlive_a_meta_device_and_inference():
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Embedding(8, 48), model())
        done = mt.emulate(net, "mxfp8", embeddings=True)
    assert net(torch.arange(3, device="meta")).shape == (3, 24)
    junk = [torch.full((), 7**9) for _ in range(64)]  # for what is not initialised
    del junk
    counts = {"0": 1, "1.0": 1, "1.2": 1}
    assert done.state_dict() == counts
    for move in (lambda: net.to_empty(device="cpu"), lambda: net.to("meta"), net.half):
        move()
        assert done.state_dict() == counts
    plain = model()
    with torch.inference_mode():
        done = mt.emulate(plain, "mxfp8")
    plain(torch.randn(3, 48))
    assert done.state_dict() == {"0": 1, "2": 1}


@pytest.mark.parametrize("bias", [False, True])
def test_activations_may_work_in_place(bias):
    nets = [
        torch.nn.Sequential(torch.nn.Linear(32, 8, bias=bias), torch.nn.ReLU(inplace=place))
        for place in (False, True)
    ]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(2, 3, 32)
    for net in nets:
        mt.emulate(net, "mxfp8")
        net(x).square().sum().backward()
    assert torch.equal(nets[0][0].weight.grad, nets[1][0].weight.grad)


# -- random words -------------------------------------------------------------------------------------------
def gradient(net, x):
    net.zero_grad()
    net(x).sum().backward()
    return net[0].weight.grad.clone()


@pytest.mark.slow
def test_random_words_are_those_of_seed_layer_and_call():
    x, net = torch.randn(16, 48), model()
    done = mt.emulate(net, anywhere("fp4-all"))
    first, second = gradient(net, x), gradient(net, x)
    assert not torch.equal(first, second)
    state = done.state_dict()
    assert state == {"0": 2, "2": 2}
    third = gradient(net, x)
    done.load_state_dict(state)
    assert torch.equal(gradient(net, x), third)
    done.restore()
    mt.emulate(net, anywhere("fp4-all"))
    assert torch.equal(gradient(net, x), first)
    mt.restore(net)
    mt.emulate(net, anywhere("fp4-all"), seed=1)
    assert not torch.equal(gradient(net, x), first)
    with pytest.raises(ValueError, match="is in one of them alone"):
        done.load_state_dict({"0": 1, "4": 1})


# -- compiled -----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.costly("PyTorch imports its compiler")
@pytest.mark.parametrize("name", ["mxfp8", "fp4-all", "quartet"])
@pytest.mark.sampled(3, each=False)
def test_compiled_models_are_whole_graphs_of_the_same_bits(name):
    x, net = torch.randn(16, 48), model()
    mt.emulate(net, anywhere(name))
    assert_one_graph(net, x)


@pytest.mark.exhaustive
@pytest.mark.skipif(which("g++") is None, reason="PyTorch's compiler needs g++")
def test_what_a_compiler_computes_anew_in_the_backward_pass_draws_the_same_words():
    x, net = torch.randn(16, 48), model()
    mt.emulate(net, anywhere("fp4-all"))
    other = copy.deepcopy(net)
    torch.compiler.reset()
    compiled = torch.compile(other, fullgraph=True)
    for _ in range(2):
        net(x).sum().backward()
        compiled(x).sum().backward()
        assert torch.equal(net[2].weight.grad, other[2].weight.grad)


@pytest.mark.slow
@pytest.mark.costly("PyTorch traces operators in several ways")
@pytest.mark.parametrize("name", first("quartet", ["mxfp8"]))
def test_operators_keep_what_pytorch_asks_of_them(name):
    net = model()
    mt.emulate(net, anywhere(name))
    number = net[0].emulated.number
    x, weight = torch.randn(2, 5, 48, requires_grad=True), torch.randn(2, 7, 48, requires_grad=True)
    call = torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(torch.ops.mcfsim.linear, (x, weight, call, number, torch.float32))


@pytest.mark.parametrize("on", [False, True])
def test_autocast_sets_the_dtype_of_results(on):
    net = model()
    mt.emulate(net, "bf16")
    with torch.autocast("cpu", torch.bfloat16) if on else nullcontext():
        y = net[0](torch.randn(3, 48))
    assert y.dtype == (torch.bfloat16 if on else torch.float32)
    y.float().sum().backward()
    assert net[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["nvfp4", "quartet"])
def test_autocast_shortens_no_operand(name, assert_same):
    """Those of FP4 with scales of a tensor have more bits than bfloat16."""
    recipe = anywhere(name)
    recipe = replace(recipe, forward=replace(recipe.forward, output=None))
    found, x = [], torch.randn(40, 48).bfloat16()
    for on in (False, True):
        net = model(torch.bfloat16)
        mt.emulate(net, recipe)
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16) if on else nullcontext():
            y = net[0](given)
            y.sum().backward()
        found.append([t.detach().float() for t in (y, given.grad, net[0].weight.grad)])
    for right, other in zip(*found, strict=True):
        assert_same(other, right)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="PyTorch 2.9 has other settings")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_newer_settings_of_precision_are_kept(precision):
    net, x, backends = model(), torch.randn(4, 48), torch.backends
    mt.emulate(net, "mxfp8")
    expected, places = net[0](x), (backends, backends.cuda.matmul, backends.mkldnn.matmul)
    for place in places:
        if precision == "bf16" and place is backends.cuda.matmul:
            continue
        before = place.fp32_precision
        try:
            place.fp32_precision = precision
            told = [other.fp32_precision for other in places]
            assert torch.equal(net[0](x), expected)
            assert [other.fp32_precision for other in places] == told
        finally:
            place.fp32_precision = before
        assert {other.fp32_precision for other in places} == {"none"}


def test_a_wider_product_allowed_by_the_user_is_not_taken():
    net, x = model(), torch.randn(64, 48)
    mt.emulate(net, replace(RECIPES["mxfp8"], forward=replace(RECIPES["mxfp8"].forward, output=None)))
    expected = net[0](x)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(net[0](x), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


# -- refused ------------------------------------------------------------------------------------------------
def test_what_cannot_be_emulated_is_refused():
    net = model()
    with pytest.raises(TypeError, match="Module, not list"):
        mt.emulate([net])
    with pytest.raises(ValueError, match=r"unknown recipe 'nvpf4'.*nvfp4"):
        mt.emulate(net, "nvpf4")
    with pytest.raises(ValueError, match="no layer is emulated: 2 linear layers"):
        mt.emulate(net, "mxfp8", high=["*"])
    done = mt.emulate(net, "mxfp8")
    with pytest.raises(ValueError, match="emulated already"):
        mt.emulate(net, "mxfp8")
    with pytest.raises(TypeError, match="Module, not NoneType"):
        mt.restore(None)
    with pytest.raises(TypeError, match="a NoneType is no state"):
        done.load_state_dict(None)
    for kind in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=f"floating dtypes, not {kind}"):
            net(torch.ones(2, 48, dtype=kind))
    assert done.state_dict() == {"0": 0, "2": 0}  # what is refused is no call
    with pytest.raises(TypeError, match=r"none of layout torch\.jagged"):
        net(torch.nested.nested_tensor([torch.ones(2, 48)], layout=torch.jagged))
    mt.emulate(torch.nn.Linear(2, 2), "mxfp8").restore()
    with pytest.raises(ValueError, match="no layer is emulated"):
        mt.emulate(torch.nn.ReLU())
    assert isinstance(net[0], EmulatedLinear)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:`torch.jit.script` is deprecated")
def test_derivatives_that_would_not_come_are_refused():
    """Tangents would be zeros, and gradients of second order none."""
    net, x = model(), torch.randn(3, 48)
    done = mt.emulate(net, anywhere("fp4-all"))
    with pytest.raises(RuntimeError, match=r"not by torch.func.grad"):
        torch.func.grad(lambda x: net(x).sum())(x)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="nor in forward mode"):
            torch.func.jvp(net, (x,), (x,))
        with pytest.raises(RuntimeError, match="nor in forward mode"), torch.autograd.forward_ad.dual_level():
            net(x)
    with pytest.raises(RuntimeError, match=r"same random words.*'fp4-all'"):
        torch.func.vmap(net)(x[None])
    assert done.state_dict() == {"0": 0, "2": 0}
    given = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(net(given).square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="have no derivatives"):
        dx.sum().backward()
    with torch.no_grad():  # nothing is drawn
        assert torch.equal(torch.func.vmap(net)(x[None])[0], net(x))
    done.restore()
    mt.emulate(net, "mxfp8")
    assert torch.equal(torch.func.vmap(net)(x[None])[0], net(x))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"high": "0"}, TypeError, "high must be a sequence of names"),
        ({"high": 3}, TypeError, "high must be a sequence of names"),
        ({"high": [0]}, TypeError, "high must be a sequence of names"),
        ({"high": ["0", "3*"]}, ValueError, "high has '3[*]', which matches no linear layer"),
        ({"head": "no"}, TypeError, "head must be True or False, not 'no'"),
        ({"attention": 1}, TypeError, "attention must be True or False"),
        ({"seed": "a"}, TypeError, "seed must be an int"),
        ({"seed": -1}, ValueError, "seed = -1 must lie in"),
        ({"seed": 2**70}, ValueError, "seed = 1180591620717411303424 must lie in"),
    ],
)
def test_wrong_options_change_nothing(options, error, message):
    net = model()
    with pytest.raises(error, match=message):
        mt.emulate(net, "nvfp4", **options)
    assert type(net[0]) is torch.nn.Linear


@pytest.mark.parametrize(("bad", "error"), [("1", TypeError), (-1, ValueError), (2**70, ValueError)])
def test_wrong_counts_change_no_count(bad, error):
    done = mt.emulate(model(), "mxfp8")
    with pytest.raises(error, match="'2'"):
        done.load_state_dict({"0": 5, "2": bad})
    assert done.state_dict() == {"0": 0, "2": 0}
    done.restore()
    with pytest.raises(ValueError, match="no longer emulated"):
        done.state_dict()


DRAWN, NEAR = OperandRecipe("mxfp4", "stochastic"), OperandRecipe("mxfp4")


@pytest.mark.parametrize("of_forward", [False, True])
def test_words_of_the_forward_product_are_drawn_once(of_forward):
    """Gradient checkpointing gives the gradients of the model without it, or raises."""
    first = ProductRecipe(DRAWN if of_forward else NEAR, NEAR)
    recipe = Recipe("mine", forward=first, dgrad=ProductRecipe(NEAR, NEAR), wgrad=ProductRecipe(NEAR, NEAR))
    net, x = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)), torch.randn(4, 32)
    mt.emulate(net, recipe)
    y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
    if of_forward:
        with pytest.raises(RuntimeError, match="'mine' draws random words, and is computed anew"):
            y.sum().backward()
        return
    y.sum().backward()
    assert torch.equal(net[0].weight.grad, gradient(net, x))


# -- PyTorch's ways around layers ---------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padded", [False, True])
def test_encoders_are_emulated_in_evaluation(padded):
    """Their attention, which is not emulated, sums in another order without gradients."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 32)
    padding = torch.arange(5)[None] >= torch.tensor([[5], [3]]) if padded else None
    with torch.no_grad():
        before = net(x, src_key_padding_mask=padding)
    done = mt.emulate(net, anywhere("fp4-all"))
    expected = net(x, src_key_padding_mask=padding).detach()
    with torch.no_grad():
        found = [m(x, src_key_padding_mask=padding) for m in (net, copy.deepcopy(net))]
        apart = (expected - before)[0].norm()
        assert apart > 0.1
        assert all((y - expected)[0].norm() < apart / 10 for y in found)
        copied = copy.deepcopy(net)
        for m in (copied, done.restore()):
            assert torch.equal(mt.restore(m)(x, src_key_padding_mask=padding), before)
    assert vars(net).keys() == vars(torch.nn.TransformerEncoder(layer, 2)).keys()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_rows(bad):
    net, x = model(), torch.randn(4, 48)
    mt.emulate(net, "mxfp8")
    clean = net[0](x)
    x[1, 3] = bad
    y = net[0](x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2, 3]], clean[[0, 2, 3]])


@pytest.mark.parametrize("name", ["mxfp8", "quartet"])
def test_rows_of_another_length_are_refused(name):
    """Transforms would fill 40 and 48 numbers up to the same 64."""
    net = model()
    done = mt.emulate(net, anywhere(name))
    with pytest.raises(ValueError, match="rows of 40 numbers do not go with rows of 48"):
        net(torch.ones(2, 40))
    assert done.state_dict() == {"0": 0, "2": 0}


def test_no_tokens_and_no_gradient_of_inputs():
    net = model()
    mt.emulate(net, "quartet")
    assert net(torch.randn(0, 48)).shape == (0, 24)
    assert net(torch.randn(3, 0, 48)).shape == (3, 0, 24)
    net(torch.randn(3, 48)).sum().backward()
    assert net[0].weight.grad.isfinite().all()
    net[0].weight.requires_grad_(False)
    x = torch.randn(3, 48, requires_grad=True)
    net(x).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["bf16", "mxfp8", "nvfp4", "quartet"])
def test_a_layer_without_inputs_gives_its_bias(name):
    with pytest.warns(UserWarning, match="zero-element"):
        net = torch.nn.Linear(0, 3)
    mt.emulate(net, anywhere(name))
    y = net(torch.randn(4, 0, requires_grad=True))
    assert torch.equal(y, net.bias.expand(4, 3))
    y.sum().backward()
    assert net.weight.grad.shape == (3, 0)
