"""The three methods as a user meets them: loops, modes, posteriors, autoencoders, Lightning."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from helpers.trainers import quiet_trainer
from marquis.errors import DataError, MemoryBudgetError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.posterior import Posterior
from marquis.variational import MAP, MeanFieldVI, PreactResNet18, VariationalLaplace, mlp, small_cnn
from marquis.variational.regulariser import GRADIENTS

METHODS = [VariationalLaplace, MeanFieldVI, MAP]


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)).double()


def blobs(count=32):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator) + 4 * torch.eye(4, dtype=torch.float64)[y]
    return x, y


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Softplus(), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def images(count=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=generator), torch.arange(count) % 3


def gradients(method):
    return torch.cat([p.grad.flatten() for p in method.parameters()])


# Start values and learning rates


def test_log_sigma_starts_three_below_the_prior_and_learns_ten_times_as_fast():
    for kind in (VariationalLaplace, MeanFieldVI):
        method = kind(classifier(), "categorical", num_data=10)
        for width, scale in zip(method.widths, method.prior_scales, strict=True):
            torch.testing.assert_close(width.detach(), (scale.log() - 3).expand_as(width))
        optimiser = torch.optim.Adam(method.parameter_groups(1e-4))
        rates = [group["lr"] for group in optimiser.param_groups]
        assert rates == [1e-4, 10 * 1e-4]
        assert {id(p) for g in optimiser.param_groups for p in g["params"]} == {id(p) for p in method.parameters()}
    assert [g["lr"] for g in MAP(classifier(), "categorical", num_data=10).parameter_groups(0.1)] == [0.1]


def test_prior_scale_is_one_over_root_fan_in():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 2)
    )
    method = VariationalLaplace(net, "categorical", num_data=1)
    result = dict(zip(method.names, [float(s) for s in method.prior_scales], strict=True))
    expected = {"0.weight": 9, "0.bias": 9, "1.weight": 1, "1.bias": 1, "2.weight": 36, "2.bias": 36}
    expected |= {"4.weight": 24, "4.bias": 24}
    assert result == pytest.approx({name: 1 / math.sqrt(fan) for name, fan in expected.items()})


def test_prior_scale_may_be_given():
    net = classifier()
    assert [float(s) for s in MAP(net, "categorical", num_data=1, prior_scale=0.5).prior_scales] == [0.5] * 4
    by_name = {name: 2.0 for name, _ in net.named_parameters()}
    assert float(MAP(net, "categorical", num_data=1, prior_scale=by_name).prior_scales[0]) == 2.0
    by_rule = MAP(net, "categorical", num_data=1, prior_scale=lambda name, p: 0.1 if "bias" in name else 1.0)
    assert [float(s) for s in by_rule.prior_scales] == [1.0, 0.1, 1.0, 0.1]
    with pytest.raises(ModelMismatchError, match=r"missing \['0.bias'"):
        MAP(net, "categorical", num_data=1, prior_scale={"0.weight": 1.0})
    with pytest.raises(DataError, match=r"'0.weight' has to be positive"):
        MAP(net, "categorical", num_data=1, prior_scale=0.0)
    with pytest.raises(DataError, match="does not broadcast"):
        MAP(net, "categorical", num_data=1, prior_scale=by_name | {"0.bias": torch.ones(7)})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_data": 0}, DataError, "num_data"),
        ({"tempering": -1.0}, DataError, "tempering"),
        ({"gradient": "central difference"}, UnsupportedOperationError, "'one-sided', 'central'"),
        ({"curvature": "ggn"}, UnsupportedOperationError, "'fisher', 'hessian'"),
        ({"curvature": "hessian", "score_correction": True}, UnsupportedOperationError, "samples no labels"),
        ({"regulariser_batch": 0}, DataError, "regulariser_batch"),
        ({"multiplier": 0.0}, DataError, "multiplier"),
        ({"epsilon": 0.0}, DataError, "epsilon"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        VariationalLaplace(classifier(), "categorical", **{"num_data": 4, **options})


# Training


@pytest.mark.parametrize("kind", METHODS)
def test_a_loop_of_ones_own(kind):
    x, y = blobs()
    options = {} if kind is MAP else {"generator": torch.Generator().manual_seed(0)}
    method = kind(classifier(), "categorical", num_data=len(x), tempering=0.1, **options)
    optimiser = torch.optim.Adam(method.parameter_groups(0.01))
    losses = []
    for _ in range(150):
        loss = method.step(x, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    assert float((method.predict(x).probs.argmax(1) == y).double().mean()) > 0.9
    assert method.last_terms.objective == pytest.approx(-losses[-1])


@pytest.mark.parametrize("kind", METHODS)
def test_the_users_model_is_never_touched(kind):
    net = normalised().train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = copy.deepcopy(net.state_dict())
    x, y = images()
    method = kind(net, "categorical", num_data=6)
    random_state = torch.get_rng_state()
    method.step(x, y).backward()
    if kind is VariationalLaplace:  # labels come from the generator; nothing else may be drawn
        method.generator = torch.Generator().manual_seed(0)
        torch.set_rng_state(random_state)
        method.step(x, y)
        assert torch.equal(random_state, torch.get_rng_state())
    torch.optim.SGD(method.parameter_groups(0.1)).step()
    method.predict(x)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net.training and all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
    assert not [p for p in method.parameters() if any(p is q for q in net.parameters())]


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_changes_except_through_the_optimiser(kind):
    x, y = blobs(6)
    method = kind(classifier(), "categorical", num_data=6)
    before = copy.deepcopy(method.state_dict())
    method.step(x, y).backward()
    method.predict(x)
    if kind is not MAP:
        method.elbo([(x, y)])
        method.predict(x, samples=2)
        method.posterior()
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize("way", GRADIENTS)
@pytest.mark.parametrize("few", [None, 3])
def test_auxiliary_passes_leave_running_statistics_alone(way, few):
    x, y = images()
    method = VariationalLaplace(normalised().train(), "categorical", num_data=6, gradient=way, regulariser_batch=few)
    reference = normalised().train()
    reference(x)
    method.step(x, y).backward()
    for name, buffer in method.network.named_buffers():
        torch.testing.assert_close(buffer, dict(reference.named_buffers())[name], rtol=0, atol=0)
    assert int(method.network[1].num_batches_tracked) == 1


@pytest.mark.parametrize("way", [w for w in GRADIENTS if w != "double-backward"])
def test_ways_agree_under_batch_statistics_and_dropout(way):
    x, y = images()
    net = nn.Sequential(*list(normalised())[:3], nn.Dropout(0.4), nn.Flatten(), nn.Linear(12, 3)).double().train()
    result = {}
    for name in (way, "double-backward"):
        torch.manual_seed(5)
        method = VariationalLaplace(
            net,
            "categorical",
            num_data=6,
            gradient=name,
            prior_scale=1.0,
            initial_offset=-1.0,
            generator=torch.Generator().manual_seed(0),
        )
        # The label draws differ between ways only by the coin, which comes after them.
        method.step(x, y).backward()
        result[name] = gradients(method)
    tolerance = 2e-5 if way == "one-sided" else 1e-7
    difference = (result[way] - result["double-backward"]).norm() / result["double-backward"].norm()
    assert float(difference) < tolerance


def test_batch_statistics_are_part_of_the_gradient():
    """Evaluation mode gives another objective: the test above cannot pass by ignoring them."""
    x, y = images()
    result = []
    for mode in (True, False):
        method = VariationalLaplace(normalised().train(mode), "categorical", num_data=6)
        method.generator = torch.Generator().manual_seed(0)
        method.step(x, y).backward()
        result.append(gradients(method))
    assert float((result[0] - result[1]).norm() / result[0].norm()) > 0.05


def test_sub_batch_is_unbiased_for_the_mean_fisher():
    """Over all sub-batches and labels the regulariser has the mean ½ Σ σ² F/S; the rest of the loss is untouched."""
    x, y = blobs(4)
    net = classifier()
    whole = mq.curvature.ggn(net.eval(), x, "categorical").diagonal() / 4
    total = torch.zeros(())
    method = VariationalLaplace(net, "categorical", num_data=4, regulariser_batch=1)
    probs = net(x).softmax(1).detach()
    for datum in range(4):
        order = torch.tensor([datum, *[i for i in range(4) if i != datum]])
        for label in range(3):
            method.likelihood = _Fixed(label)
            term = method._fisher_term(x[order], y[order], None)
            total = total + probs[datum, label] / 4 * float(term.regulariser)
            torch.testing.assert_close(term.log_likelihood, method.likelihood.log_prob(net(x), y).mean().detach())
    variance = torch.cat([s.detach().flatten() for s in method.sigmas]).square()
    torch.testing.assert_close(total.double(), 0.5 * (variance * whole).sum(), rtol=1e-10, atol=0)


class _Fixed(mq.Categorical):
    """A categorical likelihood that always draws the same label."""

    kind = ""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def sample(self, f, generator=None):
        return torch.full((len(f),), self.label)


def test_frozen_parameters_stay_and_have_no_width():
    net = classifier()
    net[0].weight.requires_grad_(False)
    method = VariationalLaplace(net, "categorical", num_data=8)
    assert method.names == ["0.bias", "2.weight", "2.bias"]
    x, y = blobs(8)
    method.step(x, y).backward()
    assert method.network[0].weight.grad is None
    assert method.posterior().layout.names == ("0.bias", "2.weight", "2.bias")
    net.requires_grad_(False)
    with pytest.raises(UnsupportedOperationError, match="nothing to train"):
        VariationalLaplace(net, "categorical", num_data=8)


def test_unused_and_tied_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.unused = nn.Linear(3, 3), nn.Linear(2, 2)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x).tanh())

    torch.manual_seed(0)
    x = torch.randn(5, 3)
    result = []
    for way in GRADIENTS:
        method = VariationalLaplace(Tied(), "gaussian", num_data=5, gradient=way)
        torch.manual_seed(1)
        with torch.no_grad():
            for m in method.means:
                m.normal_()
        method.generator = torch.Generator().manual_seed(0)
        method.step(x).backward()
        result.append(gradients(method))
        assert float(method.network.unused.weight.grad.norm()) > 0  # the prior still pulls
    for other in result[1:]:
        torch.testing.assert_close(other, result[0], rtol=0.02, atol=0.02 * float(result[0].abs().max()))


def test_a_function_with_parameters():
    params = {"w": torch.randn(3, 2, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    method = VariationalLaplace(lambda p, x: (x @ p["w"]).tanh() + p["b"], "gaussian", num_data=4, params=params)
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    method.step(x, y).backward()
    assert method.posterior().layout.names == ("w", "b")
    assert method.predict(x).mean.shape == (4, 2)


def test_several_inputs_and_masked_labels():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, left, right):
            return self.a(left).tanh() * right

    x = (torch.randn(4, 2), torch.randn(4, 2))
    y = torch.randn(4, 2)
    method = VariationalLaplace(Two(), "gaussian", num_data=4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 0]] * 4)
    y[:, 1] = float("nan")
    method.step(x, y, mask).backward()
    assert torch.isfinite(gradients(method)).all()
    assert float(method.network.a.weight.grad[1].abs().max()) == pytest.approx(
        float((method.network.a.weight[1].detach() / method.prior_scales[0] ** 2 / 4).abs().max()), rel=1e-4
    )
    method.step({"left": x[0], "right": x[1]}, torch.zeros(4, 2)).backward()
    with pytest.raises(DataError, match="NaN"):
        method.step(x, y)


@pytest.mark.parametrize("kind", METHODS)
def test_autoencoders_need_no_labels(kind):
    torch.manual_seed(0)
    x = torch.rand(8, 6)
    method = kind(mlp(6, 6, (3,)), mq.Gaussian(10.0), num_data=8)
    torch.manual_seed(1)
    first = method.step(x)
    torch.manual_seed(1)
    assert float(first.detach()) == float(method.step(x, x).detach())
    assert method.predict(x).mean.shape == x.shape


class Poisson:
    """A likelihood of one's own: counts with log rate f; its Hessian in f is the rate."""

    def log_prob(self, f, y):
        return (y * f - f.exp() - (y + 1).lgamma()).flatten(1).sum(1)

    def hessian_sqrt(self, f):
        return torch.diag_embed((f / 2).exp()).movedim(-1, 0)

    def sample(self, f, generator=None):
        return torch.poisson(f.detach().exp(), generator)

    def predictive(self, mean, variance):
        return mq.likelihoods.Predictive(mean, variance)


