"""The page and the pictures of the experiment `toy-regression`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.pages import BLUE, GREY, ORANGE, Picture, band, command, table, write_page


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `toy-regression.md` and its pictures next to the results."""
    pieces = [
        "# Toy regression",
        f"Written by {command('toy-regression', results['size'])} from its results: the tutorial's pictures in one "
        "dimension. Dark bands are two standard deviations of the function, light ones of a new observation. All "
        "networks are at or close to a mode, by L-BFGS in double precision; predictions are linearised unless said "
        "otherwise.",
        *structures(folder, results["structures"]),
        *precisions(folder, results["precisions"]),
        *regularised(folder, results["regularised"]),
        *sizes(folder, results["sizes"]),
        *depths(folder, results["depths"]),
        *sampling(folder, results["sampling"]),
        *subnetwork(folder, results["subnetwork-tanh"], results["subnetwork-relu"]),
    ]
    return write_page(folder / "toy-regression.md", pieces)


def _band(axis: Any, found: dict[str, Any], data: dict[str, Any], title: str) -> None:
    x, centre, sd = (np.array(found[key]) for key in ("x", "mean", "sd"))
    band(axis, x, centre, sd, found["noise"])
    axis.plot(data["x"], data["y"], ".", color="k", ms=3)
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=7)


def _at(found: dict[str, Any], x: float) -> float:
    return float(np.interp(x, found["x"], found["sd"]))


def structures(folder: Path, part: dict[str, Any]) -> list[str]:
    """Three posteriors side by side."""
    names = ("kronecker", "diagonal", "full")
    picture = Picture(3, 3, share=True)
    for axis, name in zip(picture.axes, names, strict=True):
        _band(axis, part[name], part["data"], name)
        axis.set_ylim(-4, 4)
    picture.save(folder / "toy-regression-structures.png")
    rows = [
        [
            n,
            f"{part[n]['log_evidence']:.1f}",
            f"{_at(part[n], 1.0):.3f}",
            f"{_at(part[n], 0.0):.3f}",
            f"{_at(part[n], 2.8):.2f}",
        ]
        for n in names
    ]
    return [
        "## Kronecker, diagonal and full",
        "One network (1-50-1, tanh), the same prior and noise (tuned with the full posterior), three structures of its "
        "posterior.",
        "![Kronecker, diagonal and full posterior](toy-regression-structures.png)",
        table(["structure", "log evidence", "sd at the data (x = 1)", "between (0)", "away (2.8)"], rows),
        "The diagonal forgets that the weights hold each other in place: too wide at the data, too narrow away. "
        "Kronecker is right at the data, but hardly wider between them than the diagonal; only the full posterior is "
        "narrow at the data and wide elsewhere. The evidence orders them in the same way.",
    ]


def precisions(folder: Path, part: dict[str, Any]) -> list[str]:
    """Error bars against the prior precision."""
    names = [
        name
        for name in part
        if name not in ("data", "settings") and isinstance(part[name], dict) and "sd" in part[name]
    ]
    picture = Picture(len(names), 4, 2.7, share=True)
    for axis, name in zip(picture.axes, names, strict=True):
        _band(axis, part[name], part["data"], f"prior precision {name}")
        axis.set_ylim(-4, 4)
    picture.save(folder / "toy-regression-precisions.png")
    rows = [
        [
            n,
            f"{part[n]['log_evidence']:.1f}",
            f"{part[n]['effective']:.1f}",
            f"{_at(part[n], 1.0):.3f}",
            f"{_at(part[n], 0.0):.3f}",
            f"{_at(part[n], 2.8):.2f}",
        ]
        for n in names
    ]
    best = max(names, key=lambda n: part[n]["log_evidence"])
    return [
        "## Prior precision from 100 to 0.1",
        "The network is trained anew with each precision; the noise is known.",
        "![Error bars for four prior precisions](toy-regression-precisions.png)",
        table(["precision", "log evidence", "effective parameters", "sd at x = 1", "at 0", "at 2.8"], rows),
        f"Of these four the evidence prefers {best}.",
    ]


