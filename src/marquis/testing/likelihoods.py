"""Test what every likelihood has to satisfy (docs/method/likelihoods.md).

Expectations over labels are exact sums: enumeration where labels are discrete, quadrature that is exact for the
polynomials at hand where they are not. No Monte Carlo, except for one seeded look at the sampler's frequencies.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Likelihood, PointwiseLikelihood
from marquis.testing.tools import close, flat, seeded

same = partial(close, atol=1e-12)
nearly = partial(close, rtol=1e-8, atol=1e-10)


def all_labels(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return all joint labels of a sample and their probabilities, from `m` values per entry, both `[m, B, *rest]`."""
    nodes, batch, rest = values.shape[0], values.shape[1], values.shape[2:]
    entries = math.prod(rest)
    choice = torch.tensor(list(itertools.product(range(nodes), repeat=entries)))  # [K, entries]
    which = torch.arange(entries)
    labels = values.reshape(nodes, batch, entries).permute(2, 0, 1)[which, choice]  # [K, entries, B]
    joint = weights.reshape(nodes, batch, entries).permute(2, 0, 1)[which, choice]
    return labels.transpose(1, 2).reshape(-1, batch, *rest), joint.prod(1)


def autograd_hessian(likelihood: Likelihood, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Hessian of -log p in each sample's outputs, `[B, O, O]`, by differentiating `log_prob` twice."""
    size = math.prod(f.shape[1:])

    def one(n: int) -> Tensor:
        part = None if mask is None else mask[n : n + 1]
        negative = lambda out: -likelihood.log_prob(out[None], y[n : n + 1], part).sum()  # noqa: E731
        return torch.func.jacrev(torch.func.jacrev(negative))(f[n]).reshape(size, size)

    return torch.stack([one(n) for n in range(f.shape[0])])


def autograd_gradient(likelihood: Likelihood, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the gradient of -log p in the outputs, by differentiating `log_prob`."""
    f = f.clone().requires_grad_()
    return torch.autograd.grad(-likelihood.log_prob(f, y, mask).sum(), f)[0]


class LikelihoodConformance:
    """Check a likelihood's values, derivatives, samples, masks, numerics and errors.

    Inherit it once per likelihood and write `likelihood`, `reference` and `support`; change `outputs` where outputs
    must not be standard normal numbers.

    Attributes:
        shapes: Output shapes `[B, ...]` to check.
        small: An output shape with few enough labels to enumerate.
        masks: Whether missing labels are supported.
        extremes: Whether outputs of 1e4 have to give finite numbers.
    """

    shapes: tuple[tuple[int, ...], ...]
    small: tuple[int, ...]
    masks = True
    extremes = True

    def likelihood(self) -> Likelihood:
        """Return the likelihood to check."""
        raise NotImplementedError

    def reference(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log p(y|f) per sample by other means, such as `torch.distributions`."""
        raise NotImplementedError

    def support(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels `[K, *target]` and weights `[K, B]` whose sums are exact expectations; see `all_labels`."""
        raise NotImplementedError

    def outputs(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        """Return random outputs of a network."""
        return (1.5 * torch.randn(shape, generator=seeded(seed), dtype=torch.float64)).to(dtype)

    def labels(self, f: Tensor, seed: int = 2) -> Tensor:
        """Return random labels for these outputs."""
        return self.likelihood().sample(f, seeded(seed))

    def keep(self, f: Tensor, y: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and labels at the chosen indices of the labels' last dimension."""
        return f[..., chosen], y[..., chosen]

    def case(self, shape: tuple[int, ...]) -> tuple[Likelihood, Tensor, Tensor]:
        """Return the likelihood, outputs and labels."""
        f = self.outputs(shape)
        return self.likelihood().resolve(f), f, self.labels(f)

    def masked_case(self, shape: tuple[int, ...]) -> tuple[Likelihood, Tensor, Tensor, Tensor]:
        """Return the likelihood, outputs, labels and a mask; skip the test where masks are not supported."""
        if not self.masks:
            pytest.skip("no masks")
        likelihood, f, y = self.case(shape)
        mask = torch.rand(y.shape, generator=seeded(7)) < 0.6
        mask.view(-1)[-1], mask.view(-1)[0] = True, False  # in this order: one label alone is missing
        return likelihood, f, y, mask

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check that takes a `shape` on all of them."""
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", self.shapes, ids=str)

    # Value and gradient

    def test_log_prob_is_normalised_and_summed(self, shape):
        likelihood, f, y = self.case(shape)
        value = likelihood.log_prob(f, y)
        assert value.shape == f.shape[:1]
        same(value, self.reference(f, y))

    def test_a_sample_does_not_see_its_batch(self, shape):
        likelihood, f, y = self.case(shape)
        pairs = [(f[n : n + 1], y[n : n + 1]) for n in range(len(f))]
        same(likelihood.log_prob(f, y), torch.cat([likelihood.log_prob(*pair) for pair in pairs]))
        same(likelihood.gradient(f, y), torch.cat([likelihood.gradient(*pair) for pair in pairs]))
        same(likelihood.hessian(f), torch.cat([likelihood.hessian(output) for output, _ in pairs]))

    def test_gradient_is_that_of_log_prob(self, shape):
        likelihood, f, y = self.case(shape)
        same(likelihood.gradient(f, y), autograd_gradient(likelihood, f, y))

    # Curvature

    def test_hessian_is_that_of_log_prob_at_any_label(self, shape):
        likelihood, f, y = self.case(shape)
        if not likelihood.label_independent:
            pytest.skip("the curvature is a mean over labels: see test_fisher_identities")
        for labels in (y, self.labels(f, seed=3)):
            same(autograd_hessian(likelihood, f, labels), likelihood.hessian(f))

    def test_label_independence_is_claimed_exactly_where_it_holds(self):
        likelihood, f = self.likelihood(), self.outputs(self.small)
        labels, _ = self.support(f)
        at_each = torch.stack([autograd_hessian(likelihood, f, y) for y in labels[:: max(1, len(labels) // 8)]])
        spread = (at_each - at_each[0]).abs().max()
        assert (spread < 1e-10) if likelihood.label_independent else (spread > 1e-2)

    def test_fisher_identities(self):
        """Check `E[r] = 0`, `E[r r^T] = E[Hessian] = L`, over all labels of the model."""
        likelihood, f = self.likelihood(), self.outputs(self.small)
        labels, weights = self.support(f)
        same(weights.sum(0), torch.ones(len(f), dtype=f.dtype))
        gradients = torch.stack([flat(likelihood.gradient(f, y)) for y in labels])
        mean = torch.einsum("kn,kni->ni", weights, gradients)
        close(mean, torch.zeros_like(mean), rtol=0, atol=1e-10)
        nearly(torch.einsum("kn,kni,knj->nij", weights, gradients, gradients), likelihood.hessian(f))
        hessians = torch.func.vmap(lambda y: autograd_hessian(likelihood, f, y))(labels)
        nearly(torch.einsum("kn,knij->nij", weights, hessians), likelihood.hessian(f))

    def test_root_and_diagonal_are_those_of_the_hessian(self, shape):
        likelihood, f, _ = self.case(shape)
        root, diagonal = likelihood.hessian_sqrt(f), likelihood.hessian_diagonal(f)
        assert root.shape == (math.prod(likelihood.root_shape(f)), *f.shape)
        same(torch.einsum("cni,cnj->nij", flat(root, 2), flat(root, 2)), likelihood.hessian(f))
        assert diagonal.shape == f.shape
        same(flat(diagonal), likelihood.hessian(f).diagonal(dim1=1, dim2=2))

    def test_apply_sqrt_contracts_the_root(self, shape):
        likelihood, f, _ = self.case(shape)
        v = torch.randn(3, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        expected = torch.einsum("cni,knc->kni", flat(likelihood.hessian_sqrt(f), 2), flat(v, 2))
        same(flat(likelihood.apply_sqrt(f, v), 2), expected)
        with pytest.raises(DataError, match="root_shape"):
            likelihood.apply_sqrt(f, v[:, :, None].expand(3, len(f), 2, *likelihood.root_shape(f)))

    def test_coupling_is_what_it_claims(self, shape):
        likelihood, f, _ = self.case(shape)
        if likelihood.coupling == "all":
            return
        assert likelihood.root_shape(f) == f.shape[1:] or likelihood.coupling is not None
        index = torch.arange(flat(f).shape[1]).reshape(f.shape[1:])
        if likelihood.coupling is not None:  # entries that differ only along the coupled dimension share a number
            dim = likelihood.coupling - 1
            index = index.select(dim, 0).unsqueeze(dim).expand(f.shape[1:])
        position = index.flatten()
        assert not likelihood.hessian(f)[:, position[:, None] != position].any()

    def test_root_of_a_position_depends_on_that_position_only(self, shape):
        likelihood, f, _ = self.case(shape)
        dim = likelihood.coupling
        if not isinstance(dim, int) or f.ndim == 2:
            pytest.skip("there is one position only, or all are coupled")
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        first = (slice(None), *(slice(None) if d == dim else 0 for d in range(1, f.ndim)))
        changed_f, changed_v = f.clone(), v.clone()
        changed_f[first] += torch.randn(changed_f[first].shape, generator=seeded(5), dtype=f.dtype)
        changed_v[(slice(None), *first)] += 1
        difference = likelihood.apply_sqrt(changed_f, changed_v) - likelihood.apply_sqrt(f, v)
        assert difference[(slice(None), *first)].abs().max() > 1e-3
        difference[(slice(None), *first)] = 0
        assert not difference.any()

    def test_constant_hessian_is_claimed_exactly_where_it_holds(self, shape):
        likelihood, f, _ = self.case(shape)
        is_constant = torch.equal(likelihood.hessian(f), likelihood.hessian(self.outputs(shape, seed=9)))
        assert is_constant == likelihood.constant_hessian

    # Samples

    def test_sample_is_valid_repeatable_and_leaves_the_global_generator_alone(self, shape):
        likelihood, f, _ = self.case(shape)
        before = torch.get_rng_state()
        y, column = likelihood.sample(f, seeded(4)), likelihood.fisher_column(f, seeded(4))
        assert torch.equal(torch.get_rng_state(), before)
        assert y.shape == likelihood.target_shape(f)
        likelihood.validate(f, y)
        assert torch.equal(y, likelihood.sample(f, seeded(4)))
        assert torch.equal(column, likelihood.fisher_column(f, seeded(4)))
        assert not all(torch.equal(column, likelihood.fisher_column(f, seeded(k))) for k in range(10, 40))
        nearly(column, likelihood.gradient(f, y))
        assert not likelihood.sample(f.requires_grad_(), seeded()).requires_grad

    def test_sampler_follows_the_model(self):
        """Check that the score at samples averages to 0 with covariance L: seeded, within five standard errors."""
        likelihood, f, count = self.likelihood(), self.outputs(self.small)[:1], 20_000
        many = f.expand(count, *f.shape[1:])
        score = flat(likelihood.gradient(many, likelihood.sample(many, seeded(6))))
        squares = score[:, :, None] * score[:, None, :]
        for values, expected in ((score, torch.zeros_like(score[0])), (squares, likelihood.hessian(f)[0])):
            standard_error = values.std(0) / count**0.5
            assert ((values.mean(0) - expected).abs() < 5 * standard_error + 1e-12).all()

    # Missing labels

    def test_mask_splits_the_value_into_observed_and_missing(self, shape):
        likelihood, f, y, mask = self.masked_case(shape)
        whole, observed = likelihood.log_prob(f, y), likelihood.log_prob(f, y, mask)
        same(observed + likelihood.log_prob(f, y, ~mask), whole)
        assert not torch.equal(observed, whole)
        assert torch.equal(likelihood.log_prob(f, y, mask.to(f.dtype)), observed)
        same(likelihood.log_prob(f, y, torch.ones_like(mask)), whole)
        assert not likelihood.log_prob(f, y, torch.zeros_like(mask)).any()
        assert torch.equal(likelihood.observed(y, mask), flat(mask).sum(1))
        assert torch.equal(likelihood.observed(y), flat(torch.ones_like(mask)).sum(1))

    def test_mask_equals_dropping_the_entries(self, shape):
        likelihood, f, y, _ = self.masked_case(shape)
        if y.ndim == 1 or y.shape[-1] == 1:
            pytest.skip("nothing left after dropping")
        mask = torch.arange(y.shape[-1]) > 0  # broadcasts over the batch
        subset = self.keep(f, y, mask.nonzero()[:, 0])
        same(likelihood.log_prob(f, y, mask), likelihood.log_prob(*subset))
        same(likelihood.hessian_diagonal(f, mask).sum(), likelihood.hessian_diagonal(subset[0]).sum())

    def test_garbage_under_the_mask_does_no_harm(self, shape):
        likelihood, f, y, mask = self.masked_case(shape)
        spoilt = y.masked_fill(~mask, float("nan") if y.is_floating_point() else -100)
        likelihood.validate(f, spoilt, mask)
        assert torch.equal(likelihood.log_prob(f, spoilt, mask), likelihood.log_prob(f, y, mask))
        assert torch.equal(likelihood.gradient(f, spoilt, mask), likelihood.gradient(f, y, mask))
        same(likelihood.gradient(f, spoilt, mask), autograd_gradient(likelihood, f, spoilt, mask))
        with pytest.raises(DataError):
            likelihood.validate(f, spoilt)

    def test_broken_outputs_under_the_mask_do_no_harm(self, shape):
        likelihood, f, y, _ = self.masked_case(shape)
        if not isinstance(likelihood, PointwiseLikelihood):
            pytest.skip("no such promise")
        mask = torch.ones_like(y, dtype=torch.bool)
        mask.view(-1)[0] = False
        broken = f.masked_fill(likelihood.hessian_diagonal(f, mask) == 0, float("nan"))
        assert broken.isnan().any()
        same(likelihood.log_prob(broken, y, mask), likelihood.log_prob(f, y, mask))
        same(likelihood.gradient(broken, y, mask), likelihood.gradient(f, y, mask))
        assert torch.equal(likelihood.hessian_sqrt(broken, mask), likelihood.hessian_sqrt(f, mask))
        assert autograd_gradient(likelihood, broken, y, mask).isfinite().all()

    def test_mask_removes_rows_and_columns_of_the_hessian(self, shape):
        likelihood, f, y, mask = self.masked_case(shape)
        matrix = likelihood.hessian(f, mask)
        if likelihood.label_independent:
            same(autograd_hessian(likelihood, f, y, mask), matrix)
        observed = (flat(likelihood.gradient(f, y, mask)) != 0) | (flat(likelihood.hessian_diagonal(f, mask)) != 0)
        observed = observed.to(f.dtype)
        assert observed.mean() < 1
        same(matrix, likelihood.hessian(f) * observed[:, :, None] * observed[:, None, :])
        root = flat(likelihood.hessian_sqrt(f, mask), 2)
        same(torch.einsum("cni,cnj->nij", root, root), matrix)
        same(flat(likelihood.hessian_diagonal(f, mask)), matrix.diagonal(dim1=1, dim2=2))
        column = flat(likelihood.fisher_column(f, seeded(4), mask))
        same(column, flat(likelihood.fisher_column(f, seeded(4))) * observed)

    def test_masks_that_fit_nothing_are_refused(self, shape):
        likelihood, f, y = self.case(shape)
        if not self.masks:
            every = torch.ones_like(y, dtype=torch.bool)
            for call in (lambda: likelihood.log_prob(f, y, every), lambda: likelihood.hessian(f, every)):
                with pytest.raises(UnsupportedOperationError, match="mask"):
                    call()
            return
        with pytest.raises(DataError, match="mask of shape"):
            likelihood.log_prob(f, y, torch.ones(*y.shape, 2))
        with pytest.raises(DataError, match="only 0"):
            likelihood.validate(f, y, torch.full(y.shape, 0.5))

    # Numerics

    def test_float32_agrees_with_float64(self, shape):
        likelihood, f, y = self.case(shape)
        single, short = f.float(), y.float() if y.is_floating_point() else y
        double, long = single.double(), short.double() if y.is_floating_point() else y  # only the arithmetic differs
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype).float()
        for result, exact in (
            (likelihood.log_prob(single, short), likelihood.log_prob(double, long)),
            (likelihood.gradient(single, short), likelihood.gradient(double, long)),
            (likelihood.hessian(single), likelihood.hessian(double)),
            (likelihood.apply_sqrt(single, v), likelihood.apply_sqrt(double, v.double())),
            (likelihood.hessian_diagonal(single), likelihood.hessian_diagonal(double)),
        ):
            assert result.dtype == torch.float32
            close(result.double(), exact, rtol=2e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_extreme_outputs_give_no_nan(self, shape, dtype):
        if not self.extremes:
            pytest.skip("makes no such promise")
        sign = torch.where(torch.rand(shape, generator=seeded(8)) < 0.5, -1.0, 1.0)
        f = (1e4 * sign * torch.tensor([1.0, 0.0, 1e-3])[torch.randint(3, shape, generator=seeded(9))]).to(dtype)
        likelihood, y = self.likelihood().resolve(f), self.labels(torch.zeros_like(f))
        v = torch.ones(1, len(f), *likelihood.root_shape(f), dtype=dtype)
        prediction = likelihood.predictive(f, torch.full_like(f, 1e4))
        for t in (
            *(likelihood.log_prob(f, y), likelihood.gradient(f, y), likelihood.hessian_diagonal(f)),
            *(likelihood.apply_sqrt(f, v), likelihood.hessian_sqrt(f), likelihood.fisher_column(f, seeded())),
            *(prediction.mean, prediction.variance, prediction.noise_variance, prediction.probs),
            autograd_gradient(likelihood, f, y),
        ):
            assert t is None or t.isfinite().all()
        assert (likelihood.hessian_diagonal(f) >= 0).all()

    def test_works_under_vmap_and_on_any_device(self, shape):
        likelihood, f, y = self.case(shape)
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        gradient = torch.func.vmap(lambda a, b: likelihood.gradient(a[None], b[None])[0])(f, y)
        same(gradient, likelihood.gradient(f, y))
        product = lambda a, b: likelihood.apply_sqrt(a[None], b[:, None])[:, 0]  # noqa: E731
        same(torch.func.vmap(product, in_dims=(0, 1), out_dims=1)(f, v), likelihood.apply_sqrt(f, v))
        on_meta, labels = f.to("meta"), y.to("meta")  # a device on which any stray CPU tensor is an error
        assert likelihood.log_prob(on_meta, labels).device.type == "meta"
        assert likelihood.gradient(on_meta, labels).shape == f.shape
        assert likelihood.hessian(on_meta).shape == likelihood.hessian(f).shape
        assert likelihood.hessian_sqrt(on_meta).shape == likelihood.hessian_sqrt(f).shape
        assert likelihood.predictive(on_meta, on_meta).mean.device.type == "meta"

    # Errors and saving

    def test_empty_batches_and_refused_labels_and_outputs(self, shape):
        likelihood, f, y = self.case(shape)
        none, labels = f[:0], y[:0]
        assert likelihood.log_prob(none, labels).shape == (0,)
        assert likelihood.gradient(none, labels).shape == none.shape
        assert likelihood.hessian(none).shape[0] == 0
        assert likelihood.hessian_sqrt(none).shape[1:] == none.shape
        with pytest.raises(DataError, match="shape"):
            likelihood.validate(f, y.unsqueeze(-1))
        broken = f.clone()
        broken.view(-1)[0] = float("nan")
        with pytest.raises(DataError, match="diverged"):
            likelihood.validate(broken)
        with pytest.raises(DataError, match="floating"):
            likelihood.validate(f.long())

    def test_state_dict_round_trip(self, shape):
        likelihood, f, y = self.case(shape)
        state = likelihood.state_dict()
        assert all(isinstance(value, (Tensor, str, float, int)) for value in state.values())
        again = Likelihood.from_state_dict(state)
        assert type(again) is type(likelihood) and repr(again) == repr(likelihood)
        assert torch.equal(again.log_prob(f, y), likelihood.log_prob(f, y))
