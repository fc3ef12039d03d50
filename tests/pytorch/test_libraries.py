"""Codes and scales beside those of libraries, some blocks of each; `tests.benchmarks` has many."""

import numpy as np
import pytest

from tests.pytorch import libraries
from tests.pytorch.libraries import Tally
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers


def blocks(size, seed, spread):
    """Return hostile blocks, rows of any size if they may spread."""
    x = hostile_rows(48, 512, size, seed)
    if spread:
        exponent = np.random.default_rng(seed).integers(-90, 90, (48, 1)).astype(np.float32)
        exponent[:4] = [[-134], [-130], [-125], [-115]]
        x = (x * np.float32(2) ** exponent).astype(np.float32)
    return x


@pytest.fixture
def torchao():
    """Skip without torchao, whose import warns of what it has compiled for other machines."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason="torchao is not installed")


@pytest.mark.parametrize("rule", libraries.MX_RULES)
@pytest.mark.parametrize("name", libraries.MX_ELEMENTS)
@pytest.mark.slow
@pytest.mark.costly("imports torchao")
def test_mx_blocks_are_torchaos(name, rule, torchao):
    tally = Tally(name)
    for seed in (0, 1):
        x = blocks(32, seed, spread=True)
        libraries.torchao_mx(with_no_numbers(x, 1) if seed else x, name, rule, tally)
    assert tally.blocks == 2 * 48 * 16
    assert tally.unexplained == 0, tally


@pytest.mark.parametrize("two_scales", [True, False])
@pytest.mark.slow
@pytest.mark.costly("imports torchao")
def test_nvfp4_blocks_are_torchaos(two_scales, torchao):
    tally = Tally("nvfp4")
    for seed in range(4):
        libraries.torchao_nvfp4(blocks(16, seed, spread=False), tally, two_scales)
    assert (tally.scales, tally.elements, tally.unexplained) == (0, 0, 0), tally


@pytest.mark.slow
@pytest.mark.costly("imports torchao")
def test_the_comparison_tells_rules_apart(torchao, monkeypatch):
    """Another rule's scales and elements differ, and no reason covers them."""
    monkeypatch.setitem(libraries.MX_RULES, "floor", "CEIL")
    tally = Tally("wrong")
    libraries.torchao_mx(blocks(32, 0, spread=True), "mxfp4", "floor", tally)
    assert tally.scales > 100
    assert tally.unexplained > 1000
