"""Tables, comparisons and figures of `vl`, from its results alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from marquis_experiments.common.figure import Figure
from marquis_experiments.common.page import formatted, table, verdict

Row = dict[str, Any]

VARIANTS = {
    "VL": ("vl", "mean"),
    "VI (mean)": ("vi", "mean"),
    "VI (10 samples)": ("vi", "sampled"),
    "MAP": ("map", "mean"),
}
COLOURS = {"VL": "#d1602b", "VI (mean)": "#2f6fab", "VI (10 samples)": "#7fb2dd", "MAP": "#555555"}
MARKERS = {"VL": "o", "VI (mean)": "s", "VI (10 samples)": "D", "MAP": "^"}
PAPER = {
    "VL": "0.16 / 94.6 / 0.010",
    "VI (mean)": "0.23 / 94.0 / 0.034",
    "VI (10 samples)": "0.29 / 93.6 / 0.016",
    "MAP": "0.29 / 93.6 / 0.096",
}
"""VL Table 1, Fashion-MNIST: test NLL, accuracy in percent, ECE."""
PAPER_SECONDS = {"vl": 114.9, "vi": 43.2, "map": 41.8}
"""VL Table 2, CIFAR-10 on a GPU."""
SCORES = ["test NLL", "accuracy %", "ECE"]


def of_variant(rows: list[Row], variant: str, tempering: float | None = None) -> list[Row]:
    """Return the rows of one line of the table that did not diverge."""
    method, _ = VARIANTS[variant]
    return [
        row for row in rows if row["method"] == method and not row["diverged"] and tempering in (None, row["tempering"])
    ]


def scores(rows: list[Row], variant: str, metric: str) -> list[float]:
    """Return one number per row of a variant."""
    return [row[VARIANTS[variant][1]][metric] for row in rows]


def temperings(rows: list[Row]) -> list[float]:
    """Return all temperings, the smallest first."""
    return sorted({row["tempering"] for row in rows})


def chosen_tempering(rows: list[Row], variant: str) -> float | None:
    """Return the tempering with the smallest validation NLL of the mean network; None if every run diverged."""
    found: dict[float, list[float]] = {}
    for row in of_variant(rows, variant):
        found.setdefault(row["tempering"], []).append(row["validation"]["nll"])
    return min(found, key=lambda t: mean(found[t])) if found else None


def spread(values: list[float], form: str) -> str:
    """Return the mean, and the standard deviation where there are several values."""
    text = format(mean(values), form)
    return f"{text} ± {format(stdev(values), form)}" if len(values) > 1 else text


def score_cells(rows: list[Row], variant: str) -> list[str]:
    """Return test NLL, accuracy and ECE of one line of a table."""
    if not rows:
        return ["diverged"] * 3
    percent = [100 * value for value in scores(rows, variant, "accuracy")]
    return [
        spread(scores(rows, variant, "nll"), ".3f"),
        spread(percent, ".1f"),
        spread(scores(rows, variant, "ece"), ".3f"),
    ]


@dataclass(frozen=True)
class Comparison:
    """VL against another method in one score; smaller is better.

    Attributes:
        score: "NLL" or "ECE".
        other: The other line of the table.
        gap: The other's mean over the seeds minus VL's.
        spread: The larger of the two ranges over the seeds.
    """

    score: str
    other: str
    gap: float
    spread: float

    @property
    def won(self) -> bool:
        """Whether VL is better by more than the range over seeds."""
        return self.gap > self.spread

    @property
    def outcome(self) -> str:
        """What the comparison shows."""
        return "yes" if self.won else "no" if self.gap <= 0 else "within the range of the seeds"


def comparisons(rows: list[Row], tempering: float | None = None) -> list[Comparison]:
    """Compare VL with every other method, each at this tempering, or at its own that validation chose."""
    usable = {}
    for variant in VARIANTS:
        chosen = chosen_tempering(rows, variant) if tempering is None else tempering
        part = of_variant(rows, variant, chosen)
        if part:
            usable[variant] = {name: scores(part, variant, name.lower()) for name in ("NLL", "ECE")}
    result = []
    for score in ("NLL", "ECE"):
        for other in usable:
            if other != "VL" and "VL" in usable:
                ours, theirs = usable["VL"][score], usable[other][score]
                ranges = max(max(each) - min(each) for each in (ours, theirs))
                result.append(Comparison(score, other, mean(theirs) - mean(ours), ranges))
    return result


# --- page --------------------------------------------------------------------------------------------------


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the page's tables; the paper's order must come out by more than the range over seeds."""
    grid, few, resnet = results["grid"], results["overfitting"], results["resnet"]
    compared, overfitted = comparisons(grid), comparisons(few)
    won, won_few = sum(c.won for c in compared), sum(c.won for c in overfitted)
    best = {name: chosen_tempering(grid, name) for name in VARIANTS}
    chosen = {name: of_variant(grid, name, best[name]) for name in VARIANTS}
    weakest = min(temperings(few))
    curve = average_curve(few, "MAP", weakest)
    least = min(curve, key=lambda point: point[1]) if curve else (0, float("nan"))
    return {
        "main": table(
            ["method", "β", *SCORES, "paper: NLL / accuracy / ECE"],
            [[name, f"{best[name]}", *score_cells(chosen[name], name), PAPER[name]] for name in VARIANTS],
        ),
        "order": order_table(compared),
        "order_few": order_table(overfitted),
        "grid_table": grid_table(grid),
        "few_table": grid_table(few, training=True),
        "few_chosen": table(
            ["method", "β", *SCORES],
            [
                [name, f"{(t := chosen_tempering(few, name))}", *score_cells(of_variant(few, name, t), name)]
                for name in VARIANTS
            ],
        ),
        "equal": equal_table(few),
        "resnet_table": table(
            ["method", "β", *SCORES],
            [
                [name, *(f"{row['tempering']:g}" for row in rows[:1]), *score_cells(rows, name)]
                for name in VARIANTS
                if (rows := of_variant(resnet, name))
            ],
        ),
        "multiplier_table": multiplier_table(results["multiplier"]),
        "seconds": seconds_table(results),
        "count": {"all": len(compared), "won": won, "few": len(overfitted), "won_few": won_few},
        "least": {"epoch": least[0], "nll": least[1], "last": curve[-1][1] if curve else float("nan")},
        "weakest": weakest,
        "seeds": len(results["settings"]["seeds"]),
        "seeds_few": len(results["settings"]["overfitting"]["seeds"]),
        "digits": results["settings"]["data"] == "digits",
        "verdict": verdict(*(c.won for c in [*compared, *overfitted])) if compared and overfitted else "not",
    }


