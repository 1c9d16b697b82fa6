"""Training a posterior over the weights: Variational Laplace, mean-field VI and MAP behind one interface.

Each method has `step(x, y)` for a training loop of one's own, `predict(x)`, `elbo(loader)`, `posterior()` and
`parameter_groups(lr)`; `LightningMethod` runs any of them under a Lightning `Trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marquis.variational.architectures import PreactResNet18, mlp, small_cnn
from marquis.variational.map import MAP
from marquis.variational.mean_field import MeanFieldVI
from marquis.variational.objective import Terms
from marquis.variational.refusals import SmoothnessWarning
from marquis.variational.variational_laplace import VariationalLaplace

if TYPE_CHECKING:
    from marquis.variational.modules import LightningMethod

__all__ = [
    "MAP",
    "LightningMethod",
    "MeanFieldVI",
    "PreactResNet18",
    "SmoothnessWarning",
    "Terms",
    "VariationalLaplace",
    "mlp",
    "small_cnn",
]


def __getattr__(name: str) -> Any:
    """`LightningMethod` is imported when first asked for, because it needs Lightning."""
    if name == "LightningMethod":
        from marquis.variational.modules import LightningMethod

        return LightningMethod
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
