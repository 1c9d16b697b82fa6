"""Small trained models and runs for the tests of the report; each is made once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch

from marquis.autoencoders import (
    Autoencoder,
    LaplacianAutoencoder,
    VariationalAutoencoder,
    fit,
    fit_posthoc,
    for_data,
    save,
)
from marquis.data import Data, DataModule
from marquis.report import Effort
from marquis.run import Run, TrainingSettings

TINY = Effort(rows=40, samples=4, edge=6, map_samples=3, batch=16)
KINDS = {"laplacian": LaplacianAutoencoder, "plain": Autoencoder, "variational": VariationalAutoencoder}


def rows(shape, n=40, seed=0):
    """Data of which the last entry is constant."""
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))
    x.flatten(1)[:, -1] = 0.5
    return x


@functools.cache
def trained(kind, shape=(1, 4, 4), latent=2, likelihood="gaussian"):
    """A model after one epoch, and the rows of its history."""
    torch.manual_seed(0)
    encoder, decoder = for_data(shape, latent, 0.2, seed=0)
    if kind == "posthoc":
        return fit_posthoc(Autoencoder(encoder, decoder), [rows(shape)], progress=False), []
    options = {} if likelihood == "gaussian" else {"likelihood": likelihood}
    model = KINDS[kind](encoder, decoder, missing=len(shape) == 1, **options)
    data = DataModule(Data(rows(shape), None, "made up", "train"), batch_size=20, validation=0.25)
    with tempfile.TemporaryDirectory() as folder:
        done = fit(model, data, folder, max_epochs=1, progress=False, tensorboard=False)
    return model.eval(), done.rows


def finished_run(path: Path, **settings) -> Run:
    """What `marquis train` does, without its report."""
    run = Run.create(path, TrainingSettings(**settings, epochs=1, batch_size=32, width=0.1))
    data = run.data_module
    data.setup()
    model = run.spec.build(0)
    fit(model, data, run.path, max_epochs=1, progress=False, tensorboard=False)
    save(run.model_path, run.spec.finish(model, data.train_dataloader(), progress=False), run.spec)
    return run


def write_csv(path: Path, columns: int = 3, n: int = 60) -> Path:
    """A table with names that are hostile to pages and pictures, and a missing entry."""
    values = np.random.RandomState(0).randn(n, columns) * [1000.0, *[1.0] * (columns - 1)]
    text = [[f"{value:.5g}" for value in row] for row in values]
    text[3][1] = ""
    names = ["<script>alert(1)</script>", "$x^{", "_hidden", *[f"c{i}" for i in range(columns)]][:columns]
    path.write_text("\n".join([",".join(names), *(",".join(row) for row in text)]) + "\n")
    return path
