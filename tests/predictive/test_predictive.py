"""Predictive distributions against dense answers, quadrature and plain loops (docs/method/predictive.md)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import marquis as mq
from helpers.small_networks import (
    LinearModel,
    close,
    convnet,
    dense_jacobian,
    fresh,
    inputs_for,
    layout_of,
    mlp,
    parameters,
    seeded,
)
from marquis.curvature.planning.memory import AllocationMeter
from marquis.errors import DataError, MemoryBudgetError, UnsupportedOperationError
from marquis.functional.jacobian import jacobian
from marquis.predictive import predict, predict_loader
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.links import bridge, probit
from marquis.predictive.sampling import WeightSamples
from marquis.structures import STRUCTURES, Diagonal


def posterior_of(
    network: nn.Module, x: torch.Tensor, kind: str = "full", delta: float = 2.0, **options
) -> mq.Posterior:
    return mq.Laplace(network, "gaussian", kind, prior=delta, **options).fit([x], progress=False).posterior


@pytest.fixture(scope="module", params=["mlp", "convnet"])
def case(request):
    network = {"mlp": mlp, "convnet": convnet}[request.param]()
    x = inputs_for(network)
    return network, x, posterior_of(network, x)


def test_jacobian_is_that_of_plain_autograd(case):
    network, x, posterior = case
    close(jacobian(PosteriorFunction(network, posterior), x), dense_jacobian(network, x), 1e-12)


@pytest.mark.parametrize("kind", list(STRUCTURES))
def test_closed_form_for_every_structure(kind):
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x, kind)
    rows = dense_jacobian(network, x)
    expected = rows @ torch.linalg.inv(posterior.precision.to_dense()) @ rows.mT
    result = predict(posterior, network, x, "gaussian")
    close(result.covariance, expected)
    close(result.variance, expected.diagonal(dim1=1, dim2=2))
    close(result.mean, network(x).detach())
    assert predict(posterior, network, x, "gaussian", diagonal=True).covariance is None
    close(predict(posterior, network, x, "gaussian", diagonal=True).variance, result.variance)


def test_jvp_samples_of_deterministic_columns_give_the_closed_form(case):
    """Test 14: columns of a root of the covariance instead of random weights."""
    network, x, posterior = case
    columns = posterior.deviations_from(torch.eye(posterior.noise_dim, dtype=torch.float64))
    moved = WeightSamples(PosteriorFunction(network, posterior), x, True).evaluate(columns, x)
    close(torch.einsum("sno,snp->nop", moved, moved), predict(posterior, network, x).covariance, 1e-10)


def test_jvp_is_the_jacobian_times_the_direction(case):
    network, x, posterior = case
    direction = torch.randn(3, posterior.layout.total, generator=seeded(3), dtype=torch.float64)
    moved = WeightSamples(PosteriorFunction(network, posterior), x, True).evaluate(
        posterior.layout.unflatten(direction), x
    )
    close(moved, torch.einsum("nop,sp->sno", dense_jacobian(network, x), direction), 1e-10)


def test_small_memory_changes_nothing(case):
    network, x, posterior = case
    for options in (
        {"diagonal": True},
        {"diagonal": False},
        {"method": "linearised-samples", "samples": 13},
        {"method": "sampled", "samples": 13},
    ):
        if options.get("diagonal") is False:
            tight = predict(posterior, network, x, "gaussian", memory_limit=2**24, **options)
        else:
            tight = predict(posterior, network, x, "gaussian", memory_limit=4000, generator=seeded(), **options)
        free = predict(posterior, network, x, "gaussian", generator=seeded(), **options)
        close(tight.variance, free.variance, 1e-12)
        close(tight.mean, free.mean, 1e-12)


def test_joint_covariance_over_inputs():
    network, x = mlp(), inputs_for(mlp(), 4)
    posterior = posterior_of(network, x)
    rows = dense_jacobian(network, x).flatten(0, 1)
    result = predict(posterior, network, x, "gaussian", joint=True)
    close(result.covariance, rows @ torch.linalg.inv(posterior.precision.to_dense()) @ rows.mT)
    close(result.variance, predict(posterior, network, x).variance)


def test_for_a_linear_model_sampled_and_linearised_agree_draw_by_draw_and_else_they_do_not():
    x = torch.randn(6, 4, generator=seeded(), dtype=torch.float64)
    for model, same in ((LinearModel(4, 3).eval(), True), (nn.Sequential(LinearModel(4, 3), nn.Tanh()).eval(), False)):
        posterior = posterior_of(model, x)
        drawn = [predict(posterior, model, x, method=m).sample(5, seeded(2)) for m in ("sampled", "linearised-samples")]
        assert torch.allclose(*drawn, rtol=1e-10) == same


def test_linearised_samples_have_the_known_mean_and_are_not_centred():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    result = predict(posterior, network, x, "gaussian", method="linearised-samples", samples=9, generator=seeded(4))
    close(result.mean, network(x).detach(), 1e-12)
    noise = posterior.noise(9, seeded(4))
    moved = torch.einsum("nop,sp->sno", dense_jacobian(network, x), posterior.precision.sample_from(noise))
    close(result.variance, moved.square().mean(0), 1e-10)


def test_sampled_networks_against_a_plain_loop():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    weights = posterior.sample_from(posterior.noise(11, seeded(6)))
    loop = torch.stack(
        [torch.func.functional_call(network, {n: w[s] for n, w in weights.items()}, (x,)) for s in range(11)]
    ).detach()
    result = predict(
        posterior, network, x, "gaussian", method="sampled", samples=11, generator=seeded(6), memory_limit=9000
    )
    close(result.mean, loop.mean(0), 1e-12)
    close(result.variance, loop.var(0), 1e-12)
    classes = predict(posterior, network, x, "categorical", method="sampled", samples=11, generator=seeded(6))
    close(classes.probs, loop.softmax(-1).mean(0), 1e-12)
    entropies = torch.special.entr(loop.softmax(-1)).sum(-1).mean(0)
    close(classes.mutual_information, classes.entropy - entropies, 1e-10)


def test_probit_against_quadrature():
    """Test 15: within 0.015 of the true average, exact at m = 0 and at v = 0, and not exact elsewhere."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    nodes, weights = torch.tensor(nodes), torch.tensor(weights / math.sqrt(2 * math.pi))
    m, v = torch.meshgrid(torch.linspace(-6, 6, 25).double(), torch.linspace(0, 50, 26).double(), indexing="ij")
    truth = (torch.sigmoid(m[..., None] + v[..., None].sqrt() * nodes) * weights).sum(-1)
    probs = probit(mq.Bernoulli(), m, v)
    worst = float((probs - truth).abs().max())
    assert 0.005 < worst < 0.015
    close(probs[:, 0], truth[:, 0], 1e-12)
    close(probs[12], truth[12], 1e-12)


