"""Compares posteriors of a digit classifier on digits, turned digits and shuffled pixels.

Trains a small network on scikit-learn's 8x8 digits, gives it a Laplace posterior with several structures, and measures
how well each detects images that the network was not trained for. Prints a table and writes a report.

    python examples/digits.py --out runs/digits
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader

import marquis as mq
from marquis.report import Page
from marquis.tasks.calibration import expected_calibration_error
from marquis.tasks.ranking import auroc

# structure, estimator: from the most exact to the cheapest
POSTERIORS = [("full", "exact"), ("kronecker", "exact"), ("diagonal", "exact"), ("diagonal", "sketched")]
ALONE, AVERAGED = "#c44e52", "#4c72b0"


def train(data: mq.data.Data, epochs: int, hidden: int) -> nn.Module:
    """Return a trained network of two dense layers; weight decay 1/N is a prior precision of 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1 / len(data))
    for _ in range(epochs):
        for x, y in DataLoader(data.tensor_dataset(), batch_size=64, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model.eval()


def other_images(x: Tensor) -> dict[str, Tensor]:
    """Return images that are not upright digits, by name."""
    order = torch.rand(len(x), 64, generator=torch.Generator().manual_seed(1)).argsort(1)
    return {"turned": x.rot90(1, (-2, -1)), "shuffled": x.flatten(1).gather(1, order).view_as(x)}


def scores(probs: Tensor, y: Tensor, uncertainty: dict[str, Tensor]) -> list[str]:
    """Return accuracy, log loss, calibration error, and the AUROC of every kind of other images."""
    values = [
        float((probs.argmax(1) == y).double().mean()),
        float(nn.functional.nll_loss(probs.clamp_min(1e-30).log(), y)),
        expected_calibration_error(probs, y),
        *(auroc(uncertainty["digits"], value) for name, value in uncertainty.items() if name != "digits"),
    ]
    return [f"{value:.3f}" for value in values]


def figure_of_digits(images: Tensor, alone: Tensor, averaged: Tensor) -> Figure:
    """Draw images over their class probabilities: of the network alone, and averaged over the posterior."""
    figure = Figure(figsize=(1.5 * len(images), 2.8), layout="constrained")
    axes = figure.subplots(2, len(images), height_ratios=[1.2, 1], squeeze=False)
    classes = torch.arange(10)
    for column, (top, bottom) in enumerate(axes.T):
        top.imshow(images[column].squeeze(), cmap="gray_r")
        top.set_axis_off()
        bottom.bar(classes - 0.2, alone[column], 0.4, color=ALONE, label="trained network")
        bottom.bar(classes + 0.2, averaged[column], 0.4, color=AVERAGED, label="averaged over the posterior")
        bottom.set(ylim=(0, 1), xticks=classes, yticks=[])
        bottom.tick_params(labelsize=6, length=0)
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def figure_of_histograms(panels: dict[str, dict[str, Tensor]]) -> Figure:
    """Draw one panel of histograms for every score."""
    figure = Figure(figsize=(5 * len(panels), 3), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        bins = torch.linspace(0, float(torch.cat(list(values.values())).max()), 30)
        for name, value in values.items():
            axes.hist(value, bins, alpha=0.55, density=True, label=name)
        axes.set(title=title, yticks=[])
        axes.legend(frameon=False)
    return figure


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description="Compare posteriors of a digit classifier.")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the report")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=32, help="width of the hidden layer")
    options = parser.parse_args()

    digits, test = mq.data.load("digits", "train"), mq.data.load("digits", "test")
    assert test.y is not None  # some data sets have no labels; digits do
    model = train(digits, options.epochs, options.hidden)
    images = {"digits": test.x, **other_images(test.x)}
    with torch.no_grad():
        alone = {name: model(x).softmax(1) for name, x in images.items()}
    uncertainty = {name: 1 - probs.amax(1) for name, probs in alone.items()}
    panels = {"1 − confidence of the trained network": uncertainty}
    rows = [["trained network", "", "", *scores(alone["digits"], test.y, uncertainty)]]
    averaged: dict[str, Tensor] = {}
    for structure, estimator in POSTERIORS:
        start = time.perf_counter()
        la = mq.Laplace(model, "categorical", structure, estimator)
        la.fit(DataLoader(digits.tensor_dataset(), batch_size=256), progress=False)
        la.tune()
        seconds = time.perf_counter() - start
        predictions = {name: la.predict(x) for name, x in images.items()}
        information = {name: prediction.mutual_information for name, prediction in predictions.items()}
        probs = predictions["digits"].probs
        assert probs is not None  # always there for a categorical likelihood
        rows.append([f"{structure}, {estimator}", f"{seconds:.1f} s", f"{float(la.log_evidence()):.0f}"])
        rows[-1] += scores(probs, test.y, information)
        if structure == "kronecker":
            panels["mutual information of the posterior"] = information
            averaged = {name: p.probs for name, p in predictions.items() if p.probs is not None}

    columns = ["posterior", "time", "log Z", "accuracy", "log loss", "ECE", "turned", "shuffled"]
    console = Console()
    table = Table(title="Held-out digits, and AUROC of other images", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column == "posterior" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)

    options.out.mkdir(parents=True, exist_ok=True)
    page = Page("What does a digit classifier not know?")
    page.text(
        "A network of two dense layers was trained on 8x8 digits and given a Laplace posterior with several structures "
        "of the curvature. Prior precisions were tuned by the evidence."
    )
    page.heading("Turned digits")
    shown = alone["turned"].amax(1).argsort(descending=True)[: 8 * (len(test.x) // 8) : len(test.x) // 8]
    page.figure(
        "digits",
        figure_of_digits(images["turned"][shown], alone["turned"][shown], averaged["turned"][shown]),
        "Turned digits, each with two predictions: the trained network, and averaged over the posterior.",
    )
    page.heading("Detection of other images")
    page.table(columns, rows)
    page.text(
        "Log Z: the evidence. Turned, shuffled: AUROC, the probability that such an image has a larger score than a "
        "digit. The score is one minus the confidence for the trained network, and the mutual information of label and "
        "weights for the posteriors."
    )
    page.figure("entropy", figure_of_histograms(panels), "Histograms of both scores for digits and other images.")
    page.write(options.out / "report.html")
    console.print(f"report: {options.out / 'report.html'}")


if __name__ == "__main__":
    main()
