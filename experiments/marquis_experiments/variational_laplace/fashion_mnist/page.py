"""Tables, comparisons and figures of `vl`, from its results alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from marquis_experiments.common.figure import BLUE, GREY, LIGHT_BLUE, ORANGE, Figure
from marquis_experiments.common.page import Row, verdict, yes

VARIANTS = {
    "VL": ("vl", "mean"),
    "VI (mean)": ("vi", "mean"),
    "VI (10 samples)": ("vi", "sampled"),
    "MAP": ("map", "mean"),
}
COLOURS = {"VL": ORANGE, "VI (mean)": BLUE, "VI (10 samples)": LIGHT_BLUE, "MAP": GREY}
MARKERS = {"VL": "o", "VI (mean)": "s", "VI (10 samples)": "D", "MAP": "^"}
PAPER = {
    "VL": "0.16 / 94.6 / 0.010",
    "VI (mean)": "0.23 / 94.0 / 0.034",
    "VI (10 samples)": "0.29 / 93.6 / 0.016",
    "MAP": "0.29 / 93.6 / 0.096",
}
"""VL Table 1, Fashion-MNIST: test NLL, accuracy in percent, ECE."""
PARTS = {
    "grid": "the grid and its further seeds",
    "overfitting": "the network that overfits",
    "resnet": "the ResNet",
    "regularisers": "the other regularisers",
    "multiplier": "the multipliers of Figure 2",
}
"""Parts of the results, in the order in which they are run."""
OTHERS = {"empirical": "VL with the empirical Fisher", "gradient": "MAP with the unweighted squared gradient"}


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
    """Return the tempering with the smallest validation NLL of the mean network; None if every run diverged.

    Only seeds that all temperings have count: those added at a chosen one do not change the choice.
    """
    usable = of_variant(rows, variant)
    seeds = [{row["seed"] for row in usable if row["tempering"] == t} for t in temperings(usable)]
    common = set.intersection(*seeds) if seeds else set()
    by_tempering: dict[float, list[float]] = {}
    for row in usable:
        if row["seed"] in common or not common:
            by_tempering.setdefault(row["tempering"], []).append(row["validation"]["nll"])
    return min(by_tempering, key=lambda t: mean(by_tempering[t])) if by_tempering else None


class Spread(list[float]):
    """Numbers that are written as their mean ± standard deviation."""

    def __format__(self, spec: str) -> str:
        deviation = f" ± {stdev(self):{spec}}" if len(self) > 1 else ""
        return f"{mean(self):{spec}}{deviation}" if self else "diverged"


def line(rows: list[Row], variant: str, tempering: float | None = None) -> dict[str, Any]:
    """Return one line of a table: scores of a variant at a tempering."""
    usable = of_variant(rows, variant, tempering)
    return {
        "method": variant,
        "tempering": "-" if tempering is None else f"{tempering:g}",
        "paper": PAPER[variant],
        "nll": Spread(scores(usable, variant, "nll")),
        "percent": Spread(100 * value for value in scores(usable, variant, "accuracy")),
        "ece": Spread(scores(usable, variant, "ece")),
        "training": Spread(row["training"]["nll"] for row in usable if "training" in row),
    }


class Comparison(NamedTuple):
    """VL against another method in one score; smaller is better.

    `gap` is the other's mean over the seeds minus VL's, `spread` the larger of the two ranges over the seeds; with one
    seed it is infinite, as nothing is known of it.
    """

    score: str
    other: str
    gap: float
    spread: float

    @property
    def won(self) -> bool:
        """Whether VL is better by more than the range over seeds."""
        return self.gap > self.spread

    def shown(self, **more: Any) -> Row:
        """Return the comparison and what it shows, for the template."""
        close = "one seed" if self.spread == float("inf") else "within the range of the seeds"
        return {**self._asdict(), "outcome": "yes" if self.won else "no" if self.gap <= 0 else close, **more}


def comparisons(rows: list[Row], tempering: float | None = None) -> list[Comparison]:
    """Compare VL with every other method, each at this tempering, or at its own that validation chose."""
    parts = {v: of_variant(rows, v, tempering or chosen_tempering(rows, v)) for v in VARIANTS}
    usable = {variant: part for variant, part in parts.items() if part}
    result = []
    for score in ("NLL", "ECE"):
        for other in usable:
            if other != "VL" and "VL" in usable:
                ours, theirs = (scores(usable[variant], variant, score.lower()) for variant in ("VL", other))
                spread = max(max(each) - min(each) for each in (ours, theirs))
                spread = spread if len(ours) > 1 else float("inf")
                result.append(Comparison(score, other, mean(theirs) - mean(ours), spread))
    return result


def vi_calibrated(rows: list[Row]) -> dict[str, int]:
    """Return at how many temperings VI, by its mean or by samples, has a smaller ECE than VL at the same one."""
    gaps = [
        min((one.gap for one in comparisons(rows, t) if one.score == "ECE" and "VI" in one.other), default=0.0)
        for t in temperings(rows)
    ]
    return {"vi": sum(gap < 0 for gap in gaps), "all": len(gaps)}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables; the paper's order must come out by more than the range over seeds."""
    results = {**{part: [] for part in PARTS}, **results}  # of an unfinished run some are missing
    grid, few, resnet = results["grid"], results["overfitting"], results["resnet"]
    compared, overfitted = comparisons(grid), comparisons(few)
    weakest = min(temperings(few), default=float("nan"))
    curve = average_curve(few, "MAP", weakest) or [(0, float("nan"))]
    epoch, least = min(curve, key=lambda point: point[1])
    seeds = {row["seed"] for row in of_variant(grid, "VL", chosen_tempering(grid, "VL"))}
    lower_ece = vi_calibrated(grid)
    return {
        **{part: results[part] for part in PARTS},
        "missing": missing(results),
        "full": results["size"] == "full",
        "picture": picture(results),
        "chosen": [line(grid, name, chosen_tempering(grid, name)) for name in VARIANTS],
        "grid_lines": [line(grid, name, t) for t in temperings(grid) for name in VARIANTS if ran(grid, name, t)],
        "few_chosen": [line(few, name, chosen_tempering(few, name)) for name in VARIANTS],
        "few_lines": [line(few, name, t) for t in temperings(few) for name in VARIANTS],
        "resnet_lines": [line(resnet, name, chosen_tempering(resnet, name)) for name in VARIANTS],
        "order": [one.shown() for one in compared],
        "few_order": [one.shown() for one in overfitted],
        "equal": [one.shown(tempering=t, mark="**" * one.won) for t in temperings(few) for one in comparisons(few, t)],
        "multipliers": [
            {**row, "upper": row["method"].upper(), "log_likelihood": -row["mean"]["nll"]}
            | {"percent": 100 * row["mean"]["accuracy"]}
            for row in sorted(results["multiplier"], key=lambda r: (-r["tempering"], r["method"], r["multiplier"]))
            if not row["diverged"]
        ],
        "figure_2": (swept := figure_2(results["multiplier"])),
        "holds": {name: yes(swept[name]) for name in ("unconverged", "robust")},
        "regulariser_chosen": chosen_regularisers(results),
        "regulariser_lines": [
            _regulariser_line(OTHERS[row["method"]], row["tempering"], row["weight"], [row])
            for row in results["regularisers"]
            if not row["diverged"]
        ],
        "seconds": [*seconds("CNN", grid), *seconds("narrow ResNet", resnet)],
        "lower_ece": lower_ece,
        "ahead": lower_ece["vi"] == 0,
        "image_error": 100 * (0.86 * 0.14 / results["settings"]["test"]) ** 0.5,
        "won": {"all": len(compared), "grid": sum(c.won for c in compared), "few": sum(c.won for c in overfitted)},
        "least": {"epoch": epoch, "nll": least, "last": curve[-1][1], "tempering": weakest},
        "seeds": {"grid": len(seeds), "few": len(results["settings"]["overfitting"]["seeds"])},
        "digits": results["settings"]["data"] == "digits",
        "verdict": verdict(*(c.won for c in [*compared, *overfitted])) if compared else "not",
    }


