"""Bayesian optimisation with a neural network: expected improvement on Branin and Hartmann-6.

Needs `pip install marquis[botorch]`. `python examples/bayesian_optimisation.py` runs ten seeds of three methods (about
an hour of one idle core) and writes the table and the picture; runs that are in the results file are not repeated.
`--problem Branin --seeds 2 --evaluations 15 --results short.json --picture short.png` is a short look.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from marquis.integrations.botorch import fit_network

PROBLEMS: dict[str, tuple[Callable[[], Branin | Hartmann], int]] = {
    "Branin": (lambda: Branin(negate=True), 30),
    "Hartmann-6": (lambda: Hartmann(6, negate=True), 50),
}
"""Test functions and evaluations each, the first 2 d of them random; both are maximised."""

METHODS = {"random": "0.5", "Gaussian process": "tab:blue", "Laplace": "tab:orange"}
"""Methods and their colours."""

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "assets"
"""Where finished runs are: those in the file are not repeated."""


def gaussian_process(x: Tensor, y: Tensor) -> Model:
    """Return BoTorch's default Gaussian process, tuned by its evidence."""
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def run(problem: str, method: str, seed: int, evaluations: int | None = None) -> list[float]:
    """Return the simple regret after every evaluation."""
    make, budget = PROBLEMS[problem]
    function = make().double()
    torch.manual_seed(seed)
    dimensions, budget = function.dim, evaluations or budget
    low, high = torch.as_tensor(function.bounds)
    unit = torch.tensor([[0.0] * dimensions, [1.0] * dimensions], dtype=torch.float64)
    x = torch.rand(budget if method == "random" else 2 * dimensions, dimensions, dtype=torch.float64)
    y = function(low + (high - low) * x).unsqueeze(1)
    while len(x) < budget:
        model = fit_network(x, y) if method == "Laplace" else gaussian_process(x, y)
        acquisition = LogExpectedImprovement(model, best_f=y.max())
        candidate, _ = optimize_acqf(
            acquisition, unit, q=1, num_restarts=4, raw_samples=64, options={"maxiter": 40, "batch_limit": 4}
        )
        x = torch.cat([x, candidate.detach()])
        y = torch.cat([y, function(low + (high - low) * candidate.detach()).unsqueeze(1)])
    best = y[:, 0].cummax(0).values
    return [float(f"{regret:.5g}") for regret in (function.optimal_value - best).clamp(min=1e-8).tolist()]


def main() -> None:
    """Run all cells that are not in the results file yet, then print the table and draw the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--problem", choices=list(PROBLEMS), action="append", help="by default both")
    parser.add_argument("--evaluations", type=int)
    parser.add_argument("--results", type=Path, default=FOLDER / "bayesian-optimisation.json")
    parser.add_argument("--picture", type=Path, default=FOLDER / "bayesian-optimisation.png")
    options = parser.parse_args()
    warnings.simplefilter("ignore", BotorchWarning)
    warnings.filterwarnings("ignore")
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    for seed in range(options.seeds):
        for problem in options.problem or PROBLEMS:
            for method in METHODS:
                key = f"{problem}/{method}/{seed}"
                if key not in results:
                    began = time.perf_counter()
                    results[key] = run(problem, method, seed, options.evaluations)
                    print(f"{key}: regret {results[key][-1]:.3g}, {time.perf_counter() - began:.0f} s", flush=True)
                    options.results.write_text(json.dumps(results))
    show(results, options.picture)


def show(results: dict[str, list[float]], picture: Path) -> None:
    """Print the final regret (mean, standard error, median, quartiles), and draw medians over evaluations.

    Of every problem the seeds count that all methods have.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for axis, problem in zip(axes, PROBLEMS, strict=True):
        seeds = [s for s in range(100) if all(f"{problem}/{method}/{s}" in results for method in METHODS)]
        for method, colour in METHODS.items() if seeds else ():
            regrets = torch.tensor([results[f"{problem}/{method}/{seed}"] for seed in seeds])
            quartiles = regrets.quantile(torch.tensor([0.25, 0.5, 0.75]), 0)
            evaluations = range(1, regrets.shape[1] + 1)
            axis.plot(evaluations, quartiles[1], color=colour, label=method)
            axis.fill_between(evaluations, quartiles[0], quartiles[2], color=colour, alpha=0.2, linewidth=0)
            low, middle, high = quartiles[:, -1].tolist()
            mean, error = regrets[:, -1].mean(), regrets[:, -1].std() / len(regrets) ** 0.5
            numbers = f"{mean:.3g} ± {error:.2g} | {middle:.3g} | {low:.3g} to {high:.3g}"
            print(f"| {problem}, {len(seeds)} seeds | {method} | {numbers} |")
        axis.set(title=f"{problem}, {len(seeds)} seeds", yscale="log", xlabel="evaluations", ylabel="regret")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