@pytest.mark.parametrize("likelihood", [mq.Heteroscedastic(), Poisson()], ids=["heteroscedastic", "custom"])
@pytest.mark.parametrize("kind", METHODS)
def test_any_likelihood(kind, likelihood):
    """Also where the Hessian depends on the label, and where the likelihood is the user's own."""
    x, _ = blobs(6)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    y = torch.arange(6.0, dtype=torch.float64).unsqueeze(1)
    y = y if isinstance(likelihood, mq.Heteroscedastic) else y.repeat(1, 2)
    result = []
    for way in GRADIENTS if kind is VariationalLaplace else (None,):
        options = {} if way is None else {"gradient": way, "initial_offset": -1.0}
        generator = torch.Generator().manual_seed(0)
        method = kind(net, likelihood, num_data=6, prior_scale=1.0, generator=generator, **options)
        method.step(x, y).backward()
        result.append(gradients(method))
        assert method.predict(x).mean.shape[0] == 6
        if kind is not MAP:
            assert math.isfinite(method.elbo([(x, y)]))
    for way, other in zip(GRADIENTS, result, strict=False):
        tolerance = 2e-5 if way == "one-sided" else 1e-7
        assert float((other - result[-1]).norm() / result[-1].norm()) < tolerance


def test_bayes_by_backprop_preset():
    generator = torch.Generator().manual_seed(0)
    method = MeanFieldVI.bayes_by_backprop(mlp(6, 6, (3,)), "gaussian", num_data=8, generator=generator)
    means, rho = (torch.cat([p.detach().flatten() for p in group]) for group in (method.means, method.widths))
    assert -0.2 <= float(means.min()) < -0.1 and 0.1 < float(means.max()) <= 0.2
    assert float(rho.min()) >= -5 and float(rho.max()) <= -4
    sigma = torch.cat([s.detach().flatten() for s in method.sigmas])
    torch.testing.assert_close(sigma, nn.functional.softplus(rho))
    torch.testing.assert_close(torch.cat([s.flatten() for s in method.log_sigmas]).exp().detach(), sigma)
    assert [float(s) for s in method.prior_scales] == [1.0] * 4
    assert [g["lr"] for g in method.parameter_groups(0.1)] == [0.1, 0.1]
    method.step(torch.rand(8, 6)).backward()
    assert torch.isfinite(gradients(method)).all()


