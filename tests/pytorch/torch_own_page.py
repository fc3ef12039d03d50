"""What comes of PyTorch's own tests, as a page: ``python -m tests.pytorch.torch_own_page`` writes it.

The inputs are those of `torch.testing._internal.common_optimizers`.
"""

import warnings

import torch

import mcfsim.torch
from experiments.common import ROOT
from tests.pytorch.torch_own_tests import ELSEWHERE, REFUSED, STORED, TESTS, Asked

PAGE = ROOT / "docs/torch_tests.md"
#: Ours, by the optimizer of PyTorch whose inputs it is asked with.
OURS = {"AdamW": "AdamW", "TorchAdamW": "AdamW", "SGD": "SGD", "Nesterov": "SGD", "Lion": "AdamW"}
HEAD = """# PyTorch's own tests of optimizers

What PyTorch asks of an optimizer in its tests is asked of ours, by the same names and with PyTorch's inputs
(`torch.testing._internal.common_optimizers`, of PyTorch 2.13): of parameters in float32 (`fp32`) and in
bfloat16 (`collage-plus`). PyTorch's wheel has the inputs and not the tests, so these are written anew
(`tests/pytorch/torch_own_tests.py`); where PyTorch's allow an error of rounding, they compare bits.
`TorchAdamW` and `Lion` get AdamW's inputs, and `Nesterov` SGD's. The tests compare this page with what comes
of it; `python -m tests.pytorch.torch_own_page` writes it.

## What passes

Of so many inputs, those of both dtypes, these pass; the others are refused.
"""
BAD = """What PyTorch refuses or warns of when an optimizer is made, and what comes of it here. Of betas each
may be a number or a tensor, so both are taken."""


def database():
    """Return what PyTorch lists of its optimizers, by name; its settings of all tests are put back."""
    with warnings.catch_warnings():
        from torch.testing._internal.common_optimizers import optim_db
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return {info.name: info for info in optim_db}


def inputs(name, info, dtype):
    """Yield PyTorch's inputs of an optimizer for a CPU: what they are called, and options."""
    for given in info.optim_inputs_func(device="cpu", dtype=dtype):
        options = {x: y for x, y in given.kwargs.items() if (name, x) != ("Nesterov", "nesterov")}
        yield given.desc, options


def outcomes(name, info):
    """Ask all tests of an optimizer of ours; return of how many inputs each passes, and which are refused."""
    kind, passed, refused = getattr(mcfsim.torch, name), dict.fromkeys(TESTS, 0), {}
    for dtype in STORED:
        for what, options in inputs(name, info, dtype):
            asked = Asked(kind, dtype, options, info)
            try:
                asked.made(asked.parameters())
            except (TypeError, ValueError) as error:
                refused[what] = str(error)
                continue
            for test, body in TESTS.items():
                body(asked)
                passed[test] += 1
    return passed, refused


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


def column(name, passed, refused, bad):
    """Return the column of an optimizer on the page: what stands in its rows."""
    whole = max(passed.values()) + len(STORED) * len(refused)
    return {**{f"`{test}`": f"{count} of {whole}" for test, count in passed.items()}, **bad}


def written(name):
    """Return the column of an optimizer on the page as it is."""
    found, place = {}, None
    for line in PAGE.read_text().splitlines():
        cells = line.strip("| ").split(" | ") if line.startswith("|") else []
        if name in cells:
            place = cells.index(name)
        elif not cells:
            place = None
        elif place is not None and cells[0] != "---" and place < len(cells) and cells[place] != "-":
            found[cells[0]] = cells[place]
    return found


def page(found):
    """Return the page, of what came of all: by optimizer, outcomes and bad inputs."""
    names = list(OURS)
    head = [*_row(["test", *names]), *_row(["---"] * (1 + len(names)))]
    columns = {name: column(name, *found[name]) for name in names}
    rows = dict.fromkeys(row for name in names for row in columns[name])
    table = {row: _row([row, *(columns[name].get(row, "-") for name in names)]) for row in rows}
    tests = {f"`{test}`" for test in TESTS}
    lines = [HEAD, *head, *(line for row in rows if row in tests for line in table[row])]
    lines += ["", "Inputs that are refused, with what is said:", ""]
    said = dict.fromkeys(
        (what, text.partition(" ")[2]) for name in names for what, text in found[name][1].items()
    )
    lines += [f'- {what}: "… {text}"' for what, text in said]
    lines += ["", "## Refused", "", *_row(["test", "which asks for", "is refused as"]), *_row(["---"] * 3)]
    said = refusals(mcfsim.torch.AdamW)
    lines += (row for test, (what, _) in REFUSED.items() for row in _row([f"`{test}`", what, said[test]]))
    lines += ["", "## Bad inputs", "", BAD, "", *head]
    lines += (line for row in rows if row not in tests for line in table[row])
    lines += ["", "## What does not apply", "", *_row(["tests", "why"]), *_row(["---"] * 2)]
    lines += (
        row for tests, why in ELSEWHERE.items() for row in _row([f"`{tests.replace(', ', '`, `')}`", why])
    )
    return "\n".join(lines) + "\n"


def _row(cells):
    return ["| " + " | ".join(str(cell) for cell in cells) + " |"]


def main():
    known = database()
    found = {}
    for name, theirs in OURS.items():
        found[name] = (*outcomes(name, known[theirs]), bad_inputs(name, known[theirs]))
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
