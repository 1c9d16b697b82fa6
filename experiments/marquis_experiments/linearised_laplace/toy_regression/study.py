"""`toy-regression`: the tutorial's pictures of error bars in one dimension.

All data are drawn from seeds; networks are at a mode by L-BFGS in double precision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.functional.jacobian import jacobian
from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian
from marquis.predictive.function import PosteriorFunction
from marquis.priors import Prior
from marquis.subnetwork import Subnetwork, swag_variance
from marquis_experiments.common.metrics import rank_correlation
from marquis_experiments.common.networks import mlp
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.linearised_laplace.evidence_loop import Trained, fit_at_mode, to_mode, train_with_evidence
from marquis_experiments.linearised_laplace.toy_regression.page import draw, values

NOISE = 0.1
"""Standard deviation of the noise of `two_clusters`."""
STRUCTURES = ("full", "kronecker", "diagonal")
PRECISIONS = (100.0, 10.0, 1.0, 0.1)
KNOWN_NOISE = Gaussian(1 / NOISE**2)
REGIONS = {"at the data": (0.6, 1.4), "between": (-0.3, 0.3), "away": (2.6, 3.0)}


def measure(run: Run) -> dict[str, Any]:
    """Compute every part of the page."""
    settings = run.settings
    parts = {
        "structures": structures,
        "precisions": precisions,
        "regularised": regularised,
        "sizes": sizes,
        "depths": depths,
        "sampling": sampling,
        "subnetwork-tanh": lambda settings: subnetwork(settings, nn.Tanh),
        "subnetwork-relu": lambda settings: subnetwork(settings, nn.ReLU),
    }
    results: dict[str, Any] = {"settings": settings.plain()}
    for name, compute in parts.items():
        results[name] = run.cell(name, settings, lambda compute=compute: compute(settings))
        run.say(f"{name}: done")
    return results


# --- data --------------------------------------------------------------------------------------------------


def two_clusters(per_cluster: int = 40) -> tuple[Tensor, Tensor]:
    """Draw inputs in [-1.5, -0.5] and [0.5, 1.5], a smooth function and noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2 * per_cluster, 1, generator=generator, dtype=torch.float64) + 0.5
    x[:per_cluster] -= 2.0
    y = target(x) + NOISE * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x, y


def target(x: Tensor) -> Tensor:
    """Return the function behind the clusters."""
    return torch.sin(3 * x) + 0.3 * x


