"""The page of the study `lae-default`, also for a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error, standard_error_of_auroc
from marquis_experiments.common.page import Mean, verdict, with_error
from marquis_experiments.common.study import Settings
from marquis_experiments.laplacian_autoencoder.default.beliefs import beliefs
from marquis_experiments.laplacian_autoencoder.default.candidates import PRESENT, candidates_of
from marquis_experiments.laplacian_autoencoder.default.choice import (
    COMBINED,
    CRITERIA,
    SCORES,
    auroc_values,
    best_score,
    choices,
    criteria_values,
    fixed_scores,
    mean_ranks,
    outlier_areas,
    regrets,
    with_all_seeds,
)
from marquis_experiments.laplacian_autoencoder.default.stages import ranked

TITLES = {
    "density": "log-density of validation images",
    "auroc": "AUROC of withheld clusters",
    "coverage": "coverage of withheld clusters",
    "evidence": "evidence",
    "adapted": "adapted evidence",
    "combined": "combined (mean rank of the first three)",
}
DIGITS = {"density": 1, "auroc": 3, "coverage": 3, "evidence": 1, "adapted": 1}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of the page: choices, stages, finalists, failures, and the regret where the sets are open."""
    run, seeds_done = len(results["rows"]), len({row["seed"] for row in results["rows"]})
    results = comparable(results)
    every, made = criteria_values(results), choices(results)
    opened, to_open = len(results.get("opened", [])), results.get("to_open", 0)
    complete = bool(opened) and opened == to_open
    chosen = {criterion: choice["candidate"] for criterion, choice in made.items()}
    regret = regrets(results, {**chosen, "present": PRESENT.name}) if complete else {}
    excess = [c - p for c, p in zip(regret.get("combined", []), regret.get("present", []), strict=True)]
    keeps = complete and mean(excess) > 2 * standard_error(excess)
    settings = results["settings"]
    titles = {**TITLES, "present": "the present default"} | (
        {"best": "the best candidate afterwards"} if complete else {}
    )
    if complete:
        areas = outlier_areas(results)
        chosen["best"] = max(areas, key=lambda name: mean(areas[name].values()))
    chosen["present"] = PRESENT.name
    return {
        "run": run,
        "seeds_done": seeds_done,
        "seeds": settings["seeds"],
        "sets": ", ".join(settings["data"]),
        "complete": complete,
        "opening": f"{opened} of {to_open}" if to_open else "none",
        "choices": [
            {
                "title": title,
                "candidate": chosen.get(criterion, "not run"),
                "ties": made[criterion]["ties"] if criterion in made else "–",
                "value": shown(every, criterion, chosen[criterion]) if criterion in made else "–",
                "present": shown(every, criterion, PRESENT.name) if criterion in made else "–",
                "regret": with_error(regret[criterion]) if criterion in regret else "closed",
                "cost": price(results, chosen[criterion]) if criterion in chosen else "–",
            }
            for criterion, title in titles.items()
        ],
        "excess": with_error(excess) if excess else "closed",
        "stages": staged(results),
        "tables": [table(results, every, data) for data in settings["data"]],
        "opened_tables": [opened_table(results, "opened", data, chosen) for data in settings["data"]]
        if complete
        else [],
        "confirmed": [opened_table(results, "confirmation", settings["confirmation"]["data"], chosen)]
        if results.get("confirmation")
        else [],
        "failures": [
            f"{row['data']}, {row['split']}, {row['training']}, seed {row['seed']}: {row['failed']}"
            for row in (*results["rows"], *results.get("opened", []))
            if "failed" in row
        ],
        "keeps": keeps,
        "analysed": keeps and settings["data"][0] == "mnist",  # a sentence about these results alone
        "changes": complete and not keeps,
        "beliefs": beliefs(results) if keeps and settings["data"][0] == "mnist" else [],
        "combined": made["combined"]["candidate"] if "combined" in made else "",
        "qualities": score_rows(results) if complete else [],
        "fixed": ", ".join(f"{score} ({data})" for data, score in fixed_scores(results).items()) or "none yet",
        "verdict": verdict(complete and not keeps),
    }


