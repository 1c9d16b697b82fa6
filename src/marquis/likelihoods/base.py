"""Define what every likelihood p(y|f) offers to the rest of Marquis.

Letters: `B` samples in the batch, `O` outputs per sample (flattened), `C` columns of a square root, `k` probes.
`f` has shape `[B, *rest]`; `l = -log p(y|f)` is a sum over the outputs of one sample, never a mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from marquis.arguments import checked, checked_on_any_device
from marquis.errors import DataError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.functional.checks import all_finite
from marquis.likelihoods.tools import any_not_finite, any_true, as_mask, describe, flatten_outputs, sum_outputs


class Predictive(NamedTuple):
    """Hold the prediction for new data; what does not apply is None.

    Attributes:
        mean: Mean of the outputs `f` (of the mean half, for the heteroscedastic Gaussian).
        variance: Marginal variance of the same outputs that comes from not knowing the weights.
        noise_variance: Variance of the label around `f`; apart from `variance`, because more data shrinks only that.
        probs: Class or success probabilities, averaged over the uncertainty of `f`.
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor | None = None
    probs: Tensor | None = None

    @property
    def total_variance(self) -> Tensor:
        """Return the variance of a new observation: `variance` plus `noise_variance` where there is one."""
        return self.variance if self.noise_variance is None else self.variance + self.noise_variance


