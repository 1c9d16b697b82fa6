"""`links`: which formula turns Gaussian logits into class probabilities, on random Gaussians and on real posteriors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from marquis.laplace import Laplace
from marquis.likelihoods import Categorical
from marquis.predictive import links
from marquis_experiments.common.page import verdict
from marquis_experiments.common.study import Run, Study

CLASSES = (2, 3, 10, 100)
VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0)
BAR = 0.02


def centred(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and covariance projected to sum zero."""
    projection = torch.eye(mean.shape[-1], dtype=mean.dtype) - 1 / mean.shape[-1]
    return mean @ projection, projection @ covariance @ projection


def variances(covariance: Tensor) -> Tensor:
    """Return the diagonals."""
    return covariance.diagonal(dim1=-2, dim2=-1)


def by_nodes(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the default."""
    return Categorical().predictive(mean, variances(covariance), covariance).probs  # pyright: ignore


def by_probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the class-wise probit."""
    return links.probit(Categorical(), mean, variances(covariance))


def by_pairwise(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the pairwise mean-field form (docs/method/predictive.md, equation 3)."""
    v, classes = variances(covariance), mean.shape[-1]
    spread = v.unsqueeze(-1) + v.unsqueeze(-2) - 2 * covariance
    margin = (mean.unsqueeze(-1) - mean.unsqueeze(-2)) * torch.rsqrt(1 + math.pi / 8 * spread)
    others = (1 + (-margin).exp()).masked_fill(torch.eye(classes, dtype=torch.bool), 0).sum(-1)
    shares = 1 / (2 - classes + others)
    return shares / shares.sum(-1, keepdim=True)


def by_sigma_points(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the average over the 2 C points of the cubature rule of degree three."""
    mean, covariance = centred(mean, covariance)
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * (len(values[0]) * values.clamp(min=0)).sqrt().unsqueeze(-2)) @ vectors.mT
    points = torch.cat([mean.unsqueeze(-2) + root, mean.unsqueeze(-2) - root], -2)
    return points.softmax(-1).mean(-2)


def by_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the Laplace bridge after projection to sum zero."""
    mean, covariance = centred(mean, covariance)
    return links.bridge(Categorical(), mean, variances(covariance).clamp(min=1e-300))


CANDIDATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "quadrature": by_nodes,
    "probit": by_probit,
    "centred": lambda m, v: by_probit(*centred(m, v)),
    "pairwise": by_pairwise,
    "sigma": by_sigma_points,
    "bridge": by_bridge,
}


def monte_carlo(mean: Tensor, covariance: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Return the average softmax of independent draws."""
    values, vectors = torch.linalg.eigh(centred(mean, covariance)[1])
    root, total = vectors * values.clamp(min=0).sqrt().unsqueeze(-2), torch.zeros_like(mean)
    for _ in range(draws // 1000):
        z = torch.randn(1000, mean.shape[1], generator=generator, dtype=mean.dtype)
        total += (mean.unsqueeze(1) + z @ root.mT).softmax(-1).sum(1)
    return total / (1000 * (draws // 1000))


def errors(mean: Tensor, covariance: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return the mean and the largest over cases of every candidate's largest error over classes."""
    each = {name: (link(mean, covariance) - truth).abs().amax(1) for name, link in CANDIDATES.items()}
    return {
        "error": {name: float(e.mean()) for name, e in each.items()},
        "largest": {name: float(e.max()) for name, e in each.items()},
    }


def random_cell(classes: int, variance: float, cases: int, draws: int, seed: int) -> dict[str, Any]:
    """Compare all candidates on random means and covariances."""
    generator = torch.Generator().manual_seed(1000 * seed + 10 * classes + VARIANCES.index(variance))
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    scale = (math.log(20) * torch.rand(cases, 1, generator=generator, dtype=torch.float64)).exp() / 2
    mean = scale * normal(cases, classes)
    root = normal(cases, classes, classes + 1) * (0.5 * normal(cases, classes, 1)).exp()
    covariance = root @ root.mT
    covariance = covariance * (variance / variances(covariance).mean(1))[:, None, None]
    truth = monte_carlo(mean, covariance, draws, generator)
    order = torch.randperm(classes, generator=generator)
    relabelled = by_nodes(mean[:, order], covariance[:, order][:, :, order]) - by_nodes(mean, covariance)[:, order]
    alone = Categorical().predictive(mean, variances(covariance)).probs
    assert alone is not None
    return {
        **errors(mean, covariance, truth),
        "relabelled": float(relabelled.abs().amax(1).mean()),
        "variances_only": float((alone - truth).abs().amax(1).mean()),
    }


def network_cell(name: str, draws: int, seed: int) -> list[dict[str, Any]]:
    """Compare all candidates on the posterior of a trained classifier."""
    X, y = load_wine(return_X_y=True) if name == "relu" else load_digits(return_X_y=True)
    X, new, y, _ = train_test_split(X, y, train_size=0.4, random_state=seed, stratify=y)
    scaler = StandardScaler().fit(X)
    x, new = (torch.from_numpy(scaler.transform(part)) for part in (X, new[:200]))
    labels = torch.from_numpy(y)
    torch.manual_seed(seed)
    activation = nn.ReLU() if name == "relu" else nn.Tanh()
    hidden = [nn.Linear(x.shape[1], 50), activation, nn.Linear(50, int(labels.max()) + 1)]
    model = nn.Sequential(*([nn.Linear(x.shape[1], 10)] if name == "linear" else hidden)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimiser.step()
    laplace = Laplace(model.eval(), "categorical").fit([(x, labels)], progress=False)
    laplace.tune()
    rows, generator = [], torch.Generator().manual_seed(seed)
    tuned: Any = laplace.prior
    for prior, factor in (("evidence", 1.0), ("weak", 0.01)):
        laplace.update(prior=tuned.with_precision(factor * tuned.precision))
        for inputs, batch in (("test", new), ("far", 3 * new)):
            prediction = laplace.predict(batch)
            mean, covariance = prediction.mean, prediction.covariance
            assert covariance is not None
            truth = monte_carlo(mean, covariance, draws, generator)
            median = float(variances(centred(mean, covariance)[1]).median())
            key = {"network": name, "prior": prior, "inputs": inputs, "variance": median}
            rows.append({**key, **errors(mean, covariance, truth)})
    return rows


def seconds() -> dict[str, float]:
    """Return the seconds for a thousand rows, by the number of classes."""
    times = {}
    for classes in (10, 100):
        mean, covariance = torch.randn(1000, classes), torch.eye(classes).expand(1000, classes, classes)
        by_nodes(mean[:10], covariance[:10])
        started = time.process_time()
        by_nodes(mean, covariance)
        times[str(classes)] = time.process_time() - started
    return times


def measure(run: Run) -> dict[str, Any]:
    """Compare the candidates in every cell."""
    s = run.settings
    rows = []
    for classes in CLASSES:
        for variance in VARIANCES:
            key = {"classes": classes, "variance": variance, **s}
            compute = lambda c=classes, v=variance: random_cell(c, v, s.cases, s.reference, s.seed)  # noqa: E731
            rows.append(run.cell(f"c{classes}-v{variance}", key, compute))
        run.say(f"{classes} classes: {max(row['error']['quadrature'] for row in rows):.4f} at worst so far")
    networks = []
    for name in ("linear", "tanh", "relu"):
        cell = run.cell(name, dict(s), lambda n=name: {"rows": network_cell(n, s.reference, s.seed)})
        networks += cell["rows"]
    return {"random": rows, "networks": networks, "seconds": run.cell("seconds", {}, seconds), **s}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the worst cell of every candidate and the tables of the details."""
    every = results["random"] + results["networks"]
    worst = {name: max(row["error"][name] for row in every) for name in CANDIDATES}

    def table(key: str) -> dict[str, Any]:
        return {str(v): {"change": [r[key] for r in results["random"] if r["variance"] == v]} for v in VARIANCES}

    return {
        "worst": worst,
        "classes": CLASSES,
        "relabelled": table("relabelled"),
        "variances_only": table("variances_only"),
        "verdict": verdict(worst["quadrature"] <= BAR, min(worst, key=lambda name: worst[name]) == "quadrature"),
    }


STUDY = Study(
    "links",
    Path(__file__).with_suffix(".md"),
    measure,
    values,
    default={"cases": 100, "reference": 100_000, "seed": 5},
    quick={"cases": 10, "reference": 5_000},
    full={"cases": 400},
)
