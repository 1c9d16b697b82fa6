"""`tuning`: does the posterior predict no worse than its network, with the temperature by the evidence or by refits?"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from marquis.data import load
from marquis.laplace import Laplace
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor
from marquis_experiments.common.page import signed, verdict
from marquis_experiments.common.study import Run, Study

SKLEARN = {
    "digits": load_digits,
    "wine": load_wine,
    "iris": load_iris,
    "breast cancer": load_breast_cancer,
    "diabetes": load_diabetes,
}
UCI = ("boston", "concrete", "energy", "wine", "protein", "naval")
TABLES = (
    *("digits", "wine", "iris", "breast cancer"),
    *(f"{name} (classes)" for name in ("diabetes", *(f"uci {name}" for name in UCI[:5]))),
    *("diabetes", *(f"uci {name}" for name in UCI)),
)
TEST = 2000


def table(name: str, data_dir: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return features, labels, and whether these are classes."""
    plain = name.removesuffix(" (classes)")
    if plain in SKLEARN:
        X, y = SKLEARN[plain](return_X_y=True)
    else:
        with np.load(data_dir / "uci" / f"{plain.removeprefix('uci ')}.npz") as archive:
            X, y = archive["X"], archive["y"].ravel()
    if name != plain:
        return X, np.searchsorted(np.quantile(y, [1 / 3, 2 / 3]), y), True
    return X, y, plain in ("digits", "wine", "iris", "breast cancer")


def split(X: np.ndarray, y: np.ndarray, is_classes: bool, rows: int, seed: int) -> list[np.ndarray]:
    """Return training features, test features, training labels, test labels."""
    rows = min(rows, 2 * len(X) // 3)
    parts = train_test_split(X, y, train_size=rows, random_state=seed, stratify=y if is_classes else None)
    return [np.asarray(part) for part in (parts[0], parts[1][:TEST], parts[2], parts[3][:TEST])]


def negative_log_density(model: Any, X: np.ndarray, y: np.ndarray, network_alone: bool = False) -> float:
    """Return the mean negative log density of labels, of the network alone or of the posterior."""
    if isinstance(model, LaplaceClassifier):
        if not network_alone:
            return float(log_loss(y, model.predict_proba(X), labels=model.classes_))
        logits = model._outputs(X)
        probs = logits.softmax(1) if logits.shape[1] > 1 else torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1)
        return float(log_loss(y, probs.numpy(), labels=model.classes_))
    epistemic, noise = model.predict_variance(X)
    variance = noise if network_alone else epistemic + noise
    residual = y - model.predict(X)
    scale = float(model.y_scaler_.scale_[0])  # density of the standardised target
    return float(np.mean(0.5 * (residual**2 / variance + np.log(2 * np.pi * variance))) - np.log(scale))


def table_cell(name: str, seed: int, rows: int, data_dir: Path) -> dict[str, Any]:
    """Fit with and without refits."""
    X, y, is_classes = table(name, data_dir)
    X, new, y, labels = split(X, y, is_classes, rows, seed)
    kind = LaplaceClassifier if is_classes else LaplaceRegressor
    models, seconds = {}, {}
    for temperature in (1.0, "auto"):
        started = time.process_time()
        models[temperature] = kind(posterior_temperature=temperature, random_state=seed).fit(X, y)
        seconds[temperature] = time.process_time() - started
    alone = negative_log_density(models[1.0], new, labels, network_alone=True)
    result = {
        "rows": len(X),
        "network": alone,
        "evidence": negative_log_density(models[1.0], new, labels) - alone,
        "refits": negative_log_density(models["auto"], new, labels) - alone,
        "temperature": models["auto"].posterior_temperature_,
        "train_on": models["auto"].held_out_.train_on,
        "cost": seconds["auto"] / seconds[1.0],
    }
    if is_classes:
        scaler = StandardScaler().fit(X)
        mlp = MLPClassifier(hidden_layer_sizes=(50,), max_iter=500, random_state=seed).fit(scaler.transform(X), y)
        result["mlp"] = float(log_loss(labels, mlp.predict_proba(scaler.transform(new)), labels=mlp.classes_))
    return result


