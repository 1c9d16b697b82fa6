"""What every likelihood must satisfy (methods.md 1.2-1.6). A test class inherits it and fills in the hooks on top.

Expectations over labels are exact sums: enumeration where labels are discrete, quadrature that is exact for the
polynomials at hand where they are not. No Monte Carlo, except for one seeded look at the sampler's frequencies.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Likelihood, PointwiseLikelihood

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_labels(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """All joint labels of one datum and their probabilities, from `m` values per entry, both `[m, B, *rest]`."""
    nodes, batch, rest = values.shape[0], values.shape[1], values.shape[2:]
    entries = math.prod(rest)
    choice = torch.tensor(list(itertools.product(range(nodes), repeat=entries)))  # [K, entries]
    which = torch.arange(entries)
    labels = values.reshape(nodes, batch, entries).permute(2, 0, 1)[which, choice]  # [K, entries, B]
    joint = weights.reshape(nodes, batch, entries).permute(2, 0, 1)[which, choice]
    return labels.transpose(1, 2).reshape(-1, batch, *rest), joint.prod(1)


def autograd_hessian(likelihood: Likelihood, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Hessian of -log p in the outputs of each datum, `[B, O, O]`, by differentiating `log_prob` twice."""
    size = math.prod(f.shape[1:])

    def one(n: int) -> Tensor:
        part = None if mask is None else mask[n : n + 1]
        negative = lambda out: -likelihood.log_prob(out[None], y[n : n + 1], part).sum()  # noqa: E731
        return torch.func.jacrev(torch.func.jacrev(negative))(f[n]).reshape(size, size)

    return torch.stack([one(n) for n in range(f.shape[0])])


def flat(t: Tensor, leading: int = 1) -> Tensor:
    return t.reshape(*t.shape[:leading], math.prod(t.shape[leading:]))


