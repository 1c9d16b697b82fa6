"""How the online learner treats curvature: its switches, and the published settings by name (methods.md 6.1-6.3)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from marquis.errors import DataError

RULES = ("lae", "redux", "van", "nng", "noisy-adam")
Forgetting = float | Literal["batch", "learning-rate"]


def _one_of(what: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise DataError(f"{what}={given!r} is not known; choose one of {', '.join(map(repr, allowed))}.")


def _number_or(what: str, given: float | str, word: str | None, zero: bool) -> None:
    if isinstance(given, str):
        if given == word:
            return
    elif 0 < given < float("inf") or (zero and given == 0):
        return
    raise DataError(
        f"{what}={given!r}: a {'number from 0 on' if zero else 'positive number'}{f' or {word!r}' if word else ''}."
    )


@dataclass(frozen=True)
class Settings:
    """The switches of methods.md 6.1; a value.

    The defaults are those of our ablation (`marquis reproduce claims`): noise learnt, a weak fixed prior and a cold
    posterior. On small data a prior precision learnt from the evidence of a diagonal posterior drives the weights
    towards zero, and at temperature 1 that posterior underfits: both lose in held-out likelihood there.

    Attributes:
        rule: How a batch's curvature G enters the running H (methods.md 6.2).
        forgetting: α: a number, "batch" for B/N (a memory of one epoch), or "learning-rate".
        scale: Whether a batch's curvature counts as the sum over the "batch", or is blown up to the "dataset" (N/B).
        factor: c, constant factor on the curvature besides the noise precision.
        curvature_at: "sample" (an unbiased estimate of the expectation under the posterior) or "mean".
        initial: H_0, a number, or "data" for N.
        noise_precision: β of a Gaussian likelihood: a number, or "learnt".
        prior_precision: δ: a number, 0 for no prior at all, or "learnt".
        prior_in_loss: Whether `δ/(2N) |μ|²` is part of the loss, so that mean and covariance belong to one posterior.
        temperature: T, multiplies the covariance.
        samples: Networks drawn per step.
        probes: Random columns of the `sketched` estimator.
        every: Steps between two curvature updates; the stationary point does not depend on it.
    """

    rule: str = "lae"
    forgetting: Forgetting = "batch"
    scale: Literal["batch", "dataset"] = "batch"
    factor: float = 1.0
    curvature_at: Literal["sample", "mean"] = "sample"
    initial: float | Literal["data"] = 100.0
    noise_precision: float | Literal["learnt"] = "learnt"
    prior_precision: float | Literal["learnt"] = 1.0
    prior_in_loss: bool = True
    temperature: float = 0.01
    samples: int = 1
    probes: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _one_of("rule", self.rule, RULES)
        _one_of("scale", self.scale, ("batch", "dataset"))
        _one_of("curvature_at", self.curvature_at, ("sample", "mean"))
        if isinstance(self.forgetting, str):
            _one_of("forgetting", self.forgetting, ("batch", "learning-rate"))
        elif not 0 < self.forgetting <= 1:
            raise DataError(f"forgetting={self.forgetting}: the rate is above 0 and at most 1.")
        for name, word, low in (("initial", "data", False), ("noise_precision", "learnt", False)):
            _number_or(name, getattr(self, name), word, low)
        _number_or("prior_precision", self.prior_precision, "learnt", True)
        _number_or("temperature", self.temperature, None, False)
        _number_or("factor", self.factor, None, False)
        for name in ("samples", "probes", "every"):
            if int(getattr(self, name)) < 1:
                raise DataError(f"{name}={getattr(self, name)}: at least 1.")

    def changed(self, given: dict[str, Any]) -> Settings:
        """With the entries that are not None."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


PRESETS = {
    "paper": Settings(
        curvature_at="mean", initial=1.0, noise_precision=1.0, prior_precision=0.0, prior_in_loss=False, temperature=1.0
    ),
    "paper-code": Settings(
        forgetting=1e-3,
        scale="dataset",
        factor=0.5,
        initial="data",
        noise_precision=1.0,
        prior_precision=1.0,
        prior_in_loss=False,
        temperature=1.0,
    ),
}
"""The published settings: the paper's rule where it is coherent, and the constants of its code (methods.md 6.3)."""


def settings_of(preset: str | None, given: dict[str, Any]) -> Settings:
    """The default, or a preset by name, with single switches replaced."""
    unknown = set(given) - {field.name for field in fields(Settings)}
    if unknown:
        raise DataError(f"the online learner has no option {sorted(unknown)}.")
    if preset is not None:
        _one_of("preset", preset, tuple(PRESETS))
    return (Settings() if preset is None else PRESETS[preset]).changed(given)