def order_table(compared: list[Comparison]) -> str:
    """Return one line per comparison."""
    lines = [[f"{c.score}: VL < {c.other}", f"{c.gap:+.4f}", f"{c.spread:.4f}", c.outcome] for c in compared]
    return table(["paper's order", "difference", "range over seeds", "holds"], lines)


def grid_table(rows: list[Row], training: bool = False) -> str:
    """Return scores of every method and tempering, with the NLL of the training images where it was recorded."""
    lines = []
    for tempering in temperings(rows):
        for variant in VARIANTS:
            usable = of_variant(rows, variant, tempering)
            fitted = spread([row["training"]["nll"] for row in usable], ".3f") if usable and training else ""
            line = [f"{tempering:g}", variant, *score_cells(usable, variant)]
            lines.append([*line, fitted] if training else line)
    return table(["β", "method", *SCORES, *(["training NLL"] if training else [])], lines)


def equal_table(rows: list[Row]) -> str:
    """Return the others' scores minus VL's with the same tempering for all."""
    others = [variant for variant in VARIANTS if variant != "VL"]
    lines = []
    for tempering in temperings(rows):
        for score in ("NLL", "ECE"):
            gaps = {c.other: c for c in comparisons(rows, tempering) if c.score == score}
            marks = {other: "**" if c.won else "" for other, c in gaps.items()}
            cells = [
                f"{marks[o]}{gaps[o].gap:+.3f}{marks[o]} ({gaps[o].spread:.3f})" if o in gaps else "-" for o in others
            ]
            lines.append([f"{tempering:g}", score, *cells])
    return table(["β", "score", *others], lines)


def multiplier_table(rows: list[Row]) -> str:
    """Return bounds and scores against the learning-rate multiplier."""
    lines = []
    for row in sorted(rows, key=lambda r: (-r["tempering"], r["method"], r["multiplier"])):
        start = [f"{row['tempering']:g}", row["method"].upper(), f"{row['multiplier']:g}"]
        if row["diverged"]:
            lines.append([*start, *["diverged"] * 5])
            continue
        test = {"log": -row["mean"]["nll"], "percent": 100 * row["mean"]["accuracy"], **row}
        fields = ("elbo:.3f", "elbo_by_draws:.3f", "log:.3f", "percent:.1f", "median_sigma_over_prior:.2f")
        lines.append([*start, *formatted(test, *fields)])
    head = ["β", "method", "multiplier", "ELBO/N", "ELBO/N by sampling", "test log-lik.", "accuracy %", "median σ/s"]
    return table(head, lines)


