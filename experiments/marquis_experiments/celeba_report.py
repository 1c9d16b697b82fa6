"""Page and picture of `celeba`; every sentence with a verdict is computed from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from marquis_experiments.celeba_paper import WAYS, beside_the_paper
from marquis_experiments.celeba_rows import LAE, NAMES, WARMER, Faces
from marquis_experiments.few_labels_rows import points, verdict
from marquis_experiments.pages import BLUE, GREEN, ORANGE, Picture, command, table, write_page

COLOURS = {
    "labels": "#bbbbbb",
    "pixels": "#777777",
    "ae": BLUE,
    "vae": "#8a6fb0",
    "dropout": GREEN,
    LAE: ORANGE,
    WARMER: "#f0b429",
    "online-sketched-paper-code": "#9c2f4f",
}


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """The page and its bar chart."""
    faces = Faces(results)
    pieces = ["# Forty attributes from ten faces", introduction(results)]
    names = [name for name in NAMES if name in faces.by_name]
    if not names:
        return write_page(folder / "celeba.md", [*pieces, "Nothing is finished yet."])
    draw(folder / "celeba.png", faces, names)
    pieces += [
        "## Accuracy by the published way, per cent",
        "![Accuracy for each attribute](celeba.png)",
        main_table(faces, names),
        "*Majority* is the accuracy of always giving the commoner answer among all evaluated images, which ten labels "
        "do not tell; *balanced* is the mean of the accuracies among those with and those without an attribute, "
        "averaged over all attributes, and 50 for one who always says the same.",
        *beside_the_paper(faces),
        "## The claims",
        claims(faces),
        "## What copies buy",
        copies(faces, names),
    ]
    if (folder / "celeba-faces.png").is_file():
        pieces += ["## What the models draw", pictures(faces), "![Averaged and generated faces](celeba-faces.png)"]
    pieces += ["## What is not the paper's", cut_down(faces)]
    pieces += [f"- {NAMES[name]}, seed {seed}: {why}" for (name, seed), why in faces.failed.items()]
    return write_page(folder / "celeba.md", [piece for piece in pieces if piece])


def introduction(results: dict[str, Any]) -> str:
    """What was done."""
    settings, recipe = results["settings"], results["settings"]["recipe"]
    seeds = len({row["seed"] for row in results["rows"]})
    what = "CelebA at 64 x 64" if recipe["data"] == "celeba" else "Pieces of two photographs (no faces: quick size)"
    return (
        f"Written by {command('celeba', results['size'])} from its results (LAE Table 4, Figure 13). {what}; "
        f"{settings['test']:,} test images, of which {settings['labelled']} have labels, {settings['repetitions']} "
        f"times per seed, the same for every model; all others are evaluated. A labelled image is embedded by "
        f"{settings['copies']} draws of a model with uncertainty; k from 1 to 10 by two-fold cross-validation, one "
        "k for all attributes; evaluated images are classified at their mean code. "
        f"Models of {seeds} seed(s). Errors are standard errors: the larger of that over seeds and that over all draws "
        "of labels."
    )


def main_table(faces: Faces, names: list[str]) -> str:
    """A row for each attribute, a column for each model."""
    lines = []
    for what in (*faces.shown, "overall", "balanced"):
        guess = "50.0" if what == "balanced" else f"{100 * faces.majority(what):.1f}"
        scores = [points(*faces.score(name, what)) for name in names]
        lines.append([what.replace("_", " "), *scores, guess])
    return table(["", *(NAMES[name] for name in names), "majority"], lines)


def claims(faces: Faces) -> str:
    """No difference overall; an advantage for single attributes."""
    rivals = [name for name in ("ae", "vae", "dropout") if name in faces.by_name]
    if LAE not in faces.by_name or not rivals:
        return "Not all rows are there yet."
    said = []
    for own in (row for row in (LAE, WARMER) if row in faces.by_name):
        for name in rivals:
            said.append(f"- {NAMES[own]} against {NAMES[name]}, published way: {compared(faces, own, name, 'codes')}.")
            said.append(f"- The same where k counts images: {compared(faces, own, name, 'data')}.")
    wins = {what: [faces.difference(LAE, name, what) for name in rivals] for what in faces.shown}
    ahead = [what.replace("_", " ") for what, each in wins.items() if all(m > 2 * e for m, e in each)]
    said.append(
        f"- Single attributes on which our default is ahead of every baseline by two standard errors, "
        f"published way: {', '.join(ahead) if ahead else 'none'} (of {len(wins)} shown)."
    )
    names = [name for name in NAMES if name in faces.by_name and name != "labels"]
    below = [NAMES[name] for name in names if faces.score(name, "overall")[0] < faces.majority("overall")]
    beaten = (
        f"- Always giving the commoner answer ({100 * faces.majority('overall'):.1f} overall) beats "
        f"{len(below)} of {len(names)} rows that look at images."
    )
    if "labels" in faces.by_name:
        known = faces.difference(LAE, "labels", "overall")
        beaten += (
            f" Against the commoner answer of the ten labels, our default has {points(*known, sign=True)} points: "
            f"{verdict(*known)}. Where most attributes are rare, accuracy rewards saying no: the balanced row is "
            "the one to read."
        )
    return "\n".join([*said, beaten]) + "\n\n" + caution(faces, len(rivals))


def caution(faces: Faces, rivals: int) -> str:
    """How much the verdicts above are worth."""
    ours = sum(name in faces.by_name for name in (LAE, WARMER))
    said = f"These are {4 * ours * rivals} comparisons at two standard errors, of which chance alone decides about 5 %."
    if len(faces.by_name[LAE]) == 1:
        said += (
            " All are between single trained models: the errors are over draws of labels, and say nothing about what "
            "another start of the training would give."
        )
    return said


def compared(faces: Faces, own: str, name: str, way: str) -> str:
    """A row of ours against another, overall and balanced."""
    each = [faces.difference(own, name, what, way, way) for what in ("overall", "balanced")]
    overall, fair = (f"{points(*pair, sign=True)} points ({verdict(*pair)})" for pair in each)
    return f"overall {overall}, balanced {fair}"


def copies(faces: Faces, names: list[str]) -> str:
    """Copies against mean codes, by both ways to count."""
    lines = []
    for name in names:
        rows = faces.by_name[name].values()
        if all("codes" in row["ways"] for row in rows):
            each = [
                points(*faces.difference(name, name, what, way, "mean"), sign=True)
                for what in ("overall", "balanced")
                for way in ("codes", "data")
            ]
            lines.append([NAMES[name], f"{np.mean([row['width'] for row in rows]):.3f}", *each])
    head = [f"{what}, k counts {way}" for what in ("overall", "balanced") for way in ("codes", "images")]
    return (
        "Accuracy with copies minus accuracy with the mean code of each labelled image only, percentage points; the "
        "ways to count are those of [few labels](few-labels.md), *width* too. Where fewer images vote, the answer is "
        "less often the common one: that can help the balanced accuracy and hurt the overall one.\n\n"
        + table(["model", "width", *head], lines)
    )


def pictures(faces: Faces) -> str:
    """What can be seen, and why nothing else."""
    return (
        f"No person: averages of the reconstructions of {faces.settings['averaged']} training images with an attribute "
        "each (and the root of their averaged variances), and decodings of random codes from a Gaussian with mean and "
        "covariance of the codes. Standard deviations are over draws of the network, averaged over colours."
    )


def cut_down(faces: Faces) -> str:
    """Honest about size."""
    recipe, settings = faces.settings["recipe"], faces.settings
    errors = [
        f"{NAMES[name]} {np.mean([row['squared_error'] for row in rows.values()]):.4f}"
        for name, rows in faces.by_name.items()
        if all("squared_error" in row for row in rows.values())
    ]
    ended = "" if recipe["validation"] else "Training ends after a fixed number of epochs, not when it has converged. "
    return (
        f"{recipe['images']:,} training images (the paper: all 162,770) for {recipe['epochs']} epochs in batches of "
        f"{recipe['batch']} (the paper: 128, until the validation loss stops falling), "
        f"{recipe['width']:g} times the channels 32-32-64-64-64 (the paper does not print its own), "
        f"{settings['copies']} copies (100). {ended}Squared error "
        f"per pixel and colour of reconstructions: {', '.join(errors) or 'not known yet'}. Cross-validation keeps "
        "copies of an image together, and evaluated images are at their mean code, unlike in the published code. "
        "No setting was tuned; but the row T = 0.1 was added after the draws of the default had been seen to be "
        "narrow, and this size was changed (all test images, fewer copies and draws of labels) after a first version "
        "of this page, on 1,000 test images, had been read."
    )


def draw(path: Path, faces: Faces, names: list[str]) -> None:
    """Bars for each attribute by both ways to count neighbours, with the majority guess as a line."""
    what = [*faces.shown, "overall", "balanced"]
    picture = Picture(len(WAYS), 1, 10, 3.3)
    step = 0.8 / len(names)
    for axis, (way, said) in zip(picture.axes, WAYS.items(), strict=True):
        for number, name in enumerate(names):
            scores = [faces.score(name, each, way) for each in what]
            x = np.arange(len(what)) - 0.4 + (number + 0.5) * step
            height, error = np.array([100 * m for m, _ in scores]), np.nan_to_num([200 * e for _, e in scores])
            axis.bar(x, height, step * 0.9, yerr=error, color=COLOURS[name], label=NAMES[name], error_kw={"lw": 0.8})
        for place, each in enumerate(what):
            guess = 50.0 if each == "balanced" else 100 * faces.majority(each)
            axis.plot([place - 0.42, place + 0.42], [guess, guess], color="black", lw=1.2, ls="--")
        axis.plot([], [], color="black", lw=1.2, ls="--", label="majority guess")
        axis.set_xticks(range(len(what)), [each.replace("_", "\n") for each in what])
        axis.set(ylabel="accuracy, per cent", ylim=(30, 100))
        axis.set_title(f"{said} (whiskers: two standard errors)", fontsize=9)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    picture.save(path, dpi=110)