def comparable(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results without the other seeds as long as not all finalists have them."""
    done = "finalists" in results
    return results if done else {**results, "rows": [row for row in results["rows"] if row["seed"] == 0]}


def seconds_of(results: dict[str, Any], data: str | None = None) -> dict[str, list[float]]:
    """Return the training seconds of every candidate, with the first seed, which all have."""
    seconds: dict[str, list[float]] = {}
    for row in results["rows"]:
        if row["seed"] == 0 and data in (None, row["data"]):
            for name in row.get("scores", {}):
                seconds.setdefault(name, []).append(row["seconds"])
    return seconds


def price(results: dict[str, Any], name: str) -> str:
    """Return the training time as a multiple of the plain autoencoder's, and the time to evaluate 1,000 images."""
    seconds = seconds_of(results)
    plain = next((s for other, s in seconds.items() if other.startswith("post-hoc") and other.endswith("one")), None)
    if plain is None or name not in seconds:
        return "–"
    per_1000 = [r["scores"][name]["seconds_per_1000"] for r in results["rows"] if name in r.get("scores", {})]
    return f"{mean(seconds[name]) / mean(plain):.1f}, {mean(per_1000):.1f} s"


def staged(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trainings with their best candidate by combined rank with the first seed, the best first."""
    settings = Settings(results["settings"])
    rows = [row for row in results["rows"] if row["seed"] == 0]
    every = criteria_values({"rows": rows})
    ranks = [mean_ranks(every[criterion]) for criterion in COMBINED]
    seeds = {training.name: 0 for training in ranked(settings, rows)}
    for row in results["rows"]:
        if row["training"] in seeds and row["data"] == settings.data[0]:
            seeds[row["training"]] += 1
    lines = []
    for training in ranked(settings, rows):
        names = [c.name for c in candidates_of(training, settings.noises) if all(c.name in rank for rank in ranks)]
        total = {name: mean(rank[name] for rank in ranks) for name in names}
        best = min(total, key=total.__getitem__, default="failed")
        rank = f"{total[best]:.1f}" if total else "–"
        lines.append({"training": training.name, "best": best, "rank": rank, "seeds": seeds[training.name]})
    return lines


def shown(every: dict[str, Any], criterion: str, name: str) -> str:
    """Return a candidate's mean of a criterion on every data set."""
    if criterion == "combined":
        ranks = [mean_ranks(every[c]).get(name) for c in COMBINED]
        return f"rank {mean(r for r in ranks if r is not None):.1f}" if all(ranks) else "–"
    sign = -1 if criterion == "coverage" else 1
    seen = [candidates.get(name) for candidates in every[criterion].values()]
    parts = [format(sign * mean(v.values()), f".{DIGITS[criterion]}f") if v else "–" for v in seen]
    return ", ".join(parts) or "–"


def table(results: dict[str, Any], every: dict[str, Any], data: str) -> dict[str, Any]:
    """Return the candidates of one data set that have as many seeds as any, by combined rank."""
    errors: dict[str, list[float]] = {}
    for row in results["rows"]:
        for name, scores in row.get("scores", {}).items():
            if row["data"] == data:
                errors.setdefault(name, []).append(scores["error"])
    complete = {criterion: with_all_seeds(every[criterion]).get(data, {}) for criterion in CRITERIA}
    ranks = [mean_ranks({data: complete[criterion]}) for criterion in COMBINED]
    by_rank = auroc_values(results, "mean_rank").get(data, {})
    rows = []
    for name in ranks[0]:
        cells = {criterion: Mean(complete[criterion].get(name, {}).values()) for criterion in CRITERIA}
        cells["coverage"] = Mean(-value for value in cells["coverage"])
        rows.append(
            {
                "name": name,
                "order": mean(rank[name] for rank in ranks),
                "error": format(Mean(errors[name]), ".2f"),
                "cost": price(results, name),
                "together": format(Mean(by_rank[name].values()), ".3f"),
                **{c: format(cells[c], f".{DIGITS[c]}f") if cells[c] else "–" for c in CRITERIA},
            }
        )
    seeds = len(complete["density"][rows[0]["name"]]) if rows else 0
    return {"data": data, "seeds": seeds, "rows": sorted(rows, key=lambda row: row["order"])}


def score_rows(results: dict[str, Any]) -> list[dict[str, str]]:
    """Return the mean AUROC of finalists' candidates on the closed sets by every score, the best mean rank first."""
    seen: dict[str, dict[str, list[float]]] = {}
    for row in results["opened"]:
        for name, scores in row["scores"].items():
            for score in SCORES:
                area = mean(by_score[score] for by_score in scores["auroc"].values())
                seen.setdefault(name, {}).setdefault(score, []).append(area)
    order = sorted(seen, key=lambda name: -mean(seen[name]["mean_rank"]))
    return [{"name": name, **{score: format(Mean(seen[name][score]), ".3f") for score in SCORES}} for name in order]


def opened_table(results: dict[str, Any], part: str, data: str, chosen: dict[str, str]) -> dict[str, Any]:
    """Return the AUROC of chosen candidates on every closed set, by the score that was their best on withheld clusters.

    The error is the larger one: over seeds, or Hanley and McNeil's for the number of images.
    """
    opened = [row for row in results[part] if row["data"] == data and row["scores"]]
    sets = list(next(iter(opened[0]["scores"].values()))["auroc"])
    rows = []
    for name in dict.fromkeys(chosen.values()):
        if not any(name in row["scores"] for row in opened):
            continue
        score = best_score(results, data, name)
        cells = []
        for outliers in sets:
            areas = [row["scores"][name]["auroc"][outliers][score] for row in opened if name in row["scores"]]
            images = standard_error_of_auroc(mean(areas), results["settings"]["opened"])
            cells.append(f"{mean(areas):.3f} ± {max(standard_error(areas), images):.3f}")
        rows.append({"name": name, "score": score.replace("_", " "), "cells": " | ".join(cells)})
    return {"data": data, "sets": " | ".join(sets), "rule": " | ".join("---:" for _ in sets), "rows": rows}


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw density against AUROC of withheld clusters, one panel a data set, of candidates with all seeds."""
    results = comparable(results)
    every = criteria_values(results)
    sets = results["settings"]["data"]
    circles = {"present default": (PRESENT.name, GREY)}
    made = choices(results)
    if "combined" in made:
        circles["combined choice"] = (made["combined"]["candidate"], "black")
    figure = Figure(len(sets), len(sets), 4.2, 3.4)
    for axes, data in zip(figure.axes, sets, strict=True):
        density, area = (with_all_seeds(every[criterion]).get(data, {}) for criterion in ("density", "auroc"))
        points = {name: (mean(density[name].values()), mean(area[name].values())) for name in density if name in area}
        for kind, colour in (("post-hoc", BLUE), ("online", ORANGE)):
            mine = [point for name, point in points.items() if name.startswith(kind)]
            if mine:
                axes.scatter(*zip(*mine, strict=True), s=12, color=colour, label=kind)
        for label, (name, colour) in circles.items():
            if name in points:
                axes.scatter(*points[name], s=70, facecolors="none", edgecolors=colour, label=label)
        axes.set(title=data, xlabel="log-density, validation images", ylabel="AUROC, withheld clusters")
        if axes.has_data():
            axes.legend(fontsize=7)
    figure.save(folder / "lae-default.png")
