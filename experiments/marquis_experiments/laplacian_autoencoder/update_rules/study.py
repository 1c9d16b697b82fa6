"""The study `update-rules`: variants of the online update of the LAE paper, compared on one data set.

8x8 digits as in `claims`: dense networks, codes of dimension 2, Adam at a constant rate, batches of 64. Noise precision
30 (about what the default learns) and prior precision 1 in every row, so that rows differ in one thing each:

- the rule for the running curvature (Appendix C, docs/method/online.md#update-rules), at two posterior temperatures;
- the network in the gradient step: sampled (eq. 64) or linearised at the mean (eq. 8 and 59 to 61);
- weights that start at zero, as section 3 of the paper says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from marquis.autoencoders import Autoencoder, BaseAutoencoder, LaplacianAutoencoder, for_data
from marquis.errors import MarquisError
from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.common.page import verdict, yes
from marquis_experiments.common.study import Run, Study
from marquis_experiments.common.training import Shuffled, descend
from marquis_experiments.laplacian_autoencoder.claims.training import BATCH, LATENT, Images, Job, read, scored, scores

NOISE = 30.0
ROWS: dict[str, dict[str, Any]] = {
    "lae": {"label": "LAE, sampled network (eq. 64)"},
    "lae-mean": {"label": "the same, curvature at the mean", "curvature_at": "mean"},
    "linearised": {"label": "LAE, linearised network (eq. 8)", "curvature_at": "mean"},
    "redux": {"label": "prior + batch (eq. 17)", "rule": "redux", "scale": "dataset"},
    "van": {"label": "adaptive Newton (eq. 18)", "rule": "van"},
    "nng": {"label": "noisy natural gradient (eq. 19)", "rule": "nng", "scale": "dataset"},
    "noisy-adam": {"label": "noisy Adam", "rule": "noisy-adam", "scale": "dataset"},
    "zero": {"label": "LAE, weights start at zero"},
}
"""Rows by name: the label of the table, and the options in which a row differs from the learner's defaults."""


class LinearisedStep(LaplacianAutoencoder):
    """Train a Laplacian autoencoder by the gradient of the network linearised at the mean (LAE eq. 8, 59 to 61).

    With `theta = mu + d` the loss `beta/2 |f(mu) + J d - x|²` has the gradient `beta J^T (f(mu) + J d - x)` in theta.
    Its mean over d is the gradient of a plain autoencoder: samples add noise to this step and nothing else.
    """

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the loss of the linearised network at one sample; the learner's step only updates its state."""
        online = self._learner()
        with torch.no_grad():
            online.step(inputs, x, mask, learning_rate=self.learning_rate)
        means = {name: value.detach() for name, value in online.means().items()}
        sample = online.posterior().sample(1, torch.Generator().manual_seed(online.state.steps))
        change = {name: sample[name][0] - value for name, value in means.items()}
        network = self._joined[0]
        tangent = jvp(lambda weights: functional_call(network, weights, (inputs,)), (means,), (change,))[1]
        error = (network(inputs) + tangent.detach() - x).square().flatten(1).sum(1).mean()
        weights = sum(value.square().sum() for value in online.means().values())
        return NOISE / 2 * error + weights / (2 * online.num_data)


def measure(run: Run) -> dict[str, Any]:
    """Train and score every row, at every temperature, seed by seed."""
    rows = []
    for seed in range(run.settings.seeds):
        for name, temperature in [("plain", 1.0), *((name, t) for t in run.settings.temperatures for name in ROWS)]:
            size = run.settings.only("epochs", "train", "draws")
            key = {"row": name, "temperature": temperature, "seed": seed, **size}
            rows.append(run.cell(f"{name}-t{temperature:g}-s{seed}", key, lambda key=key: one_row(key, run), "rows"))
            text = rows[-1].get("failed") or f"squared error {rows[-1]['error']:.2f}"
            run.say(f"{name}, T = {temperature:g}, seed {seed}: {text}")
    return {"settings": run.settings.plain(), "rows": rows}


