"""Tables and the picture of the page of `scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.page import Row, table, verdict, yes

COLOURS = {"exact": ORANGE, "sketched": BLUE, "approximate": GREEN, "kronecker": "#e0a32e"}
"""Methods of the picture; `mixed` coincides with `approximate` here."""
TABLE_1 = {
    "block": ("block diagonal", "$R_m^2+W_s^2$", "$R_s^2+W_s^2$", 2),
    "kronecker": ("KFAC", "$R_s^2+W_s$", "$R_s^2+W_s$", 2),
    "exact": ("exact diagonal", "$R_m^2+W_s$", "$R_s^2+W_s$", 2),
    "approximate": ("approximate diagonal", "$R_m+W_s$", "$R_s+W_s$", 1),
    "mixed": ("mixed diagonal", "$R_m+W_s$", "$R_s+W_s$", 1),
    "sketched": ("– (ours: sketched diagonal)", "–", "–", 1),
}
"""Our method to the paper's Table 1: its name there, memory, time, and the exponent of the pixels that follows."""
LINEAR = 1.25
"""Cost grows about linearly if the exponent of the number of pixels is below this."""


def slope(rows: list[Row], key: str) -> float:
    """Compute the exponent of the number of pixels above a quarter of the largest edge; NaN for one resolution."""
    good = [row for row in rows if row[key]]
    large = [row for row in good if row["size"] >= good[-1]["size"] / 4]
    if len(large) < 2:
        return math.nan
    first, last = large[0], large[-1]
    return math.log(last[key] / first[key]) / (2 * math.log(last["size"] / first["size"]))


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; the claim is that approximate cost is linear and exact and Kronecker are not."""
    rows = {row["method"]: row["rows"] for row in results["rows"]}
    longest = max(rows.values(), key=len)
    sizes = [row["size"] for row in longest]
    exponents = {
        method: {"seconds": slope(measured, "seconds"), "mb": slope(measured, "mb")}
        for method, measured in rows.items()
    }
    linear = exponents["approximate"]["seconds"] < LINEAR
    poor = [exponents[method]["seconds"] >= LINEAR for method in ("exact", "kronecker")]
    main = [
        [method, *cells(measured, sizes, "ratio"), *(shown(exponents[method][key], ".2f") for key in ("seconds", "mb"))]
        for method, measured in rows.items()
    ]
    return {
        "exponents": {method: shown(one["seconds"], ".2f") for method, one in exponents.items()},
        "last": {method: measured[-1] for method, measured in rows.items()},
        "verdict": verdict(linear, *poor),
        "holds": {"linear": yes(linear), "exact": yes(poor[0]), "kronecker": yes(poor[1])},
        "table": table(["edge of the image", *map(str, sizes), "exponent, time", "memory"], main),
        "complexities": table(
            ["approximation", "paper: memory", "paper: time", "exponent of the pixels", "ours: time", "ours: memory"],
            [
                [*line, *(shown(exponents[method][key], ".2f") for key in ("seconds", "mb"))]
                for method, line in TABLE_1.items()
                if method in exponents
            ],
        ),
        "seconds": with_plain(rows, longest, sizes, "seconds"),
        "megabytes": with_plain(rows, longest, sizes, "mb"),
    }


def shown(value: float | None, form: str = ".3g") -> str:
    """Return a number, or a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:{form}}"


def cells(rows: list[Row], sizes: list[int], key: str) -> list[str]:
    """Return a method's numbers for all resolutions."""
    of_size = {row["size"]: row[key] for row in rows}
    return [shown(of_size.get(size)) for size in sizes]


def with_plain(rows: Mapping[str, list[Row]], longest: list[Row], sizes: list[int], key: str) -> str:
    """Return a table of all methods below the plain pass."""
    lines = [["plain forward + backward", *cells(longest, sizes, f"plain_{key}")]]
    lines += [[method, *cells(measured, sizes, key)] for method, measured in rows.items()]
    return table(["edge of the image", *map(str, sizes)], lines)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw seconds, ratio and megabytes against the edge of the image, all axes logarithmic."""
    rows = [row for row in results["rows"] if row["method"] in COLOURS]
    figure = Figure(3, 3, 3.9, 3.6)
    longest = max((row["rows"] for row in rows), key=len)
    edges = [row["size"] for row in longest]
    keys = {"seconds": "CPU seconds", "ratio": "times a plain step", "mb": "peak memory (MB)"}
    for axis, (key, title) in zip(figure.axes, keys.items(), strict=True):
        for row in rows:
            good = [one for one in row["rows"] if one[key] is not None]
            x, y = [one["size"] for one in good], [one[key] for one in good]
            axis.plot(x, y, "o-", ms=3.5, color=COLOURS[row["method"]], label=row["method"])
        if key != "ratio":
            plain = [one[f"plain_{key}"] or math.nan for one in longest]
            axis.plot(edges, plain, "--", color=GREY, label="plain step")
        axis.set(xscale="log", yscale="log", title=title, xlabel="edge of the image")
        axis.set_xticks(edges, [str(edge) if edge & (edge - 1) == 0 else "" for edge in edges])
        axis.minorticks_off()
    handles = figure.axes[0].get_legend_handles_labels()
    figure.figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=8)
    figure.save(folder / "scaling.png")