def noisy_sine(n: int, seed: int, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Draw a period of a sine at `n` random inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    return x, torch.sin(torch.pi * x) + noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def line(low: float, high: float, points: int = 121) -> Tensor:
    """Return inputs at which curves are drawn."""
    return torch.linspace(low, high, points, dtype=torch.float64).unsqueeze(1)


# --- parts -------------------------------------------------------------------------------------------------


def structures(settings: Settings) -> dict[str, Any]:
    """Compute full, Kronecker and diagonal posteriors of one network with the same prior and noise."""
    x, y = two_clusters()
    trained = on_clusters((settings.hidden,), nn.Tanh, Prior(1.0, groups="layer"), settings)
    network, prior = trained.laplace.model, trained.laplace.problem().grouped_prior
    results: dict[str, Any] = {"data": points(x, y)}
    for structure in STRUCTURES:
        grouped = Prior(prior.precision, groups="layer")
        laplace = Laplace(network, trained.laplace.likelihood, structure, prior=grouped).fit([(x, y)], progress=False)
        results[structure] = {**curve(laplace, line(-3, 3)), "log_evidence": float(laplace.log_evidence())}
    return results


def precisions(settings: Settings) -> dict[str, Any]:
    """Train the same network with prior precisions from 100 to 0.1; the noise is known."""
    x, y = two_clusters()
    results: dict[str, Any] = {"data": points(x, y)}
    for precision in PRECISIONS:
        network = mlp(1, (settings.hidden,), 1, nn.Tanh, 0)
        laplace = fit_at_mode(network, x, y, KNOWN_NOISE, precision, 5 * settings.iterations)
        results[f"{precision:g}"] = {
            **curve(laplace, line(-3, 3)),
            "log_evidence": float(laplace.log_evidence()),
            "effective": float(laplace.effective_parameters()),
        }
    return results


def regularised(settings: Settings) -> dict[str, Any]:
    """Train a 1-6-1 network with hardly any decay and with evidence; errors are against the noiseless sine."""
    rows, shown = [], {}
    test = line(-1, 1, 201)
    truth = torch.sin(torch.pi * test)
    for seed in range(settings.seeds):
        x, y = noisy_sine(15, seed)
        free = mlp(1, (6,), 1, nn.Tanh, seed)
        to_mode(free, x, y, Gaussian(1.0), dict.fromkeys(dict(free.named_parameters()), 1e-8), 15 * settings.iterations)
        trained = on_sine(x, y, 6, seed, settings)
        tuned = trained.laplace.model
        assert isinstance(tuned, nn.Module)
        with torch.no_grad():
            outputs = {"without": free(test), "with": tuned(test)}
            errors = {
                f"train_{name}": float((model(x) - y).square().mean().sqrt())
                for name, model in (("without", free), ("with", tuned))
            }
        errors |= {f"test_{name}": float((f - truth).square().mean().sqrt()) for name, f in outputs.items()}
        noise = trained.laplace.likelihood.noise_precision  # pyright: ignore[reportAttributeAccessIssue]
        rows.append({**errors, "effective": trained.effective, "noise_sd": float(noise) ** -0.5})
        if seed == 0:
            shown = {"data": points(x, y), "with": curve(trained.laplace, test)}
            shown["without"] = outputs["without"].flatten().tolist()
    return {"rows": rows, **shown}


def sizes(settings: Settings) -> dict[str, Any]:
    """Compute effective parameters and evidence against the number of hidden units."""
    x, y = noisy_sine(60, 1)
    rows = []
    for width in settings.widths:
        restarts = [on_sine(x, y, width, seed, settings) for seed in range(min(settings.seeds, 2))]
        best = max(restarts, key=lambda trained: trained.log_evidence)
        counts = {"width": width, "weights": best.weights, "all_effective": [each.effective for each in restarts]}
        rows.append({**counts, "effective": best.effective, "log_evidence": best.log_evidence})
    return {"rows": rows}


def depths(settings: Settings) -> dict[str, Any]:
    """Compute error bars of one tanh layer and of two ReLU layers, both tuned by the evidence."""
    x, y = two_clusters()
    results: dict[str, Any] = {"data": points(x, y)}
    width = settings.hidden
    for name, hidden, activation in (("1 x tanh", (width,), nn.Tanh), ("2 x ReLU", (width, width), nn.ReLU)):
        trained = on_clusters(hidden, activation, Prior(1.0, groups="layer"), settings)
        noise = float(trained.laplace.likelihood.noise_precision) ** -0.5  # pyright: ignore
        results[name] = {
            **curve(trained.laplace, line(-3, 3)),
            "regions": regions(trained.laplace),
            "noise_sd": noise,
            "effective": trained.effective,
            "weights": trained.weights,
        }
    return results


def sampling(settings: Settings) -> dict[str, Any]:
    """Predict from one posterior with linearised functions and with networks of sampled weights."""
    x, y = two_clusters()
    trained = on_clusters((settings.hidden,), nn.Tanh, Prior(1.0), settings)
    laplace, inputs = trained.laplace, line(-2, 2)
    results: dict[str, Any] = {"data": points(x, y), "x": inputs.flatten().tolist()}
    for name, method in (("linearised", "linearised-samples"), ("sampled", "sampled")):
        generator = torch.Generator().manual_seed(0)
        predicted = laplace.predict(inputs, method, samples=settings.samples, generator=generator)
        at_data = laplace.predict(x, method, samples=settings.samples, generator=generator)
        results[name] = {
            "mean": predicted.mean.flatten().tolist(),
            "draws": predicted.sample(settings.draws, generator).flatten(1).tolist(),
            "rmse": float((at_data.mean - y).square().mean().sqrt()),
            "log_likelihood": float(at_data.log_prob(y).mean()),
        }
    results["map"] = laplace.predict(inputs).mean.flatten().tolist()
    return results


def subnetwork(settings: Settings, activation: type[nn.Module]) -> dict[str, Any]:
    """Compare posteriors over all weights, over a share of them in full, and a diagonal one; two hidden layers."""
    x, y = two_clusters()
    network = mlp(1, (settings.hidden, settings.hidden), 1, activation, 1)
    laplace = fit_at_mode(network, x, y, KNOWN_NOISE, 1.0, 5 * settings.iterations)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    batches = [(x[rows], y[rows]) for rows in order.split(10)]  # SWAG needs the noise of small batches

    def of_subnetwork(share: float, by: str, **swag: float) -> Laplace:
        part = Laplace(network, KNOWN_NOISE, parameters=Subnetwork(share, by=by, swag=swag or None), prior=1.0)
        return part.fit(batches, progress=False, generator=torch.Generator().manual_seed(0))

    diagonal = Laplace(network, KNOWN_NOISE, "diagonal", prior=1.0).fit(batches, progress=False)
    cases = {
        "full, all weights": laplace,
        **{f"full, {share:.0%} by SWAG": of_subnetwork(share, "swag", lr=1e-3) for share in (0.5, 0.03, 0.01)},
        "full, 3% by SWAG, lr / 10": of_subnetwork(0.03, "swag", lr=1e-4),
        "full, 3% by Laplace variance": of_subnetwork(0.03, "variance"),
        "full, 3% by magnitude": of_subnetwork(0.03, "magnitude"),
        "full, 3% at random": of_subnetwork(0.03, "random"),
        "diagonal, all weights": diagonal,
    }
    results: dict[str, Any] = {"data": points(x, y), "cases": {}}
    squares = squared_jacobian(laplace, line(-3, 3))
    for name, case in cases.items():
        results["cases"][name] = {
            **curve(case, line(-3, 3)),
            "regions": regions(case),
            "weights": case.posterior.num_random,
            "curvature": float(case.curvature.diagonal().median()) / NOISE**2,
            "influence": float(squared_jacobian(case, line(-3, 3)).sum() / squares.sum()),
        }
    variance = diagonal.posterior.precision.inverse_diagonal()
    names, generator = laplace.posterior.layout.names, torch.Generator().manual_seed(0)
    moved = swag_variance(network, batches, KNOWN_NOISE, names, lr=1e-3, generator=generator)
    results["ranks"] = {
        "swag": rank_correlation(variance, laplace.posterior.layout.flatten(moved)),
        "influence": rank_correlation(variance, squares),
        "at the prior": float((variance > 0.99).double().mean()),
    }
    return results


# --- tools -------------------------------------------------------------------------------------------------


def on_clusters(hidden: tuple[int, ...], activation: type[nn.Module], prior: Prior, settings: Settings) -> Trained:
    """Train a network on the two clusters, prior and noise by the evidence."""
    x, y = two_clusters()
    options = {"rounds": settings.rounds, "iterations": settings.iterations}
    return train_with_evidence(mlp(1, hidden, 1, activation, 0), x, y, KNOWN_NOISE, prior, **options)


def on_sine(x: Tensor, y: Tensor, width: int, seed: int, settings: Settings) -> Trained:
    """Train a network with one tanh layer on the noisy sine, one prior precision and the noise by the evidence."""
    options = {"rounds": settings.rounds, "iterations": settings.iterations}
    return train_with_evidence(mlp(1, (width,), 1, nn.Tanh, seed), x, y, Gaussian(10.0), Prior(0.1), **options)


def squared_jacobian(laplace: Laplace, x: Tensor) -> Tensor:
    """Return each random weight's sum of squared derivatives of the outputs at these inputs, `[K]`."""
    return jacobian(PosteriorFunction(laplace.model, laplace.posterior), x).square().sum((0, 1))


def points(x: Tensor, y: Tensor) -> dict[str, list[float]]:
    """Return data as lists."""
    return {"x": x.flatten().tolist(), "y": y.flatten().tolist()}


def curve(laplace: Laplace, x: Tensor) -> dict[str, Any]:
    """Return mean and standard deviation of the function, and the noise variance."""
    predicted = laplace.predict(x)
    assert predicted.noise_variance is not None
    return {
        "x": x.flatten().tolist(),
        "mean": predicted.mean.flatten().tolist(),
        "sd": predicted.variance.sqrt().flatten().tolist(),
        "noise": float(predicted.noise_variance.flatten()[0]),
    }


def regions(laplace: Laplace) -> dict[str, float]:
    """Return the mean standard deviation of the function at, between and away from the data."""
    return {
        name: float(laplace.predict(line(low, high, 21)).variance.sqrt().mean())
        for name, (low, high) in REGIONS.items()
    }


# fmt: off
STUDY = Study(
    "toy-regression", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "hidden": 50, "rounds": 6, "iterations": 150, "widths": (1, 2, 3, 4, 6, 8, 16, 32), "seeds": 5,
        "samples": 200, "draws": 20,
    },
    quick={
        "hidden": 10, "rounds": 2, "iterations": 50, "widths": (1, 2, 4), "seeds": 1, "samples": 20, "draws": 5,
    },
    full={
        "rounds": 20, "iterations": 1000, "widths": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64), "seeds": 20,
        "samples": 2000,
    },
)
# fmt: on
