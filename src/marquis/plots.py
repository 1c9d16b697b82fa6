"""Plot predictions: every function draws onto matplotlib axes and returns them.

Inputs are arrays, tensors or lists. Without `ax` a figure of its own is made, outside pyplot's state (nothing is kept
open); in a notebook the axes' figure shows itself: `ax.figure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from marquis.arguments import as_numbers, checked
from marquis.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2f6db3", "#e07b39", "#777777"


@checked
def regression_band(
    x: Any, mean: Any, lower: Any, upper: Any, observed: tuple[Any, Any] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a mean and its interval against one input, with observations `(x, y)`.

    Args:
        x: Inputs `[N]`, in any order.
        mean: Predicted mean `[N]`.
        lower: Lower limits, for instance of `predict_interval`.
        upper: Upper limits.
        observed: Inputs and targets of the training data.
        ax: Axes to draw on.
    """
    x, mean, lower, upper = _vectors(x=x, mean=mean, lower=lower, upper=upper)
    order, ax = np.argsort(x), _axes(ax)
    ax.fill_between(x[order], lower[order], upper[order], color=BLUE, alpha=0.25, lw=0, label="interval")
    ax.plot(x[order], mean[order], color=BLUE, label="mean")
    if observed is not None:
        ax.plot(*_vectors(x=observed[0], y=observed[1]), "o", color="black", ms=3, label="observed")
    ax.set(xlabel="input", ylabel="target")
    ax.legend(frameon=False, fontsize=8)
    return ax


