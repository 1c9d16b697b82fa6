"""Finished rows of `celeba` for its page: scores and paired differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from marquis_experiments.few_labels_rows import mean_and_error

NAMES = {
    "labels": "commoner of the ten labels, no code",
    "pixels": "raw pixels",
    "ae": "autoencoder",
    "vae": "VAE",
    "dropout": "MC dropout",
    "online-sketched": "LAE online, our default",
    "online-sketched-temperature-0.1": "LAE online, T = 0.1",
    "online-sketched-paper-code": "LAE online, paper-code",
}
LAE, WARMER = "online-sketched", "online-sketched-temperature-0.1"


class Faces:
    """The finished rows, by name and seed."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.settings, self.shown = results["settings"], list(results["shown"])
        self.failed = {(row["name"], row["seed"]): row["failed"] for row in results["rows"] if row["failed"]}
        self.by_name: dict[str, dict[int, dict[str, Any]]] = {}
        for row in results["rows"]:
            if not row["failed"]:
                self.by_name.setdefault(row["name"], {})[row["seed"]] = row

    def values(self, name: str, what: str, way: str = "codes") -> dict[int, np.ndarray]:
        """Of "overall", "balanced" or an attribute, `[1, repetitions]` by seed."""
        found = {}
        for seed, row in self.by_name[name].items():
            said = row["ways"].get(way, row["ways"]["mean"])
            found[seed] = np.array([said[what] if what in said else said["attributes"][what]])
        return found

    def score(self, name: str, what: str, way: str = "codes") -> tuple[float, float]:
        """Mean and standard error."""
        mean, error = mean_and_error(list(self.values(name, what, way).values()))
        return float(mean[0]), float(error[0])

    def difference(
        self, name: str, other: str, what: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[float, float]:
        """Of two rows on the same labelled images."""
        mine, theirs = self.values(name, what, way), self.values(other, what, other_way)
        mean, error = mean_and_error([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])
        return float(mean[0]), float(error[0])

    def majority(self, what: str) -> float:
        """Accuracy of one who knows each attribute's commoner answer."""
        said = next(iter(next(iter(self.by_name.values())).values()))["ways"]["mean"]
        return float(np.mean(list(said["majority"].values()))) if what == "overall" else said["majority"][what]