def logistic(n: int = 20) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """Logistic regression in two dimensions, at its mode for prior precision 1."""
    x = torch.randn(n, 2, generator=seeded(3), dtype=torch.float64)
    y = (x[:, :1] + 0.5 * torch.randn(n, 1, generator=seeded(4), dtype=torch.float64) > 0).double()
    model = nn.Linear(2, 1, bias=False).double().eval()
    weight = torch.zeros(2, dtype=torch.float64)
    for _ in range(50):
        p = torch.sigmoid(x @ weight)
        hessian = x.mT @ (x * (p * (1 - p))[:, None]) + torch.eye(2).double()
        weight = weight - torch.linalg.solve(hessian, x.mT @ (p - y[:, 0]) + weight)
    with torch.no_grad():
        model.weight.copy_(weight[None])
    return model, x, y


def test_logistic_regression_against_the_true_posterior_on_a_grid():
    model, x, y = logistic()
    la = mq.Laplace(model, "bernoulli", "full", prior=1.0).fit([(x, y)])
    axis = torch.linspace(-8, 8, 401).double()
    grid = torch.cartesian_prod(axis, axis)
    logits = grid @ x.mT
    log_post = (y[:, 0] * logits - torch.nn.functional.softplus(logits)).sum(1) - 0.5 * grid.square().sum(1)
    weights = (log_post - log_post.max()).exp()
    weights = weights / weights.sum()
    new = torch.cat([x[:5], 30 * x[:5]])
    truth = weights @ torch.sigmoid(grid @ new.mT)
    result = la.predict(new).probs[:, 0]
    mode = torch.sigmoid(model(new)).detach()[:, 0]
    assert float((result - truth).abs().max()) < 0.05
    far = slice(5, None)  # far from the data the mode is certain and wrong, the posterior mean is not
    assert float((mode - truth).abs()[far].max()) > 0.05
    assert ((result - 0.5).abs() < (mode - 0.5).abs() + 1e-12).all()
    drawn = la.predict(new, link="mc", samples=4000, generator=seeded()).probs[:, 0]
    assert float((drawn - truth).abs().max()) < 0.06


