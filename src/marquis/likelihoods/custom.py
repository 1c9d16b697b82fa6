"""Use an object that has the methods of a likelihood as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.likelihoods.base import Likelihood, Predictive
from marquis.likelihoods.tools import as_mask

REQUIRED = ("log_prob", "hessian_sqrt", "sample", "predictive")


def lacking_methods(user: object) -> list[str]:
    """Return the names of required methods that an object does not have."""
    return [name for name in REQUIRED if not callable(getattr(user, name, None))]


class CustomLikelihood(Likelihood):
    """Wrap a user's object; methods that it does not have are derived from those it has.

    The object provides `log_prob(f, y)`, `hessian_sqrt(f)`, `sample(f, generator=None)`, `predictive(mean, variance)`.
    It may provide any other method or attribute of `Likelihood`, which is then used. A `mask` is passed on, as booleans
    of the labels' shape, to methods that have such a parameter, and refused otherwise, because nothing here could know
    what it means for them.

    Args:
        user: The object.
    """

    def __init__(self, user: object) -> None:
        if lacking := lacking_methods(user):
            raise UnsupportedOperationError(f"{type(user).__name__} lacks {', '.join(lacking)} to be a likelihood.")
        self.user = user
        self.coupling = getattr(user, "coupling", "all")
        self.constant_hessian = bool(getattr(user, "constant_hessian", False))
        self.label_independent = bool(getattr(user, "label_independent", False))
        if isinstance(self.coupling, int) and not self._has_own_root():
            raise UnsupportedOperationError(
                f"{type(user).__name__}.coupling = {self.coupling} promises a root with coordinates per position: "
                "write apply_sqrt and root_shape too, or leave coupling out."
            )

    def log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        value = self._call("log_prob", f, y, mask=mask)
        return self._shaped("log_prob", value, f.shape[:1], "one number per sample, [B]")

    def hessian_sqrt(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        root = self._call("hessian_sqrt", f, mask=mask)
        return self._shaped("hessian_sqrt", root, (*root.shape[:1], *f.shape), "columns first, [C, *f.shape]")

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        method = self._method("sample")
        if generator is None:
            return method(f)
        if not _takes(method, "generator"):
            raise UnsupportedOperationError(
                f"{type(self.user).__name__}.sample takes no generator, so samples could not be repeated; "
                "give it the signature sample(f, generator=None)."
            )
        return method(f, generator=generator)

    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:  # noqa: D102
        result = self._method("predictive")(mean, variance)
        if not isinstance(result, Predictive):
            raise DataError(
                f"{type(self.user).__name__}.predictive returned {type(result).__name__}; "
                "return marquis.likelihoods.Predictive(mean, variance, ...)."
            )
        return result

    def root_shape(self, f: Tensor) -> torch.Size:  # noqa: D102
        if self._has_own_root():
            return torch.Size(self._method("root_shape")(f))
        return super().root_shape(f)

    def apply_sqrt(self, f: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        if self._has_own_root():
            self._check_coefficients(f, v)
            product = self._call("apply_sqrt", f, v, mask=mask)
            return self._shaped("apply_sqrt", product, (*v.shape[:1], *f.shape), "[k, *f.shape]")
        return super().apply_sqrt(f, v, mask)

    def gradient(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        if self._offers("gradient"):
            return self._shaped("gradient", self._call("gradient", f, y, mask=mask), f.shape, "the shape of f")
        return super().gradient(f, y, mask)

    def hessian(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        if self._offers("hessian"):
            return self._call("hessian", f, mask=mask)
        return super().hessian(f, mask)

    def hessian_diagonal(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        if self._offers("hessian_diagonal"):
            diagonal = self._call("hessian_diagonal", f, mask=mask)
            return self._shaped("hessian_diagonal", diagonal, f.shape, "the shape of f")
        return super().hessian_diagonal(f, mask)

    def target_shape(self, f: Tensor) -> torch.Size:  # noqa: D102
        return torch.Size(self._method("target_shape")(f)) if self._offers("target_shape") else f.shape

    def observed(self, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        return self._method("observed")(y, mask) if self._offers("observed") else super().observed(y, mask)

    def validate(self, f: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> None:  # noqa: D102
        super().validate(f, y, mask)
        if self._offers("validate"):
            self._call("validate", f, y, mask=mask)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        raise ModelMismatchError(
            f"{type(self.user).__name__} cannot be saved with the posterior, as it is not a class of Marquis. "
            "Derive it from marquis.likelihoods.Likelihood with a `kind`, or pass the object again when loading."
        )

    def __repr__(self) -> str:
        """Show the object's class."""
        return f"CustomLikelihood({type(self.user).__name__})"

    def _has_own_root(self) -> bool:
        return self._offers("apply_sqrt") and self._offers("root_shape")

    @property
    def only_columns(self) -> bool:  # noqa: D102
        return self.coupling is not None and not self._has_own_root()

    def _offers(self, name: str) -> bool:
        return callable(getattr(self.user, name, None))

    def _method(self, name: str) -> Callable[..., Any]:
        return getattr(self.user, name)

    def _call(self, name: str, f: Tensor, *others: Any, mask: Tensor | None) -> Any:
        """Call a method of the user's object, with the mask where there is one."""
        method = self._method(name)
        if mask is None:
            return method(f, *others)
        if not _takes(method, "mask"):
            raise UnsupportedOperationError(
                f"{type(self.user).__name__}.{name} takes no mask, so missing labels cannot be left out. "
                "Give the method a parameter mask=None, or drop the incomplete data."
            )
        return method(f, *others, mask=as_mask(mask, self.target_shape(f)))

    def _shaped(self, name: str, value: Tensor, shape: tuple[int, ...], meaning: str) -> Tensor:
        """Return a value of the user's object, if it has the right shape."""
        if value.shape != torch.Size(shape):
            raise DataError(
                f"{type(self.user).__name__}.{name} returned shape {list(value.shape)}, "
                f"expected {list(shape)}: {meaning}."
            )
        return value


def _takes(method: Callable[..., Any], parameter: str) -> bool:
    """Return whether a method has this parameter."""
    parameters = inspect.signature(method).parameters.values()
    return any(p.name == parameter or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