class Likelihood:
    """Define what every likelihood offers: the base class, and at once the protocol.

    A subclass writes `log_prob`, `sample`, `predictive`, and `hessian_sqrt` (or `root_shape` with
    `apply_sqrt` where forming the root is too expensive). All else follows from those, exactly.

    Attributes:
        kind: Name under which `state_dict` stores the class.
        coupling: None where the output Hessian L is diagonal; a dimension of `f` (counted with the batch, positive)
            where L couples only the entries along it; "all" where L may be full.
        constant_hessian: Whether L is the same for all `f` (as long as there is no mask).
        label_independent: Whether the Hessian of `-log p(y|f)` in `f` is free of `y`, so that it *is* L. Where it is
            not, L is the Fisher information, the mean of that Hessian over labels sampled from the model.
    """

    kind: ClassVar[str] = ""
    coupling: int | Literal["all"] | None = "all"
    constant_hessian: bool = False
    label_independent: bool = False

    _kinds: ClassVar[dict[str, type[Likelihood]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its kind, so that a saved likelihood can be loaded."""
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("kind"):
            Likelihood._kinds[cls.kind] = cls

    # What a likelihood has to say

    @checked_on_any_device
    def log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the normalised log p(y|f), summed over outputs.

        Args:
            f: Outputs of the network, `[B, *rest]`.
            y: Labels, of shape `target_shape(f)`.
            mask: 1 or True where a label was observed; broadcasts (from the right, as in torch) to the labels. Labels
                under 0 may be anything, NaN included.

        Returns:
            One number per sample, `[B]`.
        """
        raise self._missing("log_prob")

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample labels from p(.|f); no gradient flows to `f`."""
        raise self._missing("sample")

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        """Return the prediction for Gaussian outputs with this mean and marginal variance, both shaped like `f`."""
        raise self._missing("predictive")

    def predictive_at(self, f: Tensor) -> Predictive:
        """Return the prediction for outputs without uncertainty, `predictive` at variance 0."""
        return self.predictive(f, f.new_zeros(()).expand_as(f))

    @checked_on_any_device
    def hessian_sqrt(self, f: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the square root of the output Hessian, column axis first: `L_n = sum_c S[c, n] S[c, n]^T`.

        Cost: `C * B * O` numbers with `C` the size of `root_shape(f)`; `apply_sqrt` needs no such memory.

        Returns:
            `[C, *f.shape]`.
        """
        if type(self).apply_sqrt is Likelihood.apply_sqrt:
            raise self._missing("hessian_sqrt")
        self._check_values(f, mask)
        root = self.root_shape(f)
        columns = math.prod(root)
        unit = torch.eye(columns, dtype=f.dtype, device=f.device).reshape(columns, 1, *root)
        return self.apply_sqrt(f, unit.expand(columns, f.shape[0], *root), mask)

    # What follows from it

    def root_shape(self, f: Tensor) -> torch.Size:
        """Return the shape of a sample's coordinates in the root: `S` maps `[*root_shape]` to `f.shape[1:]`."""
        if self.only_columns:
            return self.hessian_sqrt(f).shape[:1]
        return f.shape[1:]

    def apply_sqrt(self, f: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `S v` for `k` coefficient vectors, linear in `v`: if `E[v v^T] = I`, then `E[(S v)(S v)^T] = L`.

        Args:
            f: Outputs, `[B, *rest]`.
            v: Coefficients, `[k, B, *root_shape(f)]`.
            mask: As in `log_prob`.

        Returns:
            `[k, *f.shape]`.
        """
        self._check_coefficients(f, v)
        if self.coupling is None:
            return v * self.hessian_diagonal(f, mask).sqrt()
        return torch.einsum("cn...,knc->kn...", self.hessian_sqrt(f, mask), v)

    def gradient(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `r = d(-log p(y|f))/df`, shaped like `f`; by autograd unless there is a closed form."""
        return torch.func.grad(lambda out: -self.log_prob(out, y, mask).sum())(f)

    def hessian(self, f: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the exact output Hessian L (the Fisher information where `label_independent` is False).

        Cost: `B * O * O` numbers, so for small outputs only.

        Returns:
            `[B, O, O]` with the outputs flattened row by row.
        """
        if self.coupling is None:
            return torch.diag_embed(flatten_outputs(self.hessian_diagonal(f, mask)))
        root = self.hessian_sqrt(f, mask)
        root = root.reshape(*root.shape[:2], math.prod(f.shape[1:]))
        return torch.einsum("cni,cnj->nij", root, root)

    def hessian_diagonal(self, f: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the diagonal of L, shaped like `f`."""
        return self.hessian_sqrt(f, mask).square().sum(0)

    def fisher_column(self, f: Tensor, generator: torch.Generator | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the gradient at a label sampled from the model: mean 0, `E[r r^T] = L`; shaped like `f`."""
        return self.gradient(f, self.sample(f, generator), mask)

    def target_shape(self, f: Tensor) -> torch.Size:
        """Return the shape of the labels that belong to outputs `f`."""
        return f.shape

    def observed(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the number of observed scalar labels per sample, `[B]`, which replaces `O` in every `N * O`."""
        observed = torch.ones_like(y, dtype=torch.bool) if mask is None else as_mask(mask, y.shape)
        return sum_outputs(observed.long())

    @property
    def scalar_noise_precision(self) -> Tensor | None:
        """Return the noise precision where it is one number, by which curvature is rescaled; None otherwise."""
        return None

    def at_unit_noise(self) -> Likelihood:
        """Return the likelihood at which curvature is kept: with noise precision 1 where that is one number."""
        return self

    def resolve(self, f: Tensor) -> Likelihood:
        """Return the likelihood with dimensions counted from the front, for outputs of this many dimensions."""
        del f
        return self

    # Checks

    @checked
    def validate(self, f: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Refuse outputs, labels and masks that cannot be meant.

        The other methods refuse wrong shapes and NaN only, and cannot see labels out of range; call this once per
        batch.

        Raises:
            DataError: Wrong shape or dtype, NaN or infinity in `f` or in an observed label, label out of range.
        """
        self._check_values(f)
        if mask is not None:
            as_mask(mask, self.target_shape(f))
            if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
                raise DataError(f"{self}: a mask holds only 0 (missing) and 1 (observed); this one has other values.")
        if y is not None:
            if y.is_complex():
                raise DataError(f"{self}: the targets are complex; pass real numbers.")
            self._check_target_shape(f, y)
            self._check_labels(f, y if mask is None else y.masked_fill(~as_mask(mask, y.shape), 0))

    def _check_outputs(self, f: Tensor) -> None:
        if f.ndim == 0 or not f.is_floating_point():
            raise DataError(
                f"{self}: outputs must be floating point with the batch first, [B, ...]; got {describe(f)}."
            )

    def _check_values(self, f: Tensor, mask: Tensor | None = None) -> None:
        """Refuse outputs that are not finite, where their values are known; those under a mask may be anything."""
        self._check_outputs(f)
        if any_not_finite(self._masked(f, f, mask)):
            raise DataError(
                f"{self}: the network's outputs contain NaN or infinity "
                f"({int((~f.isfinite()).sum())} of {f.numel()} values). Check the inputs, or whether training diverged."
            )

    def _masked(self, value: Tensor, f: Tensor, mask: Tensor | None) -> Tensor:
        """Set entries of `value` (shaped like `f`, possibly with a leading axis) to zero where the label is missing.

        Without knowing which outputs a label depends on, nothing is set to zero.
        """
        del f, mask
        return value

    def _require_number(self, log_prob: Tensor) -> Tensor:
        """Return log densities unless one of them is NaN; minus infinity is a density of 0."""
        if any_true(log_prob.isnan()):
            raise NumericalError(
                f"{self}: the log density is NaN, as outputs or observed labels hold NaN or infinity. Check the data; "
                "in a training, it has diverged: lower the learning rate."
            )
        return log_prob

    def _check_target_shape(self, f: Tensor, y: Tensor) -> None:
        self._check_outputs(f)
        expected = self.target_shape(f)
        if y.shape != expected:
            raise DataError(
                f"{self}: for outputs of shape {list(f.shape)} the labels must have shape {list(expected)}, "
                f"got {list(y.shape)}. Reshape the labels (for instance y.reshape({list(expected)})): "
                "broadcasting here would silently compare every label with every output."
            )

    def _check_labels(self, f: Tensor, y: Tensor) -> None:
        del f
        if y.is_floating_point() and not all_finite(y):
            raise DataError(
                f"{self}: observed labels contain NaN or infinity ({int((~y.isfinite()).sum())} of {y.numel()} values)."
                " For missing labels pass mask=~y.isnan()."
            )

    def _check_moments(self, mean: Tensor, variance: Tensor) -> None:
        if mean.shape != variance.shape:
            raise DataError(
                f"{self}: predictive needs the marginal variance of each output, shape {list(mean.shape)} like the "
                f"mean; got {list(variance.shape)}. Of a covariance matrix pass the diagonal."
            )
        for name, moment in (("mean", mean), ("variance", variance)):
            if not moment.dtype.is_floating_point:
                raise DataError(f"{self}: values of the {name} are {moment.dtype}; pass floating-point numbers.")
            if any_not_finite(moment):
                raise NumericalError(f"{self}: the {name} of the outputs holds NaN or infinity.")

    def _check_coefficients(self, f: Tensor, v: Tensor) -> None:
        self._check_outputs(f)
        expected = (f.shape[0], *self.root_shape(f))
        if v.shape[1:] != expected:
            raise DataError(
                f"{self}: coefficients for outputs of shape {list(f.shape)} must have shape "
                f"[k, {', '.join(map(str, expected))}], got {list(v.shape)}. See root_shape(f)."
            )

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and JSON scalars from which `from_state_dict` builds the likelihood again."""
        return {"kind": self.kind or type(self).__qualname__}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Likelihood:
        """Build the likelihood that `state_dict` described, of whichever class the state names.

        Raises:
            ModelMismatchError: The state is of a class that is not known here, or not of the class it is called on.
        """
        kind = Likelihood._kinds.get(state.get("kind", ""))
        if kind is None or not issubclass(kind, cls):
            raise ModelMismatchError(
                f"a saved likelihood of kind {state.get('kind')!r} cannot be loaded as {cls.__name__}; known kinds: "
                f"{', '.join(sorted(Likelihood._kinds))}. For a likelihood of your own, pass the object itself."
            )
        return kind._from_state({key: value for key, value in state.items() if key != "kind"})

    @classmethod
    def _from_state(cls, state: Mapping[str, Any]) -> Likelihood:
        return cls(**state)

    def __repr__(self) -> str:
        """Show name and arguments."""
        return f"{type(self).__name__}()"

    @property
    def only_columns(self) -> bool:
        """Return whether the class writes `hessian_sqrt` only, for an L that is not diagonal."""
        cls = type(self)
        writes_columns = cls.hessian_sqrt is not Likelihood.hessian_sqrt
        return self.coupling is not None and writes_columns and cls.apply_sqrt is Likelihood.apply_sqrt

    def _missing(self, method: str) -> UnsupportedOperationError:
        """Return the error for a method that a subclass has not written."""
        return UnsupportedOperationError(
            f"{type(self).__name__} has no {method}. A subclass has to write log_prob, sample, predictive and "
            "hessian_sqrt (or apply_sqrt)."
        )