def test_two_logits_are_one_logit_however_the_variance_is_shared():
    f, v = torch.tensor([[0.0, 1.3]]).double(), torch.tensor([[0.0, 4.0]]).double()
    binary = mq.Bernoulli().predictive(f[:, 1:], v[:, 1:]).probs
    close(mq.Categorical().predictive(f, v).probs[:, 1:], binary, 1e-12)
    shared = mq.Categorical().predictive(f, torch.full_like(v, 2.0)).probs[:, 1:]
    close(shared, binary, 1e-12)


def test_bridge_is_the_dirichlet_of_the_paper():
    m = torch.randn(3, 4, generator=seeded(), dtype=torch.float64)
    root = torch.randn(3, 4, 4, generator=seeded(1), dtype=torch.float64)
    cov = root @ root.mT
    ones = torch.ones(4, 1, dtype=torch.float64)
    for n in range(3):
        total = (ones.mT @ cov[n] @ ones).item()
        mean = m[n] - (cov[n] @ ones)[:, 0] * m[n].sum() / total
        reduced = cov[n] - cov[n] @ ones @ ones.mT @ cov[n] / total
        alpha = (1 - 2 / 4 + mean.exp() * (-mean).exp().sum() / 16) / reduced.diagonal()
        result = bridge(mq.Categorical(), m, cov.diagonal(dim1=1, dim2=2), cov)[n]
        close(result, alpha / alpha.sum(), 1e-10)
    assert torch.isfinite(bridge(mq.Categorical(), 1e4 * m, cov.diagonal(dim1=1, dim2=2), cov)).all()


def test_averages_over_logits_do_not_depend_on_memory():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    one = predict(posterior, network, x, "categorical", link="mc", samples=50, generator=seeded())
    assert float((one.probs.sum(1) - 1).abs().max()) < 1e-12
    joint = torch.distributions.MultivariateNormal(one.mean, one.covariance)
    torch.manual_seed(0)
    many = joint.sample((20000,)).softmax(-1)
    few = predict(
        posterior, network, x, "categorical", link="mc", samples=20000, generator=seeded(), memory_limit=2**20
    )
    error = many.std(0) * (2 / 20000) ** 0.5
    assert ((few.probs - many.mean(0)).abs() < 5 * error).all()
    assert ((few.probs - one.mean.softmax(-1)).abs() > 5 * error).any()


def test_shift_of_the_output_does_not_change_the_variance():
    network, x = mlp(), inputs_for(mlp())
    shifted = fresh(mlp())
    with torch.no_grad():
        shifted[2].bias += 7.0
    before, after = (predict(posterior_of(n, x), n, x, "gaussian") for n in (network, shifted))
    close(after.variance, before.variance, 1e-10)
    close(after.mean, before.mean + 7.0, 1e-12)


