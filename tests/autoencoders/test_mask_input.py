"""`missing="mask"`: the encoder receives which entries were observed (docs/method/likelihoods.md#missing-entries)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import marquis as mq
from helpers.autoencoder_models import EXACT, LATENT, SHAPE, data, generator
from marquis.autoencoders import KINDS, Autoencoder, EncoderDecoder, ModelSpec, fit_posthoc, load, save
from marquis.errors import DataError

HOLE = (0, 0, 0, slice(2))


def model_of(kind, missing="mask"):
    options = {"members": 2} if kind == "ensemble" else {}
    spec = ModelSpec(kind, SHAPE, LATENT, width=0.25, missing=missing, options=options)
    model = spec.build(0).double()
    if kind in ("lae", "bbb"):
        model.num_data = 20
    if kind == "lae":
        model._online = model._new_learner(20)
    return spec, model


def first_layers(model):
    """The first layer of every encoder."""
    encoders = [module for name, module in model.named_modules() if name.endswith("encoder")]
    return [next(part for part in encoder.modules() if isinstance(part, nn.Linear)) for encoder in encoders]


def with_holes():
    x = data()
    x[HOLE] = math.nan
    return x, torch.where(x.isnan(), 0.0, x), ~x.isnan()


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_takes_data_and_mask_in_training_and_afterwards(kind):
    spec, model = model_of(kind)
    x, filled, mask = with_holes()
    expected = torch.cat([filled, mask.double()], 1).flatten(1)
    seen = []
    watched = first_layers(model)
    assert watched and all(layer.in_features == 2 * math.prod(SHAPE) for layer in watched)
    if kind == "lae":  # its curvature traces the network, which would trip over a hook
        step = model._online.step
        model._online.step = lambda x, *args, **options: seen.append(x.flatten(1)) or step(x, *args, **options)
        model.loss(filled, mask)
    for layer in watched:
        layer.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    if kind != "lae":
        model.loss(filled, mask)
    assert seen and all(torch.equal(inputs, expected) for inputs in seen)
    if kind == "lae-posthoc":
        model = spec.finish(model, [x], progress=False)
        for layer in first_layers(model):
            layer.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    for answer in (model.encode, model.reconstruct):
        seen.clear()
        answer(x, 2)
        assert seen and all(torch.equal(inputs, expected) for inputs in seen)
    seen.clear()
    model(data())  # complete: everything was observed
    assert seen and all(bool((inputs[:, math.prod(SHAPE) :] == 1).all()) for inputs in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_hole_is_not_a_zero(kind):
    """Both ways: with the mask they differ; without it, or with an encoder that ignores it, they do not."""
    x, filled, _ = with_holes()

    def codes(model, x):
        return model.encode(x, 3, generator=generator()).mean

    spec, model = model_of(kind)
    model = spec.finish(model, [data(20, seed=1)], progress=False)
    assert float((codes(model, x) - codes(model, filled))[0].abs().max()) > 1e-3
    torch.testing.assert_close(codes(model, x)[1:], codes(model, filled)[1:], **EXACT)
    spec, model = model_of(kind, missing=True)
    model = spec.finish(model, [data(20, seed=1)], progress=False)
    torch.testing.assert_close(codes(model, x), codes(model, filled), **EXACT)
    if kind in ("ae", "vae", "ensemble"):  # without draws of the weights, which would not ignore it
        spec, model = model_of(kind)
        with torch.no_grad():
            for layer in first_layers(model):
                layer.weight[:, math.prod(SHAPE) :] = 0
        torch.testing.assert_close(codes(model, x), codes(model, filled), **EXACT)


def test_posthoc_curvature_is_that_of_the_encoder_with_the_mask():
    x, filled, mask = with_holes()
    _, model = model_of("lae-posthoc")
    assert isinstance(model, Autoencoder)
    fitted = fit_posthoc(model, [x], estimator="exact", progress=False, tune=False)
    by_hand = mq.Laplace(EncoderDecoder(model.encoder, model.decoder).eval(), "gaussian", "diagonal", "exact")
    inputs = torch.cat([filled, mask.double()], 1)
    by_hand.fit([(inputs, filled, mask)], mask_of=lambda batch: batch[2], progress=False)
    assert fitted.laplace is not None
    torch.testing.assert_close(fitted.laplace.curvature.diagonal(), by_hand.curvature.diagonal(), **EXACT)


@pytest.mark.parametrize("kind", ["lae", "lae-posthoc", "vae"])
def test_file_brings_it_back(kind, tmp_path):
    spec, model = model_of(kind)
    x, filled, mask = with_holes()
    model.loss(filled, mask)
    model = spec.finish(model, [data(20, seed=1)], progress=False)
    save(tmp_path / "model.safetensors", model, spec)
    back, described = load(tmp_path / "model.safetensors")
    assert described.missing == back.missing == "mask"
    before, after = (m.reconstruct(x, 2, generator=generator()).mean for m in (model, back))
    torch.testing.assert_close(before, after, **EXACT)


def test_refusals():
    with pytest.raises(DataError, match=r"missing='maks'.*'mask'"):
        Autoencoder(nn.Identity(), nn.Identity(), missing="maks")
    with pytest.raises(DataError, match=r"mnist-dense.*mask beside them.*auto"):
        ModelSpec("ae", (1, 28, 28), 2, "mnist-dense", missing="mask").build(0)
    with pytest.raises(DataError, match=r"shape \[1, 8, 8\]; use 'auto'"):  # the mask is not to blame
        ModelSpec("ae", (1, 8, 8), 2, "mnist-dense", missing=True).build(0)
