"""Every public call with arguments that work: what the fuzzer spoils one or two at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import marquis as mq
from marquis import tasks


@dataclass(frozen=True)
class Door:
    """One public call.

    Attributes:
        name: For reports.
        call: The function; called with keyword arguments.
        arguments: Makes arguments with which it works, new ones each time.
        overflows: Whether -infinity is right: the logarithm of a density that is 0 in every float.
        foreign: Errors of others that are part of the contract here (scikit-learn's `ValueError` and `TypeError`).
        linear: Whether it is a linear map, for which NaN out is right where there is NaN or infinity in.
        undefined: Whether NaN is right: a mean over nothing.
    """

    name: str
    call: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    foreign: tuple[type[BaseException], ...] = ()
    overflows: bool = False
    linear: bool = False
    undefined: bool = False


def door(
    name: str,
    call: Callable[..., Any],
    *,
    overflows: bool = False,
    foreign: Any = (),
    linear: bool = False,
    **good: Any,
) -> Door:
    """Return a door whose arguments are the same objects each time: nothing changes them."""
    return Door(name, call, lambda: dict(good), foreign, overflows, linear)


MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
SHAPES = {name: tuple(p.shape) for name, p in MODEL.named_parameters()}
X, Y, LABELS = torch.randn(4, 3), torch.randn(4, 2), torch.tensor([0, 1, 1, 0])


def loader(x: torch.Tensor = X, y: torch.Tensor = Y) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return two batches."""
    return [(x[:2], y[:2]), (x[2:], y[2:])]


def _curvature() -> Iterator[Door]:
    one = {"model": MODEL, "x": X, "likelihood": "gaussian", "structure": "diagonal"}
    extra = {"parameters": None, "params": None, "mask": None, "generator": None, "memory_limit": None}
    sketched = {**one, "estimator": "sketched", "probes": 1, "width_limit": 512, "weight_sharing": "expand", **extra}
    yield Door("curvature.ggn", mq.curvature.ggn, lambda: dict(sketched))
    yield Door("curvature.ggn exact", mq.curvature.ggn, lambda: {**one, "structure": "kronecker", "estimator": "exact"})
    yield Door("curvature.fisher", mq.curvature.fisher, lambda: {**one, "samples": 1, **extra})
    empirical = {key: value for key, value in extra.items() if key != "generator"}
    yield Door("curvature.empirical_fisher", mq.curvature.empirical_fisher, lambda: {**one, "y": Y, **empirical})
    yield Door("curvature.hessian", mq.curvature.hessian, lambda: {**one, "y": Y, "vectors_per_pass": 4})
    yield Door("curvature.plan", mq.curvature.plan, lambda: {**one, "probes": 1, "memory_limit": None})
    many = {"model": MODEL, "loader": loader(), "likelihood": "gaussian"}
    summed = {"structure": "diagonal", "estimator": "exact", "parameters": None, "memory_limit": None}
    yield Door("curvature.accumulate", mq.curvature.accumulate, lambda: {**many, **summed, "progress": False})

    def product(vector: Any, **arguments: Any) -> Any:
        return mq.curvature.operator(**arguments) @ vector

    operator = {**many, "kind": "ggn", "vector": torch.ones(26), "parameters": None, "vectors_per_pass": 1}
    yield Door("curvature.operator @", product, lambda: dict(operator))


def fitted(likelihood: str = "gaussian") -> Any:
    """Return a fitted Laplace approximation."""
    targets = Y if likelihood == "gaussian" else LABELS
    return mq.Laplace(MODEL, likelihood, structure="kronecker").fit(loader(X, targets), progress=False)


def _laplace() -> Iterator[Door]:
    def fit(loader: Any, **options: Any) -> Any:
        laplace = mq.Laplace(**options)
        return laplace.fit(loader, progress=False).log_evidence()

    start = {"model": MODEL, "likelihood": "gaussian", "structure": "diagonal", "parameters": "all", "prior": 1.0}
    yield Door("Laplace.fit", fit, lambda: {**start, "loader": loader(), "temperature": 1.0})
    yield Door(
        "Laplace.fit categorical", fit, lambda: {**start, "likelihood": "categorical", "loader": loader(X, LABELS)}
    )
    yield Door(
        "Laplace.fit bernoulli",
        fit,
        lambda: {**start, "likelihood": "bernoulli", "loader": loader(X, (Y > 0).float())},
    )
    la, classes = fitted(), fitted("categorical")
    yield Door("Laplace.predict", la.predict, lambda: {"x": X, "method": "linearised"})
    yield Door("Laplace.predict sampled", la.predict, lambda: {"x": X, "method": "sampled", "samples": 3})
    yield Door("Laplace.predict classes", classes.predict, lambda: {"x": X, "method": "linearised", "link": "probit"})
    yield Door("Laplace.sample", la.sample, lambda: {"n": 2, "generator": None})
    yield Door("Laplace.tune", lambda **a: fitted().tune(**a), lambda: {"method": "evidence", "loader": None})
    yield Door("Laplace.check", la.check, lambda: {"loader": loader(), "generator": None})
    yield Door("Laplace.effective_parameters", la.effective_parameters, lambda: {"per_group": False})
    yield Door("Laplace.predict_loader", la.predict_loader, lambda: {"loader": loader(), "progress": False})
    folder = Path(tempfile.mkdtemp())
    la.save(folder / "posterior.safetensors")
    yield Door("Laplace.save", la.save, lambda: {"path": folder / "again.safetensors"})
    yield Door("load", mq.load, lambda: {"path": folder / "posterior.safetensors", "model": MODEL, "likelihood": None})

    def prediction(x: Any, level: Any, n: Any, y: Any) -> Any:
        answer = la.predict(x)
        return answer.interval(level), answer.sample(n), answer.log_prob(y)

    yield Door("Prediction", prediction, lambda: {"x": X, "level": 0.9, "n": 2, "y": Y})

    def kernel(model: Any, prior: Any, parameters: Any, x: Any) -> Any:
        return mq.kernel(model, prior, parameters=parameters)(x, x)

    yield Door("kernel", kernel, lambda: {"model": MODEL, "prior": 1.0, "parameters": None, "x": X})

    def subnetwork(size: Any, by: Any, structure: Any) -> Any:
        chosen = mq.Subnetwork(size, by=by, structure=structure)
        return mq.Laplace(MODEL, "gaussian", "full", parameters=chosen).fit(loader(), progress=False).log_evidence()

    yield Door("Subnetwork", subnetwork, lambda: {"size": 5, "by": "magnitude", "structure": "full"})

    def prior(precision: Any, groups: Any, mean: Any) -> Any:
        return mq.Laplace(MODEL, "gaussian", prior=mq.Prior(precision, groups, mean)).fit(loader(), progress=False)

    yield Door("Prior", prior, lambda: {"precision": 1.0, "groups": "layer", "mean": None})


def _training() -> Iterator[Door]:
    def online(x: Any, y: Any, mask: Any, learning_rate: Any, **options: Any) -> Any:
        learner = mq.OnlineLaplace(**options)
        return learner.step(x, y, mask, learning_rate=learning_rate)

    start = {"model": MODEL, "likelihood": "gaussian", "num_data": 4}
    step = {"x": X, "y": Y, "mask": None}
    switches = {"structure": "diagonal", "estimator": "sketched", "preset": None, "samples": 1, "every": 1}
    yield Door("OnlineLaplace", online, lambda: {**start, **switches, **step, "learning_rate": None})
    learner = mq.OnlineLaplace(MODEL, "gaussian", num_data=4)
    learner.step(X, Y)
    yield Door("OnlineLaplace.step", learner.step, lambda: {**step, "learning_rate": 0.1})
    yield Door("OnlineLaplace.draw", learner.draw, lambda: {"generator": torch.Generator().manual_seed(0)})
    for method in (mq.variational.VariationalLaplace, mq.variational.MeanFieldVI, mq.variational.MAP):

        def trained(x: Any, y: Any, mask: Any, method: Any = method, **options: Any) -> Any:
            return method(**options).step(x, y, mask)

        keys = {**start, "tempering": 1.0, "prior_scale": None, "generator": None, **step}
        yield Door(f"variational.{method.__name__}", trained, lambda keys=keys: dict(keys))

    def evidence(**options: Any) -> Any:
        torch.manual_seed(0)
        return mq.evidence.train(**options).log_evidence

    short = {"epochs": 1, "burn_in": 0, "every": 1, "learning_rate": 1e-3, "temperature": 1.0}
    fresh = lambda: nn.Sequential(nn.Linear(3, 2))  # noqa: E731
    yield Door(
        "evidence.train",
        evidence,
        lambda: {"model": fresh(), "loader": loader(), "likelihood": "gaussian", "structure": "diagonal", **short},
    )


def _likelihoods() -> Iterator[Door]:
    counts = {"gaussian": Y, "bernoulli": (Y > 0).float(), "categorical": LABELS, "heteroscedastic": Y[:, :1]}
    for name, y in counts.items():
        likelihood = mq.likelihoods.as_likelihood(name).resolve(Y)
        arguments = lambda y=y: {"f": Y, "y": y, "mask": None}  # noqa: E731
        yield Door(f"{name}.log_prob", likelihood.log_prob, arguments, overflows=True)
        yield Door(f"{name}.hessian_sqrt", likelihood.hessian_sqrt, lambda: {"f": Y, "mask": None})
        yield Door(f"{name}.sample", likelihood.sample, lambda: {"f": Y, "generator": None})
        yield Door(f"{name}.predictive", likelihood.predictive, lambda: {"mean": Y, "variance": Y.square() + 1})
    yield Door("Gaussian", mq.Gaussian, lambda: {"noise_precision": 2.0, "precision_matrix": None})
    yield Door("Categorical", mq.Categorical, lambda: {"dim": 1})
    yield Door("Heteroscedastic", mq.Heteroscedastic, lambda: {"dim": 1})
    yield Door("as_likelihood", mq.likelihoods.as_likelihood, lambda: {"spec": "gaussian"})


def _structures() -> Iterator[Door]:
    structure = mq.curvature.ggn(MODEL, X, "gaussian", "full").add_diagonal(1.0)
    yield Door("structure.solve", structure.solve, lambda: {"v": torch.ones(26)})
    yield Door("structure.matvec", structure.matvec, lambda: {"v": torch.ones(26)})
    yield Door("structure.sample", structure.sample, lambda: {"n": 2, "generator": None})
    yield Door("structure.quadratic", structure.quadratic, lambda: {"jacobian": torch.ones(4, 2, 26)})
    yield Door("structure.add_diagonal", structure.add_diagonal, lambda: {"diagonal": 1.0})
    yield Door("from_state_dict", mq.structures.from_state_dict, lambda: {"state": structure.state_dict()})


def _autoencoders() -> Iterator[Door]:
    encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 3)
    learnt = mq.autoencoders.LaplacianAutoencoder(encoder, decoder, num_data=4)
    learnt.train()
    learnt.training_step((X,), 0)
    learnt.eval()
    yield Door("autoencoder.encode", learnt.encode, lambda: {"x": X, "samples": 3})
    yield Door("autoencoder.decode", learnt.decode, lambda: {"z": X[:, :2], "samples": 3})
    yield Door("autoencoder.reconstruct", learnt.reconstruct, lambda: {"x": X, "samples": 3})
    yield from _tasks(learnt)