@pytest.mark.parametrize("kind", ["kronecker", "diagonal"])
@pytest.mark.parametrize("bias", [True, False])
def test_last_layer_in_factored_form(kind, bias):
    network, x = mlp(), inputs_for(mlp())
    names = ["2.weight", "2.bias"] if bias else ["2.weight"]
    la = mq.Laplace(network, "categorical", kind, parameters=names).fit([(x, torch.zeros(7).long())])
    rows = dense_jacobian(network, x, names)
    expected = rows @ torch.linalg.inv(la.posterior.precision.to_dense()) @ rows.mT
    result = la.predict(x)
    close(result.covariance, expected, 1e-10)
    close(result.variance, expected.diagonal(dim1=1, dim2=2), 1e-10)
    from marquis.predictive.last_layer import find_last_layer

    head = find_last_layer(PosteriorFunction(network, la.posterior), x)
    assert head is not None
    roots = head.factors  # the draws' linear maps, applied to unit noise
    scales = head._scales[0].sqrt()
    root = (torch.eye(4).double() if roots.left is None else roots.left) * scales
    if roots.bias_variance is not None:
        extra = torch.diag(roots.bias_variance.sqrt()) if roots.bias_root is None else roots.bias_root
        root = torch.cat([root, extra], 1)
    close(root @ root.mT, expected[0], 1e-10)


def test_thousands_of_classes_need_no_jacobian():
    torch.manual_seed(0)
    classes, features = 1200, 16
    network = nn.Sequential(nn.Linear(3, features), nn.ReLU(), nn.Linear(features, classes)).eval()
    x = torch.randn(5, 3, generator=seeded())
    la = mq.Laplace(network, "categorical", parameters="last-layer").fit([(x, torch.zeros(5).long())], progress=False)
    assert la.fitted.estimator == "sketched"
    la.predict(x[:1])
    with AllocationMeter() as meter:
        result = la.predict(x, link="mc", samples=3, generator=seeded())
    assert meter.peak < 10 * classes * classes * 4  # one O x O factor and little else; a Jacobian has O * O * 16 each
    assert result.covariance is None and result.probs.shape == (5, classes)
    assert torch.allclose(result.probs.sum(1), torch.ones(5), atol=1e-5)


def test_something_after_the_last_layer_takes_the_general_way():
    network = nn.Sequential(*mlp(), nn.Tanh()).eval()
    x = inputs_for(network)
    la = mq.Laplace(network, "gaussian", "kronecker", parameters="2.*").fit([x])
    rows = dense_jacobian(network, x, ["2.weight", "2.bias"])
    close(la.predict(x).covariance, rows @ torch.linalg.inv(la.posterior.precision.to_dense()) @ rows.mT, 1e-10)


def test_any_layer_can_be_predicted():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    result = predict(posterior, network, x, at="1")
    inner = network[:2]
    rows = torch.zeros(7, 5, 44, dtype=torch.float64)
    rows[..., :20] = dense_jacobian(inner, x)
    close(result.mean, inner(x).detach(), 1e-12)
    close(result.covariance, rows @ torch.linalg.inv(posterior.precision.to_dense()) @ rows.mT)
    assert result.probs is None and result.noise_variance is None
    both = [predict(posterior, network, x, at=at).sample(3, seeded(1)) for at in ("1", "2")]
    # The same weights: the output's linear samples follow from the hidden ones only through the whole network,
    # but the sampled networks have to be consistent exactly.
    hidden, output = (predict(posterior, network, x, at=at, method="sampled").sample(3, seeded(1)) for at in ("1", "2"))
    weights = posterior.sample_from(posterior.noise(3, seeded(1)))
    again = torch.einsum("snh,soh->sno", hidden, weights["2.weight"]) + weights["2.bias"][:, None]
    close(output, again, 1e-10)
    assert both[0].shape == (3, 7, 5)


