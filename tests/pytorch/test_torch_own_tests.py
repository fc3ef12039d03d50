"""PyTorch's own tests of optimizers, asked of ours, and the page that says what came of them.

``python -m tests.pytorch.test_torch_own_tests`` writes it; the inputs are those of
`torch.testing._internal.common_optimizers`.
"""

import warnings
from types import SimpleNamespace

import pytest
import torch

import mcfsim.torch
from tests.pytorch.runs import KINDS
from tests.pytorch.torch_own_tests import ELSEWHERE, REFUSED, STORED, TESTS, Asked
from tests.shared.pages import page

PAGE = page("torch_tests")
#: Ours, by the optimizer of PyTorch whose inputs it is asked with.
OURS = {"AdamW": "AdamW", "TorchAdamW": "AdamW", "SGD": "SGD", "Nesterov": "SGD", "Lion": "AdamW"}
HEAD = """# PyTorch's own tests of optimizers

What PyTorch asks of an optimizer in its tests is asked of ours, by the same names and with PyTorch's inputs
(`torch.testing._internal.common_optimizers`, of PyTorch 2.13): of parameters in float32 (`fp32`) and in
bfloat16 (`collage-plus`). PyTorch's wheel has the inputs and not the tests, so these are written anew
(`tests/pytorch/torch_own_tests.py`); where PyTorch's allow an error of rounding, they compare bits.
`TorchAdamW` and `Lion` get AdamW's inputs, and `Nesterov` SGD's. The tests compare this page with what comes
of it; `python -m tests.pytorch.test_torch_own_tests` writes it.

## What passes

How many of the inputs pass, those of both dtypes counted; the others are refused.
"""
BAD = """What PyTorch refuses or warns of when an optimizer is made, and what comes of it here. Each of betas
may be a number or a tensor, so both are taken."""


def database():
    """Return what PyTorch lists of its optimizers, by name; its settings of all tests are put back."""
    with warnings.catch_warnings():
        from torch.testing._internal.common_optimizers import optim_db
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return {info.name: info for info in optim_db}


def asked_of(name, info, dtype):
    """Return PyTorch's inputs for a CPU that an optimizer of ours takes, and what is said of the others."""
    kind, taken, refused = getattr(mcfsim.torch, name), [], {}
    for given in info.optim_inputs_func(device="cpu", dtype=dtype):
        options = {x: y for x, y in given.kwargs.items() if (name, x) != ("Nesterov", "nesterov")}
        asked = Asked(kind, dtype, options, info)
        try:
            asked.made()
            taken.append(asked)
        except (TypeError, ValueError) as error:
            refused[given.desc] = str(error)
    return taken, refused


def refusals(kind):
    """Return what ours say where PyTorch's tests ask for what is not here, by test."""
    said = {}
    for test, (_, ask) in REFUSED.items():
        try:
            ask(kind)
        except (TypeError, ValueError) as error:
            said[test] = str(error)
    return said


def bad_inputs(name, info):
    """Return by PyTorch's words for a bad input what comes of it: an error, a warning, or nothing."""
    kind, found = getattr(mcfsim.torch, name), {}
    for given in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        asked = given.optimizer_error_input
        what = asked.desc.replace("\\", "")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                kind(asked.params or [torch.nn.Parameter(torch.zeros(2))], strategy="fp32", **asked.kwargs)
                found[what] = told[0].category.__name__ if told else "taken"
            except (TypeError, ValueError) as error:
                found[what] = type(error).__name__
    return found


def page(known):
    """Return the page: of inputs that are taken, all of which pass all tests, and of others."""
    names, rows, said, bad = list(OURS), {test: [] for test in TESTS}, {}, {}
    for place, (name, theirs) in enumerate(OURS.items()):
        of_both = [asked_of(name, known[theirs], dtype) for dtype in STORED]
        taken, left_out = (sum(len(x[i]) for x in of_both) for i in (0, 1))
        for row in rows.values():
            row.append(f"{taken} of {taken + left_out}")
        said |= dict.fromkeys((x, y.partition(" ")[2]) for _, refused in of_both for x, y in refused.items())
        for what, found in bad_inputs(name, known[theirs]).items():
            bad.setdefault(what, ["-"] * len(names))[place] = found
    lines = [HEAD, *_table(["test", *names], {f"`{test}`": row for test, row in rows.items()})]
    lines += ["", "Inputs that are refused, with what is said:", ""]
    lines += [f'- {what}: "… {text}"' for what, text in said]
    said = refusals(mcfsim.torch.AdamW)
    refused = {f"`{test}`": [what, said[test]] for test, (what, _) in REFUSED.items()}
    lines += ["", "## Refused", "", *_table(["test", "which asks for", "is refused as"], refused)]
    lines += ["", "## Bad inputs", "", BAD, "", *_table(["test", *names], bad)]
    elsewhere = {f"`{tests.replace(', ', '`, `')}`": [why] for tests, why in ELSEWHERE.items()}
    lines += ["", "## What does not apply", "", *_table(["tests", "why"], elsewhere)]
    return "\n".join(lines) + "\n"


def _table(head, rows):
    rows = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return ["| " + " | ".join(row) + " |" for row in rows]


# -- the tests --------------------------------------------------------------------------------------------
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
    ask_all(Asked(KINDS[kind], list(STORED)[place % 2], INPUTS[place], LIKE_ITS))


def ask_all(*asked):
    for one in asked:
        for body in TESTS.values():
            body(one)


@pytest.fixture(scope="module")
def known():
    pytest.importorskip("expecttest", reason="PyTorch's lists of what to test need expecttest")
    return database()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("name", OURS)
def test_all_inputs_of_pytorch_pass(name, dtype, known):
    ask_all(*asked_of(name, known[OURS[name]], dtype)[0])


@pytest.mark.exhaustive
def test_the_page_says_what_comes_of_them(known):
    assert page(known) == PAGE.read_text()


def test_what_is_refused_is_said():
    assert refusals(mcfsim.torch.AdamW).keys() == REFUSED.keys()


if __name__ == "__main__":
    PAGE.write_text(page(database()))