def regularised(folder: Path, part: dict[str, Any]) -> list[str]:
    """A 1-6-1 network with and without evidence."""
    picture = Picture(2, 2, 3.6, share=True)
    without, found = picture.axes
    without.plot(part["with"]["x"], part["without"], color=ORANGE)
    without.plot(part["data"]["x"], part["data"]["y"], ".", color="k", ms=5)
    without.set_title("without regularisation", fontsize=9)
    without.tick_params(labelsize=7)
    _band(found, part["with"], part["data"], "prior and noise by evidence")
    x = np.array(part["with"]["x"])
    for axis in (without, found):
        axis.plot(x, np.sin(np.pi * x), "--", color=GREY, lw=1)
        axis.set_ylim(-2.2, 2.2)
    picture.save(folder / "toy-regression-1-6-1.png")
    keys = ("train_without", "test_without", "train_with", "test_with", "effective", "noise_sd")
    rows = [[i, *(f"{row[key]:.3f}" for key in keys)] for i, row in enumerate(part["rows"])]
    rows.append(["mean", *(f"{mean(row[key] for row in part['rows']):.3f}" for key in keys)])
    better = sum(row["test_with"] < row["test_without"] for row in part["rows"])
    return [
        "## A 1-6-1 network with and without evidence",
        "Fifteen points of a sine (dashed) with noise of standard deviation 0.25, 19 weights.",
        "![Without and with Bayesian regularisation](toy-regression-1-6-1.png)",
        table(
            [
                "data set",
                "train RMSE without",
                "test RMSE without",
                "train RMSE with",
                "test RMSE with",
                "effective parameters",
                "noise sd found",
            ],
            rows,
        ),
        "Test errors are against the noiseless sine over all of [-1, 1], which reaches beyond the outermost points; "
        "there the free network goes anywhere, hence its large errors. Evidence is better on "
        f"{better} of {len(part['rows'])} data sets.",
    ]


def sizes(folder: Path, part: dict[str, Any]) -> list[str]:
    """Effective parameters against network size."""
    rows = part["rows"]
    picture = Picture(2, 2, 3.6)
    left, right = picture.axes
    widths = [row["width"] for row in rows]
    left.plot(widths, [row["weights"] for row in rows], "--", color=GREY, label="weights")
    left.plot(widths, [row["effective"] for row in rows], "o-", color=BLUE, label="effective parameters")
    left.set(xscale="log", yscale="log", xlabel="hidden units")
    left.legend(fontsize=8)
    right.plot(widths, [row["log_evidence"] for row in rows], "o-", color=BLUE)
    right.set(xscale="log", xlabel="hidden units", ylabel="log evidence")
    picture.save(folder / "toy-regression-sizes.png")
    lines = [
        [
            r["width"],
            r["weights"],
            f"{r['effective']:.1f}",
            f"{r['log_evidence']:.1f}",
            ", ".join(f"{value:.1f}" for value in r["all_effective"]),
        ]
        for r in rows
    ]
    return [
        "## Effective parameters against network size",
        "Sixty points of the noisy sine; per size the restart of the largest evidence. A network whose effective "
        "parameters are close to its weights is too small; once it is large enough, they stop growing.",
        "![Effective parameters and evidence](toy-regression-sizes.png)",
        table(["hidden units", "weights", "effective", "log evidence", "effective, every restart"], lines),
    ]


def depths(folder: Path, part: dict[str, Any]) -> list[str]:
    """Error bars between and away from the data."""
    names = [name for name in part if name.startswith(("1 x", "2 x"))]
    picture = Picture(2, 2, 3.6, share=True)
    for axis, name in zip(picture.axes, names, strict=True):
        _band(axis, part[name], part["data"], name)
        axis.set_ylim(-5, 5)
    picture.save(folder / "toy-regression-depths.png")
    rows = [
        [
            n,
            part[n]["weights"],
            f"{part[n]['effective']:.1f}",
            f"{part[n]['noise_sd']:.3f}",
            *(f"{value:.3f}" for value in part[n]["regions"].values()),
        ]
        for n in names
    ]
    head = ["network", "weights", "effective", "noise sd (true 0.1)", *(f"sd {r}" for r in part[names[0]]["regions"])]
    return [
        "## Between and away from the data",
        "Prior precisions per layer and noise by the evidence; standard deviations of the function.",
        "![One tanh layer, two ReLU layers](toy-regression-depths.png)",
        table(head, rows),
    ]


def sampling(folder: Path, part: dict[str, Any]) -> list[str]:
    """Linearised functions against sampled networks."""
    picture = Picture(2, 2, 3.6, share=True)
    titles = {"linearised": "linearised functions", "sampled": "networks with sampled weights"}
    for axis, (name, title) in zip(picture.axes, titles.items(), strict=True):
        for drawn in part[name]["draws"]:
            axis.plot(part["x"], drawn, color=BLUE, lw=0.6, alpha=0.5)
        axis.plot(part["x"], part[name]["mean"], color=ORANGE, lw=1.8, label="average")
        axis.plot(part["x"], part["map"], color="k", lw=1.2, ls="--", label="MAP")
        axis.plot(part["data"]["x"], part["data"]["y"], ".", color="k", ms=3)
        axis.set_ylim(-6, 6)
        axis.set_title(title, fontsize=9)
    picture.axes[0].legend(fontsize=7, loc="lower right")
    picture.save(folder / "toy-regression-sampling.png")
    rows = [[titles[n], f"{part[n]['rmse']:.3f}", f"{part[n]['log_likelihood']:.2f}"] for n in titles]
    return [
        "## Why linearise: sampled networks are off scale",
        "The same Gaussian over the weights, used in two ways. Most of its mass is where the network itself fits "
        "badly; the linear model, about which the Gauss-Newton matrix speaks, fits there.",
        "![Linearised functions and sampled networks](toy-regression-sampling.png)",
        table(["prediction", "RMSE of the average at the data", "log-likelihood of the data per point"], rows),
    ]


