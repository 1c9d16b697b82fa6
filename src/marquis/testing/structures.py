# pyright: reportUnusedExpression=false
"""Test what every structure has to satisfy, against a dense matrix that is built independently of it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy
import pytest
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from marquis.errors import DataError, MarquisError, ModelMismatchError, UnsupportedOperationError
from marquis.structures import Diagonal, Full, Layout, Structure, from_state_dict
from marquis.testing.tools import close, normal, seeded

STANDARD = Layout({"a.weight": (3, 4), "a.bias": (3,), "b.weight": (2, 3), "b.bias": (2,)})
"""The layout of two small dense layers."""

LAYOUTS = {
    "standard": STANDARD,
    "empty": Layout({}),
    "one": Layout({"w": (1, 1)}),
    "scalar": Layout({"s": ()}),
    "with an empty parameter": Layout({"a": (2, 3), "nothing": (0, 3), "b": (2,)}),
    "all parameters empty": Layout({"nothing": (0, 3)}),
}
"""Ordinary, empty and one-weight parameter vectors."""

F64 = torch.float64


def inverse(matrix: Tensor) -> Tensor:
    """Return the inverse; of an empty matrix, itself."""
    return torch.linalg.inv(matrix) if matrix.numel() else matrix


def per_parameter(layout: Layout) -> Mapping[str, Any]:
    """Return one positive number for each parameter."""
    return {name: torch.tensor(0.5 + i, dtype=F64) for i, name in enumerate(layout.names)}


class StructureConformance:
    """Check a structure's linear algebra, arithmetic, errors, dtypes and immutability.

    Inherit it once per structure and write `build`. A structure of your own has to be in
    `marquis.structures.STRUCTURES` under its `kind`, so that its saved state can be read.

    Attributes:
        layouts: Parameter vectors on which the linear algebra is checked.
    """

    layouts: ClassVar[dict[str, Layout]] = LAYOUTS

    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        """Return a float64 structure and the same matrix, dense, made without the structure's help.

        Args:
            layout: The parameters it is over.
            seed: Seed of its values.
            definite: Whether it has to be positive definite, or rather singular.
        """
        raise NotImplementedError

    def expected_sum(self, a: Structure, b: Structure) -> Tensor:
        """Return what `a + b` has to be, dense."""
        return a.to_dense() + b.to_dense()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check that takes a `layout` on all of them."""
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.layouts.values(), ids=self.layouts.keys())

    # Linear algebra, on every layout

    def test_dense_diagonal_trace_and_logdet(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        close(value.to_dense(), dense)
        close(value.diagonal(), dense.diagonal())
        close(value.trace(), dense.trace())
        close(value.inverse_diagonal(), inverse(dense).diagonal())
        sign, expected = torch.linalg.slogdet(dense)
        assert sign == 1
        close(value.logdet(), expected)

    @pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
    def test_matvec_and_solve(self, layout: Layout, batch: tuple[int, ...]) -> None:
        value, dense = self.build(layout)
        v = normal(*batch, layout.total, seed=1)
        close(value.matvec(v), v @ dense)
        close(value @ v, v @ dense)
        close(value.solve(v), v @ inverse(dense))

    @pytest.mark.parametrize("batch", [(), (2,), (2, 1)])
    @pytest.mark.parametrize("outputs", [1, 5, 0])
    def test_quadratic(self, layout: Layout, batch: tuple[int, ...], outputs: int) -> None:
        value, dense = self.build(layout)
        jacobian = normal(*batch, outputs, layout.total, seed=2)
        expected = jacobian @ inverse(dense) @ jacobian.mT
        close(value.quadratic(jacobian), expected)
        close(value.quadratic(jacobian, diagonal_only=True), expected.diagonal(dim1=-2, dim2=-1))

    def test_sampler_is_a_linear_root_of_the_covariance(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        columns = value.sample_from(torch.eye(value.noise_dim, dtype=F64))
        close(columns.mT @ columns, inverse(dense))
        z = normal(2, 3, value.noise_dim, seed=3)
        close(value.sample_from(z), z @ columns)
        close(value.sample_from(z[0, 0]), z[0, 0] @ columns)

    def test_effective_dimension(self, layout: Layout) -> None:
        value, dense = self.build(layout, definite=False)
        for prior in (0.3, per_parameter(layout)):
            expected = (dense @ inverse(dense + torch.diag(layout.vector(prior, dense)))).diagonal()
            close(value.effective_dimension(prior), expected)
        eigenvalues = torch.linalg.eigvalsh(dense).clamp(min=0)
        close(value.effective_dimension(0.7).sum(), (eigenvalues / (eigenvalues + 0.7)).sum())

    def test_add_diagonal(self, layout: Layout) -> None:
        value, dense = self.build(layout, definite=False)
        identity, shifts = torch.eye(layout.total, dtype=F64), per_parameter(layout)
        d = layout.vector(shifts, dense)
        close(value.add_diagonal(0.4).to_dense(), dense + 0.4 * identity)
        close(value.add_diagonal(torch.tensor(2.0)).to_dense(), dense + 2 * identity)
        close(value.add_diagonal(shifts).to_dense(), dense + torch.diag(d))
        close(value.add_diagonal(d).to_dense(), dense + torch.diag(d))
        close(value.add_diagonal(0.4).add_diagonal(d).to_dense(), dense + torch.diag(d + 0.4))
        close(value.add_diagonal(0.4).solve(d), inverse(dense + 0.4 * identity) @ d)

    def test_state_copies_and_pickles_round_trip(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        state = value.state_dict()
        assert all(isinstance(tensor, Tensor) and tensor.is_contiguous() for tensor in state.values())
        for loaded in (state, load_safetensors(save_safetensors(state))):
            again = from_state_dict(loaded)
            assert type(again) is type(value)
            assert again.layout == value.layout
            assert torch.equal(again.to_dense(), value.to_dense())
            assert all(torch.equal(a, b) for a, b in zip(again.tensors(), value.tensors(), strict=True))
        value.logdet()  # with its factorisation kept
        for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            close(again.to_dense(), dense)
            close(again.logdet(), value.logdet())

    def test_repr_and_bytes(self, layout: Layout) -> None:
        value, _ = self.build(layout)
        assert type(value).__name__ in repr(value) and f"P={layout.total}" in repr(value)
        assert "float64" in repr(value) or not value.tensors()
        assert value.nbytes == sum(t.numel() * t.element_size() for t in value.tensors())

    # Samples, sums and factors

    def test_sample(self) -> None:
        value, dense = self.build(STANDARD)
        before = torch.get_rng_state()
        first = value.sample(4, seeded(5))
        assert torch.equal(before, torch.get_rng_state())
        assert first.shape == (4, STANDARD.total) and torch.equal(first, value.sample(4, seeded(5)))
        assert value.sample(0).shape == (0, STANDARD.total)
        count, covariance = 200_000, inverse(dense)
        samples = value.sample(count, seeded(7))
        variance = covariance.diagonal()
        error = ((variance.outer(variance) + covariance.square()) / count).sqrt()
        assert (((samples.mT @ samples) / count - covariance).abs() < 5 * error).all()

    def test_sum(self) -> None:
        (a, _), (b, _) = self.build(STANDARD, 0), self.build(STANDARD, 10)
        expected = self.expected_sum(a, b)
        for total in (a + b, b + a, sum([a, b], 0)):
            close(total.to_dense(), expected)  # type: ignore[union-attr]
        assert (0 + a) is a and (a + 0) is a

    def test_scaling_and_decay(self) -> None:
        value, dense = self.build(STANDARD)
        for scaled in (2.5 * value, value * 2.5, torch.tensor(2.5) * value, numpy.float64(2.5) * value):
            close(scaled.to_dense(), 2.5 * dense)
        close((value / 4).to_dense(), dense / 4)
        close((0 * value).to_dense(), 0 * dense)
        close((3 * value).logdet(), torch.logdet(3 * dense))
        close((3 * value).solve(dense[0]), inverse(3 * dense) @ dense[0])
        close(value.decay(0.9).to_dense(), 0.9 * dense)
        close(value.decay(0.9).logdet(), torch.logdet(0.9 * dense))
        close(value.decay(0).to_dense(), 0 * dense)
        close((value.decay(0) + value).to_dense(), dense)

    def test_tensors_rebuild(self) -> None:
        (a, dense), (b, _) = self.build(STANDARD, 0), self.build(STANDARD, 10)
        close(a.with_tensors(a.tensors()).to_dense(), dense)
        if a.reduction == "sum":
            total = [x + y for x, y in zip(a.tensors(), b.tensors(), strict=True)]
            close(a.with_tensors(total).to_dense(), (a + b).to_dense())
            assert all(x.dtype == F64 for x in a.tensors())

    def test_gradients_reach_scale_and_prior(self) -> None:
        value, dense = self.build(STANDARD, definite=False)
        scale = torch.tensor(1.7, dtype=F64, requires_grad=True)
        delta = {name: number.requires_grad_() for name, number in per_parameter(STANDARD).items()}
        d = torch.cat([delta[name].detach().expand(STANDARD.sizes[name]) for name in STANDARD.names])
        covariance = inverse(1.7 * dense + torch.diag(d))
        (value * scale).add_diagonal(delta).logdet().backward()
        close(scale.grad, (covariance @ dense).trace())  # type: ignore[arg-type]
        for name in STANDARD.names:
            close(delta[name].grad, covariance.diagonal()[STANDARD.slice(name)].sum())

    def test_by_parameter_covers_every_name(self) -> None:
        value, _ = self.build(STANDARD)
        assert tuple(value.by_parameter()) == STANDARD.names

    # Errors

    @pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf, "two", torch.tensor([1.0, 2.0])])
    def test_refused_factors(self, factor: Any) -> None:
        value, _ = self.build(STANDARD)
        for call in (lambda: value * factor, lambda: value.decay(factor), lambda: value / factor):
            with pytest.raises(DataError):
                call()
        with pytest.raises(DataError, match="by 0"):
            value / 0

    def test_refused_sums(self) -> None:
        value, _ = self.build(STANDARD)
        renamed = Layout({"c" + name[1:] if name == "b.bias" else name: s for name, s in STANDARD.items})
        with pytest.raises(ModelMismatchError, match=r"b\.bias"):
            value + self.build(renamed)[0]
        with pytest.raises(ModelMismatchError, match="order"):
            value + self.build(Layout(dict(reversed(STANDARD.items))))[0]
        full, diagonal = Full(STANDARD, torch.eye(STANDARD.total)), Diagonal(STANDARD, torch.ones(STANDARD.total))
        with pytest.raises(UnsupportedOperationError, match="one kind"):
            value + (diagonal if isinstance(value, Full) else full)
        with pytest.raises(TypeError):
            value + 1  # type: ignore[operator]

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_refused_vectors_name_the_parameter(self, bad: float) -> None:
        value, _ = self.build(STANDARD)
        v = torch.ones(3, STANDARD.total, dtype=F64)
        v[1, STANDARD.slice("b.weight").start] = bad
        for call in (value.solve, value.matvec, value.quadratic):
            with pytest.raises(DataError, match=r"b\.weight"):
                call(v)
            with pytest.raises(DataError, match="last axis"):
                call(torch.ones(3, STANDARD.total + 1, dtype=F64))
        with pytest.raises(DataError, match="outputs"):
            value.quadratic(v[0])
        with pytest.raises(DataError, match="noise_dim"):
            value.sample_from(torch.ones(value.noise_dim + 1, dtype=F64))

    @pytest.mark.parametrize(
        "diagonal",
        [
            -0.1,
            math.nan,
            torch.ones(7),
            torch.ones(STANDARD.total, 1),
            {"a.weight": 1.0},
            dict.fromkeys(STANDARD.names, 1.0) | {"c": 1.0},
            dict.fromkeys(STANDARD.names, 1.0) | {"a.bias": -1.0},
            dict.fromkeys(STANDARD.names, 1.0) | {"a.bias": torch.ones(5)},
        ],
    )
    def test_refused_diagonals(self, diagonal: Any) -> None:
        value, _ = self.build(STANDARD)
        for call in (value.add_diagonal, value.effective_dimension):
            with pytest.raises((DataError, ModelMismatchError)):
                call(diagonal)

    def test_nan_in_an_accumulator_names_the_parameter(self) -> None:
        value, _ = self.build(STANDARD)
        broken = [tensor.clone() for tensor in value.tensors()]
        place = STANDARD.slice("a.weight").start
        broken[0][(0,) * broken[0].dim() if broken[0].dim() == 3 else place] = math.nan
        with pytest.raises(DataError, match=r"a\.weight"):
            value.with_tensors(broken)

    def test_state_of_something_else_is_refused(self) -> None:
        value, _ = self.build(STANDARD)
        state = value.state_dict()
        with pytest.raises(DataError, match="not the state"):
            from_state_dict({"weight": torch.ones(2)})
        keys = [key for key in state if key != "structure"]
        for key in keys:
            with pytest.raises(DataError, match="lacks"):
                from_state_dict({k: v for k, v in state.items() if k != key})
        with pytest.raises(DataError, match="cannot be read"):
            from_state_dict(state | {"structure": state["structure"][:-3]})
        value.state_dict()[keys[0]].zero_()
        assert value.trace() > 0  # the state is a copy

    # Numerics

    def test_singular_raises_or_warns_and_never_gives_nan(self) -> None:
        zero = self.build(STANDARD)[0].decay(0)
        v = torch.ones(2, STANDARD.total, dtype=F64)
        calls = (
            zero.logdet,
            zero.inverse_diagonal,
            lambda: zero.solve(v),
            lambda: zero.quadratic(v),
            lambda: zero.sample(1),
            lambda: zero.effective_dimension(0.0),
        )
        for call in calls:
            with pytest.raises(MarquisError, match="add_diagonal"):
                call()
        assert torch.equal(zero.matvec(v), torch.zeros_like(v))
        close(zero.effective_dimension(1.0), torch.zeros(STANDARD.total, dtype=F64))

    @pytest.mark.filterwarnings("ignore::marquis.structures.NumericalWarning")
    def test_badly_conditioned_stays_finite(self) -> None:
        value, _ = self.build(STANDARD, definite=False)
        for factor, d in ((1e12, 1e-3), (1e-12, 1e3), (1e100, 1e90)):
            total = (factor * value).add_diagonal(d)
            assert math.isfinite(float(total.logdet()))
            variance = total.inverse_diagonal()
            assert (variance > 0).all() and (variance <= (1 + 1e-6) / d).all()
            eye = torch.eye(STANDARD.total, dtype=F64)
            assert (total.quadratic(eye, diagonal_only=True) >= 0).all()
            assert torch.isfinite(total.sample(3, seeded(0))).all()
            gamma = (factor * value).effective_dimension(d)
            assert (gamma >= 0).all() and (gamma <= 1 + 1e-12).all()

    def test_dtype(self) -> None:
        value, dense = self.build(STANDARD)
        single = value.to(dtype=torch.float32)
        assert (value.dtype, single.dtype, single.device.type) == (F64, torch.float32, "cpu")
        v = normal(2, STANDARD.total, seed=4)
        close(single.to_dense(), dense.float(), rtol=1e-5, atol=1e-5)
        close(single.logdet(), torch.logdet(dense).float(), rtol=1e-4, atol=1e-4)
        close(single.solve(v.float()), (v @ inverse(dense)).float(), rtol=1e-3, atol=1e-3)
        assert single.add_diagonal(torch.ones(STANDARD.total, dtype=F64)).dtype == torch.float32
        assert (2.0 * single).sample(2).dtype == torch.float32
        assert value.solve(v.float()).dtype == F64  # widened
        with pytest.raises(DataError, match="losing digits"):
            single.solve(v)
        with pytest.raises(DataError, match="float32 or float64"):
            value.to(dtype=torch.bfloat16)
        wide = single.to(dtype=F64)
        assert all(torch.equal(a, b.double()) for a, b in zip(wide.tensors(), single.tensors(), strict=True))

    def test_nothing_is_mutated(self) -> None:
        value, _ = self.build(STANDARD)
        copies = [tensor.clone() for tensor in value.tensors()]
        v, d = normal(2, STANDARD.total, seed=8), torch.full((STANDARD.total,), 0.5, dtype=F64)
        v_kept, d_kept = v.clone(), d.clone()
        value.solve(v), value.matvec(v), value.quadratic(v), value.logdet(), value.sample(2, seeded(0))
        value.add_diagonal(d), value.effective_dimension(d), value.decay(0.5), 3 * value, value + value
        value.inverse_diagonal(), value.by_parameter(), value.state_dict(), value.to_dense().zero_()
        value.sample_from(normal(2, value.noise_dim, seed=9))
        assert all(torch.equal(a, b) for a, b in zip(copies, value.tensors(), strict=True))
        assert torch.equal(v, v_kept) and torch.equal(d, d_kept)
        with pytest.raises(AttributeError):
            value.layout = STANDARD  # type: ignore[misc]
