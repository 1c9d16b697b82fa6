"""The front door: fit, evidence, check, save, load, and what it must never do."""

from __future__ import annotations

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import marquis as mq
from helpers.small_networks import (
    LinearModel,
    at_mode,
    close,
    convnet,
    dense_jacobian,
    fresh,
    inputs_for,
    mlp,
    parameters,
    ridge,
    seeded,
)
from marquis.errors import DataError, MarquisError, ModelMismatchError, UnsupportedOperationError
from marquis.structures import STRUCTURES


def batches(network: nn.Module, n: int = 9) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = inputs_for(network, n)
    with torch.no_grad():
        classes = network(x[:1]).shape[1]
    y = torch.randint(classes, (n,), generator=seeded(2))
    return [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]


@pytest.mark.parametrize("make", [mlp, convnet])
@pytest.mark.parametrize("likelihood", [mq.Gaussian(2.5), mq.Categorical(), mq.Bernoulli()], ids=str)
def test_precision_is_curvature_over_temperature_plus_prior(make, likelihood):
    network = make()
    x = torch.cat([b[0] for b in batches(network)])
    la = mq.Laplace(network, likelihood, "full", prior=0.4, temperature=2.0).fit([b[0] for b in batches(network)])
    rows = dense_jacobian(network, x)
    hessian = likelihood.hessian(network(x).detach())
    expected = torch.einsum("nop,noq,nqr->pr", rows, hessian, rows) / 2 + 0.4 * torch.eye(rows.shape[-1]).double()
    close(la.posterior.precision.to_dense(), expected, 1e-10)


def test_noise_rescales_without_another_pass():
    network = mlp()
    data = [(x, torch.zeros(len(x), 4).double()) for x, _ in batches(network)]
    for kind in STRUCTURES:
        la = mq.Laplace(network, mq.Gaussian(1.0), kind).fit(data).update(likelihood=mq.Gaussian(7.0))
        fresh = mq.Laplace(network, mq.Gaussian(7.0), kind).fit(data)
        close(la.posterior.precision.to_dense(), fresh.posterior.precision.to_dense(), 1e-10)
        close(la.log_evidence(), fresh.log_evidence(), 1e-10)
    with pytest.raises(UnsupportedOperationError, match="fit again"):
        la.update(likelihood=mq.Bernoulli())


def test_evidence_of_linear_regression_is_exact():
    x = torch.randn(11, 3, generator=seeded(), dtype=torch.float64)
    y = torch.randn(11, 2, generator=seeded(1), dtype=torch.float64)
    mean, _ = ridge(x, y, 0.5, 2.0)
    la = mq.Laplace(at_mode(LinearModel(3, 2), mean), mq.Gaussian(2.0), "full", prior=0.5).fit(
        [(x[:4], y[:4]), (x[4:], y[4:])]
    )
    covariance = x @ x.mT / 0.5 + torch.eye(11).double() / 2.0
    exact = torch.distributions.MultivariateNormal(torch.zeros(11).double(), covariance).log_prob(y.mT).sum()
    close(la.log_evidence(), exact, 1e-10)
    assert la.statistics.n == 11 and la.statistics.observed == 22


def test_estimator_is_chosen_by_the_number_of_outputs_and_said():
    few, many = mlp(outputs=64), mlp(outputs=65)
    x = inputs_for(few, 3)
    for network, expected in ((few, "exact"), (many, "sketched")):
        la = mq.Laplace(network, "gaussian", "diagonal").fit([x], generator=seeded())
        assert la.fitted.estimator == expected and expected in repr(la)
    assert "not fitted" in repr(mq.Laplace(few, "gaussian"))
    forced = mq.Laplace(many, "gaussian", "diagonal", "exact").fit([x])
    assert forced.fitted.estimator == "exact"


def test_parameters_by_pattern_predicate_and_names():
    network = mlp()
    for passed in ("2.*", lambda name, tensor: name.startswith("2"), ["2.bias", "2.weight"]):
        la = mq.Laplace(network, "categorical", parameters=passed).fit(batches(network))
        assert la.posterior.layout.names == ("2.weight", "2.bias")
    frozen = fresh(mlp())
    frozen[0].requires_grad_(False)
    assert mq.Laplace(frozen, "categorical").fit(batches(frozen)).posterior.layout.names == ("2.weight", "2.bias")


