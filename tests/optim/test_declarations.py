"""Optimizers and strategies as declarations: what they are known by, what they have, and how they round."""

from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import FORMATS, GRID_STRATEGIES, STRATEGIES, strategy
from mcfsim.optim.adafactor import Adafactor
from mcfsim.optim.adamw import AdamWScalars, adamw
from mcfsim.optim.declaration import optimizers
from mcfsim.optim.step_programs import StepPrograms, numbers
from mcfsim.optim.strategies import FLOAT32, LOW, Stored
from mcfsim.random import RandomWords
from mcfsim.rounding import Mode, Rounding, Rule
from tests.shared.kinds import QUANTISED


@pytest.mark.parametrize("name", optimizers())
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_they_are_known_by_name_wherever_optimizers_are(name, tmp_path):
    kind = optimizers()[name]
    assert kind.__name__.lower() == name
    problem, options = mcf.get_problem("quadratic", dimension=8), {"steps": 3, "record_every": 2}
    strategies = ["plain", "collage-plus", "exact"]
    by_name = mcf.simulate(problem, name, strategies, **options)
    by_value = mcf.simulate(problem, kind(), strategies, **options, checkpoint=tmp_path / "c")
    assert by_name.settings["optimizer"]["name"] == name
    for label in strategies:
        np.testing.assert_array_equal(by_name.series[label]["loss"], by_value.series[label]["loss"])
    # Two components of the parameter and a gradient, and of the moments what there is, of v in two.
    stored = 6 + 2 * kind.keeps("m") + 4 * kind.keeps("v") * (2 if name.endswith("amsgrad") else 1)
    assert by_name.results["collage-plus"]["bytes_per_parameter"] == stored
    measured = {f"{slot}_error" for slot in "mv" if kind.keeps(slot)}
    assert measured == {"m_error", "v_error"} & by_name.series["plain"].keys()


@pytest.fixture(scope="module")
def ours():
    pytest.importorskip("torch")
    return pytest.importorskip("mcfsim.torch")


@pytest.mark.slow
def test_torch_has_optimizers_by_their_own_names(ours):
    import torch

    for name, kind in optimizers().items():
        assert kind.__name__ == name or not hasattr(ours, name)
        assert issubclass(getattr(ours, kind.__name__), torch.optim.Optimizer)


#: Hyperparameters by where they lie, and numbers that lie elsewhere.
SHARES, POSITIVE = {"beta1", "beta2", "momentum", "dampening"}, {"beta2_power", "threshold", "share"}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_hyperparameters_out_of_range_are_refused(kind):
    for field in kind.ranges:
        wrong, message = (-1.0, -(2.0**-1074)), "must not be negative"
        if field in SHARES:
            wrong, message = (1.0, -0.1), r"must lie in \[0, 1\)"
        elif field in POSITIVE or (field == "epsilon" and issubclass(kind, Adafactor)):
            wrong, message = (0.0, -1.0), "must be positive"
        else:
            kind(**{field: 0.0})
        for number in wrong:
            with pytest.raises(ValueError, match=f"{field} = {number} {message}"):
                kind(**{field: number})
        for number in (NAN, INF):
            with pytest.raises(ValueError, match=f"{field} = {number}"):
                kind(**{field: number})
        with pytest.raises(TypeError, match=field):
            kind(**{field: "0.5"})


@pytest.mark.parametrize("packed", [False, True])
def test_slots_are_told_apart_by_name_in_any_order(packed):
    class Turned(mcf.AdamW):
        slots = mcf.AdamW.slots[::-1]

    made = []
    for hyper in (mcf.AdamW(), Turned()):
        optimizer = mcf.Optimizer(hyper, mcf.strategy("collage-plus"), {"w": np.ones(5)}, packed=packed)
        optimizer.step(optimizer.receive({"w": np.linspace(-1, 1, 5)}), 2.0**-5)
        run = mcf.simulate(mcf.get_problem("quadratic", dimension=5), hyper, "plain", steps=3)
        series = {name: x.tolist() for name, x in run.series["plain"].items()}
        made.append(repr(([x.tolist() for items in optimizer.state for x in items], series)))  # of NaN, too
    assert made[0] == made[1]