@checked
def reliability_diagram(probs: Any, y: Any, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Draw accuracy against confidence, in bins of equally many examples, with binomial standard errors.

    The title gives the expected calibration error over these bins: the mean of `|accuracy - confidence|`.

    Args:
        probs: Probabilities `[N, classes]`, or `[N]` of the class 1.
        y: Class numbers `[N]`.
        bins: Number of bins.
        ax: Axes to draw on.
    """
    probs = as_numbers("probs", probs)
    if probs.ndim < 2 or probs.shape[1:] == (1,):
        probs = np.stack([1 - probs.ravel(), probs.ravel()], 1)
    (y,) = _vectors(y=y)
    if probs.ndim != 2 or len(y) != len(probs) or bins < 1:
        raise DataError(f"{len(probs)} rows of probabilities, {len(y)} labels and bins={bins} do not fit.")
    if not np.isin(y, np.arange(probs.shape[1])).all():
        raise DataError(f"labels are numbers of columns, from 0 to {probs.shape[1] - 1}; there are {np.unique(y)[:5]}.")
    confidence, right = probs.max(1), probs.argmax(1) == y
    parts = [part for part in np.array_split(np.argsort(confidence, kind="stable"), bins) if len(part)]
    middle = np.array([confidence[part].mean() for part in parts])
    share = np.array([right[part].mean() for part in parts])
    errors = np.array([np.sqrt(share[i] * (1 - share[i]) / len(part)) for i, part in enumerate(parts)])
    gap = sum(len(part) * abs(share[i] - middle[i]) for i, part in enumerate(parts)) / len(y)
    ax = _axes(ax)
    low = min(float(middle.min()), float(share.min())) - 0.03
    ax.plot([low, 1], [low, 1], color=GREY, lw=0.8)
    ax.errorbar(middle, share, errors, fmt="o-", color=BLUE, ms=4)
    ax.set(xlabel="confidence", ylabel="accuracy", title=f"calibration error {gap:.3f}")
    return ax


@checked
def imputed_against_observed(observed: Any, mean: Any, std: Any = None, ax: Axes | None = None) -> Axes:
    """Draw imputed against true values of entries that were hidden, with bars of two standard deviations.

    Args:
        observed: True values `[N]`.
        mean: Imputed values.
        std: Their standard deviations.
        ax: Axes to draw on.
    """
    observed, mean = _vectors(observed=observed, imputed=mean)
    ax = _axes(ax)
    ends = [min(observed.min(), mean.min()), max(observed.max(), mean.max())]
    ax.plot(ends, ends, color=GREY, lw=0.8)
    bars = None if std is None else 2 * _vectors(observed=observed, std=std)[1]
    ax.errorbar(observed, mean, bars, fmt="o", color=BLUE, ecolor="#b8cde6", ms=3, elinewidth=0.8)
    ax.set(xlabel="observed", ylabel="imputed")
    return ax


@checked
def roc(in_scores: Any, out_scores: Any, label: str = "", ax: Axes | None = None) -> Axes:
    """Draw the ROC curve of a score that is larger for outliers; the legend gives its AUROC.

    Args:
        in_scores: Scores of in-distribution examples `[n]`.
        out_scores: Scores of outliers `[m]`.
        label: Name in the legend; call again with the same `ax` for another curve.
        ax: Axes to draw on.
    """
    from marquis.tasks.ranking import auroc, roc_curve

    in_scores = torch.from_numpy(as_numbers("in_scores", in_scores).ravel())
    out_scores = torch.from_numpy(as_numbers("out_scores", out_scores).ravel())
    curve, ax = roc_curve(in_scores, out_scores), _axes(ax)
    if not ax.lines:
        ax.plot([0, 1], [0, 1], color=GREY, lw=0.8)
    text = f"{label}: {auroc(in_scores, out_scores):.3f}" if label else f"AUROC {auroc(in_scores, out_scores):.3f}"
    ax.plot(curve.false_positive_rate, curve.true_positive_rate, label=text)
    ax.set(xlabel="false positive rate", ylabel="true positive rate")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


@checked
def score_histogram(
    in_scores: Any, out_scores: Any = None, names: Sequence[str] = ("in-distribution", "OOD"), ax: Axes | None = None
) -> Axes:
    """Draw histograms of outlier scores, as shares of each set.

    Args:
        in_scores: Scores of in-distribution examples `[n]`.
        out_scores: Scores of outliers `[m]`.
        names: Names of the two in the legend.
        ax: Axes to draw on.
    """
    parts = [as_numbers("scores", part).ravel() for part in (in_scores, out_scores) if part is not None]
    everything = np.concatenate(parts)
    if not all(map(len, parts)) or not np.isfinite(everything).all():
        raise DataError("a histogram needs finite scores, at least one of each set.")
    edges, ax = np.linspace(everything.min(), everything.max() + 1e-12, 8 + min(42, len(everything) // 10)), _axes(ax)
    for part, name, colour in zip(parts, names, (BLUE, ORANGE), strict=False):
        shares = np.full(len(part), 1 / len(part))
        ax.hist(part, edges.tolist(), weights=shares, color=colour, alpha=0.5, label=name)
    ax.set(xlabel="score", ylabel="share")
    ax.legend(frameon=False, fontsize=8)
    return ax


@checked
def contributions(values: Any, names: Sequence[str], largest: int = 15, ax: Axes | None = None) -> Axes:
    """Draw what each column adds to one row's outlier score, the largest first; all others are one bar.

    Args:
        values: Signed contributions `[columns]`, which add up to the score.
        names: Names of the columns.
        largest: Number of columns that are shown one by one.
        ax: Axes to draw on.
    """
    (values,) = _vectors(values=values)
    if len(names) != len(values):
        raise DataError(f"{len(values)} contributions, but {len(names)} names.")
    order, ax = np.argsort(-np.abs(values), kind="stable"), _axes(ax)
    shown, rest = order[:largest], order[largest:]
    bars = [float(values[i]) for i in shown] + ([float(values[rest].sum())] if len(rest) else [])
    labels = [str(names[i]) for i in shown] + ([f"{len(rest)} others"] if len(rest) else [])
    ax.barh(range(len(bars)), bars, color=[ORANGE if bar > 0 else BLUE for bar in bars])
    ax.set_yticks(range(len(bars)), [label.replace("$", r"\$") for label in labels], fontsize=8)
    ax.invert_yaxis()
    ax.axvline(0, color=GREY, lw=0.8)
    ax.set(xlabel="contribution to the outlier score", title=f"score {float(values.sum()):.3g}")
    return ax


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches that is rendered into memory, without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(ax: Axes | None) -> Axes:
    """Return the axes to draw on, of a new figure where there are none."""
    return new_figure(4.6, 3.6).subplots() if ax is None else ax


def _vectors(**named: Any) -> list[np.ndarray]:
    """Return the values as vectors of one length, without NaN."""
    vectors = {name: as_numbers(name, values).ravel() for name, values in named.items()}
    if len({len(vector) for vector in vectors.values()}) > 1 or not all(map(len, vectors.values())):
        raise DataError(f"lengths differ or are zero: {', '.join(f'{k} {len(v)}' for k, v in vectors.items())}.")
    for name, vector in vectors.items():
        if np.isnan(vector).any():
            raise DataError(f"{name} contains NaN; leave missing values out.")
    return list(vectors.values())