def test_one_pass_is_enough_and_labels_are_optional():
    network = mlp()
    once = mq.Laplace(network, "categorical").fit(iter(batches(network)))
    again = mq.Laplace(network, "categorical").fit(batches(network))
    close(once.log_evidence(), again.log_evidence(), 1e-12)
    with pytest.raises(DataError, match="check"):
        once.check()
    unlabelled = mq.Laplace(network, "categorical").fit([b[0] for b in batches(network)])
    close(unlabelled.predict(inputs_for(network)).probs, again.predict(inputs_for(network)).probs, 1e-12)
    with pytest.raises(DataError, match="labels"):
        unlabelled.log_evidence()
    with pytest.raises(DataError, match="no batches"):
        mq.Laplace(network, "categorical").fit([])
    with pytest.raises(MarquisError, match="fit"):
        mq.Laplace(network, "categorical").predict(inputs_for(network))


def test_missing_labels_leave_the_curvature_and_the_count():
    network = mlp()
    x = inputs_for(network, 5)
    y = torch.zeros(5, 4, dtype=torch.float64)
    y[0, 1] = y[3] = float("nan")
    la = mq.Laplace(network, "gaussian", "full").fit([(x, y, ~y.isnan())], mask_of=lambda batch: batch[2])
    assert la.statistics.observed == 15
    rows = dense_jacobian(network, x)[~y.isnan()]
    close(la.posterior.precision.to_dense(), rows.mT @ rows + torch.eye(44).double(), 1e-10)
    close(la.statistics.sse, network(x).detach()[~y.isnan()].square().sum(), 1e-10)


def test_a_function_as_model():
    network = mlp()

    def function(params, x):
        return torch.func.functional_call(network, params, (x,))

    la = mq.Laplace(function, "categorical", params=parameters(network)).fit(batches(network))
    same = mq.Laplace(network, "categorical").fit(batches(network))
    x = inputs_for(network)
    close(la.predict(x).probs, same.predict(x).probs, 1e-12)
    close(la.log_evidence(), same.log_evidence(), 1e-12)


def test_dictionary_batches():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, ids, scale):
            return self.inner(ids) * scale

    network = Named().eval()
    x = inputs_for(mlp(), 6)
    scale = torch.full((6, 1), 2.0).double()
    la = mq.Laplace(network, "categorical").fit([{"ids": x, "scale": scale, "labels": torch.zeros(6).long()}])
    assert la.predict({"ids": x, "scale": scale}).probs.shape == (6, 4)
    assert la.log_evidence().isfinite()


def test_tuning_changes_prior_and_noise_and_raises_the_evidence():
    x = torch.randn(30, 3, generator=seeded(), dtype=torch.float64)
    y = x @ torch.randn(3, 2, generator=seeded(2), dtype=torch.float64) + 0.1 * torch.randn(
        30, 2, generator=seeded(1), dtype=torch.float64
    )
    mean, _ = ridge(x, y, 1.0, 1.0)
    la = mq.Laplace(at_mode(LinearModel(3, 2), mean), "gaussian", "full").fit([(x, y)])
    before = la.log_evidence()
    tuned = la.tune()
    assert la.log_evidence() > before + 10
    assert float(la.likelihood.noise_precision) > 20
    close(la.posterior.precision.to_dense(), la.prior.add_to(la.curvature * la.likelihood.noise_precision).to_dense())
    assert "prior precision" in str(tuned)
    assert 0 < float(la.effective_parameters()) < 6
    assert la.effective_parameters(per_group=True).shape == (1,)


