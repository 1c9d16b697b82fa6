"""Define likelihoods p(y|f): loss, gradient, output-Hessian square root, label sampling, predictive.

`as_likelihood` turns whatever a user may pass, a name or an object, into one of them.
"""

from __future__ import annotations

from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.likelihoods.base import Likelihood, Predictive
from marquis.likelihoods.bernoulli import Bernoulli
from marquis.likelihoods.categorical import Categorical
from marquis.likelihoods.counts import NegativeBinomial, Poisson
from marquis.likelihoods.custom import REQUIRED, CustomLikelihood, lacking_methods
from marquis.likelihoods.gaussian import Gaussian
from marquis.likelihoods.heteroscedastic import Heteroscedastic
from marquis.likelihoods.pointwise import PointwiseLikelihood
from marquis.likelihoods.preference import Preference

__all__ = [
    "Bernoulli",
    "Categorical",
    "CustomLikelihood",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "NegativeBinomial",
    "PointwiseLikelihood",
    "Poisson",
    "Predictive",
    "Preference",
    "as_likelihood",
]

NAMES: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "heteroscedastic": Heteroscedastic,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "preference": Preference,
}


def as_likelihood(spec: str | Likelihood | object) -> Likelihood:
    """Return the likelihood that a name or an object stands for.

    Args:
        spec: "gaussian", "bernoulli", "categorical", "heteroscedastic", "poisson", "negative-binomial" or
            "preference" with default settings; a `Likelihood`, which is returned as it is; or any object with
            `log_prob(f, y)`, `hessian_sqrt(f)`, `sample(f, generator=None)` and `predictive(mean, variance)`.

    Raises:
        UnsupportedOperationError: None of these; the message lists what is accepted.
    """
    if isinstance(spec, Likelihood):
        return spec
    if isinstance(spec, str):
        hint = f"Or pass a Likelihood object, or an object with {', '.join(REQUIRED)}."
        return NAMES[choose("likelihood", spec, NAMES, hint=hint)]()
    if isinstance(spec, type):
        problem = f"a likelihood is an object, not a class: write {spec.__name__}() instead of {spec.__name__}."
    elif not (lacking := lacking_methods(spec)):
        return CustomLikelihood(spec)
    else:
        problem = f"{type(spec).__name__} is not a likelihood: it lacks {', '.join(lacking)}."
    names, methods = ", ".join(map(repr, NAMES)), ", ".join(REQUIRED)
    raise UnsupportedOperationError(f"{problem} Accepted: {names}, a Likelihood object, or an object with {methods}.")