def ran(rows: list[Row], variant: str, tempering: float) -> bool:
    """Return whether a variant was run at a tempering, even if it diverged."""
    return any(row["method"] == VARIANTS[variant][0] and row["tempering"] == tempering for row in rows)


def picture(results: dict[str, Any]) -> str:
    """Return the beginning of the pictures' names: pages of several sizes stand in one folder."""
    return "vl-full" if results["size"] == "full" else "vl"


def missing(results: dict[str, Any]) -> str:
    """Return how many cells of every part have not been run; empty if all have."""
    s, count = results["settings"], len
    few = s["overfitting"]
    more = {t for t in (chosen_tempering(results["grid"], variant) for variant in VARIANTS) if t is not None}
    planned = {
        "grid": 3 * (count(s["seeds"]) * count(s["temperings"]) + count(s.get("chosen_seeds", ())) * count(more)),
        "overfitting": 3 * count(few["seeds"]) * count(few["temperings"]),
        "resnet": 3,
        "regularisers": count(s["regulariser_seeds"]) * count(s["temperings"]) * (1 + count(s["weights"])),
        "multiplier": 2 * count(s["multipliers"]) * count(s["study_temperings"]),
    }
    parts = [(label, planned[part] - count(results[part])) for part, label in PARTS.items()]
    return ", ".join(f"{left} of {label}" for label, left in parts if left > 0)


