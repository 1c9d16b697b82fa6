"""Compute everything that the explorer's page requests about one model and its data, as plain arrays."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.arguments import as_numbers, checked_methods, describe_value
from marquis.choices import choose
from marquis.errors import DataError, UnsupportedOperationError
from marquis.explorer.explored_models import ExploredModel, Points
from marquis.tasks import geometry, ood
from marquis.tasks.batches import SameSeed, batches, naming_shape
from marquis.tasks.contributions import EXPLAINED, entries_of, nll_contributions
from marquis.tasks.ranking import auroc, roc_curve

Answer = dict[str, Any]
"""Arrays and plain values by name."""

SAMPLES, GEOMETRY_SAMPLES, SHOWN = 24, 8, 8
"""Networks that are averaged, those of the metric, and posterior samples that are shown."""
NEIGHBOURS, ORDERED = 8, 50
CURVE, CURVE_STEPS, ORDER_POINTS, ORDER_STEPS = 33, 40, 5, 6
BATCH, ROC_POINTS = 512, 200
SCALE_GRID, SCALE_MARGIN = 8, 0.1
BACKGROUNDS = ("std", "total_std", "density", "volume")


@checked_methods
class Session:
    """Hold a model and its data: codes and scores are computed once, everything else on request.

    Thread-safe: nothing is written after construction but caches. All answers are by the same sampled networks, so that
    they change smoothly with the code and agree with each other.

    Args:
        explored: The model.
        points: Rows to show.
        seed: For networks.
        progress: Show a bar on a terminal.

    Attributes:
        points: The rows.
        x: The rows as the model takes them.
        codes: `[n, K]`, means over the networks.
        code_std: `[n, K]`, standard deviations over them.
        scores: Outlier scores `[n]` by name, larger for more likely outliers.
    """

    def __init__(self, explored: ExploredModel, points: Points, *, seed: int = 0, progress: bool = True) -> None:
        self.explored, self.points, self.progress = explored, points, progress
        self._same = SameSeed(explored.model, torch.Generator().manual_seed(seed))
        self.x = explored.inputs(points.rows)
        reference = explored.reference()
        self._reference = None if reference is None else self._codes_and_scores(reference, "training rows")[2]
        self.codes, self.code_std, parts = self._codes_and_scores(self.x, "codes and scores")
        self._reference = parts if self._reference is None else self._reference
        self.scores = self._with_combined(parts)
        self.decoders = geometry.SampledDecoders(explored.model, SAMPLES, generator=self._same.generator())
        self.few_decoders = geometry.SampledDecoders(explored.model, GEOMETRY_SAMPLES, generator=self._same.generator())
        self.background = lru_cache(64)(self._background)

    @property
    def latent(self) -> int:
        """Return K, the number of latent dimensions."""
        return self.codes.shape[1]

    @cached_property
    def principal(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean code `[K]` and the principal directions of the codes `[K, K]`, by decreasing variance."""
        center = self.codes.mean(0)
        directions = np.linalg.svd(np.cov((self.codes - center).T).reshape(self.latent, self.latent))[2]
        signs = np.sign(directions[np.arange(self.latent), np.abs(directions).argmax(1)])
        return center, directions * np.where(signs == 0, 1, signs)[:, None]

    @cached_property
    def std_scale(self) -> float:
        """Return a standard deviation that hardly any entry exceeds that is decoded on the map: the end of a scale."""
        center, directions = self.principal
        along = (self.codes - center) @ directions[:2].T
        low, high = along.min(0), along.max(0)
        pad = SCALE_MARGIN * (high - low)
        shares = np.linspace(0, 1, SCALE_GRID)
        ends = [low[k] - pad[k] + shares * (high[k] - low[k] + 2 * pad[k]) for k in range(len(low))]
        places = np.stack(np.meshgrid(*ends), -1).reshape(-1, len(ends))
        _, std, total, _ = self.decode_many(self.as_codes(center + places @ directions[: len(ends)]))
        return float(np.nanquantile(std if self.decoders.count > 1 else total, 0.995))

    # --- codes and scores --------------------------------------------------------------------------------

    def _codes_and_scores(self, x: Tensor, what: str) -> tuple[np.ndarray, np.ndarray, ood.Scores]:
        """Return codes, their standard deviations, and scores, all by the same networks."""
        means, stds, parts = [], [], []
        for batch in batches(self.explored.model, x, BATCH, what, self.progress):
            with naming_shape(self.explored.model, batch, what):
                result = self.reconstruct(batch)
            means.append(result.latent.mean.flatten(1).cpu())
            stds.append(result.latent.std.flatten(1).cpu())
            parts.append({name: score.cpu() for name, score in ood.of_reconstruction(result, batch).items()})
        scores = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return torch.cat(means).double().numpy(), torch.cat(stds).double().numpy(), scores

    def _with_combined(self, parts: ood.Scores) -> dict[str, np.ndarray]:
        """Return scores together with the combined one."""
        assert self._reference is not None
        joined = {"combined": ood.combined(parts, self._reference), **parts}
        return {name: score.double().numpy() for name, score in joined.items()}

    def compare(self, points: Points) -> Answer:
        """Return codes and scores of other data, and how well each score tells them from the points of the map.

        Returns:
            `codes`, `code_std`, `scores`, and for each score `auroc` and the points `fpr`, `tpr` of its ROC curve.
        """
        codes, std, parts = self._codes_and_scores(self.explored.inputs(points.rows), "second data set")
        scores = self._with_combined(parts)
        curves = {}
        for name, score in scores.items():
            in_distribution, out_of_distribution = torch.from_numpy(self.scores[name]), torch.from_numpy(score)
            curve = roc_curve(in_distribution, out_of_distribution)
            last = len(curve.threshold) - 1
            some = torch.linspace(0, last, min(ROC_POINTS, last + 1)).round().long()
            curves[name] = {
                "auroc": auroc(in_distribution, out_of_distribution),
                "fpr": curve.false_positive_rate[some].numpy(),
                "tpr": curve.true_positive_rate[some].numpy(),
            }
        return {"codes": codes, "code_std": std, "scores": scores, "roc": curves}

    # --- anywhere on the map -----------------------------------------------------------------------------

    def decode(self, code: Any) -> Answer:
        """Return `mean`, `std` (over the networks), `total_std` (with noise) and `samples` decoded from a code `[K]`.

        Cost: `SAMPLES` decoder passes of a single code.
        """
        mean, std, total, samples = self.decode_many(self._code(code)[None])
        return {"mean": mean[0], "std": std[0], "total_std": total[0], "samples": samples[:SHOWN, 0]}

    def decode_many(self, z: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, two standard deviations and samples of codes `[n, K]`, in the units of the data."""
        outputs, variance, noise = self._decoded(self.decoders.like_codes(z))
        total = variance if noise is None else variance + noise
        rows, stds = self.explored.rows, self.explored.stds
        return rows(outputs.mean(0)), stds(variance.sqrt()), stds(total.sqrt()), rows(outputs)

    def _decoded(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the decoded means `[S, n, ...]` of codes, their variance over the networks, and the noise variance."""
        outputs, noise = self.decoders.shaped_outputs(z)
        return outputs, outputs.var(0) if len(outputs) > 1 else torch.zeros_like(outputs[0]), noise

    def _background(
        self,
        quantity: str,
        origin: tuple[float, ...],
        u: tuple[float, ...],
        v: tuple[float, ...],
        box: tuple[float, float, float, float],
        size: int,
    ) -> np.ndarray:
        """Return a quantity on a grid of a plane of the latent space, `[size, size]`, rows along v.

        `std` and `total_std` are root mean squares over the entries of the model's rows; `density` is a kernel density
        of the codes projected to the plane; `volume` is that of the metric restricted to the plane.

        Args:
            quantity: "std", "total_std", "density" or "volume".
            origin: A code in the plane.
            u: First direction.
            v: Second direction.
            box: Smallest and largest coordinate along u, then along v.
            size: Number of cells along each.
        """
        quantity = choose("quantity", quantity, BACKGROUNDS, error=DataError)
        at, directions = self._code(origin), torch.stack([self._code(u), self._code(v)])
        if quantity == "density":
            return _density((self.codes - at.double().numpy()) @ directions.double().numpy().T, box, size)
        grid = plane_grid(at, directions, box, size)
        if quantity == "volume":
            parts = [geometry.metric(self.few_decoders, part) for part in grid.split(BATCH)]
            restricted = directions @ torch.cat(parts) @ directions.T
            return torch.linalg.det(restricted).clamp_min(0).sqrt().view(size, size).numpy()
        rows = []
        for part in grid.split(BATCH):
            _, variance, noise = self._decoded(part)
            if quantity == "total_std" and noise is not None:
                variance = variance + noise
            rows.append(variance.flatten(1).mean(1).sqrt())
        return torch.cat(rows).view(size, size).numpy()

    # --- one row -----------------------------------------------------------------------------------------

    def explain(self, row: Any, score: str = "nll") -> Answer:
        """Return what the model makes of a row in the units of the data, and which entries make it an outlier.

        Args:
            row: The number of a point, or a row itself.
            score: Which score the contributions are of; of one without contributions (codes, combined), those of `nll`.

        Returns:
            `original`, `reconstruction`, `difference`, `std`, `contributions` (sum `score_value`), `score`, the `code`
            with its `code_std` and `code_covariance`, and the `neighbours`: numbers of the nearest points.
        """
        x = self._input(row)
        result = self.reconstruct(x, keep=True)
        score, parts = self.contributions(x, result, score)
        mean, code = self.explored.rows(result.mean[0]), result.latent.mean[0].flatten().double().numpy()
        original = self.points.rows[row] if isinstance(row, int) else self._numbers_of_row(row)
        return {
            "original": original,
            "reconstruction": mean,
            "difference": original - mean,
            "std": self.explored.stds(result.std[0]),
            "contributions": self.explored.entries(parts[0]),
            "score": score,
            "score_value": float(parts.double().sum()),
            "code": code,
            "code_std": result.latent.std[0].flatten().double().numpy(),
            "code_covariance": code_covariances(result.latent)[0],
            "neighbours": self.neighbours(code, NEIGHBOURS, row if isinstance(row, int) else None),
        }

    def reconstruct(self, x: Tensor, keep: bool = False) -> Any:
        """Return the model's reconstruction of inputs by the session's networks."""
        return self.explored.model.reconstruct(x, SAMPLES, generator=self._same.generator(), keep=keep)

    def contributions(self, x: Tensor, result: Any, score: str) -> tuple[str, Tensor]:
        """Return the contributions of entries to a score, and which score it is; `result` reconstructs `x`."""
        score = choose("score", score, tuple(self.scores), error=DataError)
        if score in EXPLAINED and score != "nll":
            return score, entries_of(result, x)[score]
        try:
            return "nll", nll_contributions(self.explored.model, x, SAMPLES, self._same.generator())
        except UnsupportedOperationError:
            return "error", entries_of(result, x)["error"]

    def neighbours(self, code: Any, count: int, without: int | None = None) -> np.ndarray:
        """Return the numbers of the nearest points in code space, nearest first."""
        distance = ((self.codes - self._numbers_of(code)) ** 2).sum(1)
        if without is not None:
            distance[self._number(without)] = math.inf
        count = min(count, len(distance) - (without is not None))
        nearest = np.argpartition(distance, count - 1)[:count] if count < len(distance) else np.arange(count)
        return nearest[np.argsort(distance[nearest], kind="stable")]

    def geodesic_order(self, row: int) -> Answer:
        """Return the 50 nearest points in the order of their geodesic distance, with both distances.

        Returns:
            `rows`, `geodesic` and `euclidean`, each in that order.
        """
        self._input(row)
        near = self.neighbours(self.codes[row], ORDERED, row)
        if len(near) == 0:
            return {"rows": near, "geodesic": np.zeros(0), "euclidean": np.zeros(0)}
        options: dict[str, Any] = {"points": ORDER_POINTS, "steps": ORDER_STEPS}
        distance = geometry.distances(
            self.few_decoders, self.as_codes(self.codes[row]), self.as_codes(self.codes[near]), **options
        )
        order = np.argsort(distance.numpy(), kind="stable")
        euclidean = np.sqrt(((self.codes[near] - self.codes[row]) ** 2).sum(1))
        return {"rows": near[order], "geodesic": distance.double().numpy()[order], "euclidean": euclidean[order]}

    def path(self, start: Any, end: Any) -> Answer:
        """Return the straight line and the geodesic between two codes, decoded along the way.

        Returns:
            `straight` and `geodesic`, each with the `codes [33, K]`, the decoded `mean` and `std`, the `spread` (root
            mean square of the standard deviation) and the `length`; and whether the geodesic `converged`.
        """
        first, last = self._code(start), self._code(end)
        through = self.as_codes(self.codes)
        options: dict[str, Any] = {"points": CURVE, "steps": CURVE_STEPS, "tolerance": 1e-4}
        curve = geometry.geodesic(self.few_decoders, first, last, through=through, **options)
        t = torch.linspace(0, 1, CURVE, dtype=first.dtype)[:, None]
        straight = first * (1 - t) + last * t
        curves = {"straight": (straight, curve.straight_length), "geodesic": (curve.points[0], curve.length)}
        answer: Answer = {"converged": bool(curve.converged[0])}
        for name, (codes, length) in curves.items():
            outputs, variance, _ = self._decoded(codes)
            answer[name] = {
                "codes": codes.double().numpy(),
                "mean": self.explored.rows(outputs.mean(0)),
                "std": self.explored.stds(variance.sqrt()),
                "spread": variance.flatten(1).mean(1).sqrt().numpy(),
                "length": float(length[0]),
            }
        return answer

    def impute(self, row: Any, missing: Any) -> Answer:
        """Return imputations of a row of which some entries are taken for missing.

        Args:
            row: The number of a point, or a row itself.
            missing: Numbers of entries, in the order of the flattened row; those that are NaN are missing anyway.

        Returns:
            `mean`, `std`, `samples` in the units of the data, and `missing`.
        """
        original = as_numbers("row", self.points.rows[self._number(row)] if isinstance(row, int) else row).copy()
        numbers = as_numbers("missing", missing).astype(int).reshape(-1)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < original.size):
            raise DataError(f"entries are numbered from 0 to {original.size - 1}")
        gaps = original.copy()
        gaps.reshape(-1)[numbers] = np.nan
        where = np.isnan(gaps)
        if not where.any():
            return {"mean": original, "std": np.zeros_like(original), "samples": original[None], "missing": where}
        generator = self._same.generator()
        mean, std, samples = self.explored.impute(self._checked_row(gaps), self._mean_row, generator)
        filled = np.where(where, samples, original)
        std = np.where(where, std, 0)
        return {"mean": np.where(where, mean, original), "std": std, "samples": filled[:SHOWN], "missing": where}

    @cached_property
    def _mean_row(self) -> Tensor:
        return self.x.nanmean(0, keepdim=True)

    # --- checks ------------------------------------------------------------------------------------------

    def _input(self, row: Any) -> Tensor:
        """Return a row as the model takes it, `[1, ...]`."""
        if not isinstance(row, int):
            return self._checked_row(row)
        return self.x[self._number(row)][None]

    def _number(self, row: int) -> int:
        """Return the number of a row, checked."""
        if not 0 <= row < len(self.x):
            raise DataError(f"row {row}: rows are numbered from 0 to {len(self.x) - 1}")
        return row

    def _checked_row(self, row: Any) -> Tensor:
        """Return a row of the page as the model takes it, checked."""
        values = self._numbers_of_row(row)
        if values.shape != self.points.rows.shape[1:]:
            raise DataError(f"a row has shape {list(self.points.rows.shape[1:])}, not {list(values.shape)}")
        return self.explored.inputs(values[None])

    def _numbers_of_row(self, row: Any) -> np.ndarray:
        """Return a row in the units of the data, as the points hold theirs; None (JSON's null) becomes NaN."""
        try:
            return np.asarray(row.detach() if hasattr(row, "detach") else row, dtype=self.points.rows.dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"a row is {describe_value(row)}; numbers are needed (None: missing).") from error

    def _code(self, code: Any) -> Tensor:
        """Return a code of the page as a tensor, checked."""
        return self.as_codes(self._numbers_of(code))

    def _numbers_of(self, code: Any) -> np.ndarray:
        values = as_numbers("a code", code).reshape(-1)
        if values.shape != (self.latent,) or not np.isfinite(values).all() or (np.abs(values) > 1e6).any():
            raise DataError(f"a code has {self.latent} finite numbers of at most a million, got {len(values)}")
        return values

    def as_codes(self, codes: np.ndarray) -> Tensor:
        """Return codes in the precision of the model."""
        return self.decoders.like_codes(torch.from_numpy(np.ascontiguousarray(as_numbers("codes", codes))))