class Decoder(nn.Module):
    """A 3 x 512 x 512 picture from four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, 64)
        self.end = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, z):
        small = torch.tanh(self.start(z)).reshape(-1, 1, 8, 8)
        return self.end(nn.functional.interpolate(small, size=(512, 512)))


def test_pictures_of_any_size_in_bounded_memory():
    torch.manual_seed(0)
    network = Decoder().eval()
    z = torch.randn(2, 4, generator=seeded())
    layout = layout_of(network)
    posterior = mq.Posterior(layout, parameters(network), Diagonal(layout, torch.full((layout.total,), 50.0)))
    limit = 80 * 2**20
    with AllocationMeter() as meter:
        result = predict(posterior, network, z, "gaussian", samples=6, generator=seeded(), memory_limit=limit)
    assert result.method.startswith("linearised (6 samples") and result.variance.shape == (2, 3, 512, 512)
    assert meter.peak < 2 * limit  # a Jacobian would have 786,432 x 350 entries, over 1 GB
    noise = posterior.precision.sample_from(posterior.noise(6, seeded()))
    pixel = network(z)[1, 2, 300, 40]
    row = torch.cat([g.flatten() for g in torch.autograd.grad(pixel, list(network.parameters()))])
    assert torch.allclose(result.variance[1, 2, 300, 40], (noise @ row).square().mean(), rtol=1e-4)


def test_diagonal_only_never_forms_outputs_by_outputs():
    torch.manual_seed(0)
    network = nn.Linear(2, 1500, bias=False).double().eval()
    network = nn.Sequential(network, nn.Tanh())
    x = torch.randn(1, 2, generator=seeded(), dtype=torch.float64)
    layout = layout_of(network)
    posterior = mq.Posterior(layout, parameters(network), Diagonal(layout, torch.arange(1.0, 3001.0).double()))
    with AllocationMeter() as meter:
        result = predict(posterior, network, x, "gaussian", diagonal=True, memory_limit=2**21)
    assert meter.peak < 1500 * 1500 * 8
    rows = (1 - network(x).square().detach())[0, :, None] * x
    expected = (rows.square() / torch.arange(1.0, 3001.0).double().reshape(1500, 2)).sum(1)
    close(result.variance[0], expected, 1e-10)
    with pytest.raises(MemoryBudgetError, match="diagonal"):
        predict(posterior, network, x, "gaussian", diagonal=False, memory_limit=2**24)


def test_a_loader_gives_what_one_batch_gives():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    for options in ({}, {"method": "sampled", "samples": 7}, {"method": "linearised-samples"}, {"link": "bridge"}):
        whole = predict(posterior, network, x, "categorical", generator=seeded(3), **options)
        parts = predict_loader(
            posterior, network, [(x[:3], 0), (x[3:], 0)], "categorical", generator=seeded(3), progress=False, **options
        )
        close(parts.probs, whole.probs, 1e-12)
        close(parts.variance, whole.variance, 1e-12)
        close(parts.entropy, whole.entropy, 1e-12)
    with pytest.raises(UnsupportedOperationError, match="keep_inputs"):
        parts.sample(2)
    assert (parts.mutual_information > 0).all() and parts.mutual_information.shape == (7,)
    kept = predict_loader(posterior, network, [x[:3], x[3:]], "categorical", keep_inputs=True, progress=False)
    close(kept.sample(4, seeded(2)), predict(posterior, network, x, "categorical").sample(4, seeded(2)), 1e-12)


def test_result_object_for_regression():
    network, x = mlp(), inputs_for(mlp())
    result = predict(posterior_of(network, x), network, x, mq.Gaussian(4.0))
    close(result.total_variance, result.variance + 0.25, 1e-12)
    lower, upper = result.interval(0.95)
    normal = torch.distributions.Normal(result.mean, result.total_variance.sqrt())
    close(normal.cdf(upper) - normal.cdf(lower), torch.full_like(lower, 0.95), 1e-10)
    inner = result.interval(0.95, noise=False)
    assert (inner[1] < upper).all() and (inner[0] > lower).all()
    close(result.entropy, normal.entropy(), 1e-10)
    noise_entropy = torch.distributions.Normal(result.mean, torch.full_like(result.mean, 0.5)).entropy()
    close(result.mutual_information, normal.entropy() - noise_entropy, 1e-8)
    close(result.log_prob(result.mean + 0.3), normal.log_prob(result.mean + 0.3).sum(1), 1e-10)
    assert result.sample(3, seeded(), labels=True).shape == (3, 7, 4)


def test_result_object_for_classes():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    result = predict(posterior, network, x, "categorical")
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    close(result.log_prob(y), result.probs[torch.arange(7), y].log(), 1e-12)
    assert (result.mutual_information > 0).all() and (result.mutual_information < result.entropy).all()
    # Of the draws of single inputs and of whole functions alike, up to their number.
    by_weights = predict(posterior, network, x, "categorical", diagonal=True).mutual_information
    assert torch.allclose(result.mutual_information, by_weights, rtol=0.5)
    with pytest.raises(UnsupportedOperationError, match="quantiles"):
        result.interval()
    binary = predict(posterior, network, x, "bernoulli")
    lower, upper = binary.interval(0.9)
    assert (lower < binary.probs).all() and (binary.probs < upper).all()
    assert result.sample(2, seeded(), labels=True).shape == (2, 7)


def test_heteroscedastic_noise_is_averaged_over_its_own_uncertainty():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    result = predict(posterior, network, x, "heteroscedastic")
    outputs = predict(posterior, network, x)
    close(result.mean, outputs.mean[:, :2], 1e-12)
    close(result.noise_variance, (outputs.mean[:, 2:] + outputs.variance[:, 2:] / 2).exp(), 1e-10)


def test_functions_and_dictionaries_work_too():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    expected = predict(posterior, network, x).covariance

    def function(params, inputs):
        return torch.func.functional_call(network, params, (inputs["a"],))

    close(predict(posterior, function, {"a": x}).covariance, expected, 1e-12)


def test_attention_and_recurrent_layers():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    network = nn.Sequential(encoder, nn.Flatten(), nn.Linear(12, 2)).double().eval()
    x = torch.randn(3, 3, 4, generator=seeded(), dtype=torch.float64)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(4, 3, batch_first=True)
            self.out = nn.Linear(3, 2)

        def forward(self, x):
            return self.out(self.cell(x)[0][:, -1])

    for model in (network, Recurrent().double().eval()):
        layout = layout_of(model)
        posterior = mq.Posterior(layout, parameters(model), Diagonal(layout, torch.full((layout.total,), 9.0).double()))
        rows = dense_jacobian(model, x)
        close(predict(posterior, model, x).covariance, rows @ rows.mT / 9, 1e-9)
        moved = predict(posterior, model, x).sample(2, seeded()) - model(x).detach()
        drawn = posterior.layout.flatten(posterior.deviations_from(posterior.noise(2, seeded())))
        close(moved, torch.einsum("nop,sp->sno", rows, drawn), 1e-8)
        assert predict(posterior, model, x, method="sampled", samples=3).mean.shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"method": "linear"}, UnsupportedOperationError, "linearised"),
        ({"link": "softmax"}, UnsupportedOperationError, "probit"),
        ({"at": "9"}, UnsupportedOperationError, "'9'"),
        ({"samples": 0}, DataError, "samples"),
        ({"method": "sampled", "joint": True}, UnsupportedOperationError, "joint"),
        ({"method": "sampled", "link": "probit"}, UnsupportedOperationError, "sampled"),
        ({"method": "linearised-samples", "diagonal": False}, UnsupportedOperationError, "closed form"),
    ],
)
def test_what_cannot_be_is_refused(options, error, match):
    network, x = mlp(), inputs_for(mlp())
    with pytest.raises(error, match=match):
        predict(posterior_of(network, x), network, x, "categorical", **options)


def test_bad_inputs_are_refused():
    network, x = mlp(), inputs_for(mlp())
    posterior = posterior_of(network, x)
    with pytest.raises(DataError, match="NaN"):
        predict(posterior, network, x * float("nan"))
    with pytest.raises(DataError, match="empty"):
        predict(posterior, network, x[:0])
    with pytest.raises(UnsupportedOperationError, match="logits"):
        predict(posterior, network, x, "gaussian", link="mc")
    with pytest.raises(UnsupportedOperationError, match="training mode"):
        predict(posterior, nn.Sequential(*fresh(mlp()), nn.BatchNorm1d(4)).train(), x)
