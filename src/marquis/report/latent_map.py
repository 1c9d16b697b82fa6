"""Draw latent maps: codes in two dimensions over the decoder's standard deviation (LAE Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.autoencoders.predictions import Estimate
from marquis.errors import DataError
from marquis.report.canvas import BLUE, CLASSES, add_legend, label, legend_width, panels, use_log
from marquis.tasks.batches import SameSeed, device_of, dtype_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.3
"""How far the map extends beyond the data, as a share of their range."""
ROOM = 0.35
"""Share of the grey scale that is darker than all of the map."""
BATCH = 512
OVER_SAMPLES, NOISE, CONSTANT = "std over samples", "std of predicted noise", "constant noise"


@dataclass(frozen=True, eq=False)
class LatentMap:
    """Hold codes of one model in two dimensions, and the decoder's standard deviation around them.

    Attributes:
        points: Codes of the data, `[n, 2]`.
        std: The decoder's standard deviation on a grid, `[rows, columns]`: root of the mean variance of the outputs.
        extent: Left, right, bottom and top of the grid.
        axes: What the two axes are.
        meaning: Which standard deviation it is: `OVER_SAMPLES`, `NOISE` or `CONSTANT`.
    """

    points: Tensor
    std: Tensor
    extent: tuple[float, float, float, float]
    axes: tuple[str, str]
    meaning: str


def latent_map(
    model: Any, codes: Tensor, *, edge: int = 48, samples: int = 30, generator: torch.Generator | None = None
) -> LatentMap:
    """Decode a grid of codes around the data. Cost: `samples` decoder passes over `edge²` codes.

    Codes of more than two numbers are shown along their two principal axes, and the grid lies in that plane, through
    the mean code. A model without posterior samples shows the noise that its decoder predicts.

    Args:
        model: Anything with `decode`.
        codes: Codes of the data, `[n, K]`, finite.
        edge: Grid points per axis.
        samples: Number of posterior samples.
        generator: Source of the samples.
    """
    if codes.dim() != 2 or len(codes) == 0 or not bool(codes.isfinite().all()):
        raise DataError(f"a map needs finite codes [n, K], n at least 1; got shape {list(codes.shape)}.")
    codes = codes.detach().double().cpu()
    centre, plane, axes = _plane(codes)
    points = (codes - centre) @ plane.T
    if codes.shape[1] == 1:  # no second axis: the points are spread so that they can be told apart
        points = torch.cat([points, torch.linspace(-1, 1, len(codes)).double().unsqueeze(1)], 1)
    low, high = points.amin(0), points.amax(0)
    span = (high - low).clamp_min(1e-3)
    low, high = low - MARGIN * span, high + MARGIN * span
    across, up = (torch.linspace(float(low[i]), float(high[i]), edge, dtype=torch.float64) for i in (0, 1))
    grid = torch.stack(torch.meshgrid(up, across, indexing="ij")[::-1], -1).reshape(-1, 2)
    z = centre + grid[:, : len(plane)] @ plane
    std, meaning = _decoder_std(model, z, samples, SameSeed(model, generator))
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    return LatentMap(points, std.reshape(edge, edge), extent, axes, meaning)


def _plane(codes: Tensor) -> tuple[Tensor, Tensor, tuple[str, str]]:
    """Return origin `[K]` and directions `[2, K]` (`[1, 1]` for K = 1) of the plane that is shown, and axis names."""
    size = codes.shape[1]
    if size <= 2:
        return codes.new_zeros(size), torch.eye(size, dtype=codes.dtype), ("code 1", "code 2" if size == 2 else "")
    centre = codes.mean(0)
    _, values, directions = torch.linalg.svd(codes - centre, full_matrices=False)
    if len(directions) < 2:  # a single sample
        directions, values = torch.eye(size, dtype=codes.dtype)[:2], codes.new_zeros(2)
    share = values.square() / values.square().sum().clamp_min(1e-300)
    signs = directions[:2].gather(1, directions[:2].abs().argmax(1, keepdim=True)).sign()  # the SVD leaves them open
    first, second = (f"principal axis {i + 1} ({float(share[i]):.0%} of variance)" for i in (0, 1))
    return centre, directions[:2] * signs, (first, second)


@torch.no_grad()
def _decoder_std(model: Any, z: Tensor, samples: int, same: SameSeed) -> tuple[Tensor, str]:
    """Return the root mean variance of the outputs for each code, and which variance it is."""
    device, dtype = device_of(model), dtype_of(model)
    sampled, noise = [], []
    for part in z.to(dtype).split(BATCH):
        decoded: Estimate = model.decode(
            part if device is None else part.to(device), samples, generator=same.generator()
        )
        sampled.append(decoded.variance.double().flatten(1).mean(1).cpu())
        around = decoded.variance.new_zeros(()) if decoded.noise_variance is None else decoded.noise_variance
        noise.append(around.double().expand_as(decoded.mean).flatten(1).mean(1).cpu())
    over_samples, around = torch.cat(sampled), torch.cat(noise)
    if bool((over_samples > 0).any()):
        return over_samples.sqrt(), OVER_SAMPLES
    constant = float(around.max() - around.min()) <= 1e-9 * max(float(around.max()), 1e-300)
    return around.sqrt(), CONSTANT if constant else NOISE


def latent_figure(
    maps: Mapping[str, LatentMap], labels: Tensor | None = None, classes: Sequence[str] | None = None
) -> Figure:
    """Plot codes coloured by class over the decoder's standard deviation, dark where it is large, side by side.

    Every map has its own scale.

    Args:
        maps: By name of the model.
        labels: Labels of the data: integer classes `[n]`, or numbers; None for one colour.
        classes: Names of the classes.
    """
    values = [] if labels is None or labels.is_floating_point() else sorted(set(labels.tolist()))
    names = [label(_class_name(value, classes)) for value in values] if len(values) <= len(CLASSES) else []
    figure, axes = panels(len(maps), 2 if len(maps) == 4 else 3, 4.1, 4.4, legend_width(names) if names else 0.0)
    for axis, (name, shown) in zip(axes, maps.items(), strict=True):
        _draw_map(figure, axis, shown)
        points = _draw_points(axis, shown.points, labels)
        value = f", std {float(shown.std[0, 0]):.3g}" if shown.meaning == CONSTANT else ""
        title = f"{label(name, 40)}\n{shown.meaning}{value}"
        left, right, bottom, top = shown.extent
        axis.set(xlabel=shown.axes[0], ylabel=shown.axes[1], title=title, xlim=(left, right), ylim=(bottom, top))
        axis.title.set_fontsize(10)
        if not shown.axes[1]:
            axis.set_yticks([])
        if labels is not None and labels.is_floating_point() and axis is axes[-1]:
            figure.colorbar(points, ax=axis, label="target", location="right", shrink=0.85)
    if names:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], marker="o", ls="", ms=6, color=CLASSES[place]) for place in range(len(names))]
        add_legend(figure, handles, names, "class")
    return figure


def _class_name(value: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number."""
    return classes[value] if classes is not None and 0 <= value < len(classes) else str(value)