def figure_2(rows: list[Row]) -> dict[str, Any]:
    """Return the two claims of VL Figure 2 with their numbers, per tempering, the largest first.

    With a multiplier of one VI's bound has not converged: it is the smallest one. And VL's test log-likelihood changes
    less between the multipliers than VI's.
    """
    bounds, ranges = [], []
    for tempering in reversed(temperings(rows)):
        vi, vl = (
            sorted(of_variant(rows, name, tempering), key=lambda r: r["multiplier"]) for name in ("VI (mean)", "VL")
        )
        if vi and vl:
            bound = [row["elbo_by_draws"] for row in vi]
            bounds.append((bound[0], max(bound)))
            losses = [[row["mean"]["nll"] for row in each] for each in (vl, vi)]
            ranges.append(tuple(max(each) - min(each) for each in losses))
    return {
        "unconverged": bool(bounds) and all(first < best for first, best in bounds),
        "robust": bool(ranges) and all(ours < theirs for ours, theirs in ranges),
        "bounds": ", ".join(f"{first:.2f} against {best:.2f}" for first, best in bounds),
        "ranges": ", ".join(f"{ours:.3f} against {theirs:.3f}" for ours, theirs in ranges),
    }


def chosen_regularisers(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return VL, MAP and the other regularisers, each at its tempering and weight of the smallest validation NLL.

    All are of the seeds with which the other regularisers were run.
    """
    seeds = results["settings"]["regulariser_seeds"]
    rows = [row for row in [*results["grid"], *results["regularisers"]] if row["seed"] in seeds and not row["diverged"]]
    lines = []
    for method, label in {"vl": "VL", **OTHERS, "map": "MAP"}.items():
        groups: dict[tuple[float, float], list[Row]] = {}
        for row in rows:
            if row["method"] == method:
                groups.setdefault((row["tempering"], row.get("weight", 0.0)), []).append(row)
        if groups:
            key = min(groups, key=lambda k: mean(row["validation"]["nll"] for row in groups[k]))
            lines.append(_regulariser_line(label, *key, groups[key]))
    return lines


def _regulariser_line(label: str, tempering: float, weight: float, rows: list[Row]) -> dict[str, Any]:
    scores_of = {name: Spread(row["mean"][name] for row in rows) for name in ("nll", "ece")}
    percent = Spread(100 * row["mean"]["accuracy"] for row in rows)
    validation = Spread(row["validation"]["nll"] for row in rows)
    weight_text = f"{weight:g}" if weight else "-"
    return {"method": label, "tempering": tempering, "weight": weight_text, "percent": percent} | {
        "validation": validation,
        **scores_of,
    }


def seconds(network: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Return seconds per epoch of every method, and the ratio to MAP."""
    each = {
        variant: mean(row["cpu_seconds_per_epoch"] for row in usable)
        for variant, (_, kind) in VARIANTS.items()
        if kind == "mean" and (usable := of_variant(rows, variant))
    }
    point = each.get("MAP", float("nan"))
    return [{"network": network, "method": v, "seconds": s, "ratio": s / point} for v, s in each.items()]


def average_curve(rows: list[Row], variant: str, tempering: float) -> list[tuple[int, float]]:
    """Return validation NLL by epoch, averaged over seeds."""
    curves = [row["watched"] for row in of_variant(rows, variant, tempering)]
    return [(points[0][0], mean(nll for _, nll in points)) for points in zip(*curves, strict=True)]


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the four figures, each with one legend above its panels; without those of parts that have no rows."""
    few, multiplier, figures = results.get("overfitting"), results.get("multiplier"), {}
    if results.get("grid"):
        figures["tempering"] = Figure(2, 2, 4.6, 3.8)
        draw_scores(figures["tempering"].axes, results["grid"])
    if few:
        figures["overfitting"] = Figure(3, 3, 4.6, 3.8)
        draw_scores(figures["overfitting"].axes[:2], few)
        draw_watched(figures["overfitting"].axes[2], few)
    if multiplier:
        figures["multiplier"] = Figure(3, 3, 4.6, 3.8)
        draw_multiplier(figures["multiplier"].axes, multiplier)
        figures["epochs"] = draw_epochs(multiplier)
    for name, figure in figures.items():
        figure.legend("outside upper center")
        figure.save(folder / f"{picture(results)}-{name}.png", dpi=110)


def draw_scores(axes: Any, rows: list[Row]) -> None:
    """Draw test NLL minus MAP's mean at the same tempering, and ECE: means, and the single seeds faintly."""
    base = {t: scores(of_variant(rows, "MAP", t), "MAP", "nll") for t in temperings(rows)}
    names = {"nll": "test NLL minus MAP's at the same β", "ece": "test ECE"}
    for axis, (metric, name) in zip(axes, names.items(), strict=True):
        for variant in VARIANTS:
            points = []
            for tempering in temperings(rows):
                if metric == "nll" and not base[tempering]:
                    continue
                zero = mean(base[tempering]) if metric == "nll" else 0.0
                each = [score - zero for score in scores(of_variant(rows, variant, tempering), variant, metric)]
                axis.plot([tempering] * len(each), each, MARKERS[variant], ms=3, alpha=0.35, color=COLOURS[variant])
                if each:
                    points.append((tempering, mean(each)))
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


def draw_epochs(rows: list[Row]) -> Figure:
    """Draw training bound and validation log-likelihood against the epoch: a row of panels for every tempering."""
    colours = (GREY, LIGHT_BLUE, BLUE, ORANGE)
    figure = Figure(4 * len(temperings(rows)), 4, 3.4, 2.9)
    panels = [
        (t, label, score)
        for t in reversed(temperings(rows))
        for score in ("bound", "fit")
        for label in ("VI (mean)", "VL")
    ]
    for axis, (tempering, label, score) in zip(figure.axes, panels, strict=True):
        part = sorted(of_variant(rows, label, tempering), key=lambda r: r["multiplier"])
        for row, colour in zip(part, colours, strict=False):
            fit = [-nll for _, nll in row["watched"]]
            y = row["curve"] if score == "bound" else fit
            axis.plot(range(1, len(y) + 1), y, color=colour, label=f"multiplier {row['multiplier']:g}")
        name = "training ELBO / N" if score == "bound" else "validation log-likelihood"
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(title=f"{label.split()[0]}, β = {tempering:g}", xlabel="epoch", ylabel=name)
        axis.grid(alpha=0.3)
    return figure