def test_grid_scores_are_predictive_densities_of_validation_data():
    network = mlp()
    train, held = batches(network)[:2], batches(network)[2:]
    la = mq.Laplace(network, "categorical", "full").fit(train)
    with pytest.raises(DataError, match="validation"):
        la.tune("grid")
    tuned = la.tune("grid", loader=held, values=[0.01, 0.3, 1.0, 100.0])
    result = {float(step.precision[0]): step.log_evidence for step in tuned.history}
    scores = []
    for value in (0.01, 0.3, 1.0, 100.0):
        probs = mq.Laplace(network, "categorical", "full", prior=value).fit(train).predict(held[0][0]).probs
        scores.append(float(probs[0, held[0][1]].log()))
    assert [result[value] for value in (0.01, 0.3, 1.0, 100.0)] == pytest.approx(scores, rel=1e-10)
    assert float(la.prior.precision[0]) == (0.01, 0.3, 1.0, 100.0)[scores.index(max(scores))]


def test_check_tells_a_mode_from_another_place():
    x = torch.randn(30, 3, generator=seeded(), dtype=torch.float64)
    y = torch.randn(30, 2, generator=seeded(1), dtype=torch.float64)
    mean, _ = ridge(x, y, 1.0, 1.0)
    good = mq.Laplace(at_mode(LinearModel(3, 2), mean), "gaussian", "full").fit([(x, y)])
    report = good.check(generator=seeded())
    assert report.relative_gradient < 1e-10 and report.distance_to_mode < 1e-6
    assert report.linearisation_error < 1e-10
    assert report.noise_is_tuned is False and not report.good and "tune()" in str(report)
    good.tune()
    assert good.check().noise_is_tuned is True
    bad = mq.Laplace(at_mode(LinearModel(3, 2), mean + 1.0), "gaussian", "full").fit([(x, y)])
    report = bad.check()
    assert report.relative_gradient > 0.5 and report.distance_to_mode > 1 and "adapted" in str(report)
    curved = mq.Laplace(mlp(), "categorical", "full", prior=0.01).fit(batches(mlp()))
    assert curved.check().linearisation_error > 0.1
    strong = mq.Laplace(mlp(), "categorical", "full", prior=1e6).fit(batches(mlp()))
    assert strong.check().share_at_prior == 1.0 and strong.check().noise_is_tuned is None


def snapshot(network: nn.Module) -> tuple:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()]
    return (
        {n: t.clone() for n, t in network.state_dict().items()},
        [m.training for m in network.modules()],
        [p.requires_grad for p in network.parameters()],
        [p.grad is None for p in network.parameters()],
        hooks,
        torch.get_rng_state(),
    )


def test_nothing_is_mutated(tmp_path):
    """Test 20: weights, buffers, flags, gradients, hooks and the global random state stay as they were."""
    network = fresh(convnet())
    network[2].training = True  # a mixture of flags that does not matter, to be found again
    x = inputs_for(network)
    before = snapshot(network)
    la = mq.Laplace(network, "categorical", prior=mq.Prior(groups="normalised")).fit(
        batches(network), generator=seeded()
    )
    la.tune()
    la.check(generator=seeded())
    for options in ({}, {"method": "sampled"}, {"method": "linearised-samples"}, {"at": "2"}, {"link": "mc"}):
        la.predict(x, generator=seeded(), **options).sample(2, seeded())
    assert la.predict(x).mutual_information.isfinite().all()
    la.sample(2, seeded())
    la.save(tmp_path / "la.safetensors")
    mq.load(tmp_path / "la.safetensors", network)
    mq.Laplace(network, "categorical", parameters=mq.Subnetwork(4, "random")).fit(batches(network), generator=seeded())
    mq.kernel(network)(x)
    after = snapshot(network)
    assert all(torch.equal(before[0][n], after[0][n]) for n in before[0])
    assert before[1:5] == after[1:5]
    assert torch.equal(before[5], after[5])


def test_the_snapshot_can_fail():
    network = fresh(convnet())
    before = snapshot(network)
    torch.randn(1)
    network.train()
    after = snapshot(network)
    assert before[1] != after[1] and not torch.equal(before[5], after[5])


def test_the_posterior_keeps_its_mean_when_training_goes_on():
    network = fresh(mlp())
    la = mq.Laplace(network, "categorical").fit(batches(network))
    x = inputs_for(network)
    before = la.predict(x).mean
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    assert torch.equal(la.predict(x).mean, before)


