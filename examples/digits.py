"""What does a digit classifier not know?

Trains a small network on scikit-learn's 8x8 digits, computes the curvature of its loss in several ways, turns
it into a distribution over weights, and asks how uncertain the network is about digits, about digits lying on
their side, and about pictures with shuffled pixels. Prints tables and writes a report.

    python examples/digits.py --out runs/digits
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import marquis as mq
from bayes import linearised_samples, tune
from digits_pictures import picture_of_digits, picture_of_histograms
from marquis.report import Page

Predictor = Callable[[Tensor], Tensor]  # pictures -> class probabilities

# structure, estimator: from the reference to the cheapest
CURVATURES = [
    ("full", "exact"),
    ("kronecker", "exact"),
    ("diagonal", "exact"),
    ("diagonal", "sketched"),
    ("diagonal", "approximate"),
]
PREDICTING = [("full", "exact"), ("kronecker", "exact"), ("diagonal", "exact"), ("diagonal", "sketched")]
SAMPLES = 100


@dataclass
class Questions:
    """Pictures the network knows and pictures it cannot know."""

    known: Tensor
    labels: Tensor
    unknown: dict[str, Tensor]


def pictures() -> tuple[Tensor, Tensor, Questions]:
    """Training digits, and what the network is asked about afterwards."""
    train, test = mq.data.load("digits", "train"), mq.data.load("digits", "test")
    assert train.y is not None and test.y is not None  # some data sets have no labels; digits do
    generator = torch.Generator().manual_seed(1)
    x = test.x.double()
    order = torch.rand(x.shape[0], 64, generator=generator).argsort(1)
    shuffled = x.flatten(1).gather(1, order).view_as(x)
    unknown = {"sideways": x.rot90(1, (-2, -1)), "shuffled": shuffled}
    return train.x.double(), train.y, Questions(x, test.y, unknown)


def train(x: Tensor, y: Tensor, likelihood: mq.Categorical, epochs: int, hidden: int) -> nn.Module:
    """Fit a network of two dense layers by Adam, under a Gaussian prior of precision 1 on its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in track(range(epochs), "training", transient=True):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            penalty = sum(parameter.square().sum() for parameter in model.parameters())
            loss = -likelihood.log_prob(model(x[batch]), y[batch]).sum() / len(batch) + 0.5 * penalty / len(x)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def entropy(probabilities: Tensor) -> Tensor:
    """Uncertainty about the class, in nats: 0 when certain, log 10 = 2.3 when all classes are alike."""
    return torch.special.entr(probabilities).sum(-1)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Expected calibration error: confidence against the share of right answers, averaged over bins."""
    confidence, answer = probabilities.max(-1)
    right = (answer == labels).double()
    index = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=confidence.dtype).index_add(0, index, right - confidence)
    return float(gap.abs().sum() / len(labels))


def scores(predict: Predictor, questions: Questions) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Quality on known pictures, and how well entropy tells unknown pictures from known ones."""
    probabilities = predict(questions.known)
    chosen = probabilities.gather(1, questions.labels[:, None]).clamp_min(1e-300)
    found = {
        "accuracy": float((probabilities.argmax(-1) == questions.labels).double().mean()),
        "NLL": float(-chosen.log().mean()),
        "ECE": calibration_error(probabilities, questions.labels),
    }
    entropies = {"digits": entropy(probabilities)}
    for name, unknown in questions.unknown.items():
        entropies[name] = entropy(predict(unknown))
        is_unknown = torch.cat([torch.zeros(len(questions.known)), torch.ones(len(unknown))])
        both = torch.cat([entropies["digits"], entropies[name]])
        found[f"AUROC {name}"] = float(roc_auc_score(is_unknown, both))
    return found, entropies


def plain(model: nn.Module) -> Predictor:
    """Class probabilities of the trained network, without any weight uncertainty."""

    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        return model(x).softmax(-1)

    return predict


def averaged(model: nn.Module, posterior: Any) -> Predictor:
    """Class probabilities averaged over weights drawn from the posterior, with the linearised network."""

    def predict(x: Tensor) -> Tensor:
        return linearised_samples(model, x, posterior, SAMPLES, seed=2).softmax(-1).mean(0)

    return predict


