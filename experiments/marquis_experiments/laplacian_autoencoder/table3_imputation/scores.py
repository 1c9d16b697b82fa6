"""Scores of imputations, by the same classifier for all models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from marquis.tasks.calibration import coverage, reliability
from marquis.tasks.imputation import Imputation, class_probabilities, errors
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import ImputationTask

LEAST = 1e-12
"""Probabilities below this count as this in the negative log-likelihood of the class: 27.6 nats."""


def scores(imputed: Imputation, original: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Compute classification scores, errors, the spread of missing pixels and the coverage of 90 % intervals."""
    hidden = imputed.missing
    levels = coverage(imputed.mean[hidden], imputed.total_variance[hidden], original[hidden], levels=(0.9,))
    return {
        "reconstructions": classified(imputed.reconstructions, labels, classifier),
        "put_back": classified(imputed.samples, labels, classifier),
        "errors": errors(imputed, original).summary(),
        "spread": float(imputed.std[hidden].mean()),
        "coverage": levels[0.9],
        "versions": len(imputed.samples),
    }


def classified(versions: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Score the mean softmax over imputations `[S1, B, ...]` (docs/method/tasks.md), with the reliability diagram.

    `several_classes` is the share of images whose imputations are not all of one class.
    """
    each = torch.stack([class_probabilities(classifier, version.unsqueeze(0)) for version in versions])
    probs, chosen = each.mean(0), each.argmax(2)
    diagram = reliability(probs, labels)
    of_truth = probs.double().gather(1, labels.unsqueeze(1)).clamp_min(LEAST)
    bins = {"confidence": diagram.confidence, "accuracy": diagram.accuracy}
    return {
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "confidence": float(probs.amax(1).double().mean()),
        "ece": diagram.ece,
        "mce": diagram.mce,
        "rmsce": diagram.rmsce,
        "nll": -float(of_truth.log().mean()),
        "several_classes": float((chosen != chosen[0]).any(0).double().mean()),
        "bins": {"count": diagram.count.tolist()}
        | {name: [None if value != value else value for value in each.tolist()] for name, each in bins.items()},
    }


def references(task: ImputationTask, neighbours: int) -> dict[str, dict[str, Any]]:
    """Score methods without an autoencoder on the test images.

    The last one copies the upper half of the training images whose lower halves are nearest (a "hot deck").
    """
    x, y, missing = task.test.x, task.test.y, task.missing
    black = torch.where(missing, 0.0, x)
    nearest = nearest_by_observed(x, task.training, missing, neighbours)
    copied = torch.where(missing, task.training[nearest.T], x)
    return {
        "classifier, complete image": classified(x.unsqueeze(0), y, task.classifier),
        "classifier trained on lower halves": classified(black.unsqueeze(0), y, task.half_classifier),
        f"{neighbours} nearest training images": classified(copied, y, task.classifier),
    }


def nearest_by_observed(x: Tensor, training: Tensor, missing: Tensor, count: int) -> Tensor:
    """Return rows `[B, count]` of the training images nearest in the observed pixels."""
    observed = ~missing.flatten()
    distance = torch.cdist(x.flatten(1)[:, observed], training.flatten(1)[:, observed])
    return distance.topk(count, largest=False).indices


def class_shares(images: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Compute class shares of generated images `[S1, n, ...]`, their entropy in bits, and the mean confidence."""
    probs = class_probabilities(classifier, images.flatten(0, 1).unsqueeze(0))
    shares = torch.bincount(probs.argmax(1), minlength=probs.shape[1]).double() / len(probs)
    entropy = -float(torch.special.xlogy(shares, shares).sum()) / math.log(2)
    return {"shares": shares.tolist(), "entropy_bits": entropy, "confidence": float(probs.amax(1).double().mean())}
