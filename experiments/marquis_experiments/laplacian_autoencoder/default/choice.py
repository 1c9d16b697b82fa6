"""The choices of every criterion, frozen before the closed sets are opened (`PROTOCOL.md`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from marquis.errors import DataError
from marquis_experiments.common.cells import write_json
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import rounded
from marquis_experiments.laplacian_autoencoder.default.candidates import by_name

CRITERIA = ("density", "auroc", "coverage", "evidence", "adapted")
COMBINED = CRITERIA[:3]
SCORES = ("error", "nll", "output_variance", "latent_variance", "mean_rank")

EVERY = by_name()

Values = dict[str, dict[str, dict[str, float]]]
"""Values of a criterion by data set, candidate, and seed with split; larger is better."""


def gather(results: Mapping[str, Any], value: Callable[[dict[str, Any], str], float | None]) -> Values:
    """Return what `value` finds in every row, for every candidate of the row."""
    gathered: Values = {}
    for row in results["rows"]:
        for name in row.get("scores", {}):
            number = value(row, name)
            if number is not None:
                place = gathered.setdefault(row["data"], {}).setdefault(name, {})
                place[f"{row['seed']}-{row['split']}"] = number
    return gathered


def auroc_values(results: Mapping[str, Any], score: str) -> Values:
    """Return the AUROC of withheld clusters by one score."""
    return gather(results, lambda row, name: row["scores"][name]["auroc"][score])


def criteria_values(results: Mapping[str, Any]) -> dict[str, Values]:
    """Return the values of all criteria; the score of "auroc" is the fixed one of the data set."""
    areas = {score: auroc_values(results, score) for score in SCORES}
    fixed = fixed_scores(results)

    def evidence(row: dict[str, Any], name: str) -> float | None:
        candidate = EVERY[name]
        speaks = candidate.predictive == "linearised" and candidate.temperature == 1
        return row["evidence"].get(name) if speaks else None

    return {
        "density": gather(results, lambda row, name: row["scores"][name]["density"]),
        "auroc": {data: areas[score][data] for data, score in fixed.items()},
        "coverage": gather(results, lambda row, name: -abs(row["scores"][name]["coverage"] - 0.9)),
        "evidence": gather(results, evidence),
        "adapted": gather({"rows": results.get("adapted", [])}, lambda row, name: row["scores"][name]["adapted"]),
    }


def fixed_scores(results: Mapping[str, Any]) -> dict[str, str]:
    """Return for every data set the single score with the highest mean AUROC over all candidates."""
    means: dict[str, dict[str, float]] = {}
    for score in SCORES[:-1]:
        for data, candidates in auroc_values(results, score).items():
            means.setdefault(data, {})[score] = mean(mean(by_seed.values()) for by_seed in candidates.values())
    return {data: max(scores, key=scores.__getitem__) for data, scores in means.items()}


def mean_ranks(values: Values) -> dict[str, float]:
    """Return the rank of every candidate, averaged over data sets; 1 is the best. Only of those with all data sets."""
    ranks: dict[str, list[int]] = {}
    for candidates in values.values():
        order = sorted(candidates, key=lambda name: -mean(candidates[name].values()))
        for rank, name in enumerate(order, 1):
            ranks.setdefault(name, []).append(rank)
    return {name: mean(places) for name, places in ranks.items() if len(places) == len(values)}


def with_all_seeds(values: Values) -> Values:
    """Return the candidates that have as many seeds as any: those of the finalists after the last stage."""
    most = {data: max(map(len, candidates.values()), default=0) for data, candidates in values.items()}
    return {
        data: {name: by_seed for name, by_seed in candidates.items() if len(by_seed) == most[data]}
        for data, candidates in values.items()
    }


def cheapness(results: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    """Return what settles a tie: seconds of training, then whether the structure needs more memory."""
    seconds: dict[str, list[float]] = {}
    for row in results["rows"]:
        for name in row.get("scores", {}):
            seconds.setdefault(name, []).append(row["seconds"])
    return {name: (mean(s), EVERY[name].structure != "diagonal") for name, s in seconds.items()}


def tied(values: Values, best: str, other: str) -> bool:
    """Return whether the paired difference is below two standard errors on every data set."""
    for candidates in values.values():
        pairs = candidates[best].keys() & candidates[other].keys()
        differences = [candidates[best][key] - candidates[other][key] for key in sorted(pairs)]
        if not differences or mean(differences) > 2 * standard_error(differences):
            return False
    return True


def choices(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of every criterion that has values, and the combined one.

    Each has the `candidate`, the `best` by mean rank before ties, and the number of `ties`.
    """
    every = {criterion: with_all_seeds(values) for criterion, values in criteria_values(results).items()}
    cost = cheapness(results)
    ranks = {criterion: mean_ranks(values) for criterion, values in every.items() if values}
    chosen: dict[str, Any] = {}
    for criterion, places in ranks.items():
        if places:
            best = min(places, key=places.__getitem__)
            ties = [name for name in places if name == best or tied(every[criterion], best, name)]
            choice = min(ties, key=lambda name: (*cost[name], places[name]))
            chosen[criterion] = {"candidate": choice, "best": best, "ties": len(ties) - 1}
    common = set.intersection(*(set(ranks.get(criterion, ())) for criterion in COMBINED))
    if common:
        total = {name: mean(ranks[criterion][name] for criterion in COMBINED) for name in common}
        best = min(sorted(total), key=lambda name: (total[name], *cost[name]))
        chosen["combined"] = {"candidate": best, "best": best, "ties": 0}
    return chosen


