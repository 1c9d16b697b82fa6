"""An autoencoder that knows what it does not know, beside two that know less.

Trains a Laplacian autoencoder, a plain one and a variational one on scikit-learn's 8x8 digits, all with the same
networks, asks them about digits they have not seen and about pictures that are no digits, prints a table and writes a
report.

    python examples/laplacian_digits.py --out runs/demo
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import marquis as mq
from marquis.autoencoders import Autoencoder, BaseAutoencoder, LaplacianAutoencoder, VariationalAutoencoder, fit
from marquis.report import Comparison, write_comparison

KINDS: dict[str, type[BaseAutoencoder]] = {
    "Laplacian": LaplacianAutoencoder,
    "plain": Autoencoder,
    "variational": VariationalAutoencoder,
}
TEXT = (
    "Three autoencoders with the same networks and a code of two numbers, trained on 8x8 digits. The plain one is a "
    "single network. The variational one has uncertain codes. The weights of the Laplacian one are a Gaussian, whose "
    "precision is the curvature of the loss, collected while it trains; so its codes and its reconstructions are "
    "uncertain where it has seen no data. Shuffled: digits with their pixels in random order. Sideways: digits turned "
    "by 90 degrees."
)


class Bar(Callback):
    """One step of a progress bar per epoch."""

    def __init__(self, name: str, epochs: int, progress: Progress) -> None:
        self.progress, self.task = progress, progress.add_task(name, total=epochs)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance."""
        self.progress.advance(self.task)


def train(
    data: mq.data.DataModule, epochs: int, width: float, console: Console
) -> tuple[dict[str, BaseAutoencoder], dict]:
    """The three models, trained, and one row of numbers per epoch for each."""
    models, history = {}, {}
    with Progress(console=console, transient=True) as progress:
        for name, kind in KINDS.items():
            start = time.perf_counter()
            torch.manual_seed(0)
            encoder, decoder = mq.autoencoders.for_data((1, 8, 8), latent=2, width=width, seed=0)
            model = kind(encoder, decoder, lr=2e-3)
            with tempfile.TemporaryDirectory() as folder:  # for checkpoints, which a minute of training can do without
                options = {"max_epochs": epochs, "patience": epochs, "progress": False, "tensorboard": False}
                trained = fit(model, data, folder, callbacks=[Bar(name, epochs, progress)], **options)
            if kind is Autoencoder:
                model.likelihood = mq.Gaussian(noise_precision=1 / mean_squared_error(model, data.train.x))
            models[name], history[name] = model.eval(), trained.rows
            console.print(f"{name}: {trained.epochs} epochs in {time.perf_counter() - start:.0f} s")
    return models, history


@torch.no_grad()
def mean_squared_error(model: BaseAutoencoder, x: Tensor) -> float:
    """Per pixel: the most likely noise variance of a plain autoencoder, which is trained without one."""
    return float((model(x) - x).square().mean())


def no_digits(x: Tensor) -> dict[str, Tensor]:
    """Pictures that the models have not been trained for."""
    order = torch.rand(len(x), 64, generator=torch.Generator().manual_seed(1)).argsort(1)
    return {"shuffled": x.flatten(1).gather(1, order).view_as(x), "sideways": x.rot90(1, (-2, -1))}


def show(console: Console, comparison: Comparison, rows: int) -> None:
    """Print the numbers."""
    title = f"On {rows} digits that were held out"
    table = Table("", *comparison.table, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in next(iter(comparison.table.values())):
        values = [numbers.get(name, float("nan")) for numbers in comparison.table.values()]
        table.add_row(name, *("-" if value != value else f"{value:.3g}" for value in values))
    console.print(table)


def explore(console: Console, models: list[BaseAutoencoder], test: mq.data.Data, out: Path, live: bool) -> None:
    """Write the explorer's page beside the report, and say how to open it; or open it live."""
    second = no_digits(test.x)["sideways"]
    page = out / "explorer.html"
    mq.explore(models, test, second=second, export=page)
    console.print(f"explorer: open {page} in a browser")
    if live:
        mq.explore(models, test, second=second)
    else:
        console.print("          live: python examples/laplacian_digits.py --explore; of a run: marquis explore RUN")


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description="An autoencoder that knows what it does not know.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the report")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--width", type=float, default=0.5, help="factor on the numbers of hidden units")
    parser.add_argument("--explore", action="store_true", help="open the explorer at the end, until Ctrl-C")
    options = parser.parse_args()
    console = Console()

    data = mq.data.DataModule("digits", batch_size=64)
    data.setup()
    assert data.test is not None and data.test.y is not None  # some data sets have none; digits do
    models, history = train(data, options.epochs, options.width, console)
    x = data.test.x
    comparison = write_comparison(
        models,
        x,
        data.test.y,
        options.out,
        history,
        title="An autoencoder that knows what it does not know",
        text=TEXT,
        out_of_distribution=no_digits(x),
    )
    show(console, comparison, len(x))
    console.print(f"report: {comparison.path}")
    explore(console, [models["Laplacian"], models["variational"]], data.test, options.out, options.explore)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped") from None  # Ctrl-C is no error that needs a traceback