def test_parametrisations_start_alike():
    one, other = (MeanFieldVI(classifier(), "categorical", num_data=3, parametrisation=p) for p in ("log", "softplus"))
    for a, b in zip(one.sigmas, other.sigmas, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    with pytest.raises(UnsupportedOperationError, match="'log', 'softplus'"):
        MeanFieldVI(classifier(), "categorical", num_data=3, parametrisation="exp")  # type: ignore


def test_diverged_training_is_said():
    x, y = blobs(4)
    method = VariationalLaplace(classifier(), "categorical", num_data=4)
    with torch.no_grad():
        method.widths[0].fill_(float("inf"))
    with pytest.raises(NumericalError, match="diverged"):
        method.step(x, y)
    with torch.no_grad():
        method.means[0].fill_(float("nan"))
    with pytest.raises(DataError, match="NaN"):
        method.step(x, y)


def test_inputs_that_want_gradients_are_refused():
    x, y = blobs(4)
    with pytest.raises(UnsupportedOperationError, match="requires a gradient"):
        VariationalLaplace(classifier(), "categorical", num_data=4).step(x.requires_grad_(), y)


def test_true_hessian_is_for_small_networks():
    with pytest.raises(MemoryBudgetError, match="curvature='fisher'"):
        VariationalLaplace(mlp(100, 3), "categorical", num_data=4, curvature="hessian").step(
            torch.randn(4, 100), torch.zeros(4, dtype=torch.long)
        )


# Prediction and posterior


@pytest.mark.parametrize("kind", [VariationalLaplace, MeanFieldVI])
def test_posterior_is_an_ordinary_one(kind, tmp_path):
    method = kind(classifier(), "categorical", num_data=4)
    posterior = method.posterior()
    assert isinstance(posterior, Posterior)
    for name, mean, sigma in zip(method.names, method.means, method.sigmas, strict=True):
        assert torch.equal(posterior.mean[name], mean.detach())
        torch.testing.assert_close(posterior.variance()[name], sigma.detach().square())
    again = Posterior.from_state_dict(posterior.state_dict())
    torch.testing.assert_close(again.precision.diagonal(), posterior.precision.diagonal(), rtol=0, atol=0)
    assert {n: t.shape for n, t in again.sample(3).items()}["0.weight"] == (3, 5, 4)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = mq.load(tmp_path / "posterior.safetensors", classifier())
    x, _ = blobs(5)
    result = mq.predictive.predict(loaded, classifier().eval(), x, "categorical")
    torch.testing.assert_close(result.mean, method.predict(x).mean)
    slopes = torch.func.jacrev(lambda p: torch.func.functional_call(method.network, p, (x,)))(loaded.mean)
    expected = sum((slopes[name].square() * loaded.variance()[name]).flatten(2).sum(-1) for name in loaded.mean)
    torch.testing.assert_close(result.variance, expected)
    with pytest.raises(ModelMismatchError):
        mq.load(tmp_path / "posterior.safetensors", mlp(4, 3, (5,)))
    with torch.no_grad():
        method.means[0].add_(1)
    assert not torch.equal(posterior.mean["0.weight"], method.means[0].detach())  # a value, not a view


def test_sampled_prediction_averages_probabilities():
    x, _ = blobs(5)
    method = MeanFieldVI(classifier(), "categorical", num_data=4, initial_offset=-0.5)
    method.generator = torch.Generator().manual_seed(0)
    result = method.predict(x, samples=4)
    method.generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        outputs = torch.stack([torch.func.functional_call(method.network, method.draw(), (x,)) for _ in range(4)])
    torch.testing.assert_close(result.probs, outputs.softmax(-1).mean(0))
    torch.testing.assert_close(result.mean, outputs.mean(0))
    torch.testing.assert_close(result.variance, outputs.var(0, correction=0))
    assert float((result.probs - method.predict(x).probs).abs().max()) > 1e-3


def test_prediction_is_in_evaluation_mode_and_restores_flags():
    method = VariationalLaplace(normalised().train(), "categorical", num_data=6)
    method.network[2].eval()
    x, _ = images()
    single = torch.cat([method.predict(x[i : i + 1]).mean for i in range(6)])
    torch.testing.assert_close(method.predict(x).mean, single)
    assert [m.training for m in method.network] == [True, True, False, True, True]


def test_a_point_has_no_posterior():
    method = MAP(classifier(), "categorical", num_data=4)
    x, y = blobs(4)
    for call in (method.posterior, lambda: method.elbo([(x, y)]), lambda: method.predict(x, samples=2)):
        with pytest.raises(UnsupportedOperationError):
            call()
    fit = float(method.likelihood.log_prob(method.network(x), y).sum().detach())
    penalty = sum(
        float((m.detach() / s).square().sum()) / 2 for m, s in zip(method.means, method.prior_scales, strict=True)
    )
    assert method.log_joint([(x, y)]) == pytest.approx(fit - penalty)


def test_vi_elbo_at_given_draws():
    x, y = blobs(4)
    method = MeanFieldVI(classifier(), "categorical", num_data=4, tempering=0.5, initial_offset=-1.0)
    method.generator = torch.Generator().manual_seed(0)
    elbo = method.elbo([(x, y)], samples=2)
    method.generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        fits = [
            float(method.likelihood.log_prob(torch.func.functional_call(method.network, method.draw(), (x,)), y).sum())
            for _ in range(2)
        ]
        assert elbo == pytest.approx(sum(fits) / 2 - 0.5 * float(method.kl()))


def test_state_dict_round_trip():
    x, y = blobs(4)
    method = VariationalLaplace(classifier(), "categorical", num_data=4)
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.1)
    other = VariationalLaplace(classifier(), "categorical", num_data=4)
    other.load_state_dict(method.state_dict())
    torch.testing.assert_close(other.predict(x).mean, method.predict(x).mean, rtol=0, atol=0)
    del y


