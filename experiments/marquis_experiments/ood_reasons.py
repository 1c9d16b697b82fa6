"""The second half of `ood`'s page: what makes the variances discriminate, by settings, widths and layers."""

from __future__ import annotations

from typing import Any

from marquis_experiments.ood_tables import COLUMNS, HEADS, LABELS, cell, trained
from marquis_experiments.pages import table

Row = dict[str, Any]

BY_HAND = [
    "In an earlier version of this ablation: width 0.5 has .944 .902 .871 .732 in the four columns, so what a wider "
    "network wins ends at a quarter of the published width; Kronecker factors at temperature 0.1 .951 .919 .958 .918.",
    "By hand, in pilots (convolutional, width 0.25; AUROCs of output and latent variance). 10,000 images, 20 epochs, "
    "default settings: with the *same* variance for all weights .41 and .40, with the learnt ones .88 and .91: it is "
    "the curvature that tells. A prior precision of 10, 1, 0.1 or 0.01 put into the finished posterior changes them by "
    ".01. So does curvature computed anew with four probes: the noise of the sketch is not the limit. With 20 draws "
    ".88/.92, with 150 .89/.94.",
    "More images make a diagonal worse: 30,000 with the same number of steps .77/.83 instead of .86/.93; 55,000 at "
    "temperature 0.1, curvature at every fourth step, .80/.90 after 6 epochs, .77/.88 after 10, .77/.90 after 15, and "
    ".83/.92 after 15 epochs with a falling learning rate. Kronecker factors are not hurt, perhaps because they know "
    "which *combinations* of inputs of a layer never occurred. No rule: on the 8 x 8 digits they win nothing (see "
    "tasks).",
    "For log p it is the number of steps that counts. A plain autoencoder on 55,000 images: .955, .964, .970, .972, "
    ".976, .971, .975 after 2, 5, 10, 15, 20, 25, 30 epochs; at half the published width .965, .951, .966 after 1, 2, "
    "4, in another training .964, .950, .964, .966 after 1, 2, 4, 8: no better; with the learning rate 0.0003 .932, "
    ".946, .959 after 1, 2, 4. A falling learning rate lowers the error inside (18.6 instead of 19.7) but also that "
    "outside: no help early on. At the end of a long training it is one: typicality counts an outside image as typical "
    "if its error is near the training images' mean, so that mean has to be low (see [the full size](ood-full.md): its "
    "first two tables). "
    "Five epochs more are enough: after ten (55,000 images, 50 epochs before, full-size scores) Kronecker factors at "
    "temperature 0.1 have .978, .973, .960, .980 in the four columns, the plain autoencoder .972, .962.",
    "The temperature at which a posterior is *read* can differ from that of training. By networks drawn: Kronecker "
    "factors, 55,000 images, 50 and 5 falling epochs at temperature 0.1, first training, read at 0.001, 0.1, 0.3, 1, "
    "3, 10 (1,000 images, 30 draws): typicality .977, .978, .978, .980, .976, .861, output variance .961, .964, .962, "
    ".954, .904, .708, latent variance .979, .981, .984, .977, .936, .867. So 1, the Laplace posterior proper, looked "
    "best for typicality; over three trainings it wins nothing ([the full size](ood-full.md), first table). After 20 "
    "epochs of 10,000 images it is too warm (500 images, 20 draws): read at 0.1 .963, .942, .944, .958 in the four "
    "columns, at 1 .942, .885, .902, .961.",
    "Through the network's tangent (rows called *linearised*) the same posterior can be read warmer, and then it adds "
    "to log p and typicality what it knows: a draw's error is that of the mean network and its variance, which is "
    "small inside and large outside. The three long trainings at temperatures 0, 0.1, 1, 3, 10, 30 (1,000 images, 40 "
    "draws), typicality: .977, .979, .987, .990, .990, .982; .974, .976, .984, .986, .985, .977; .957, .958, .964, "
    ".970, .967, .941. In the first of them temperature 1 raises the mean error inside from 17.9 to 19.0 and outside "
    "from 66.8 to 95.0; networks drawn at 1 raise it to 19.0 and 69.7 only: inside both have a variance of 1.1, but "
    "outside that of networks saturates (4.4 against 28). Seen through the tangent, variances have the same shape at "
    "every temperature, and so the same AUROC. 10,000 images, 20 epochs, one training "
    "(500 images, 30 draws), linearised at 1: .984 .983 .924 .950 for Kronecker factors at 0.1, .968 .952 .882 .939 "
    "for the default (.963 .943 .879 .935 by networks drawn; another training gains nothing, .953 .917 after .953 "
    ".919); a diagonal post hoc has .82 instead of .74 by the output variance.",
    "Trainings together: the scores of the three long trainings at temperature 0.1 averaged (1,000 images, 20 draws "
    "each) have .980 .973 .976 .991, where the single ones have .982 .978 .963 .981, .980 .974 .952 .986 and .972 "
    ".958 .857 .958. In the variances the average is better than each. Read at temperature 1: .980 .974 .951 "
    ".987.",
    "A plain autoencoder is a cheap start. That of 50 epochs, trained on with Kronecker factors at temperature 0.1 "
    "(first training; 1,000 images, 20 draws), has .977 .968 .870 .956 in the four columns after one epoch, .979 .973 "
    ".929 .972 after four, and .976 .967 .932 .976 after four more with a falling rate. The same from the first step "
    "on, for twice the time: .982 .978 .963 .981.",
    "By networks drawn it is not the curvature alone, also the training with it: Kronecker factors put post hoc around "
    "a plain autoencoder (55,000 images, 30 epochs) give .65/.96 at temperature 1 and .77/.96 at 0.1, a diagonal "
    ".76/.95. Through the tangent it is mostly the curvature: around the plain autoencoder of 10,000 images and 20 "
    "epochs they have .958 .933 .932 .950 in the four columns, by networks drawn .948 .911 .791 .797 (500 images, 30 "
    "draws).",
    "Machines round convolutions differently, and 3,000 steps make another training of that. The default size on "
    "another one, same seeds: Kronecker factors at temperature 0.1 .960 ± .003, .935 ± .008, .912 ± .034, .960 ± .005, "
    "linearised at 1 .975 ± .010, .965 ± .019, .894 ± .033, .948 ± .006; the default .958 ± .005, .931 ± .012, "
    ".830 ± .054, .907 ± .034. So much of any number here is chance.",
]
"""What was found on the way with drafts of this experiment, 500 or 1000 images inside and outside, 20 or 40 draws."""


