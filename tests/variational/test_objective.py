"""VL's objective and its gradients, against enumeration, closed forms and each other (docs/method/variational.md)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from marquis.curvature import ggn
from marquis.curvature.hessian import hessian
from marquis.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic
from marquis.variational import MAP, MeanFieldVI, VariationalLaplace
from marquis.variational.hessian_form import hessian_term
from marquis.variational.objective import kl
from marquis.variational.regulariser import GRADIENTS, LabelledOutputs, data_term, trace_by_products


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def close(actual, expected, tolerance=1e-8):
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    scale = expected.abs().max().clamp_min(1e-12)
    assert float((actual - expected).abs().max() / scale) < tolerance


@pytest.fixture
def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


@pytest.fixture
def data():
    torch.manual_seed(2)
    return torch.randn(2, 3, dtype=torch.float64), torch.tensor([0, 2])


def term_for(method, x, y, drawn, way="double-backward", **options):
    batch = LabelledOutputs(method.likelihood, method._main_pass(x), y, drawn)
    again = lambda p: method._auxiliary_pass(p, x)  # noqa: E731
    return data_term(batch, method.means, method.log_sigmas, again, method=way, **options)


def mean_of(values, weights):
    return sum(w * v for w, v in zip(weights, values, strict=True))


def enumerated(method, x, y, **options):
    """Terms for all joint labels of two data with three classes, and their probabilities."""
    probs = method.network(x).softmax(1).detach()
    labels = [torch.tensor(pair) for pair in itertools.product(range(3), repeat=2)]
    weights = [float(probs[0, a] * probs[1, b]) for a, b in labels]
    return [term_for(method, x, y, drawn, **options) for drawn in labels], weights, labels


def test_regulariser_is_half_the_fisher_diagonal(net, data):
    """Enumeration of the 9 joint labels: E[(S/2) ḡ²] = diag F / (2 S), and scores have mean zero."""
    x, y = data
    method = VariationalLaplace(net, "categorical", num_data=2, prior_scale=1.0)
    terms, weights, labels = enumerated(method, x, y)
    fisher = ggn(net.eval(), x, "categorical").diagonal()
    variance = flat(method.sigmas).square()
    close(mean_of([float(t.regulariser) for t in terms], weights), 0.5 * float((variance * fisher).sum()) / 2)
    close(mean_of([flat(t.log_sigma_gradient) for t in terms], weights), variance * fisher / 2)
    scores = []
    for drawn in labels:
        fit = method.likelihood.log_prob(method.network(x), drawn).mean()
        scores.append(flat(torch.autograd.grad(fit, method.means)))
    assert float(mean_of(scores, weights).abs().max()) < 1e-15
    # The empirical Fisher, with the true labels, is another number.
    assert abs(float(term_for(method, x, y, y).regulariser) - 0.25 * float((variance * fisher).sum())) > 1e-6


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "bernoulli"])
@pytest.mark.parametrize("way", GRADIENTS)
def test_ways_to_the_gradient_agree(net, data, way, likelihood):
    x, y = data
    if likelihood != "categorical":
        y = torch.tensor([[0.0, 1, 1], [1, 0, 1]], dtype=torch.float64)
    drawn = torch.tensor([1, 1]) if likelihood == "categorical" else 1 - y
    method = VariationalLaplace(net, likelihood, num_data=2, prior_scale=1.0, initial_offset=-0.5)
    # The reference: automatic differentiation of the objective as written down.
    fit = method.likelihood.log_prob(method.network(x), drawn).mean()
    scores = torch.autograd.grad(fit, method.means, create_graph=True)
    value = sum((s.square() * g.square()).sum() for s, g in zip(method.sigmas, scores, strict=True))  # S/2 = 1
    loss = value - method.likelihood.log_prob(method.network(x), y).mean()
    expected = torch.autograd.grad(loss, [*method.means, *method.widths])
    term = term_for(method, x, y, drawn, way)
    close(term.regulariser, value.detach(), 1e-10)
    close(flat([*term.mean_gradient]), flat(expected[: len(method.means)]), 1e-5 if way == "one-sided" else 1e-8)
    close(flat(term.log_sigma_gradient), flat(expected[len(method.means) :]), 1e-10)


def test_the_coins_average_is_the_central_difference(net, data):
    x, y = data
    method = VariationalLaplace(net, "categorical", num_data=2, prior_scale=1.0, initial_offset=0.0)
    drawn, wide = torch.tensor([1, 1]), {"epsilon": 0.05}
    right = flat(term_for(method, x, y, drawn, "one-sided", side=1, **wide).mean_gradient)
    left = flat(term_for(method, x, y, drawn, "one-sided", side=-1, **wide).mean_gradient)
    central = flat(term_for(method, x, y, drawn, "central", **wide).mean_gradient)
    close((left + right) / 2, central, 1e-11)
    assert float((left - right).norm() / central.norm()) > 0.01  # at such a wide step the sides do differ
    exact = flat(term_for(method, x, y, drawn).mean_gradient)
    assert float((central - exact).norm()) < 0.2 * float((right - exact).norm())


def expected_regulariser(method, x, fisher_of):
    """R(μ) = ½ Σ σ² F_pp / S as a differentiable function of the flat mean."""
    shapes = [m.shape for m in method.means]
    sizes = [m.numel() for m in method.means]

    def value(vector):
        variance = flat(method.sigmas).square()

        def outputs(v):
            pieces = [p.view(s) for p, s in zip(v.split(sizes), shapes, strict=True)]
            return method._auxiliary_pass(pieces, x)

        jacobian = torch.func.jacrev(outputs)(vector)  # [B, O, P]
        diagonal = torch.einsum("nop,noq,nqp->p", jacobian, fisher_of(outputs(vector)), jacobian)
        return 0.5 * (diagonal * variance).sum() / len(x)

    return torch.func.grad(value)(flat(method.means))


def test_score_correction_completes_the_gradient_for_classes(net, data):
    """Two-sided: the published form differs from the gradient of the regulariser's mean, the corrected one is it."""
    x, _ = data
    method = VariationalLaplace(net, "categorical", num_data=2, prior_scale=1.0)
    exact = expected_regulariser(method, x, lambda f: Categorical().hessian(f))
    published, weights, _ = enumerated(method, x, None)
    corrected, _, _ = enumerated(method, x, None, score_correction=True)
    close(mean_of([flat(t.mean_gradient) for t in corrected], weights), exact, 1e-10)
    off = mean_of([flat(t.mean_gradient) for t in published], weights) - exact
    assert float(off.norm() / exact.norm()) > 0.01