SAVED = [
    {"structure": "kronecker"},
    {"structure": "diagonal", "prior": mq.Prior(2.0, "parameter")},
    {"structure": "block", "prior": mq.Prior(groups="layer", mean=0.1)},
    {"structure": "full", "parameters": "last-layer", "temperature": 3.0},
    {"structure": "lowrank", "parameters": "0.*"},
    {"parameters": mq.Subnetwork(6)},
]


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_save_and_load(tmp_path, options):
    network = mlp()
    x = inputs_for(network)
    la = mq.Laplace(network, "categorical", **options).fit(batches(network))
    la.tune(max_iterations=3) if options.get("structure") != "diagonal" else None
    path = tmp_path / "la.safetensors"
    la.save(path)
    again = mq.load(path, fresh(mlp()))
    close(again.predict(x).probs, la.predict(x).probs, 1e-12)
    close(again.log_evidence(), la.log_evidence(), 1e-12)
    close(again.posterior.log_prob(la.posterior.mean), la.posterior.log_prob(la.posterior.mean), 1e-12)
    assert again.prior.names == la.prior.names and again.temperature == la.temperature
    assert repr(again) == repr(la)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_likelihoods_priors_and_posteriors_in_files(tmp_path):
    network, path = mlp(), tmp_path / "file"
    x = inputs_for(network, 4)
    noisy = mq.Laplace(network, mq.Gaussian(torch.tensor([1.0, 2, 3, 4]).double()), "full").fit(
        [(x, torch.zeros(4, 4).double())]
    )
    noisy.save(path)
    close(mq.load(path, network).likelihood.noise_precision, noisy.likelihood.noise_precision)
    second = mq.Laplace(network, noisy.likelihood, "full", prior=noisy).fit([(x, torch.zeros(4, 4).double())])
    second.save(path)
    close(mq.load(path, network).posterior.precision.to_dense(), second.posterior.precision.to_dense(), 1e-12)
    close(mq.load(path, network).log_evidence(), second.log_evidence(), 1e-12)
    second.posterior.save(path)
    close(mq.load(path, network).precision.to_dense(), second.posterior.precision.to_dense(), 1e-12)

    class Own:
        log_prob = staticmethod(lambda f, y: -(f - y).square().sum(1))
        hessian_sqrt = staticmethod(
            lambda f: torch.eye(4).double()[:, None] * 2**0.5 + torch.zeros(4, len(f), 4).double()
        )
        sample = staticmethod(lambda f, generator=None: f)
        predictive = staticmethod(lambda mean, variance: mq.likelihoods.Predictive(mean, variance))

    own = mq.Laplace(network, Own(), "full").fit([(x, torch.zeros(4, 4).double())])
    own.save(path)
    with pytest.raises(ModelMismatchError, match="likelihood="):
        mq.load(path, network)
    close(mq.load(path, network, likelihood=Own()).predict(x).variance, own.predict(x).variance, 1e-12)


def test_a_model_that_does_not_belong_is_refused(tmp_path):
    network, path = mlp(), tmp_path / "la.safetensors"
    mq.Laplace(network, "categorical", parameters="last-layer").fit(batches(network)).save(path)
    with pytest.raises(ModelMismatchError, match="shape"):
        mq.load(path, mlp(inputs=4))
    with pytest.raises(ModelMismatchError, match="missing"):
        mq.load(path, nn.Sequential(mlp()))
    with pytest.raises(ModelMismatchError, match="outside"):
        mq.load(path, mlp(seed=5))  # same shapes, another body
    other_head = fresh(mlp())
    with torch.no_grad():
        other_head[2].weight.zero_()
    assert torch.equal(mq.load(path, other_head).posterior.mean["2.weight"], network[2].weight)


class Bomb:
    def __reduce__(self):
        return (open, ("/tmp/marquis-test-bomb", "w"))