def reasons(rows: list[Row], training: Row) -> list[str]:
    """The ablation, the widths and the layers, as pieces of the page."""
    recipe = training["ablation"]
    mine = [r for r in rows if r["data"] == recipe["data"] and not r["failed"]]
    ablation = [r for r in mine if r["part"] == "ablation"]
    pieces = ["## What makes the variances discriminate"]
    if ablation:
        pieces += [
            f"One training each, smaller than above, and {ablation[0]['samples']} draws: {trained(recipe)} Each row "
            "changes one setting of the default (the preset: several).",
            _small_table([(LABELS[r["key"]], r) for r in ablation]),
        ]
    networks = [r for r in mine if r["part"] == "network"] + [r for r in ablation if r["key"] == "online-sketched"]
    if len(networks) > 1:
        networks.sort(key=lambda r: (r["architecture"], r["width"]))
        pieces += [
            "The default in networks of other widths, and in a dense one:",
            _small_table([(f"`{r['architecture']}`, width {r['width']:g}", r) for r in networks]),
        ]
    pieces += _lessons(ablation, networks)
    for row in mine:
        if "layers" in row:
            pieces += [
                f"Where the variance comes from: {LABELS[row['key']]}, {row['outside']} outside. Draws that move one "
                "layer only, the others at their means (the mean variance inside and outside in brackets); *all × 0.1* "
                "shrinks every deviation, and is close to the linearised variance.",
                _layer_table(row["layers"]),
                _layer_words(row["layers"]),
            ]
    return pieces if len(pieces) > 1 else []


def _lessons(ablation: list[Row], networks: list[Row]) -> list[str]:
    """What the two tables say, from their numbers; and what was found by hand on the way."""
    said = []
    scores = {r["key"]: r["table"]["output_variance"]["auroc"] for r in ablation}
    if scores:
        base = scores.get("online-sketched", 0.0)
        ordered = sorted(((abs(value - base), key) for key, value in scores.items()), reverse=True)
        said.append(
            "By output variance, the settings that matter most here: "
            + ", ".join(f"{LABELS[key]} ({scores[key] - base:+.2f})" for gap, key in ordered if gap > 0.05)
            + ". One training each: the same training differs by some .02 from epoch to epoch."
        )
    wide = [r for r in networks if r["architecture"] == "fashion-conv"]
    if len(wide) > 1:
        steps = ", ".join(f"{r['table']['output_variance']['auroc']:.2f} at width {r['width']:g}" for r in wide)
        said.append(f"Over-parametrisation: output variance has {steps}.")
    if not wide:
        return said
    said += BY_HAND
    return ["\n\n".join(said)]


def _small_table(rows: list[tuple[str, Row]]) -> str:
    body = [
        [label, *(cell([r["table"][c]["auroc"]]) if c in r["table"] else "-" for c in COLUMNS), f"{r['error']:.2f}"]
        for label, r in rows
    ]
    return table(["", *HEADS, "error inside"], body)


def _layer_table(layers: list[Row]) -> str:
    body = []
    for row in layers:
        name = row["what"] if row["scale"] == 1 else f"{row['what']} × {row['scale']:g}"
        cells = [
            f"{row[f'{part}_auroc']:.3f} ({row[f'{part}_inside']:.2g} / {row[f'{part}_outside']:.2g})"
            if row[f"{part}_outside"] > 0
            else "-"
            for part in ("output", "latent")
        ]
        body.append([name, f"{row['weights']:,}", *cells])
    return table(["moved", "weights", "output variance", "latent variance"], body)


def _layer_words(layers: list[Row]) -> str:
    single = [row for row in layers if row["what"] != "all"]
    said = []
    for part in ("output", "latent"):
        moving = [row for row in single if row[f"{part}_outside"] > 0]
        best = max(moving, key=lambda row: row[f"{part}_auroc"])
        largest = max(moving, key=lambda row: row[f"{part}_inside"])
        worst = min(moving, key=lambda row: row[f"{part}_auroc"])
        said.append(
            f"For the {part} the layer that tells best is `{best['what']}` ({best[f'{part}_auroc']:.2f}, "
            f"{best['weights']:,} weights), the one that varies most `{largest['what']}` "
            f"({largest['weights']:,} weights), and the one that is misled most `{worst['what']}` "
            f"({worst[f'{part}_auroc']:.2f}, {worst['weights']:,} weights)."
        )
    return " ".join(said)
