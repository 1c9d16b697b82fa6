"""From the numbers to a page: Markdown tables here, pictures in `pictures`."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from benchmarks.bars import BARS, QUOTED, QUOTED_FIGURE7, Bar

NAMES = {
    "ours:sketched": "Marquis, diagonal, sketched",
    "ours:approximate": "Marquis, diagonal, approximate",
    "ours:exact": "Marquis, diagonal, exact",
    "ours:kronecker": "Marquis, Kronecker, sketched",
    "backpack:exact": "BackPACK diagonal, exact",
    "backpack:mc": "BackPACK diagonal, sampled labels",
    "backpack:kfac": "BackPACK KFAC, sampled labels",
    "curvlinops:kfac": "curvlinops KFAC, sampled labels",
    "laplace:diagonal": "laplace-torch diagonal, default",
}
WORKLOADS = {
    "W1": "dense autoencoder 784-512-256-2-256-512-784, tanh, batch 64",
    "W2": "convolutional autoencoder, 1x28x28, bottleneck of 2, nearest upsampling, batch 16",
    "W4": "LeNet with 16 and 32 channels, ReLU, 10 classes, batch 128",
}
QUANTITIES = {"ratio": "time", "peak_ratio": "peak memory", "peak_mb": "peak memory", "seconds": "time"}
UNITS = {"ratio": " x", "peak_ratio": " x", "peak_mb": " MB", "seconds": " s"}


def one_line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    name = f"{row['workload']:5s} {NAMES.get(row['method'], row['method']):34s}"
    if row["status"] != "measured":
        return f"{name} left out: {row['reason']}"
    text = f"{name} {number(row['cpu']['seconds'])} s, {number(row['cpu']['ratio'])} x"
    if "peak_mb" in row:
        text += f", {number(row['peak_mb'])} MB (plain step {number(row['plain_peak_mb'])} MB)"
    return text


def number(value: float | None) -> str:
    """Three digits that matter, never an exponent."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.5f}"