def test_score_term_averages_to_zero_for_the_gaussian(net, data):
    """Noise and its negative are equally likely, and the correction is odd in it; the published form is complete."""
    x, _ = data
    method = VariationalLaplace(net, "gaussian", num_data=2, prior_scale=1.0)
    outputs = method.network(x).detach()
    noise = torch.randn_like(outputs)
    both = [term_for(method, x, None, outputs + sign * noise, score_correction=True) for sign in (1, -1)]
    plain = [term_for(method, x, None, outputs + sign * noise) for sign in (1, -1)]
    average = sum(flat(t.mean_gradient) for t in both) / 2
    close(average, sum(flat(t.mean_gradient) for t in plain) / 2, 1e-12)
    assert float((flat(both[0].mean_gradient) - flat(plain[0].mean_gradient)).norm()) > 1e-6
    # Unit noise directions with signs and weight sqrt(n) have covariance I, so they integrate a quadratic form exactly.
    units = torch.eye(6, dtype=torch.float64).reshape(6, 2, 3) * math.sqrt(6)
    terms = [term_for(method, x, None, outputs + sign * unit) for unit in units for sign in (1, -1)]
    exact = expected_regulariser(method, x, lambda f: Gaussian().hessian(f))
    close(sum(flat(t.mean_gradient) for t in terms) / len(terms), exact, 1e-9)


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(2.5), Bernoulli(), Heteroscedastic()])
def test_products_over_a_hadamard_basis_give_the_trace_exactly(likelihood, data):
    x, _ = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2, bias=False)).double()  # 12 weights
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(4):
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    method = VariationalLaplace(net, likelihood, num_data=2, prior_scale=1.0, initial_offset=-1.0)
    variance = flat(method.sigmas).square()
    total = 0.0
    for row in hadamard[:, :12]:  # 12 of the 16 columns: still orthogonal with squared length 16
        pieces = row.split([m.numel() for m in method.means])
        signs = [p.view(m.shape) for p, m in zip(pieces, method.means, strict=True)]
        sigmas = [s.detach() for s in method.sigmas]
        total += float(
            trace_by_products(lambda p: method._auxiliary_pass(p, x), method.means, sigmas, method.likelihood, signs)
        )
    fisher = ggn(net.eval(), x, likelihood).diagonal()
    close(total / 16, 0.5 * float((variance * fisher).sum()))