def hostile(good: bytes, header: dict, kind: str) -> bytes:
    """A file that is not what it says."""
    size = struct.unpack("<Q", good[:8])[0]
    if kind == "empty":
        return b""
    if kind == "truncated header":
        return good[: size // 2]
    if kind == "truncated data":
        return good[:-100]
    if kind == "pickle":
        return pickle.dumps({"state": Bomb()})
    if kind == "noise":
        return bytes(range(256)) * 40
    if kind == "huge header":
        return struct.pack("<Q", 2**60) + good[8:]
    if kind == "other version":
        meta = json.loads(header["__metadata__"]["marquis"])
        meta["version"] = 999
        header["__metadata__"]["marquis"] = json.dumps(meta)
    if kind == "header is a list":
        header["__metadata__"]["marquis"] = "[]"
    if kind == "layout is nonsense":
        meta = json.loads(header["__metadata__"]["marquis"])
        meta["header"]["layout"] = [["0.weight", [-1, "x"]]]
        header["__metadata__"]["marquis"] = json.dumps(meta)
    if kind == "no likelihood":
        meta = json.loads(header["__metadata__"]["marquis"])
        meta["header"].pop("likelihood")
        header["__metadata__"]["marquis"] = json.dumps(meta)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + good[8 + size :]


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "truncated header",
        "truncated data",
        "pickle",
        "noise",
        "huge header",
        "other version",
        "header is a list",
        "layout is nonsense",
        "no likelihood",
    ],
)
def test_hostile_files_raise_our_error_and_run_nothing(tmp_path, kind):
    network, path = mlp(), tmp_path / "la.safetensors"
    mq.Laplace(network, "categorical").fit(batches(network)).save(path)
    good = path.read_bytes()
    size = struct.unpack("<Q", good[:8])[0]
    path.write_bytes(hostile(good, json.loads(good[8 : 8 + size]), kind))
    with pytest.raises(MarquisError):
        mq.load(path, network)
    import os

    assert not os.path.exists("/tmp/marquis-test-bomb")


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(DataError, match="no file"):
        mq.load(tmp_path / "nothing", mlp())
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="not ours"):
        mq.load(tmp_path / "other.safetensors", mlp())
    la = mq.Laplace(mlp(), "categorical").fit(batches(mlp()))
    with pytest.raises(DataError, match="folder"):
        la.save(tmp_path / "missing" / "la.safetensors")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "la.safetensors"
    la = mq.Laplace(mlp(), "categorical").fit(batches(mlp()))
    la.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        la.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mq.Laplace(mlp(), "categorical", "kfac"), UnsupportedOperationError),
        (lambda: mq.Laplace(mlp(), "softmax"), UnsupportedOperationError),
        (lambda: mq.Laplace(mlp(), "categorical", temperature=0.0), DataError),
        (lambda: mq.Laplace(mlp(), "categorical", parameters="9.*").fit(batches(mlp())), MarquisError),
        (
            lambda: mq.Laplace(nn.Sequential(fresh(mlp()), nn.Dropout()).train(), "categorical").fit(batches(mlp())),
            UnsupportedOperationError,
        ),
        (lambda: mq.Laplace(mlp(), "gaussian").fit([(inputs_for(mlp()), torch.zeros(7).double())]), DataError),
    ],
)
def test_refusals(make, error):
    with pytest.raises(error):
        make()


def test_a_precision_per_weight_needs_a_structure_that_can_hold_it():
    count = sum(p.numel() for p in mlp().parameters())
    prior = mq.Prior(torch.arange(1.0, count + 1).double(), "parameter")
    with pytest.raises(UnsupportedOperationError, match="Kronecker"):
        _ = mq.Laplace(mlp(), "categorical", prior=prior).fit(batches(mlp())).posterior
    la = mq.Laplace(mlp(), "categorical", "full", prior=prior).fit(batches(mlp()))
    plain = mq.Laplace(mlp(), "categorical", "full", prior=1.0).fit(batches(mlp()))
    difference = (la.posterior.precision.to_dense() - plain.posterior.precision.to_dense()).diagonal()
    close(difference, torch.arange(0.0, count).double())
