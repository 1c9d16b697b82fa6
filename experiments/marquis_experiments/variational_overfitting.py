"""The section of the page of `vl` in which the CNN overfits: is that why the paper's order holds in the paper?"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.variational_tables import (
    COLOURS,
    MARKERS,
    VARIANTS,
    Comparison,
    Row,
    chosen_tempering,
    comparisons,
    draw_scores,
    of_variant,
    order_table,
    picture,
    score_cells,
    scores,
    spread,
    table,
)


def overfitting_section(rows: list[Row], settings: dict[str, Any]) -> str:
    """Tables, picture and verdict of the part `overfitting`."""
    seeds = len({row["seed"] for row in rows})
    best = []
    for variant in VARIANTS:
        chosen = chosen_tempering(rows, variant)
        shown = "-" if chosen is None else f"{chosen:g}"
        best.append([variant, shown, *score_cells(of_variant(rows, variant, chosen), variant, rows)])
    compared = comparisons(rows)
    order = [order_table(compared)] if compared else []
    return "\n\n".join(
        [
            "## Where the network overfits",
            f"The same CNN with the first {settings['train']:,} training images and {settings['epochs']} epochs, "
            f"batches of {settings['batch']}, learning rate {settings['lr']:g}, {seeds} seed(s); validation and test "
            f"images as above. {_evidence(rows)}",
            "![Test NLL and ECE against the tempering, and validation NLL against the epoch](vl-overfitting.png)",
            "At the β that validation chose:",
            table(["method", "β", "test NLL", "accuracy %", "ECE"], best),
            *order,
            f"**Was it the missing overfitting?** The answer: {verdict(rows)}{_by_test_scores(rows)}",
            "With the same β for all, the other's score minus VL's, and in brackets the range over seeds; in bold "
            "where VL is better by more than that:",
            _at_equal_tempering(rows),
            "All of it, with the NLL on the training images (of the mean network):",
            _all_of_it(rows),
        ]
    )


def verdict(rows: list[Row]) -> str:
    """Whether the paper's order comes out where the network overfits, in words."""
    compared = comparisons(rows)
    if not compared:
        return "VL, or everything beside it, has no finished run there: no answer."
    wins = sum(c.won for c in compared)
    if wins == len(compared):
        answer = "yes. Where the network overfits, the whole of the paper's order comes out."
    elif wins == 0:
        answer = "no. Where the network overfits, the paper's order does not come out either."
    else:
        answer = "only in part."
    return f"{answer} With each method at its own β, {_sorted_out(compared)}."


def _by_test_scores(rows: list[Row]) -> str:
    """What the paper's way of choosing β, by test scores, would change."""
    changed = []
    for variant in VARIANTS:
        means = {row["tempering"]: of_variant(rows, variant, row["tempering"]) for row in of_variant(rows, variant)}
        nll = {tempering: mean(scores(found, variant, "nll")) for tempering, found in means.items()}
        if nll and (best := min(nll, key=lambda t: nll[t])) != chosen_tempering(rows, variant):
            ece = mean(scores(means[best], variant, "ece"))
            changed.append(f"{variant} would have β = {best:g}, NLL {nll[best]:.3f} and ECE {ece:.3f}")
    return f" Chosen by test NLL, as in the paper, {'; '.join(changed)}." if changed else ""


def _sorted_out(compared: list[Comparison]) -> str:
    """The comparisons as a list of wins, draws and losses."""
    undecided = [c for c in compared if not c.won and not c.clearly_lost]
    groups = [
        ("VL is better by more than the seeds differ", [c for c in compared if c.won]),
        ("worse by more than that", [c for c in compared if c.clearly_lost]),
        ("neither", undecided),
    ]
    return "; ".join(f"{name}: {_named(members)}" for name, members in groups if members)


def _named(members: list[Comparison]) -> str:
    parts = []
    for score in ("NLL", "ECE"):
        others = [c.other for c in members if c.score == score]
        if others:
            parts.append(f"{score} against {', '.join(others)}")
    return " and ".join(parts)


def _at_equal_tempering(rows: list[Row]) -> str:
    others = [variant for variant in VARIANTS if variant != "VL"]
    lines = []
    for tempering in sorted({row["tempering"] for row in rows}):
        for score in ("NLL", "ECE"):
            shown = dict.fromkeys(others, "-")
            for c in comparisons(rows, tempering):
                if c.score == score:
                    mark = "**" if c.won else ""
                    shown[c.other] = f"{mark}{c.gap:+.3f}{mark} ({c.spread:.3f})"
            lines.append([f"{tempering:g}", score, *shown.values()])
    return table(["β", "score", *others], lines)


def _evidence(rows: list[Row]) -> str:
    """That MAP with the weakest prior does overfit: its validation NLL falls and rises again."""
    weakest = min(row["tempering"] for row in rows)
    curves = [row["watched"] for row in of_variant(rows, "MAP", weakest)]
    if not curves:
        return "MAP has no finished run here, so it cannot be shown that the network overfits."
    average = [(points[0][0], mean(nll for _, nll in points)) for points in zip(*curves, strict=True)]
    epoch, least = min(average, key=lambda point: point[1])
    last = average[-1][1]
    fitted = mean(row["training"]["nll"] for row in of_variant(rows, "MAP", weakest))
    said = "so it does overfit" if last > least + 0.1 else "so it hardly overfits, and this part decides nothing"
    return (
        f"MAP's validation NLL at β = {weakest:g} is least after epoch {epoch}, {least:.2f}, and {last:.2f} in the "
        f"end, with {fitted:.3f} on the training images: {said}."
    )


def _all_of_it(rows: list[Row]) -> str:
    lines = []
    for tempering in sorted({row["tempering"] for row in rows}):
        among = [row for row in rows if row["tempering"] == tempering]
        for variant in VARIANTS:
            usable = of_variant(among, variant)
            fitted = spread([row["training"]["nll"] for row in usable], ".3f") if usable else "-"
            lines.append([f"{tempering:g}", variant, *score_cells(usable, variant, among), fitted])
    return table(["β", "method", "test NLL", "accuracy %", "ECE", "training NLL"], lines)


def draw_overfitting(rows: list[Row], path: Path) -> None:
    """Scores against the tempering, and how validation NLL went during training with the weakest prior."""
    weakest = min(row["tempering"] for row in rows)

    def draw(axes: Any) -> None:
        draw_scores(axes[:2], rows)
        for variant, (_, kind) in VARIANTS.items():
            if kind != "mean":
                continue
            for row in of_variant(rows, variant, weakest):
                axes[2].plot(*zip(*row["watched"], strict=True), color=COLOURS[variant], alpha=0.25, lw=1)
            curves = [row["watched"] for row in of_variant(rows, variant, weakest)]
            if curves:
                epochs = [epoch for epoch, _ in curves[0]]
                average = [mean(nll for _, nll in points) for points in zip(*curves, strict=True)]
                axes[2].plot(epochs, average, color=COLOURS[variant], marker=MARKERS[variant], ms=4)
        axes[2].set(xlabel="epoch", ylabel=f"validation NLL, β = {weakest:g}")
        axes[2].grid(alpha=0.3)

    picture(path, 3, draw)
