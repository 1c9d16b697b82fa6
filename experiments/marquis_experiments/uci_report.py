"""The page and the pictures of the experiment `uci`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.pages import BLUE, GREY, ORANGE, Picture, command, standard_error, table, write_page

Row = dict[str, Any]
METHODS = {
    "map": "MAP, tuned noise",
    "linearised": "linearised",
    "sampled": "sampled",
    "sampled_gaussian": "sampled, one Gaussian",
}
COLOURS = {"map": GREY, "linearised": BLUE, "sampled": ORANGE}
VARIANTS = [
    ("energy 0", "tanh, one precision", 595, -7.86),
    ("energy 0", "tanh, per layer", 597, -8.15),
    ("energy 0", "tanh, per tensor", 598, -7.81),
    ("energy 0", "tanh, per input", 603, -9.17),
    ("energy 0", "ReLU, one precision", 429, -22.74),
    ("energy 0", "ReLU, per layer", 455, -15.75),
    ("energy 0", "ReLU, per tensor", 462, -18.57),
    ("energy 2", "tanh, one precision", 668, -18.29),
    ("energy 2", "tanh, per layer", 678, -21.26),
    ("energy 2", "tanh, per input", 781, -9.55),
    ("energy 2", "ReLU, per layer", 548, -23.71),
]
"""Tried before the design was fixed (8 rounds, one seed): gap split, variant, log evidence, linearised test score."""
BOUND = -5.0
"""Nats that the linearised prediction should stay above on every gap set."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `uci.md` and `uci.png` next to the results; whatever folds have finished are shown."""
    rows = results["rows"]
    names = sorted({row["name"] for row in rows})
    draw(folder / "uci.png", rows, names)
    pieces = [
        "# UCI regression: standard and gap splits",
        f"Written by {command('uci', results['size'])} from its results. One hidden layer of "
        f"{results['settings']['hidden']} tanh units, full Gauss-Newton posterior; prior precisions (one per input, "
        "bias and output layer) and noise by the evidence alone, without validation data, and the same design for "
        "every set (how it was chosen: see below). Numbers are mean test log-likelihoods per row in nats, in the "
        "labels' own units, ± the standard error over splits; higher is better. *MAP* is the same network with the "
        "same tuned noise and no other uncertainty; *sampled* the mixture of "
        f"{results['settings']['samples']} networks with weights drawn from the posterior; *one Gaussian* has that "
        "mixture's mean and variance, which is kinder to it where the networks disagree.",
        "![Test log-likelihoods](uci.png)",
        "## Standard splits",
        scores_table(rows, "standard", names),
        "## Gap splits",
        "In a gap split the middle third of the rows along one feature is the test set: the network has to know that "
        "it does not know.",
        scores_table(rows, "gap", names),
        "### Hard sets, split by split",
        "The two sets that are called hard, one line per feature with a gap:",
        gap_table(rows),
        "## What came out",
        verdict(rows, names),
        "## How the design was chosen",
        "The activation and the grouping of the prior were chosen once, by hand, after the trials below on two gap "
        "splits of energy. The choice is the one of largest evidence on both, but the test scores were in sight, so "
        "the numbers for energy's gaps 0 and 2 are not blind (nor 1, which is nearly the same split as 0). On gap 0 "
        "the evidence separates the tanh variants by a few nats only, and the one it prefers has the worst test score "
        "of them. A per-layer tanh network had been looked at on all of energy's gaps, and tanh and ReLU on a few of "
        "naval's. Rounds and rows were reduced afterwards for time alone.",
        table(["gap", "variant", "log evidence", "linearised, test"], [list(row) for row in VARIANTS]),
        "## What was cut",
        cuts(results),
    ]
    return write_page(folder / "uci.md", pieces)


def of(rows: list[Row], kind: str, name: str) -> list[Row]:
    """Folds of one set."""
    return sorted((row for row in rows if row["kind"] == kind and row["name"] == name), key=lambda row: row["fold"])


def shown(values: list[float]) -> str:
    """Mean ± standard error."""
    digits = 2 if abs(mean(values)) < 1000 else 0
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {standard_error(values):.{digits}f}"


def scores_table(rows: list[Row], kind: str, names: list[str]) -> str:
    """Sets by methods, with the number of splits and RMSE."""
    lines = []
    for name in names:
        own = of(rows, kind, name)
        if own:
            scores = [shown([row[method] for row in own]) for method in METHODS]
            lines.append([name, len(own), *scores, f"{mean(row['rmse'] for row in own):.3g}"])
    return table(["set", "splits", *METHODS.values(), "RMSE"], lines) if lines else "*Not run.*"


