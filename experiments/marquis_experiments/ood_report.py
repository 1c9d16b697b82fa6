"""The page of `ood`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.ood_pictures import draw_curves, draw_histograms
from marquis_experiments.ood_reasons import reasons
from marquis_experiments.ood_tables import COLUMNS, HEADS, LABELS, ONLINE, PAPER, cell, trained, values
from marquis_experiments.pages import command, table, write_page

Row = dict[str, Any]

ENOUGH = 3
"""Trainings of a model from which on each is shown."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `ood.md` and its pictures; whatever rows have finished are shown."""
    settings, sizes = results["settings"], results["settings"]["sizes"]
    pieces = [
        "# Out of distribution: who notices that an image comes from elsewhere",
        f"Written by {command('ood', results['size'])} from its results (LAE Figures 9 and 10; how the scores are "
        f"defined: [tasks](../tasks.md)). {sizes['rows']:,} test images inside and as many outside, "
        f"{sizes['samples']} draws of each model, {sizes['train']:,} training images for typicality and the "
        "combined score. AUROC with the outside as the positive class, no sign flipped: below 0.5 the score is misled. "
        "*log p* is the mean squared error of the drawn networks, as in the paper; *typicality* its distance from the "
        "training images' mean; *output variance* is that of the reconstruction over draws of the network, for the two "
        "models whose decoder predicts a variance that one and the draws' together, as in the paper. *combined* joins "
        "error and variances without looking at the outside.",
    ]
    if len(results["rows"]) < results["wanted"]:
        pieces.append(f"**Stopped before its end**: {len(results['rows'])} of {results['wanted']} rows.")
    for training in settings["trainings"]:
        for outside in training["outside"]:
            pieces += _pair(folder, results["rows"], training, outside)
    for training in settings["trainings"]:
        if training["ablation"] is not None:
            pieces += reasons(results["rows"], training)
    pieces.append(
        "How blind this is: the learner's default settings come from [claims](claims.md), which looked at other "
        "scores and data; but network, number of images and of epochs of this page were chosen in a pilot on the "
        "Fashion pair with its AUROCs in sight, and so were Kronecker factors at temperature 0.1, by half a training "
        "of seed 0, and at the full size the further epochs and that the posterior is also read at temperature 1, "
        "where the AUROCs of one training at several temperatures had been seen; likewise that three trainings are "
        "judged together (that both of the default size are was decided by that, before it was tried there). "
        "That posteriors are also read through the network's tangent was decided after the AUROCs of "
        "the three long trainings at temperatures from 0 to 100 had been seen; 1 was kept because it is the Laplace "
        "posterior's, where 3 to 5 would have been better. The pairs with MNIST inside were not looked at before."
    )
    return write_page(folder / "ood.md", pieces)


def _pair(folder: Path, rows: list[Row], training: Row, outside: str) -> list[str]:
    recipe, part = training["recipe"], training["part"]
    mine = [r for r in rows if r["part"] == part and r["data"] == recipe["data"] and r["outside"] == outside]
    if not mine:
        return []
    shown = [key for key in LABELS if any(r["key"] == key for r in mine)]
    paper = PAPER if (recipe["data"], outside) == ("fashion-mnist", "mnist") else {}
    name = f"{recipe['data']}-{outside}" + ("" if part == "main" else f"-{part}")
    draw_curves(folder / f"ood-{name}.png", mine, {key: LABELS[key] for key in shown})
    draw_histograms(folder / f"ood-{name}-histograms.png", mine, {key: LABELS[key] for key in ONLINE if key in shown})
    seeds = len({r["seed"] for r in mine})
    all_of_them = all(len({r["seed"] for r in mine if r["key"] == key}) == seeds for key in shown)
    times = (
        "one training of every model"
        if seeds == 1
        else f"{seeds} trainings of every model"
        if all_of_them
        else (f"{seeds} trainings of the models with a ±, one of the others")
    )
    pieces = [
        f"## {recipe['data']} inside, {outside} outside" + ("" if part == "main" else f": {part}"),
        f"{trained(recipe)} {times[0].upper()}{times[1:]}{': mean ± standard error' if seeds > 1 else ''}."
        + (" In brackets the paper's (full width, all images, trained to the end)." if paper else ""),
        _auroc_table(mine, shown, paper),
        _verdict(mine, paper),
        *_each_training(mine, shown, paper),
        f"![ROC curves of the variances: {name}](ood-{name}.png)",
        f"![Histograms of the variances: {name}](ood-{name}-histograms.png)",
        "The curves are of the first training, and of variances over draws, for the VAE too.",
        "Precision-recall area and the false positive rate at 95 % of the outside found:",
        _other_table(mine, shown),
    ]
    failed = [f"{LABELS[r['key']]}, seed {r['seed']}: {r['failed']}" for r in mine if r["failed"]]
    if failed:
        pieces.append("Without a result: " + "; ".join(failed) + ".")
    return pieces


