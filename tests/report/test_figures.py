"""Pictures show what they are given: checked on the figures' own contents, not by looking."""

from __future__ import annotations

import io
import itertools
import math

import matplotlib.image
import matplotlib.text
import numpy as np
import pytest
import torch
from report_models import rows, trained

from marquis.errors import DataError
from marquis.report import figures
from marquis.report.canvas import label, png
from marquis.report.examples import choose
from marquis.report.latent_map import CONSTANT, NOISE, OVER_SAMPLES

# a layout that gives up is a picture with texts on top of each other
pytestmark = pytest.mark.filterwarnings("error:constrained_layout not applied")

HOSTILE = ["$x^{", "_hidden", "<b>&amp;", "two\nlines", "", "a" * 200, "\\frac{1}{"]


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def drawn(figure):
    """The pixels; drawing is where matplotlib finds out that a text is no formula."""
    pixels = matplotlib.image.imread(io.BytesIO(png(figure)))
    assert pixels[..., :3].std() > 0.01, "the picture is empty"
    return pixels


def nothing_is_clipped(figure):
    """All that is drawn, texts included, lies inside the figure, and so the outermost pixels are white."""
    pixels = drawn(figure)
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01, box
    for border in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert border.min() == 1
    for axis in figure.axes:
        if axis.get_visible():
            no_numbers_overlap(axis)


def no_numbers_overlap(axis):
    low, high = sorted(axis.get_xlim())
    ticks = [tick for tick in axis.xaxis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_text()]
    boxes = sorted((tick.label1.get_window_extent() for tick in ticks), key=lambda box: box.x0)
    for left, right in itertools.pairwise(boxes):
        assert left.x1 < right.x0, [tick.label1.get_text() for tick in ticks]


HISTORY = [
    {"epoch": 0, "train_loss": 3.0, "validation_loss": 4.0, "effective_temperature": math.inf, "noise_precision": 1.0},
    {"epoch": 1, "train_loss": 2.0, "validation_loss": 3.0, "effective_temperature": 2.0, "noise_precision": 50.0},
    {"epoch": 2, "train_loss": 1.0, "validation_loss": math.nan, "effective_temperature": 1.0, "noise_precision": 9.0},
]


def test_training_curves_show_the_finite_numbers_by_epoch():
    figure = figures.training_curves({"lae": HISTORY})
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["loss", "noise precision", "effective temperature"]
    train, validation = figure.axes[0].lines
    assert train.get_xydata().tolist() == [[1, 3], [2, 2], [3, 1]]
    assert validation.get_xydata().tolist() == [[1, 4], [2, 3]]
    assert figure.axes[2].lines[0].get_xydata().tolist() == [[2, 2], [3, 1]]
    assert figure.axes[1].get_yscale() == "log"
    assert figure.axes[2].get_yscale() == "linear"  # a factor of two needs no logarithm
    assert all(axis.get_xlabel() == "epoch" and axis.get_ylabel() for axis in figure.axes)
    nothing_is_clipped(figure)


def test_training_curves_of_several_models_name_them():
    figure = figures.training_curves({"a": HISTORY, "$b^{": [{"train_loss": 1.0, "effective_temperature": 0.5}]})
    assert [axis.get_title() for axis in figure.axes[:2]] == ["loss: a", r"loss: \$b^{"]
    legend = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert legend == ["a", r"\$b^{"]
    nothing_is_clipped(figure)


@pytest.mark.parametrize("history", [[], [{"epoch": 0}], [{"train_loss": math.nan}]])
def test_training_curves_of_nothing_are_refused(history):
    with pytest.raises(DataError, match="no losses"):
        figures.training_curves({"model": history})


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [("laplacian", OVER_SAMPLES), ("posthoc", OVER_SAMPLES), ("plain", CONSTANT), ("variational", NOISE)],
)
def test_map_says_which_standard_deviation_it_shows(kind, meaning):
    model = trained(kind)[0]
    codes = model.encode(rows((1, 4, 4)), 3).mean
    result = figures.latent_map(model, codes, edge=5, samples=4, generator=torch.Generator().manual_seed(0))
    assert result.meaning == meaning
    assert result.std.shape == (5, 5)
    assert bool(result.std.isfinite().all()) and bool((result.std > 0).all())
    torch.testing.assert_close(result.points, codes.double())


def test_map_is_the_decoder_at_the_points_of_the_grid():
    model = trained("variational")[0]
    codes = model.encode(rows((1, 4, 4)), 1).mean
    result = figures.latent_map(model, codes, edge=4, samples=1)
    left, right, bottom, top = result.extent
    low, high = codes.amin(0), codes.amax(0)
    assert left < float(low[0]) and right > float(high[0]) and bottom < float(low[1]) and top > float(high[1])
    corner = torch.tensor([[right, bottom]])  # the last column of the first row: rows go up
    expected = model.decode(corner, 1).noise_variance.mean().sqrt()
    torch.testing.assert_close(result.std[0, -1], expected.double(), rtol=1e-5, atol=0)


