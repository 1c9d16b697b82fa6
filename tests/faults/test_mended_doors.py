"""Faults that the fuzzer found, by name: each is refused with the argument's name, or right."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import marquis as mq
from marquis import (
    autoencoders,
    explorer,
    likelihoods,
    online,
    plots,
    predictive,
    report,
    run,
    structures,
    tasks,
    tomography,
    variational,
)
from marquis.errors import (
    DataError,
    MarquisError,
    MemoryBudgetError,
    ModelMismatchError,
    NumericalError,
    StorageError,
    UnsupportedOperationError,
)
from marquis.integrations import hub
from marquis.sklearn import LaplacianAutoencoder
from marquis.subnetwork.swag import swag_variance

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
X, Y, LABELS = torch.randn(6, 3), torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0])
CODES = torch.randn(2, 6, 2)


@pytest.fixture(scope="module")
def fitted() -> mq.Laplace:
    return mq.Laplace(MODEL, "gaussian").fit([(X, Y)], progress=False)


@pytest.mark.parametrize("noise", [torch.ones(2), torch.ones(0)], ids=["two", "none"])
def test_one_noise_for_all_outputs(fitted, noise):
    with pytest.raises(DataError, match=r"noise has shape \[\d\]; one number"):
        fitted.log_marginal_likelihood(sigma_noise=noise)
    same = fitted.log_marginal_likelihood(sigma_noise=torch.tensor([0.5]))
    torch.testing.assert_close(same, fitted.log_marginal_likelihood(sigma_noise=0.5))


def test_noise_of_a_classifier():
    classes = mq.Laplace(MODEL, "categorical").fit([(X, LABELS)], progress=False)
    with pytest.raises(UnsupportedOperationError, match="has no noise"):
        classes.log_marginal_likelihood(sigma_noise=0.5)


def test_temperatures_are_numbers():
    model = autoencoders.LaplacianAutoencoder(nn.Linear(3, 2), nn.Linear(2, 3), num_data=6)
    model.train().training_step((X,), 0)
    learner = mq.OnlineLaplace(MODEL, "gaussian", num_data=6)
    learner.step(X, Y)
    for call in (model.posterior, learner.posterior, lambda t: autoencoders.linearised(model.eval(), t)):
        with pytest.raises(DataError, match="posterior_temperature is a ndarray"):
            call(np.ones(3))


def test_modules_that_are_no_predicates_or_closures():
    with pytest.raises(MarquisError, match="parameters is a module"):
        mq.Laplace(MODEL, "gaussian", parameters=nn.ReLU()).fit([(X, Y)], progress=False)
    noisy = mq.OnlineLaplace(MODEL, "gaussian", num_data=6, rule="noisy-adam")
    noisy.step(X, Y).backward()
    with pytest.raises(DataError, match="closure is a Linear"):
        online.NoisyAdam(noisy).step(nn.Linear(2, 2))


def test_batches_of_single_numbers():
    with pytest.raises(DataError, match="single number"):
        mq.Laplace(MODEL, "categorical").fit([(torch.tensor(1.0), torch.tensor(0))], progress=False)


def test_products_with_what_is_no_vector():
    operator = mq.curvature.operator(MODEL, [(X, Y)], "gaussian")
    for wrong in ([None], np.ones(26)):
        with pytest.raises(DataError, match="v is a"):
            operator @ wrong  # type: ignore[operator]


def test_moments_of_different_shapes():
    for wrong in (torch.ones(6, 4), torch.ones(3, 6, 2)):
        with pytest.raises(DataError, match="variance has shape"):
            predictive.Prediction(mean=Y, variance=wrong)
    with pytest.raises(DataError, match=r"mean is torch\.complex64"):
        predictive.Prediction(mean=Y.to(torch.complex64), variance=Y)
    assert predictive.Prediction(Y, torch.ones(6, 1)).interval()[0].shape == Y.shape


def test_data_and_codes_of_few_labels():
    model = autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3))
    with pytest.raises(DataError, match="single number"):
        tasks.semi_supervised.evaluate(model, torch.tensor(0.0), LABELS)
    with pytest.raises(DataError, match="per_class is 'strange'"):
        tasks.semi_supervised.evaluate(model, X, LABELS, "strange")  # type: ignore[arg-type]
    for bad in (float("nan"), float("inf")):
        codes = CODES.clone()
        codes[0, 0, 0] = bad
        with pytest.raises(DataError, match="codes holds 1 NaN or infinite"):
            tasks.semi_supervised.evaluate_multilabel_codes(codes, LABELS[:, None], 4, repetitions=1)


def test_loaders_that_are_one_number(fitted):
    with pytest.raises(DataError, match="loader is a Tensor of shape"):
        fitted.predict_loader(torch.tensor(1.0))


def test_scalings_and_priors_of_other_numbers():
    scaling = run.Scaling.of(X)
    for call in (scaling.scaled, scaling.unscaled):
        gap = X.clone()
        gap[0, 0] = float("nan")
        assert int(call(gap).isnan().sum()) == 1  # missing stays missing
        with pytest.raises(DataError, match="infinite entries"):
            call(gap / 0)
    with pytest.raises(DataError, match=r"like is torch\.complex64"):
        mq.Prior(1.0).bind(fitted_layout(), MODEL, like=torch.zeros((), dtype=torch.complex64))


def fitted_layout() -> structures.Layout:
    return structures.Layout.of(dict(MODEL.named_parameters()))


def test_measures_of_calibration_that_no_float_holds():
    for variance in (float("inf"), torch.tensor([1.0, float("inf")])):
        with pytest.raises(DataError, match="infinite"):
            tasks.calibration.sharpness(variance)
    with pytest.raises(DataError, match="squared errors"):
        tasks.calibration.error_against_variance(Y, Y.square(), Y.double() * 1e200, bins=2)


def test_random_counts_in_half_precision():
    for likelihood in (likelihoods.Poisson(), likelihoods.NegativeBinomial(2.0)):
        drawn = [likelihood.sample(f, torch.Generator().manual_seed(0)) for f in (torch.ones(5).half(), torch.ones(5))]
        torch.testing.assert_close(*drawn)


def test_scores_that_are_switches_or_complex():
    torch.testing.assert_close(tasks.ood.typicality(X[:, 0] > 0, LABELS), (0.5 - (X[:, 0] > 0).float()).abs())
    with pytest.raises(DataError, match="attributes is complex"):
        tasks.semi_supervised.evaluate_multilabel_codes(CODES, LABELS[:, None].to(torch.complex64), 4)


def test_floors_of_variances():
    beam, image = tomography.ParallelBeam(8, 6), torch.rand(8, 8, dtype=torch.float64)
    for floor in (float("inf"), -1.0):
        with pytest.raises(DataError, match="floor is"):
            tomography.UncertainImage(image, image, floor, 1.0, beam, "test")


def test_choices_that_are_nan():
    beam = tomography.ParallelBeam(8, 6)
    for call in (
        lambda: tomography.psnr(X, X + 1, span=float("nan")),
        lambda: tomography.simulate(torch.rand(8, 8), beam, noise=float("nan")),
    ):
        with pytest.raises(DataError, match="is nan"):
            call()


def test_codes_that_the_model_cannot_hold():
    decoders = tasks.geometry.SampledDecoders(autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)), 1)
    assert decoders.like_codes(torch.ones(1, 2).double()).dtype == torch.float32
    with pytest.raises(DataError, match=r"codes up to 1e\+200 are too large"):
        decoders.like_codes(torch.full((1, 2), 1e200, dtype=torch.float64))


def test_results_that_are_none():
    for wrong in (b"abc", [[1.0]]):
        with pytest.raises(DataError, match="results is"):
            tasks.ood.together(wrong)  # type: ignore[arg-type]


def test_negative_numbers_of_networks():
    method = variational.VariationalLaplace(MODEL, "gaussian", num_data=6)
    wrapped = variational.LightningMethod(method)
    for call in (method.predict, wrapped.predict):
        with pytest.raises(DataError, match="samples is -1"):
            call(X, samples=-1)
    with pytest.raises(DataError, match="samples is -1"):
        method.log_likelihood([(X, Y)], samples=-1)


def test_sizes_that_no_machine_holds():
    with pytest.raises(DataError, match="latent is 1000000000"):
        autoencoders.build((3,), 10**9)
    with pytest.raises(DataError, match="size=1000000000 and width=16 make a layer"):
        variational.small_cnn(size=10**9)
    with pytest.raises(DataError, match="outputs is -1"):
        variational.mlp(3, -1)
    vae = autoencoders.VariationalAutoencoder(nn.Linear(3, 2), nn.Linear(2, 3))
    with pytest.raises(DataError, match="n is 1000000000"):
        vae.sample(10**9)
    with pytest.raises(DataError, match="latent is 0"):
        vae.sample(1, latent=0)


@pytest.mark.parametrize("width", [1e5, 1e9, 1e300])
def test_networks_that_no_memory_holds(width):
    spec = autoencoders.ModelSpec("ae", (3,), 2, width=width)
    builds = [lambda: autoencoders.build("fashion-conv", 2, width), lambda: autoencoders.for_data((3,), 2, width)]
    for build in (*builds, lambda: spec.build(0)):
        with pytest.raises(MemoryBudgetError, match=r"latent=2, width=.*take fewer units"):
            build()


def test_estimators_that_no_memory_holds():
    from marquis.sklearn import LaplaceRegressor, LaplacianAutoencoder

    rows = np.random.default_rng(0).normal(size=(30, 3))
    for size in (10**10, 10**30):
        for made in (LaplaceRegressor(hidden_layer_sizes=size), LaplacianAutoencoder(hidden_layer_sizes=(4, size))):
            with pytest.raises(MemoryBudgetError, match=r"hidden_layer_sizes=.*take fewer units"):
                made.fit(rows, rows[:, 0])
        with pytest.raises(DataError, match=r"n_components=10+: at most"):
            LaplacianAutoencoder(n_components=size).fit(rows)


def test_a_size_that_fits_changes_no_random_number():
    torch.manual_seed(0)
    drawn = autoencoders.build((3,), 2)[0][0].weight.clone(), torch.rand(1)
    torch.manual_seed(0)
    torch.testing.assert_close(drawn[0], nn.Linear(3, 64).weight)
    torch.manual_seed(0)
    assert torch.equal(drawn[0], autoencoders.build((3,), 2)[0][0].weight) and torch.equal(drawn[1], torch.rand(1))


def test_bins_that_do_not_end():
    prob = torch.full((6, 2), 0.5)
    calibration = tasks.calibration
    for name in ("reliability", "expected_calibration_error", "maximum_calibration_error"):
        with pytest.raises(DataError, match="bins is 1000000000"):
            getattr(calibration, name)(prob, LABELS, 10**9)


def test_pages_with_impossible_names(tmp_path, fitted):
    with pytest.raises(StorageError, match="cannot be written"):
        report.Page("t").write(tmp_path / ("x" * 5000))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        hub.save_pretrained(fitted, tmp_path / "file")


def test_arrays_and_text_in_tomography():
    beam = tomography.ParallelBeam(8, 6)
    data = beam.forward(torch.rand(8, 8, dtype=torch.float64))
    with pytest.raises(DataError, match="angles is 'xxx"):
        tomography.ParallelBeam(8, "x" * 5000)  # type: ignore[arg-type]
    for call in (
        lambda: tomography.reconstruct("strange", beam, noise=0.1),  # type: ignore[arg-type]
        lambda: tomography.deep_image_prior(data, beam, tv=1e-3, steps=1, start=torch.ones(0), progress=False),
        lambda: tomography.deep_image_prior(data, beam, tv=1e-3, steps=1, start=data, progress=False),
    ):
        with pytest.raises(DataError, match=r"data is|start has shape"):
            call()


def test_filtered_back_projections_have_gradients():
    for beam in (tomography.ParallelBeam(8, 6), tomography.FanBeam(8, 6, source=20.0, detector=20.0)):
        data = torch.rand(beam.data_shape, dtype=torch.float64, requires_grad=True)
        weights = torch.rand(8, 8, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((beam.fbp(data) * weights).sum(), data)
        probe = torch.rand_like(data)  # the map is linear, so its gradient is its transpose
        expected = (beam.fbp(probe) * weights).sum()
        torch.testing.assert_close((gradient * probe).sum(), expected)


def test_switches_and_shares_of_estimators():
    from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer

    rows = np.random.default_rng(0).normal(size=(30, 3))
    made = LaplacianAutoencoder(max_iter=2).fit(rows)
    with pytest.raises(DataError, match="alpha is a Tensor"):
        made.is_drift(rows, alpha=torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="return_std is a Tensor"):
        made.inverse_transform(made.transform(rows), return_std=torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="samples is 1000000000"):
        made.impute(rows, samples=10**9)
    with pytest.raises(DataError, match="add_indicator is a Tensor"):
        LaplacianImputer(add_indicator=torch.ones(2) > 0).fit(rows)  # type: ignore[arg-type]
    imputer = LaplacianImputer(LaplacianAutoencoder(max_iter=2)).fit(rows)
    with pytest.raises((ValueError, TypeError)):
        imputer.get_feature_names_out(torch.ones(2, requires_grad=True))
    assert imputer.get_feature_names_out(["a", "b", "c"]).tolist() == ["a", "b", "c"]


def test_outputs_of_a_model_of_botorch(fitted):
    botorch = pytest.importorskip("marquis.integrations.botorch")
    model = botorch.LaplaceModel(fitted, 2)
    assert model.posterior(X, output_indices=[1]).mean.shape == (6, 1)
    with pytest.raises(DataError, match="cannot take x of shape"):
        model.posterior(X.long())
    for wrong in ([], [2], [-1]):  # -1 would take the mean of one output and the covariance of another
        with pytest.raises(DataError, match="output_indices="):
            model.posterior(X, output_indices=wrong)


def test_a_module_is_named_by_what_it_takes():
    versions = torch.randn(2, 4, 3)
    with pytest.raises(DataError, match="classifier is a Bilinear"):
        tasks.imputation.class_probabilities(nn.Bilinear(3, 3, 2), versions)


def test_moments_of_a_prediction_are_floating_point():
    with pytest.raises(DataError, match=r"mean are torch\.bool"):
        mq.Bernoulli().predictive(torch.tensor([[True]]), torch.tensor([[1.0]]))


def test_functions_that_return_no_prior_scale():
    with pytest.raises(DataError, match="has to be a number or a tensor, not None"):
        variational.MeanFieldVI(MODEL, "gaussian", num_data=6, prior_scale=lambda name, value: None)


def test_sizes_of_networks_and_processes():
    with pytest.raises(DataError, match="outputs is -1"):
        variational.PreactResNet18(outputs=-1)
    for make in (lambda: variational.mlp(3, 1, (10**6, 10**6)), lambda: variational.PreactResNet18(width=1e9)):
        with pytest.raises(DataError, match="layer of more than"):
            make()
    with pytest.raises(DataError, match="num_workers is -1"):
        mq.data.DataModule("digits", num_workers=-1)


def test_scores_that_overflow():
    model = autoencoders.Autoencoder(nn.Linear(3, 2).double(), nn.Linear(2, 3).double()).eval()
    x = torch.full((2, 3), 1e200, dtype=torch.float64)
    with pytest.raises(DataError, match="of_reconstruction: 2 of 2 values of 'error' are not finite"):
        tasks.ood.of_reconstruction(model.reconstruct(x), x)


def test_names_of_another_network():
    with pytest.raises(ModelMismatchError, match="no trained parameters other"):
        swag_variance(MODEL, [(X, Y)], mq.Gaussian(), ["other"])


def test_temporary_files_are_gone(tmp_path):
    with pytest.raises(StorageError):
        report.Page("t").write(tmp_path / ("x" * 300))
    assert list(Path(tmp_path).iterdir()) == []


def test_operators_take_functions_that_answer_with_tensors():
    operator, rows = mq.curvature.operator(MODEL, [(X, Y)], "gaussian"), torch.ones(2, 26)
    with pytest.raises(DataError, match="preconditioner fails on a tensor of shape"):
        operator.solve(rows, shift=1.0, preconditioner=-1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="function returns NoneType; it has to return a tensor"):
        operator.spectrum(4, 2).integrate(lambda nodes: None)  # type: ignore[arg-type,return-value]
    for call in (
        lambda: operator.trace(0),
        lambda: operator.solve(rows, shift=1.0, tol=0.0),
        lambda: operator.nystrom(-1),
    ):
        with pytest.raises(DataError, match="has to be"):
            call()
    for call in (
        lambda: operator @ (rows / 0),
        lambda: operator * float("nan"),
        lambda: operator.logdet(shift=math.inf),
    ):
        with pytest.raises(DataError, match="finite"):
            call()


def test_groups_of_priors_are_names():
    with pytest.raises(DataError, match="groups is"):
        mq.Prior(groups={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(DataError, match=r"group 'all' has shape \[2\]"):
        mq.Laplace(MODEL, "gaussian", prior=mq.Prior({"all": torch.ones(2)})).fit([(X, Y)], progress=False)
    layout = mq.structures.Layout.of(dict(MODEL.named_parameters()))
    assert mq.Prior(2.0).bind(layout, nn.ReLU()).precision.tolist() == [2.0]


def test_codes_of_one_width():
    model = autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)).eval()
    z = X[:, :2]
    with pytest.raises(DataError, match="codes of 3 numbers, start of 2"):
        tasks.geometry.geodesic(model, z[0], z[1], points=3, steps=1, through=X)
    with pytest.raises(DataError, match="one code z and several others"):
        tasks.geometry.distances(model, z[:2], z, points=3, steps=1)
    sampled = tasks.geometry.SampledDecoders(model, 2)
    for call in (sampled.outputs, sampled.jacobians, sampled.shaped_outputs):
        with pytest.raises(DataError, match=r"z has shape \[2\].*codes are floating-point \[n, K\]"):
            list(call(z[0]))
    with pytest.raises(DataError, match="overflows"):
        tasks.generation.near(z.double() * 1e200, 2)


def test_more_doors_of_tasks_and_pictures():
    with pytest.raises(DataError, match="at least one of each set"):
        plots.score_histogram([1.0], [])
    with pytest.raises(DataError, match="classifier returns None"):
        tasks.imputation.class_probabilities(lambda x: None, torch.randn(2, 4, 3))  # type: ignore[arg-type,return-value]
    with pytest.raises(DataError, match=r"members\[0\] is None"):
        autoencoders.EnsembleAutoencoder.of([None])  # type: ignore[list-item]
    with pytest.raises(StorageError, match="names no file"):
        report.Page("t").write("")
    with pytest.raises(DataError, match="is sparse"):
        mq.explore(autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)).eval(), X, second=X.to_sparse())
    for validation in (float("inf"), 1.0, -0.1):
        module = mq.data.DataModule("digits", validation=validation)
        with pytest.raises(DataError, match="leaves none to train on"):
            module.setup()
    with pytest.raises(DataError, match="random_state is -1"):
        mq.conformal.ConformalSets.calibrate(torch.full((4, 2), 0.5), [0, 1, 1, 0], random_state=-1)


def test_more_doors_of_autoencoders():
    model = autoencoders.VariationalAutoencoder(nn.Linear(3, 4), nn.Linear(2, 3)).eval()
    for call in (model.elbo, model.log_marginal):
        with pytest.raises(
            DataError, match=rf"{call.__name__}: VariationalAutoencoder cannot take data of shape \[1\]"
        ):
            call(X[:, :1], 2)
    with pytest.raises(DataError, match=r"no description that as_json wrote.*options"):
        autoencoders.ModelSpec.from_json({"kind": "lae"})
    with pytest.raises(UnsupportedOperationError, match="bytes has no method `decode"):
        tasks.geometry.volume(b"abc", X[:, :2])


def test_more_doors_of_tomography():
    with pytest.raises(DataError, match="angles is"):
        tomography.ParallelBeam(8, 1j)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="matrix is a list of NoneType"):
        tomography.Dense([None], 8)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="dropout is inf"):
        tomography.UNet((4,), dropout=float("inf"))
    beam = tomography.ParallelBeam(8, 6)
    with pytest.raises(DataError, match="learning_rate is -1"):
        tomography.deep_image_prior(torch.ones(beam.data_shape), beam, tv=1.0, learning_rate=-1.0, progress=False)


def test_mappings_of_tensors_and_numbers_of_points():
    posterior = mq.Laplace(MODEL, "gaussian").fit([(X, Y)], progress=False).posterior
    with pytest.raises(DataError, match="mean is a dict"):
        mq.Posterior(posterior.layout, {"a": 1}, posterior.precision)  # type: ignore[dict-item]
    session = explorer.Workspace([autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)).eval()], X).session(0)
    for call in (lambda: session.neighbours([0.0, 0.0], 2, without=6), lambda: session.impute(-1, [0])):
        with pytest.raises(DataError, match="rows are numbered from 0 to 5"):
            call()


def test_explanations_that_overflow():
    rows = np.random.default_rng(0).normal(scale=0.1, size=(40, 3))
    fitted = LaplacianAutoencoder(max_iter=2).fit(rows)
    with pytest.raises(DataError, match=r"contributions of 40 rows of X .* overflow"):
        fitted.explain(rows * 1e200)


def test_labels_and_rows_with_gradients():
    probs = np.full((4, 2), 0.5)
    with pytest.raises(DataError, match="class numbers"):
        mq.conformal.ConformalSets.calibrate(probs, torch.zeros(4, requires_grad=True))
    session = explorer.Workspace([autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)).eval()], X).session(0)
    answer = session.explain(X[0].clone().requires_grad_())
    np.testing.assert_array_equal(answer["original"], X[0].numpy())


def test_data_that_are_ones_and_zeros_and_a_target_without_rows():
    result = autoencoders.Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)).eval().reconstruct(X)
    whole = tasks.ood.of_reconstruction(result, (X > 0).float())
    torch.testing.assert_close(tasks.ood.of_reconstruction(result, X > 0)["error"], whole["error"])
    with pytest.raises(DataError, match="y is a single number"):
        mq.data.Data(X, torch.tensor(1), "t", "all")


def test_names_too_long_and_labels_too_large():
    with pytest.raises(StorageError, match="cannot be read: File name too long"):
        hub.from_pretrained("x" * 5000, MODEL)
    with pytest.raises(NumericalError, match="the log-likelihood is -inf"):
        variational.MAP(nn.Linear(3, 2).double(), "gaussian", num_data=6).step(X.double(), Y.double() * 1e200)


def test_infinite_labels_rates_and_single_numbers():
    logits = torch.zeros(3, 2)
    with pytest.raises(DataError, match="NaN or infinite"):
        mq.Categorical().log_prob(logits, torch.full((3,), math.inf))
    assert mq.Categorical().log_prob(logits, torch.tensor([0.0, 1.0, 1.0])).isfinite().all()
    with pytest.raises(DataError, match="lr is inf"):
        run.TrainingSettings("ae", "digits", lr=math.inf)
    with pytest.raises(DataError, match=r"\[rows, columns\]"):
        run.Scaling.of(torch.tensor(1.0))
    batches = [(X, torch.zeros(len(X), 2))]
    with pytest.raises(DataError, match="lr is -1"):
        swag_variance(nn.Linear(3, 2), batches, mq.Gaussian(), ["weight"], lr=-1.0)