# Architectures


def test_architectures():
    x = torch.randn(2, 1, 28, 28)
    assert small_cnn()(x).shape == (2, 10)
    assert sum(p.numel() for p in small_cnn().parameters()) == 106_122
    assert small_cnn(3, 4, 2, 9)(torch.randn(2, 3, 9, 9)).shape == (2, 4)
    assert mlp(5, 2, ())(torch.randn(3, 5)).shape == (3, 2)
    narrow = PreactResNet18(1, 10, 1 / 16)
    assert narrow(x).shape == (2, 10)
    # 17 convolutions in the main path, which makes 18 with the head, and 3 shortcuts
    assert sum(p.dim() == 4 for p in narrow.parameters()) == 20
    assert sum(p.numel() for p in PreactResNet18().parameters()) == 11_172_170
    with pytest.raises(DataError, match="narrowest"):
        PreactResNet18(width=0.001)


# Lightning


@pytest.mark.parametrize("kind", METHODS)
def test_under_lightning(kind, tmp_path):
    from marquis.variational import LightningMethod

    x, y = blobs(24)
    method = kind(classifier(), "categorical", num_data=24)
    module = LightningMethod(method, lr=1e-2, milestones=(1,))
    trainer = quiet_trainer(tmp_path, 2)
    before = torch.cat([p.detach().flatten().clone() for p in method.parameters()])
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    trainer.fit(module, loader, loader)
    assert float((torch.cat([p.detach().flatten() for p in method.parameters()]) - before).abs().min()) > 0
    rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
    assert rates == pytest.approx([1e-3] if kind is MAP else [1e-3, 1e-2])
    with torch.no_grad():
        nll = float(-method.likelihood.log_prob(method.network(x), y).mean())
    assert float(trainer.callback_metrics["validation_nll"]) == pytest.approx(nll)
    assert module.predict(x).probs.shape == (24, 3)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("bare", [True, False])
def test_lightning_autoencoder(kind, bare, tmp_path):
    """Batches without labels: tensors alone, and the tuples of one that a TensorDataset yields."""
    from marquis.variational import LightningMethod

    torch.manual_seed(0)
    x = torch.rand(8, 4)
    method = kind(mlp(4, 4, (2,)), "gaussian", num_data=8)
    loader = DataLoader(x if bare else TensorDataset(x), batch_size=4)  # pyright: ignore[reportArgumentType]
    trainer = quiet_trainer(tmp_path, 1)
    before = torch.cat([p.detach().flatten().clone() for p in method.parameters()])
    trainer.fit(LightningMethod(method, lr=1e-2), loader, loader)
    assert float((torch.cat([p.detach().flatten() for p in method.parameters()]) - before).abs().min()) > 0
    with torch.no_grad():
        nll = float(-method.likelihood.log_prob(method.network(x), x).mean())
    assert float(trainer.callback_metrics["validation_nll"]) == pytest.approx(nll)
    assert method.log_likelihood(loader) == pytest.approx(-8 * nll, rel=1e-5)
    if kind is not MAP:
        assert math.isfinite(method.elbo(loader))