class ByDict(mcf.AdamW):
    """AdamW whose scalars are a dict."""

    def scalars(self, *given, **options):
        return super().scalars(*given, **options)._asdict()

    def step(self, roles, strategy, state, gradient, scalars):
        return adamw(roles, strategy, state, gradient, AdamWScalars(**scalars))


def test_scalars_of_a_dict_are_symbols_like_those_of_a_named_tuple():
    """One program serves all steps. Of numbers without names, which are part of it, the latest are kept."""
    plain, found = strategy("collage-plus"), []
    roles = plain.roles()
    for kind in (mcf.AdamW, ByDict):
        programs = StepPrograms(kind(), plain)
        scalars = [kind().scalars(roles, plain, step, 2.0**-step, decayed=True) for step in (1, 2, 3)]
        first, *others = (programs.of(roles, given, FLOAT32) for given in scalars)
        assert all(program is first for program in others)
        found.append((first.key, [*map(numbers, scalars)]))
    assert found[0] == found[1]
    programs._record = lambda *given, **options: {}
    for number in range(100):
        programs.stages(roles, number, FLOAT32)
    assert len(programs._programs) == 64


# -- strategies ----------------------------------------------------------------------------------------------
#: Bytes a parameter in bfloat16, and of these such as stay where the low format is another.
BYTES = {
    **{"plain": (8, 0), "kahan": (10, 0), "collage-light": (10, 0), "collage-plus": (12, 0)},
    **{"mcf-2": (14, 0), "mcf-3": (20, 0), "stochastic-parameter": (8, 0), "stochastic": (8, 0)},
    **{
        "fp32-optim": (12, 8),
        "eco": (12, 8),
        "fp32-master": (16, 12),
        "split-master": (14, None),
        "split-truncated": (14, None),
    },
    **{"remainder-8": (13, 9), "remainder-16": (14, 10), "fp8-moments": (10.0625, 6.0625)},
    **{"int8-moments": (10.03125, 6.03125), "coat-moments": (10.1875, 6.1875), "fp32": (16, 16)},
    "exact": (None, None),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_the_papers(name):
    size, fixed = BYTES[name]
    found = strategy(name, "bfloat16").bytes_per_parameter
    assert found == size
    assert isinstance(found, float) == (name in QUANTISED)  # where it is no whole number
    lows = ("float16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn")
    for low, bits in zip(lows, (16, 8, 8, 6, 4), strict=True):
        if fixed is not None:
            assert strategy(name, low).bytes_per_parameter == fixed + (size - fixed) * bits / 16


def test_names_are_their_own():
    assert set(BYTES) == set(STRATEGIES)
    known = STRATEGIES | GRID_STRATEGIES
    assert len(known) == len(STRATEGIES) + len(GRID_STRATEGIES)
    assert all(declared.name == name for name, declared in known.items())
    assert strategy("kahan", "bf16") == strategy("kahan", FORMATS["bfloat16"]) == strategy("kahan")


@pytest.mark.parametrize("rule", [*Rule, None])
@pytest.mark.parametrize("bits", [1, 3, 16, None])
def test_a_tensor_rounds_with_its_own_bits_and_rule(bits, rule):
    stored = Stored(LOW, rounding="stochastic", random_bits=bits, rule=rule)
    declared, random = strategy(replace(STRATEGIES["plain"], parameter=stored)), RandomWords(3)
    roles = declared.roles(random=random)
    expected = Rounding(Mode.STOCHASTIC, random_bits=bits or 16, rule=rule or Rule.TRUNCATE)
    assert (roles.parameter.rounding, roles.moments.rounding) == (expected, Rounding())
    of_run = Rounding(Mode.STOCHASTIC, random_bits=5, rule="centred")
    roles = declared.roles(of_run, random=random)
    assert roles.parameter.rounding == replace(of_run, random_bits=bits or 5, rule=rule or Rule.CENTRED)


def test_roles_take_the_options_of_arithmetics():
    roles = strategy("fp32-master").roles("toward_zero", scalars="rounded", overflow="saturate")
    for ar in roles:
        assert (ar.rounding.mode, ar.rounding.overflow, ar.scalars) == ("toward_zero", "saturate", "rounded")
    assert strategy("exact").roles(precision=77).moments.precision == 77