def test_codes_of_five_numbers_are_shown_along_their_principal_axes():
    model = trained("plain", latent=5)[0]
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.1, 3.0, 0.1, 1.0, 0.1])
    codes = torch.randn(200, 5, generator=generator) * scales + 7
    result = figures.latent_map(model, codes, edge=3, samples=1)
    across = result.points.std(0)
    assert float(across[0]) > 2.5 and 0.8 < float(across[1]) < 1.3
    torch.testing.assert_close(result.points.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    covariance = torch.cov(codes.double().T)
    share = torch.linalg.eigvalsh(covariance).flip(0) / covariance.trace()
    assert result.axes[0] == f"principal axis 1 ({float(share[0]):.0%} of variance)"


@pytest.mark.parametrize("latent", [1, 2, 5])
def test_map_is_drawn_with_its_classes_and_axes(latent):
    model = trained("laplacian", latent=latent)[0]
    codes = model.encode(rows((1, 4, 4)), 3).mean
    shown = figures.latent_map(model, codes, edge=4, samples=3)
    labels = torch.arange(len(codes)) % len(HOSTILE)
    figure = figures.latent_figure({"$one": shown, "two": shown}, labels, HOSTILE)
    first = figure.axes[0]
    assert (first.get_xlabel(), first.get_ylabel()) == shown.axes
    assert len(first.collections[0].get_offsets()) == len(codes)
    np.testing.assert_array_equal(first.images[0].get_array(), shown.std.numpy())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [label(name) for name in HOSTILE]
    assert OVER_SAMPLES in first.get_title()
    nothing_is_clipped(figure)


def test_many_long_classes_beside_one_map():
    model = trained("plain")[0]
    shown = figures.latent_map(model, model.encode(rows((1, 4, 4)), 1).mean, edge=3, samples=1)
    names = [f"W a class with a long name {i}" for i in range(20)]
    figure = figures.latent_figure({"plain": shown}, torch.arange(40) % 20, names)
    nothing_is_clipped(figure)
    legend, panel = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert panel.x1 < legend.x0 and panel.width > 2 * figure.dpi


@pytest.mark.parametrize("span", [(0.0175, 0.035), (1e-5, 1.1e-5), (0.00012, 0.0049), (2e-5, 0.015), (1.0, 1e6)])
def test_numbers_below_maps_histograms_and_boxes_do_not_overlap(span):
    values = torch.logspace(*(math.log10(end) for end in span), 25, dtype=torch.float64)
    shown = figures.LatentMap(torch.zeros(2, 2), values.reshape(5, 5), (-1.0, 1.0, -1e4, 1e4), ("a", "b"), OVER_SAMPLES)
    nothing_is_clipped(figures.latent_figure({"map": shown}, torch.tensor([0, 1])))
    nothing_is_clipped(figures.variance_figure({"model": {"output": {"a": values}, "code": {"a": values}}}))
    nothing_is_clipped(figures.widths_figure({"model": {"weight": values[::6]}}))


def test_a_corner_does_not_outshine_the_map():
    std = torch.ones(4, 4)
    std[0, 0] = 1000.0
    shown = figures.LatentMap(torch.zeros(2, 2), std, (0.0, 1.0, 0.0, 1.0), ("a", "b"), OVER_SAMPLES)
    wide = figures.latent_figure({"wide": shown}).axes[0].images[0].norm
    shown = figures.LatentMap(torch.zeros(2, 2), std.clamp(max=2), (0.0, 1.0, 0.0, 1.0), ("a", "b"), OVER_SAMPLES)
    narrow = figures.latent_figure({"narrow": shown}).axes[0].images[0].norm
    assert [type(norm).__name__ for norm in (wide, narrow)] == ["LogNorm", "Normalize"]


@pytest.mark.parametrize("labels", [None, torch.arange(40), torch.linspace(0, 1, 40), torch.rand(40, 2)])
def test_map_without_classes_with_many_and_with_numbers(labels):
    model = trained("plain")[0]
    shown = figures.latent_map(model, model.encode(rows((1, 4, 4)), 1).mean, edge=3, samples=1)
    figure = figures.latent_figure({"plain": shown}, labels)
    assert not figure.legends
    assert ("target" in texts(figure)) == (labels is not None and labels.is_floating_point())
    drawn(figure)


@pytest.mark.parametrize("codes", [torch.zeros(0, 2), torch.tensor([[math.nan, 0.0]]), torch.zeros(3)])
def test_map_without_codes_is_refused(codes):
    with pytest.raises(DataError, match="finite codes"):
        figures.latent_map(trained("plain")[0], codes)


def examples(shape, noise=None, variance=None, m=3):
    mean = rows(shape, m, seed=1)
    return figures.Examples(mean, variance, noise)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_original_mean_and_what_varies(channels):
    shape, x = (channels, 4, 6), rows((channels, 4, 6), 3)
    spread = rows(shape, 3, seed=2)
    models = {
        "sure": examples(shape, noise=torch.full_like(x, 0.25)),
        "unsure": examples(shape, variance=spread, noise=spread),
    }
    figure = figures.image_figure(x, models)
    starts = [axis.get_ylabel().split("\n(")[0] for axis in figure.axes if axis.get_ylabel()]
    assert starts == ["original", "sure\nmean", "unsure\nmean", "std over\nsamples", "std of\nnoise"]
    assert len(figure.axes) == 5 * 3
    first = x[0, 0] if channels == 1 else x[0].permute(1, 2, 0)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), first.numpy(), rtol=1e-6)
    np.testing.assert_allclose(figure.axes[9].images[0].get_array(), spread[0].sqrt().mean(0).numpy(), rtol=1e-6)
    nothing_is_clipped(figure)


