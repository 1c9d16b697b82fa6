"""Pictures of the page, from the arrays that the cells left."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.tomography.problems import NAMES
from marquis_experiments.tomography.tables import SHORT_NAMES

COLOURS = {"predcp": BLUE, "block": GREEN, "dropout": ORANGE, "ensemble": GREY}


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the pictures whose arrays are there."""
    arrays = folder / "arrays"
    first = next(iter(sorted(arrays.glob("linearised-a20-n5-*.npz"))), None)
    if first is not None:
        draw_character(folder / "tomography.png", _load(first))
        draw_samples(folder / "tomography-samples.png", _load(first))
    files = sorted(arrays.glob("linearised-a20-n5-*.npz"))
    if files:
        draw_calibration(folder / "tomography-calibration.png", files)
    slices = [arrays / f"ct-128-{training}.npz" for training in ("long", "base")]
    for path in [path for path in slices if path.exists()][:1]:
        draw_slice(folder / "tomography-ct.png", _load(path))
    for path in arrays.glob("ct-256-*.npz"):
        draw_slice(folder / "tomography-ct-256.png", _load(path))
    problems = [(name, arrays / f"problem-{name.replace(' ', '-')}-i3.npz") for name in NAMES]
    problems = [(name, path) for name, path in problems if path.exists()]
    if problems:
        draw_problems(folder / "tomography-problems.png", problems)
    if results["design"]:
        draw_angles(folder / "tomography-angles.png", results["design"])
    draw_complexity(folder / "tomography-complexity.png")


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _show(axes: Any, image: np.ndarray, title: str, top: float | None = None, colours: str = "gray") -> Any:
    shown = axes.imshow(image, cmap=colours, vmin=0 if top is not None else None, vmax=top)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9)
    return shown


def _show_on_one_scale(figure: Figure, first: int, panels: list[tuple[np.ndarray, str]], top: float) -> None:
    """Draw errors and standard deviations from a panel on, with one colour bar; hide the panels that are left."""
    shown: Any = None
    for axes, (values, title) in zip(figure.axes[first:], panels, strict=False):
        shown = _show(axes, values, title, top, "magma")
    for axes in figure.axes[first + len(panels) :]:
        axes.set_visible(False)
    figure.figure.colorbar(shown, ax=figure.axes, shrink=0.6)


def draw_character(path: Path, images: dict[str, np.ndarray]) -> None:
    """Draw truth, reconstructions, and errors and standard deviations on one scale."""
    figure = Figure(8, 4, 2.1, 2.2)
    names = {"truth": "truth", "fbp": "FBP", "tv": "total variation", "dip": "deep image prior"}
    for axes, (name, title) in zip(figure.axes, names.items(), strict=False):
        _show(axes, images[name], title, 1.0)
    error = np.abs(images["dip"] - images["truth"])
    top = float(max(error.max(), images["std_predcp"].max()))
    panels = [(error, "|error|"), (images["std_predcp"], "std, TV-PredCP")]
    others = [name for name in ("block", "dropout") if f"std_{name}" in images]
    panels += [(images[f"std_{name}"], f"std, {SHORT_NAMES[name]}") for name in others]
    _show_on_one_scale(figure, 4, panels, top)
    figure.save(path, 120)


def draw_samples(path: Path, images: dict[str, np.ndarray]) -> None:
    """Draw posterior samples, and samples of the prior with and without TV-PredCP."""
    figure = Figure(12, 6, 1.6, 1.75)
    for index in range(6):
        _show(figure.axes[index], images["samples"][index], "posterior sample", 1.0)
    span = float(np.abs(images["prior_block"]).max())
    for index in range(6):
        name = "predcp" if index < 3 else "block"
        axes = figure.axes[6 + index]
        axes.imshow(images[f"prior_{name}"][index % 3], cmap="coolwarm", vmin=-span, vmax=span)
        axes.set(xticks=[], yticks=[])
        axes.set_title("prior, TV-PredCP" if name == "predcp" else "prior, evidence only", fontsize=9)
    figure.save(path, 120)


