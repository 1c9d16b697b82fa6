"""Define the optimiser of the rule "noisy-adam": the mean moves in the metric of the running curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from marquis.arguments import checked_methods
from marquis.errors import UnsupportedOperationError
from marquis.online.learner import OnlineLaplace


@checked_methods
class NoisyAdam(torch.optim.Optimizer):
    """Move the mean by `μ <- μ - lr m̂ / (f + δ/N + damping)` with `f = β H / N` of the learner (Zhang et al. 2018).

    Unlike Adam it divides by the curvature itself, not by its square root, and uses no second average: the learner's
    is that average. The constants are those of docs/method/online.md#update-rules; the original paper was not at hand.

    Args:
        online: A learner with `rule="noisy-adam"`; its `step` is called before this one's.
        lr: Learning rate.
        momentum: Decay rate β₁ of the averaged gradient.
        damping: Constant γ_ex that is added to the denominator only.
    """

    def __init__(self, online: OnlineLaplace, lr: float = 1e-3, momentum: float = 0.9, damping: float = 1e-4) -> None:
        if online.settings.rule != "noisy-adam":
            raise UnsupportedOperationError(
                f"NoisyAdam needs rule='noisy-adam', the learner has {online.settings.rule!r}."
            )
        super().__init__(list(online.means().values()), {"lr": lr, "momentum": momentum, "damping": damping})
        self.online = online

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,), state, number = self.param_groups, self.online.state, self.online.num_data
        assert state.curvature is not None
        values = self.online.layout.unflatten(state.curvature.diagonal())
        constant = (state.noise_precision * state.initial + state.prior_precision) / number + group["damping"]
        for (name, mean), parameter in zip(self.online.means().items(), group["params"], strict=True):
            if parameter.grad is None:
                continue
            moments = self.state[parameter]
            moments["step"] = moments.get("step", 0) + 1
            average = moments.setdefault("average", torch.zeros_like(mean))
            average.lerp_(parameter.grad, 1 - group["momentum"])
            metric = values[name] * (state.noise_precision / number) + constant
            parameter.addcdiv_(average, metric, value=-group["lr"] / (1 - group["momentum"] ** moments["step"]))
        return loss