class LikelihoodConformance:
    """Inherited by one class per likelihood."""

    shapes: tuple[tuple[int, ...], ...]
    small: tuple[int, ...]  # few enough labels to enumerate
    masks = True
    extremes = True

    def likelihood(self) -> Likelihood:
        raise NotImplementedError

    def reference(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y|f) per datum according to torch.distributions."""
        raise NotImplementedError

    def support(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Labels `[K, *target]` and weights `[K, B]` for exact expectations."""
        raise NotImplementedError

    def outputs(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        return (1.5 * torch.randn(shape, generator=seeded(seed), dtype=torch.float64)).to(dtype)

    def labels(self, f: Tensor, seed: int = 2) -> Tensor:
        return self.likelihood().sample(f, seeded(seed))

    def keep(self, f: Tensor, y: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and labels at the chosen indices of the labels' last dimension."""
        return f[..., chosen], y[..., chosen]

    def both(self, shape: tuple[int, ...]) -> tuple[Likelihood, Tensor, Tensor]:
        f = self.outputs(shape)
        return self.likelihood().resolve(f), f, self.labels(f)

    # Value

    def test_log_prob_is_normalised_and_summed(self, shape):
        likelihood, f, y = self.both(shape)
        value = likelihood.log_prob(f, y)
        assert value.shape == f.shape[:1]
        torch.testing.assert_close(value, self.reference(f, y), **CLOSE)

    def test_a_datum_does_not_see_its_batch(self, shape):
        likelihood, f, y = self.both(shape)
        alone = torch.cat([likelihood.log_prob(f[n : n + 1], y[n : n + 1]) for n in range(len(f))])
        torch.testing.assert_close(likelihood.log_prob(f, y), alone, **CLOSE)
        alone = torch.cat([likelihood.gradient(f[n : n + 1], y[n : n + 1]) for n in range(len(f))])
        torch.testing.assert_close(likelihood.gradient(f, y), alone, **CLOSE)
        alone = torch.cat([likelihood.hessian(f[n : n + 1]) for n in range(len(f))])
        torch.testing.assert_close(likelihood.hessian(f), alone, **CLOSE)

    def test_gradient_is_that_of_log_prob(self, shape):
        likelihood, f, y = self.both(shape)
        f.requires_grad_()
        (expected,) = torch.autograd.grad(-likelihood.log_prob(f, y).sum(), f)
        torch.testing.assert_close(likelihood.gradient(f.detach(), y), expected, **CLOSE)

    # Curvature

    def test_hessian_is_that_of_log_prob_at_any_label(self, shape):
        likelihood, f, y = self.both(shape)
        if not likelihood.label_independent:
            pytest.skip("the curvature is a mean over labels: see test_fisher_identities")
        for labels in (y, self.labels(f, seed=3)):
            torch.testing.assert_close(autograd_hessian(likelihood, f, labels), likelihood.hessian(f), **CLOSE)

    def test_label_independence_is_claimed_exactly_where_it_holds(self):
        likelihood = self.likelihood()
        f = self.outputs(self.small)
        labels, _ = self.support(f)
        at_each = torch.stack([autograd_hessian(likelihood, f, y) for y in labels[:: max(1, len(labels) // 8)]])
        spread = (at_each - at_each[0]).abs().max()
        assert (spread < 1e-10) if likelihood.label_independent else (spread > 1e-2)

    def test_fisher_identities(self):
        """`E[r] = 0`, `E[r r^T] = E[Hessian] = L`, over all labels of the model."""
        likelihood = self.likelihood()
        f = self.outputs(self.small)
        labels, weights = self.support(f)
        torch.testing.assert_close(weights.sum(0), torch.ones(len(f), dtype=f.dtype), **CLOSE)
        gradients = torch.stack([flat(likelihood.gradient(f, y)) for y in labels])
        mean = torch.einsum("kn,kni->ni", weights, gradients)
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-10)
        second = torch.einsum("kn,kni,knj->nij", weights, gradients, gradients)
        torch.testing.assert_close(second, likelihood.hessian(f), rtol=1e-8, atol=1e-10)
        hessians = torch.func.vmap(lambda y: autograd_hessian(likelihood, f, y))(labels)
        torch.testing.assert_close(
            torch.einsum("kn,knij->nij", weights, hessians), likelihood.hessian(f), rtol=1e-8, atol=1e-10
        )

    def test_root_squares_to_the_hessian(self, shape):
        likelihood, f, _ = self.both(shape)
        root = likelihood.hessian_sqrt(f)
        assert root.shape[1:] == f.shape
        assert root.shape[0] == math.prod(likelihood.root_shape(f))
        dense = torch.einsum("cni,cnj->nij", flat(root, 2), flat(root, 2))
        torch.testing.assert_close(dense, likelihood.hessian(f), **CLOSE)

    def test_hessian_diagonal(self, shape):
        likelihood, f, _ = self.both(shape)
        diagonal = likelihood.hessian_diagonal(f)
        assert diagonal.shape == f.shape
        torch.testing.assert_close(flat(diagonal), likelihood.hessian(f).diagonal(dim1=1, dim2=2), **CLOSE)

    def test_apply_sqrt_contracts_the_root(self, shape):
        likelihood, f, _ = self.both(shape)
        v = torch.randn(3, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        expected = torch.einsum("cni,knc->kni", flat(likelihood.hessian_sqrt(f), 2), flat(v, 2))
        torch.testing.assert_close(flat(likelihood.apply_sqrt(f, v), 2), expected, **CLOSE)
        with pytest.raises(DataError, match="root_shape"):
            likelihood.apply_sqrt(f, v[:, :, None].expand(3, len(f), 2, *likelihood.root_shape(f)))

    def test_coupling_is_what_it_claims(self, shape):
        likelihood, f, _ = self.both(shape)
        matrix = likelihood.hessian(f)
        if likelihood.coupling == "all":
            return
        assert likelihood.root_shape(f) == f.shape[1:] or likelihood.coupling is not None
        index = torch.arange(flat(f).shape[1]).reshape(f.shape[1:])
        if likelihood.coupling is not None:  # entries that differ only along the coupled dimension share a number
            dim = likelihood.coupling - 1
            index = index.select(dim, 0).unsqueeze(dim).expand(f.shape[1:])
        position = index.flatten()
        assert not matrix[:, position[:, None] != position].any()

    def test_root_of_a_position_depends_on_that_position_only(self, shape):
        likelihood, f, _ = self.both(shape)
        dim = likelihood.coupling
        if not isinstance(dim, int) or f.ndim == 2:
            pytest.skip("there is one position only, or all are coupled")
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        first = (slice(None),) * 1 + tuple(slice(None) if d == dim else 0 for d in range(1, f.ndim))
        changed_f, changed_v = f.clone(), v.clone()
        changed_f[first] += torch.randn(changed_f[first].shape, generator=seeded(5), dtype=f.dtype)
        changed_v[(slice(None), *first)] += 1
        difference = likelihood.apply_sqrt(changed_f, changed_v) - likelihood.apply_sqrt(f, v)
        assert difference[(slice(None), *first)].abs().max() > 1e-3
        difference[(slice(None), *first)] = 0
        assert not difference.any()

    def test_constant_hessian_is_claimed_exactly_where_it_holds(self, shape):
        likelihood, f, _ = self.both(shape)
        same = torch.equal(likelihood.hessian(f), likelihood.hessian(self.outputs(shape, seed=9)))
        assert same == likelihood.constant_hessian

    # Random draws

    def test_sample_is_valid_repeatable_and_leaves_the_global_generator_alone(self, shape):
        likelihood, f, _ = self.both(shape)
        before = torch.get_rng_state()
        y = likelihood.sample(f, seeded(4))
        column = likelihood.fisher_column(f, seeded(4))
        assert torch.equal(torch.get_rng_state(), before)
        assert y.shape == likelihood.target_shape(f)
        likelihood.validate(f, y)
        assert torch.equal(y, likelihood.sample(f, seeded(4)))
        assert torch.equal(column, likelihood.fisher_column(f, seeded(4)))
        assert not all(torch.equal(column, likelihood.fisher_column(f, seeded(k))) for k in range(10, 40))

    def test_sample_carries_no_gradient(self):
        f = self.outputs(self.small).requires_grad_()
        assert not self.likelihood().sample(f, seeded()).requires_grad

    def test_fisher_column_is_the_gradient_at_a_sample(self, shape):
        likelihood, f, _ = self.both(shape)
        expected = likelihood.gradient(f, likelihood.sample(f, seeded(4)))
        torch.testing.assert_close(likelihood.fisher_column(f, seeded(4)), expected, rtol=1e-8, atol=1e-10)

    def test_sampler_follows_the_model(self):
        """The score at samples averages to 0 with covariance L: seeded, within five standard errors."""
        likelihood = self.likelihood()
        f = self.outputs(self.small)[:1]
        draws = 20_000
        many = f.expand(draws, *f.shape[1:])
        score = flat(likelihood.gradient(many, likelihood.sample(many, seeded(6))))
        standard_error = score.std(0) / draws**0.5
        assert (score.mean(0).abs() < 5 * standard_error + 1e-12).all()
        squares = score[:, :, None] * score[:, None, :]
        standard_error = squares.std(0) / draws**0.5
        assert ((squares.mean(0) - likelihood.hessian(f)[0]).abs() < 5 * standard_error + 1e-12).all()

    # Missing labels

    def masked(self, shape: tuple[int, ...]) -> tuple[Likelihood, Tensor, Tensor, Tensor]:
        likelihood, f, y = self.both(shape)
        mask = torch.rand(y.shape, generator=seeded(7)) < 0.6
        mask.view(-1)[-1], mask.view(-1)[0] = True, False  # in this order: one label alone is missing
        return likelihood, f, y, mask

    def test_mask_splits_the_value_into_observed_and_missing(self, shape):
        if not self.masks:
            pytest.skip("no masks")
        likelihood, f, y, mask = self.masked(shape)
        total = likelihood.log_prob(f, y, mask) + likelihood.log_prob(f, y, ~mask)
        torch.testing.assert_close(total, likelihood.log_prob(f, y), **CLOSE)
        assert not torch.equal(likelihood.log_prob(f, y, mask), likelihood.log_prob(f, y))
        assert torch.equal(likelihood.log_prob(f, y, mask.to(f.dtype)), likelihood.log_prob(f, y, mask))
        torch.testing.assert_close(likelihood.log_prob(f, y, torch.ones_like(mask)), likelihood.log_prob(f, y), **CLOSE)
        assert not likelihood.log_prob(f, y, torch.zeros_like(mask)).any()
        assert torch.equal(likelihood.observed(y, mask), flat(mask).sum(1))
        assert torch.equal(likelihood.observed(y), flat(torch.ones_like(mask)).sum(1))

    def test_mask_equals_dropping_the_entries(self, shape):
        if not self.masks:
            pytest.skip("no masks")
        likelihood, f, y = self.both(shape)
        if y.ndim == 1 or y.shape[-1] == 1:
            pytest.skip("nothing left after dropping")
        mask = torch.arange(y.shape[-1]) > 0  # broadcasts over the batch
        kept = self.keep(f, y, mask.nonzero()[:, 0])
        torch.testing.assert_close(likelihood.log_prob(f, y, mask), likelihood.log_prob(*kept), **CLOSE)
        expected = likelihood.hessian_diagonal(kept[0]).sum()
        torch.testing.assert_close(likelihood.hessian_diagonal(f, mask).sum(), expected, **CLOSE)

    def test_garbage_under_the_mask_does_no_harm(self, shape):
        if not self.masks:
            pytest.skip("no masks")
        likelihood, f, y, mask = self.masked(shape)
        garbage = float("nan") if y.is_floating_point() else -100
        spoilt = y.masked_fill(~mask, garbage)
        likelihood.validate(f, spoilt, mask)
        assert torch.equal(likelihood.log_prob(f, spoilt, mask), likelihood.log_prob(f, y, mask))
        assert torch.equal(likelihood.gradient(f, spoilt, mask), likelihood.gradient(f, y, mask))
        f.requires_grad_()
        (expected,) = torch.autograd.grad(-likelihood.log_prob(f, spoilt, mask).sum(), f)
        torch.testing.assert_close(likelihood.gradient(f.detach(), spoilt, mask), expected, **CLOSE)
        with pytest.raises(DataError):
            likelihood.validate(f.detach(), spoilt)

    def test_broken_outputs_under_the_mask_do_no_harm(self, shape):
        likelihood, f, y = self.both(shape)
        if not (self.masks and isinstance(likelihood, PointwiseLikelihood)):
            pytest.skip("no such promise")
        mask = torch.ones_like(y, dtype=torch.bool)
        mask.view(-1)[0] = False
        unseen = likelihood.hessian_diagonal(f, mask) == 0
        broken = f.masked_fill(unseen, float("nan"))
        assert broken.isnan().any()
        torch.testing.assert_close(likelihood.log_prob(broken, y, mask), likelihood.log_prob(f, y, mask), **CLOSE)
        torch.testing.assert_close(likelihood.gradient(broken, y, mask), likelihood.gradient(f, y, mask), **CLOSE)
        assert torch.equal(likelihood.hessian_sqrt(broken, mask), likelihood.hessian_sqrt(f, mask))
        broken.requires_grad_()
        (through,) = torch.autograd.grad(likelihood.log_prob(broken, y, mask).sum(), broken)
        assert through.isfinite().all()

    def test_mask_removes_rows_and_columns_of_the_hessian(self, shape):
        if not self.masks:
            pytest.skip("no masks")
        likelihood, f, y, mask = self.masked(shape)
        matrix = likelihood.hessian(f, mask)
        if likelihood.label_independent:
            torch.testing.assert_close(autograd_hessian(likelihood, f, y, mask), matrix, **CLOSE)
        seen = (flat(likelihood.gradient(f, y, mask)) != 0) | (flat(likelihood.hessian_diagonal(f, mask)) != 0)
        seen = seen.to(f.dtype)
        assert seen.mean() < 1
        torch.testing.assert_close(matrix, likelihood.hessian(f) * seen[:, :, None] * seen[:, None, :], **CLOSE)
        root = flat(likelihood.hessian_sqrt(f, mask), 2)
        torch.testing.assert_close(torch.einsum("cni,cnj->nij", root, root), matrix, **CLOSE)
        torch.testing.assert_close(flat(likelihood.hessian_diagonal(f, mask)), matrix.diagonal(dim1=1, dim2=2), **CLOSE)
        column = flat(likelihood.fisher_column(f, seeded(4), mask))
        torch.testing.assert_close(column, flat(likelihood.fisher_column(f, seeded(4))) * seen, **CLOSE)

    def test_masks_that_fit_nothing_are_refused(self, shape):
        likelihood, f, y = self.both(shape)
        if not self.masks:
            with pytest.raises(UnsupportedOperationError, match="mask"):
                likelihood.log_prob(f, y, torch.ones_like(y, dtype=torch.bool))
            with pytest.raises(UnsupportedOperationError, match="mask"):
                likelihood.hessian(f, torch.ones_like(y, dtype=torch.bool))
            return
        with pytest.raises(DataError, match="mask of shape"):
            likelihood.log_prob(f, y, torch.ones(*y.shape, 2))
        with pytest.raises(DataError, match="only 0"):
            likelihood.validate(f, y, torch.full(y.shape, 0.5))

    # Numerics

    def test_float32_agrees_with_float64(self, shape):
        likelihood, f, y = self.both(shape)
        single = f.float()
        double = single.double()  # the same numbers, so that only the arithmetic differs
        short = y.float() if y.is_floating_point() else y
        long = short.double() if y.is_floating_point() else y
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype).float()
        for result, exact in (
            (likelihood.log_prob(single, short), likelihood.log_prob(double, long)),
            (likelihood.gradient(single, short), likelihood.gradient(double, long)),
            (likelihood.hessian(single), likelihood.hessian(double)),
            (likelihood.apply_sqrt(single, v), likelihood.apply_sqrt(double, v.double())),
            (likelihood.hessian_diagonal(single), likelihood.hessian_diagonal(double)),
        ):
            assert result.dtype == torch.float32
            torch.testing.assert_close(result.double(), exact, rtol=2e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_extreme_outputs_give_no_nan(self, shape, dtype):
        if not self.extremes:
            pytest.skip("makes no such promise")
        sign = torch.where(torch.rand(shape, generator=seeded(8)) < 0.5, -1.0, 1.0)
        sign = sign * torch.tensor([1.0, 0.0, 1e-3])[torch.randint(3, shape, generator=seeded(9))]
        f = (1e4 * sign).to(dtype)
        likelihood = self.likelihood().resolve(f)
        y = self.labels(torch.zeros_like(f))
        v = torch.ones(1, len(f), *likelihood.root_shape(f), dtype=dtype)
        value, gradient, diagonal = (
            likelihood.log_prob(f, y),
            likelihood.gradient(f, y),
            likelihood.hessian_diagonal(f),
        )
        for t in (value, gradient, diagonal, likelihood.apply_sqrt(f, v), likelihood.hessian_sqrt(f)):
            assert t.isfinite().all()
        assert likelihood.fisher_column(f, seeded()).isfinite().all()
        assert (diagonal >= 0).all()
        prediction = likelihood.predictive(f, torch.full_like(f, 1e4))
        for t in (prediction.mean, prediction.variance, prediction.noise_variance, prediction.probs):
            assert t is None or t.isfinite().all()
        root = f.clone().requires_grad_()
        (through,) = torch.autograd.grad(likelihood.log_prob(root, y).sum(), root)
        assert through.isfinite().all()

    def test_works_under_vmap_and_on_any_device(self, shape):
        likelihood, f, y = self.both(shape)
        v = torch.randn(2, len(f), *likelihood.root_shape(f), generator=seeded(), dtype=f.dtype)
        gradient = torch.func.vmap(lambda a, b: likelihood.gradient(a[None], b[None])[0])(f, y)
        torch.testing.assert_close(gradient, likelihood.gradient(f, y), **CLOSE)
        product = torch.func.vmap(
            lambda a, b: likelihood.apply_sqrt(a[None], b[:, None])[:, 0], in_dims=(0, 1), out_dims=1
        )(f, v)
        torch.testing.assert_close(product, likelihood.apply_sqrt(f, v), **CLOSE)
        away, labels = f.to("meta"), y.to("meta")  # a device on which any stray CPU tensor is an error
        assert likelihood.log_prob(away, labels).device.type == "meta"
        assert likelihood.gradient(away, labels).shape == f.shape
        assert likelihood.hessian(away).shape == likelihood.hessian(f).shape
        assert likelihood.hessian_sqrt(away).shape == likelihood.hessian_sqrt(f).shape
        assert likelihood.predictive(away, away).mean.device.type == "meta"

    def test_an_empty_batch_is_empty(self, shape):
        likelihood, f, y = self.both(shape)
        none, labels = f[:0], y[:0]
        assert likelihood.log_prob(none, labels).shape == (0,)
        assert likelihood.gradient(none, labels).shape == none.shape
        assert likelihood.hessian(none).shape[0] == 0
        assert likelihood.hessian_sqrt(none).shape[1:] == none.shape

    # Refusals

    def test_labels_of_another_shape_are_refused(self, shape):
        likelihood, f, y = self.both(shape)
        with pytest.raises(DataError, match="shape"):
            likelihood.validate(f, y.unsqueeze(-1))

    def test_broken_outputs_are_refused(self, shape):
        likelihood, f, _ = self.both(shape)
        broken = f.clone()
        broken.view(-1)[0] = float("nan")
        with pytest.raises(DataError, match="diverged"):
            likelihood.validate(broken)
        with pytest.raises(DataError, match="floating"):
            likelihood.validate(f.long())

    def test_state_dict_round_trip(self, shape):
        likelihood, f, y = self.both(shape)
        state = likelihood.state_dict()
        assert all(isinstance(value, (Tensor, str, float, int)) for value in state.values())
        again = Likelihood.from_state_dict(state)
        assert type(again) is type(likelihood)
        assert repr(again) == repr(likelihood)
        assert torch.equal(again.log_prob(f, y), likelihood.log_prob(f, y))