def one_row(key: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Train one model and score it; a training that fails is a row with the reason."""
    seed, lr = key["seed"], 1e-3
    images = read(Job("", "", "", seed, key["epochs"], lr), run.settings, run.data_dir)
    model = build(key, images, lr)
    optimiser = torch.optim.Adam(model.parameter_groups(), lr)
    batches = Shuffled((images.train,), BATCH, 2000 + seed)
    try:
        curve = []
        for _ in range(key["epochs"]):
            deque(descend(optimiser, batches, 1, lambda x: model.loss(x, None)), 0)
            curve.append(float(scored(model, images.test, 5).error.mean()))
        return {**scores(model, images, run.settings.draws), "curve": curve}
    except MarquisError as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def build(key: Mapping[str, Any], images: Images, lr: float) -> BaseAutoencoder:
    """Return an untrained model; its initial weights depend on the seed alone, so that rows compare in pairs."""
    encoder, decoder = for_data(images.train.shape[1:], LATENT, 1.0, kind="dense", seed=key["seed"])
    if key["row"] == "plain":
        return Autoencoder(encoder, decoder, lr=lr)
    if key["row"] == "zero":
        for weight in (*encoder.parameters(), *decoder.parameters()):
            torch.nn.init.zeros_(weight)
    options = {name: value for name, value in ROWS[key["row"]].items() if name != "label"}
    return (LinearisedStep if key["row"] == "linearised" else LaplacianAutoencoder)(
        encoder,
        decoder,
        num_data=len(images.train),
        generator=torch.Generator().manual_seed(1000 + key["seed"]),
        lr=lr,
        noise_precision=NOISE,
        posterior_temperature=key["temperature"],
        **options,
    )


def summary(results: dict[str, Any], name: str, temperature: float) -> dict[str, Any]:
    """Return the means over seeds of one row, with the standard error of the squared error, or its failure."""
    rows = [row for row in results["rows"] if (row["row"], row["temperature"]) == (name, temperature)]
    done = [row for row in rows if "failed" not in row]
    if not done:
        return {"error": "failed", "spread": "–", "log_prob": "–", "shuffled": "–"}
    errors = torch.tensor([row["error"] for row in done], dtype=torch.float64)
    spread = float(errors.std() / len(errors) ** 0.5) if len(errors) > 1 else float("nan")
    return {
        "error": f"{float(errors.mean()):.2f}",
        "spread": f"{spread:.2f}",
        "log_prob": f"{mean(row['refitted_log_prob'] for row in done):.1f}",
        "shuffled": f"{mean(row['auroc']['shuffled']['latent'] for row in done):.2f}",
    }


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the table.

    The paper's rule has to do as well as the others it lists, and the sampled step better than the linearised one at
    both temperatures.
    """
    settings = results["settings"]
    temperatures = settings["temperatures"]
    table = [{"label": "plain autoencoder", "t": "–", **summary(results, "plain", 1.0)}]
    for t in temperatures:
        table += [{"label": row["label"], "t": f"{t:g}", **summary(results, name, t)} for name, row in ROWS.items()]
    cold, warm = (
        {name.replace("-", "_"): summary(results, name, t)["error"] for name in ROWS}
        for t in (temperatures[0], temperatures[-1])
    )
    others = [cold[name] for name in ("redux", "van", "nng", "noisy_adam")]
    rule = all(other == "failed" or float(cold["lae"]) <= float(other) for other in others)
    steps = [float(errors["lae"]) < float(errors["linearised"]) for errors in (cold, warm) if "failed" not in errors]
    return {
        "seeds": settings["seeds"],
        "epochs": settings["epochs"],
        "rows": table,
        "cold": cold,
        "warm": warm,
        "plain": summary(results, "plain", 1.0)["error"],
        "holds": {"rule": yes(rule)},
        "step": verdict(*steps),
        "verdict": verdict(rule, *steps),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the error of the sampled and the linearised step at both temperatures, minus the plain autoencoder's."""
    figure = Figure(2, 2, 3.6, 2.9)
    temperatures = results["settings"]["temperatures"]

    def curves(name: str, t: float) -> dict[int, list[float]]:
        rows = [r for r in results["rows"] if (r["row"], r["temperature"]) == (name, t) and "curve" in r]
        return {row["seed"]: row["curve"] for row in rows}

    plain = curves("plain", 1.0)
    for axes, temperature in zip(figure.axes, (temperatures[0], temperatures[-1]), strict=True):
        for name, colour, label in (("lae", BLUE, "sampled (eq. 64)"), ("linearised", ORANGE, "linearised (eq. 8)")):
            gaps = [
                [error - reference for error, reference in zip(curve, plain[seed], strict=True)]
                for seed, curve in curves(name, temperature).items()
            ]
            if gaps:
                middle = [mean(errors) for errors in zip(*gaps, strict=True)]
                axes.plot(range(1, len(middle) + 1), middle, color=colour, label=label)
        axes.axhline(0, color=GREY, lw=0.8)
        axes.set(xlabel="epoch", ylabel="squared error − plain", title=f"T = {temperature:g}")
        axes.legend(fontsize=7)
    figure.save(folder / "update-rules.png")


STUDY = Study(
    "update-rules",
    Path(__file__).with_name("page.md"),
    measure,
    values,
    draw,
    default={"seeds": 3, "epochs": 40, "train": None, "draws": 50, "temperatures": [0.01, 1.0]},
    quick={"seeds": 1, "epochs": 2, "train": 256, "draws": 5, "temperatures": [0.01, 1.0]},
    full={"seeds": 10},
)