def seconds_table(results: dict[str, Any]) -> str:
    """Return seconds per epoch, and the ratio to MAP."""
    lines = []
    measured = {
        name: {
            m: [r["cpu_seconds_per_epoch"] for r in rows if r["method"] == m and not r["diverged"]]
            for m in PAPER_SECONDS
        }
        for name, rows in (("CNN", results["grid"]), ("narrow ResNet", results["resnet"]))
    }
    paper = {"paper: full ResNet, GPU": {method: [value] for method, value in PAPER_SECONDS.items()}}
    for name, seconds in {**measured, **paper}.items():
        for method, each in seconds.items():
            if each and seconds["map"]:
                lines.append([name, method.upper(), f"{mean(each):.1f}", f"{mean(each) / mean(seconds['map']):.2f}"])
    return table(["network", "method", "seconds per epoch", "ratio to MAP"], lines)


def average_curve(rows: list[Row], variant: str, tempering: float) -> list[tuple[int, float]]:
    """Return validation NLL by epoch, averaged over seeds."""
    curves = [row["watched"] for row in of_variant(rows, variant, tempering)]
    return [(points[0][0], mean(nll for _, nll in points)) for points in zip(*curves, strict=True)]


# --- figures -----------------------------------------------------------------------------------------------


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the three figures."""
    few = results["overfitting"]
    figure = Figure(2, 2, 4.6, 3.8)
    draw_scores(figure.axes, results["grid"])
    save(figure, folder / "vl-tempering.png")
    figure = Figure(3, 3, 4.6, 3.8)
    draw_scores(figure.axes[:2], few)
    draw_watched(figure.axes[2], few)
    save(figure, folder / "vl-overfitting.png")
    figure = Figure(3, 3, 4.6, 3.8)
    draw_multiplier(figure.axes, results["multiplier"])
    save(figure, folder / "vl-multiplier.png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure with one legend above its panels."""
    handles = figure.axes[0].get_legend_handles_labels()
    figure.figure.legend(*handles, loc="outside upper center", ncols=4, frameon=False)
    figure.save(path, dpi=110)


def draw_scores(axes: Any, rows: list[Row]) -> None:
    """Draw test NLL and ECE against the tempering: means, and the single seeds faintly."""
    for axis, metric, name in ((axes[0], "nll", "test NLL"), (axes[1], "ece", "test ECE")):
        for variant in VARIANTS:
            points = []
            for tempering in temperings(rows):
                values = scores(of_variant(rows, variant, tempering), variant, metric)
                axis.plot([tempering] * len(values), values, MARKERS[variant], ms=3, alpha=0.35, color=COLOURS[variant])
                if values:
                    points.append((tempering, mean(values)))
            if points:
                style = {"marker": MARKERS[variant], "color": COLOURS[variant], "label": variant}
                axis.plot(*zip(*points, strict=True), **style)
        axis.set(xscale="log", xlabel="tempering β (weight of the KL)", ylabel=name)
        axis.grid(alpha=0.3)


def draw_watched(axis: Any, rows: list[Row]) -> None:
    """Draw validation NLL during training with the weakest prior."""
    weakest = min(temperings(rows))
    for variant, (_, kind) in VARIANTS.items():
        if kind == "mean":
            for row in of_variant(rows, variant, weakest):
                axis.plot(*zip(*row["watched"], strict=True), color=COLOURS[variant], alpha=0.25, lw=1)
            if average := average_curve(rows, variant, weakest):
                axis.plot(*zip(*average, strict=True), color=COLOURS[variant], marker=MARKERS[variant], ms=4)
    axis.set(xlabel="epoch", ylabel=f"validation NLL, β = {weakest:g}")
    axis.grid(alpha=0.3)


def draw_multiplier(axes: Any, rows: list[Row]) -> None:
    """Draw bound, test log-likelihood and accuracy against the multiplier."""
    columns: list[tuple[str, Callable[[Row], float]]] = [
        ("ELBO / N (by sampling)", lambda r: r["elbo_by_draws"]),
        ("test log-likelihood", lambda r: -r["mean"]["nll"]),
        ("test accuracy %", lambda r: 100 * r["mean"]["accuracy"]),
    ]
    ticks = sorted({row["multiplier"] for row in rows})
    for axis, (name, value) in zip(axes, columns, strict=True):
        for tempering, line in zip(reversed(temperings(rows)), ("-", "--"), strict=False):
            for method, label in (("vl", "VL"), ("vi", "VI (mean)")):
                part = sorted(of_variant(rows, label, tempering), key=lambda r: r["multiplier"])
                style = {"marker": MARKERS[label], "color": COLOURS[label]}
                x, y = [r["multiplier"] for r in part], [value(r) for r in part]
                axis.plot(x, y, line, label=f"{method.upper()}, β = {tempering:g}", **style)
        axis.set(xscale="log", xlabel="multiplier of the learning rate of log σ", ylabel=name)
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
