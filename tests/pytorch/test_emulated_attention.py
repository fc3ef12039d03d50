"""Attention and embeddings by a recipe: the bits of `recipes.linear`, and the arguments of PyTorch's own."""

import copy
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import mcfsim as mcf
from mcfsim import torch as mt
from mcfsim.recipes import Recipe, linear
from mcfsim.torch.emulated_layers import AttentionMode
from mcfsim.torch.emulated_products import Placed, number_of
from tests.pytorch.beside import assert_one_graph
from tests.pytorch.test_emulation import CHAIN, anywhere
from tests.pytorch.test_emulation import PLAIN as UNROUNDED

PLAIN = Recipe("plain", forward=UNROUNDED, dgrad=UNROUNDED, wgrad=UNROUNDED)


class Attention(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, **self.options)


def operands(*sizes, kind=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*x, generator=generator).to(kind).requires_grad_() for x in sizes]


def emulated(recipe=PLAIN, **options):
    net = Attention(**options)
    return net, mt.emulate(net, recipe, attention=True)


# -- PyTorch's arguments ------------------------------------------------------------------------------------
MASK = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.5
MASK[:, 0] = True
CASES = {
    "plain": ({}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "three axes": ({}, [(3, 5, 8), (3, 7, 8), (3, 7, 4)]),
    "two axes": ({}, [(5, 8), (7, 8), (7, 4)]),
    "broadcast": ({}, [(2, 3, 5, 8), (1, 3, 7, 8), (2, 1, 7, 4)]),
    "causal": ({"is_causal": True}, [(2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 7, 8)]),
    "causal, fewer keys": ({"is_causal": True}, [(2, 3, 7, 8), (2, 3, 5, 8), (2, 3, 5, 8)]),
    "mask": ({"attn_mask": MASK}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "mask of numbers": ({"attn_mask": MASK * 2.5}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "scale": ({"scale": 0.7}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "no queries": ({}, [(2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "no keys": ({}, [(2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 4)]),
    "no heads": ({}, [(2, 0, 5, 8), (2, 0, 7, 8), (2, 0, 7, 4)]),
    "groups": ({"enable_gqa": True, "is_causal": True}, [(2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
}


@pytest.mark.parametrize("case", CASES)
def test_arguments_mean_what_they_mean_to_pytorch(case):
    """Without quantisation only the order of sums in binary32 differs."""
    options, sizes = CASES[case]
    given, same = operands(*sizes), operands(*sizes)
    net, done = emulated(**options)
    assert (done.attention, done.emulated) == (True, [])
    found, right = net(*given), scaled_dot_product_attention(*same, **options)
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    for y in (found, right):
        y.square().sum().backward()
    for x, y in zip(given, same, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_numbers", [False, True])
def test_a_row_that_is_masked_as_a_whole_gives_zeros(of_numbers):
    mask = MASK.clone()
    mask[2] = False
    if of_numbers:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    net, _ = emulated(attn_mask=mask)
    given = operands((3, 5, 8), (3, 7, 8), (3, 7, 4))
    y = net(*given)
    assert not y[:, 2].any()
    y.sum().backward()
    assert all(x.grad.isfinite().all() for x in given)
    assert not given[0].grad[:, 2].any()


def test_dropout_takes_weights_away_and_scales_the_others():
    net, _ = emulated(dropout_p=0.5)
    q, k = torch.zeros(1, 64, 8), torch.zeros(1, 64, 8)
    torch.manual_seed(0)
    found = net(q, k, torch.eye(64)[None])
    assert set(found.unique().tolist()) == {0.0, 2 / 64}
    assert 0.4 < (found != 0).float().mean() < 0.6


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        ({"is_causal": True, "attn_mask": MASK}, [(5, 8), (7, 8), (7, 4)], "not both"),
        ({"enable_gqa": True}, [(5, 5, 8), (2, 7, 8), (2, 7, 4)], "2 heads of keys or values do not"),
        ({}, [(5, 8), (7, 6), (7, 4)], "rows of 8 numbers do not go with rows of 6"),
        ({}, [(5, 8), (7, 8), (6, 4)], "rows of 7 numbers do not go with rows of 6"),
    ],
)
def test_arguments_that_pytorch_refuses_are_refused(options, sizes, message):
    net, _ = emulated(**options)
    with pytest.raises(ValueError, match=message):
        net(*operands(*sizes))
    # What failed has left no mode behind.
    assert torch.equal(scaled_dot_product_attention(*operands((5, 8), (7, 8), (7, 4))), plainly())


def plainly():
    return scaled_dot_product_attention(*operands((5, 8), (7, 8), (7, 4)))


# -- bits ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mxfp8", "fp4-all", "quartet", "bf16"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_products_are_those_of_the_recipe(name, kind, assert_same):
    recipe, sizes = anywhere(name).with_unit(CHAIN), [(2, 5, 32), (2, 6, 32), (2, 6, 16)]
    given = operands(*sizes, kind=kind)
    net, done = emulated(recipe, is_causal=True)
    y = net(*given)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(kind)
    y.backward(dy)
    assert done.state_dict() == {"scaled_dot_product_attention": 1}
    mask = torch.ones(5, 6, dtype=torch.bool).tril()
    # By hand: linear layers of NumPy, and a softmax of all heads between them.
    parts = [[x.detach()[head].float() for x in given] for head in range(2)]
    words = [[mcf.RandomWords(0, 0, layer, 64 * head) for head in range(2)] for layer in range(2)]
    firsts = [linear(recipe, q.numpy(), k.numpy(), w) for (q, k, _), w in zip(parts, words[0], strict=True)]
    scores = torch.stack([torch.from_numpy(made) for made, _ in firsts]).to(kind).requires_grad_()
    weights = (scores.float() * (1 / math.sqrt(32))).masked_fill(~mask, -math.inf).softmax(-1).to(kind)
    seconds = [
        linear(recipe, weights.detach()[head].float().numpy(), parts[head][2].T.contiguous().numpy(), w)
        for head, w in enumerate(words[1])
    ]
    backs = [back(dy[head].float().numpy()) for head, (_, back) in enumerate(seconds)]
    weights.backward(torch.stack([torch.from_numpy(dweights).to(kind) for dweights, _ in backs]))
    for head, (out, _) in enumerate(seconds):
        assert_same(y[head].detach().float(), torch.from_numpy(out).to(kind).float())
        dq, dk = firsts[head][1](scores.grad[head].float().numpy())
        for x, right in zip(given, (dq, dk, backs[head][1].T), strict=True):
            assert_same(x.grad[head].float(), torch.from_numpy(right).to(kind).float())


@pytest.mark.slow
def test_calls_draw_their_own_words_and_repeat():
    net, done = emulated(anywhere("fp4-all"))

    def gradient():
        given = operands((2, 16, 32), (2, 16, 32), (2, 16, 32))
        net(*given).sum().backward()
        return given[0].grad

    first, second = gradient(), gradient()
    assert not torch.equal(first, second)
    done.load_state_dict({"scaled_dot_product_attention": 0})
    assert torch.equal(gradient(), first)


# -- the model ----------------------------------------------------------------------------------------------
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner, self.up = torch.nn.Embedding(12, 32), Attention(), torch.nn.Linear(32, 12)

    def forward(self, x):
        y = self.table(x)
        return self.up(self.inner(y, y, y))


def test_everything_is_given_back(tmp_path):
    net, x = Net(), torch.arange(12)[None]
    before, names, fields = net(x), list(net.state_dict()), {k: set(vars(m)) for k, m in net.named_modules()}
    done = mt.emulate(net, "mxfp8", attention=True, embeddings=True)
    assert (done.emulated, done.embeddings, done.attention, done.left) == (["up"], ["table"], True, {})
    assert done.state_dict() == {"up": 0, "table": 0, "scaled_dot_product_attention": 0}
    assert list(net.state_dict()) == names
    twin = copy.deepcopy(net)
    torch.save(net, tmp_path / "net.pt")
    again = torch.load(tmp_path / "net.pt", weights_only=False)
    other = net(x)
    assert torch.equal(again(x), other)
    assert not torch.equal(other, before)
    assert torch.equal(twin(x), other)
    with pytest.raises(ValueError, match="emulated already"):
        mt.emulate(net, "mxfp8")
    for item in (done.restore(), mt.restore(twin)):
        assert torch.equal(item(x), before)
        assert {k: set(vars(m)) for k, m in item.named_modules()} == fields
        assert not any((item._forward_hooks, item._forward_pre_hooks, item._forward_hooks_always_called))
        assert not list(item.buffers())
    mt.emulate(net, "mxfp8", attention=True)


def test_errors_within_the_model_end_the_mode():
    net, right = Net(), plainly()
    mt.emulate(net, "mxfp8", attention=True)
    with pytest.raises(IndexError):
        net(torch.tensor([[99]]))
    assert torch.equal(plainly(), right)
    net.register_forward_pre_hook(lambda *_: 1 / 0, prepend=True)
    with pytest.raises(ZeroDivisionError):
        net(torch.tensor([[1]]))
    assert torch.equal(plainly(), right)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("again", [False, True])
def test_attention_is_not_computed_anew_without_the_mode(again):
    """A checkpoint around the whole model enters it again."""

    class Kept(Net):
        def forward(self, x):
            y = self.table(x)
            return self.up(checkpoint(self.inner, y, y, y, use_reentrant=again))

    nets, x, given = (Net(), Net(), Kept()), torch.arange(12)[None], torch.zeros((), requires_grad=True)
    for net in nets:
        mt.emulate(net, "mxfp8", attention=True)
    with pytest.raises(RuntimeError, match="within gradient checkpointing"):
        nets[2](x)
    with torch.no_grad():
        assert torch.equal(nets[2](x), nets[0](x))
    nets[0](x).square().sum().backward()
    checkpoint(lambda x, _: nets[1](x), x, given, use_reentrant=again).square().sum().backward()
    assert torch.equal(nets[0].table.weight.grad, nets[1].table.weight.grad)


def test_an_interrupt_leaves_other_attention_alone():
    """It runs no hooks, so nothing ends the mode at once."""
    net, right, x, interrupted = Net(), plainly(), torch.arange(12)[None], [True]

    def interrupt(*_):
        if interrupted:
            raise KeyboardInterrupt

    net.inner.register_forward_pre_hook(interrupt)
    done = mt.emulate(net, "mxfp8", attention=True)
    for end in (lambda: net(x), done.restore):
        interrupted[:] = [True]
        with pytest.raises(KeyboardInterrupt):
            net(x)
        assert torch.equal(plainly(), right)
        interrupted.clear()
        copied, modes = copy.deepcopy(net), torch.overrides._len_torch_function_stack()
        end()
        assert torch.overrides._len_torch_function_stack() == modes - 1
    assert torch.equal(mt.restore(copied)(x), net(x))


def test_parts_by_choice_alone():
    net, x = Net(), torch.arange(12)[None]
    plain = net(x)
    assert mt.emulate(net, "mxfp8", embeddings=True, high=["up", "table"], attention=True).high == ["up"]
    alone = net(x)
    assert not torch.equal(alone, plain)
    mt.restore(net)
    assert not mt.emulate(net, "mxfp8").attention
    mt.restore(net).config = type("Config", (), {"_attn_implementation": "eager"})()
    with pytest.raises(ValueError, match="'eager'"):
        mt.emulate(net, "mxfp8", attention=True)
    net.config._attn_implementation = "sdpa"
    net.inner.gradient_checkpointing = True
    with pytest.raises(ValueError, match="checkpointing"):
        mt.emulate(net, "mxfp8", attention=True)
    assert net.table.__class__ is torch.nn.Embedding
    assert net.up.__class__ is torch.nn.Linear


def test_what_is_not_emulated_is_told():
    class Mine(torch.nn.Linear):
        pass

    net = torch.nn.ModuleDict(
        {
            "linear": torch.nn.Linear(8, 8),
            "mine": Mine(8, 8),
            "heads": torch.nn.MultiheadAttention(8, 2),
            "conv": torch.nn.Conv1d(8, 8, 3),
            "norm": torch.nn.LayerNorm(8),
            "table": torch.nn.Embedding(8, 8, max_norm=1.0),
            "thin": torch.nn.Embedding(8, 8, sparse=True),
            "lazy": torch.nn.LazyLinear(8),
        }
    )
    done = mt.emulate(net, "mxfp8", embeddings=True)
    assert done.emulated == ["linear"]
    assert {name: why.split()[0] for name, why in done.left.items()} == {
        "mine": "Mine",
        "heads": "MultiheadAttention",
        "conv": "Conv1d",
        "table": "it",
        "thin": "its",
        "lazy": "LazyLinear",
    }
    # And it computes what it did.
    x = torch.randn(3, 2, 8)
    again = copy.deepcopy(net["heads"])
    assert torch.equal(net["heads"](x, x, x)[0], again(x, x, x)[0])


@pytest.mark.parametrize("weights", [False, True])
def test_multi_head_attention_keeps_its_bits(weights):
    """`left` says that it is not emulated, by the mode neither."""

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.up = torch.nn.MultiheadAttention(32, 2), torch.nn.Linear(32, 8)

        def forward(self, x):
            return self.heads(x, x, x, need_weights=weights)[0], self.up(x)

    net, x = Heads(), torch.randn(5, 2, 32)
    plain, up = net(x)
    assert list(mt.emulate(net, "nvfp4", attention=True).left) == ["heads"]
    found, other = net(x)
    assert torch.equal(found, plain)
    assert not torch.equal(other, up)


# -- embeddings ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mxfp8", "fp8-tensor", "nvfp4", "quartet2"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rows_are_those_of_the_quantised_table(name, kind, assert_same):
    torch.manual_seed(0)
    net, recipe = torch.nn.Sequential(torch.nn.Embedding(20, 48, padding_idx=2)).to(kind), anywhere(name)
    weight, x = net[0].weight, torch.tensor([[3, 3, 0], [19, 2, 5]])
    mt.emulate(net, recipe, embeddings=True)
    right = mcf.quantize(weight.detach().float().numpy(), recipe.forward.right.format).dequantize()
    y = net(x)
    assert y.dtype == kind
    assert_same(y.detach().float(), torch.from_numpy(right).float().to(kind)[x].float())
    y.float().square().sum().backward()
    assert weight.grad.dtype == kind
    dy = torch.zeros(20, 48).index_add_(0, x.flatten(), 2 * y.detach().float().reshape(-1, 48))
    dy[2] = 0
    assert_same(weight.grad.float(), dy)


def test_a_rotated_table_comes_back():
    net = torch.nn.Sequential(torch.nn.Embedding(20, 40))
    weight = net[0].weight.detach()
    mt.emulate(net, "quartet", embeddings=True)
    rows = net(torch.arange(20))
    assert rows.shape == (20, 40)
    assert 0 < (rows - weight).norm() < 0.3 * weight.norm()


# -- compiled -----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.costly("PyTorch imports its compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.exhaustive
def test_compiled_attention_is_one_graph_of_the_same_bits():
    net, x = Net(), torch.arange(12)[None]
    mt.emulate(net, anywhere("fp4-all"), attention=True, embeddings=True)
    assert_one_graph(net, x)
    assert torch.equal(plainly(), plainly())


def test_the_mode_leaves_other_functions_alone():
    numbers = (number_of(Placed(PLAIN, 0, 0)),) * 2
    x = torch.randn(3, 4)
    with AttentionMode(numbers, torch.zeros((), dtype=torch.int64)):
        assert torch.equal(torch.add(x, x, alpha=2), 3 * x)
        assert torch.equal(torch.nn.functional.relu(x), x.relu())
