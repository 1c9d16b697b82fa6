"""Draws docs/assets/readme.png, the picture at the top of the README.

    python examples/make_readme_picture.py

Left: a regression with a gap in its data. Right: digits turned by 90 degrees, classified by the trained network and by
the same network averaged over its Laplace posterior.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import digits
import marquis as mq

TARGET = Path(__file__).resolve().parent.parent / "docs/assets/readme.png"


def regression() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return data with a gap, and mean and standard deviation of the prediction on a grid."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-3, -1, 30), torch.linspace(1, 3, 30)]).double()[:, None]
    y = torch.sin(2 * x) + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=2e-4)
    for _ in range(3000):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    la = mq.Laplace(model.eval(), "gaussian", structure="full").fit([(x, y)], progress=False)
    la.tune()
    grid = torch.linspace(-5, 5, 300, dtype=x.dtype)[:, None]
    prediction = la.predict(grid)
    return x, y, grid, prediction.mean, prediction.std


def turned() -> tuple[Tensor, Tensor, Tensor]:
    """Return turned digits with class probabilities of the network alone and averaged over the posterior."""
    train, test = mq.data.load("digits", "train"), mq.data.load("digits", "test")
    assert train.y is not None and test.y is not None  # some data sets have no labels; digits do
    torch.manual_seed(0)  # the network of the README
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(train.x), train.y).backward()
        optimiser.step()
    la = mq.Laplace(model.eval(), "categorical").fit([(train.x, train.y)], progress=False)
    la.tune()
    first = [int((test.y == label).nonzero()[0]) for label in (0, 2, 3, 5, 7, 9)]
    images = digits.other_images(test.x)["turned"][first]
    probs = la.predict(images).probs
    assert probs is not None
    return images, model(images).softmax(1).detach(), probs


def main() -> None:
    """Draw and save."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.25])
    left, right = figure.add_subfigure(grid[0, 0]), figure.add_subfigure(grid[0, 1])

    x, y, line, mean, std = (value.flatten().numpy() for value in regression())
    panel = left.subplots()
    for times in (3, 2, 1):
        panel.fill_between(line, mean - times * std, mean + times * std, color=digits.AVERAGED, alpha=0.18, lw=0)
    panel.plot(line, mean, color=digits.AVERAGED)
    panel.plot(x, y, ".", color="#333333", ms=4)
    panel.set(ylim=(-4, 4), xlim=(-5, 5), xticks=[], yticks=[], title="error bars open where there are no data")

    images, alone, averaged = turned()
    axes = right.subplots(2, len(images), height_ratios=[1, 1.2])
    classes = torch.arange(10).numpy()
    for column, (top, bottom) in enumerate(axes.T):
        top.imshow(images[column].squeeze().numpy(), cmap="gray_r")
        top.set_axis_off()
        bottom.bar(classes - 0.2, alone[column].numpy(), 0.4, color=digits.ALONE, label="trained network")
        label = "averaged over the posterior"
        bottom.bar(classes + 0.2, averaged[column].numpy(), 0.4, color=digits.AVERAGED, label=label)
        bottom.set(ylim=(0, 1), xticks=classes, yticks=[])
        bottom.tick_params(labelsize=6, length=0)
        for side in ("top", "left", "right"):
            bottom.spines[side].set_visible(False)
    right.suptitle("turned digits: which class?")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    right.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TARGET, dpi=110)
    print(TARGET)


if __name__ == "__main__":
    main()