def network_of(kind: str) -> nn.Sequential:
    """Return one of the two image classifiers."""
    if kind == "dense":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    convolutions = [nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 10))


def images_of(name: str, count: int, seed: int, data_dir: Path) -> tuple[Tensor, Tensor]:
    """Return images and labels, shuffled by the seed."""
    loaded = load(name, "test" if name == "kmnist" else "train", data_dir=data_dir)
    x, y = torch.as_tensor(loaded.x), torch.as_tensor(loaded.y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return x[order].reshape(-1, 1, 28, 28).float(), y[order].long()


def image_cell(data: str, kind: str, seed: int, count: int, data_dir: Path) -> dict[str, Any]:
    """Train a classifier, and tune its posterior without and with validation data."""
    x, y = images_of(data, count + 3000, seed, data_dir)
    new, labels = x[count + 1000 :], y[count + 1000 :]
    torch.manual_seed(seed)
    network = network_of(kind)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(10):
        for rows in torch.randperm(count).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
    network.eval()
    train = [(x[i : i + 500], y[i : i + 500]) for i in range(0, count, 500)]
    validation = [(x[i : i + 500], y[i : i + 500]) for i in range(count, count + 1000, 500)]
    far = images_of("mnist", 1000, seed, data_dir)[0]
    laplace = Laplace(network, "categorical").fit(train, progress=False)

    def scores(link: str | None = None) -> tuple[float, Tensor, Tensor]:
        parts = [laplace.predict(part, link=link) for part in (*new.split(500), *far.split(500))]
        probs = torch.cat([part.probs for part in parts if part.probs is not None])
        return (
            float(log_loss(labels, probs[: len(new)].double(), labels=range(10))),
            probs[: len(new)],
            probs[len(new) :],
        )

    def auroc(inside: Tensor, outside: Tensor) -> float:
        entropy = torch.special.entr(torch.cat([inside, outside])).sum(1)
        return float(roc_auc_score([0] * len(inside) + [1] * len(outside), entropy))

    with torch.no_grad():
        plain, outside = network(new).softmax(1), network(far).softmax(1)
    alone = float(log_loss(labels, plain.double(), labels=range(10)))
    laplace.tune()
    evidence, by_probit = scores(), scores("probit")
    laplace.tune(validation=validation)
    chosen = scores()
    areas = [auroc(plain, outside), auroc(*evidence[1:]), auroc(*chosen[1:])]
    return {
        "alone": alone,
        "before": by_probit[0] - alone,
        "evidence": evidence[0] - alone,
        "validation": chosen[0] - alone,
        "temperature": laplace.posterior_temperature,
        "auroc": " / ".join(f"{area:.3f}" for area in areas),
    }


def speed_cell(name: str, rows: int, data_dir: Path) -> dict[str, Any]:
    """Time a fit above 2,000 rows beside scikit-learn's network."""
    X, y, is_classes = table(name, data_dir)
    X, new, y, labels = split(X, y, is_classes, rows, 0)
    scaler = StandardScaler().fit(X)
    shift, scale = (0, 1) if is_classes else (y.mean(), y.std())
    kinds: tuple[Any, Any] = (MLPClassifier, LaplaceClassifier) if is_classes else (MLPRegressor, LaplaceRegressor)
    kinds[1](max_iter=2).fit(X[:200], y[:200])  # what is imported and compiled once
    started = time.process_time()
    # No stop before 200 epochs.
    mlp = kinds[0](hidden_layer_sizes=(50,), activation="tanh", max_iter=200, n_iter_no_change=200, random_state=0)
    mlp.fit(scaler.transform(X), y if is_classes else (y - shift) / scale)
    between = time.process_time()
    ours = kinds[1](random_state=0).fit(X, y)
    ended = time.process_time()
    if is_classes:
        errors = [log_loss(labels, m.predict_proba(z)) for m, z in ((mlp, scaler.transform(new)), (ours, new))]
    else:
        predictions = (mlp.predict(scaler.transform(new)) * scale + shift, ours.predict(new))
        errors = [float(np.sqrt(np.mean((labels - a) ** 2)) / scale) for a in predictions]
    times = {"mlp": between - started, "ours": ended - between, "ratio": (ended - between) / (between - started)}
    return {"rows": len(X), **times, "mlp_error": float(errors[0]), "our_error": float(errors[1])}


def measure(run: Run) -> dict[str, Any]:
    """Run every cell."""
    s, data_dir = run.settings, run.data_dir or Path("data")
    rows, images, speed = [], [], []
    warnings.simplefilter("ignore")
    for name in TABLES[: s.tables]:
        for seed in s.seeds:
            key = {"table": name, "seed": seed, "largest": s.largest}
            compute = lambda n=name, i=seed: table_cell(n, i, s.largest, data_dir)  # noqa: E731
            rows.append(run.cell(f"{name}-{seed}", key, compute))
        run.say(f"{name}: {rows[-1]['evidence']:+.3f} by the evidence, {rows[-1]['refits']:+.3f} by refits")
    for data, kind in (("fashion-mnist", "convolutional"), ("kmnist", "dense"))[: 2 if s.images else 0]:
        for seed in s.image_seeds:
            key = {"data": data, "network": kind, "seed": seed, "images": s.images}
            compute = lambda d=data, k=kind, i=seed: image_cell(d, k, i, s.images, data_dir)  # noqa: E731
            images.append(run.cell(f"{data}-{seed}", key, compute))
            run.say(f"{data}: {images[-1]['evidence']:+.3f}, {images[-1]['validation']:+.3f} with validation data")
    for name, count in s.speed:
        speed.append(
            run.cell(
                f"speed-{name}-{count}", {"table": name, "n": count}, lambda n=name, c=count: speed_cell(n, c, data_dir)
            )
        )
        run.say(f"{name}, {count} rows: {speed[-1]['ratio']:.1f} times as long as the MLP")
    return {**s, "table_rows": rows, "image_rows": images, "speed": speed}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return means per table, and how often a rule made things worse."""
    rows, images = results["table_rows"], results["image_rows"]
    tables = []
    for name in dict.fromkeys(row["table"] for row in rows):
        of_table = [row for row in rows if row["table"] == name]
        counts = Counter(row["temperature"] for row in of_table)
        tables.append(
            {
                "table": name,
                "rows": of_table[0]["rows"],
                **{key: mean(row[key] for row in of_table) for key in ("network", "evidence", "refits")},
                "temperatures": ", ".join(f"{t:g}" + (f" ({n})" if n > 1 else "") for t, n in sorted(counts.items())),
                "mlp": f"{mean(row['mlp'] for row in of_table):.3f}" if "mlp" in of_table[0] else "–",
            }
        )
    means = {key: [row[key] for row in tables] for key in ("evidence", "refits")}
    worse = {key: sum(row[key] > 0.01 for row in rows) for key in ("evidence", "refits")}
    costs = [row["cost"] for row in rows]
    return {
        "tables_count": len(tables),
        "tables": tables,
        "fits": len(rows),
        "mean": {key: signed(value, 4) for key, value in means.items()},
        "worse": worse,
        "images_rows": images,
        "image_mean": {
            key: signed([row[key] for row in images], 4) if images else "–" for key in ("evidence", "validation")
        },
        "cost": {"median": median(costs), "largest": max(costs)},
        "slow": sum(row["ratio"] > 4 for row in results["speed"]),
        "timed": len(results["speed"]),
        "trained_on": sum(row["train_on"] for row in rows),
        "verdict": verdict(
            mean(means["refits"]) <= 0.002,
            worse["refits"] < len(rows) / 10,
            all(row["validation"] <= 0.002 for row in images),
            all(row["ratio"] <= 4 for row in results["speed"]),
        ),
    }


STUDY = Study(
    "tuning",
    Path(__file__).with_suffix(".md"),
    measure,
    values,
    default={
        "tables": len(TABLES),
        "seeds": [11, 12, 13],
        "largest": 400,
        "images": 5000,
        "image_seeds": [11, 12],
        "speed": [["uci protein", 4000], ["uci naval", 6000], ["uci protein", 20000], ["uci protein (classes)", 8000]],
    },
    quick={"tables": 3, "seeds": [11], "largest": 120, "images": 0, "speed": []},
    full={"seeds": [11, 12, 13, 14, 15, 16, 17, 18]},
)
