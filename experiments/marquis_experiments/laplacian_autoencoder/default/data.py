"""Images of the study `lae-default`: training, validation, withheld clusters, and the sets that stay closed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.data import load
from marquis_experiments.common.study import Run

ALL = "all"
"""Name of a split that withholds nothing."""
SPLITS = {"a": (0, 1, 2), "b": (3, 4, 5), "c": (6, 7, 8)}
"""Withheld clusters of every split, numbered by size, the largest first."""


@dataclass(frozen=True)
class Images:
    """Hold the images of one data set and split.

    Attributes:
        train: Training images (of the clusters that are kept).
        validation: Validation images (of the clusters that are kept).
        withheld: Validation images of withheld clusters; None where nothing is withheld.
    """

    train: Tensor
    validation: Tensor
    withheld: Tensor | None = None


def images(run: Run, data: str, split: str) -> Images:
    """Return the images of a data set and split; test images are not read."""
    settings = run.settings
    count = settings.train + settings.validation
    x = load(data, "train", run.data_dir).x[:count]
    if split == ALL:
        return Images(x[: settings.train], x[settings.train :])
    key = {"data": data, "count": count, "clusters": settings.clusters}
    labels = torch.tensor(run.cell(f"{data}-clusters", key, lambda: {"labels": clusters(x, settings)})["labels"])
    withheld = torch.isin(labels, torch.tensor(SPLITS[split]))
    train, validation = withheld[: settings.train], withheld[settings.train :]
    rows = x[settings.train :]
    return Images(x[: settings.train][~train], rows[~validation], rows[validation])


def clusters(x: Tensor, settings: Any) -> list[int]:
    """Return the k-means cluster of every image, numbered by size."""
    from sklearn.cluster import KMeans

    means = KMeans(settings.clusters, n_init=10, random_state=0)  # pyright: ignore[reportArgumentType]  (stub: str)
    labels = means.fit_predict(x.flatten(1).numpy())
    labels = torch.as_tensor(labels).long()
    order = labels.bincount(minlength=settings.clusters).argsort(descending=True)
    return order.argsort()[labels].tolist()


def closed_sets(data: str, number: int, data_dir: Path | None) -> dict[str, Tensor]:
    """Return the images that are opened once: test images, and four sets of outliers.

    Only `study.opened` calls this, with frozen choices in its hands.
    """
    x = load(data, "test", data_dir).x[:number]
    other = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}.get(data, data)
    sets = {"test": x, "rotated": x.rot90(1, (2, 3)), other if other != data else "flipped": x.flip(3)}
    if other != data:
        sets[other] = load(other, "test", data_dir).x[:number]
        sets["kmnist"] = load("kmnist", "test", data_dir).x[:number]
    generator = torch.Generator().manual_seed(0)
    return {**sets, "noise": torch.rand(x.shape, generator=generator)}
