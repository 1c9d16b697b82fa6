"""Scores of imputations, by the same classifier for all models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders.base import BaseAutoencoder
from marquis.tasks.calibration import coverage, reliability
from marquis.tasks.imputation import Imputation, class_probabilities, errors
from marquis.tasks.masks import minmax_noise
from marquis_experiments.common.images import Labelled
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import Judge, Procedure, filled_in

LEAST = 1e-12
"""Probabilities below this count as this in the negative log-likelihood of the class: 27.6 nats."""


def scores(imputed: Imputation, original: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Compute classification scores, errors against the original, and how far imputations differ.

    `several_classes` is the share of images whose imputations (observed pixels put back) are not all of one class.
    """
    return {
        "reconstructions": classified(imputed.reconstructions, labels, classifier),
        "put_back": classified(imputed.samples, labels, classifier),
        "errors": errors(imputed, original).summary(),
        **_spread_and_coverage(imputed, original),
        "versions": len(imputed.samples),
    }


def classified(versions: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Score the mean softmax over imputations `[S1, B, ...]` (docs/method/tasks.md), with the reliability diagram."""
    return scores_of(probabilities(versions, classifier), labels)


def probabilities(versions: Tensor, classifier: nn.Module) -> Tensor:
    """Compute class probabilities of every imputation, `[S1, B, C]`."""
    return torch.stack([class_probabilities(classifier, version.unsqueeze(0)) for version in versions])


def scores_of(each: Tensor, labels: Tensor) -> dict[str, Any]:
    """Score the mean over imputations of class probabilities `[S1, B, C]`."""
    probs = each.mean(0)
    diagram = reliability(probs, labels)
    chosen = each.argmax(2)
    of_truth = probs.double().gather(1, labels.unsqueeze(1)).clamp_min(LEAST)
    return {
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "confidence": float(probs.amax(1).double().mean()),
        "ece": diagram.ece,
        "mce": diagram.mce,
        "rmsce": diagram.rmsce,
        "nll": -float(of_truth.log().mean()),
        "several_classes": float((chosen != chosen[0]).any(0).double().mean()),
        "bins": {
            "count": diagram.count.tolist(),
            "confidence": [None if value != value else value for value in diagram.confidence.tolist()],
            "accuracy": [None if value != value else value for value in diagram.accuracy.tolist()],
        },
    }


def scores_in_parts(
    autoencoder: BaseAutoencoder, data: Labelled, how: Procedure, judge: Judge, seed: int, part: int
) -> dict[str, Any]:
    """Score many images, a part at a time because imputations take memory; the same networks for every part.

    `first` has the scores of the first part. Imputations are classified with the observed half put back.
    """
    each, others = [], []
    for x in data.x.split(part):
        imputed = filled_in(autoencoder, x, judge.missing, how, judge.training, torch.Generator().manual_seed(seed))
        each.append(probabilities(imputed.samples, judge.classifier))
        others.append((len(x), {**errors(imputed, x).summary(), **_spread_and_coverage(imputed, x)}))
    total = sum(count for count, _ in others)
    averaged = {name: sum(count * one[name] for count, one in others) / total for name in others[0][1]}
    return {
        "put_back": scores_of(torch.cat(each, 1), data.y),
        "first": scores_of(each[0], data.y[:part]),
        "errors": {name: value for name, value in averaged.items() if name not in ("spread", "coverage")},
        "spread": averaged["spread"],
        "coverage": averaged["coverage"],
        "versions": how.versions,
    }


def _spread_and_coverage(imputed: Imputation, original: Tensor) -> dict[str, float]:
    """Compute the mean standard deviation of missing pixels and the coverage of their 90 % intervals."""
    hidden = imputed.missing
    levels = coverage(imputed.mean[hidden], imputed.total_variance[hidden], original[hidden], levels=(0.9,))
    return {"spread": float(imputed.std[hidden].mean()), "coverage": levels[0.9]}


def references(judge: Judge, neighbours: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Score methods without an autoencoder on the test images.

    The last one copies the upper half of the training images whose lower halves are nearest (a "hot deck").
    """
    x, y, missing = judge.test.x, judge.test.y, judge.missing
    noisy = torch.where(missing, minmax_noise(x, torch.Generator().manual_seed(seed)), x)
    averaged = torch.where(missing, judge.training.mean(0), x)
    black = torch.where(missing, 0.0, x)
    nearest = nearest_by_observed(x, judge.training, missing, neighbours)
    copied = torch.where(missing, judge.training[nearest.T], x)
    plain = judge.classifier
    scored = {
        "classifier, complete image": classified(x.unsqueeze(0), y, plain),
        "classifier, upper half noise": classified(noisy.unsqueeze(0), y, plain),
        "classifier, upper half of the mean image": classified(averaged.unsqueeze(0), y, plain),
        "classifier, upper half black": classified(black.unsqueeze(0), y, plain),
        "classifier trained on lower halves": classified(black.unsqueeze(0), y, judge.half_classifier),
        f"{neighbours} nearest training images": classified(copied, y, plain),
    }
    squared = (copied.mean(0) - x).square()
    scored[f"{neighbours} nearest training images"]["missing_of_mean"] = float(squared.flatten(1).sum(1).mean())
    return scored


def nearest_by_observed(x: Tensor, training: Tensor, missing: Tensor, count: int) -> Tensor:
    """Return rows `[B, count]` of the training images nearest in the observed pixels."""
    seen = ~missing.flatten()
    distance = torch.cdist(x.flatten(1)[:, seen], training.flatten(1)[:, seen])
    return distance.topk(count, largest=False).indices


def class_shares(images: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Compute class shares of generated images `[S1, n, ...]`, their entropy in bits, and the mean confidence."""
    probs = class_probabilities(classifier, images.flatten(0, 1).unsqueeze(0))
    shares = torch.bincount(probs.argmax(1), minlength=probs.shape[1]).double() / len(probs)
    entropy = -float(torch.special.xlogy(shares, shares).sum()) / math.log(2)
    per_start = probs.argmax(1).view(images.shape[:2])
    return {
        "shares": shares.tolist(),
        "entropy_bits": entropy,
        "confidence": float(probs.amax(1).double().mean()),
        "several_classes": float((per_start != per_start[0]).any(0).double().mean()),
    }
