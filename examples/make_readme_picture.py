"""Draws docs/assets/readme.png, the picture at the top of the README.

    python examples/make_readme_picture.py

Left: a regression with a gap in its data. Right: digits on their side, as a trained network sees them and as
the same network does once its weights are a distribution.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import digits
import marquis as mq
from bayes import flat_parameters, tune

TARGET = Path(__file__).resolve().parent.parent / "docs/assets/readme.png"
ALONE, AVERAGED, DATA = "#c44e52", "#4c72b0", "#333333"


def regression() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Data with a gap, and the prediction with its total standard deviation on a grid."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-3, -1, 30), torch.linspace(1, 3, 30)]).double().unsqueeze(1)
    y = torch.sin(2 * x) + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    likelihood = mq.Gaussian(noise_precision=100.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(3000):
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        loss = -likelihood.log_prob(model(x), y).sum() + 0.5 * penalty
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    posterior = mq.curvature.ggn(model, x, likelihood, "full", "exact").add_diagonal(1.0)
    grid = torch.linspace(-5, 5, 300, dtype=x.dtype).unsqueeze(1)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    pieces = jacrev(lambda w: functional_call(model, w, (grid,)))(weights)
    jacobian = torch.cat([piece.flatten(2) for piece in pieces.values()], dim=-1)
    assert jacobian.shape[-1] == flat_parameters(model).numel()
    prediction = likelihood.predictive(model(grid).detach(), posterior.quadratic(jacobian, diagonal_only=True))
    return x, y, grid, prediction.mean, prediction.total_variance.sqrt()


def sideways() -> tuple[Tensor, Tensor, Tensor]:
    """Digits on their side, and the class probabilities of the network alone and averaged over weights."""
    likelihood = mq.Categorical()
    x, y, questions = digits.pictures()
    model = digits.train(x, y, likelihood, epochs=60, hidden=32)
    log_likelihood = float(likelihood.log_prob(model(x), y).sum().detach())
    posterior = tune(model, mq.curvature.ggn(model, x, likelihood, "full", "exact"), log_likelihood)
    first = [int((questions.labels == label).nonzero()[0]) for label in (0, 2, 3, 5, 7, 9)]
    pictures = questions.unknown["sideways"][first]
    return pictures, digits.plain(model)(pictures), digits.averaged(model, posterior)(pictures)


def main() -> None:
    """Draw and save."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.25])
    left, right = figure.add_subfigure(grid[0, 0]), figure.add_subfigure(grid[0, 1])

    x, y, line, mean, deviation = (value.flatten().numpy() for value in regression())
    panel = left.subplots()
    for times in (3, 2, 1):
        panel.fill_between(line, mean - times * deviation, mean + times * deviation, color=AVERAGED, alpha=0.18, lw=0)
    panel.plot(line, mean, color=AVERAGED)
    panel.plot(x, y, ".", color=DATA, ms=4)
    panel.set(ylim=(-4, 4), xlim=(-5, 5), xticks=[], yticks=[], title="unsure where there are no data")

    pictures, alone, averaged = sideways()
    axes = right.subplots(2, len(pictures), height_ratios=[1, 1.2])
    for column, (top, bottom) in enumerate(axes.T):
        top.imshow(pictures[column].squeeze().numpy(), cmap="gray_r")
        top.set_axis_off()
        classes = torch.arange(10).numpy()
        bottom.bar(classes - 0.2, alone[column].numpy(), 0.4, color=ALONE, label="trained network alone")
        bottom.bar(classes + 0.2, averaged[column].numpy(), 0.4, color=AVERAGED, label="averaged over weights")
        bottom.set(ylim=(0, 1), xticks=classes, yticks=[])
        bottom.tick_params(labelsize=6, length=0)
        for side in ("top", "left", "right"):
            bottom.spines[side].set_visible(False)
    right.suptitle("digits on their side: which class?")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    right.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TARGET, dpi=110)
    print(TARGET)


if __name__ == "__main__":
    main()
