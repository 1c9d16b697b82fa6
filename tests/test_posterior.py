"""Posterior Gaussians against dense linear algebra and Bayesian linear regression (docs/method/posterior.md#checks)."""

from __future__ import annotations

import pytest
import torch

import marquis as mq
from helpers.small_networks import (
    LinearModel,
    at_mode,
    close,
    dense_jacobian,
    fresh,
    inputs_for,
    layout_of,
    mlp,
    parameters,
    ridge,
    seeded,
)
from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.structures import STRUCTURES, Diagonal, Full

KINDS = list(STRUCTURES)


def posterior_of(
    kind: str, groups="layer", likelihood="categorical"
) -> tuple[mq.Posterior, torch.nn.Module, torch.Tensor]:
    network = mlp()
    x = inputs_for(network)
    prior = mq.Prior(1.5, groups).bind(layout_of(network), network).with_precision(torch.tensor([1.5, 0.7]))
    precision = prior.add_to(mq.curvature.ggn(network, x, likelihood, kind))
    return mq.Posterior(layout_of(network), parameters(network), precision), network, x


@pytest.mark.parametrize("kind", KINDS)
def test_sampler_is_a_root_of_the_covariance(kind):
    posterior, *_ = posterior_of(kind)
    root = posterior.layout.flatten(posterior.deviations_from(torch.eye(posterior.noise_dim, dtype=torch.float64)))
    close(root.mT @ root, torch.linalg.inv(posterior.precision.to_dense()), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_density_variance_and_functions_are_those_of_the_dense_gaussian(kind):
    posterior, network, x = posterior_of(kind)
    covariance = torch.linalg.inv(posterior.precision.to_dense())
    covariance = (covariance + covariance.mT) / 2
    dense = torch.distributions.MultivariateNormal(posterior.vector, covariance)
    drawn = posterior.sample(5, seeded())
    close(posterior.log_prob(drawn), dense.log_prob(posterior.layout.flatten(drawn)))
    close(posterior.layout.flatten(posterior.variance()), covariance.diagonal())
    jacobian = dense_jacobian(network, x)
    expected = jacobian @ covariance @ jacobian.mT
    close(posterior.functional_covariance(jacobian), expected)
    close(posterior.functional_variance(jacobian), expected.diagonal(dim1=-2, dim2=-1))
    v = torch.randn(3, posterior.layout.total, generator=seeded(3), dtype=torch.float64)
    close(posterior.covariance_matvec(v), v @ covariance)


def test_samples_do_not_depend_on_how_many_are_drawn_at_once():
    posterior, *_ = posterior_of("diagonal")
    generator = seeded(5)
    together = posterior.noise(7, seeded(5))
    apart = torch.cat([posterior.noise(3, generator), posterior.noise(4, generator)])
    assert torch.equal(together, apart)


@pytest.mark.parametrize("kind", ["full", "lowrank", "block", "kronecker"])
def test_linear_regression_in_closed_form(kind):
    """Exact for all of these: one layer with Gaussian noise."""
    x = torch.randn(21, 4, generator=seeded(), dtype=torch.float64)
    y = torch.randn(21, 3, generator=seeded(1), dtype=torch.float64)
    mean, precision = ridge(x, y, delta=0.8, beta=2.5)
    model = at_mode(LinearModel(4, 3), mean)
    la = mq.Laplace(model, mq.Gaussian(2.5), kind, prior=0.8).fit(
        [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    )
    close(la.posterior.precision.to_dense(), precision)
    close(la.posterior.mean["layer.weight"], mean)
    new = torch.randn(5, 4, generator=seeded(2), dtype=torch.float64)
    jacobian = torch.kron(torch.eye(3, dtype=torch.float64), new.unsqueeze(1)).reshape(5, 3, 12)
    expected = jacobian @ torch.linalg.inv(precision) @ jacobian.mT
    prediction = la.predict(new)
    close(prediction.covariance, expected)
    close(prediction.mean, new @ mean.mT)
    close(prediction.noise_variance, torch.full((5, 3), 1 / 2.5, dtype=torch.float64))


def test_diagonal_is_exact_for_orthogonal_features_and_not_otherwise():
    basis = torch.linalg.qr(torch.randn(9, 4, generator=seeded(), dtype=torch.float64)).Q * torch.arange(1.0, 5.0)
    skew = torch.randn(9, 4, generator=seeded(), dtype=torch.float64)
    for x, exact in ((basis, True), (skew, False)):
        model = LinearModel(4, 2)
        full = mq.Laplace(model, "gaussian", "full").fit([(x, x[:, :2])]).posterior
        diagonal = mq.Laplace(model, "gaussian", "diagonal").fit([(x, x[:, :2])]).posterior
        assert torch.allclose(full.precision.logdet(), diagonal.precision.logdet(), rtol=1e-10) == exact
        v = torch.randn(8, generator=seeded(4), dtype=torch.float64)
        assert torch.allclose(full.covariance_matvec(v), diagonal.covariance_matvec(v), rtol=1e-10) == exact


def test_kronecker_is_exact_for_a_gaussian_last_layer_and_not_for_classes():
    network, x = mlp(), inputs_for(mlp(), 50)
    y = torch.randint(4, (50,), generator=seeded())
    for likelihood, labels, exact in (("gaussian", torch.zeros(50, 4).double(), True), ("categorical", y, False)):
        fits = {
            kind: mq.Laplace(network, likelihood, kind, parameters=["2.weight"]).fit([(x, labels)]).posterior
            for kind in ("full", "kronecker")
        }
        same = torch.allclose(fits["full"].precision.to_dense(), fits["kronecker"].precision.to_dense(), rtol=1e-10)
        assert same == exact


@pytest.mark.parametrize("kind", ["full", "block", "lowrank", "kronecker", "diagonal"])
def test_two_halves_in_sequence_equal_one_batch(kind):
    """Each half is fitted at its own exact mode; the second starts from the first's posterior."""
    x = torch.randn(20, 3, generator=seeded(), dtype=torch.float64)
    if kind == "diagonal":  # exact only for features that stay orthogonal in both halves
        x = torch.cat([torch.linalg.qr(half).Q for half in x.split(10)])
    y = torch.randn(20, 2, generator=seeded(1), dtype=torch.float64)
    first_mean, first_precision = ridge(x[:10], y[:10], 0.5, 2.0)
    first = mq.Laplace(at_mode(LinearModel(3, 2), first_mean), mq.Gaussian(2.0), kind, prior=0.5).fit(
        [(x[:10], y[:10])]
    )
    second_mean, _ = ridge(x[10:], y[10:], 0.5, 2.0, first_precision, first_mean.flatten())
    model = at_mode(LinearModel(3, 2), second_mean)
    second = mq.Laplace(model, mq.Gaussian(2.0), kind, prior=first).fit([(x[10:], y[10:])])
    mean, precision = ridge(x, y, 0.5, 2.0)
    close(second.posterior.precision.to_dense(), precision)
    close(second.posterior.mean["layer.weight"], mean)
    together = mq.Laplace(at_mode(LinearModel(3, 2), mean), mq.Gaussian(2.0), kind, prior=0.5).fit([(x, y)])
    close(first.log_evidence() + second.log_evidence(), together.log_evidence())


def test_mean_shift_finds_the_mode_of_a_quadratic_from_anywhere():
    x = torch.randn(15, 3, generator=seeded(), dtype=torch.float64)
    y = torch.randn(15, 2, generator=seeded(1), dtype=torch.float64)
    mean, _ = ridge(x, y, 0.5, 2.0)
    values = []
    for seed in range(3):
        start = mean + torch.randn(2, 3, generator=seeded(seed + 5), dtype=torch.float64)
        la = mq.Laplace(at_mode(LinearModel(3, 2), start), mq.Gaussian(2.0), "full", prior=0.5).fit([(x, y)])
        shift = la.mean_shift()
        close(shift.mean["layer.weight"], mean)
        values.append(la.log_evidence() + shift.gain)
        assert float(shift.gain) > 0.1
    for value in values[1:]:
        close(value, values[0])


def test_temperature_divides_the_curvature_and_not_the_prior():
    network, x = mlp(), inputs_for(mlp())
    cold = mq.Laplace(network, "gaussian", "full", prior=2.0).fit([x])
    warm = mq.Laplace(network, "gaussian", "full", prior=2.0, temperature=4.0).fit([x])
    eye = torch.eye(44, dtype=torch.float64)
    close(warm.posterior.precision.to_dense() - 2 * eye, (cold.posterior.precision.to_dense() - 2 * eye) / 4)


def test_single_weights_are_random_and_the_others_stay():
    layout = layout_of(mlp())
    index = torch.tensor([1, 7, 30])
    inside = mq.structures.Layout({"w": (3,)})
    matrix = torch.tensor([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.0]], dtype=torch.float64)
    posterior = mq.Posterior(layout, parameters(mlp()), Full(inside, matrix), index)
    away = layout.flatten(posterior.sample(4, seeded())) - posterior.vector
    assert (away[:, index] != 0).all()
    others = torch.ones(layout.total, dtype=torch.bool).index_fill(0, index, False)
    assert (away[:, others] == 0).all()
    jacobian = torch.randn(2, layout.total, generator=seeded(2), dtype=torch.float64)
    close(
        posterior.functional_covariance(jacobian), jacobian[:, index] @ torch.linalg.inv(matrix) @ jacobian[:, index].mT
    )
    again = mq.Posterior.from_state_dict(posterior.state_dict())
    close(again.log_prob(posterior.mean), posterior.log_prob(posterior.mean))


def test_pieces_that_do_not_belong_together_are_refused():
    layout = layout_of(mlp())
    with pytest.raises(ModelMismatchError):
        mq.Posterior(layout, parameters(mlp()), Diagonal(layout.select(["0.weight"]), torch.ones(15).double()))
    with pytest.raises(DataError):
        mq.Posterior(
            layout,
            {n: p * float("nan") for n, p in parameters(mlp()).items()},
            Diagonal(layout, torch.ones(44).double()),
        )
    posterior, _, x = posterior_of("full")
    with pytest.raises(ModelMismatchError, match=r"0\.weight"):
        mq.predictive.predict(posterior, mlp(hidden=6), x)
    with pytest.raises(UnsupportedOperationError, match="eval"):
        mq.predictive.predict(posterior, torch.nn.Sequential(*fresh(mlp()), torch.nn.Dropout()).train(), x)


def test_joint_of_weights_and_outputs_is_the_corrected_one():
    """Miani et al. (2022), theorem 1, in its corrected form: conditioning the joint on labels is Bayes' rule."""
    posterior, network, x = posterior_of("full", likelihood="gaussian")
    covariance = torch.linalg.inv(posterior.precision.to_dense())
    jacobian = dense_jacobian(network, x).flatten(0, 1)
    noise = 0.3 * torch.eye(len(jacobian), dtype=torch.float64)
    residual = torch.randn(len(jacobian), generator=seeded(5), dtype=torch.float64)
    updated = covariance.inverse() + jacobian.mT @ noise.inverse() @ jacobian  # Bayes' rule in weight space
    mean = torch.linalg.solve(updated, jacobian.mT @ noise.inverse() @ residual)

    def conditioned(cross: torch.Tensor, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gain = cross @ outputs.inverse()
        return gain @ residual, covariance - gain @ cross.mT

    cross = posterior.covariance_matvec(jacobian).mT
    outputs = jacobian @ cross + noise
    shift, remaining = conditioned(cross, outputs)
    close(shift, mean, 1e-9)
    close(remaining, updated.inverse(), 1e-9)
    printed_shift, printed_remaining = conditioned(jacobian.mT, outputs)  # the paper's cross block, J^T
    assert (printed_shift - mean).norm() > 0.1 * mean.norm()
    assert (printed_remaining - updated.inverse()).norm() > 0.1 * updated.inverse().norm()
