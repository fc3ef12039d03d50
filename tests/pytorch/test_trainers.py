"""The optimizers in what others make of training: Hugging Face's Trainer, Lightning, and torch's compiler."""

from functools import partial
from shutil import which

import pytest
import torch

import mcfsim as mcf
import mcfsim.torch
from mcfsim.backends.torch_device import DeviceArithmetic
from mcfsim.torch import SGD, AdamW, TorchAdamW
from tests.pytorch.runs import RightRoots, backward, first, fused, net
from tests.shared.pages import examples

marks = pytest.mark
# Those ignored are of the packages' own.
pytestmark = [marks.usefixtures("one_thread"), marks.slow, marks.filterwarnings("ignore")]
STEPS, SAVED = 6, 3


# -- Hugging Face ------------------------------------------------------------------------------------------
@pytest.fixture
def hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(32, (16,), generator=generator) for _ in range(16)]
    data = [{"input_ids": row, "labels": row} for row in rows]

    def train(made, dtype=torch.bfloat16, resumed=False, **options):
        torch.manual_seed(0)
        size = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 16}
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **off)).to(dtype)
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=STEPS, save_steps=SAVED, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], disable_tqdm=True, learning_rate=1e-2, lr_scheduler_type="cosine", **options,
        )  # fmt: skip
        optimizer = None if made is None else made(model.parameters())
        given = (optimizer, None)  # the scheduler is the Trainer's own
        trainer = transformers.Trainer(model, arguments, train_dataset=data, optimizers=given)
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}") if resumed else None)
        return model, optimizer

    return train


@pytest.mark.costly("the trainer of Hugging Face is imported")
@fused
def test_the_trainer_of_hugging_face_makes_the_steps_of_its_own_optimizer(hugging_face):
    made = partial(TorchAdamW, strategy="fp32"), partial(torch.optim.AdamW, foreach=False)
    with RightRoots():
        found = [hugging_face(lambda p, kind=x: kind(p, 1e-2, weight_decay=0.0), torch.float32) for x in made]
    assert equal(*(model for model, _ in found))


SMALL = {
    "Llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
              "num_key_value_heads": 1, "max_position_embeddings": 16},
    "GPT2": {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16},
}  # fmt: skip


