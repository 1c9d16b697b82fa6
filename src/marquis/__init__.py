"""Estimate the uncertainty of neural networks from the curvature of their loss.

`import marquis as mq` costs next to nothing: torch and everything else is loaded when a name is first used
(PEP 562), so the command line starts at once and a program pays only for what it touches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; the table below is what runs
    from marquis import (
        autoencoders,
        conformal,
        curvature,
        data,
        errors,
        evidence,
        likelihoods,
        plots,
        predictive,
        report,
        scores,
        structures,
        tasks,
        tomography,
        variational,
    )
    from marquis.errors import (
        DataError,
        MarquisError,
        MemoryBudgetError,
        ModelMismatchError,
        NumericalError,
        StorageError,
        UnsupportedOperationError,
    )
    from marquis.explorer import explore
    from marquis.laplace import Laplace, load
    from marquis.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Likelihood
    from marquis.online import OnlineLaplace
    from marquis.posterior import Posterior
    from marquis.priors import Prior
    from marquis.subnetwork import Subnetwork
    from marquis.tangent_kernel import kernel

__version__ = "0.1.0"

# Where each public name lives. A module's own name stands for the module itself.
_HOMES = {
    "autoencoders": "marquis.autoencoders",
    "conformal": "marquis.conformal",
    "curvature": "marquis.curvature",
    "data": "marquis.data",
    "errors": "marquis.errors",
    "evidence": "marquis.evidence",
    "likelihoods": "marquis.likelihoods",
    "plots": "marquis.plots",
    "predictive": "marquis.predictive",
    "report": "marquis.report",
    "scores": "marquis.scores",
    "structures": "marquis.structures",
    "tasks": "marquis.tasks",
    "tomography": "marquis.tomography",
    "variational": "marquis.variational",
    "DataError": "marquis.errors",
    "MarquisError": "marquis.errors",
    "MemoryBudgetError": "marquis.errors",
    "ModelMismatchError": "marquis.errors",
    "NumericalError": "marquis.errors",
    "StorageError": "marquis.errors",
    "UnsupportedOperationError": "marquis.errors",
    "Bernoulli": "marquis.likelihoods",
    "Categorical": "marquis.likelihoods",
    "Gaussian": "marquis.likelihoods",
    "Heteroscedastic": "marquis.likelihoods",
    "Laplace": "marquis.laplace",
    "Likelihood": "marquis.likelihoods",
    "OnlineLaplace": "marquis.online",
    "Posterior": "marquis.posterior",
    "Prior": "marquis.priors",
    "Subnetwork": "marquis.subnetwork",
    "explore": "marquis.explorer",
    "kernel": "marquis.tangent_kernel",
    "load": "marquis.laplace",
}

__all__ = [
    "Bernoulli",
    "Categorical",
    "DataError",
    "Gaussian",
    "Heteroscedastic",
    "Laplace",
    "Likelihood",
    "MarquisError",
    "MemoryBudgetError",
    "ModelMismatchError",
    "NumericalError",
    "OnlineLaplace",
    "Posterior",
    "Prior",
    "StorageError",
    "Subnetwork",
    "UnsupportedOperationError",
    "__version__",
    "autoencoders",
    "conformal",
    "curvature",
    "data",
    "errors",
    "evidence",
    "explore",
    "kernel",
    "likelihoods",
    "load",
    "plots",
    "predictive",
    "report",
    "scores",
    "structures",
    "tasks",
    "tomography",
    "variational",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use and keep it, so the second use is an ordinary lookup."""
    if name not in _HOMES:
        raise AttributeError(f"module 'marquis' has no attribute {name!r}; it offers: {', '.join(__all__)}")
    home = _HOMES[name]
    module = import_module(home)
    value = module if home == f"marquis.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names offered to completion, whether or not they are loaded yet."""
    return sorted({*globals(), *__all__})
