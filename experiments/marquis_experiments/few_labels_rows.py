"""The rows of `few-labels`: accuracies by name and seed, compared in pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

DEFAULT, LINEARISED, CONTROL = "online-sketched", "online-sketched-linearised-", "ae-round"
"""Our default; start of the names of the rows that read it through its tangent; the plain autoencoder, smoothed."""
TEMPERATURES = {f"{LINEARISED}1": 1.0, f"{LINEARISED}10": 10.0}
CONTROL_WIDTH = 0.08
"""Of the control's clouds: as wide as the default's at temperature 1."""
LABELS = {
    "pixels": "raw pixels, no model",
    "ae": "autoencoder",
    CONTROL: f"autoencoder, round clouds of {CONTROL_WIDTH}",
    "vae": "VAE",
    "dropout": "MC dropout",
    "ensemble": "ensemble of five, codes side by side",
    "posthoc-sketched": "LAE post-hoc",
    DEFAULT: "LAE online, our default",
    **{name: f"LAE online, our default, linearised at {value:g}" for name, value in TEMPERATURES.items()},
    "online-sketched-temperature-0.1": "LAE online, temperature 0.1",
    "online-sketched-paper-code": "LAE online, paper-code",
    "online-sketched-paper": "LAE online, paper",
}
LAE = (
    *(DEFAULT, *TEMPERATURES, "online-sketched-temperature-0.1"),
    *("online-sketched-paper-code", "online-sketched-paper"),
)
APART = ("pixels", "ensemble", CONTROL)
"""Not rivals in the claim: rows with more numbers per image than the others, and the control."""
FEW = 20
"""The claim is about at most so many labels per class."""


def accuracies(row: dict[str, Any], way: str = "codes") -> np.ndarray:
    """`[numbers of labels, repetitions]`; a row without copies has one way only."""
    return np.array(row["ways"].get(way, row["ways"]["mean"])["accuracy"])


class Rows:
    """The finished rows, by name and seed."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.settings = results["settings"]
        self.per_class: list[int] = list(self.settings["per_class"])
        self.failed = {(row["name"], row["seed"]): row["failed"] for row in results["rows"] if row["failed"]}
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for row in results["rows"]:
            if not row["failed"]:
                found.setdefault(row["name"], {})[row["seed"]] = row
        self.by_name = found
        self.few = [place for place, n in enumerate(self.per_class) if n <= FEW]
        self.many = [place for place, n in enumerate(self.per_class) if n > FEW]

    def has(self, name: str, way: str) -> bool:
        """Whether every finished seed of this row was used in this way."""
        return name in self.by_name and all(way in row["ways"] for row in self.by_name[name].values())

    def seeds(self, name: str, way: str = "codes") -> dict[int, np.ndarray]:
        """Accuracies `[numbers of labels, repetitions]` by seed."""
        return {seed: accuracies(row, way) for seed, row in self.by_name[name].items()}

    def accuracy(self, name: str, way: str = "codes") -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard error for each number of labels."""
        return mean_and_error(list(self.seeds(name, way).values()))

    def difference(
        self, name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of two rows on the same labelled images, mean and standard error for each number of labels."""
        return mean_and_error(self._differences(name, other, way, other_way))

    def mean_difference(
        self, places: list[int], name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[float, float]:
        """Likewise, averaged over some of the numbers of labels before the error is taken."""
        each = [values[places].mean(0, keepdims=True) for values in self._differences(name, other, way, other_way)]
        mean, error = mean_and_error(each)
        return float(mean[0]), float(error[0])

    def verdict(self, places: list[int], name: str, other: str, way: str = "codes", other_way: str = "codes") -> str:
        """The mean difference and what it says, in words; one training says nothing about others."""
        mean, error = self.mean_difference(places, name, other, way, other_way)
        single = len(self.by_name[name].keys() & self.by_name[other].keys()) < 2
        said = "one training, which decides nothing" if single else verdict(mean, error)
        return f"{points(mean, error, sign=True)} points: {said}"

    def _differences(self, name: str, other: str, way: str, other_way: str) -> list[np.ndarray]:
        mine, theirs = self.seeds(name, way), self.seeds(other, other_way)
        return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def mean_and_error(seeds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and repetitions of `[rows, repetitions]`, and the larger of two standard errors.

    One is over the seeds' means, which differ in weights, labelled images and draws, and are independent; with two or
    three of them it may come out small by chance. The other is over all draws of labels, as if a seed's were
    independent; for a single seed it is the only one, and says nothing about weights. NaN for a single number.
    """
    each = np.stack(seeds)  # [seeds, rows, repetitions]
    count, repetitions = len(each), each.shape[2]
    errors = np.full((2, each.shape[1]), np.nan)
    if count > 1:
        errors[0] = each.mean(2).std(0, ddof=1) / count**0.5
    if repetitions > 1:
        errors[1] = (each.var(2, ddof=1).mean(0) / (count * repetitions)) ** 0.5
    return each.mean((0, 2)), np.fmax(*errors)


def points(mean: float, error: float, sign: bool = False) -> str:
    """In per cent, or percentage points."""
    text = f"{100 * mean:+.1f}" if sign else f"{100 * mean:.1f}"
    return text if np.isnan(error) else f"{text} ± {100 * error:.1f}"


def verdict(mean: float, error: float) -> str:
    """In words; two standard errors decide."""
    if np.isnan(error):
        return "a single number, which decides nothing"
    if abs(mean) <= 2 * error:
        return "not told apart"
    return "**ahead**" if mean > 0 else "**behind**"
