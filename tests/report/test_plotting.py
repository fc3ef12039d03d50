"""Figures: both files, the same bytes each time, and labels that can be read."""

import importlib

import numpy as np
import pytest

from mcfsim import STRATEGIES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plotting():
    """Return the module, which is long to import."""
    return importlib.import_module("mcfsim.report.plotting")


def draw(plotting, folder, name):
    with plotting.subplots(1, 2, width=5, height=2) as (figure, axes):
        for i, (label, style) in enumerate(plotting.STRATEGY_STYLES.items()):
            axes[0, 0].plot([0, 1, 2], [0, i, 2 * i], label=label, **style)
        axes[0, 1].semilogy([1, 2], [1e-3, 1e-1], label="line")
        axes[0, 1].set_title("title")
        plotting.label_ends(axes[0, 0])
        return plotting.save(figure, folder / name)


@pytest.fixture(scope="module")
def drawn(plotting, tmp_path_factory):
    """Return the folder of a figure, its files, and whether the style is as it was before."""
    import matplotlib as mpl

    before = {key: x for key, x in mpl.rcParams.items() if "backend" not in key}
    folder = tmp_path_factory.mktemp("figures")
    files = draw(plotting, folder, "new/folder/figure")
    return folder, files, {key: x for key, x in mpl.rcParams.items() if "backend" not in key} == before


def test_a_figure_is_saved_and_its_style_does_not_leak(drawn, plotting):
    from matplotlib import pyplot

    folder, (svg, png), same = drawn
    assert same
    assert [svg, png] == [folder / "new/folder/figure.svg", folder / "new/folder/figure.png"]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    text = svg.read_text()
    assert text.startswith("<?xml")
    assert "<svg" in text
    assert text.rstrip().endswith("</svg>")
    assert "<dc:date>" not in text
    with pytest.raises(RuntimeError, match="while drawing"), plotting.subplots():
        raise RuntimeError("while drawing")
    assert pyplot.get_fignums() == []


def test_the_same_figure_has_the_same_bytes(drawn, plotting, tmp_path):
    for one, two in zip(drawn[1], draw(plotting, tmp_path, "two"), strict=True):
        assert one.read_bytes() == two.read_bytes()


def heights(plotting, ends, **limits):
    """Return the height of each line's label as a share of the axes, in the order of the lines."""
    with plotting.subplots() as (_, axes):
        panel = axes[0, 0]
        panel.set(**limits)
        for i, end in enumerate(ends):
            panel.plot([0, 1], [0, end], label=f"line {i}")
        panel.plot([0, 1], [0, 0], label="_hidden")
        plotting.label_ends(panel)
        assert {text.get_text() for text in panel.texts} == {f"line {i}" for i in range(len(ends))}
        colours = {line.get_label(): line.get_color() for line in panel.get_lines()}
        assert all(text.get_color() == colours[text.get_text()] for text in panel.texts)
        by_name = {text.get_text(): text.get_position()[1] for text in panel.texts}
        return [by_name[f"line {i}"] for i in range(len(ends))]


CROWDS = {
    "far apart": [10.0, 50.0, 90.0],
    "all at one height": [0.5] * 10,
    "crowded at the top": [1.0, 0.999, 0.998, 0.997, 0.0],
    "crowded at the bottom": [0.0, 0.001, 0.002, 0.003, 1.0],
    "both": [1.0, 0.999, 0.998, 0.0, 0.001, 0.002],
    "twelve in the middle": list(np.linspace(0.45, 0.55, 12)),
    "negative": [-3.0, -3.01, 5.0],
}


@pytest.mark.parametrize("ends", CROWDS.values(), ids=CROWDS)
def test_labels_keep_apart_and_inside(ends, plotting):
    found = heights(plotting, ends)
    ordered = sorted(found)
    assert np.diff(ordered).min() > 0.95 * 0.055  # as near as the relaxation comes
    assert ordered[0] >= 0
    assert ordered[-1] <= 1.05
    places = np.argsort(ends, kind="stable")
    assert (np.diff(np.array(found)[places]) > 0).all()  # in the order of the ends


def test_a_label_with_room_stands_at_the_end_of_its_line(plotting):
    """By the limits that the drawn lines give the axes, or that were set: the margin is a twentieth."""
    assert heights(plotting, [0.0, 30.0, 100.0]) == pytest.approx([0.05 / 1.1, 0.35 / 1.1, 1.05 / 1.1])
    assert heights(plotting, [1.0, 2.0], ylim=(0, 4)) == pytest.approx([0.25, 0.5])
    assert heights(plotting, [10.0, 1000.0], ylim=(1, 10_000), yscale="log") == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_line_that_ends_in_no_number_says_so_at_its_last_one(bad, scale, plotting):
    lines = {"whole": [1, 2, 3], "diverged": [1, 2, bad], "never": [bad] * 3, "gap": [1, bad, 2]}
    with plotting.subplots() as (_, axes):
        panel = axes[0, 0]
        panel.set(ylim=(1, 4) if scale == "linear" else (1, 16), yscale=scale)
        for label, line in lines.items():
            panel.plot([0, 1, 2], line, label=label)
        panel.plot([], [], label="empty")
        plotting.label_ends(panel, gap=0.0)
        found = {text.get_text(): text.get_position()[1] for text in panel.texts}
    three, two = (2 / 3, 1 / 3) if scale == "linear" else (np.log(3) / np.log(16), 0.25)
    ends = {"whole": three, "gap": two, "diverged (not finite)": two}
    assert found == pytest.approx(ends | {"never (not finite)": 0.0, "empty (not finite)": 0.0})


def test_strategies_differ_in_colour_or_dashes(plotting):
    assert set(plotting.STRATEGY_STYLES) == {*STRATEGIES} - {"exact"}
    styles = [(style["color"], str(style["linestyle"])) for style in plotting.STRATEGY_STYLES.values()]
    assert len(set(styles)) == len(styles)
    assert {colour for colour, _ in styles} <= set(plotting.COLOURS.values())