def _auroc_table(rows: list[Row], shown: list[str], paper: dict[str, tuple[float | None, ...]]) -> str:
    body = []
    for key in shown:
        theirs = paper.get(key, (None,) * 4)
        cells = [cell(values(rows, key, column), goal) for column, goal in zip(COLUMNS, theirs, strict=True)]
        errors = [r["error"] for r in rows if r["key"] == key and not r["failed"]]
        shown_error = f"{mean(errors):.2f}" if errors else "-"
        body.append([LABELS[key], *cells, cell(values(rows, key, "combined")), shown_error])
    return table(["", *HEADS, "combined", "error inside"], body)


def _each_training(rows: list[Row], shown: list[str], paper: dict[str, tuple[float | None, ...]]) -> list[str]:
    """Where there are enough trainings to choose one: all of them, and what the choice by the error inside gives."""
    goals = paper.get("online-sketched", (None,) * 4)
    body, said = [], []
    for key in shown:
        mine = sorted((r for r in rows if r["key"] == key and not r["failed"]), key=lambda r: r["error"])
        if len(mine) < ENOUGH:
            continue
        for row in sorted(mine, key=lambda r: r["seed"]):
            found = [values([row], key, column) for column in COLUMNS]
            body.append([LABELS[key], str(row["seed"]), *(cell(one) for one in found), f"{row['error']:.2f}"])
        best = [values(mine[:1], key, column) for column in COLUMNS]
        pairs = [(one[0], goal) for one, goal in zip(best, goals, strict=True) if one and goal is not None]
        if pairs and key in ONLINE:
            reached = sum(_reaches(value, goal) for value, goal in pairs)
            said.append(
                f"{LABELS[key]}: that is seed {mine[0]['seed']} (error {mine[0]['error']:.2f}, the next "
                f"{mine[1]['error']:.2f}), with {' '.join(f'{value:.3f}' for value, _ in pairs)}: {reached} of "
                f"{len(pairs)} of the paper's numbers."
            )
    if not body:
        return []
    choice = (
        "Who trains several times can keep the network with the smallest error on images from inside (those outside "
        "play no part in that). " + " ".join(said)
    )
    return ["Each training:", table(["", "seed", *HEADS, "error inside"], body), *([choice] if said else [])]


def _other_table(rows: list[Row], shown: list[str]) -> str:
    body = []
    for key in shown:
        pairs = [
            f"{cell(values(rows, key, column, 'aupr')).split(' ')[0]} / "
            f"{cell(values(rows, key, column, 'fpr95')).split(' ')[0]}"
            for column in (*COLUMNS, "combined")
        ]
        body.append([LABELS[key], *("-" if pair == "- / -" else pair for pair in pairs)])
    return table(["AUPR / FPR95", *HEADS, "combined"], body)


def _reaches(value: float, goal: float) -> bool:
    """To two digits, as the paper has them."""
    return round(value, 2) >= goal


def _verdict(rows: list[Row], paper: dict[str, tuple[float | None, ...]]) -> str:
    """Column by column: the best model, and for the paper's pair whether its figures for the online LAE are reached."""
    said, everywhere = [], set(ONLINE)
    for index, (column, head) in enumerate(zip(COLUMNS, HEADS, strict=True)):
        means = {key: mean(found) for key in LABELS if (found := values(rows, key, column))}
        if not means:
            continue
        best = max(means, key=lambda key: means[key])
        said.append(f"- **{head}**: best is {LABELS[best]} ({means[best]:.3f}).")
        goal = paper.get("online-sketched", (None,) * 4)[index]
        online = {key: means[key] for key in ONLINE if key in means}
        if goal is not None and online:
            top = max(online, key=lambda key: online[key])
            reached = [LABELS[key] for key, value in online.items() if _reaches(value, goal)]
            everywhere &= {key for key, value in online.items() if _reaches(value, goal)}
            said[-1] += f" The paper's online LAE has {goal:.2f}: " + (
                f"reached, to two digits, by {', '.join(reached)}."
                if reached
                else f"not reached; the best online row is {LABELS[top]} with {online[top]:.4f}."
            )
    if paper:
        who = ", ".join(LABELS[key] for key in ONLINE if key in everywhere)
        said.append(f"- **All four at once**: {who or 'none'}.")
    return "\n".join(said)