def subnetwork(folder: Path, tanh: dict[str, Any], relu: dict[str, Any]) -> list[str]:
    """How much of the in-between uncertainty a subnetwork keeps."""
    for part, name in ((tanh, "tanh"), (relu, "relu")):
        picture = Picture(len(part["cases"]), 4, 2.9, 2.5, share=True)
        for axis, (case, found) in zip(picture.axes, part["cases"].items(), strict=True):
            _band(axis, found, part["data"], case)
            axis.set_ylim(-4, 4)
        picture.save(folder / f"toy-regression-subnetwork-{name}.png", 80)
    return [
        "## A subnetwork and the in-between uncertainty",
        "Two hidden layers of 50 units: 2600 weights and 101 biases, prior precision 1, known noise. A subnetwork "
        "has a full covariance inside and is conditioned on the rest, so it can only be more certain than the whole; "
        "the tutorial's claim is that it keeps the shape, wide between the data and narrow at them, better than a "
        "diagonal over everything. Its recipe is to take the weights of largest variance under diagonal SWAG (here: 40 "
        "epochs of batches of 10, learning rate 0.001, and once a tenth of it).",
        "### tanh",
        "![tanh: full, subnetworks and diagonal](toy-regression-subnetwork-tanh.png)",
        _subnetwork_table(tanh["cases"]),
        "### ReLU",
        "![ReLU: full, subnetworks and diagonal](toy-regression-subnetwork-relu.png)",
        _subnetwork_table(relu["cases"]),
        "Chosen by SWAG, 3 % of the weights keep most of what lies between the data. Chosen by the variance of the "
        "diagonal *Laplace* posterior, the default of `Subnetwork`, they keep nothing, less than weights drawn at "
        "random. That is no error of the ranking but what it asks for: the distance that it minimises is between "
        "weights, not between functions. The variance `1 / (H_pp + prior)` is largest where the curvature is least, "
        "and a weight without curvature is one that the outputs do not depend on. " + _ranks(tanh, relu),
    ]


def _ranks(tanh: dict[str, Any], relu: dict[str, Any]) -> str:
    """The measured reason why the Laplace variance chooses weights that do not matter."""
    both = [part["ranks"] for part in (tanh, relu)]
    case = next(name for name in tanh["cases"] if "Laplace variance" in name)
    share = [part["cases"][case]["influence"] for part in (tanh, relu)]
    prior, influence, swag = ([ranks[key] for ranks in both] for key in ("at the prior", "influence", "swag"))
    return (
        f"Of all weights {prior[0]:.0%} (tanh) and {prior[1]:.0%} (ReLU) have more than 99 % of the prior's variance; "
        "ranks of the Laplace variance and of the squared derivatives of the outputs over the line correlate by "
        f"{influence[0]:.2f} and {influence[1]:.2f}, and the chosen weights hold {share[0]:.0e} and {share[1]:.0e} of "
        "the squared derivatives (column *influence*). SGD does the opposite, since such weights get no gradient: the "
        f"ranks of the two variances correlate by {swag[0]:.2f} and {swag[1]:.2f}. The magnitude of the weights, which "
        "costs nothing, is a better ranking too: with weight decay, what does not matter is small."
    )


def _subnetwork_table(cases: dict[str, Any]) -> str:
    whole = next(iter(cases.values()))["regions"]
    rows = []
    for name, found in cases.items():
        at, between = found["regions"]["at the data"], found["regions"]["between"]
        shape = f"{between / at:.1f}" if at > 1e-6 else "none at the data"
        sds = [f"{value:.3f}" for value in found["regions"].values()]
        kept = [f"{between / whole['between']:.0%}", shape, f"{found['curvature']:.2g}", f"{found['influence']:.2g}"]
        rows.append([name, found["weights"], *sds, *kept])
    head = ["posterior", "weights", *(f"sd {r}" for r in whole), "between, of the full one's", "between / at the data"]
    head += ["median curvature", "influence"]
    return table(head, rows)