def draw_calibration(path: Path, files: list[Path]) -> None:
    """Draw histograms of |error| and std, and standardised errors against the normal distribution."""
    from scipy.stats import norm

    collected: dict[str, list[np.ndarray]] = {}
    for file in files:
        images = _load(file)
        other = file.with_name(file.name.replace("linearised", "ensemble"))
        if other.exists():
            images |= _load(other)
        for name in COLOURS:
            if f"std_{name}" in images:
                mean = images.get(name, images["dip"])
                pair = np.stack([(mean - images["truth"]).ravel(), images[f"std_{name}"].ravel()])
                collected.setdefault(name, []).append(pair)
    figure = Figure(len(collected) + 1, len(collected) + 1, 2.7, 2.5)
    edges = np.linspace(0, 0.3, 40)
    for axes, (name, pairs) in zip(figure.axes, collected.items(), strict=False):
        error, std = np.concatenate(pairs, axis=1)
        axes.hist(np.abs(error), edges, density=True, color=GREY, alpha=0.5, label="|error|")
        axes.hist(std, edges, density=True, histtype="step", color=COLOURS[name], lw=1.6, label="std")
        axes.set(yscale="log", title=SHORT_NAMES[name], xlabel="value")
        axes.legend(fontsize=7)
    axes = figure.axes[len(collected)]
    for name, pairs in collected.items():
        error, std = np.concatenate(pairs, axis=1)
        z = np.sort(error / std)
        quantiles = norm.ppf((np.arange(len(z)) + 0.5) / len(z))
        axes.plot(quantiles, z, color=COLOURS[name], lw=1.4, label=SHORT_NAMES[name])
    axes.plot([-4, 4], [-4, 4], "k--", lw=0.8)
    axes.set(xlim=(-4, 4), ylim=(-8, 8), xlabel="normal quantile", title="standardised error")
    axes.legend(fontsize=7)
    figure.save(path)


def draw_slice(path: Path, images: dict[str, np.ndarray]) -> None:
    """Draw a CT slice: images above, error and standard deviation below."""
    figure = Figure(6, 3, 3.2, 3.1)
    for axes, (name, title) in zip(
        figure.axes, (("truth", "truth"), ("tv", "total variation"), ("dip", "deep image prior")), strict=False
    ):
        _show(axes, images[name], title, 1.6)
    stds = [name for name in ("std_scalar", "std_scalar_predcp") if name in images]
    panels = [(np.abs(images["dip"] - images["truth"]), "|error|")]
    titles = {"std_scalar": "std, one variance", "std_scalar_predcp": "std, TV-PredCP"}
    panels += [(images[name], titles[name]) for name in stds]
    _show_on_one_scale(figure, 3, panels, 0.3)
    figure.save(path)


def draw_problems(path: Path, problems: list[tuple[str, Path]]) -> None:
    """Draw start, image, error and standard deviations of every linear problem, one row each."""
    figure = Figure(6 * len(problems), 6, 1.6, 1.65)
    for row, (name, file) in enumerate(problems):
        images = _load(file)
        axes = figure.axes[6 * row : 6 * row + 6]
        error = np.abs(images["image"] - images["truth"])
        top = float(max(error.max(), images["std_predcp"].max(), images["std_block"].max()))
        _show(axes[0], images["truth"], "truth", 1.0)
        _show(axes[1], images["start"], "back-projection" if "beam" in name else "adjoint")
        _show(axes[2], images["image"], "reconstruction", 1.0)
        _show(axes[3], error, "|error|", top, "magma")
        _show(axes[4], images["std_predcp"], "std, TV-PredCP", top, "magma")
        shown = _show(axes[5], images["std_block"], "std, evidence", top, "magma")
        figure.figure.colorbar(shown, ax=axes)
        axes[0].set_ylabel(name, fontsize=9)
    figure.save(path)