def small(kind):
    """Return a small model of Hugging Face's, made of a configuration."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name = "LlamaForCausalLM" if kind == "Llama" else "GPT2LMHeadModel"
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(vocab_size=32, **SMALL[kind]))


def losses(model, count):
    """Return the losses of some steps on one batch."""
    torch.manual_seed(1)  # of dropout
    generator = torch.Generator().manual_seed(2)
    rows, found = torch.randint(32, (2, 16), generator=generator), []
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.costly("fifty steps of a model of Hugging Face's")
@pytest.mark.parametrize("kind", SMALL)
def test_models_of_hugging_face_train_by_a_recipe(kind, tmp_path):
    model, again, plain = small(kind), small(kind), small(kind)
    done = mcfsim.torch.emulate(model, "nvfp4")
    assert done.high == ["lm_head"]
    assert done.left == {}
    assert len(done.emulated) == (7 if kind == "Llama" else 4)
    found = losses(model, 50)
    assert found[-1] < 0.5 * found[0]
    mcfsim.torch.emulate(again, "nvfp4")
    assert losses(again, 8) == found[:8]
    assert losses(plain, 3) != found[:3]
    # What is saved is the plain model.
    assert list(model.state_dict()) == list(plain.state_dict())
    model.save_pretrained(tmp_path)
    loaded = type(plain).from_pretrained(tmp_path)
    assert type(loaded) is type(plain)
    assert all(map(torch.equal, model.state_dict().values(), loaded.state_dict().values()))
    assert done.restore() is model
    assert [type(m) for m in model.modules()] == [type(m) for m in loaded.modules()]
    rows = torch.arange(16)[None]
    assert torch.equal(model.eval()(input_ids=rows).logits, loaded.eval()(input_ids=rows).logits)


@pytest.mark.costly("attention is quantised head by head")
@pytest.mark.parametrize("kind", SMALL)
def test_attention_of_hugging_face_is_emulated_too(kind):
    found = []
    for _ in range(2):
        model = small(kind)
        done = mcfsim.torch.emulate(model, "mxfp8", attention=True, embeddings=True)
        watch = mcfsim.torch.watch_products(model, ["nvfp4"], every=2)
        found.append(losses(model, 3))
        assert done.state_dict()["scaled_dot_product_attention"] == 3
        assert {row.layer for row in watch.rows} == {*done.emulated, "lm_head"}
        watch.remove()
    assert found[0] == found[1]
    eager = small(kind)
    eager.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="'eager'"):
        mcfsim.torch.emulate(eager, "mxfp8", attention=True)


# -- Lightning ---------------------------------------------------------------------------------------------
@pytest.fixture
def lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, made):
            super().__init__()
            self.net, self.made = net(6, 16, 1, dtype=torch.bfloat16), made

        def training_step(self, batch, _):  # of its own numbers: a loader begins anew
            generator = torch.Generator().manual_seed(self.global_step)
            return self.net(torch.randn(4, 6, generator=generator).bfloat16()).float().square().mean()

        def configure_optimizers(self):
            optimizer = self.made(self.parameters())
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def train(made, resumed=False):
        path = tmp_path / "half.ckpt"
        for steps in (STEPS,) if resumed else (SAVED, STEPS):
            module = Module(made)
            trainer = lightning.Trainer(
                accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                default_root_dir=tmp_path, gradient_clip_val=1.0, max_steps=steps,
            )  # fmt: skip
            loader = torch.utils.data.DataLoader(torch.zeros(STEPS))
            trainer.fit(module, loader, ckpt_path=path if resumed else None)
            if steps == SAVED:
                trainer.save_checkpoint(path)
        return module, *trainer.optimizers

    return train


# -- what both do ------------------------------------------------------------------------------------------
def equal(ours, theirs):
    return all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize("case", ["hugging_face collage-plus", "lightning stochastic"])
def test_a_trainer_goes_on_to_the_same_bits(case, request):
    trainer, strategy = case.split()
    train, kind = request.getfixturevalue(trainer), partial(AdamW, lr=1e-2, strategy=strategy)
    model, optimizer = train(kind)
    resumed, other = train(kind, resumed=True)
    assert equal(model, resumed)
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(optimizer.represented(p), other.represented(q))
        assert optimizer.state[p]["step"] == other.state[q]["step"] == STEPS


# -- the guide -----------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.costly("all examples of a page, as they stand there")
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown, names = examples("train"), {}
    assert len(shown) >= 15
    for code in shown:
        exec(compile(code, "train.md", "exec"), names)
    assert type(names["fp32"]) is torch.optim.AdamW
    assert names["scheduler"].optimizer is names["fp32"]
    assert all(p.dtype == torch.float32 for p in names["run"].parameters())
    model, optimizer = names["model"], names["optimizer"]
    assert all(p.grad is None for p in model.parameters())
    assert {state["step"] for state in optimizer.state.values()} == {1}
    assert (tmp_path / "seen.csv").read_text() == "step,group,lost,edq\n"
    module = names["InLightning"]()
    module.parameters = model.parameters
    assert isinstance(module.configure_optimizers(), mcfsim.torch.AdamW)


# -- torch.compile -------------------------------------------------------------------------------------------
def trained(optimizer_of, step_of, count=4):
    """Return the weights after some steps, each made by a function of the optimizer."""
    given = net(8, 16, 1, dtype=torch.bfloat16)
    optimizer = optimizer_of(given.parameters())
    step = step_of(optimizer)
    for place in range(count):
        backward(given, place)
        step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:  # torch's compiler does not look into what its schedulers wrap
            group["lr"] *= 0.9
    assert {state["step"] for state in optimizer.state.values()} == {count}
    return [p.detach() for p in given.parameters()]


BACKENDS = {
    "eager": partial(AdamW, lr=1e-2, strategy="fp32-master"),
    "aot_eager": partial(AdamW, lr=1e-2),
    "inductor": partial(SGD, lr=1e-1, strategy="kahan"),
}


@pytest.mark.parametrize("backend", first("eager", ["aot_eager"], ["inductor"]))
@pytest.mark.costly("torch's compiler looks through all that is called")
def test_a_compiled_step_has_the_bits_of_one_that_is_not(backend):
    if backend == "inductor" and which("g++") is None:
        pytest.skip("torch's compiler needs one of C++, and there is none")
    torch.compiler.reset()
    calls = []

    def compiled(optimizer):
        step = torch.compile(lambda: optimizer.step(), backend=backend, fullgraph=True)
        return lambda: calls.append(step())

    expected = trained(BACKENDS[backend], lambda optimizer: optimizer.step)
    found = trained(BACKENDS[backend], compiled)
    assert all(map(torch.equal, found, expected))
    assert len(calls) == 4


@pytest.mark.parametrize(("device", "longer"), first(("cpu", False), ("cpu", True), ("device", True)))
@pytest.mark.costly("torch's compiler looks through all that is called")
def test_compiled_arithmetic_has_the_bits_of_what_is_not(device, longer):
    """It computes with NumPy, which torch's compiler would take for operations of torch's."""
    ar = mcf.arithmetic("bfloat16", backend="torch")
    if device == "device":  # as that of a GPU does
        ar = ar._over(DeviceArithmetic(ar.format, ar.rounding, device="cpu"))
    x, y = (mcf.round_to(torch.randn(1000), "bfloat16") for _ in range(2))
    fmt = "float8_e5m2" if longer else mcf.get_format("float8_e5m2")  # names are looked up in long tables

    def text(x, y):
        s, e = mcf.two_sum(ar, x, y)
        found = s + mcf.round_to(e, fmt)
        return (found, ar.div(s, ar.add(y, 0.1)), ar.evaluate(mcf.two_sum, x, y)[1]) if longer else (found,)

    torch.compiler.reset()
    compiled = torch.compile(text, backend="aot_eager" if longer else "eager")
    for found, expected in zip(compiled(x, y), text(x, y), strict=True):
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
