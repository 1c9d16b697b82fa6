"""A finished model in one file: every kind comes back with the same draws; files that lie are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import marquis as mq
from marquis.autoencoders import KINDS, ModelSpec, fit_posthoc, from_posterior, load, save
from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.io.tensors import load_tensors, save_tensors
from marquis.options import options_of
from marquis.run import TrainingSettings

SHAPE = (1, 4, 4)
OPTIONS = {
    "ensemble": {"members": 3},
    "vae": {"kl_weight": 0.5},
    "dropout": {"p": 0.3},
    "lae": {"preset": "paper-code"},
}


def data(n=12, seed=0, dtype=torch.float32):
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spec_of(kind, **changes):
    return ModelSpec(kind, SHAPE, 2, width=0.25, options=OPTIONS.get(kind, {}), **changes)


def a_little_trained(spec, dtype=torch.float32):
    """Far enough from the start for every state to matter; no trainer."""
    model = spec.build(seed=1).to(dtype)
    x = data(dtype=dtype)
    if spec.kind in ("lae", "bbb"):
        model.num_data = len(x)
    if spec.kind == "lae":
        model._online = model._new_learner(len(x))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        model.loss(x, None).backward()
        optimiser.step()
    return spec.finish(model, [x], progress=False).eval()


def said(model, x, seed=3):
    return model.reconstruct(x, 4, generator=torch.Generator().manual_seed(seed), keep=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_with_the_same_draws(kind, tmp_path):
    spec, path = spec_of(kind, lr=2e-3, missing=True), tmp_path / "model.safetensors"
    model = a_little_trained(spec)
    save(path, model, spec)
    again, described = load(path)
    assert described == spec and type(again) is type(model) and not again.training
    x = data(5, seed=9)
    x[0, 0, 0, 0] = torch.nan
    one, two = said(model, x), said(again, x)
    for name in ("mean", "variance", "noise_variance", "samples", "log_prob", "expected_log_prob"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert (ours is None and theirs is None) or torch.equal(ours, theirs), name
    assert torch.equal(one.latent.mean, two.latent.mean)


@pytest.mark.parametrize("kind", ["lae", "vae", "bbb"])
def test_training_goes_on_the_same_after_loading(kind, tmp_path):
    """Not only answers: counts and streams are kept, so the next step is the same one."""
    spec = spec_of(kind)
    model = a_little_trained(spec)
    save(tmp_path / "m.safetensors", model, spec)
    again, _ = load(tmp_path / "m.safetensors")
    x = data(12, seed=4)
    assert torch.equal(model.train().loss(x, None), again.train().loss(x, None))


@pytest.mark.parametrize("kind", ["lae", "lae-posthoc", "vae"])
def test_other_likelihoods_structures_and_precisions(kind, tmp_path):
    options = {} if kind == "vae" else {"structure": "kronecker"}
    spec = replace(spec_of(kind, likelihood=mq.Gaussian(25.0)), options=options)
    model = a_little_trained(spec, torch.float64)
    save(tmp_path / "m.safetensors", model, spec)
    again, described = load(tmp_path / "m.safetensors")
    assert next(again.parameters()).dtype == torch.float64
    assert described.likelihood.noise_precision == 25.0  # type: ignore[union-attr]
    x = data(5, 9, torch.float64)
    assert torch.equal(said(model, x).samples, said(again, x).samples)


def test_networks_of_ones_own(tmp_path):
    def networks():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, SHAPE))

    spec = replace(spec_of("ae"), architecture="own")
    with pytest.raises(DataError, match="networks="):
        spec.build()
    model = spec.build(0, networks())
    save(tmp_path / "m.safetensors", model, spec)
    with pytest.raises(DataError, match="networks="):
        load(tmp_path / "m.safetensors")
    again, _ = load(tmp_path / "m.safetensors", networks())
    assert torch.equal(said(model, data()).mean, said(again, data()).mean)
    with pytest.raises(ModelMismatchError, match="decoder"):
        load(tmp_path / "m.safetensors", (networks()[0], nn.Linear(2, 16, bias=False)))


def test_noise_learnt_after_training_is_kept(tmp_path):
    spec = spec_of("lae-posthoc")
    model = a_little_trained(spec)
    save(tmp_path / "m.safetensors", model, spec)
    again, _ = load(tmp_path / "m.safetensors")
    tuned = model.laplace.likelihood.noise_precision
    assert float(tuned) != 1.0 and torch.equal(again.likelihood.noise_precision, tuned)  # type: ignore[union-attr]


# ---- files that lie


def saved(tmp_path, kind="ae"):
    spec = spec_of(kind)
    path = tmp_path / "m.safetensors"
    save(path, a_little_trained(spec), spec)
    return path


def test_truncated_and_flipped(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            load(path)
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError, match="checksum"):
        load(path)
    with pytest.raises(DataError, match="no file"):
        load(tmp_path / "absent")


def rewritten(path, change, kind="autoencoder"):
    """The same file with another header or other tensors, and a checksum that fits."""
    _, header, tensors = load_tensors(path, ("autoencoder",))
    header = json.loads(json.dumps(header))
    change(header, tensors)
    save_tensors(path, kind, header, tensors)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda h, t: h["spec"].update(kind="xyz"), "xyz"),
        (lambda h, t: h["spec"].update(latent=3), "weights"),
        (lambda h, t: h["spec"].update(latent=10**12), "latent is 1000000000000"),
        (lambda h, t: h["spec"].update(width=1e9), "corrupt"),
        (lambda h, t: h["spec"].update(latent=1), "does not fit"),
        (lambda h, t: h["spec"].update(latent="two"), "corrupt"),
        (lambda h, t: h["spec"].update(shape=[-1]), "shape"),
        (lambda h, t: h["spec"].update(shape=5), "corrupt"),
        (lambda h, t: h["spec"].update(shape=[1, 8, 8], architecture="mnist-dense"), "weights"),
        (lambda h, t: h["spec"].update(architecture="__import__"), "architecture"),
        (lambda h, t: h["spec"].update(likelihood={"kind": "os.system"}), "os.system"),
        (lambda h, t: h["spec"].update(options={"missing": 1}), "no option"),
        (lambda h, t: h["spec"].pop("latent"), "corrupt"),
        (lambda h, t: h.pop("spec"), "corrupt"),
        (lambda h, t: t.pop("model.encoder.1.weight"), "weights|fit"),
        (lambda h, t: t.update({"model.more": torch.ones(3)}), "more"),
        (lambda h, t: t.clear(), "weights"),
    ],
)
def test_headers_that_do_not_fit(change, text, tmp_path):
    path = saved(tmp_path)
    rewritten(path, change)
    with pytest.raises((DataError, ModelMismatchError, UnsupportedOperationError), match=text):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda h, t: h["extra"].pop("numbers"),
        lambda h, t: h["extra"].update(num_data=0),
        lambda h, t: h["extra"].update(shapes={"w": [1]}),
        lambda h, t: t.pop("online.streams.weights"),
        lambda h, t: t.update({"online.streams.weights": torch.zeros(3, dtype=torch.uint8)}),
        lambda h, t: t.update({"online.structures.curvature.structure": torch.zeros(3, dtype=torch.uint8)}),
    ],
)
def test_an_online_state_that_does_not_fit(change, tmp_path):
    path = saved(tmp_path, "lae")
    rewritten(path, change)
    with pytest.raises((DataError, ModelMismatchError)):
        load(path)


def test_a_huge_ensemble_is_refused_before_it_is_built(tmp_path):
    path = saved(tmp_path, "ensemble")
    rewritten(path, lambda h, t: h["spec"].update(options={"members": 10**9}))
    with pytest.raises(ModelMismatchError, match="weights"):
        load(path)


def test_other_files_of_ours_and_of_others(tmp_path):
    path = saved(tmp_path)
    rewritten(path, lambda h, t: None, kind="laplace")
    with pytest.raises(DataError, match="laplace"):
        load(path)
    save_file(load_file(path), tmp_path / "plain.safetensors")
    with pytest.raises(DataError, match="not ours"):
        load(tmp_path / "plain.safetensors")


# ---- what cannot be saved or described


def test_refused_on_saving(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(ModelMismatchError, match="VariationalAutoencoder"):
        save(path, spec_of("vae").build(0), spec_of("ae"))
    with pytest.raises(DataError, match="not trained"):
        save(path, spec_of("lae").build(0), spec_of("lae"))
    plain = spec_of("ae").build(0)
    bare = from_posterior(plain.encoder, plain.decoder, fit_posthoc(plain, [data()], progress=False).posterior)
    with pytest.raises(UnsupportedOperationError, match=r"posterior\.save"):
        save(path, bare, spec_of("lae-posthoc"))
    assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "leae"}, "Did you mean 'lae'"),
        ({"architecture": "dence"}, "dence"),
        ({"lr": 0.0}, "lr"),
        ({"options": {"preset": "paper"}}, "preset"),
        ({"kind": "ae-variance", "likelihood": "bernoulli"}, "gaussian"),
    ],
)
def test_descriptions_that_make_no_sense(changes, text):
    with pytest.raises((DataError, UnsupportedOperationError), match=text):
        replace(spec_of("ae"), **changes)


def test_an_architecture_for_other_data():
    with pytest.raises(DataError, match="mnist-dense"):
        replace(spec_of("ae"), architecture="mnist-dense").build()
    assert replace(spec_of("ae"), shape=(1, 28, 28), architecture="mnist-dense", width=0.1).build()


def test_kinds_are_described():
    assert all(kind.summary for kind in KINDS.values())
    listed = re.findall(r"[\w-]+", options_of(TrainingSettings)["model"].help.partition(":")[2])
    assert [name for name in listed if name != "or"] == list(KINDS)