@pytest.mark.parametrize("estimator", ["products", "labels"])
def test_elbo_is_its_three_terms(net, data, estimator):
    """With the same generator, the trace that the ELBO subtracts is the mean of single estimates."""
    x, y = data
    method = VariationalLaplace(net, "categorical", num_data=2, tempering=0.3)
    method.generator = torch.Generator().manual_seed(0)
    elbo = method.elbo([(x, y)], estimator=estimator, samples=3)
    method.generator = torch.Generator().manual_seed(0)
    trace = sum(method._trace(x, estimator) for _ in range(3)) / 3
    fit = float(method.likelihood.log_prob(net(x), y).sum().detach())
    close(elbo, fit - trace - 0.3 * float(method.kl().detach()), 1e-12)


def test_label_estimate_of_the_trace_is_unbiased(net, data, monkeypatch):
    """Enumeration: over all labels the estimate that `elbo` uses has mean ½ tr(Σ F)."""
    x, _ = data
    method = VariationalLaplace(net, "categorical", num_data=2)
    probs = net(x).softmax(1).detach()
    total = 0.0
    for a, b in itertools.product(range(3), repeat=2):
        monkeypatch.setattr(Categorical, "sample", lambda *_, a=a, b=b: torch.tensor([a, b]))
        total += float(probs[0, a] * probs[1, b]) * method._trace(x, "labels")
    fisher = ggn(net.eval(), x, "categorical").diagonal()
    close(total, 0.5 * float((flat(method.sigmas).square() * fisher).sum()))


