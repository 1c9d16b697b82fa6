"""Hold the result of a prediction: one object for regression, classification and intermediate tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from marquis import notebook
from marquis.arguments import AtLeastOne, Share, checked, checked_methods
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import all_finite, check_finite
from marquis.likelihoods import Bernoulli, Categorical, Likelihood, PointwiseLikelihood
from marquis.predictive.links import label_entropy, point
from marquis.randomness import new_generator

Sampler = Callable[[int, "torch.Generator | None"], Tensor]

INFORMATION_SAMPLES = 200
"""Draws from which the mutual information of a closed-form prediction is computed."""


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Hold the prediction for new data; what does not apply is None.

    Attributes:
        mean: mean of the outputs (logits for classification) `[B, *rest]`.
        variance: their variance that comes from not knowing the weights.
        noise_variance: variance of a label around the outputs, kept apart: more data does not shrink it.
        probs: probabilities, averaged over the uncertainty of the outputs.
        covariance: of the flattened outputs of each input, `[B, O, O]`; over all inputs with joint=True,
            `[B O, B O]`.
        method: how it was computed, for instance "linearised (closed form)".
        likelihood: p(y|f), or None for an intermediate tensor.
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor | None = None
    probs: Tensor | None = None
    covariance: Tensor | None = None
    method: str = ""
    likelihood: Likelihood | None = None
    _draw: Sampler | None = None
    _expected_entropy: Tensor | None = None
    _draw_apart: Sampler | None = None  # outputs of every input by itself; cheaper, and needs no inputs

    def __post_init__(self) -> None:
        """Refuse variances of another shape than the mean, which would otherwise broadcast, or fail later."""
        if not self.mean.is_floating_point():
            raise DataError(f"mean is {self.mean.dtype}; outputs are real floating-point numbers.")
        for name, value in (("variance", self.variance), ("noise_variance", self.noise_variance)):
            fits = value is None or all(
                size in (1, wanted) for size, wanted in zip(value.shape[::-1], self.mean.shape[::-1], strict=False)
            )
            if value is not None and (not fits or value.ndim > self.mean.ndim):
                raise DataError(f"{name} has shape {list(value.shape)}, the mean {list(self.mean.shape)}.")

    @property
    def total_variance(self) -> Tensor:
        """Return the variance of a new observation: `variance` plus `noise_variance` where there is one."""
        return self.variance if self.noise_variance is None else self.variance + self.noise_variance

    @property
    def std(self) -> Tensor:
        """Return the square root of `total_variance`."""
        return self.total_variance.sqrt()

    @checked
    def sample(self, n: AtLeastOne, generator: torch.Generator | None = None, *, labels: bool = False) -> Tensor:
        """Return `n` samples of the outputs `[n, B, *rest]`: functions, the same weights at every input.

        Args:
            n: Number of samples.
            generator: source of randomness.
            labels: draw labels (with noise, or class numbers) around these outputs instead.

        Cost: one forward-mode pass per draw, or one forward pass for method="sampled".
        """
        if self._draw is None:
            raise UnsupportedOperationError(
                "this prediction has kept nothing to draw from, as it comes from a loader or from function space; call "
                "predict on a batch, or predict_loader(..., keep_inputs=True)."
            )
        outputs = self._draw(n, generator)
        if not labels:
            return outputs
        if self.likelihood is None:
            raise UnsupportedOperationError("an intermediate tensor has no labels to draw.")
        flat = self.likelihood.sample(outputs.flatten(0, 1), generator)
        return flat.unflatten(0, outputs.shape[:2])

    @checked
    def interval(self, level: Share = 0.95, *, noise: bool = True) -> tuple[Tensor, Tensor]:
        """Return the central interval that holds a share `level` of the probability, per entry: (lower, upper).

        For regression of a new observation (with `noise`) or of the function (without), from mean and variance; for
        Bernoulli of the success probability, through the monotone sigmoid.

        Raises:
            UnsupportedOperationError: several classes: the quantiles of one logit say nothing about its probability.
        """
        width = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
        if self.probs is None:
            spread = width * (self.total_variance if noise else self.variance).sqrt()
            return self.mean - spread, self.mean + spread
        if not isinstance(self.likelihood, Bernoulli):
            raise UnsupportedOperationError(
                "interval is for regression and Bernoulli; for several classes take quantiles of "
                "prediction.sample(n).softmax(-1)."
            )
        spread = width * self.variance.sqrt()
        return (self.mean - spread).sigmoid(), (self.mean + spread).sigmoid()

    @checked
    def log_prob(self, y: Tensor) -> Tensor:
        """Return the log predictive density of labels per sample, `[B]`: the sum of the marginals' logarithms.

        Gaussian noise: `N(mean, total_variance)` per output. Classes: the logarithm of `probs`. Counts: the likelihood
        averaged over the Gaussian outputs by quadrature.
        """
        check_finite(y, "y")
        if self.likelihood is not None and y.shape != (expected := self.likelihood.target_shape(self.mean)):
            raise DataError(f"labels have shape {list(y.shape)}, the prediction is about {list(expected)}.")
        if isinstance(self.likelihood, Categorical) and self.probs is not None:
            dim = self.likelihood.dim % self.probs.dim()
            each = self.probs.log().gather(dim, y.long().unsqueeze(dim)).squeeze(dim)
        elif isinstance(self.likelihood, Bernoulli) and self.probs is not None:
            each = -torch.nn.functional.binary_cross_entropy(self.probs, y.to(self.probs.dtype), reduction="none")
        elif self.noise_variance is not None:
            variance = self.total_variance
            each = -0.5 * ((y.to(self.mean.dtype) - self.mean).square() / variance + (2 * math.pi * variance).log())
        elif isinstance(self.likelihood, PointwiseLikelihood) and self.likelihood.coupling is None:
            each = _averaged_over_outputs(self.likelihood, self.mean, self.variance, y)
        else:
            raise UnsupportedOperationError(f"the predictive density of labels is not known for {self.likelihood}.")
        if not all_finite(each):
            raise DataError(f"the density of these labels is 0 in {each.dtype}: they are too far from the prediction.")
        return each.flatten(1).sum(1) if each.dim() > 1 else each

    @cached_property
    def entropy(self) -> Tensor:
        """Return the entropy of every label in nats (differential, for Gaussian noise): the total uncertainty."""
        if self.probs is not None:
            return label_entropy(self.likelihood, self.probs)
        return 0.5 * (2 * math.pi * math.e * self.total_variance).log()

    @cached_property
    def mutual_information(self) -> Tensor:
        """Return the mutual information of every label and the weights, in nats: what more data could still explain.

        Gaussian noise: `1/2 log(1 + variance / noise_variance)`, exact. Classes: entropy of the averaged probabilities
        minus average entropy, both over the same samples (those of the prediction, or 200 of a fixed seed).
        """
        if self.noise_variance is not None:
            return 0.5 * torch.log1p(self.variance / self.noise_variance)
        if self.probs is None or self.likelihood is None:
            raise UnsupportedOperationError("mutual information needs a likelihood; an intermediate tensor has none.")
        if self._expected_entropy is not None:
            return (self.entropy - self._expected_entropy).clamp(min=0)
        generator = torch.Generator().manual_seed(0)
        draw = self.sample if self._draw_apart is None else self._draw_apart
        outputs = draw(INFORMATION_SAMPLES, generator)
        probs = point(self.likelihood, outputs.flatten(0, 1)).probs
        assert probs is not None
        each = label_entropy(self.likelihood, probs).unflatten(0, outputs.shape[:2]).mean(0)
        averaged = probs.unflatten(0, outputs.shape[:2]).mean(0)
        return (label_entropy(self.likelihood, averaged) - each).clamp(min=0)

    @staticmethod
    def join(parts: Sequence[Prediction], keep_draws: bool = False) -> Prediction:
        """Return predictions of consecutive batches as one."""
        first = parts[0]

        def joined(name: str) -> Tensor | None:
            pieces = [getattr(part, name) for part in parts]
            return None if any(piece is None for piece in pieces) else torch.cat(pieces)

        def draw(n: int, generator: torch.Generator | None) -> Tensor:
            # Every batch samples from the same state, hence the same weights.
            generator = new_generator() if generator is None else generator
            state = generator.get_state()
            outputs = []
            for part in parts:
                generator.set_state(state)
                outputs.append(part.sample(n, generator))
            return torch.cat(outputs, 1)

        def draw_apart(n: int, generator: torch.Generator | None) -> Tensor:
            return torch.cat([part._draw_apart(n, generator) for part in parts if part._draw_apart is not None], 1)

        apart = all(part._draw_apart is not None for part in parts)
        mean, variance = joined("mean"), joined("variance")
        assert mean is not None and variance is not None
        return Prediction(
            mean,
            variance,
            joined("noise_variance"),
            joined("probs"),
            joined("covariance"),
            first.method,
            first.likelihood,
            draw if keep_draws else None,
            joined("_expected_entropy"),
            draw_apart if apart else None,
        )

    def __repr__(self) -> str:
        """Show shape, method and what there is."""
        there = [n for n in ("noise_variance", "probs", "covariance") if getattr(self, n) is not None]
        return f"Prediction({list(self.mean.shape)}, {self.method}{', with ' + ', '.join(there) if there else ''})"

    def _repr_html_(self) -> str:
        """Show the first inputs: probabilities, or mean and standard deviations, of their first outputs."""
        count = len(self.mean)
        parts = {"mean": self.mean, "std": self.std} if self.probs is None else {"probability": self.probs}
        if self.probs is None and self.noise_variance is not None:
            parts["std without noise"] = self.variance.sqrt()
        columns = {
            f"{name}{'' if part[:1].numel() == 1 else f' {j}'}": part.detach().reshape(count, -1)[: notebook.ROWS, j]
            for name, part in parts.items()
            for j in range(min(part[:1].numel(), notebook.ROWS))
        }
        rows = torch.stack(list(columns.values()), 1).tolist() if count else []
        return notebook.html_table(repr(self), list(columns), rows, count)


def _averaged_over_outputs(likelihood: PointwiseLikelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Return `log E p(y|f)` per label for independent Gaussian outputs, by 64 Gauss-Hermite nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    each = [likelihood.entry_log_prob(mean + float(node) * variance.sqrt(), y) for node in nodes]
    weights = torch.as_tensor(weights / weights.sum(), dtype=mean.dtype, device=mean.device)
    return torch.logsumexp(torch.stack(each, -1) + weights.log(), -1)
