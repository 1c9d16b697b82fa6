"""Public calls of posteriors, structures, priors, learners and autoencoders, with arguments that work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from doors import MODEL, Door, X, Y, door, fitted, loader
from torch import nn

import marquis as mq
from marquis import autoencoders, likelihoods, online, priors, scores, structures, subnetwork, variational

MANY = {"model": MODEL, "loader": loader(), "likelihood": "gaussian"}
THETA = {name: p.detach().clone() for name, p in MODEL.named_parameters()}


def posterior_doors() -> Iterator[Door]:
    """Yield the calls of `Laplace`, `Posterior`, `predictive` and `evidence` that are not in `doors`."""
    la = fitted()
    posterior, statistics = la.posterior, la.statistics
    layout, jacobian, vector = posterior.layout, torch.ones(4, 2, 26), torch.ones(26)
    yield door("Laplace.log_marginal_likelihood", la.log_marginal_likelihood, prior_precision=2.0, sigma_noise=0.5)
    yield door("Laplace.mean_shift", la.mean_shift, loader=loader())
    yield door("Laplace.optimize_prior_precision", fitted().optimize_prior_precision, method="marglik", val_loader=None)
    yield door("Laplace.problem", lambda loader: la.problem(loader).scale(), loader=None)
    yield door("Laplace.update", la.update, prior=None, likelihood=None)
    options = {"temperature": 1.0, "posterior_temperature": 1.0, "noise_tuned": False}
    model = {"model": MODEL, "likelihood": la.likelihood, "fitted": la.fitted}
    yield door("Laplace.from_fitted", mq.Laplace.from_fitted, **model, **options)
    yield door("laplace.Fitted.to", la.fitted.to, device=torch.device("cpu"))
    parts = {"layout": layout, "mean": posterior.mean, "precision": posterior.precision, "index": None}
    yield door("Posterior", lambda **a: mq.Posterior(**a).variance(), **parts)
    yield door("Posterior.covariance_matvec", posterior.covariance_matvec, v=vector)
    for name in ("embed", "restrict"):
        yield door(f"Posterior.{name}", getattr(posterior, name), v=vector, linear=True)
    for name in ("functional_covariance", "functional_variance"):
        yield door(f"Posterior.{name}", getattr(posterior, name), jacobian=jacobian)
    for name in ("deviations_from", "sample_from"):
        yield door(f"Posterior.{name}", getattr(posterior, name), z=posterior.noise(2))
    yield door("Posterior.log_prob", posterior.log_prob, params=THETA, overflows=True)
    yield door("Posterior.noise", posterior.noise, n=2, generator=None)
    yield door("Posterior.sample", posterior.sample, n=2, generator=None)
    yield door("Posterior.save", posterior.save, path=Path("p.safetensors"))
    yield door("Posterior.from_state_dict", mq.Posterior.from_state_dict, state=posterior.state_dict())
    one = {"posterior": posterior, "model": MODEL, "likelihood": la.likelihood}
    yield door("predictive.predict", mq.predictive.predict, **one, x=X, method="linearised", samples=3, link=None)
    yield door("predictive.predict_loader", mq.predictive.predict_loader, **one, loader=loader(), progress=False)
    answer = la.predict(X)
    parts = {"mean": Y, "variance": Y.square(), "noise_variance": None, "probs": None, "likelihood": None}
    yield door("predictive.Prediction", lambda **a: mq.predictive.Prediction(**a).interval(0.9), **parts)
    yield door("predictive.Prediction.join", mq.predictive.Prediction.join, parts=[answer, answer], keep_draws=False)
    problem = la.problem()
    evidence = mq.evidence
    yield door("evidence.log_evidence", evidence.log_evidence, problem=problem)
    yield door("evidence.effective_parameters", evidence.effective_parameters, problem=problem)
    yield door("evidence.tune", evidence.tune, problem=problem, method="evidence")
    yield door("evidence.EvidenceProblem.with_hyper", problem.with_hyper, precision=torch.tensor(2.0), noise=0.5)
    yield door("evidence.EvidenceProblem.require_data", la.problem(loader()).require_data, method="grid")
    gathered = {"model": MODEL, "loader": loader(), "likelihood": la.likelihood, "params": None, "mask_of": None}
    yield door("evidence.Statistics.gather", evidence.Statistics.gather, **gathered)
    made = {"curvature": la.fitted.curvature, "mean": problem.mean, "prior": problem.prior, "temperature": 1.0}
    whole = {**made, "likelihood": la.likelihood, "statistics": statistics}
    yield door(
        "evidence.EvidenceProblem",
        lambda **a: evidence.log_evidence(evidence.EvidenceProblem(**a)),
        **whole,
        overflows=True,
    )
    counts = {"n": 4, "observed": 8, "sse": torch.tensor(1.0), "log_likelihood": None}
    yield door("evidence.Statistics", evidence.Statistics, **counts)


def operator_doors() -> Iterator[Door]:
    """Yield the methods of curvature that is only known by its products."""
    operator = mq.curvature.operator(MODEL, loader(), "gaussian")
    rows, sampled = torch.ones(2, 26), {"probes": 2, "generator": None}
    yield door("curvature.operator", lambda **a: mq.curvature.operator(**a).matvec(rows), **MANY, vectors_per_pass=2)
    for name, arguments in {
        "matvec": {"v": rows},
        "to_dense": {"vectors_per_pass": 4},
        "trace": sampled,
        "diagonal": sampled,
        "spectrum": {**sampled, "steps": 4},
        "logdet": {**sampled, "steps": 4, "shift": 1.0},
        "solve": {"v": rows, "shift": 1.0, "tol": 1e-3, "max_iterations": 50, "preconditioner": None},
        "nystrom": {"rank": 3, "generator": None},
        "eigsh_top": {"k": 2, "tol": 1e-2, "max_iterations": 20, "generator": None},
    }.items():
        yield door(f"curvature.operator.{name}", getattr(operator, name), **arguments)
    yield door("curvature.operator *", lambda factor: (operator * factor) @ rows, factor=2.0, foreign=(TypeError,))
    yield door("curvature.operator +", lambda other: (operator + other) @ rows, other=operator, foreign=(TypeError,))
    spectrum, nystrom = operator.spectrum(4, 2), operator.nystrom(3)
    yield door("curvature.operator Spectrum.density", spectrum.density, grid=torch.linspace(0, 9, 5), width=0.5)
    yield door("curvature.operator Spectrum.integrate", spectrum.integrate, function=torch.sqrt)
    yield door(
        "curvature.operator Nystrom.preconditioner", lambda shift: nystrom.preconditioner(shift)(rows), shift=1.0
    )
    yield door("curvature.operator Nystrom.scaled", nystrom.scaled, factor=2.0)


def structure_doors() -> Iterator[Door]:
    """Yield the calls of all structures, of layouts and of priors."""
    vector, jacobian = torch.ones(26), torch.ones(4, 2, 26)
    for name, kind in structures.STRUCTURES.items():
        plain = mq.curvature.ggn(MODEL, X, "gaussian", name)
        full = plain.add_diagonal(1.0)
        yield door(f"{name}.add_diagonal", plain.add_diagonal, diagonal=vector)
        yield door(f"{name}.solve", full.solve, v=vector)
        yield door(f"{name}.matvec", full.matvec, v=vector)
        yield door(f"{name}.quadratic", full.quadratic, jacobian=jacobian)
        yield door(f"{name}.sample", full.sample, n=2, generator=None)
        yield door(f"{name}.sample_from", full.sample_from, z=torch.ones(2, full.noise_dim))
        yield door(f"{name}.decay", full.decay, factor=0.5)
        yield door(f"{name}.to", full.to, dtype=torch.float64)
        yield door(f"{name}.effective_dimension", plain.effective_dimension, diagonal=1.0)
        yield door(f"{name} +", lambda b, a=plain: a + b, b=plain, foreign=(TypeError,))  # Python's own
        yield door(f"{name} *", lambda b, a=plain: a * b, b=2.0, foreign=(TypeError,))
        assert isinstance(plain, kind)
    layout = structures.Layout.of(THETA)
    prior = mq.Prior(1.0, "layer").bind(layout, MODEL)
    bound = {"layout": layout, "model": MODEL, "x": None, "params": None, "like": None}
    yield door("Prior.bind", mq.Prior(1.0, "layer").bind, **bound)
    structured = priors.StructuredPrior(layout, mq.curvature.ggn(MODEL, X, "gaussian").add_diagonal(1.0), vector)
    for name in ("deviation", "gradient", "log_density", "quadratic"):
        yield door(f"priors.BoundPrior.{name}", getattr(prior, name), theta=THETA, overflows=True)
        yield door(f"priors.StructuredPrior.{name}", getattr(structured, name), theta=THETA, overflows=True)
    yield door("priors.BoundPrior.scatter", prior.scatter, theta=THETA, overflows=True)
    yield door("priors.BoundPrior.add_to", prior.add_to, curvature=structured.structure)
    yield door("priors.StructuredPrior.add_to", structured.add_to, curvature=structured.structure)
    yield door("priors.BoundPrior.with_precision", prior.with_precision, precision=2.0)


def likelihood_doors() -> Iterator[Door]:
    """Yield the calls of the likelihoods that are not in `doors`."""
    counts = {"f": Y, "y": torch.ones(4, 2), "mask": None}
    for made in (likelihoods.Poisson(), likelihoods.NegativeBinomial(2.0)):
        name = type(made).__name__
        yield door(f"likelihoods.{name}.log_prob", made.log_prob, **counts, overflows=True)
        yield door(f"likelihoods.{name}.hessian_sqrt", made.hessian_sqrt, f=Y, mask=None)
        yield door(f"likelihoods.{name}.sample", made.sample, f=Y, generator=None)
        yield door(f"likelihoods.{name}.predictive", made.predictive, mean=Y, variance=Y.square())
    yield door("likelihoods.NegativeBinomial", likelihoods.NegativeBinomial, dispersion=1.0)
    yield door("likelihoods.Preference", likelihoods.Preference, dim=1)
    yield door("Gaussian.with_noise", mq.Gaussian().with_noise, noise_precision=2.0)


def learner_doors() -> Iterator[Door]:
    """Yield the calls of online and variational learners, subnetworks and scores."""
    learner = mq.OnlineLaplace(MODEL, "gaussian", num_data=4)
    learner.step(X, Y)
    yield door("OnlineLaplace.predict", learner.predict, x=X, method="linearised", samples=3, link=None)
    yield door("OnlineLaplace.posterior", learner.posterior, posterior_temperature=1.0)
    yield door("OnlineLaplace.outputs", learner.outputs, theta=THETA, x=X)
    state = learner.state_dict()
    yield door(
        "OnlineLaplace.load_state_dict", mq.OnlineLaplace(MODEL, "gaussian", num_data=4).load_state_dict, state=state
    )
    settings = {"structure": "diagonal", "rule": "lae", "forgetting": "batch", "factor": 1.0}
    yield door("online.OnlineSettings", online.OnlineSettings, **settings)
    yield door("online.OnlineSettings.of", online.OnlineSettings.of, preset="paper", options={})
    yield door("online.OnlineSettings.changed", online.OnlineSettings().changed, options={"factor": 2.0})
    noisy = mq.OnlineLaplace(MODEL, "gaussian", num_data=4, rule="noisy-adam")
    noisy.step(X, Y).backward()
    adam = {"online": noisy, "lr": 1e-3, "momentum": 0.9, "damping": 1e-4}
    yield door("online.NoisyAdam", online.NoisyAdam, **adam)
    yield door("online.NoisyAdam.step", online.NoisyAdam(noisy).step, closure=None)
    start = {"model": MODEL, "likelihood": "gaussian", "num_data": 4}
    for kind in (variational.VariationalLaplace, variational.MeanFieldVI, variational.MAP):
        method, name = kind(**start), f"variational.{kind.__name__}"
        draws = 0 if kind is variational.MAP else 2
        yield door(f"{name}.predict", method.predict, x=X, samples=draws)
        if draws:
            yield door(f"{name}.elbo", method.elbo, loader=loader())
        yield door(f"{name}.step", method.step, x=X, y=Y, mask=None)
        yield door(f"{name}.log_likelihood", method.log_likelihood, loader=loader(), samples=0)
        yield door(f"{name}.parameter_groups", method.parameter_groups, lr=1e-3, overflows=True)
    yield door("variational.MAP.log_joint", variational.MAP(**start).log_joint, loader=loader())
    yield door("variational.MeanFieldVI.bayes_by_backprop", variational.MeanFieldVI.bayes_by_backprop, **start)
    wrapped = {"method": variational.MAP(**start), "lr": 1e-3, "milestones": (1, 2)}
    yield door("variational.LightningMethod", variational.LightningMethod, **wrapped)
    yield door(
        "variational.LightningMethod.predict", variational.LightningMethod(wrapped["method"]).predict, x=X, samples=0
    )
    yield door("variational.mlp", variational.mlp, inputs=3, outputs=2, hidden=(4,))
    yield door("variational.small_cnn", variational.small_cnn, channels=1, outputs=2, width=2, size=8)
    yield door("variational.PreactResNet18", variational.PreactResNet18, channels=1, outputs=2, width=0.1)
    many = MANY
    kept = scores.null_space(**many)
    yield door("scores.null_space", scores.null_space, **many, kept="outputs", prior_precision=1.0)
    yield door("scores.NullSpacePosterior.sample", kept.sample, n=2, generator=None, tolerance=0.1, sweeps=200)
    yield door("scores.sketched_lanczos", scores.sketched_lanczos, **many, steps=3, sketch=None)
    yield door("scores.SketchedLanczos.score", scores.sketched_lanczos(**many, steps=3).score, x=X, memory_limit=None)
    chosen = {"model": MODEL, "layout": structures.Layout.of(THETA), "loader": loader(), "likelihood": mq.Gaussian()}
    yield door("Subnetwork.choose", mq.Subnetwork(5).choose, **chosen, temperature=1.0)
    swag = {**many, "likelihood": mq.Gaussian(), "names": list(THETA), "epochs": 2, "lr": 0.01}
    yield door("subnetwork.swag_moments", subnetwork.swag_moments, **swag)
    yield door("subnetwork.swag_variance", subnetwork.swag_variance, **swag)


def autoencoder_doors() -> Iterator[Door]:
    """Yield the calls of all kinds of autoencoders."""
    pair = lambda: {"encoder": nn.Linear(3, 2), "decoder": nn.Linear(2, 3)}  # noqa: E731
    kinds = [getattr(autoencoders, name) for name in ("Autoencoder", "DropoutAutoencoder", "EnsembleAutoencoder")]
    kinds += [autoencoders.LaplacianAutoencoder, autoencoders.MeanFieldAutoencoder]
    kinds += [autoencoders.LearntVarianceAutoencoder, autoencoders.VariationalAutoencoder]
    for kind in kinds:
        name = f"autoencoders.{kind.__name__}"
        extra = {} if kind is autoencoders.LearntVarianceAutoencoder else {"likelihood": "gaussian"}
        yield Door(name, kind, lambda extra=extra: {**pair(), **extra, "lr": 1e-3, "missing": False})
        model = kind(**pair())
        model.begin(4)
        model.train().training_loss((X,))
        model.eval()
        yield door(f"{name}.encode", model.encode, x=X, samples=3, generator=None, keep=False)
        yield door(f"{name}.decode", model.decode, z=X[:, :2], samples=3)
        yield door(f"{name}.reconstruct", model.reconstruct, x=X, samples=3)
        yield door(f"{name}.begin", kind(**pair()).begin, num_data=4)
        if kind is autoencoders.VariationalAutoencoder:
            for call in (model.elbo, model.log_marginal):
                yield door(f"{name}.{call.__name__}", call, x=X, samples=3, overflows=True)
            yield door(f"{name}.sample", model.sample, n=3, latent=2, noise=True)
        if kind is autoencoders.Autoencoder:
            yield door(f"{name}.entry_log_probs", model.entry_log_probs, x=X, samples=3, overflows=True)
            plain = model
        if kind is autoencoders.LaplacianAutoencoder:
            yield door(f"{name}.posterior", model.posterior, posterior_temperature=1.0)
            yield door("autoencoders.linearised", autoencoders.linearised, model=model, posterior_temperature=1.0)
    members = [autoencoders.Autoencoder(**pair()) for _ in range(2)]
    yield door("autoencoders.EnsembleAutoencoder.of", autoencoders.EnsembleAutoencoder.of, members=members, lr=1e-3)
    yield door("autoencoders.UnitDropout", autoencoders.UnitDropout, p=0.2)
    yield Door("autoencoders.EncoderDecoder", autoencoders.EncoderDecoder, pair)
    sizes = {"latent": 2, "width": 0.1, "kind": "auto", "seed": 0}
    yield door("autoencoders.build", autoencoders.build, name_or_shape=(3,), **sizes)
    yield door("autoencoders.for_data", autoencoders.for_data, shape=(1, 8, 8), **sizes)
    short = {"max_epochs": 1, "batch_size": 2, "patience": 1, "mask_fraction": 0.0, "validation": None}
    yield Door(
        "autoencoders.fit_in_memory",
        autoencoders.fit_in_memory,
        lambda: {"model": autoencoders.Autoencoder(**pair()), "x": X, **short},
    )
    posthoc = {"autoencoder": plain, "loader": [(X,)], "structure": "diagonal", "tune": True, "progress": False}
    yield door("autoencoders.fit_posthoc", autoencoders.fit_posthoc, **posthoc)
    behind = autoencoders.fit_posthoc(**posthoc)
    for kind in (autoencoders.PosteriorAutoencoder, autoencoders.LinearisedAutoencoder):
        passed = {"encoder": plain.encoder, "decoder": plain.decoder, "posterior": behind.posterior}
        yield door(f"autoencoders.{kind.__name__}", kind, **passed, likelihood="gaussian", missing=False)
        yield door(f"autoencoders.{kind.__name__}.reconstruct", kind(**passed).reconstruct, x=X, samples=3)
    yield door("autoencoders.from_posterior", autoencoders.from_posterior, **passed, likelihood=None)
    spec = autoencoders.ModelSpec("ae", (3,), 2, width=0.1)
    saved = {"kind": "ae", "shape": (3,), "latent": 2, "width": 0.1, "likelihood": "gaussian", "lr": 1e-3}
    yield door("autoencoders.ModelSpec", lambda **a: autoencoders.ModelSpec(**a).build(0), **saved)
    yield door("autoencoders.ModelSpec.build", spec.build, seed=0, networks=None)
    yield door("autoencoders.ModelSpec.networks", spec.networks, seed=0)
    yield door("autoencoders.ModelSpec.from_json", autoencoders.ModelSpec.from_json, entries=spec.as_json())
    folder = Path(tempfile.mkdtemp())
    built = spec.build(0)
    autoencoders.save(folder / "model.safetensors", built, spec)
    yield door("autoencoders.save", autoencoders.save, path="m.safetensors", model=built, spec=spec)
    yield door("autoencoders.load", autoencoders.load, path=folder / "model.safetensors", networks=None)
    finish: dict[str, Any] = {"model": built, "loader": [(X,)], "seed": 0, "progress": False}
    yield door("autoencoders.ModelSpec.finish", spec.finish, **finish)


GROUPS = {
    "posteriors": posterior_doors,
    "operators": operator_doors,
    "structures": structure_doors,
    "likelihoods": likelihood_doors,
    "learners": learner_doors,
    "kinds of autoencoders": autoencoder_doors,
}
