"""The page of `scaling`: picture, tables, and what they say about the paper's Figure 7."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture, command, table, write_page

COLOURS = {"exact": ORANGE, "mixed": "#8a4fa3", "sketched": BLUE, "approximate": GREEN, "kronecker": "#e0a32e"}
PUBLISHED = {
    "exact": {8: 0.018, 16: 0.30, 32: 10.9, 48: 78.0},
    "approximate": {32: 0.0025, 64: 0.0038, 128: 0.017},
}
"""The paper's code, seconds, on another machine (peers.md)."""
PUBLISHED_MB = {"exact": {32: 516.0, 48: 2530.0}}
PUBLISHED_PLAIN = {8: 0.0007, 16: 0.0005, 32: 0.0007, 48: 0.001, 64: 0.0018, 96: 0.0086, 128: 0.012}
"""A plain forward and backward pass there and then (peers.md)."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Picture and page from the results alone."""
    draw(folder / "scaling.png", results["rows"])
    return write_page(folder / "scaling.md", page(results))


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Seconds, ratio and megabytes against the edge of the image, all axes logarithmic."""
    picture = Picture(3, 3, 3.9, 3.6)
    keys = {"seconds": "CPU seconds", "ratio": "times a plain step", "mb": "peak memory (MB)"}
    for axis, (key, title) in zip(picture.axes, keys.items(), strict=True):
        for row in rows:
            good = [r for r in row["rows"] if r[key] is not None]
            name = row["method"]
            axis.plot([r["size"] for r in good], [r[key] for r in good], "o-", ms=3.5, color=COLOURS[name], label=name)
        axis.set(xscale="log", yscale="log", title=title, xlabel="edge of the image")
        axis.set_xticks(ticks := [r["size"] for r in max(rows, key=lambda r: len(r["rows"]))["rows"]])
        axis.set_xticklabels([str(t) if t & (t - 1) == 0 else "" for t in ticks])
        axis.minorticks_off()
    left, middle, right = picture.axes
    plain = max(rows, key=lambda r: len(r["rows"]))["rows"]
    left.plot([r["size"] for r in plain], [r["plain_seconds"] for r in plain], "--", color=GREY, label="plain step")
    right.plot([r["size"] for r in plain], [r["plain_mb"] or math.nan for r in plain], "--", color=GREY)
    for name, values in PUBLISHED.items():
        left.plot(list(values), list(values.values()), "x:", color=COLOURS[name], ms=5, label=f"paper's code, {name}")
        ratios = [seconds / PUBLISHED_PLAIN[s] for s, seconds in values.items()]
        middle.plot(list(values), ratios, "x:", color=COLOURS[name], ms=5)
    for name, values in PUBLISHED_MB.items():
        right.plot(list(values), list(values.values()), "x:", color=COLOURS[name], ms=5)
    picture.figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    picture.save(path)


def slope(rows: list[dict[str, Any]], key: str) -> float | None:
    """Exponent of the number of pixels, between the resolution of at least a quarter of the largest edge and that."""
    good = [row for row in rows if row[key]]
    large = [row for row in good if row["size"] >= good[-1]["size"] / 4]
    if len(large) < 2:
        return None
    first, last = large[0], large[-1]
    return math.log(last[key] / first[key]) / (2 * math.log(last["size"] / first["size"]))


def page(results: dict[str, Any]) -> list[str]:
    """The page, from the results alone."""
    rows = results["rows"]
    sizes = [row["size"] for row in max(rows, key=lambda r: len(r["rows"]))["rows"]]

    def line(row: dict[str, Any], form: Callable[[dict[str, Any]], str]) -> list[str]:
        known = {r["size"]: r for r in row["rows"]}
        return [row["method"], *(form(known[s]) if s in known else "–" for s in sizes)]

    def published(name: str, values: dict[int, float], form: str) -> list[str]:
        return [f"*paper's code, {name}*", *(f"*{values[s]:{form}}*" if s in values else "–" for s in sizes)]

    head = ["edge", *map(str, sizes)]
    plain = max(rows, key=lambda r: len(r["rows"]))
    steps = ["plain forward + backward", *(f"{r['plain_seconds']:.2g}" for r in plain["rows"])]
    exponents = [
        [row["method"], *("–" if (e := slope(row["rows"], key)) is None else f"{e:.2f}" for key in ("seconds", "mb"))]
        for row in rows
    ]
    megabytes = [line(row, lambda r: "–" if r["mb"] is None else f"{r['mb']:.3g}") for row in rows]
    base = [
        "plain forward + backward",
        *("–" if r["plain_mb"] is None else f"{r['plain_mb']:.3g}" for r in plain["rows"]),
    ]
    return [
        "# Curvature against resolution",
        f"Written by {command('scaling', results['size'])}: Figure 7 of the paper on Laplacian autoencoders. The "
        "diagonal "
        "(and, for comparison, the Kronecker factors) of the Gauss-Newton matrix of five 3x3 convolutions of three "
        "channels with tanh, for one image. One core, float32, CPU seconds, medians; each method in a process of its "
        "own. Figures of the paper's code (in italics) are those of another machine and day, as measured when the "
        "library was planned; compare ratios, not seconds. Our own seconds, too, depend on what else the machine does; "
        "a ratio is of a call and the plain passes just before it.",
        "![Time, ratio to a plain step and memory against the edge of the image](scaling.png)",
        "## Times a plain forward and backward pass in the same process",
        table(
            head,
            [
                *(line(row, lambda r: f"{r['ratio']:.3g}") for row in rows),
                *(
                    published(name, {s: v / PUBLISHED_PLAIN[s] for s, v in values.items()}, ".3g")
                    for name, values in PUBLISHED.items()
                ),
            ],
        ),
        "## Seconds",
        table(
            head,
            [
                steps,
                *(line(row, lambda r: f"{r['seconds']:.2g}") for row in rows),
                *(published(name, values, ".2g") for name, values in PUBLISHED.items()),
            ],
        ),
        "## Peak memory of a call (MB)",
        table(head, [base, *megabytes, *(published(n, v, ".4g") for n, v in PUBLISHED_MB.items())]),
        "## How it grows",
        table(["method", "exponent of the pixels, time", "memory"], exponents),
        "Between a quarter of the largest edge and the largest; 1 is linear in the number of pixels, 2 is what a "
        "matrix of "
        "pixels by pixels costs.",
        *verdict(rows),
    ]


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """What the numbers allow to say."""
    named = {row["method"]: row["rows"] for row in rows}
    exponent = slope(named["exact"], "seconds")
    if exponent is None:
        return []
    last = named["exact"][-1]
    linear = "grows about linearly too" if exponent < 1.25 else f"grows with the power {exponent:.2f} of the pixels"
    cheap = named["sketched"][-1]
    approximate = named["approximate"][-1]
    return [
        "**Verdict.** The paper: exact and Kronecker curvature scale poorly with the resolution, the approximate "
        "diagonal "
        f"linearly. The second half holds. The first does not have to: our exact diagonal {linear} (a column of "
        "the output "
        "Hessian only touches its receptive field in a stack of convolutions), at "
        f"{last['size']}x{last['size']} {last['seconds']:.2g} s. It is still {last['ratio']:.0f} plain passes; "
        "`sketched`, which is unbiased, "
        f"takes {cheap['ratio']:.1f} of them at {cheap['size']}x{cheap['size']}, and the biased `approximate` "
        f"{approximate['ratio']:.1f}. "
        "`mixed` equals `approximate` from 16x16 on: every layer is wider than its limit of 512 entries.",
    ]
