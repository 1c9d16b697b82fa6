"""The page of the study `lae-default`, also for a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import Mean, verdict, with_error
from marquis_experiments.laplacian_autoencoder.default.candidates import PRESENT
from marquis_experiments.laplacian_autoencoder.default.choice import (
    COMBINED,
    CRITERIA,
    auroc_values,
    choices,
    criteria_values,
    fixed_scores,
    mean_ranks,
    regrets,
)
from marquis_experiments.laplacian_autoencoder.default.data import ALL

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
    """Return the tables of the page: choices, all candidates, failures, and the regret where the sets are open."""
    every, made = criteria_values(results), choices(results)
    complete = "opened" in results
    regret = opened_regrets(results, made) if complete else {}
    excess = [c - p for c, p in zip(regret.get("combined", []), regret.get("present", []), strict=True)]
    keeps = complete and mean(excess) > 2 * standard_error(excess)
    settings = results["settings"]
    return {
        "run": len(results["rows"]),
        "seeds_done": len({row["seed"] for row in results["rows"]}),
        "seeds": settings["seeds"],
        "sets": ", ".join(settings["data"]),
        "complete": complete,
        "started": bool(results["rows"]),
        "choices": [
            {
                "title": TITLES[criterion],
                "candidate": made[criterion]["candidate"] if criterion in made else "no cell run",
                "ties": made[criterion]["ties"] if criterion in made else "–",
                "value": shown(every, criterion, made[criterion]["candidate"]) if criterion in made else "–",
                "present": shown(every, criterion, PRESENT.name),
                "regret": with_error(regret[criterion]) if criterion in regret else "closed",
            }
            for criterion in (*CRITERIA, "combined")
        ],
        "tables": [table(results, every, data) for data in settings["data"]],
        "failures": [
            f"{row['data']}, {row['split']}, {row['training']}, seed {row['seed']}: {row['failed']}"
            for row in results["rows"]
            if "failed" in row
        ],
        "missing": missing(results),
        "default": ("the present default stays" if keeps else made["combined"]["candidate"]) if complete else "",
        "fixed": ", ".join(f"{score} ({data})" for data, score in fixed_scores(results).items()) or "none yet",
        "verdict": verdict(complete and not keeps),
    }


def opened_regrets(results: dict[str, Any], made: dict[str, Any]) -> dict[str, list[float]]:
    """Return the regrets of all choices and of the present default."""
    chosen = {criterion: choice["candidate"] for criterion, choice in made.items()}
    return regrets(results, {**chosen, "present": PRESENT.name})


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
    """Return the rows of one data set, by mean rank of the combined criteria where they are known."""
    seconds: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for row in results["rows"]:
        for name, scores in row.get("scores", {}).items():
            if row["split"] == ALL and row["data"] == data:
                seconds.setdefault(name, []).append(row["seconds"])
                errors.setdefault(name, []).append(scores["error"])
    plain = [mean(s) for name, s in seconds.items() if name.startswith("post-hoc") and name.endswith("noise one")]
    ranks = [mean_ranks({data: every[c].get(data, {})}) for c in COMBINED]
    together = auroc_values(results, "mean_rank").get(data, {})
    rows = []
    for name in seconds:
        places = [rank[name] for rank in ranks if name in rank]
        cells = {c: every[c].get(data, {}).get(name, {}) for c in CRITERIA}
        rows.append(
            {
                "name": name,
                "rank": f"{mean(places):.0f}" if len(places) == len(COMBINED) else "–",
                "order": mean(places) if len(places) == len(COMBINED) else 1e9,
                "seeds": len(seconds[name]),
                "splits": len(cells["auroc"]),
                "error": format(Mean(errors[name]), ".2f"),
                "cost": f"{mean(seconds[name]) / plain[0]:.1f}" if plain else "–",
                "together": format(Mean(together.get(name, {}).values()), ".3f") if name in together else "–",
                **{
                    c: format(Mean(v.values()), f".{DIGITS[c]}f").lstrip("-")
                    if c == "coverage" and v
                    else format(Mean(v.values()), f".{DIGITS[c]}f")
                    if v
                    else "–"
                    for c, v in cells.items()
                },
            }
        )
    return {"data": data, "rows": sorted(rows, key=lambda row: row["order"])}


def missing(results: dict[str, Any]) -> str:
    """Return which noises and data sets have no cell at all."""
    done = {
        (row["data"], row["training"].split("-", 1)[0], row["training"].endswith("predicted"))
        for row in results["rows"]
    }
    names = {"plain": "plain", "online": "online"}
    gaps = [
        f"{data}: {names[kind]} training{', noise predicted' if predicted else ''}"
        for data in results["settings"]["data"]
        for kind in names
        for predicted in (False, True)
        if (data, kind, predicted) not in done
    ]
    return "; ".join(gaps) or "none"


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw density against AUROC of withheld clusters, one panel a data set."""
    every = criteria_values(results)
    sets = results["settings"]["data"]
    figure = Figure(len(sets), len(sets), 4.2, 3.4)
    for axes, data in zip(figure.axes, sets, strict=True):
        density, area = every["density"].get(data, {}), every["auroc"].get(data, {})
        for kind, colour in (("post-hoc", BLUE), ("online", ORANGE)):
            names = [name for name in density if name in area and name.startswith(kind)]
            points = [(mean(density[n].values()), mean(area[n].values())) for n in names]
            if points:
                axes.scatter(*zip(*points, strict=True), s=12, color=colour, label=kind)
        if PRESENT.name in density and PRESENT.name in area:
            point = mean(density[PRESENT.name].values()), mean(area[PRESENT.name].values())
            axes.scatter(*point, s=70, facecolors="none", edgecolors=GREY, label="present default")
        axes.set(title=data, xlabel="log-density, validation images", ylabel="AUROC, withheld clusters")
        if axes.has_data():
            axes.legend(fontsize=7)
    figure.save(folder / "lae-default.png")
