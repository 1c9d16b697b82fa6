"""Compute the squared-gradient regulariser and its gradient by four methods (docs/method/variational.md#gradients).

    R(μ, σ) = (S/2) Σ_p σ_p² ḡ_p²,    ḡ = ∇_w (1/S) Σ_i log p(ỹ_i|x_i, w) at μ,    ỹ_i ~ p(.|x_i, μ)

With the labels held fixed, `∂R/∂μ = S H̃ v` with `v = σ²∘ḡ` and `H̃` the Hessian of the mean log-likelihood of ỹ: one
Hessian-vector product. Each method below returns the gradient of the *whole* data term, `-(1/S) Σ log p(y_i) + R`,
because each can take the true labels along in a pass that it needs anyway.

Counting products of a layer's size (a plain step has 3: forward 1, backward 2):

| method | passes | products | memory |
| --- | --- | --- | --- |
| `double-backward` | forward, backward under a graph, backward through both | 9 | both graphs |
| `forward-over-reverse` | forward, backward, then both with tangents | 9 | both, with tangents |
| `central` | forward, backward, then both at `μ + hv` and at `μ - hv` | 9 | plain training |
| `one-sided` | forward, backward, then both at `μ + hv` or at `μ - hv`: a coin decides | 6 | plain training |

`one-sided` averages over its coin to `central`, exactly: `[g(μ+hv) - g(μ)]/h` and `[g(μ) - g(μ-hv)]/h` have the
central difference as their mean, and so has the gradient of the true labels, which is taken at the displaced point.
What the coin adds is noise of order h, far below that of the sampled labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from marquis.errors import NumericalError
from marquis.likelihoods import Likelihood

GradientMethod = Literal["one-sided", "central", "double-backward", "forward-over-reverse"]
GRADIENTS: tuple[GradientMethod, ...] = get_args(GradientMethod)

Run = Callable[[Sequence[Tensor]], Tensor]
"""The network on the minibatch at other parameters, as an auxiliary pass that leaves no trace."""


@dataclass(frozen=True)
class DataTerm:
    """Hold value and gradients of `-(1/S) Σ log p(y_i) + R` for one minibatch.

    Attributes:
        log_likelihood: `(1/S) Σ log p(y_i|x_i, μ)`.
        regulariser: R.
        mean_gradient: Gradient in μ, one tensor per parameter.
        log_sigma_gradient: Gradient in log σ: `S σ² ḡ²`, needs no second derivative.
    """

    log_likelihood: Tensor
    regulariser: Tensor
    mean_gradient: list[Tensor]
    log_sigma_gradient: list[Tensor]


@dataclass(frozen=True)
class LabelledOutputs:
    """Hold the labels of a minibatch, the network's output at the mean, and the likelihood that joins them.

    Attributes:
        likelihood: p(y|f).
        outputs: f at the mean, with its graph.
        labels: The true labels, or None to compute only the regulariser (a sub-batch).
        sampled: Labels sampled from the model at these outputs.
        mask: Which labels were observed, as in `Likelihood.log_prob`.
    """

    likelihood: Likelihood
    outputs: Tensor
    labels: Tensor | None
    sampled: Tensor
    mask: Tensor | None = None

    @property
    def size(self) -> int:
        """Return S, the batch size."""
        return self.outputs.shape[0]

    def fit(self, outputs: Tensor) -> Tensor:
        """Return the mean log-likelihood of the true labels at these outputs."""
        if self.labels is None:
            return outputs.new_zeros(())
        return self.likelihood.log_prob(outputs, self.labels, self.mask).mean()

    def sampled_fit(self, outputs: Tensor) -> Tensor:
        """Return the mean log-likelihood of the sampled labels at these outputs."""
        return self.likelihood.log_prob(outputs, self.sampled, self.mask).mean()


def data_term(
    batch: LabelledOutputs,
    means: Sequence[Tensor],
    log_sigmas: Sequence[Tensor],
    run: Run,
    *,
    method: str = "one-sided",
    side: int = 1,
    epsilon: float | None = None,
    score_correction: bool = False,
) -> DataTerm:
    """Return value and gradient of the data term by one of the methods at the top of this module.

    Args:
        batch: Labels, and outputs at `means` with their graph.
        means: μ, leaves of that graph.
        log_sigmas: log σ, one tensor per mean.
        run: Repeats the forward pass at other parameters.
        method: One of `GRADIENTS`.
        side: For `one-sided`: +1 or -1, the side on which the difference is taken.
        epsilon: For the differences: length of the step `h v`, as a share of the length of μ; see `step_length`.
        score_correction: Add the term that holding the labels fixed leaves out, `R S ḡ`: its mean is the rest of the
            gradient of the regulariser's mean (docs/method/variational.md#stop-gradient-bias). It vanishes on average
            for a Gaussian likelihood.
    """
    means = list(means)
    exact = method == "double-backward"
    with torch.enable_grad():
        drawn_gradient = _gradients(batch.sampled_fit(batch.outputs), means, create_graph=exact, retain_graph=exact)
        fit = batch.fit(batch.outputs)
    flat = [g.detach() for g in drawn_gradient]
    direction = [(2 * s.detach()).exp_().mul_(g) for s, g in zip(log_sigmas, flat, strict=True)]
    value = 0.5 * batch.size * torch.stack([(v * g).sum() for v, g in zip(direction, flat, strict=True)]).sum()
    if exact:
        with torch.enable_grad():
            # The gradient of v·ḡ with v held fixed is H̃ v.
            twice = torch.stack([(v * g).sum() for v, g in zip(direction, drawn_gradient, strict=True)]).sum()
            gradient = _gradients(batch.size * twice - fit, means)
    elif method == "forward-over-reverse":
        gradient = _forward_over_reverse(batch, means, direction, run)
    else:
        sides = (1, -1) if method == "central" else (side,)
        gradient = _differences(batch, means, direction, flat, run, sides, epsilon)
    if score_correction:
        gradient = [g + value * batch.size * score for g, score in zip(gradient, flat, strict=True)]
    width_gradient = [v.mul_(g).mul_(batch.size) for v, g in zip(direction, flat, strict=True)]
    return DataTerm(fit.detach(), value, gradient, width_gradient)


def _forward_over_reverse(
    batch: LabelledOutputs, means: Sequence[Tensor], direction: Sequence[Tensor], run: Run
) -> list[Tensor]:
    """Return `S H̃ v - ∇fit` as the tangent of one gradient.

    The true labels come along behind a factor that is 0 and whose tangent is 1: by the product rule the tangent of
    their gradient is then their gradient itself.
    """
    with torch.enable_grad(), forward_ad.dual_level():
        leaves = [mean.detach().requires_grad_() for mean in means]
        duals = [forward_ad.make_dual(leaf, v) for leaf, v in zip(leaves, direction, strict=True)]
        outputs = run(duals)
        rising = forward_ad.make_dual(outputs.new_zeros(()), outputs.new_ones(()))
        gradients = _gradients(batch.size * batch.sampled_fit(outputs) - rising * batch.fit(outputs), duals)
        tangents = [forward_ad.unpack_dual(g).tangent for g in gradients]
        return [torch.zeros_like(v) if t is None else t.detach() for t, v in zip(tangents, direction, strict=True)]


def _differences(
    batch: LabelledOutputs,
    means: Sequence[Tensor],
    direction: Sequence[Tensor],
    gradient_here: Sequence[Tensor],
    run: Run,
    sides: Sequence[int],
    epsilon: float | None,
) -> list[Tensor]:
    """Return `S H̃ v` and the true labels' gradient from ordinary gradients at one or two displaced points."""
    length = step_length(means, direction, epsilon, sides=len(sides))
    if length == 0:  # nothing is uncertain, or the sampled labels fit perfectly: only the true labels are left
        sides, factor = (1,), 0.0
    else:
        factor = batch.size / length
    total: list[Tensor] = []
    for side in sides:
        with torch.enable_grad():
            there = [
                torch.add(mean.detach(), v, alpha=side * length).requires_grad_()
                for mean, v in zip(means, direction, strict=True)
            ]
            outputs = run(there)
            loss = -batch.fit(outputs)
            if factor:
                loss = loss + side * factor * batch.sampled_fit(outputs)
            gradient = _gradients(loss, there)
        del outputs, loss, there
        if len(sides) == 1 and factor:
            torch._foreach_add_(gradient, list(gradient_here), alpha=-side * factor)
        if total:
            torch._foreach_add_(total, gradient)
        else:
            total = gradient
        del gradient
    if len(sides) > 1:
        torch._foreach_div_(total, len(sides))
    return total


