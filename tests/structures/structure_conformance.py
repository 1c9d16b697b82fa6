"""What every structure has to satisfy, against a dense oracle built independently of it.

A new structure inherits `StructureConformance`, writes `build`, and gets every test below.
"""

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

STANDARD = Layout({"a.weight": (3, 4), "a.bias": (3,), "b.weight": (2, 3), "b.bias": (2,)})
LAYOUTS = {
    "standard": STANDARD,
    "empty": Layout({}),
    "one": Layout({"w": (1, 1)}),
    "scalar": Layout({"s": ()}),
    "with an empty parameter": Layout({"a": (2, 3), "nothing": (0, 3), "b": (2,)}),
    "all parameters empty": Layout({"nothing": (0, 3)}),
}
F64 = torch.float64


def close(actual: Tensor, expected: Tensor, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Equal in shape, dtype and value."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def random_psd(n: int, seed: int, rank: int | None = None) -> Tensor:
    """A random positive semi-definite matrix; definite unless a lower rank is asked for."""
    root = normal(n, n + 3 if rank is None else rank, seed=seed)
    return root @ root.mT


def flat_index(layout: Layout, names: tuple[str, ...]) -> Tensor:
    starts, position = {}, 0
    for name, shape in layout.items:
        starts[name] = (position, position + math.prod(shape))
        position += math.prod(shape)
    return torch.cat([torch.arange(*starts[name]) for name in names]) if names else torch.zeros(0).long()


def inverse(matrix: Tensor) -> Tensor:
    return torch.linalg.inv(matrix) if matrix.numel() else matrix


class OnEveryLayout:
    """Linear algebra, on ordinary, empty and one-weight parameter vectors."""

    layouts: ClassVar[dict[str, Layout]] = LAYOUTS

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.layouts.values(), ids=self.layouts.keys())

    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        """A float64 structure and the same matrix, dense, made without the structure's help."""
        raise NotImplementedError

    def test_to_dense(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        close(value.to_dense(), dense)

    def test_diagonal_and_trace(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        close(value.diagonal(), dense.diagonal())
        close(value.trace(), dense.trace())

    def test_logdet(self, layout: Layout) -> None:
        value, dense = self.build(layout)
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

    def test_inverse_diagonal(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        close(value.inverse_diagonal(), inverse(dense).diagonal())

    def test_sampler_map_is_a_root_of_the_covariance(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        root = value.sample_from(torch.eye(value.noise_dim, dtype=F64)).mT
        close(root @ root.mT, inverse(dense))

    def test_sampler_map_is_linear_over_batches(self, layout: Layout) -> None:
        value, _ = self.build(layout)
        z = normal(2, 3, value.noise_dim, seed=3)
        columns = value.sample_from(torch.eye(value.noise_dim, dtype=F64))
        close(value.sample_from(z), z @ columns)
        close(value.sample_from(z[0, 0]), z[0, 0] @ columns)

    def test_effective_dimension(self, layout: Layout) -> None:
        value, dense = self.build(layout, definite=False)
        for prior in (0.3, self.per_parameter(layout)):
            d = layout.vector(prior, dense)
            expected = (dense @ inverse(dense + torch.diag(d))).diagonal()
            close(value.effective_dimension(prior), expected)

    def test_effective_dimension_is_the_sum_over_eigenvalues(self, layout: Layout) -> None:
        value, dense = self.build(layout, definite=False)
        eigenvalues = torch.linalg.eigvalsh(dense).clamp(min=0)
        close(value.effective_dimension(0.7).sum(), (eigenvalues / (eigenvalues + 0.7)).sum())

    def per_parameter(self, layout: Layout) -> Mapping[str, Any]:
        return {name: torch.tensor(0.5 + i, dtype=F64) for i, name in enumerate(layout.names)}

    def test_add_diagonal(self, layout: Layout) -> None:
        value, dense = self.build(layout, definite=False)
        identity = torch.eye(layout.total, dtype=F64)
        close(value.add_diagonal(0.4).to_dense(), dense + 0.4 * identity)
        close(value.add_diagonal(torch.tensor(2.0)).to_dense(), dense + 2 * identity)
        shifts = self.per_parameter(layout)
        d = layout.vector(shifts, dense)
        close(value.add_diagonal(shifts).to_dense(), dense + torch.diag(d))
        close(value.add_diagonal(d).to_dense(), dense + torch.diag(d))
        close(value.add_diagonal(0.4).add_diagonal(d).to_dense(), dense + torch.diag(d + 0.4))
        close(value.add_diagonal(0.4).solve(d), inverse(dense + 0.4 * identity) @ d)

    def test_state_round_trip(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        state = value.state_dict()
        assert all(isinstance(tensor, Tensor) and tensor.is_contiguous() for tensor in state.values())
        for loaded in (state, load_safetensors(save_safetensors(state))):
            again = from_state_dict(loaded)
            assert type(again) is type(value)
            assert again.layout == value.layout
            assert torch.equal(again.to_dense(), value.to_dense())
            assert all(torch.equal(a, b) for a, b in zip(again.tensors(), value.tensors(), strict=True))
        close(value.to_dense(), dense)

    def test_copies_and_pickles(self, layout: Layout) -> None:
        value, dense = self.build(layout)
        value.logdet()  # with its factorisation kept
        for again in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            close(again.to_dense(), dense)
            close(again.logdet(), value.logdet())

    def test_repr_and_bytes(self, layout: Layout) -> None:
        value, _ = self.build(layout)
        assert type(value).__name__ in repr(value)
        assert f"P={layout.total}" in repr(value)
        assert "float64" in repr(value) or not value.tensors()
        assert value.nbytes == sum(t.numel() * t.element_size() for t in value.tensors())


class StructureConformance(OnEveryLayout):
    """Arithmetic, refusals, dtype and immutability, on the standard layout."""

    def expected_sum(self, a: Structure, b: Structure) -> Tensor:
        return a.to_dense() + b.to_dense()

    def test_sample(self) -> None:
        value, dense = self.build(STANDARD)
        drawn = value.sample(4, generator(5))
        assert drawn.shape == (4, STANDARD.total)
        assert torch.equal(drawn, value.sample(4, generator(5)))
        before = torch.get_rng_state()
        value.sample(2, generator(6))
        assert torch.equal(before, torch.get_rng_state())
        assert value.sample(0).shape == (0, STANDARD.total)
        draws = 200_000
        covariance = inverse(dense)
        found = value.sample(draws, generator(7))
        variance = covariance.diagonal()
        error = ((variance.outer(variance) + covariance.square()) / draws).sqrt()
        assert (((found.mT @ found) / draws - covariance).abs() < 5 * error).all()

    def test_sum(self) -> None:
        (a, _), (b, _) = self.build(STANDARD, 0), self.build(STANDARD, 10)
        expected = self.expected_sum(a, b)
        close((a + b).to_dense(), expected)
        close((b + a).to_dense(), expected)
        close(sum([a, b], 0).to_dense(), expected)  # type: ignore[union-attr]
        assert (0 + a) is a
        assert (a + 0) is a

    def test_scaling(self) -> None:
        value, dense = self.build(STANDARD)
        for scaled in (2.5 * value, value * 2.5, torch.tensor(2.5) * value, numpy.float64(2.5) * value):
            close(scaled.to_dense(), 2.5 * dense)
        close((value / 4).to_dense(), dense / 4)
        close((0 * value).to_dense(), 0 * dense)
        close((3 * value).logdet(), torch.logdet(3 * dense))
        close((3 * value).solve(dense[0]), inverse(3 * dense) @ dense[0])

    def test_decay(self) -> None:
        value, dense = self.build(STANDARD)
        close(value.decay(0.9).to_dense(), 0.9 * dense)
        close(value.decay(0.9).logdet(), torch.logdet(0.9 * dense))
        close(value.decay(0).to_dense(), 0 * dense)
        close((value.decay(0) + value).to_dense(), dense)

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
        other: Structure = Full(STANDARD, torch.eye(STANDARD.total))
        if isinstance(value, Full):
            other = Diagonal(STANDARD, torch.ones(STANDARD.total))
        with pytest.raises(UnsupportedOperationError, match="one kind"):
            value + other
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
            assert torch.isfinite(total.sample(3, generator(0))).all()
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
        kept = [tensor.clone() for tensor in value.tensors()]
        v, d = normal(2, STANDARD.total, seed=8), torch.full((STANDARD.total,), 0.5, dtype=F64)
        v_kept, d_kept = v.clone(), d.clone()
        value.solve(v), value.matvec(v), value.quadratic(v), value.logdet(), value.sample(2, generator(0))
        value.add_diagonal(d), value.effective_dimension(d), value.decay(0.5), 3 * value, value + value
        value.inverse_diagonal(), value.by_parameter(), value.state_dict(), value.to_dense().zero_()
        z = normal(2, value.noise_dim, seed=9)
        value.sample_from(z)
        assert all(torch.equal(a, b) for a, b in zip(kept, value.tensors(), strict=True))
        assert torch.equal(v, v_kept) and torch.equal(d, d_kept)
        with pytest.raises(AttributeError):
            value.layout = STANDARD  # type: ignore[misc]

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
        delta = {name: torch.tensor(0.5 + i, dtype=F64, requires_grad=True) for i, name in enumerate(STANDARD.names)}
        d = torch.cat([delta[name].detach().expand(STANDARD.sizes[name]) for name in STANDARD.names])
        covariance = inverse(1.7 * dense + torch.diag(d))
        (value * scale).add_diagonal(delta).logdet().backward()
        assert scale.grad is not None
        close(scale.grad, (covariance @ dense).trace())
        for name in STANDARD.names:
            place = STANDARD.slice(name)
            grad = delta[name].grad
            assert grad is not None
            close(grad, covariance.diagonal()[place].sum())

    def test_state_of_something_else_is_refused(self) -> None:
        value, _ = self.build(STANDARD)
        state = value.state_dict()
        with pytest.raises(DataError, match="not the state"):
            from_state_dict({"weight": torch.ones(2)})
        for key in state:
            if key != "structure":
                with pytest.raises(DataError, match="lacks"):
                    from_state_dict({k: v for k, v in state.items() if k != key})
        with pytest.raises(DataError, match="cannot be read"):
            from_state_dict(state | {"structure": state["structure"][:-3]})
        value.state_dict()[next(key for key in state if key != "structure")].zero_()
        assert value.trace() > 0  # the state is a copy

    def test_by_parameter_covers_every_name(self) -> None:
        value, _ = self.build(STANDARD)
        assert tuple(value.by_parameter()) == STANDARD.names
