"""One small model of every kind, on data of shape 1x4x4, for the tests of what they share."""

from __future__ import annotations

import copy
import functools

import torch

from marquis.autoencoders import (
    Autoencoder,
    DropoutAutoencoder,
    EnsembleAutoencoder,
    LaplacianAutoencoder,
    LearntVarianceAutoencoder,
    MeanFieldAutoencoder,
    VariationalAutoencoder,
    fit_posthoc,
    for_data,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPE, LATENT = (1, 4, 4), 2


class NoTangent(torch.autograd.Function):
    """Twice its input, without a forward-mode derivative."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def networks(seed=0, dtype=torch.float64):
    encoder, decoder = for_data(SHAPE, LATENT, 0.25, seed=seed)
    return encoder.to(dtype), decoder.to(dtype)


def data(n=6, seed=0):
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def posthoc(likelihood="gaussian", missing=False, **options):
    trained = Autoencoder(*networks(), likelihood, missing=missing)
    return fit_posthoc(trained, [data(20, seed=1)], progress=False, **options)


MODELS = {
    "plain": lambda **o: Autoencoder(*networks(), **o),
    "learnt-variance": lambda **o: LearntVarianceAutoencoder(*networks(), **o),
    "vae": lambda **o: VariationalAutoencoder(*networks(), **o),
    "dropout": lambda **o: DropoutAutoencoder(*networks(), **o),
    "ensemble": lambda **o: EnsembleAutoencoder(*networks(), members=3, seed=1, **o),
    "mean-field": lambda **o: MeanFieldAutoencoder(*networks(), num_data=20, generator=generator(), **o),
    "posthoc": lambda **o: posthoc(**o),
    "laplacian": lambda **o: LaplacianAutoencoder(*networks(), num_data=20, generator=generator(), **o),
}
BERNOULLI = [name for name in MODELS if name != "learnt-variance"]
CASES = [*((name, "gaussian") for name in MODELS), *((name, "bernoulli") for name in BERNOULLI)]
TRAINED = [name for name in MODELS if name not in ("posthoc", "laplacian")]  # the latter has tests of its own


@functools.cache
def cached(name, likelihood, missing):
    torch.manual_seed(0)
    options = {} if likelihood == "gaussian" else {"likelihood": likelihood}
    return MODELS[name](missing=missing, **options)


def make(name, likelihood="gaussian", missing=False):
    return copy.deepcopy(cached(name, likelihood, missing))
