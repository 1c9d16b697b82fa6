"""Names, columns and cells of `ood`'s tables."""

from __future__ import annotations

from typing import Any

from marquis_experiments.pages import with_error

Row = dict[str, Any]

LABELS = {
    "ae": "autoencoder",
    "ae-variance": "autoencoder, learnt variance",
    "vae": "VAE",
    "dropout": "MC dropout",
    "ensemble": "ensemble of five",
    "posthoc-sketched": "LAE post-hoc, diagonal",
    "online-sketched": "LAE online, default",
    "online-sketched-paper-code": "LAE online, preset paper-code",
    "online-sketched-paper": "LAE online, preset paper",
    "online-kronecker": "LAE online, Kronecker",
    "online-kronecker-temperature-0.1": "LAE online, Kronecker, temperature 0.1",
    "online-kronecker-temperature-0.1-read-at-1": "LAE online, Kronecker, temperature 0.1, read at 1",
    "online-kronecker-temperature-0.1-together": "LAE online, Kronecker, three trainings together",
    "online-kronecker-temperature-0.1-both": "LAE online, Kronecker, both trainings together",
    "posthoc-kronecker-linearised": "LAE post-hoc, Kronecker, linearised",
    "online-sketched-linearised": "LAE online, default, linearised at 1",
    "online-kronecker-temperature-0.1-linearised": "LAE online, Kronecker, temperature 0.1, linearised at 1",
    "online-kronecker-temperature-0.1-linearised-together": "LAE online, Kronecker, linearised, three together",
    "online-kronecker-temperature-0.1-linearised-both": "LAE online, Kronecker, linearised, both together",
    "online-approximate": "LAE online, approximate diagonal",
    "online-sketched-temperature-0.1": "LAE online, temperature 0.1",
    "online-sketched-temperature-1": "LAE online, temperature 1",
    "online-sketched-unit-noise": "LAE online, noise fixed at 1",
    "online-sketched-learnt-prior": "LAE online, prior precision learnt",
}
NOISY = ("ae-variance", "vae")
"""Models whose decoder predicts a variance: for them the paper's output variance is that one."""
COLUMNS = ("error", "typicality", "output_variance", "latent_variance")
HEADS = ("log p", "typicality", "output variance", "latent variance")
PAPER: dict[str, tuple[float | None, ...]] = {
    "ae": (0.98, 0.98, None, None),
    "ae-variance": (0.66, 0.70, 0.65, None),
    "vae": (0.54, 0.62, 0.46, 0.50),
    "dropout": (0.97, 0.97, 0.08, 0.31),
    "posthoc-sketched": (0.98, 0.98, 0.74, 0.96),
    "online-sketched": (0.98, 0.98, 0.91, 0.96),
}
"""LAE Figure 9c: AUROC, Fashion-MNIST inside and MNIST outside."""
ONLINE = (
    *("online-sketched", "online-sketched-temperature-0.1", "online-kronecker", "online-kronecker-temperature-0.1"),
    *("online-kronecker-temperature-0.1-read-at-1", "online-kronecker-temperature-0.1-together"),
    *("online-kronecker-temperature-0.1-both", "online-kronecker-temperature-0.1-linearised-both"),
    *("online-sketched-linearised", "online-kronecker-temperature-0.1-linearised"),
    "online-kronecker-temperature-0.1-linearised-together",
    *("online-sketched-paper-code", "online-sketched-paper"),
)


def trained(recipe: Row) -> str:
    """How the models of a table were trained, as a sentence."""
    width = f" at width {recipe['width']:g}" if recipe["width"] != 1 else ""
    until = "at most " if recipe["validation"] else ""
    more = recipe.get("falling")
    falling = f"; then {more} more epochs of the finished model, in which it falls to zero" if more else ""
    return (
        f"Network `{recipe['architecture']}`{width}, code of {recipe['latent']} numbers, {recipe['images']:,} training "
        f"images, {until}{recipe['epochs']} epochs, batch {recipe['batch']}, learning rate {recipe['lr']:g}{falling}."
    )


def score_name(key: str, column: str) -> str:
    """The score that stands in a column for a model."""
    return "total_variance" if column == "output_variance" and key in NOISY else column


def values(rows: list[Row], key: str, score: str, measure: str = "auroc") -> list[float]:
    """One number for every training of the model that has this score."""
    name = score_name(key, score)
    mine = [r for r in rows if r["key"] == key and not r["failed"]]
    return [r["table"][name][measure] for r in mine if name in r["table"]]


def cell(found: list[float], paper: float | None = None) -> str:
    """Mean and standard error, the paper's number in brackets."""
    if not found:
        return "-"
    said = with_error(found)
    return said if paper is None else f"{said} ({paper:.2f})"