def draw_angles(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw the chosen angles of a few images, and quality by how they were chosen."""
    count = min(4, len(rows))
    figure = Figure(count + 1, count + 1, 2.4, 2.4)
    marks = {"variance": (BLUE, 1.0), "information": (GREEN, 0.8), "equidistant": (GREY, 0.6), "random": (ORANGE, 0.4)}
    for axes, row in zip(figure.axes[:count], rows, strict=False):
        for name, (colour, radius) in marks.items():
            angles = np.array(row["angles"][name]) * math.pi / 60
            axes.plot(radius * np.cos(angles), radius * np.sin(angles), "o", color=colour, ms=5, label=name)
        for angle in np.arange(5) * math.pi / 5:
            axes.plot([0, np.cos(angle)], [0, np.sin(angle)], color="0.85", lw=1, zorder=0)
        axes.set(aspect="equal", xticks=[], yticks=[], xlim=(-1.1, 1.1), ylim=(-0.1, 1.15))
        axes.set_title(f"image {row['image']}", fontsize=9)
    figure.axes[0].legend(fontsize=5, loc="lower center", bbox_to_anchor=(0.5, -0.35), ncols=2)
    axes = figure.axes[count]
    for place, (name, (colour, _)) in enumerate(marks.items()):
        values = [row["dip"][name] - row["dip"]["equidistant"] for row in rows]
        axes.plot([place] * len(values), values, "o", color=colour, ms=4, alpha=0.6)
        axes.plot([place - 0.25, place + 0.25], [np.mean(values)] * 2, color=colour, lw=2)
    axes.set_xticks(range(4), list(marks), fontsize=6)
    axes.set(title="PSNR against equidistant", ylabel="dB")
    figure.save(path)


def draw_complexity(path: Path) -> None:
    """Draw κ against the variance and the lengthscale, with the densities that TV-PredCP makes of them."""
    import torch

    from marquis.tomography import ExactPrior, ParallelBeam, UNet, deep_image_prior, linearise
    from marquis.tomography.analytic import differences
    from marquis.tomography.complexity import expected_tv, log_prior_of_lengthscale, log_prior_of_variance
    from marquis_experiments.tomography.data import rectangles

    geometry = ParallelBeam(16, 8)
    truth = rectangles(0, 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = UNet((4, 4, 4), range=(0.0, 1.0))
    trained = deep_image_prior(geometry.forward(truth), geometry, tv=1e-3, steps=300, network=network, progress=False)
    prior = linearise(trained, geometry, posterior="exact", taps=True)
    assert isinstance(prior, ExactPrior)
    jumps, grams = differences(trained.image), prior.grams
    rate, least = 2.0, float(differences(trained.image).abs().sum())
    block = grams.block == int(grams.block[grams.roughness.sum(1).argmax()])
    alone = grams.roughness[block & (grams.distance == 0)]
    wide = torch.linspace(-40, 40, 1601, dtype=torch.float64)
    middle = wide[int((expected_tv(jumps, wide.exp()[:, None] * alone) - least < 1 / rate).sum())]
    logs = torch.linspace(float(middle) - 9, float(middle) + 5, 241, dtype=torch.float64)
    kappa = expected_tv(jumps, logs.exp()[:, None] * alone) - least
    density = torch.stack([log_prior_of_variance(jumps, alone, value[None], rate)[0] for value in logs.exp()]).exp()
    lengths = torch.linspace(-4, 7, 221, dtype=torch.float64)
    variance = middle.exp()
    kappa_length, density_length = [], []
    for length in lengths.exp():
        weights = variance * torch.exp(-grams.distance[block] / length)
        kappa_length.append(expected_tv(jumps, weights @ grams.roughness[block]) - least)
        value = log_prior_of_lengthscale(
            jumps, grams.roughness[block], grams.distance[block], variance, length, rate, 1.0
        )
        density_length.append((value + rate * least).exp())
    mass = float(torch.trapezoid(torch.stack(density_length), lengths))
    figure = Figure(2, 2, 3.9, 2.7)
    for axes, x, y, p, label, total in (
        (figure.axes[0], logs, kappa, density, "log v", float(torch.trapezoid(density, logs))),
        (figure.axes[1], lengths, torch.stack(kappa_length), torch.stack(density_length), "log ℓ", mass),
    ):
        axes.plot(x, y, color=BLUE)
        axes.set(xlabel=label, title=f"the density integrates to {total:.2f}")
        axes.set_ylim(0, 1.05 * min(float(y.max()), 4.0))
        axes.set_ylabel("expected TV − TV of the image", color=BLUE)
        other = axes.twinx()
        other.plot(x, p, color=ORANGE)
        other.set_ylim(0)
        other.set_ylabel("density", color=ORANGE)
    figure.save(path)