def _tasks(model: Any) -> Iterator[Door]:
    probs = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    missing, twice = torch.zeros(4, 3).bool(), torch.cat([X, X + 1])
    missing[0, 0] = True
    ranks = {"in_scores": X[:, 0], "out_scores": X[:, 1]}
    few = {"per_class": [1], "repetitions": 1, "candidates": (1,)}
    quiet = {"samples": 3, "batch_size": 4, "progress": False}
    moments = {"mean": Y, "variance": Y.square() + 1, "target": Y}
    labels = torch.cat([LABELS, LABELS])
    known: dict[Any, dict[str, Any]] = {
        tasks.ood.scores: {"model": model, "data": X, **quiet},
        tasks.ood.contributions: {"model": model, "data": X, "score": "nll", **quiet},
        tasks.ood.evaluate: {"model": model, "in_distribution": X, "out_of_distribution": X + 3, "train": X, **quiet},
        tasks.ood.typicality: {"score": X[:, 0], "train": X[:, 1]},
        **dict.fromkeys((tasks.ood.auroc, tasks.ood.average_precision, tasks.ood.roc_curve), ranks),
        tasks.ood.fpr_at_tpr: {**ranks, "tpr": 0.9},
        tasks.imputation.impute: {"model": model, "x": X, "missing": missing, "averaged": 2, "rounds": 1, **quiet},
        tasks.imputation.impute_weighted: {"model": model, "x": X, "reference": X, "networks": 2, **quiet},
        tasks.imputation.minmax_noise: {"like": X},
        tasks.semi_supervised.embed: {"model": model, "x": X, "copies": False, **quiet},
        tasks.semi_supervised.evaluate: {"model": model, "x": twice, "labels": labels, "copies": 2, **few},
        tasks.semi_supervised.evaluate_codes: {"codes": torch.randn(2, 8, 2), "labels": labels, **few},
        tasks.generation.sample: {"model": model, "known": X, "n": 3, "networks": 2, "progress": False},
        tasks.generation.near: {"codes": X[:, :2], "n": 3},
        tasks.calibration.coverage: {**moments, "levels": (0.5, 0.9)},
        tasks.calibration.error_against_variance: {**moments, "bins": 2},
        tasks.calibration.sample_coverage: {"samples": torch.randn(5, 4, 2), "target": Y, "levels": (0.5,)},
        tasks.calibration.sharpness: {"variance": Y.square(), "level": 0.9},
        tasks.calibration.reliability: {"probs": probs, "labels": LABELS, "bins": 5},
        tasks.calibration.expected_calibration_error: {"probs": probs, "labels": LABELS, "bins": 5},
        tasks.calibration.maximum_calibration_error: {"probs": probs, "labels": LABELS, "bins": 5},
        tasks.calibration.root_mean_square_calibration_error: {"probs": probs, "labels": LABELS, "bins": 5},
    }
    for function, good in known.items():
        name = f"tasks.{function.__module__.rpartition('.')[2]}.{function.__name__}"
        first = function is tasks.ood.roc_curve  # its first threshold is infinite
        empty = function is tasks.calibration.reliability  # NaN in bins without examples
        yield Door(name, function, good.copy, overflows=first, undefined=empty)


