"""Figures: both files, the same bytes each time, and labels that can be read."""

import importlib
import re

import numpy as np
import pytest

from mcfsim import STRATEGIES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plotting():
    """Return the module, which is long to import."""
    return importlib.import_module("mcfsim.report.plotting")


def draw(plotting, path):
    with plotting.subplots(1, 2, width=5, height=2) as (figure, axes):
        for i, (label, style) in enumerate(plotting.STRATEGY_STYLES.items()):
            axes[0, 0].plot([0, 1, 2], [0, i, 2 * i], label=label, **style)
        axes[0, 1].semilogy([1, 2], [1e-3, 1e-1], label="line")
        plotting.label_ends(axes[0, 0])
        return plotting.save(figure, path)


def test_a_figure_has_the_same_bytes_again_and_its_style_does_not_leak(plotting, tmp_path):
    import matplotlib as mpl
    from matplotlib import pyplot

    def style():
        return {key: x for key, x in mpl.rcParams.items() if "backend" not in key}

    before = style()
    svg, png = draw(plotting, tmp_path / "new/folder/figure")
    assert style() == before
    assert [svg, png] == [tmp_path / f"new/folder/figure.{end}" for end in ("svg", "png")]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert re.fullmatch(r"(?s)<\?xml(?!.*<dc:date>).*</svg>\s*", svg.read_text())
    for one, two in zip((svg, png), draw(plotting, tmp_path / "two"), strict=True):
        assert one.read_bytes() == two.read_bytes()
    with pytest.raises(RuntimeError, match="while drawing"), plotting.subplots():
        raise RuntimeError("while drawing")
    assert pyplot.get_fignums() == []


def heights(plotting, lines, gap=None, **limits):
    """Return the height of each line's label as a share of the axes, by what the label says."""
    with plotting.subplots() as (_, axes):
        panel = axes[0, 0]
        panel.set(**limits)
        for label, line in lines.items():
            panel.plot(np.linspace(0, 1, len(line)), line, label=label)
        panel.plot([0, 1], [0, 0], label="_hidden")
        plotting.label_ends(panel, **{} if gap is None else {"gap": gap})
        colours = {line.get_label(): line.get_color() for line in panel.get_lines()}
        for text in panel.texts:
            assert text.get_color() == colours[text.get_text().removesuffix(" (not finite)")]
        return {text.get_text(): text.get_position()[1] for text in panel.texts}


def ending(*ends):
    return {f"line {i}": [0, end] for i, end in enumerate(ends)}


#: All at one height, at the top and at the bottom, twelve in the middle, and negative.
CROWDS = [0.5] * 10, [1.0, 0.999, 0.998, 0, 0.001, 0.002], [*np.linspace(0.45, 0.55, 12)], [-3.0, -3.01, 5.0]


@pytest.mark.parametrize("ends", CROWDS)
def test_labels_keep_apart_and_inside(ends, plotting):
    found = heights(plotting, ending(*ends))
    assert found.keys() == ending(*ends).keys()
    in_order = np.array([found[f"line {i}"] for i in np.argsort(ends, kind="stable")])
    assert np.diff(in_order).min() > 0.95 * 0.055  # as near as the relaxation comes
    assert in_order[0] >= 0
    assert in_order[-1] <= 1.05


def test_a_label_with_room_stands_at_the_end_of_its_line(plotting):
    """By the limits that the drawn lines give the axes, or that were set: the margin is a twentieth."""
    for ends, limits, expected in (
        ((0.0, 30.0, 100.0), {}, [0.05 / 1.1, 0.35 / 1.1, 1.05 / 1.1]),
        ((1.0, 2.0), {"ylim": (0, 4)}, [0.25, 0.5]),
        ((10.0, 1000.0), {"ylim": (1, 10_000), "yscale": "log"}, [0.25, 0.75]),
    ):
        assert [*heights(plotting, ending(*ends), **limits).values()] == pytest.approx(expected)


def test_a_zero_on_a_logarithmic_axis_is_labelled_at_the_bottom(plotting):
    assert heights(plotting, {"exact": [1e-2, 1e-3, 0.0]}, yscale="log") == {"exact": 0.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_line_that_ends_in_no_number_says_so_at_its_last_one(bad, scale, plotting):
    lines = {"whole": [1, 2, 3], "diverged": [1, 2, bad], "never": [bad] * 3, "gap": [1, bad, 2], "empty": []}
    found = heights(plotting, lines, gap=0.0, ylim=(1, 4 if scale == "linear" else 16), yscale=scale)
    three, two = (2 / 3, 1 / 3) if scale == "linear" else (np.log(3) / np.log(16), 0.25)
    ends = {"whole": three, "gap": two, "diverged (not finite)": two}
    assert found == pytest.approx(ends | {"never (not finite)": 0.0, "empty (not finite)": 0.0})


def test_strategies_differ_in_colour_or_dashes(plotting):
    assert set(plotting.STRATEGY_STYLES) == {*STRATEGIES} - {"exact"}
    styles = [(style["color"], str(style["linestyle"])) for style in plotting.STRATEGY_STYLES.values()]
    assert len(set(styles)) == len(styles)
    assert {colour for colour, _ in styles} <= set(plotting.COLOURS.values())
