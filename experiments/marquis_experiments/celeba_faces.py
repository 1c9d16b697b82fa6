"""The picture of `celeba`: mean and standard deviation of faces that are nobody's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.tasks.semi_supervised import embed
from marquis_experiments.laplacian_autoencoder.models import Images, model
from marquis_experiments.pages import Picture

if TYPE_CHECKING:
    from marquis_experiments.celeba import Settings

DRAWN = {"online-sketched": "our default", "online-sketched-paper-code": "paper-code"}
GROUPS = ("Attractive", "Wearing_Lipstick", "Male", "Smiling")
FEWEST_PEOPLE, IMAGES_EACH = 50, 5
"""No average over fewer people is drawn; the data have at most so many images of a person."""
DRAWS = 20


def draw_faces(path: Path, shared: Path, settings: Settings, images: Images, say: Callable[[str], None]) -> None:
    """Figure 13 without people: averaged reconstructions and generated faces, for two online models of the first seed.

    Args:
        path: The PNG.
        shared: Where the models lie.
        settings: Of the experiment.
        images: Training images, which are averaged.
        say: Prints progress.
    """
    recipe, columns = settings.recipe, settings.faces
    groups = averaged_groups(images, columns, settings.averaged, people=recipe.data == "celeba")
    rows: list[tuple[str, list[Tensor], bool]] = []
    for key, label in DRAWN.items():
        own = model(shared, key, 0, recipe, images, say).model if key in settings.models else None
        if own is None:
            continue
        source = torch.Generator().manual_seed(0)
        mean, std = [], []
        for chosen in groups.values():
            said = own.reconstruct(images.train[chosen].x, DRAWS // 2, generator=source)
            mean.append(said.mean.mean(0))
            std.append(said.variance.mean(0).sqrt())
        codes = embed(own, images.train[: settings.averaged].x, DRAWS // 2, generator=source, progress=False)
        made = own.decode(random_codes(codes, columns, source), DRAWS, generator=source)
        rows.append((f"{label}\nmean", [*mean, *made.mean], False))
        rows.append((f"{label}\nstandard deviation", [*std, *made.variance.sqrt()], True))
    if rows:
        titles = [*(name.replace("_", "\n") for name in groups), *["generated"] * columns]
        grid(path, rows, titles)


def averaged_groups(images: Images, count: int, size: int, people: bool) -> dict[str, Tensor]:
    """Rows of the first so many training images with each of some attributes; never too few to hide a person.

    Args:
        images: Whose training images have attributes.
        count: How many groups.
        size: Images in each.
        people: Whether the images show people: then fewer than would surely be fifty people are refused.
    """
    if people and size < FEWEST_PEOPLE * IMAGES_EACH:
        raise DataError(
            f"averaged={size}: with up to {IMAGES_EACH} images of a person, an average needs at least "
            f"{FEWEST_PEOPLE * IMAGES_EACH} images to be of {FEWEST_PEOPLE} people."
        )
    names, y = images.train.target_names or (), images.train.y
    assert y is not None
    wanted = [name for name in GROUPS if name in names] or list(names)
    found = {name: (y[:, names.index(name)] == 1).nonzero().squeeze(1)[:size] for name in wanted[:count]}
    short = [name for name, rows in found.items() if len(rows) < size]
    if short and people:
        raise DataError(f"fewer than {size} images have the attribute {short[0]}: choose another for the picture.")
    return {name: rows for name, rows in found.items() if len(rows)}


def random_codes(codes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws from the Gaussian with mean and covariance of the codes `[n, K]`; none is the code of an image."""
    centred = codes.double() - codes.double().mean(0)
    covariance = centred.T @ centred / (len(codes) - 1)
    values, vectors = torch.linalg.eigh(covariance)  # of deficient rank where there are fewer codes than numbers
    noise = torch.randn(count, codes.shape[1], generator=generator, dtype=torch.float64)
    return (codes.double().mean(0) + (noise * values.clamp(min=0).sqrt()) @ vectors.T).to(codes)


def grid(path: Path, rows: list[tuple[str, list[Tensor], bool]], titles: list[str]) -> None:
    """Rows of images; standard deviations (mean over colours) have one scale per row, which is written down."""
    columns = len(rows[0][1])
    picture = Picture(len(rows) * columns, columns, 1.15, 1.25)
    for number, axis in enumerate(picture.axes):
        row, column = divmod(number, columns)
        label, shown, spread = rows[row]
        draw_one(axis, shown[column], max(float(image.mean(0).max()) for image in shown) if spread else None)
        if row == 0:
            axis.set_title(titles[column] if column < len(titles) else "", fontsize=7)
        if column == 0:
            top = max(float(image.mean(0).max()) for image in shown)
            axis.set_ylabel(f"{label}\n(0 to {top:.2g})" if spread else label, fontsize=7)
    picture.save(path, dpi=130)


def draw_one(axis: Any, image: Tensor, top: float | None) -> None:
    """One image, or one map of standard deviations where there is a `top` of the scale."""
    axis.set_xticks([])
    axis.set_yticks([])
    if top is None:
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
    else:
        axis.imshow(image.mean(0).numpy(), cmap="magma", vmin=0, vmax=max(top, 1e-12))
