"""The two pictures of the benchmark page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from benchmarks.bars import BARS, QUOTED, QUOTED_FIGURE7
from benchmarks.report import NAMES, number

OURS, PEER, LIMIT = "#3f51b5", "#9e9e9e", "#d84315"
LINES = {  # colour and marker of each measured line of Figure 7; its table has the others
    "plain forward and backward": ("black", "."),
    NAMES["ours:sketched"]: ("#3f51b5", "o"),
    NAMES["ours:exact"]: ("#2e7d32", "D"),
    NAMES["backpack:exact"]: ("#d84315", "^"),
}
PAPER = "the paper's code, exact"  # the only line of Figure 7 that was measured before


def _plain_number(value: float, _position: Any = None) -> str:
    return f"{value:g}"


def ratios(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel per workload: a bar per method, a mark where we promised to be."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained")
    for panel, workload in zip(panels, ("W1", "W2", "W4"), strict=True):
        _ratio_panel(panel, workload, rows)
    handles: list[Any] = [
        plt.Rectangle((0, 0), 1, 1, color=OURS, label="Marquis"),
        plt.Rectangle((0, 0), 1, 1, color=PEER, label="peer"),
        plt.Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=PEER, hatch="///", label="peer, measured before"),
        Line2D([], [], color=LIMIT, marker="|", markersize=14, markeredgewidth=2.5, linestyle="", label="our bar"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("One curvature call, in plain forward and backward passes (shorter is better, log scale)")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _ratio_panel(panel: Axes, workload: str, rows: list[dict[str, Any]]) -> None:
    taken = [r for r in rows if r["workload"] == workload and r["status"] == "measured"]
    entries = [(NAMES[r["method"]], r["cpu"]["ratio"], r["method"].startswith("ours"), False) for r in taken]
    shown = {name for name, *_ in entries}
    quotes = [(name, ratio) for name, where, _, ratio, _, _ in QUOTED if where == workload and ratio]
    entries += [(name, ratio, False, True) for name, ratio in quotes if name not in shown]
    limits: dict[str, float] = {}
    for bar in BARS:  # the first one named is the bar; a second is an aim
        if bar.workload == workload and bar.quantity == "ratio":
            limits.setdefault(NAMES[bar.method], bar.limit)
    for place, (name, ratio, is_ours, quoted) in enumerate(entries):
        style: dict[str, Any] = {"color": OURS if is_ours else PEER}
        if quoted:
            style = {"facecolor": "white", "edgecolor": PEER, "hatch": "///"}
        panel.barh(place, ratio, height=0.7, left=0, **style)
        panel.text(1.15 * max(ratio, limits.get(name, 0)), place, f"{number(ratio)}", va="center", fontsize=8)
        if name in limits:
            panel.plot(limits[name], place, color=LIMIT, marker="|", markersize=15, markeredgewidth=2.5)
    panel.set_yticks(range(len(entries)), [name for name, *_ in entries], fontsize=8)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(0.5, 4 * max([ratio for _, ratio, *_ in entries], default=2.0))
    panel.xaxis.set_major_formatter(FuncFormatter(_plain_number))
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_title(workload)
    panel.spines[["top", "right"]].set_visible(False)


def figure7(lines: dict[str, dict[int, tuple[float, float | None]]], path: Path) -> None:
    """Time and memory against resolution, both on log scales."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    sizes = sorted({size for line in lines.values() for size in line} | {64})
    for panel, which, label in zip(panels, (0, 1), ("CPU seconds", "peak MB above the start"), strict=True):
        for name, (colour, marker) in LINES.items():
            sizes_and_entries = sorted(lines.get(name, {}).items())
            points = [(size, entry[which]) for size, entry in sizes_and_entries if (entry[which] or 0) > 0]
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name) if points else None
        points = [(size, (seconds, peak)[which]) for name, size, seconds, peak in QUOTED_FIGURE7 if name == PAPER]
        style: dict[str, Any] = {"color": "#8e24aa", "marker": "p", "markerfacecolor": "white", "linestyle": ":"}
        panel.plot(*zip(*points, strict=True), label=f"{PAPER} (measured before)", **style)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(FuncFormatter(_plain_number))
        panel.set_xlabel("S, for a picture of 3 x S x S")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle("Five 3x3 convolutions, batch 1: cost of the curvature against resolution")
    figure.savefig(path, dpi=130)
    plt.close(figure)
