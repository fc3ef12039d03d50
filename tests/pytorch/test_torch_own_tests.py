"""PyTorch's own tests of optimizers, asked of ours, and the page that says what came of them."""

from types import SimpleNamespace

import pytest
import torch

from tests.pytorch import torch_own_page as own
from tests.pytorch.runs import KINDS

#: For want of PyTorch's list, which takes seconds to import.
LIKE_ITS = SimpleNamespace(
    scheduler_inputs=[[lambda x: torch.optim.lr_scheduler.StepLR(x, 1, 0.9)]],
    not_og_supported_flags=["maximize", "capturable"],
)
RATES = {"lr": torch.tensor(0.01)}, {"lr": 0.01}
INPUTS = ({}, RATES[0], {"maximize": True, "weight_decay": 0.1}, RATES[1], {"weight_decay": 0.1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_what_pytorch_asks_of_optimizers(kind):
    place = list(KINDS).index(kind)
    ask_all(own.Asked(KINDS[kind], list(own.STORED)[place % 2], INPUTS[place], LIKE_ITS))


def ask_all(*asked):
    for one in asked:
        for body in own.TESTS.values():
            body(one)


@pytest.fixture(scope="module")
def known():
    pytest.importorskip("expecttest", reason="PyTorch's lists of what to test need expecttest")
    return own.database()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", own.STORED, ids=str)
@pytest.mark.parametrize("name", own.OURS)
def test_all_inputs_of_pytorch_pass(name, dtype, known):
    ask_all(*own.asked_of(name, known[own.OURS[name]], dtype)[0])


@pytest.mark.exhaustive
def test_the_page_says_what_comes_of_them(known):
    assert own.page(known) == own.PAGE.read_text()


def test_what_is_refused_is_said():
    assert own.refusals(own.mcfsim.torch.AdamW).keys() == own.REFUSED.keys()
