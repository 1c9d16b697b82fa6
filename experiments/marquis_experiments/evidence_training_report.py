"""The page and the picture of the experiment `evidence-training`, made from its results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture, command, table, write_page

LABELS = {
    "validated": "weight decay by validation",
    "evidence": "precisions by evidence",
    "temperature": "weight decay by validation, temperature-scaled",
    "ensemble": "deep ensemble of the first",
}
PAPER = {
    "mnist-mlp": {"validated": (98.22, -0.061), "evidence": (98.38, -0.053)},
    "mnist-cnn": {"validated": (99.40, -0.017), "evidence": (99.46, -0.016)},
    "fashion-mnist-mlp": {"validated": (88.09, -0.347), "evidence": (89.83, -0.305)},
    "fashion-mnist-cnn": {"validated": (91.39, -0.258), "evidence": (92.06, -0.233)},
}
"""The tutorial's table: accuracy in percent and log-likelihood per test row."""
TITLES = {
    "mnist-mlp": "MNIST, MLP",
    "mnist-cnn": "MNIST, CNN",
    "fashion-mnist-mlp": "Fashion-MNIST, MLP",
    "fashion-mnist-cnn": "Fashion-MNIST, CNN",
}
LATE = {"mnist-mlp": 0.0557, "fashion-mnist-mlp": 0.2881}
"""Validation NLL with evidence of the default size's first run, whose updates began with epoch 6 of 12."""
COLOURS = (BLUE, ORANGE, GREEN, GREY, "#8a5aa8", "#b8912f")


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `evidence-training.md` and its picture next to the results."""
    done = results["studies"]
    draw(folder / "evidence-training.png", done)
    missing = [TITLES[name] for name in results["planned"] if name not in done]
    missing += [f"{TITLES[name]}: ensemble" for name, study in done.items() if "ensemble" not in study["rows"]]
    pieces = [
        "# Training with evidence",
        f"Written by {command('evidence-training', results['size'])} from its results. *By validation*: one network "
        "per weight decay of a grid, the one of least validation NLL kept. *By evidence*: `mq.evidence.train`, one "
        "network, one prior precision per layer, updated by the Kronecker evidence of the training rows; the "
        "validation rows are not used for anything (nor are they trained on, so that both see the same data). The "
        "same initial weights, order of rows and learning rates for both. Log-likelihoods are per test row, ± their "
        "standard error over test rows; one seed, so differences between seeds are not in it.",
    ]
    if missing:
        pieces.append(f"**Not complete.** Not run yet: {'; '.join(missing)}. The same command goes on from here.")
    if any(study["data"] == "digits" for study in done.values()):
        pieces.append("**Not the sets in the titles**: scikit-learn's digits stood in for them.")
    pieces += [
        "## Scores on test rows",
        scores_table(done),
        "![Log evidence and precisions along training](evidence-training.png)",
        "Above: log evidence per training row after each update; the network of the largest is kept. Below: precision "
        "of each layer; the dashed line is the single precision that validation chose.",
        "## What came out",
        verdict(done),
        "## What was chosen on what",
        choices(done),
        "## What was cut",
        cuts(done),
    ]
    return write_page(folder / "evidence-training.md", pieces)


def scores_table(done: dict[str, Any]) -> str:
    """Networks and methods by scores, the tutorial's beside ours."""
    lines = []
    for name, study in done.items():
        for method, label in LABELS.items():
            row = study["rows"].get(method)
            if row is None:
                lines.append([f"{TITLES[name]}: {label}", *["*not run*"] * 3, ""])
                continue
            paper = PAPER.get(name, {}).get(method)
            lines.append(
                [
                    f"{TITLES[name]}: {label}",
                    f"{100 * row['accuracy']:.2f}",
                    f"{-row['nll']:.4f} ± {row['nll_error']:.4f}",
                    f"{row['ece']:.4f}",
                    "" if paper is None else f"{paper[0]:.2f} / {paper[1]:.3f}",
                ]
            )
    return table(["network: method", "accuracy, %", "log-likelihood", "ECE", "tutorial: acc / logLik"], lines)


def verdict(done: dict[str, Any]) -> str:
    """For each study: which was better, and whether the tutorial's figures were reached."""
    lines = []
    for name, study in done.items():
        before, after = study["rows"]["validated"], study["rows"]["evidence"]
        gain = before["nll"] - after["nll"]
        points = 100 * (after["accuracy"] - before["accuracy"])
        line = (
            f"- {TITLES[name]}: evidence {'better' if gain > 0 else '**worse**'} than validation by {abs(gain):.4f} "
            f"nats per row{_small(gain, before, after)}, accuracy {points:+.2f} points."
        )
        paper = PAPER.get(name)
        if paper is not None:
            reached = -after["nll"] >= paper["evidence"][1] and 100 * after["accuracy"] >= paper["evidence"][0]
            line += f" The tutorial's figures for evidence: {'reached' if reached else '**not reached**'}."
        best = min(study["rows"], key=lambda method: study["rows"][method]["nll"])
        lines.append(f"{line} Best log-likelihood: {LABELS[best]}.")
    return "\n".join(lines) or "*Nothing yet.*"