def freeze(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Write the choices with the checksum of the rows that they were made from, once, and return them.

    Raises:
        DataError: Choices were frozen before, from other rows.
    """
    if (folder / "choices.json").exists():
        return frozen(folder, results)
    made = choices(results)
    write_json(
        folder / "choices.json",
        {"choices": made, "sha256": checksum(made), "rows_sha256": checksum(results["rows"]), "rows": results["cells"]},
    )
    return frozen(folder, results)


def frozen(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen choices: without them nothing of the closed sets is read.

    Raises:
        DataError: There are none, they were changed, or they were made from other rows.
    """
    path = folder / "choices.json"
    if not path.is_file():
        raise DataError(f"the closed sets stay closed: there are no frozen choices in {path}.")
    held = json.loads(path.read_text(encoding="utf-8"))
    if held["sha256"] != checksum(held["choices"]):
        raise DataError(f"the closed sets stay closed: {path} was changed after it was written.")
    if held["rows_sha256"] != checksum(results["rows"]):
        raise DataError(f"the closed sets stay closed: the choices in {path} were made from other rows.")
    return held


def checksum(value: Any) -> str:
    """Return the SHA-256 of JSON values with floats as they are committed."""
    return hashlib.sha256(json.dumps(rounded(value), sort_keys=True).encode()).hexdigest()


def best_score(results: Mapping[str, Any], data: str, name: str) -> str:
    """Return the score that was a candidate's best on withheld clusters."""
    by_score = {score: mean(auroc_values(results, score)[data][name].values()) for score in SCORES[:-1]}
    return max(by_score, key=by_score.__getitem__)


def outlier_areas(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return for every candidate, data set and seed the mean AUROC over the closed outlier sets, by its own score."""
    areas: dict[str, dict[str, float]] = {}
    for row in results["opened"]:
        for name, scores in row["scores"].items():
            score = best_score(results, row["data"], name)
            area = mean(by_score[score] for by_score in scores["auroc"].values())
            areas.setdefault(name, {})[f"{row['data']}-{row['seed']}"] = area
    return areas


def regrets(results: Mapping[str, Any], chosen: Mapping[str, str]) -> dict[str, list[float]]:
    """Return the regret of every choice, one number per data set and seed, and the `best` candidate's own: zeros.

    The best candidate is the one with the highest mean over data sets and seeds.
    """
    areas = outlier_areas(results)
    best = max(areas, key=lambda name: mean(areas[name].values()))
    return {
        criterion: [areas[best][key] - areas[name][key] for key in sorted(areas[best].keys() & areas[name])]
        for criterion, name in {**chosen, "best": best}.items()
    }