def _estimators() -> Iterator[Door]:
    from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder, LaplacianImputer

    rows = np.random.default_rng(0).normal(size=(30, 3))
    wrong = (ValueError, TypeError)  # what scikit-learn's own validation raises, and its users catch
    for estimator, y in ((LaplaceRegressor, rows[:, 0]), (LaplaceClassifier, (rows[:, 0] > 0).astype(int))):
        fitted = estimator(max_iter=3).fit(rows, y)
        yield Door(
            f"{estimator.__name__}.fit",
            lambda X, y, e=estimator, **o: e(**o).fit(X, y).predict(rows),
            lambda y=y: {"X": rows, "y": y, "max_iter": 3},
            wrong,
        )
        yield Door(f"{estimator.__name__}.predict", fitted.predict, lambda: {"X": rows}, wrong)
    autoencoder = LaplacianAutoencoder(max_iter=2).fit(rows)
    yield Door("LaplacianAutoencoder.score_samples", autoencoder.score_samples, lambda: {"X": rows}, wrong)
    yield Door("LaplacianAutoencoder.transform", autoencoder.transform, lambda: {"X": rows, "return_std": True}, wrong)
    imputer = LaplacianImputer(estimator=LaplacianAutoencoder(max_iter=2)).fit(rows)
    yield Door("LaplacianImputer.transform", imputer.transform, lambda: {"X": rows}, wrong)


