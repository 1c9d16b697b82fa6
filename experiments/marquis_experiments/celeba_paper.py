"""What `celeba` found beside the paper's Table 4, for both ways to count neighbours."""

from __future__ import annotations

from marquis_experiments.celeba_rows import LAE, WARMER, Faces
from marquis_experiments.pages import table

PAPER = {
    "Arched_Eyebrows": (0.50, 0.52, 0.55, 0.60),
    "Attractive": (0.52, 0.50, 0.49, 0.53),
    "Bald": (0.98, 0.98, 0.98, 0.98),
    "Wearing_Lipstick": (0.52, 0.49, 0.50, 0.54),
    "Heavy_Makeup": (0.45, 0.52, 0.49, 0.56),
    "overall": (0.73, 0.72, 0.73, 0.74),
}
"""LAE Table 4: AE, VAE, MC-AE, LAE online."""
COLUMNS = {"ae": "AE", "vae": "VAE", "dropout": "MC-AE", LAE: "LAE", WARMER: "LAE, T = 0.1"}
"""Rows of ours that are set beside the paper's; of the autoencoder there is only one way, as it has no draws."""
WAYS = {"codes": "k counts codes, as published", "data": "k counts images"}


def beside_the_paper(faces: Faces) -> list[str]:
    """The published numbers beside ours, by both ways, as far as the attributes are the same."""
    names = [name for name in COLUMNS if name in faces.by_name]
    if LAE not in names or not set(PAPER) - {"overall"} <= set(faces.shown):
        return []
    pieces = [
        "## Beside the paper's Table 4",
        "The published way lets k count codes: the nearest k of all copies of all labelled images. Where draws are "
        "narrow, these are copies of one image, so that kNN is reduced to one neighbour, which costs accuracy and has "
        "nothing to do with uncertainty. Where k counts images (k times the number of copies are asked), narrow draws "
        "change nothing, and wide ones may help: the fair way. *Reached*: at least the paper's number for LAE, after "
        "rounding to two digits.",
    ]
    for way, said in WAYS.items():
        pieces += [f"### {said[0].upper()}{said[1:]}", paper_table(faces, names, way), tally(faces, names, way)]
    return [*pieces, bald(faces)]


def reached(faces: Faces, name: str, what: str, way: str) -> bool:
    """Whether a row has the number that the paper has for LAE, to the paper's two digits."""
    return round(faces.score(name, what, way)[0], 2) >= PAPER[what][3]


def paper_table(faces: Faces, names: list[str], way: str) -> str:
    """A line for each number of Table 4."""
    judged = [name for name in names if name in (LAE, WARMER)]
    lines = []
    for what, theirs in PAPER.items():
        ours = [f"{faces.score(name, what, way)[0]:.2f}" for name in names]
        verdicts = ["yes" if reached(faces, name, what, way) else "no" for name in judged]
        lines.append([what.replace("_", " "), *(f"{value:.2f}" for value in theirs), *ours, *verdicts])
    head = [*(f"paper: {kind}" for kind in ("AE", "VAE", "MC-AE", "LAE")), *(f"ours: {COLUMNS[n]}" for n in names)]
    return table(["", *head, *(f"reached by {COLUMNS[name]}" for name in judged)], lines)


def tally(faces: Faces, names: list[str], way: str) -> str:
    """How many numbers were reached, by every row: a number that all reach says nothing about uncertainty."""
    counts = {name: sum(reached(faces, name, what, way) for what in PAPER) for name in names}
    said = ", ".join(f"{COLUMNS[name]} {count}" for name, count in counts.items())
    return f"Of the paper's {len(PAPER)} numbers for LAE are reached by ours: {said}."


def bald(faces: Faces) -> str:
    """What the rarest attribute's number can mean here."""
    most, target = faces.majority("Bald"), PAPER["Bald"][3]
    able = "is" if round(most, 2) >= target else "is not"
    return (
        f"*Bald*: all four models of the paper have {target:.2f}, which is about the share of people who are not: "
        f"always saying no. Among our {faces.settings['test']:,} test images, all that there are, that share is "
        f"{100 * most:.1f} per cent, so that {target:.2f} {able} within reach of one who never says yes; more can "
        "only be had by finding bald people with hardly a wrong answer, from ten labelled images of which mostly none "
        "is bald."
    )