DEFAULT_EPSILON = {
    (torch.float64, 1): 1e-7,
    (torch.float64, 2): 1e-6,
    (torch.float32, 1): 3e-5,
    (torch.float32, 2): 1e-4,
}
"""Relative step by dtype and number of sides, between truncation (of order h for one side, h² for two) and rounding.

Measured in single precision on the CNN and the narrow ResNet, against double backward in double precision: one side is
off by 0.1-0.6 % of the gradient, with a sign that the coin makes random; two sides by 0.001-0.04 %.
"""


def step_length(
    means: Sequence[Tensor], direction: Sequence[Tensor], epsilon: float | None = None, sides: int = 2
) -> float:
    """Return the h for which `h v` is `epsilon` times as long as μ (or as 1 if that is longer); 0 if v is 0.

    Weights are rounded relative to their own size, hence the relative length.

    Raises:
        NumericalError: The gradient of the sampled labels is not finite.
    """
    if epsilon is None:
        epsilon = DEFAULT_EPSILON.get((means[0].dtype, sides), 1e-2)  # half precision has few digits to spare
    norm = float(torch.stack(torch._foreach_norm(list(direction))).norm())
    if norm == 0:
        return 0.0
    if not norm < float("inf"):
        raise NumericalError(
            "the gradient of the sampled labels, times σ², is infinite or NaN: training has diverged; lower the "
            "learning rate or its multiplier for log sigma."
        )
    scale = float(torch.stack(torch._foreach_norm([mean.detach() for mean in means])).norm())
    return epsilon * max(scale, 1.0) / norm


