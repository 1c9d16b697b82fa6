"""The picture of `celeba`: mean and standard deviation of faces that show no person."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.tasks.semi_supervised import embed
from marquis_experiments.common.figure import GREY_LEVEL, Panel, image_rows
from marquis_experiments.common.study import Run
from marquis_experiments.laplacian_autoencoder.models import Images, model

DRAWN = {"online-sketched": "our default", "online-sketched-paper-code": "paper-code"}
GROUPS = ("Attractive", "Wearing_Lipstick", "Male", "Smiling")
FEWEST_PEOPLE, IMAGES_EACH = 50, 5
"""Fewest people of an average, and the largest number of images of one person in the data."""
DRAWS = 20


def draw_faces(path: Path, run: Run, images: Images) -> None:
    """Draw averaged reconstructions and generated faces of two online models of the first seed (as LAE Figure 13)."""
    settings = run.settings
    recipe, columns = settings.recipe, settings.faces
    groups = averaged_groups(images, columns, settings.averaged, people=recipe.data == "celeba")
    rows: dict[str, list[Panel | None]] = {}
    for key, label in DRAWN.items():
        autoencoder = model(run.shared, key, 0, recipe, images, run.say).model if key in settings.models else None
        if autoencoder is None:
            continue
        source = torch.Generator().manual_seed(0)
        mean, std = [], []
        for chosen in groups.values():
            outputs = autoencoder.reconstruct(images.train[chosen].x, DRAWS // 2, generator=source)
            mean.append(outputs.mean.mean(0))
            std.append(outputs.variance.mean(0).sqrt())
        codes = embed(autoencoder, images.train[: settings.averaged].x, DRAWS // 2, generator=source, progress=False)
        made = autoencoder.decode(random_codes(codes, columns, source), DRAWS, generator=source)
        spreads = [image.mean(0).numpy() for image in (*std, *made.variance.sqrt())]  # mean over colours
        top = max(float(image.max()) for image in spreads)
        rows[f"{label}\nmean"] = [(x.clamp(0, 1).permute(1, 2, 0).numpy(), None, "") for x in (*mean, *made.mean)]
        if top > GREY_LEVEL:
            rows[f"{label}\nstandard deviation\n(0 to {top:.2g})"] = [(image, top, "") for image in spreads]
        else:
            run.say(f"{label}: the largest standard deviation is {top:.2g}, less than a grey level: not drawn")
    if rows:
        titles = [*(name.replace("_", "\n") for name in groups), *["generated"] * columns]
        image_rows(path, rows, titles, size=1.15)


def averaged_groups(images: Images, count: int, size: int, people: bool) -> dict[str, Tensor]:
    """Return rows of the first training images with each of some attributes; never too few to hide a person.

    Args:
        images: Images whose training images have attributes.
        count: Number of groups.
        size: Number of images in each.
        people: Whether the images show people: then fewer than would surely be fifty people are refused.
    """
    if people and size < FEWEST_PEOPLE * IMAGES_EACH:
        raise DataError(
            f"averaged={size}: with up to {IMAGES_EACH} images of a person, an average needs at least "
            f"{FEWEST_PEOPLE * IMAGES_EACH} images to be of {FEWEST_PEOPLE} people."
        )
    names, y = images.train.target_names or (), images.train.y
    assert y is not None
    chosen = [name for name in GROUPS if name in names] or list(names)
    groups = {name: (y[:, names.index(name)] == 1).nonzero().squeeze(1)[:size] for name in chosen[:count]}
    short = [name for name, rows in groups.items() if len(rows) < size]
    if short and people:
        raise DataError(f"fewer than {size} images have the attribute {short[0]}: choose another for the picture.")
    return {name: rows for name, rows in groups.items() if len(rows)}


def random_codes(codes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample the Gaussian with mean and covariance of the codes `[n, K]`; no sample is the code of an image."""
    centred = codes.double() - codes.double().mean(0)
    covariance = centred.T @ centred / (len(codes) - 1)
    values, vectors = torch.linalg.eigh(covariance)  # of deficient rank where there are fewer codes than numbers
    noise = torch.randn(count, codes.shape[1], generator=generator, dtype=torch.float64)
    return (codes.double().mean(0) + (noise * values.clamp(min=0).sqrt()) @ vectors.T).to(codes)