def _small(gain: float, before: dict[str, float], after: dict[str, float]) -> str:
    error = max(before["nll_error"], after["nll_error"])
    return f" (the standard error of either is {error:.4f})" if abs(gain) < error else ""


def choices(done: dict[str, Any]) -> str:
    """The grids, and what evidence and temperature came to."""
    lines = []
    for name, study in done.items():
        grid = ", ".join(f"{row['precision']:g}: {row['nll']:.4f}" for row in study["grid"])
        ends = (study["grid"][0]["precision"], study["grid"][-1]["precision"])
        edge = " (an end of the grid)" if study["precision"] in ends else ""
        found = ", ".join(f"{value:.3g}" for value in study["history"]["precision"])
        lines.append(
            f"- {TITLES[name]} ({study['weights']:,} weights). Validation NLL by precision: {grid}; chosen "
            f"{study['precision']:g}{edge}. Evidence, layer by layer from the input: {found}, after "
            f"{study['history']['epoch']} of {study['study']['recipe']['epochs']} epochs; validation NLL "
            f"{study['evidence_validation']['nll']:.4f}, for comparison only. Temperature {study['temperature']:.3f}, "
            "on validation rows."
        )
    if done:
        schedule = "; ".join(
            f"{TITLES[name]}: from epoch {study['study']['burn_in']} on, every {study['study']['every']}"
            for name, study in done.items()
        )
        lines.append(f"- Updates of the precisions ({schedule}).{earlier(done)}")
    lines.append(
        "- Architecture, learning rate and epochs: by hand, from a few trial runs scored on validation rows, and by "
        "the time they take; the same for both ways. Test rows chose nothing."
    )
    return "\n".join(lines)


def earlier(done: dict[str, Any]) -> str:
    """What the page owes its readers about when the updates begin."""
    again = {name: LATE[name] for name in LATE if name in done and done[name]["study"]["burn_in"] == 1}
    if not again or any(study["data"] == "digits" for study in done.values()):
        return ""
    late = [TITLES[name] for name, study in done.items() if study["study"]["burn_in"] > 2]
    changes = ", ".join(
        f"{TITLES[name]} {before:.4f} to {done[name]['evidence_validation']['nll']:.4f}"
        for name, before in again.items()
    )
    return (
        " In a first run they began halfway: precisions start at 1, far below what validation chooses, so the weights "
        "grew while the learning rate was large, and the right precisions came when it had nearly gone. Updates from "
        f"the first epoch on changed the *validation* NLL (from late to early: {changes}), and were taken on the "
        "first of these." + (f" Not run again, for want of time: {', '.join(late)}." if late else "")
    )


def cuts(done: dict[str, Any]) -> str:
    """What differs from the tutorial's experiment."""
    if not done:
        return "*Nothing yet.*"
    epochs = ", ".join(f"{TITLES[name]} {study['study']['recipe']['epochs']}" for name, study in done.items())
    first = next(iter(done.values()))["study"]
    updates = {
        sum(epoch["log_evidence"] is not None for epoch in study["history"]["epochs"]) for study in done.values()
    }
    return (
        f"Epochs: {epochs} (Immer et al.: hundreds). Narrower networks, one seed, grids of a few weight decays, "
        f"ensembles of {first['members']}. With so few updates of the precisions "
        f"({' or '.join(map(str, sorted(updates)))}), each goes all the way to the maximum (MacKay's fixed points) "
        "instead of a few steps of gradient; the Kronecker factors of the updates are sketched (one random projection "
        "of the output's curvature per datum). CIFAR-10 is not run: there is no data."
    )


def draw(path: Path, done: dict[str, Any]) -> None:
    """Log evidence (above) and precisions (below) along the epochs, one column per study."""
    from matplotlib.ticker import MaxNLocator

    columns = max(1, len(done))
    picture = Picture(2 * columns, columns, width=3.3, height=2.6)
    for column, (name, study) in enumerate(done.items()):
        above, below = picture.axes[column], picture.axes[columns + column]
        history, rows = study["history"], study["study"]["train"]
        updates = [(k, e) for k, e in enumerate(history["epochs"], 1) if e["log_evidence"] is not None]
        above.plot([k for k, _ in updates], [e["log_evidence"] / rows for _, e in updates], "o-", color=BLUE, ms=4)
        above.set(title=TITLES[name], xlim=(0.5, len(history["epochs"]) + 0.5))
        for layer in range(len(history["precision"])):
            values = [epoch["precision"][layer] for epoch in history["epochs"]]
            label = f"layer {layer + 1}"
            below.plot(range(1, len(values) + 1), values, color=COLOURS[layer % len(COLOURS)], lw=1.4, label=label)
        below.axhline(study["precision"], color="black", ls="--", lw=1)
        below.set(xlabel="epoch", yscale="log", xlim=(0.5, len(history["epochs"]) + 0.5))
        below.legend(fontsize=6, frameon=False, ncols=2, loc="best")
        for axis in (above, below):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if column == 0:
            above.set_ylabel("log evidence per row")
            below.set_ylabel("prior precision")
    picture.save(path, dpi=110)