def _gradients(value: Tensor, inputs: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """Return gradients, zero where an input was not used."""
    if not value.requires_grad:
        return [torch.zeros_like(i) for i in inputs]
    gradients = torch.autograd.grad(value, list(inputs), allow_unused=True, **options)
    return [torch.zeros_like(i) if g is None else g for g, i in zip(gradients, inputs, strict=True)]


def trace_by_products(
    forward: Callable[[Sequence[Tensor]], Tensor],
    means: Sequence[Tensor],
    sigmas: Sequence[Tensor],
    likelihood: Likelihood,
    signs: Sequence[Tensor],
) -> Tensor:
    """Return `½ ‖S_L(f)ᵀ J (σ∘e)‖²` summed over the batch: its mean over e with `E[e eᵀ] = I` is `½ tr(Σ F)`.

    Value only, no label sampling. Its derivative in log σ would be far noisier than that of the label-sampled form
    (docs/method/variational.md#stop-gradient-bias), so nothing here trains with it. Cost: one Jacobian-vector product.

    Args:
        forward: Outputs of the network as a function of the parameters.
        means: μ.
        sigmas: σ.
        likelihood: Whose output Hessian `S_L S_Lᵀ` is used.
        signs: e, one tensor per parameter.
    """
    tangents = tuple(sigma * e for sigma, e in zip(sigmas, signs, strict=True))
    outputs, change, *_ = torch.func.jvp(lambda *p: forward(p), tuple(m.detach() for m in means), tangents)
    outputs = outputs.detach()
    zero = outputs.new_zeros(1, outputs.shape[0], *likelihood.root_shape(outputs))
    # S_L is linear in its coefficients, so its transpose is one reverse pass.
    _, transpose, *_ = torch.func.vjp(lambda c: likelihood.apply_sqrt(outputs, c), zero)
    (coordinates,) = transpose(change.unsqueeze(0))
    return 0.5 * coordinates.square().sum().detach()
