"""Tables and pictures of the page of `ood`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error, standard_error_of_auroc
from marquis_experiments.common.page import Row, table, verdict, yes
from marquis_experiments.laplacian_autoencoder.describe import data_name, failures, label, training

SCORES = {
    "error": "squared error",
    "typicality": "typicality",
    "output_variance": "output variance",
    "total_variance": "total variance",
    "latent_variance": "latent variance",
    "nll": "NLL",
    "combined": "combined",
}
CLAIMED = ("error", "typicality", "output_variance", "latent_variance")
NOISY = ("ae-variance", "vae", "vae-kl-0.001", "online-variance")
"""Models whose decoder predicts a variance: what the paper calls their output variance is the total variance here."""
PAPER: dict[str, tuple[float | None, ...]] = {
    "ae": (0.98, 0.98, None, None),
    "ae-variance": (0.66, 0.70, 0.65, None),
    "vae": (0.54, 0.62, 0.46, 0.50),
    "dropout": (0.97, 0.97, 0.08, 0.31),
    "posthoc-sketched": (0.98, 0.98, 0.74, 0.96),
    "online-sketched": (0.98, 0.98, 0.91, 0.96),
}
"""LAE Figure 9c: AUROC with Fashion-MNIST in-distribution and MNIST out-of-distribution."""
CONTENDERS = ("online-sketched", "online-kronecker-temperature-0.1")
"""The first of these that was trained is held against the paper's online model."""
RIVALS = ("vae", "dropout", "posthoc-sketched")
COLOURS = {
    "vae": "#8a4fa3",
    "dropout": GREY,
    "posthoc-sketched": ORANGE,
    "online-sketched": BLUE,
    "online-kronecker-temperature-0.1": "#c2185b",
    "posthoc-kronecker-linearised": GREEN,
    "online-kronecker-temperature-0.1-linearised": "black",
    "ensemble": "#b8860b",
}
"""Curves of the first picture; at most the first five that there are."""
PANELS = {"output_variance": "output variance", "latent_variance": "latent variance"}


def numbers(rows: list[Row], key: str, score: str) -> list[float]:
    """Return the AUROC of every training of a model that has this score."""
    return [row["table"][score]["auroc"] for row in rows if row["key"] == key and score in row.get("table", ())]


def claimed(key: str, score: str) -> str:
    """Return the score that the paper means: for decoders that predict a variance, output variance includes it."""
    return "total_variance" if score == "output_variance" and key in NOISY else score


def reaches(value: float, goal: float) -> bool:
    """Return whether a number equals or exceeds the paper's, to the paper's two digits."""
    return round(value, 2) >= goal


def finished(results: dict[str, Any]) -> list[Row]:
    """Return the rows of single trainings; earlier results have ensembles of trainings, too (docs/.../notes.md)."""
    return [row for row in results["rows"] if "together" not in row["key"] and "both" not in row["key"]]


def pairs(results: dict[str, Any]) -> list[tuple[dict[str, Any], str, list[Row]]]:
    """Return every training with each of its out-of-distribution sets and their finished rows, without empty ones."""
    every = []
    for one in results["settings"]["trainings"]:
        for ood in one["outside"]:
            where = {"part": one["part"], "data": one["recipe"]["data"], "outside": ood}
            rows = [row for row in finished(results) if all(row[key] == value for key, value in where.items())]
            if rows:
                every.append((one, ood, [row for row in rows if not row["failed"]]))
    return every


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; the first pair is that of the paper, except at quick size."""
    (first, outside, rows), *others = pairs(results)
    sizes = results["settings"]["sizes"]
    contender = next(key for key in CONTENDERS if any(row["key"] == key for row in rows))
    ours = {score: mean(numbers(rows, contender, score)) for score in CLAIMED}
    goals = dict(zip(CLAIMED, (goal or 1.0 for goal in PAPER["online-sketched"]), strict=True))
    comparable = (first["recipe"]["data"], outside) == ("fashion-mnist", "mnist")
    reached = [comparable and reaches(ours[score], goals[score]) for score in CLAIMED]
    rivals = [key for key in RIVALS if any(row["key"] == key for row in rows)]
    ahead = {
        score: all(
            clearly_above(numbers(rows, contender, score), numbers(rows, key, claimed(key, score)), sizes["rows"])
            for key in rivals
        )
        for score in ("output_variance", "latent_variance")
    }
    every = finished(results)
    return {
        "training": training(first["recipe"]),
        "outside": data_name({"data": outside}),
        "sizes": sizes,
        "contender": label(contender),
        "ours": " ".join(f"{ours[score]:.3f}" for score in CLAIMED),
        "paper": " ".join(f"{goals[score]:.2f}" for score in CLAIMED),
        "reached": sum(reached),
        "rivals": bool(rivals),
        "against": {score: against(rows, contender, rivals, score) for score in ahead},
        "holds": {score: yes(better) for score, better in ahead.items()},
        "verdict": verdict(*reached, *(ahead.values() if rivals else ())),
        "table": auroc_table(rows, PAPER if comparable else {}, sizes["rows"]),
        "own_nll": next((own_nll(one, other, each) for one, other, each in others if one["part"] == "main"), ""),
        "name": pair_name(first, outside),
        "others": "\n\n".join(
            f"{training(one['recipe'])}; out-of-distribution: {data_name({'data': other})}.\n\n"
            f"{auroc_table(each, {}, sizes['rows'])}"
            for one, other, each in others
        ),
        "ablation": small_table(every, "ablation", lambda row: label(row["key"])),
        "networks": small_table(every, "network", lambda row: f"`{row['architecture']}`, width {row['width']:g}"),
        "unfinished": results["wanted"] - len(results["rows"]),
        "finished": len(results["rows"]),
        "failed": failures(every),
    }


def own_nll(one: Mapping[str, Any], ood: str, rows: list[Row]) -> str:
    """Return what the models' own normalised likelihoods detect of one pair of data sets."""
    by_model = {key: numbers(rows, key, "nll") for key in ("ae", "ae-variance", "vae", "online-sketched")}
    areas = (f"{label(key)} {mean(each):.3f}" for key, each in by_model.items() if each)
    return f"{data_name(one['recipe'])} against {data_name({'data': ood})}: {'; '.join(areas)}"


