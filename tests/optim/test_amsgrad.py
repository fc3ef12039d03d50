"""AMSGrad, which keeps the largest second moment, also at PyTorch's points: by the judge."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.optim.amsgrad import AMSGrad, TorchAMSGrad
from mcfsim.optim.torchadamw import TorchAdamW

from .reference import Judge, assert_course, course
from .stored import numbers

SHAPES = {"w": (3, 4), "b": (3,), "s": (), "e": (3, 0)}
DECAYED = {"w"}
RATES = (2.0**-4, 2.0**-6, 2.0**-4, 2.0**-5)
KINDS = [AMSGrad, TorchAMSGrad]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def hyper(kind):
    return kind(beta1=0.75, beta2=0.5, epsilon=2.0**-12, weight_decay=0.1)


STORED = [name for name in mcf.STRATEGIES if name not in ("exact", "eco")]


def gradients(rise=1.0):
    """Return gradients whose squares fall, so that the largest moments are old, and rise at the last step."""
    scales = (1.0, 2.0**-3, 2.0**-5, rise)
    made = (numbers(step, SHAPES, least=-3, most=1) for step in range(1, 5))
    return [{k: (x * s).astype(np.float32) for k, x in g.items()} for g, s in zip(made, scales, strict=True)]


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "toward_zero", "stochastic"])
@pytest.mark.parametrize("strategy", STORED)
@every_kind
@pytest.mark.sampled(128, each=False)
@pytest.mark.slow
def test_steps_are_those_of_the_judge(kind, strategy, rounding, assert_same):
    chosen = mcf.strategy(strategy)
    if chosen.addition == "grow":  # whose exact errors are those of nearest
        rounding = "nearest_even"
    words = {"random": mcf.RandomWords(3)} if rounding == "stochastic" else {}
    begin = chosen, numbers(100, SHAPES), DECAYED, rounding
    judge = Judge(hyper(kind), *begin, words=words.get("random"))
    expected = course(judge, gradients(), RATES)
    assert_course(assert_same, mcf.Optimizer(hyper(kind), *begin, **words), expected, gradients(), RATES)


@every_kind
@pytest.mark.slow
def test_what_is_not_finite_is_as_the_judge_has_it(kind, assert_same):
    given = gradients()
    for step, x in zip(given, (mcf.round_to(3e38, "bfloat16"), np.inf, 1.0, np.nan), strict=True):
        step["w"].reshape(-1)[step["w"].size // 2] = x
    for strategy in ("plain", "fp32-master"):
        begin = mcf.strategy(strategy), numbers(100, SHAPES), DECAYED, "nearest_even"
        with np.errstate(all="ignore"):
            expected = course(Judge(hyper(kind), *begin), given, RATES)
        assert_course(assert_same, mcf.Optimizer(hyper(kind), *begin), expected, given, RATES)


@pytest.mark.parametrize("kinds", [(AMSGrad, mcf.AdamW), (TorchAMSGrad, TorchAdamW)], ids=["own", "torch"])
def test_moments_that_only_grow_are_those_of_adamw(kinds):
    """And AMSGrad is another optimizer where they fall."""
    differ = []
    for factor in (4.0, 0.25):
        start, steps = numbers(100, SHAPES), numbers(1, SHAPES, least=-1, most=0)
        ours, theirs = (mcf.Optimizer(kind(beta2=0.5), mcf.strategy("plain"), start) for kind in kinds)
        for count in range(4):
            given = {name: x * np.float32(factor**count) for name, x in steps.items()}
            for optimizer in (ours, theirs):
                optimizer.step(optimizer.receive(given), 2.0**-4)
        differ.append(any((ours.weights()[name] != x).any() for name, x in theirs.weights().items()))
    assert differ == [False, True]


@pytest.mark.slow
def test_steps_are_those_of_pytorch_within_its_rounding():
    torch = pytest.importorskip("torch")
    random, x = np.random.default_rng(0), np.ones(50, np.float32)
    ours = mcf.Optimizer(AMSGrad(weight_decay=0.01), mcf.strategy("fp32"), {"w": x}, {"w"})
    theirs = torch.nn.Parameter(torch.from_numpy(x.copy()))
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, amsgrad=True)
    for step in range(20):
        given = (random.standard_normal(50) * 0.7**step).astype(np.float32)
        theirs.grad = torch.from_numpy(given.copy())
        optimizer.step()
        ours.step(ours.receive({"w": given}), 1e-2)
        np.testing.assert_allclose(ours.weights()["w"], theirs.detach().numpy(), rtol=1e-5)


def test_a_run_is_measured_and_its_memory_counted():
    problem = mcf.get_problem("quadratic", dimension=20)
    run = mcf.simulate(problem, "amsgrad", ["plain", "collage-plus", "exact"], steps=4)
    assert run.series["plain"]["distance"][-1] > run.series["collage-plus"]["distance"][-1] > 0
    assert run.results["plain"]["bytes_per_parameter"] == mcf.strategy("plain").bytes_per_parameter + 2