def _draw_map(figure: Figure, axis: Axes, shown: LatentMap) -> None:
    """Draw the background in greys that are lighter than the points; logarithmic if the values span much."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import MaxNLocator

    bottom, top = float(shown.std.min()), float(shown.std.quantile(0.99))
    constant = shown.meaning == CONSTANT
    logarithmic = not constant and 0 < 10 * bottom < top
    if logarithmic:
        scale = LogNorm(bottom, top * (top / bottom) ** ROOM)
    else:
        scale = Normalize(bottom, bottom + 1 if constant else bottom + (1 + ROOM) * max(top - bottom, 1e-12))
    style: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear"}
    image = axis.imshow(shown.std.numpy(), extent=shown.extent, cmap="Greys", norm=scale, **style)
    axis.set_box_aspect(1)
    bar = figure.colorbar(image, ax=axis, location="bottom", shrink=0.8, label="standard deviation per output")
    if logarithmic:
        use_log(bar.ax, "x", bottom, top)
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()
    bar.ax.tick_params(labelsize=8)
    bar.ax.set_visible(not constant)  # there, but empty: the maps beside it have one, and stay aligned


def _draw_points(axis: Axes, points: Tensor, labels: Tensor | None) -> Any:
    """Plot codes, coloured by class or by value."""
    style: dict[str, Any] = {"s": 12, "edgecolors": "white", "linewidths": 0.3, "alpha": 0.9}
    across, up = points[:, 0].numpy(), points[:, 1].numpy()
    if labels is None:
        return axis.scatter(across, up, color=BLUE, **style)
    if labels.is_floating_point():
        values = labels.reshape(len(labels), -1)[:, 0].numpy()
        return axis.scatter(across, up, c=values, cmap="plasma", **style)
    values, place = labels.unique(return_inverse=True)
    if len(values) <= len(CLASSES):
        return axis.scatter(across, up, color=[CLASSES[i] for i in place.tolist()], **style)
    return axis.scatter(across, up, c=place.numpy(), cmap="nipy_spectral", **style)