def gap_table(rows: list[Row]) -> str:
    """Energy and naval, every gap."""
    lines = []
    for name in ("energy", "naval"):
        for row in of(rows, "gap", name):
            scores = [f"{row[method]:.2f}" for method in METHODS]
            effective = f"{row['effective']:.0f} / {row['weights']}"
            lines.append([f"{name} {row['fold']}", *scores, f"{row['rmse']:.3g}", f"{row['label_sd']:.3g}", effective])
    head = ["gap", *METHODS.values(), "RMSE", "sd of labels", "effective / weights"]
    return table(head, lines) if lines else "*Not run.*"


def verdict(rows: list[Row], names: list[str]) -> str:
    """Each claim of the task against the numbers, whether it holds or not."""
    lines = []
    pairs = [("standard", "map"), *((kind, other) for kind in ("standard", "gap") for other in list(METHODS)[2:])]
    for kind, other in pairs:
        for name in names:
            own = of(rows, kind, name)
            if own:
                gains = [row["linearised"] - row[other] for row in own]
                lines.append([f"{name}, {kind}: linearised - {METHODS[other]}", shown(gains), holds(gains)])
    for name in names:
        own = of(rows, "gap", name)
        if own:
            value, worst = mean(row["linearised"] for row in own), min(row["linearised"] for row in own)
            below = sum(row["linearised"] <= BOUND for row in own)
            said = ("yes" if value > BOUND else "no") + (f" ({below} of {len(own)} splits below)" if below else "")
            lines.append([f"{name}, gap: mean above {BOUND:g} nats", f"{value:.2f}, worst split {worst:.2f}", said])
    return table(["claim", "value", "holds"], lines)


def holds(gains: list[float]) -> str:
    """Whether gains are positive on average, how sure that is, and on how many splits they are not."""
    said = "yes" if mean(gains) >= 0 else "no"
    if len(gains) == 1:
        return f"{said} (one split only)"
    notes = ["within one standard error"] if abs(mean(gains)) < standard_error(gains) else []
    against = sum(gain < 0 for gain in gains)
    notes += [f"worse on {against} of {len(gains)} splits"] if against else []
    return said + (f" ({', '.join(notes)})" if notes else "")


def cuts(results: dict[str, Any]) -> str:
    """What differs from the literature's protocol, and how much of the planned run is there."""
    settings = results["settings"]
    planned = sum(settings["standard"].values()) + sum(settings["gap"].values())
    done = len(results["rows"])
    rows = (
        "all rows"
        if settings["max_train"] is None
        else (
            f"at most {settings['max_train']} training and {settings['max_test']} test rows per split (drawn "
            "at random: this cuts naval, protein and wine)"
        )
    )
    seconds = sum(row["cpu_seconds"] for row in results["rows"])
    return (
        f"{done} of {planned} planned splits have run ({seconds / 60:.1f} minutes of one core): "
        f"standard splits {', '.join(f'{name} {count}' for name, count in settings['standard'].items())} of 20 "
        f"(protein: of 5); gap splits {', '.join(f'{name} {count}' for name, count in settings['gap'].items())}. "
        f"{rows[0].upper() + rows[1:]}; {settings['rounds']} rounds of training and evidence with at most "
        f"{settings['iterations']} iterations of L-BFGS each, so the networks are near a mode, not at it. "
        "`--full` runs all splits with all rows."
    )


def draw(path: Path, rows: list[Row], names: list[str]) -> None:
    """Differences to the linearised prediction would hide its level: two panels of levels, clipped below."""
    picture = Picture(2, 2, 4.4, 3.2)
    for axis, kind in zip(picture.axes, ("standard", "gap"), strict=True):
        floor = -12.0
        for shift, method in zip((-0.2, 0.0, 0.2), COLOURS, strict=True):
            label: str | None = METHODS[method]
            for place, name in enumerate(names):
                own = [row[method] for row in of(rows, kind, name)]
                if not own:
                    continue
                value = mean(own)
                below = value < floor
                axis.errorbar(
                    [place + shift],
                    [max(value, floor)],
                    yerr=None if below else [standard_error(own)],
                    fmt="v" if below else "o",
                    color=COLOURS[method],
                    ms=6,
                    label=label,
                )
                if below:
                    axis.annotate(
                        f"{value:.0f}",
                        (place + shift, floor + 0.5),
                        fontsize=6,
                        ha="center",
                        rotation=90,
                        va="bottom",
                        color=COLOURS[method],
                    )
                label = None
        axis.axhline(BOUND, color="#bbbbbb", ls=":", lw=1)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_ylim(floor - 0.7, 9.5)
        axis.set(title=f"{kind} splits", ylabel="test log-likelihood (nats)")
    handles, labels = picture.axes[1].get_legend_handles_labels()
    if handles:
        picture.axes[1].legend(handles, labels, fontsize=7, loc="upper left")
    picture.save(path)