def plane_grid(origin: Tensor, directions: Tensor, box: tuple[float, float, float, float], size: int) -> Tensor:
    """Return codes `[size * size, K]` at the centres of the cells of a box in a plane, row by row along v."""
    a, b = (
        low + (high - low) * (torch.arange(size, dtype=origin.dtype) + 0.5) / size for low, high in (box[:2], box[2:])
    )
    return (origin + a[None, :, None] * directions[0] + b[:, None, None] * directions[1]).flatten(0, 1)


def code_covariances(latent: Any) -> np.ndarray:
    """Return the covariances `[n, K, K]` of codes over the networks, with the variances that the model states."""
    std = latent.std.flatten(1).double()
    eye = torch.eye(std.shape[1], dtype=torch.float64)
    correlation = eye.expand(len(std), -1, -1)
    if latent.samples is not None and len(latent.samples) > 1:
        samples = latent.samples.flatten(2).double()
        centred = samples - samples.mean(0)
        covariance = torch.einsum("snk,snl->nkl", centred, centred)
        scale = covariance.diagonal(dim1=1, dim2=2).sqrt()
        scale = torch.where(scale > 0, scale, 1.0)
        correlation = covariance / scale[:, :, None] / scale[:, None]
        correlation = correlation * (1 - eye) + eye
    return (correlation * std[:, :, None] * std[:, None]).numpy()


def _density(points: np.ndarray, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    """Return a Gaussian kernel density on a grid, by a histogram that is blurred with Scott's bandwidth."""
    from scipy.ndimage import gaussian_filter

    pad = size  # what lies beyond the box is blurred into it
    spans = np.array([box[1] - box[0], box[3] - box[2]]) / size
    low = np.array([box[0], box[2]]) - pad * spans
    edges = [low[k] + spans[k] * np.arange(size + 2 * pad + 1) for k in (1, 0)]
    counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=edges)
    bandwidth = points.std(0)[::-1] * len(points) ** (-1 / 6) / spans[::-1]
    blurred = gaussian_filter(counts, np.clip(bandwidth, 0.5, size), mode="constant")
    return blurred[pad:-pad, pad:-pad] / (len(points) * spans.prod())
