"""PyTorch's own tests of optimizers, asked of ours, and the page that says what came of them."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's lists of what to test need expecttest")

from tests.pytorch import torch_own_page as own  # noqa: E402

#: Without those whose inputs are others', too.
ORDINARY = ("AdamW", "SGD")
NAMES = [name if name in ORDINARY else pytest.param(name, marks=pytest.mark.exhaustive) for name in own.OURS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_says_is_so(name):
    """Every test passes with every input, unless that is refused by name."""
    info = own.database()[own.OURS[name]]
    passed, refused = own.outcomes(name, info)
    bad = own.bad_inputs(name, info)
    assert own.column(name, passed, refused, bad) == own.written(name)
    assert len(set(passed.values())) == 1
    text = own.PAGE.read_text()
    assert all(f"- {what}: " in text and said.partition(" ")[2] in text for what, said in refused.items())
    said = own.refusals(own.mcfsim.torch.AdamW)
    assert said.keys() == own.REFUSED.keys()
    assert all(f" | {why} |" in text for why in said.values())