def test_missing_pixels_are_grey_and_other_shapes_refused():
    x = rows((1, 4, 4), 2)
    x[0, 0, 0, 0] = math.nan
    figure = figures.image_figure(x, {"plain": examples((1, 4, 4), m=2)})
    assert figure.axes[0].images[0].get_array()[0, 0] == 0.5
    with pytest.raises(DataError, match="no images"):
        figures.image_figure(rows((5,), 2), {})


@pytest.mark.parametrize(("columns", "panels"), [(3, 3), (15, 12)])
def test_table_shows_columns_with_error_bars(columns, panels):
    x = rows((columns,), 20)
    x[4, 0] = math.nan
    mean = x.nan_to_num(0.0) + 0.1 * torch.arange(columns)  # the later a column, the worse, but for the constant last
    made = figures.Examples(mean, torch.full_like(x, 0.09), torch.full_like(x, 0.16))
    figure, total = figures.table_figure(x, {"model": made}, [f"c{i}" for i in range(columns)])
    shown = [axis.get_title() for axis in figure.axes]
    assert total == columns and len(shown) == panels
    if columns == 15:
        assert "c0" not in shown and {"c11", "c12", "c13"} < set(shown)
    else:
        assert shown == ["c0", "c1", "c2"]
        points = figure.axes[0].containers[0]
        assert len(points[0].get_xdata()) == 19  # one is missing
        bars = points[2][0].get_segments()
        np.testing.assert_allclose([end[1, 1] - end[0, 1] for end in bars], 4 * 0.5, rtol=1e-6)
    nothing_is_clipped(figure)


def test_examples_are_one_of_each_class_first():
    labels = torch.tensor([1, 1, 0, 1, 2, 0])
    assert choose(labels, 6, 4).tolist() == [2, 0, 4, 5]
    assert choose(None, 6, 4).tolist() == [0, 1, 2, 3]
    assert choose(torch.rand(6), 2).tolist() == [0, 1]


def test_histograms_are_shares_of_each_set_and_log_where_needed():
    wide, narrow = torch.logspace(-4, 0, 50), torch.linspace(1, 2, 50)
    spread = {"output": {"inside": wide, "out$side": 10 * wide[:20]}, "code": {"inside": narrow, "out$side": narrow}}
    figure = figures.variance_figure({"model": spread})
    assert [axis.get_xscale() for axis in figure.axes] == ["log", "linear"]
    for axis in figure.axes:
        heights = [sum(bar.get_height() for bar in bars) for bars in axis.containers if len(bars) > 1]
        np.testing.assert_allclose(heights, [1, 1])  # nobody falls out of the picture
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["inside", r"out\$side"]
    nothing_is_clipped(figure)


def test_histograms_of_no_variance_say_so():
    figure = figures.variance_figure({"plain": {"output": {"inside": torch.zeros(5)}}})
    assert any("single network" in text for text in texts(figure))
    drawn(figure)
    with pytest.raises(DataError, match="no variances"):
        figures.variance_figure({})


def test_widths_are_quantiles_of_the_posterior():
    model = trained("laplacian")[0]
    widths = figures.posterior_widths(model.posterior())
    assert list(widths) == [name for name, _ in model.named_parameters()]
    std = model.posterior().variance()["decoder.0.weight"].double().sqrt().flatten()
    expected = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], dtype=torch.float64)
    torch.testing.assert_close(widths["decoder.0.weight"], std.quantile(expected), rtol=1e-6, atol=0)
    figure = figures.widths_figure({"one": widths, "two": widths, "none": {}})
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == list(widths)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    nothing_is_clipped(figure)
    with pytest.raises(DataError, match="no posterior"):
        figures.widths_figure({"plain": {}})


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_are_shown_literally(text):
    shown = label(text)
    assert 0 < len(shown) <= 30
    assert not shown.startswith("_") and "\n" not in shown
    assert shown.count("$") == shown.count(r"\$")


def test_long_labels_keep_both_ends():
    names = [f"the same long beginning, then {i}" for i in range(3)]
    shown = [label(name) for name in names]
    assert [text[-1] for text in shown] == ["0", "1", "2"]
    assert {len(text) for text in shown} == {24}
    assert label("short") == "short"


def test_pyplot_knows_none_of_these_figures():
    import matplotlib.pyplot as plt

    figures.training_curves({"lae": HISTORY})
    assert plt.get_fignums() == []
