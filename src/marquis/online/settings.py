"""Declare the options of the online learner, and the published settings by name (docs/method/online.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from marquis.arguments import checked_methods
from marquis.choices import choose
from marquis.errors import DataError
from marquis.options import option, rename_options

STRUCTURES = ("diagonal", "kronecker", "block", "full")
CHOICES = {
    "rule": ("lae", "redux", "van", "nng", "noisy-adam"),
    "scale": ("batch", "dataset"),
    "curvature_at": ("sample", "mean"),
    "noise_groups": ("scalar", "channel", "output"),
}
"""Options that are one of some names."""
NUMBERS = {
    "forgetting": (("batch", "learning-rate"), False),
    "initial": (("data",), False),
    "noise_precision": (("learnt",), False),
    "prior_precision": (("learnt",), True),
    "posterior_temperature": ((), False),
    "factor": ((), False),
}
"""Options that are positive numbers: the names they may be instead, and whether 0 is allowed."""
NEW_NAMES = {"temperature": "posterior_temperature"}
"""Present names of options that were called otherwise."""


def _number_or(name: str, value: Any, names: tuple[str, ...], zero: bool) -> Any:
    """Return a positive number as it is, or the word that a string stands for."""
    if isinstance(value, str) and names:
        return choose(name, value, names, error=DataError, hint="Or pass a number.")
    if isinstance(value, str) or not (0 < value < float("inf") or (zero and value == 0)):
        number = "number from 0 on" if zero else "positive number"
        raise DataError(f"{name}={value!r}: a {number}{f' or {names[0]!r}' if names else ''}.")
    return value


@checked_methods
@dataclass(frozen=True)
class OnlineSettings:
    """Hold all options of the online learner; immutable.

    The keywords of `OnlineLaplace` and of `LaplacianAutoencoder`, the options of `marquis train` and the entries of
    configuration files are these fields.

    The defaults are those of our ablation (`marquis reproduce claims`): learnt noise, a weak fixed prior and a cold
    posterior. On small data a prior precision learnt from the evidence of a diagonal posterior drives the weights
    towards zero, and at posterior temperature 1 that posterior underfits: both lose in held-out likelihood there.

    The update rules are in docs/method/online.md#update-rules, the presets in docs/method/online.md#presets.
    """

    structure: str = option("diagonal", "Structure of the curvature: diagonal, kronecker, block or full.")
    estimator: str = option(
        "sketched",
        "Estimator of the curvature: sketched or exact; for a diagonal also approximate or mixed.",
        shown="sketched; lae-posthoc by the number of outputs",
    )
    rule: str = option("lae", "Update rule of the running curvature: lae, redux, van, nng or noisy-adam.")
    forgetting: float | Literal["batch", "learning-rate"] = option(
        "batch", "Forgetting rate: a number, batch (batch size / data set size, a memory of an epoch) or learning-rate."
    )
    scale: Literal["batch", "dataset"] = option(
        "batch", "Sum a batch's curvature over the batch, or rescale it to the dataset."
    )
    factor: float = option(1.0, "Constant factor on the curvature, in addition to the noise precision.")
    curvature_at: Literal["sample", "mean"] = option(
        "sample", "Compute the curvature at the sampled weights (sample) or at the mean weights (mean)."
    )
    initial: float | Literal["data"] = option(
        100.0, "Initial value of the curvature: a number, or data for the size of the data set."
    )
    noise_precision: float | Literal["learnt"] = option(
        "learnt", "Noise precision of a Gaussian likelihood: a number or learnt."
    )
    noise_groups: Literal["scalar", "channel", "output"] = option(
        "scalar",
        "Learn one noise precision (scalar), one per channel (dimension 1 of the outputs) or one per output.",
    )
    prior_precision: float | Literal["learnt"] = option(1.0, "Prior precision: a number, 0 for no prior, or learnt.")
    prior_in_loss: bool = option(
        True, "Add the prior's term to the loss, so that mean and covariance belong to one posterior."
    )
    posterior_temperature: float = option(
        0.01, "Temperature of the posterior, a factor on its covariance.", shown="0.01; presets and lae-posthoc 1"
    )
    samples: int = option(1, "Number of sampled networks per step.")
    probes: int = option(1, "Number of random columns of the sketched estimator.")
    every: int = option(
        1, "Number of steps between two curvature updates.", shown="1; other structures than diagonal up to 20"
    )
    width_limit: int = option(512, "Largest width of a layer whose output is treated exactly by the mixed estimator.")

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant, and write names as the package does ("kron" is "kronecker")."""
        names = {"structure": choose("structure", self.structure, STRUCTURES)}
        for name, allowed in CHOICES.items():
            names[name] = choose(name, getattr(self, name), allowed, error=DataError)
        for name, (allowed, zero) in NUMBERS.items():
            names[name] = _number_or(name, getattr(self, name), allowed, zero)
        for name, value in names.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.forgetting, str) and self.forgetting > 1:
            raise DataError(f"forgetting={self.forgetting}: the rate is at most 1.")
        if self.noise_groups != "scalar" and self.noise_precision != "learnt":
            raise DataError(
                f"noise_groups={self.noise_groups!r} is for noise_precision='learnt'; pass noise that is known as "
                "mq.Gaussian(tensor)."
            )
        for name in ("samples", "probes", "every", "width_limit"):
            if int(getattr(self, name)) < 1:
                raise DataError(f"{name}={getattr(self, name)}: at least 1.")

    @classmethod
    def of(cls, preset: str | OnlineSettings | None, options: Mapping[str, Any]) -> OnlineSettings:
        """Return a preset with single options replaced.

        Args:
            preset: None for the defaults, a name of `PRESETS`, or settings.
            options: By name; None keeps the preset's value.

        Raises:
            DataError: An option or a preset is not known.
        """
        options = rename_options(options, NEW_NAMES, "the online learner")
        unknown = sorted(set(options) - {field.name for field in fields(cls)})
        if unknown:
            raise DataError(f"the online learner has no option {', '.join(unknown)}.")
        if isinstance(preset, str):
            preset = PRESETS[choose("preset", preset, PRESETS, error=DataError)]
        return (preset or cls()).changed(options)

    def changed(self, options: Mapping[str, Any]) -> OnlineSettings:
        """Return these settings with every option replaced that is not None."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})


PRESETS = {
    "paper": OnlineSettings(
        curvature_at="mean",
        initial=1.0,
        noise_precision=1.0,
        prior_precision=0.0,
        prior_in_loss=False,
        posterior_temperature=1.0,
    ),
    "paper-code": OnlineSettings(
        forgetting=1e-3,
        scale="dataset",
        factor=0.5,
        initial="data",
        noise_precision=1.0,
        prior_precision=1.0,
        prior_in_loss=False,
        posterior_temperature=1.0,
    ),
}
"""The published settings: the paper's rule where it is coherent, and the constants of its code."""
