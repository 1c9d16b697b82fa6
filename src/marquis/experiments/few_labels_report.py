"""Page and picture of `few-labels`; every sentence with a verdict is computed from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from marquis.experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture, command, table, write_page

LABELS = {
    "pixels": "raw pixels, no model",
    "ae": "autoencoder",
    "vae": "VAE",
    "dropout": "MC dropout",
    "ensemble": "ensemble of five, codes side by side",
    "posthoc-sketched": "LAE post-hoc",
    "online-sketched": "LAE online, our default",
    "online-sketched-paper-code": "LAE online, paper-code",
    "online-sketched-paper": "LAE online, paper",
}
LAE = ("online-sketched", "online-sketched-paper-code", "online-sketched-paper")
APART = ("pixels", "ensemble")
"""Rows with more numbers per image than the others: not rivals in the claim."""
FEW = 20
"""The claim is about at most so many labels per class."""
STYLES = {
    "pixels": ("black", ":"),
    "ae": (BLUE, "-"),
    "vae": ("#8a6fb0", "-."),
    "dropout": (GREEN, "--"),
    "posthoc-sketched": ("#c9a227", "--"),
    "online-sketched": (ORANGE, "-"),
    "online-sketched-paper-code": ("#9c2f4f", "--"),
    "online-sketched-paper": (GREY, "-."),
}


def accuracies(row: dict[str, Any], way: str = "codes") -> np.ndarray:
    """`[numbers of labels, repetitions]`; a row without copies has one way only."""
    return np.array(row["ways"].get(way, row["ways"]["mean"])["accuracy"])


class Rows:
    """The finished rows, by name and seed."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.settings = results["settings"]
        self.per_class: list[int] = list(self.settings["per_class"])
        self.failed = {(row["name"], row["seed"]): row["failed"] for row in results["rows"] if row["failed"]}
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for row in results["rows"]:
            if not row["failed"]:
                found.setdefault(row["name"], {})[row["seed"]] = row
        self.by_name = found
        self.few = [place for place, n in enumerate(self.per_class) if n <= FEW]
        self.many = [place for place, n in enumerate(self.per_class) if n > FEW]

    def seeds(self, name: str, way: str = "codes") -> dict[int, np.ndarray]:
        """Accuracies `[numbers of labels, repetitions]` by seed."""
        return {seed: accuracies(row, way) for seed, row in self.by_name[name].items()}

    def accuracy(self, name: str, way: str = "codes") -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard error for each number of labels."""
        return mean_and_error(list(self.seeds(name, way).values()))

    def difference(
        self, name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of two rows on the same labelled images, mean and standard error for each number of labels."""
        return mean_and_error(self._differences(name, other, way, other_way))

    def mean_difference(
        self, places: list[int], name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[float, float]:
        """Likewise, averaged over some of the numbers of labels before the error is taken."""
        each = [values[places].mean(0, keepdims=True) for values in self._differences(name, other, way, other_way)]
        mean, error = mean_and_error(each)
        return float(mean[0]), float(error[0])

    def _differences(self, name: str, other: str, way: str, other_way: str) -> list[np.ndarray]:
        mine, theirs = self.seeds(name, way), self.seeds(other, other_way)
        return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def mean_and_error(seeds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and repetitions of `[rows, repetitions]`, and the larger of two standard errors.

    One is over the seeds' means, which differ in weights, labelled images and draws, and are independent; with two or
    three of them it may come out small by chance. The other is over all draws of labels, as if a seed's were
    independent; for a single seed it is the only one, and says nothing about weights. NaN for a single number.
    """
    each = np.stack(seeds)  # [seeds, rows, repetitions]
    count, repetitions = len(each), each.shape[2]
    errors = np.full((2, each.shape[1]), np.nan)
    if count > 1:
        errors[0] = each.mean(2).std(0, ddof=1) / count**0.5
    if repetitions > 1:
        errors[1] = (each.var(2, ddof=1).mean(0) / (count * repetitions)) ** 0.5
    return each.mean((0, 2)), np.fmax(*errors)


def points(mean: float, error: float, sign: bool = False) -> str:
    """In per cent, or percentage points."""
    text = f"{100 * mean:+.1f}" if sign else f"{100 * mean:.1f}"
    return text if np.isnan(error) else f"{text} ± {100 * error:.1f}"


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """The page, with the picture where there is something to draw."""
    rows = Rows(results)
    recipe = rows.settings["recipe"]
    shown = [name for name in LABELS if name in rows.by_name]
    pieces = ["# Few labels", introduction(results)]
    if "ae" in rows.by_name:
        draw(folder / "few-labels.png", rows)
        pieces += ["![Accuracy against the number of labels](few-labels.png)", caption()]
    head = [f"{n}" for n in rows.per_class]
    lines = [[LABELS[name], *(points(*pair) for pair in zip(*rows.accuracy(name), strict=True))] for name in shown]
    pieces += ["## Accuracy by the published way, per cent", table(["labels per class", *head], lines)]
    if "ae" in rows.by_name:
        others = [name for name in shown if name != "ae"]
        lines = [
            [LABELS[name], *(points(*pair, sign=True) for pair in zip(*rows.difference(name, "ae"), strict=True))]
            for name in others
        ]
        pieces += [
            "## Difference from the autoencoder on the same labelled images, percentage points",
            table(["labels per class", *head], lines),
            "## The claim: a Laplacian autoencoder is best for 1 to 20 labels per class",
            claim(rows),
        ]
    pieces += ["## What copies buy", copies(rows)]
    pieces += [f"- {LABELS.get(name, name)}, seed {seed}: {why}" for (name, seed), why in rows.failed.items()]
    cut = (
        f"Cut down: {recipe['images']:,} training images and {recipe['epochs']} epochs at a fixed learning rate (the "
        "paper: 55,000 and early stopping)."
        if not recipe["validation"]
        else "Not cut down: the paper's images and early stopping, by the rows that give the labels, as in the paper."
    )
    pieces += [
        "## What is not the paper's",
        f"{cut} Cross-validation never "
        "separates copies of an image (the published code does, and then finds each copy's twin); held-out and "
        "evaluated images are classified at their mean code (the published code uses whichever network was drawn "
        "last). Nothing else on this page was tuned; repetitions were cut from ten to five for time, after first "
        "accuracies had been seen.",
    ]
    return write_page(folder / "few-labels.md", pieces)


def introduction(results: dict[str, Any]) -> str:
    """What was done."""
    settings = results["settings"]
    recipe = settings["recipe"]
    seeds = len({row["seed"] for row in results["rows"]})
    last = settings["first"] + settings["held"]
    return (
        f"Written by {command('few-labels', results['size'])} from its results (LAE Figure 12, which has no table). "
        f"Labelled and evaluated images are rows {settings['first']:,} to {last:,} of the training images of "
        f"{recipe['data']}, which no model was trained on. For each number of labels per class, "
        f"{settings['repetitions']} times per seed: draw the labelled images (the same for every row of the tables), "
        f"embed each by {settings['copies']} draws of the model, choose k from 1 to 10 by two-fold cross-validation, "
        "and classify all other images at their mean code by the k nearest codes. Models without draws have one code "
        "per image. Codes have two numbers, except for the ensemble, whose members do not share a code (ten numbers). "
        f"Models of {seeds} seed(s){fewer(results)}. Errors are standard errors: the larger of that over seeds "
        "(other weights, labelled images and draws) and that over all draws of labels."
    )


def fewer(results: dict[str, Any]) -> str:
    """Which rows have fewer seeds than the others, where a run was stopped."""
    counts: dict[str, int] = {}
    for row in results["rows"]:
        counts[row["name"]] = counts.get(row["name"], 0) + 1
    short = [f"{row_label(name)}: {count}" for name, count in counts.items() if count < max(counts.values())]
    return f" (fewer where the run was stopped: {'; '.join(short)})" if short else ""


def caption() -> str:
    """Of the picture."""
    return (
        "Left: accuracy by the published way; bands are two standard errors. Right: what the copies of the default's "
        "labelled images add to its mean codes, as trained and with the covariance of the finished posterior widened."
    )


def claim(rows: Rows) -> str:
    """Who is best with few labels, in pairs."""
    rivals = [name for name in LABELS if name in rows.by_name and name not in (*LAE, *APART, "posthoc-sketched")]
    ours = [name for name in LAE if name in rows.by_name]
    if not ours or not rivals or not rows.few:
        return "Not all rows are there yet."
    said = []
    best = {n: max([*ours, *rivals], key=lambda name: rows.accuracy(name)[0][n]) for n in rows.few}
    won = [rows.per_class[place] for place, name in best.items() if name in LAE]
    where = ", ".join(map(str, won)) if won else "none"
    said.append(
        f"- Highest mean accuracy among models with codes of two numbers belongs to an online LAE for these numbers of "
        f"labels: {where} (of {', '.join(str(rows.per_class[place]) for place in rows.few)})."
    )
    rival = max(rivals, key=lambda name: rows.accuracy(name)[0][rows.few].mean())
    for name in ours:
        mean, error = rows.mean_difference(rows.few, name, rival)
        said.append(
            f"- {LABELS[name]} against {LABELS[rival]} (the best other over these numbers): "
            f"{points(mean, error, sign=True)} points: {verdict(mean, error)}; where k counts images, "
        )
        mean, error = rows.mean_difference(rows.few, name, rival, "data", "data")
        said[-1] += f"{points(mean, error, sign=True)}: {verdict(mean, error)}."
        if rows.many:
            both = [rows.mean_difference(rows.many, name, "ae", way, way) for way in ("codes", "data")]
            codes, data = (points(*each, sign=True) for each in both)
            said[-1] += f" With more labels, against the autoencoder: {codes} points; where k counts images, {data}."
    for name in APART:
        if name in rows.by_name:
            mean, error = rows.mean_difference(rows.few, ours[0], name)
            said.append(f"- {LABELS[ours[0]]} against {LABELS[name]}: {points(mean, error, sign=True)} points.")
    return "\n".join(said)


def verdict(mean: float, error: float) -> str:
    """In words; two standard errors decide."""
    if np.isnan(error):
        return "a single number, which decides nothing"
    if abs(mean) <= 2 * error:
        return "not told apart"
    return "**ahead**" if mean > 0 else "**behind**"


def copies(rows: Rows) -> str:
    """Copies against the mean code, by both ways to count, for every row that has copies."""
    lines = []
    for name, seeds in rows.by_name.items():
        if any("codes" not in row["ways"] for row in seeds.values()):
            continue
        width = float(np.mean([row["width"] for row in seeds.values()]))
        cells = [
            points(*rows.mean_difference(places, name, name, way, "mean"), sign=True)
            for places in (rows.few, rows.many)
            if places
            for way in ("codes", "data")
        ]
        lines.append([row_label(name), f"{width:.3f}", *cells])
    few = [f"few, k counts {way}" for way in ("codes", "images")]
    many = [f"many, k counts {way}" for way in ("codes", "images")] if rows.many else []
    said = (
        "Accuracy with copies minus accuracy with the mean code of each labelled image only (k from 1 to 10 either "
        f"way), percentage points; *few* is up to {FEW} labels per class. *Width* is how wide the draws are: standard "
        "deviation over the copies of an image, relative to that of mean codes over images. Where draws are narrow, "
        "the ten nearest codes are copies of one image: the published way then allows one neighbour only, while mean "
        "codes (and the plain autoencoder) may let several images vote. Counting images gives the vote back "
        f"({rows.settings['data_copies']} of the copies, k from {rows.settings['data_copies']} to "
        f"{10 * rows.settings['data_copies']}). The rows at the end are the default's finished posterior, widened "
        "without training again."
    )
    return said + "\n\n" + table(["model", "width", *few, *many], lines) + "\n\n" + copies_verdict(rows)


def copies_verdict(rows: Rows) -> str:
    """Whether the default's draws matter."""
    name = LAE[0]
    if name not in rows.by_name or not rows.few:
        return ""
    width = float(np.mean([row["width"] for row in rows.by_name[name].values()]))
    codes = rows.mean_difference(rows.few, name, name, "codes", "mean")
    data = rows.mean_difference(rows.few, name, name, "data", "mean")
    seen = abs(data[0]) > max(0.005, 2 * np.nan_to_num(data[1]))
    size = "which can be seen" if seen else "too narrow to matter"
    return (
        f"The default's draws (temperature 0.01) have a width of {width:.3f}: counted in images, its copies change the "
        f"accuracy with few labels by {points(*data, sign=True)} points, {size}; counted in codes by "
        f"{points(*codes, sign=True)}.{widened_verdict(rows)}"
    )


def widened_verdict(rows: Rows) -> str:
    """The widened row that does best against the autoencoder, counted in images."""
    wide = [name for name in rows.by_name if name not in LABELS]
    if not wide or "ae" not in rows.by_name:
        return ""
    best = max(wide, key=lambda name: rows.mean_difference(rows.few, name, "ae", "data", "data")[0])
    own = rows.mean_difference(rows.few, best, best, "data", "mean")
    plain = rows.mean_difference(rows.few, best, "ae", "data", "data")
    return (
        f" Of the widened ones, {row_label(best).removeprefix('our default, ')} does best: {points(*own, sign=True)} "
        f"points over its own mean codes with few labels, and {points(*plain, sign=True)} against the autoencoder: "
        f"{verdict(*plain)}. That factor was picked by these very images."
    )


def row_label(name: str) -> str:
    """In words, also for the widened rows."""
    return LABELS[name] if name in LABELS else f"our default, covariance times {name.rpartition('x')[2]}"


def draw(path: Path, rows: Rows) -> None:
    """Accuracy of the rows, and what copies add."""
    picture = Picture(2, 2, 5.2, 4.6)
    left, right = picture.axes
    for name, (colour, line) in STYLES.items():
        if name in rows.by_name:
            curve(left, rows.per_class, rows.accuracy(name), colour, line, LABELS[name])
    left.set(xscale="log", xlabel="labels per class", ylabel="accuracy, per cent", title="k nearest codes")
    own = [name for name in rows.by_name if name == LAE[0] or name not in LABELS]
    for name, colour in zip(own, (ORANGE, BLUE, GREEN, GREY, "black"), strict=False):
        for way, line in (("codes", "--"), ("data", "-")):
            label = f"{'as trained' if name == LAE[0] else row_label(name).removeprefix('our default, ')}, "
            label += "k counts codes" if way == "codes" else "k counts images"
            curve(right, rows.per_class, rows.difference(name, name, way, "mean"), colour, line, label)
    right.axhline(0, color="black", lw=0.8)
    right.set(xscale="log", xlabel="labels per class", ylabel="percentage points")
    right.set_title("Our default: copies minus mean codes")
    for axis in picture.axes:
        axis.set_xticks(rows.per_class, [str(n) for n in rows.per_class])
        axis.minorticks_off()
        axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axis.grid(alpha=0.3)
    picture.save(path, dpi=110)


def curve(axis: Any, x: list[int], values: tuple[np.ndarray, np.ndarray], colour: str, line: str, label: str) -> None:
    """A line with a band of two standard errors."""
    mean, error = 100 * values[0], 100 * np.nan_to_num(values[1])
    axis.fill_between(x, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, lw=0)
    axis.plot(x, mean, color=colour, ls=line, lw=1.5, marker="o", ms=3, label=label)