def against(rows: list[Row], contender: str, rivals: Sequence[str], score: str) -> str:
    """Return the AUROC by a variance, and those of the models that it is held against."""
    theirs = (f"{label(key)} {mean(numbers(rows, key, claimed(key, score))):.3f}" for key in rivals)
    return f"{mean(numbers(rows, contender, score)):.3f}; {', '.join(theirs)}"


def pair_name(one: Mapping[str, Any], ood: str) -> str:
    """Return the part of a picture's file name that stands for a training and its out-of-distribution set."""
    return f"{one['recipe']['data']}-{ood}" + ("" if one["part"] == "main" else f"-{one['part']}")


def error_of(areas: Sequence[float], count: int) -> float:
    """Return the larger of an AUROC's standard errors over trainings and over test images, `count` on each side."""
    return max(standard_error(areas), standard_error_of_auroc(mean(areas), count))


def clearly_above(ours: Sequence[float], other: Sequence[float], count: int) -> bool:
    """Return whether the first mean AUROC is larger by more than two standard errors of the difference."""
    return mean(ours) - mean(other) > 2 * (error_of(ours, count) ** 2 + error_of(other, count) ** 2) ** 0.5


def auroc_table(rows: list[Row], paper: Mapping[str, tuple[float | None, ...]], count: int) -> str:
    """Return AUROCs of all scores, mean ± `error_of`, the paper's in brackets, and the cost."""
    body = []
    for key in dict.fromkeys(row["key"] for row in rows):
        goals: dict[str, float | None] = dict(
            zip((claimed(key, score) for score in CLAIMED), paper.get(key, ()), strict=False)
        )
        cells = []
        for score in SCORES:
            areas, goal = numbers(rows, key, score), goals.get(score)
            text = f"{mean(areas):.3f} ± {error_of(areas, count):.3f}" if areas else "–"
            cells.append(text + ("" if goal is None else f" ({goal:.2f})"))
        mine = [row for row in rows if row["key"] == key]
        cost = mean(row["train_seconds"] for row in mine)
        body.append([label(key), len(mine), *cells, f"{mean(row['error'] for row in mine):.1f}", f"{cost:.0f}"])
    return table(["model", "trainings", *SCORES.values(), "error in-distribution", "CPU s"], body)


def small_table(rows: list[Row], part: str, named: Any) -> str:
    """Return the AUROCs of one part, one training each; empty if there is none."""
    chosen = [row for row in rows if row["part"] == part and not row["failed"]]
    body = []
    for row in chosen:
        cells = [f"{row['table'][score]['auroc']:.3f}" if score in row["table"] else "–" for score in CLAIMED]
        body.append([named(row), *cells, f"{row['error']:.1f}"])
    return table(["", *(SCORES[score] for score in CLAIMED), "error in-distribution"], body) if body else ""


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw ROC curves and histograms of the variances of the first pair, first training."""
    one, ood, rows = pairs(results)[0]
    shown = {row["key"]: row for row in rows if row["seed"] == 0 and row["key"] in COLOURS and row["roc"]}
    chosen = [shown[key] for key in COLOURS if key in shown][:5]
    draw_curves(folder / f"ood-{pair_name(one, ood)}.png", chosen)
    draw_histograms(folder / f"ood-{pair_name(one, ood)}-histograms.png", chosen)


def draw_curves(path: Path, rows: list[Row]) -> None:
    """Draw a panel for each variance, a curve for each model."""
    figure = Figure(2, 2, 4.4, 4.4)
    for axis, (score, title) in zip(figure.axes, PANELS.items(), strict=True):
        for row in rows:
            text = f"{label(row['key'])}: {numbers([row], row['key'], score)[0]:.2f}"
            axis.plot(*row["roc"][score], color=COLOURS[row["key"]], lw=1.6, label=text)
        axis.plot([0, 1], [0, 1], color="#bbbbbb", lw=0.8)
        axis.set(title=title, xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1))
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False)
    figure.save(path)


def draw_histograms(path: Path, rows: list[Row]) -> None:
    """Draw a row of panels for each variance, a column for each model."""
    figure = Figure(2 * max(1, len(rows)), max(1, len(rows)), 2.5, 2.2)
    for column, row in enumerate(rows):
        for axis, (score, title) in zip(figure.axes[column :: len(rows)], PANELS.items(), strict=True):
            counts = row["histograms"][score]
            for part, colour, text in (("inside", BLUE, "in-distribution"), ("outside", ORANGE, "OOD")):
                axis.stairs(counts[part], counts["edges"], fill=True, color=colour, alpha=0.5, label=text)
            axis.set_xlabel(f"log10 of the {title}", fontsize=8)
            axis.set_title(fill(label(row["key"]), 30), fontsize=8)
    if rows:
        figure.axes[0].legend(fontsize=7)
    figure.save(path)