def test_linear_gaussian_model_is_exact():
    """A quadratic log-likelihood: VL, VL(H) and the exact ELBO coincide, and so do their optima."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    scale, precision = 0.7, 4.0
    net = nn.Linear(3, 1, bias=False).double()
    likelihood = Gaussian(precision)
    method = VariationalLaplace(net, likelihood, num_data=8, prior_scale=scale, initial_offset=-0.4)
    variance = flat(method.sigmas).square()
    expected_fit = likelihood.log_prob(net(x), y).sum().detach() - 0.5 * precision * (x.square() @ variance).sum()
    exact_elbo = float(expected_fit - method.kl())
    # e eᵀ over signs: in one dimension per datum the products' estimate still needs averaging over all 8 sign vectors
    signs = [torch.tensor(s, dtype=torch.float64).view(1, 3) for s in itertools.product((-1.0, 1.0), repeat=3)]
    sigmas = [s.detach() for s in method.sigmas]
    trace = sum(
        float(trace_by_products(lambda p: method._auxiliary_pass(p, x), method.means, sigmas, likelihood, [s]))
        for s in signs
    )
    fit = float(likelihood.log_prob(net(x), y).sum())
    close(fit - trace / 8 - float(method.kl()), exact_elbo)
    term = hessian_term(
        lambda p: likelihood.log_prob(method._auxiliary_pass(p, x), y).mean(), method.means, method.log_sigmas
    )
    close(8 * float(term.log_likelihood - term.regulariser) - float(method.kl()), exact_elbo)
    # The mean-field optimum: σ² = 1/(1/s² + precision Σ φ²), μ the ridge solution.
    best_mean = torch.linalg.solve(
        precision * x.T @ x + torch.eye(3, dtype=torch.float64) / scale**2, precision * x.T @ y
    )
    best_sigma = (1 / (1 / scale**2 + precision * x.square().sum(0))).sqrt()
    hess = VariationalLaplace(net, likelihood, num_data=8, prior_scale=scale, curvature="hessian")
    with torch.no_grad():
        hess.means[0].copy_(best_mean.T)
        hess.widths[0].copy_(best_sigma.log().view(1, 3))
    hess.step(x, y).backward()
    assert float(flat([p.grad for p in hess.parameters()]).abs().max()) < 1e-12
    with torch.no_grad():
        hess.widths[0].add_(0.01)
    hess.zero_grad()
    hess.step(x, y).backward()
    assert float(hess.widths[0].grad.abs().max()) > 1e-4


def test_fisher_stationary_point_of_sigma(net, data):
    """With the Fisher σ² = 1/(1/s² + F/β) is a stationary point whatever the curvature (docs/method/variational.md)."""
    x, y = data
    beta, scale = 0.3, 0.8
    method = VariationalLaplace(net, "categorical", num_data=2, tempering=beta, prior_scale=scale)
    fisher = ggn(net.eval(), x, "categorical").diagonal()
    best = (1 / (1 / scale**2 + fisher / beta)).log() / 2
    with torch.no_grad():
        for width, value in zip(method.widths, best.split([w.numel() for w in method.widths]), strict=True):
            width.copy_(value.view(width.shape))
    terms, weights, _ = enumerated(method, x, y)
    gradients = []
    for term in terms:
        method.zero_grad()
        method._loss(term).backward()
        gradients.append(flat([w.grad for w in method.widths]))
    assert float(mean_of(gradients, weights).abs().max()) < 1e-14


def test_true_hessian_has_no_optimum_where_it_is_positive():
    """VL(H): with H > 1/s² the objective rises with σ without bound; with the Fisher it falls in the end."""
    data = torch.ones(1, 1, dtype=torch.float64)

    def model(params, x):
        return params["w"].square().view(1, 1) * x * 3.0  # log p = log sigmoid(3 w²): convex in w near 0

    y = torch.ones(1, 1, dtype=torch.float64)
    values = {"hessian": [], "fisher": []}
    for curvature in values:
        for offset in range(-3, 5):
            method = VariationalLaplace(
                model,
                "bernoulli",
                num_data=1,
                prior_scale=1.0,
                curvature=curvature,
                initial_offset=float(offset),
                params={"w": torch.tensor([0.05], dtype=torch.float64)},
            )
            method.step(data, y)
            values[curvature].append(method.last_terms.objective)
    rising = [b > a for a, b in itertools.pairwise(values["hessian"])]
    assert all(rising)
    assert values["fisher"][-1] < max(values["fisher"])


def test_true_hessian_term_against_the_engine(net, data):
    x, y = data
    method = VariationalLaplace(net, "categorical", num_data=2, curvature="hessian")
    term = method._hessian_term(x, y, None)
    diagonal = -hessian(net.eval(), x, y, "categorical").diagonal() / 2  # of the mean log-likelihood
    variance = flat(method.sigmas).square()
    close(term.regulariser, -0.5 * (variance * diagonal).sum())
    close(flat(term.log_sigma_gradient), -variance * diagonal)


def test_minibatches_add_up_to_the_full_objective(net):
    """Σ_j S_j (1/S_j) L_j equals the objective of all data, also with a short last batch."""
    torch.manual_seed(0)
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randint(3, (7,))
    drawn = torch.randint(3, (7,))
    method = VariationalLaplace(net, "categorical", num_data=7, tempering=0.3)
    total = 0.0
    regularisers = 0.0
    for rows in (slice(0, 3), slice(3, 6), slice(6, 7)):
        method._loss(term_for(method, x[rows], y[rows], drawn[rows]))
        terms = method.last_terms
        total += len(x[rows]) * terms.objective
        scores = torch.autograd.grad(
            method.likelihood.log_prob(method.network(x[rows]), drawn[rows]).sum(), method.means
        )
        regularisers += 0.5 * sum(float((s * g).square().sum()) for s, g in zip(method.sigmas, scores, strict=True))
    full = float(method.likelihood.log_prob(net(x), y).sum()) - regularisers - 0.3 * float(method.kl())
    close(total, full)


def test_kl_against_torch(net):
    method = VariationalLaplace(net, "categorical", num_data=2)
    prior = [torch.distributions.Normal(torch.zeros_like(s), s) for s in method.prior_scales]
    ours = [torch.distributions.Normal(m, s) for m, s in zip(method.means, method.sigmas, strict=True)]
    pairs = zip(ours, prior, strict=True)
    expected = sum(torch.distributions.kl_divergence(q, p).sum() for q, p in pairs)
    close(method.kl().detach(), expected.detach())
    assert float(kl(method.means, method.sigmas, method.sigmas)) != float(method.kl())  # eq. 30 as printed


@pytest.mark.parametrize("way", GRADIENTS)
def test_backward_fills_the_gradient_of_the_returned_value(net, data, way):
    """Finite differences of the loss in every weight and log σ, at fixed labels."""
    x, y = data
    method = VariationalLaplace(net, "categorical", num_data=5, tempering=0.5, gradient=way, initial_offset=-1.0)

    def loss():
        method.generator = torch.Generator().manual_seed(3)
        return method.step(x, y)

    (2 * loss()).backward()  # a scaled loss scales its gradients
    generator = torch.Generator().manual_seed(4)
    for parameter in [method.means[0], method.means[3], method.widths[0], method.widths[2]]:
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(step * direction)
                values.append(float(loss()))
                parameter.sub_(step * direction)
        slope = (values[0] - values[1]) / 2e-5
        close(float((parameter.grad * direction).sum()) / 2, slope, 1e-5)


def test_vanishing_width_gives_the_map_gradient(net, data):
    x, y = data
    plain = MAP(net, "categorical", num_data=4, tempering=0.7)
    plain.step(x, y).backward()
    expected = flat([m.grad for m in plain.means])
    for method in (
        VariationalLaplace(net, "categorical", num_data=4, tempering=0.7, initial_offset=-40.0),
        VariationalLaplace(net, "categorical", num_data=4, tempering=0.7, initial_offset=-1e4),
        MeanFieldVI(net, "categorical", num_data=4, tempering=0.7, initial_offset=-40.0),
    ):
        method.step(x, y).backward()
        close(flat([m.grad for m in method.means]), expected, 1e-6)


def test_vi_gradient_at_given_noise(net, data):
    x, y = data
    method = MeanFieldVI(net, "categorical", num_data=4, tempering=0.7, generator=torch.Generator().manual_seed(0))
    method.step(x, y).backward()
    noise = [
        torch.randn(m.shape, dtype=m.dtype, generator=g)
        for g in [torch.Generator().manual_seed(0)]
        for m in method.means
    ]
    weights = [
        (m + s * e).detach().requires_grad_() for m, s, e in zip(method.means, method.sigmas, noise, strict=True)
    ]
    outputs = torch.func.functional_call(net, dict(zip(method.names, weights, strict=True)), (x,))
    slopes = torch.autograd.grad(-method.likelihood.log_prob(outputs, y).mean(), weights)
    for m, w, s, g, e, scale in zip(
        method.means, method.widths, method.sigmas, slopes, noise, method.prior_scales, strict=True
    ):
        close(m.grad, g + 0.7 / 4 * m.detach() / scale**2)
        close(w.grad, g * e * s.detach() + 0.7 / 4 * ((s / scale).square() - 1).detach())
