"""Train a posterior over the weights: Variational Laplace, mean-field VI and MAP behind one interface.

Each method has `step(x, y)` for your own training loop, `predict(x)`, `elbo(loader)`, `posterior()` and
`parameter_groups(lr)`; `LightningMethod` runs any of them under a Lightning `Trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marquis.lazy import lazy_names
from marquis.variational.architectures import PreactResNet18, mlp, small_cnn
from marquis.variational.map import MAP
from marquis.variational.mean_field import MeanFieldVI
from marquis.variational.smoothness import SmoothnessWarning
from marquis.variational.variational_laplace import VariationalLaplace

if TYPE_CHECKING:
    from marquis.variational.lightning_method import LightningMethod

__all__ = [
    "MAP",
    "LightningMethod",
    "MeanFieldVI",
    "PreactResNet18",
    "SmoothnessWarning",
    "VariationalLaplace",
    "mlp",
    "small_cnn",
]

__getattr__ = lazy_names(__name__, {"LightningMethod": "lightning_method", "Terms": "objective"})