def compare_curvatures(
    model: nn.Module, x: Tensor, likelihood: mq.Categorical
) -> tuple[dict[tuple[str, str], Any], list[list[str]]]:
    """Compute each curvature of the training data and say how far its diagonal is from the exact one."""
    found: dict[tuple[str, str], Any] = {}
    rows = []
    first = slice(0, next(model.parameters()).numel())  # weights of the first layer, where approximations show
    exact = mq.curvature.ggn(model, x, likelihood, "diagonal", "exact").diagonal()
    for structure, estimator in CURVATURES:
        generator = torch.Generator().manual_seed(3)
        start = time.perf_counter()
        matrix = mq.curvature.ggn(model, x, likelihood, structure, estimator, generator=generator)
        seconds = time.perf_counter() - start
        diagonal = matrix.diagonal()
        rows.append(
            [
                f"{structure}, {estimator}",
                f"{seconds:.2f} s",
                f"{float((diagonal - exact).norm() / exact.norm()):.1%}",
                f"{float(diagonal[first].sum() / exact[first].sum()):.2f}",
                f"{float(matrix.add_diagonal(1.0).logdet()):.0f}",
            ]
        )
        found[structure, estimator] = matrix
    return found, rows


def show(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description="What does a digit classifier not know?")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the report")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=32, help="width of the hidden layer")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()

    likelihood = mq.Categorical()
    x, y, questions = pictures()
    model = train(x, y, likelihood, options.epochs, options.hidden)
    log_likelihood = float(likelihood.log_prob(model(x), y).sum().detach())

    curvatures, curvature_rows = compare_curvatures(model, x, likelihood)
    curvature_columns = ["curvature", "time", "off by", "layer 1", "log det"]
    show(console, f"Curvature of the loss on {len(x)} digits", curvature_columns, curvature_rows)

    rows = []
    found, entropies = scores(plain(model), questions)
    histograms = {"network alone": entropies}
    rows.append(["network alone", "", "", *(f"{value:.3f}" for value in found.values())])
    uncertain = None
    for key in PREDICTING:
        posterior = tune(model, curvatures[key], log_likelihood)
        predict = averaged(model, posterior)
        found, entropies = scores(predict, questions)
        name = ", ".join(key)
        settings = [f"{posterior.prior_precision:.2g}", f"{posterior.log_evidence:.0f}"]
        rows.append([name, *settings, *(f"{value:.3f}" for value in found.values())])
        if uncertain is None:
            uncertain = predict
            histograms[f"averaged over weights ({name})"] = entropies
    columns = ["weights", "prior", "log Z", *found]
    show(console, "Known digits, and pictures the network cannot know", columns, rows)
    assert uncertain is not None

    page = Page("What does a digit classifier not know?")
    page.text(
        "A network of two dense layers was trained on 8x8 digits. The curvature of its loss says how "
        "sharply the data determine each weight; its inverse is the covariance of a distribution over "
        "weights."
    )
    page.heading("Digits it knows, and pictures it cannot know")
    digits = picture_of_digits(questions, plain(model), uncertain)
    page.picture("digits", digits, "Pictures, each with two predictions: network alone, averaged over weights.")
    page.table(columns, rows)
    page.text(
        "Prior: the precision with the highest evidence log Z. NLL: mean negative log probability of the right "
        "class. ECE: gap between confidence and share of right answers. AUROC: the chance that the prediction "
        "for an unknown picture has a higher entropy than that for a known one (0.5 is guessing, less is worse)."
    )
    spread = picture_of_histograms(histograms)
    page.picture("entropy", spread, "Histograms of predictive entropy for known and unknown pictures.")
    page.heading("Curvature, several ways")
    page.table(curvature_columns, curvature_rows)
    page.text(
        "Off by: relative error of the diagonal. Layer 1: sum over the first layer's diagonal, as a share of the exact "
        "one. Log det: of H + I. Exact: no error. Sketched: one random column instead of nine, unbiased, for the price "
        "of one backward pass. Approximate: only the diagonal flows backwards; biased."
    )
    page.write(options.out / "report.html")
    console.print(f"report: {options.out / 'report.html'}")


if __name__ == "__main__":
    main()