SHORT = {"tv": 1e-3, "steps": 2, "learning_rate": 1e-3, "dropout": 0.0, "start": None, "progress": False}


def _tomography() -> Iterator[Door]:
    from marquis import tomography

    beam = tomography.ParallelBeam(8, 6)
    image = torch.rand(8, 8, dtype=torch.float64)
    data = beam.forward(image)
    shape = {"size": 8, "angles": 6, "detectors": 12, "spacing": 1.0}
    yield Door("ParallelBeam", tomography.ParallelBeam, lambda: dict(shape))
    yield Door("ParallelBeam.forward", beam.forward, lambda: {"images": image}, linear=True)
    yield Door("ParallelBeam.adjoint", beam.adjoint, lambda: {"data": data}, linear=True)
    yield Door("tomography.fbp", tomography.fbp, lambda: {"data": data, "measurement": beam})
    yield Door("tomography.total_variation", tomography.total_variation, lambda: {"images": image}, linear=True)
    yield Door("tomography.psnr", tomography.psnr, lambda: {"image": image, "truth": image + 0.1}, overflows=True)
    yield Door("tomography.simulate", tomography.simulate, lambda: {"image": image, "measurement": beam, "noise": 0.05})
    trained = {**SHORT, "data": data, "measurement": beam}
    yield Door("tomography.deep_image_prior", tomography.deep_image_prior, lambda: dict(trained))


GROUPS: dict[str, Callable[[], Iterator[Door]]] = {
    "curvature": _curvature,
    "Laplace": _laplace,
    "training": _training,
    "four likelihoods": _likelihoods,
    "full structure": _structures,
    "autoencoders and tasks": _autoencoders,
    "fitting estimators": _estimators,
    "tomography": _tomography,
}