def rounded(thing: Any) -> Any:
    """The same with floats cut to six digits, so that the file is readable."""
    if isinstance(thing, dict):
        return {k: rounded(v) for k, v in thing.items()}
    if isinstance(thing, list):
        return [rounded(v) for v in thing]
    return float(f"{thing:.6g}") if isinstance(thing, float) else thing


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table: words stand left, numbers right."""
    textual = {"method", "workload", "workload, method", "quantity", "met", "remark", "peers, when the bar was set"}
    rule = " | ".join("---" if head in textual else "---:" for head in heads)
    lines = ["| " + " | ".join(heads) + " |", f"| {rule} |"]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines)


def bars_table(rows: list[dict[str, Any]]) -> str:
    """What we promised, what was measured, and whether it holds."""
    return table(
        ["workload, method", "quantity", "bar", "measured", "met", "peers, when the bar was set"],
        [[*_bar_cells(bar, rows), bar.peers or "–"] for bar in BARS],
    )


def _bar_cells(bar: Bar, rows: list[dict[str, Any]]) -> list[str]:
    value, unit = bar.value(rows), UNITS[bar.quantity]
    met = "not measured" if value is None else ("yes" if value <= bar.limit else "**no**")
    measured = "–" if value is None else f"{number(value)}{unit}"
    name = NAMES[bar.method].removeprefix("Marquis, ")
    return [f"{bar.workload}, {name}", QUANTITIES[bar.quantity], f"{bar.limit:g}{unit}", measured, met]


def workload_table(workload: str, rows: list[dict[str, Any]]) -> str:
    """All methods on one workload (and on its smaller batches), ours first."""
    cells, plain = [], None
    for row in rows:
        if row["workload"].split("/")[0] != workload:
            continue
        small = f" (batch {row['workload'].split('/')[1]})" if "/" in row["workload"] else ""
        name = NAMES[row["method"]] + small
        if row["status"] != "measured":
            cells.append([name, "–", "–", "–", "–", "–", escape(row["reason"])])
            continue
        plain = plain or (None if small else row)
        low, high = row["cpu"]["ratio_quartiles"]
        cells.append(
            [
                name,
                number(row["cpu"]["seconds"]),
                f"{number(row['cpu']['ratio'])} x",
                f"{number(low)}–{number(high)}",
                f"{number(row['wall']['ratio'])} x",
                number(row.get("peak_mb")),
                f"{row['repeats']} turns",
            ]
        )
    heads = ["method", "CPU seconds", "to plain step", "quartiles", "by the wall clock", "peak MB", "remark"]
    if plain:
        first = ["*one plain forward and backward*", number(plain["cpu"]["plain_seconds"]), "1 x", "–", "1 x"]
        cells.insert(0, [*first, number(plain.get("plain_peak_mb")), ""])
    return table(heads, cells)


def figure7_rows(rows: list[dict[str, Any]]) -> dict[str, dict[int, tuple[float, float | None]]]:
    """Method -> size -> (CPU seconds, peak MB), the plain step included."""
    lines: dict[str, dict[int, tuple[float, float | None]]] = {"plain forward and backward": {}}
    for row in rows:
        if row["workload"][0] != "F" or row["status"] != "measured":
            continue
        size = int(row["workload"][1:])
        lines.setdefault(NAMES[row["method"]], {})[size] = (row["cpu"]["seconds"], row.get("peak_mb"))
        if row["method"] == "ours:sketched":
            lines["plain forward and backward"][size] = (row["cpu"]["plain_seconds"], row.get("plain_peak_mb"))
    return {name: line for name, line in lines.items() if line}


def figure7_table(rows: list[dict[str, Any]]) -> str:
    """Seconds and, in brackets, megabytes for every size."""
    lines = figure7_rows(rows)
    sizes = sorted({size for line in lines.values() for size in line})

    def cell(entry: tuple[float, float | None] | None) -> str:
        return "–" if entry is None else f"{number(entry[0])} [{number(entry[1])}]"

    body = [[name, *(cell(line.get(size)) for size in sizes)] for name, line in lines.items()]
    return table(["seconds [MB]", *(f"{size}x{size}" for size in sizes)], body)


def quoted_table() -> str:
    """The peers' numbers that this run did not take."""
    body = [[m, w, number(s), f"{number(r)} x" if r else "–", number(mb), remark] for m, w, s, r, mb, remark in QUOTED]
    body += [[m, f"Figure 7, {size}x{size}", number(s), "–", number(mb), ""] for m, size, s, mb in QUOTED_FIGURE7]
    return table(["method", "workload", "seconds", "to plain step", "peak MB", "remark"], body)


