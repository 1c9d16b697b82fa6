"""Pictures of the page of `ood`: ROC curves and histograms of the variances (LAE Figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture

PANELS = {"output_variance": "output variance", "latent_variance": "latent variance"}
STYLES = {
    "vae": ("#8a4fa3", ":"),
    "dropout": (GREY, "--"),
    "ensemble": ("#b8860b", "-."),
    "posthoc-sketched": (ORANGE, "-"),
    "online-sketched": (BLUE, "-"),
    "online-sketched-temperature-0.1": (BLUE, "--"),
    "online-kronecker": ("#c2185b", "--"),
    "online-kronecker-temperature-0.1": ("#c2185b", "-"),
    "online-kronecker-temperature-0.1-read-at-1": ("#c2185b", ":"),
    "online-kronecker-temperature-0.1-together": ("#5e0b2d", "-"),
    "online-kronecker-temperature-0.1-both": ("#5e0b2d", "-"),
    "posthoc-kronecker-linearised": (ORANGE, "--"),
    "online-sketched-linearised": (BLUE, ":"),
    "online-kronecker-temperature-0.1-linearised": ("#e91e63", "-."),
    "online-kronecker-temperature-0.1-linearised-together": ("#5e0b2d", "--"),
    "online-kronecker-temperature-0.1-linearised-both": ("#5e0b2d", "--"),
    "online-sketched-paper-code": (GREEN, "-"),
    "online-sketched-paper": ("black", ":"),
}


def draw_curves(path: Path, rows: list[dict[str, Any]], labels: Mapping[str, str]) -> None:
    """One panel for each variance, one curve for each model that has it; the first training."""
    entries = len({row["key"] for row in rows if row["key"] in STYLES})
    picture = Picture(2, 2, 4.2, 3.8 + 0.16 * entries)
    for axis, (score, title) in zip(picture.axes, PANELS.items(), strict=True):
        for row in rows:
            if row["seed"] == 0 and not row["failed"] and score in row["roc"] and row["key"] in STYLES:
                colour, style = STYLES[row["key"]]
                shown = f"{labels[row['key']]}: {row['table'][score]['auroc']:.2f}"
                axis.plot(*row["roc"][score], style, color=colour, lw=1.6, label=shown)
        axis.plot([0, 1], [0, 1], color="#bbbbbb", lw=0.8)
        axis.set(title=title, xlabel="inside flagged", ylabel="outside flagged", xlim=(0, 1), ylim=(0, 1))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False)
    picture.save(path)


def draw_histograms(path: Path, rows: list[dict[str, Any]], labels: Mapping[str, str]) -> None:
    """Variances inside and outside, for the Laplacian autoencoders; the first training."""
    shown = [row for row in rows if row["seed"] == 0 and row["key"] in labels and not row["failed"]]
    picture = Picture(2 * max(1, len(shown)), 2, 4.2, 2.3)
    for number, row in enumerate(shown):
        for axis, (score, title) in zip(picture.axes[2 * number :], PANELS.items(), strict=False):
            if score not in row["histograms"]:
                continue
            found = row["histograms"][score]
            edges = found["edges"]
            for part, colour in (("inside", BLUE), ("outside", ORANGE)):
                axis.stairs(found[part], edges, fill=True, color=colour, alpha=0.5, label=part)
            axis.set(xlabel=f"log10 of the {title}", ylabel="images")
            axis.set_title(labels[row["key"]], fontsize=9)
    if shown:
        picture.axes[0].legend(fontsize=8)
    picture.save(path)
