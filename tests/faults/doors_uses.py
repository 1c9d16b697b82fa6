"""Public calls of tasks, estimators, pictures, data, runs, the explorer, integrations and tomography that work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from doors import LABELS, SHORT, Door, X, Y, door, fitted
from torch import nn

import marquis as mq
from marquis import autoencoders, conformal, data, explorer, plots, report, run, tasks, tomography

PROBS = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
CONTRACT = (ValueError, TypeError)  # what scikit-learn's own validation raises, and its users catch


def _autoencoder() -> Any:
    torch.manual_seed(0)
    model = autoencoders.LaplacianAutoencoder(nn.Linear(3, 2), nn.Linear(2, 3), num_data=4)
    model.train().training_step((X,), 0)
    return model.eval()


def task_doors() -> Iterator[Door]:
    """Yield the calls of tasks that are not in `doors`."""
    model = _autoencoder()
    made = model.reconstruct(X, samples=3)
    parts = tasks.ood.of_reconstruction(made, X)
    result = tasks.ood.evaluate(model, X, X + 3, X, samples=3, progress=False)
    yield door("tasks.ood.of_reconstruction", tasks.ood.of_reconstruction, result=made, x=X)
    yield door("tasks.ood.combined", tasks.ood.combined, parts=parts, train=parts, of=("nll", "output_variance"))
    yield door("tasks.ood.ensemble", tasks.ood.ensemble, results=[result, result])
    yield door("tasks.ood.together", tasks.ood.together, results=[result, result])
    yield door("tasks.ood.OodResult.histogram", result.histogram, score="nll", bins=5)
    yield door("tasks.ood.OodResult.roc", result.roc, score="nll", overflows=True)
    yield door("tasks.ood.OodResult.varies", result.varies, score="nll")
    filled = tasks.imputation.impute(model, X, X > 1, samples=2, averaged=2, progress=False)
    yield door("tasks.imputation.errors", tasks.imputation.errors, imputation=filled, original=X, overflows=True)
    classifier = nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1)).eval()
    versions = torch.randn(5, 4, 3)
    yield door(
        "tasks.imputation.class_probabilities",
        tasks.imputation.class_probabilities,
        classifier=classifier,
        versions=versions,
    )
    yield door("tasks.imputation.generate", tasks.imputation.generate, model=model, n=2, shape=(3,), rounds=1)
    yield door("tasks.imputation.top_half", tasks.imputation.top_half, shape=(1, 4, 4))
    few = {"repetitions": 1, "candidates": (1,)}
    many = {**few, "attributes": torch.stack([LABELS, 1 - LABELS], 1).repeat(2, 1), "labelled": 4, "names": None}
    multilabel = tasks.semi_supervised.evaluate_multilabel
    yield door(
        "tasks.semi_supervised.evaluate_multilabel",
        multilabel,
        model=model,
        x=torch.cat([X, X + 1]),
        copies=2,
        progress=False,
        **many,
    )
    codes = tasks.semi_supervised.evaluate_multilabel_codes
    yield door("tasks.semi_supervised.evaluate_multilabel_codes", codes, codes=torch.randn(2, 8, 2), **many)
    z = X[:, :2]
    geometry = tasks.geometry
    yield door("tasks.geometry.SampledDecoders", geometry.SampledDecoders, model=model, samples=2)
    sampled = geometry.SampledDecoders(model, 2)
    yield door("tasks.geometry.SampledDecoders.outputs", lambda z: list(sampled.outputs(z)), z=z)
    yield door("tasks.geometry.SampledDecoders.jacobians", lambda z: list(sampled.jacobians(z)), z=z)
    yield door("tasks.geometry.SampledDecoders.shaped_outputs", sampled.shaped_outputs, z=z)
    yield door("tasks.geometry.SampledDecoders.like_codes", sampled.like_codes, z=z, linear=True)
    for name in ("metric", "volume"):
        yield door(f"tasks.geometry.{name}", getattr(geometry, name), model=model, z=z, samples=2)
    for name in ("energy", "length"):
        yield door(f"tasks.geometry.{name}", getattr(geometry, name), model=model, curve=z, samples=2)
    ends = {"start": z[0], "end": z[1], "points": 5, "steps": 3, "tolerance": 1e-3, "through": None}
    yield door("tasks.geometry.geodesic", geometry.geodesic, model=model, samples=2, **ends)
    yield door(
        "tasks.geometry.distances", geometry.distances, model=model, z=z, others=z + 1, samples=2, points=3, steps=2
    )


def conformal_doors() -> Iterator[Door]:
    """Yield the calls of conformal prediction and of pictures."""
    rng = np.random.default_rng(0)
    values, mean = rng.normal(size=30), rng.normal(size=30)
    probs, labels = rng.dirichlet([1, 1, 1], 30), rng.integers(0, 3, 30)
    yield door("conformal.quantile", conformal.quantile, scores=values, alpha=0.1, overflows=True)
    yield door("conformal.p_values", conformal.p_values, calibration=values, scores=mean)
    intervals = conformal.ConformalIntervals.calibrate(mean, np.ones(30), values)
    calibrated = {"mean": mean, "scale": np.ones(30), "y": values}
    yield door(
        "conformal.ConformalIntervals.calibrate", conformal.ConformalIntervals.calibrate, **calibrated, linear=True
    )
    yield door(
        "conformal.ConformalIntervals",
        lambda **a: conformal.ConformalIntervals(**a).interval(1.0, 1.0),
        scores=values,
        overflows=True,
    )
    yield door(
        "conformal.ConformalIntervals.interval",
        intervals.interval,
        mean=mean,
        scale=np.ones(30),
        alpha=0.1,
        overflows=True,
    )
    sets = conformal.ConformalSets.calibrate(probs, labels)
    yield door(
        "conformal.ConformalSets.calibrate", conformal.ConformalSets.calibrate, probs=probs, y=labels, random_state=0
    )
    yield door("conformal.ConformalSets", lambda **a: conformal.ConformalSets(**a).sets(probs), scores=values)
    yield door("conformal.ConformalSets.sets", sets.sets, probs=probs, alpha=0.1, random_state=1)
    prediction, classes = fitted().predict(X), fitted("categorical").predict(X)
    yield door("conformal.calibrate", conformal.calibrate, prediction=prediction, y=Y, random_state=0, linear=True)
    yield door(
        "conformal.Conformal.interval",
        conformal.calibrate(prediction, Y).interval,
        prediction=prediction,
        alpha=0.3,
        overflows=True,
    )
    yield door(
        "conformal.Conformal.sets",
        conformal.calibrate(classes, LABELS).sets,
        prediction=classes,
        alpha=0.3,
        random_state=1,
    )
    yield door("conformal.Conformal", conformal.Conformal, inner=intervals)
    line = np.arange(30.0)
    yield door(
        "plots.regression_band", plots.regression_band, x=line, mean=mean, lower=mean - 1, upper=mean + 1, observed=None
    )
    yield door("plots.reliability_diagram", plots.reliability_diagram, probs=probs, y=labels, bins=5)
    yield door("plots.imputed_against_observed", plots.imputed_against_observed, observed=values, mean=mean, std=None)
    yield door("plots.roc", plots.roc, in_scores=values, out_scores=mean + 1, label="")
    yield door("plots.score_histogram", plots.score_histogram, in_scores=values, out_scores=mean, names=("a", "b"))
    yield door("plots.contributions", plots.contributions, values=mean[:3], names=["a", "b", "c"], largest=2)


def estimator_doors() -> Iterator[Door]:
    """Yield the methods of estimators that are not in `doors`."""
    from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder, LaplacianImputer

    rows = np.random.default_rng(0).normal(size=(40, 3))
    labels = (rows[:, 0] > 0).astype(int)
    either = {"foreign": CONTRACT}
    for kind, y, extra in ((LaplaceClassifier, labels, {"random_state": 0}), (LaplaceRegressor, rows[:, 0], {})):
        name, made = f"sklearn.{kind.__name__}", kind(max_iter=3).fit(rows, y).conformalize(rows, y)
        options = {"max_iter": 3, "hidden_layer_sizes": (4,), "activation": "tanh", "learning_rate_init": 0.01}
        yield door(name, lambda e=kind, y=y, **o: e(**o).fit(rows, y).predict(rows), **options, **either)
        yield door(f"{name}.check", made.check, X=rows, y=y, **either)
        yield door(f"{name}.conformalize", made.conformalize, X=rows, y=y, **extra, **either)
        for method, further in {
            "predict_log_proba": {},
            "predict_proba": {},
            "predict_set": {"alpha": 0.2, "random_state": 1},
            "sample_proba": {"n_samples": 2, "random_state": 0},
            "predict_interval": {"alpha": 0.2},
            "predict_variance": {},
            "sample_y": {"n_samples": 2, "random_state": 0, "noise": True},
        }.items():
            if hasattr(made, method):
                yield door(f"{name}.{method}", getattr(made, method), X=rows, **further, **either, overflows=True)
    table = rows.copy()
    table[0, 0] = np.nan
    made = LaplacianAutoencoder(max_iter=2).fit(rows).conformalize(rows)
    name = "sklearn.LaplacianAutoencoder"
    options = {"n_components": 2, "hidden_layer_sizes": (4,), "max_iter": 2, "batch_size": "auto", "activation": "silu"}
    yield door(name, lambda **o: LaplacianAutoencoder(**o).fit(rows).transform(rows), **options, **either)
    yield door(
        f"{name}.fit", lambda X, y: LaplacianAutoencoder(max_iter=2).fit(X, y).transform(rows), X=rows, y=None, **either
    )
    for method, further in {
        "conformalize": {"mask_fraction": 0.2, "random_state": 0},
        "decision_function": {},
        "explain": {"level": 0.9},
        "impute": {"samples": 2, "rounds": 0, "random_state": 0},
        "impute_interval": {"alpha": 0.3},
        "is_drift": {"alpha": 0.05},
        "outlier_p_values": {},
        "predict": {},
        "score": {"y": None},
    }.items():
        kept = {"linear": method == "explain"}  # rows come back as they were given, missing values too
        yield door(f"{name}.{method}", getattr(made, method), X=table, **further, **either, **kept, overflows=True)
    mixed = pd.DataFrame(table, columns=list("abc")).assign(d=np.where(labels, "u", "v"))
    mixed.iloc[3:9, 3] = None
    guaranteed = LaplacianAutoencoder(max_iter=2).fit(mixed).conformalize(mixed)
    yield door(f"{name}.impute_set", guaranteed.impute_set, X=mixed, alpha=0.3, random_state=1, **either)
    yield door(f"{name}.inverse_transform", made.inverse_transform, Z=made.transform(rows), return_std=True, **either)
    yield door(f"{name}.sample", made.sample, n_samples=2, random_state=0, **either)
    yield door(f"{name}.completed", made.completed, X=table, sample=rows, **either)
    small = lambda **o: LaplacianImputer(estimator=LaplacianAutoencoder(max_iter=2), **o)  # noqa: E731
    ready = small().fit(table)
    name = "sklearn.LaplacianImputer"
    options = {"samples": 2, "rounds": 0, "add_indicator": False, "missing_values": np.nan, "random_state": 0}
    yield door(name, lambda **o: small(**o).fit(table).transform(table), **options, **either)
    yield door(f"{name}.fit", lambda X, y: small().fit(X, y).transform(rows), X=table, y=None, **either)
    yield door(f"{name}.sample", ready.sample, X=table, n_samples=2, random_state=0, **either)
    yield door(f"{name}.get_feature_names_out", ready.get_feature_names_out, input_features=None, **either)


def data_doors() -> Iterator[Door]:
    """Yield the calls of data, runs, reports and the explorer."""
    folder = Path(tempfile.mkdtemp())
    np.savetxt(
        folder / "t.csv", np.random.default_rng(0).normal(size=(12, 3)), delimiter=",", header="a,b,c", comments=""
    )
    table = data.load(folder / "t.csv")
    read = {"split": None, "data_dir": None, "download": False, "limit": 5, "some": None, "seed": 0, "fold": None}
    yield Door("data.load", data.load, lambda: {"name": folder / "t.csv", **read})
    module = {"batch_size": 4, "validation": 2, "seed": 0, "num_workers": 0}

    def batches(stage: Any = None, **options: Any) -> Any:
        made = data.DataModule(**options)
        made.setup(stage)
        return next(iter(made.train_dataloader())), list(made.val_dataloader())[:1]  # empty with validation=0

    yield door("data.DataModule", batches, data=table, **module, stage=None)
    yield Door(
        "data.Data",
        lambda **a: data.Data(**a).x,
        lambda: {"stored": X, "y": LABELS, "name": "t", "split": "all"},
        linear=True,  # rows come back as they were given
    )
    yield door("data.Data.random_rows", table.random_rows, most=5, seed=0)
    yield door("data.RowDataset", lambda data_: len(data.RowDataset(data_)), data_=table)
    scaling = run.Scaling.of(X)
    yield door("run.Scaling.of", run.Scaling.of, x=X, names=None)
    yield door("run.Scaling.scaled", scaling.scaled, x=X, linear=True)
    yield door("run.Scaling.unscaled", scaling.unscaled, x=X, linear=True)
    yield door("run.Scaling.deviations", scaling.deviations, std=X.abs(), linear=True)
    yield door("run.Scaling.from_json", run.Scaling.from_json, entries=scaling.as_json())
    settings = run.TrainingSettings.of({"model": "ae", "data": "digits"})
    yield door("run.TrainingSettings.of", run.TrainingSettings.of, chosen={"model": "ae", "data": "digits"})
    yield door("run.TrainingSettings.from_json", run.TrainingSettings.from_json, entries=settings.as_json())
    yield door("run.TrainingSettings.resumed", settings.resumed, chosen={"epochs": 3})
    yield door("run.TrainingSettings.model_options", settings.model_options, rows=10)
    text = {"model": "ae", "data": "digits", "latent": 2, "width": 0.1, "epochs": 1, "lr": 1e-3, "seed": 0}
    yield door("run.TrainingSettings", run.TrainingSettings, **text)
    yield door("run.Run.create", run.Run.create, path=Path("made"), settings=settings, force=True)
    _trained(folder / "run")
    yield door("run.Run.open", run.Run.open, path=folder / "run")
    yield door("report.write_report", report.write_report, run_dir=folder / "run", effort=None, seed=0)
    opened = run.Run.open(folder / "run")
    yield door("run.Run.model", opened.model, linear=False)
    yield Door("run.Run.read", opened.read, lambda: {"name": "digits", "split": "test", "limit": 5, "seed": 0})
    page = report.Page("t")
    yield door("report.Page", report.Page, title="t")
    yield door("report.Page.heading", page.heading, text="t")
    yield door("report.Page.text", page.text, text="t", small=False)
    yield door("report.Page.table", page.table, columns=["a"], rows=[["1"]])
    yield door("report.Page.write", page.write, path=Path("page.html"))
    effort = {"rows": 5, "samples": 2, "edge": 3, "map_samples": 2, "batch": 4}
    yield door("report.Effort", report.Effort, **effort)
    yield door("report.Effort.sensible", report.Effort.sensible, shape=(1, 8, 8))
    compared = {
        "models": {"lae": _autoencoder()},
        "data": X,
        "labels": LABELS,
        "out": Path("out"),
        "effort": report.Effort(**effort),
    }
    yield door("report.write_comparison", report.write_comparison, **compared, title="t", text="")
    shown = {"model": _autoencoder(), "data": X, "labels": LABELS, "second": None, "most": 10, "export": Path("e.html")}
    yield door("explore", mq.explore, **shown)
    yield from _explorer_doors()


def _trained(folder: Path) -> None:
    """Train a small model into a folder of `marquis train`."""
    from helpers.commands import ONE_EPOCH, exit_code

    assert exit_code("train", "ae", "--data", "digits", "--out", folder, *ONE_EPOCH) == 0


def _explorer_doors() -> Iterator[Door]:
    made = {"models": [_autoencoder()], "data": X, "labels": None, "second": None, "most": 10, "progress": False}
    yield door("explorer.Workspace", explorer.Workspace, **made)
    workspace = explorer.Workspace(**made)
    yield door("explorer.export_page", explorer.export_page, workspace=workspace, path=Path("e.html"))
    yield door("explorer.Workspace.row", workspace.row, number=0, data="main")
    yield door("explorer.Workspace.session", workspace.session, number=0)
    second = {"name": "t.csv", "content": b"a,b,c\n1,2,3\n4,5,6\n"}
    yield Door("explorer.Workspace.read_second", workspace.read_second, lambda: dict(second))
    session = workspace.session(0)
    yield door("explorer.Session.decode", session.decode, code=[0.0, 0.0])
    yield door("explorer.Session.explain", session.explain, row=0, score="nll")
    yield door("explorer.Session.neighbours", session.neighbours, code=[0.0, 0.0], count=2, without=None)
    yield door("explorer.Session.geodesic_order", session.geodesic_order, row=0)
    yield door("explorer.Session.path", session.path, start=[0.0, 0.0], end=[1.0, 1.0])
    yield door("explorer.Session.impute", session.impute, row=0, missing=[0])
    yield door("explorer.Session.as_codes", session.as_codes, codes=np.zeros((2, 2)))
    yield door("explorer.Session.decode_many", session.decode_many, z=torch.zeros(2, 2))
    yield door("explorer.Session.reconstruct", session.reconstruct, x=X, keep=False)


def integration_doors() -> Iterator[Door]:
    """Yield the calls of the integrations whose packages are installed."""
    from marquis.integrations import hub
    from marquis.integrations.botorch import LaplaceModel, default_network, fit_network
    from marquis.integrations.lightning import LaplaceCallback
    from marquis.integrations.pyod import LaplacianDetector

    la, folder = fitted(), Path(tempfile.mkdtemp())
    rows = np.random.default_rng(0).normal(size=(40, 3))
    model = LaplaceModel(la, 2)
    yield door("integrations.botorch.LaplaceModel", LaplaceModel, laplace=la, num_outputs=2, outcome_transform=None)
    yield door(
        "integrations.botorch.LaplaceModel.posterior",
        lambda **a: model.posterior(**a).mean,
        X=X,
        output_indices=None,
        observation_noise=False,
    )
    yield door("integrations.botorch.default_network", default_network, inputs=3, outputs=2, hidden=4)
    few = {"X": X.double().sigmoid(), "Y": Y.double(), "restarts": 1, "rounds": 1}
    yield door("integrations.botorch.fit_network", lambda **a: fit_network(**a).posterior(X.double()).mean, **few)
    yield door("integrations.hub.save_pretrained", hub.save_pretrained, laplace=la, folder=Path("saved"))
    hub.save_pretrained(la, folder)
    yield door("integrations.hub.from_pretrained", hub.from_pretrained, folder=folder, model=la.model, likelihood=None)
    yield door("integrations.lightning.LaplaceCallback", LaplaceCallback, likelihood="gaussian", module=None, path=None)
    detector = LaplacianDetector(max_iter=2).fit(rows)
    either = {"foreign": CONTRACT}
    name = "integrations.pyod.LaplacianDetector"
    yield door(
        name, lambda **o: LaplacianDetector(**o).fit(rows).decision_scores_, contamination=0.1, max_iter=2, **either
    )
    yield door(
        f"{name}.fit", lambda X, y: LaplacianDetector(max_iter=2).fit(X, y).decision_scores_, X=rows, y=None, **either
    )
    yield door(f"{name}.decision_function", detector.decision_function, X=rows, **either)
    yield door(f"{name}.explain", detector.explain, X=rows, level=0.9, **either)
    yield door(f"{name}.set_params", detector.set_params, contamination=0.2, **either)


def tomography_doors() -> Iterator[Door]:
    """Yield the calls of tomography that are not in `doors`."""
    beam = tomography.ParallelBeam(8, 6)
    image = torch.rand(8, 8, dtype=torch.float64)
    measured = beam.forward(image)
    kernel, mask = torch.ones(3, 3) / 9, torch.rand(8, 8) > 0.5
    problems = {
        "Blur": {"kernel": kernel, "size": 8},
        "Dense": {"matrix": torch.randn(5, 64), "size": 8},
        "Downsampling": {"factor": 2, "size": 8},
        "Fourier": {"mask": mask},
        "Inpainting": {"mask": mask},
        "FanBeam": {"size": 8, "angles": 6, "detectors": 12, "spacing": 1.0, "source": 20.0, "detector": 20.0},
    }
    for name, passed in problems.items():
        kind = getattr(tomography, name)
        yield door(f"tomography.{name}", kind, **passed)
        made = kind(**passed)
        yield door(f"tomography.{name}.forward", made.forward, images=image.float(), linear=True)
        yield door(f"tomography.{name}.adjoint", made.adjoint, data=made.forward(image.float()), linear=True)
    yield door("tomography.FanBeam.fbp", made.fbp, data=made.forward(image), linear=True)
    yield door("tomography.FanBeam.subset", made.subset, indices=[0, 1])
    yield door("tomography.FanBeam.with_angles", made.with_angles, angles=4)
    yield door("tomography.ParallelBeam.fbp", beam.fbp, data=measured, linear=True)
    yield door("tomography.as_layer", tomography.as_layer, measurement=beam)
    yield door("tomography.check_measurement", tomography.check_measurement, measurement=beam, seed=0)
    yield door("tomography.tv", tomography.tv, data=measured, measurement=beam, weight=1e-3, iterations=3)
    yield door("tomography.UNet", tomography.UNet, channels=(4, 4), norm=False, range=None, scale=1.0, dropout=0.0)
    network = tomography.UNet((4, 4))
    passed = {"data": measured, "measurement": beam, "network": network, **SHORT}
    trained = tomography.deep_image_prior(**passed)
    both = {"trained": trained, "measurement": beam}
    yield door("tomography.constant", tomography.constant, **both, noise_variance=0.1)
    training = {key: value for key, value in passed.items() if key not in ("dropout", "network", "start")}
    yield door("tomography.dropout", tomography.dropout, **training, rate=0.05, samples=2, noise_variance=0.1)
    yield door("tomography.ensemble", tomography.ensemble, **training, members=2, noise_variance=0.1)
    yield door("tomography.linearise", tomography.linearise, **both, posterior="exact", taps=False, rank=5)
    for mode in ("exact", "iterative"):
        prior = tomography.linearise(**both, posterior=mode, rank=5)
        name = type(prior).__name__
        tuned = tomography.tune(prior, measured)
        yield door(
            f"tomography.tune {mode}", tomography.tune, prior=prior, data=measured, evidence="network", rate=None
        )
        yield door(f"tomography.{name}.tune", prior.tune, data=measured, rate=None)
        yield door(f"tomography.{name}.posterior", prior.posterior, tuned=tuned, floor=None)
        result = prior.posterior(tuned)
        yield door(f"tomography.UncertainImage.interval {mode}", result.interval, level=0.9)
        yield door(f"tomography.UncertainImage.sample {mode}", result.sample, count=2)
        yield door(
            f"tomography.scores {mode}", tomography.scores, result=result, truth=image, span=None, overflows=True
        )
        if mode == "exact":
            yield door(
                "tomography.UncertainImage.log_density", result.log_density, image=image, marginal=None, overflows=True
            )
            angles = {"candidates": [0.1, 0.2], "count": 1, "criterion": "variance"}
            yield door("tomography.next_angles", tomography.next_angles, result=result, **angles)
    short = {"noise": 0.1, "tv": 1e-3, "steps": 2, "samples": 2, "posterior": "exact", "network": network}
    yield door(
        "tomography.reconstruct", tomography.reconstruct, data=measured, measurement=beam, **short, progress=False
    )


GROUPS = {
    "tasks": task_doors,
    "conformal": conformal_doors,
    "estimators": estimator_doors,
    "data": data_doors,
    "integrations": integration_doors,
    "inverse problems": tomography_doors,
}