def against_table(rows: list[dict[str, Any]]) -> str:
    """Return the engine of another commit against this one, row by row."""
    cells = []
    for row in rows:
        ratio, low, high = row["ratio"]
        name, (old, new) = NAMES[row["method"]], row["ms"]
        interval = f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
        cells.append([row["workload"], name, row["run"], number(old), number(new), interval, str(row["pairs"])])
    return table(["workload", "method", "run", "ms before", "ms now", "ratio", "pairs"], cells)


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    rows, machine = results["rows"], results["machine"]
    verdicts = [bar.value(rows) for bar in BARS]
    met = sum(v is not None and v <= bar.limit for bar, v in zip(BARS, verdicts, strict=True))
    missing = sum(v is None for v in verdicts)
    parts = [
        "# Benchmarks",
        "<!-- Written by `python -m benchmarks.run`; a change by hand is lost at the next run. -->",
        "What one curvature call costs, in units of one plain forward and backward pass of the same network and batch, "
        "taken in the same process. `make bench` repeats it all.",
    ]
    if results["provisional"]:
        busy = "an unknown share" if results["busy_before"] is None else f"{100 * results['busy_before']:.0f} %"
        parts.append(f'!!! warning "Provisional"\n    Others used {busy} of the machine when this run began.')
    unmeasured = f", {missing} could not be measured" if missing else ""
    parts += [
        "![Time of a curvature call on three workloads](ratios.png)",
        f"## Bars\n\n{met} of {len(BARS)} bars are met{unmeasured}. Times are CPU times of the thread.",
        bars_table(rows),
        "What limits the exact diagonal is arithmetic: by counted operations about 22 plain passes on W1, 21 on W2 "
        "(155 GFLOP with locality, 666 without) and 3.3 on W4, at the rate of the plain pass. Vector instructions "
        "speed the plain pass up more than the many small products of an exact one, so ratios are higher on a CPU "
        "with AVX-512 than on one with AVX2, where W2 took 24.7 and W4 5.4.",
        "## Workloads",
    ]
    for name, description in WORKLOADS.items():
        parts += [f"### {name}: {description}", workload_table(name, rows)]
    parts += [
        "## Resolution (W3, Figure 7 of the paper)",
        "Five 3x3 convolutions with tanh that keep three channels and the resolution, batch 1. A column of the exact "
        "factor touches only its receptive field, so the exact diagonal too grows linearly with the pixels.",
        "![Time and memory against resolution](figure7.png)",
        figure7_table(rows),
        "## Peers, measured before",
        "By hand, on one core of a similar machine with the same version of torch, before this benchmark existed; not "
        "repeated here because they are too slow, too large, or need changes. W4' is a smaller W4 (6 and 16 channels, "
        "tanh).",
        quoted_table(),
    ]
    if against := results.get("against"):
        parts += [
            "## Details: the engine before it was rearranged",
            "Commit 653de34 against the commits named under *run*, by `python -m benchmarks.against OLD_SRC`: median "
            "ratio of CPU times of interleaved pairs of processes, with its 95 % interval; below 1 the present engine "
            "is faster. Rows whose interval lay above 1 were taken twice more in new processes. The interval holds for "
            "one pair of processes: a process of either engine may be slower by half for its whole life (F96 exact "
            "takes about 600 or about 920 ms, the old engine as well as the new), so a row counts as slower only if "
            "all its runs say so. None does. Other work shared the machine.",
            against_table(against),
        ]
    parts += ["## How it is measured", _how(results, machine)]
    return "\n\n".join(parts) + "\n"


def _how(results: dict[str, Any], machine: dict[str, Any]) -> str:
    left = sorted(
        {f"{r['workload']} {NAMES[r['method']]}: {escape(r['reason'])}" for r in results["rows"] if "reason" in r}
    )
    peers = ", ".join(machine["peers"]) if results["peers_word"] == "ready" else f"skipped ({results['peers_word']})"
    lines = [
        f"- Machine: {machine['cpu']}, {machine['cores']} cores of which one is used (pinned, one thread), "
        f"{machine['memory_gb']} GB, {machine['instructions']}, {machine['system']}.",
        f"- Software: Python {machine['python']}, torch {machine['torch']}, float32, marquis {machine['marquis']} "
        f"(commit {machine['commit']}). Peers: {peers}.",
        f"- Taken {results['taken']}" + (f", {results['minutes']} minutes." if "minutes" in results else "."),
        "- Each row is two processes of its own, one for memory and one for time. Plain step and curvature call take "
        "turns; the ratio is the median over the turns. The bars are judged by CPU time of the thread, the wall clock "
        "stands next to it.",
        "- The whole call counts, its own forward pass included. A first call, not timed, captures the network (0.1-2 "
        "s, remembered as long as the network does not change).",
        "- Peak memory is the high-water mark of the resident set above its value just before the call, plus tensors "
        "that the first call left behind, with every tensor on pages of its own (what is needed, not what the "
        "allocator holds back). Imports, the network and its batch do not count; the result does. Resolution about "
        "0.3 MB.",
        "- BackPACK computes the gradient along with the curvature; curvlinops computes only the Kronecker factors, "
        "with its checks switched off; laplace-torch only the diagonal of one batch.",
    ]
    if left:
        lines.append("- Left out: " + "; ".join(left) + ".")
    return "\n".join(lines)


def write(results: dict[str, Any], folder: Path) -> None:
    """index.md and the pictures, into the folder."""
    from benchmarks import pictures

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.md").write_text(page(results))
    pictures.ratios(results["rows"], folder / "ratios.png")
    pictures.figure7(figure7_rows(results["rows"]), folder / "figure7.png")
