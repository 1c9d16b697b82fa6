"""Tables and pictures of the page of `claims`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import Row, table, verdict, yes

Score = Callable[[Row], float]

DEFAULT = "noise learnt, prior 1, T = 0.01"
SCORES: dict[str, tuple[Score, str]] = {
    "squared error": (lambda row: row["error"], ".2f"),
    "log p": (lambda row: row["refitted_log_prob"], ".1f"),
    "coverage": (lambda row: row["coverage"], ".2f"),
}
BY_WIDTH = {"width": "digits", "fashion-width": "Fashion-MNIST"}
"""Parts that vary the width, and their data."""
PLOTTED = (
    *("plain autoencoder", "Laplacian, default", "as published, rate 0.002", "as published, rate 0.01"),
    "noise precision 30",
)
"""Learning curves of Bayes by Backprop and its references."""


def of(rows: list[Row], label: str) -> list[Row]:
    """Return the rows of one label whose training did not fail."""
    return [row for row in rows if row["label"] == label and "failed" not in row]


def refitted(row: Row) -> float:
    """Return the log density with the noise refitted, which compares models with different noise."""
    return row["refitted_log_prob"]


def average(rows: list[Row], label: str, score: Score) -> float:
    """Compute the mean over seeds; NaN where every training failed."""
    numbers = [score(row) for row in of(rows, label)]
    return mean(numbers) if numbers else math.nan


def difference(rows: list[Row], first: str, second: str, score: Score = refitted) -> tuple[float, float]:
    """Compute the mean over seeds of `first - second`, paired, and its standard error (0 for one seed)."""
    by_seed = {row["seed"]: score(row) for row in of(rows, second)}
    gaps = [score(row) - by_seed[row["seed"]] for row in of(rows, first) if row["seed"] in by_seed]
    return (mean(gaps), standard_error(gaps)) if gaps else (math.nan, math.nan)


def shown(gap: tuple[float, float]) -> str:
    """Return a difference with its standard error, such as `+3.1 ± 0.4`."""
    return f"{gap[0]:+.1f} ± {gap[1]:.1f}" if gap[1] else f"{gap[0]:+.1f}"


def lines(rows: list[Row]) -> str:
    """Return a table with a line for every label: means over seeds."""
    first = next(row for row in rows if "failed" not in row)
    columns = dict(SCORES)
    for name in first["auroc"]:
        columns[f"AUROC, {name}"] = (lambda row, name=name: row["auroc"][name]["output"], ".2f")
    labels = dict.fromkeys(row["label"] for row in rows)
    body = [[label, *(f"{average(rows, label, score):{form}}" for score, form in columns.values())] for label in labels]
    return table(["model", *columns], body)


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    settings = results["settings"]
    parts: dict[str, list[Row]] = {}
    for row in results["rows"]:
        parts.setdefault(row["part"], []).append(row)
    width, samples, forgetting = parts["width"], parts["samples"], parts["forgetting"]
    narrow, wide = (f"width {settings['widths'][place]:g}" for place in (0, -1))
    by_data = {"digits": width, "Fashion-MNIST": parts.get("fashion-width", [])}
    gains = {
        (data, kind): [difference(rows, f"{kind}, {at}", f"plain, {at}") for at in (narrow, wide)]
        for data, rows in by_data.items()
        for kind in ("default", "paper-code")
        if rows
    }
    grows = all(pair[1][0] > pair[0][0] for pair in gains.values())
    at_widths = f"{narrow} and {wide} − plain"
    one, many, cheap = sample_labels(settings)
    more, equal = (difference(samples, label, one) for label in (many, cheap))
    enough = equal[0] < 0
    backprop = [row for row in parts["backprop"] if row["model"] == "mean-field"]
    trained = [row for row in backprop if "failed" not in row]
    stuck = sum(row["error"] > 0.9 * row["mean_image_error"] for row in trained) + len(backprop) - len(trained)
    matched = difference(forgetting, "learning rate, T matched", "B/N, T = 0.01")
    best = min(dict.fromkeys(row["label"] for row in trained), key=lambda label: average(trained, label, error))
    body = [
        *(
            ["" if place else "The gain over a plain autoencoder grows with the width", f"{data}, {kind}: {at_widths}",
             " and ".join(map(shown, pair)), "" if place else yes(grows)]
            for place, ((data, kind), pair) in enumerate(gains.items())
        ),
        ["One sampled network per step suffices", "ten − one, equal steps", shown(more), ""],
        ["", "ten − one, equal cost", shown(equal), yes(enough)],
        ["Bayes by Backprop is too brittle to fit", "trainings that learnt nothing", f"{stuck} of {len(backprop)}",
         yes(stuck == len(backprop))],
        ["(choice) forgetting rate = learning rate", "− B/N, temperature matched", shown(matched), "–"],
    ]  # fmt: skip
    ablation = parts["ablation"]
    return {
        "models": len({str({**row, "part": "", "label": ""}) for row in results["rows"]}),
        "seeds": len({row["seed"] for row in results["rows"] if row["data"] == "digits"}),
        "verdict": verdict(grows, enough, stuck == len(backprop)),
        "holds": {"grows": yes(grows), "enough": yes(enough), "brittle": yes(stuck == len(backprop))},
        "table": table(["claim", "compared", "log p, nats", "holds"], body),
        "gains": "; ".join(f"{data}, {kind} {' to '.join(map(shown, pair))}" for (data, kind), pair in gains.items()),
        "more": shown(more),
        "equal": shown(equal),
        "stuck": stuck,
        "trainings": len(backprop),
        "best": {"label": best, "error": average(trained, best, error)},
        "plain": average(ablation, "plain autoencoder", error),
        "default": average(ablation, DEFAULT, error),
        "fixed": average(ablation, "plain autoencoder", lambda row: row["refitted_log_prob"] - row["log_prob"]),
        "pixels": pixel_coverage(ablation),
        "nll": {
            name: average(ablation, label, lambda row: row["auroc"]["mirrored"]["nll"])
            for name, label in {"plain": "plain autoencoder", "default": DEFAULT}.items()
        },
        "failed": "; ".join(f"{row['label']}: {row['failed']}" for row in results["rows"] if "failed" in row),
        "parts": {part: lines(parts[part]) for part in ("ablation", "fashion") if part in parts},
        "fashion": "fashion" in parts,
    }


def error(row: Row) -> float:
    """Return the squared error of the mean reconstruction."""
    return row["error"]


def sample_labels(settings: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the labels of one network per step, of ten with as many steps, and of ten at equal cost, at T = 0.01."""
    epochs = settings["samples_epochs"]
    few = max(epochs // 10, 1)
    ends = (f"{epochs} epochs, T = 0.01", f"{few} epoch{'s' * (few > 1)}, T = 0.01")
    return f"1 per step, {ends[0]}", f"10 per step, {ends[0]}", f"10 per step, {ends[1]}"


def pixel_coverage(rows: list[Row]) -> dict[str, float]:
    """Compute the default's coverage of pixels that hardly vary and of those that vary most."""
    parts = [row["pixel_coverage"] for row in of(rows, DEFAULT) if "pixel_coverage" in row]
    return {name: mean(part[name] for part in parts) if parts else math.nan for name in ("quiet", "lively")}


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the pictures of width and of Bayes by Backprop."""
    of_part = {part: [row for row in results["rows"] if row["part"] == part] for part in BY_WIDTH}
    backprop = [row for row in results["rows"] if row["part"] == "backprop"]
    draw_width(folder / "claims-width.png", of_part, results["settings"]["widths"])
    draw_curves(folder / "claims-backprop.png", backprop)


def draw_width(path: Path, of_part: Mapping[str, list[Row]], widths: Sequence[float]) -> None:
    """Draw the paired difference to the plain autoencoder of the same width against the number of weights."""
    panels: list[tuple[str, Score]] = [("squared error", error), ("log p, nats", refitted)]
    panels_of_part = [(BY_WIDTH[part], rows, *panel) for part, rows in of_part.items() if rows for panel in panels]
    figure = Figure(len(panels_of_part), 2, 4.4, 2.8)
    for axis, (data, rows, title, score) in zip(figure.axes, panels_of_part, strict=True):
        for kind, colour in (("default", BLUE), ("paper-code", GREEN)):
            x = [average(rows, f"{kind}, width {w:g}", lambda row: row["weights"]) for w in widths]
            gaps = [difference(rows, f"{kind}, width {w:g}", f"plain, width {w:g}", score) for w in widths]
            y, whiskers = [gap for gap, _ in gaps], [2 * deviation for _, deviation in gaps]
            axis.errorbar(x, y, whiskers, fmt="o-", ms=4, capsize=3, color=colour, label=f"LAE, {kind}")
        axis.axhline(0, color=GREY, lw=0.8)
        axis.set(xscale="log", xlabel="weights", title=f"{data}: {title}, LAE − plain")
    figure.axes[0].legend(fontsize=8)
    figure.save(path)


def draw_curves(path: Path, rows: list[Row]) -> None:
    """Draw the squared error of sampled networks on held-out images after every epoch, a line per training."""
    figure = Figure(1, 1, 7.0, 3.4)
    (axis,) = figure.axes
    for label, colour in zip(PLOTTED, (GREY, BLUE, ORANGE, "#e0a32e", GREEN), strict=True):
        for repeat, row in enumerate(row for row in rows if row["label"] == label):
            axis.plot(row["curve"], color=colour, lw=1.2, label=label if repeat == 0 else None)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(yscale="log", xlabel="epoch", ylabel="held-out squared error")
    axis.legend(fontsize=8)
    figure.save(path)
