"""Labels of models and sentences about their training, for the pages of this paper's experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BASES = {
    "ae": "autoencoder",
    "ae-variance": "autoencoder, learnt variance",
    "vae": "VAE",
    "vae-kl-0.001": "VAE, KL weight 0.001",
    "bbb": "Bayes by Backprop",
    "dropout": "MC dropout",
    "ensemble": "ensemble of five",
    "pixels": "raw pixels, no model",
    **{f"posthoc-{name}": f"LAE post-hoc, {name} diagonal" for name in ("exact", "approximate", "sketched")},
    "posthoc-kronecker": "LAE post-hoc, Kronecker",
    **{f"online-{name}": f"LAE online, {name} diagonal" for name in ("exact", "approximate")},
    "online-sketched": "LAE online, default",
    "online-kronecker": "LAE online, Kronecker",
    "online-variance": "LAE online, learnt variance",
}
SUFFIXES = {
    "-unit-noise": ", noise precision 1",
    "-temperature-0.1": ", T = 0.1",
    "-temperature-1": ", T = 1",
    "-learnt-prior": ", prior precision learnt",
    "-paper-code": ", preset paper-code",
    "-paper": ", preset paper",
    "-paper-rate": ", preset paper, forgetting by the learning rate",
    "-paper-1e-4": ", preset paper, forgetting 1e-4",
    "-laplace": ", post-hoc Laplace",
    "-read-at-1": ", evaluated at T = 1",
    "-linearised": ", linearised at T = 1",
}


def label(key: str) -> str:
    """Return the name of a model or row for tables and legends, composed of its base and its suffixes."""
    if key in BASES:
        return BASES[key]
    suffix = max((one for one in SUFFIXES if key.endswith(one)), key=len)
    base = label(key.removesuffix(suffix))
    if not suffix.startswith("-linearised"):
        base = base.removesuffix(", default")
    return base + SUFFIXES[suffix]


def data_name(recipe: Mapping[str, Any]) -> str:
    """Return the name of a data set as it is usually written."""
    name: str = recipe["data"]
    names = {"mnist": "MNIST", "kmnist": "KMNIST", "fashion-mnist": "Fashion-MNIST", "celeba": "CelebA"}
    return names.get(name, name)


def training(recipe: Mapping[str, Any]) -> str:
    """Return how the models of a page were trained, for its line about size."""
    width = f" at width {recipe['width']:g}" if recipe["width"] != 1 else ""
    if recipe["validation"]:
        length = f"early stopping (at most {recipe['epochs']} epochs)"
    else:
        length = f"{recipe['epochs']} epochs"
    if recipe.get("falling"):
        length += f" and {recipe['falling']} with a falling learning rate"
    return f"{data_name(recipe)}, {recipe['images']:,} training images, `{recipe['architecture']}`{width}, {length}"


def failures(rows: Iterable[Mapping[str, Any]], key: str = "key") -> str:
    """Return the models whose training failed, with the reasons."""
    return "; ".join(f"{label(row[key])}: {row['failed']}" for row in rows if row["failed"])
