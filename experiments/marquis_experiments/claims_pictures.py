"""Pictures of the page of `claims`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marquis_experiments.claims_tables import Row, Score, average, error, refitted
from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture


def draw_ablation(path: Path, rows: list[Row], temperatures: Sequence[float]) -> None:
    """Four scores against temperature; presets and the plain model as horizontal lines."""
    panels: list[tuple[str, Score]] = [
        ("error per image", error),
        ("log p, noise refitted (nats)", refitted),
        ("90 % intervals hold", lambda row: row["coverage"]),
        ("AUROC of output variance, shuffled", lambda row: row["auroc"]["shuffled"]["output"]),
    ]
    styles = {
        "noise 1, prior 1": (ORANGE, "-"),
        "noise 1, prior learnt": (ORANGE, "--"),
        "noise learnt, prior 1": (BLUE, "-"),
        "noise learnt, prior learnt": (BLUE, "--"),
    }
    flat = {"plain autoencoder": (GREY, ":"), 'preset "paper-code"': (GREEN, "-."), 'preset "paper"': ("#8a4fa3", "-.")}
    picture = Picture(4, 2, 4.4, 3.0)
    for axis, (title, score) in zip(picture.axes, panels, strict=True):
        for name, (colour, style) in styles.items():
            values = [average(rows, f"{name}, T = {t:g}", score) for t in temperatures]
            axis.plot(temperatures, values, style, marker="o", ms=4, color=colour, label=name)
        for name, (colour, style) in flat.items():
            if "AUROC" in title and name == "plain autoencoder":
                continue
            axis.axhline(average(rows, name, score), color=colour, ls=style, lw=1.2, label=name)
        axis.set(xscale="log", xlabel="temperature", title=title)
        if "error" in title:
            axis.set_yscale("log")
        if "log p" in title:
            axis.set_yscale("symlog", linthresh=20)
    handles, names = picture.axes[0].get_legend_handles_labels()
    picture.figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    picture.save(path)


def draw_width(path: Path, rows: list[Row], widths: Sequence[float]) -> None:
    """Three scores against the number of weights."""
    panels: list[tuple[str, Score]] = [
        ("error per image", error),
        ("log p, noise refitted (nats)", refitted),
        ("AUROC of output variance, shuffled", lambda row: row["auroc"]["shuffled"]["output"]),
    ]
    picture = Picture(3, 3, 3.5, 3.0)
    for axis, (title, score) in zip(picture.axes, panels, strict=True):
        for kind, colour in (("plain", GREY), ("default", BLUE), ("paper-code", GREEN)):
            if "AUROC" in title and kind == "plain":
                continue
            places = [average(rows, f"{kind}, width {w:g}", lambda row: row["weights"]) for w in widths]
            values = [average(rows, f"{kind}, width {w:g}", score) for w in widths]
            axis.plot(places, values, "o-", ms=4, color=colour, label=kind)
        axis.set(xscale="log", xlabel="weights", title=title)
    picture.axes[0].legend(fontsize=8)
    picture.save(path)


def draw_curves(path: Path, rows: list[Row], title: str, columns: int = 2) -> None:
    """Squared error of drawn networks on held-out images after every epoch, a line per cell."""
    temperatures = ("T = 0.01", "T = 1") if columns == 2 else ("",)
    picture = Picture(columns, columns, 4.4 if columns == 2 else 7.0, 3.2 if columns == 2 else 3.8, share=True)
    colours = (GREY, BLUE, ORANGE, "#e0a32e", GREEN, "#8a4fa3", "#b03a5b")
    for axis, ending in zip(picture.axes, temperatures, strict=True):
        own = [row for row in rows if row["label"].endswith(ending)]
        for number, label in enumerate(dict.fromkeys(row["label"] for row in own)):
            for repeat, row in enumerate(r for r in own if r["label"] == label):
                words = label.removesuffix(f", {ending}") if repeat == 0 else None
                axis.plot(row["curve"], color=colours[number % 7], lw=1.2, label=words)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(yscale="log", xlabel="epoch", title=ending or title)
        axis.legend(fontsize=7)
    picture.axes[0].set_ylabel("held-out error of a drawn network")
    picture.save(path)
