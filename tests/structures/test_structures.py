"""Each structure inherits the conformance suite; what is peculiar to one follows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marquis.errors import DataError, ModelMismatchError, NumericalError
from marquis.structures import Block, Diagonal, Full, Layout, LowRank, Structure
from marquis.testing import STANDARD, StructureConformance, close, normal, random_psd

F64 = torch.float64


class TestDiagonal(StructureConformance):
    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        values = normal(layout.total, seed=seed).square() + 0.1
        if not definite:
            values[1::3] = 0
        return Diagonal(layout, values), torch.diag(values)

    def test_by_parameter_has_the_parameters_shape(self) -> None:
        value, dense = self.build(STANDARD)
        result = value.by_parameter()
        assert result["a.weight"].shape == (3, 4)
        close(result["a.weight"].flatten(), dense.diagonal()[:12])

    def test_singular_error_names_the_parameter(self) -> None:
        values = torch.ones(STANDARD.total, dtype=F64)
        values[STANDARD.slice("b.weight")] = 0
        with pytest.raises(NumericalError, match=r"b\.weight"):
            Diagonal(STANDARD, values).logdet()

    def test_tiny_effective_dimension_keeps_its_digits(self) -> None:
        value = Diagonal(STANDARD, torch.full((STANDARD.total,), 1e-20, dtype=F64))
        close(value.effective_dimension(1.0), torch.full((STANDARD.total,), 1e-20, dtype=F64), atol=0.0)

    def test_negative_curvature_is_held_but_not_inverted(self) -> None:
        value = Diagonal(STANDARD, torch.full((STANDARD.total,), -1.0))
        with pytest.raises(NumericalError):
            value.solve(torch.ones(STANDARD.total))
        assert value.add_diagonal(2.0).logdet() == 0

    def test_wrong_shape(self) -> None:
        with pytest.raises(DataError, match="shape"):
            Diagonal(STANDARD, torch.ones(4))
        with pytest.raises(DataError, match="int64"):
            Diagonal(STANDARD, torch.ones(STANDARD.total).long())


class TestFull(StructureConformance):
    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        dense = random_psd(layout.total, seed, None if definite else layout.total // 2)
        return Full(layout, dense.clone()), dense

    def test_by_parameter_is_the_block(self) -> None:
        value, dense = self.build(STANDARD)
        close(value.by_parameter()["a.bias"], dense[12:15, 12:15])

    def test_asymmetric_is_refused(self) -> None:
        matrix = random_psd(STANDARD.total, 0)
        matrix[0, 1] += 0.1
        with pytest.raises(DataError, match="symmetric"):
            Full(STANDARD, matrix)
        with pytest.raises(DataError, match="shape"):
            Full(STANDARD, torch.eye(3))


class TestBlock(StructureConformance):
    """Blocks whose parameters are neither in order nor adjacent, where the layout allows it."""

    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        backwards = layout.names[::-1]
        groups = {"even": backwards[::2], "odd": backwards[1::2]}
        dense = torch.zeros(layout.total, layout.total, dtype=F64)
        blocks = {}
        for i, (block, names) in enumerate(groups.items()):
            if names or not layout.names:  # a block without parameters still carries the dtype
                places = [torch.arange(layout.total)[layout.slice(name)] for name in names]
                index = torch.cat([torch.zeros(0).long(), *places])
                matrix = random_psd(len(index), seed + i, None if definite else len(index) // 2)
                dense[index[:, None], index] = matrix
                blocks[block] = (names, matrix)
        return Block(layout, blocks), dense

    def test_nan_in_an_accumulator_names_the_parameter(self) -> None:
        value, _ = self.build(STANDARD)
        matrices = [tensor.clone() for tensor in value.tensors()]
        matrices[1][2, 2] = torch.nan  # b.weight has 6 entries and comes first in its block
        with pytest.raises(DataError, match=r"'odd'.*b\.weight"):
            value.with_tensors(matrices)

    def test_by_parameter_is_the_block(self) -> None:
        value, dense = self.build(STANDARD)
        for name, matrix in value.by_parameter().items():
            place = STANDARD.slice(name)
            close(matrix, dense[place, place])

    def test_every_parameter_in_exactly_one_block(self) -> None:
        layout = Layout({"a": (2,), "b": (1,)})
        with pytest.raises(ModelMismatchError, match="'b'"):
            Block(layout, {"x": (("a",), torch.eye(2))})
        with pytest.raises(ModelMismatchError, match="'a'"):
            Block(layout, {"x": (("a", "b"), torch.eye(3)), "y": (("a",), torch.eye(2))})
        with pytest.raises(ModelMismatchError, match="'c'"):
            Block(layout, {"x": (("a", "b"), torch.eye(3)), "y": (("c",), torch.eye(2))})
        with pytest.raises(DataError, match="'x'"):
            Block(layout, {"x": (("a", "b"), torch.eye(2))})

    def test_different_blocks_do_not_add(self) -> None:
        layout = Layout({"a": (2,), "b": (1,)})
        one = Block(layout, {"x": (("a", "b"), torch.eye(3))})
        two = Block(layout, {"x": (("a",), torch.eye(2)), "y": (("b",), torch.eye(1))})
        with pytest.raises(ModelMismatchError, match="blocks differ"):
            one + two

    def test_one_block_is_full(self) -> None:
        matrix = random_psd(STANDARD.total, 3)
        block, full = Block(STANDARD, {"all": (STANDARD.names, matrix)}), Full(STANDARD, matrix)
        jacobian = normal(4, STANDARD.total, seed=1)
        close(block.logdet(), full.logdet())
        close(block.quadratic(jacobian), full.quadratic(jacobian))


class LowRankConformance(StructureConformance):
    def rank(self, layout: Layout) -> int:
        raise NotImplementedError

    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        columns = normal(layout.total, self.rank(layout), seed=seed)
        dense = 0.6 * columns @ columns.mT
        if not definite:
            return LowRank(layout, columns, scale=0.6), dense
        shift = normal(layout.total, seed=seed + 1).square() + 0.2
        return LowRank(layout, columns, shift, scale=0.6), dense + torch.diag(shift)

    def test_nan_in_an_accumulator_names_the_parameter(self) -> None:
        columns = torch.ones(STANDARD.total, 2)
        columns[13, 1] = torch.nan
        with pytest.raises(DataError, match=r"a\.bias"):
            LowRank(STANDARD, columns)

    def test_without_diagonal_says_what_to_do(self) -> None:
        value, _ = self.build(STANDARD, definite=False)
        some = value.add_diagonal(dict.fromkeys(STANDARD.names, 1.0) | {"b.weight": 0.0})
        for call in (some.logdet, lambda: some.solve(torch.ones(23)), lambda: some.sample(1)):
            with pytest.raises(NumericalError, match=r"b\.weight.*add_diagonal"):
                call()

    def test_scales_are_folded_only_when_they_differ(self) -> None:
        value, dense = self.build(STANDARD)
        assert isinstance(value, LowRank)
        assert (value + value).scale == 0.6
        close((value + 3 * value).to_dense(), 4 * dense)
        close((value.decay(0.5) + value).to_dense(), 1.5 * dense)

    def test_truncation(self) -> None:
        value, dense = self.build(STANDARD)
        assert isinstance(value, LowRank)
        assert value.shift is not None
        curvature = dense - torch.diag(value.shift)
        eigenvalues, vectors = torch.linalg.eigh(curvature)
        for rank in (0, 1, 2, min(value.rank, STANDARD.total)):
            small = value.truncate(rank)
            assert small.rank == rank
            top = slice(STANDARD.total - rank, None)
            kept = vectors[:, top] @ torch.diag(eigenvalues[top]) @ vectors[:, top].mT
            close(small.to_dense(), kept + torch.diag(value.shift))
        assert value.truncate(1000).rank == min(value.rank, STANDARD.total)
        close(value.truncate(1000).to_dense(), dense)
        close(value.truncate(STANDARD.total).to_dense(), dense)
        with pytest.raises(DataError):
            value.truncate(-1)

    def test_by_parameter_is_the_block(self) -> None:
        value, dense = self.build(STANDARD)
        for name, own in value.by_parameter().items():
            place = STANDARD.slice(name)
            close(own.to_dense(), dense[place, place])

    def test_gather_flag(self) -> None:
        value, _ = self.build(STANDARD)
        assert value.reduction == "gather"
        assert Diagonal.reduction == Full.reduction == Block.reduction == "sum"


class TestLowRankDual(LowRankConformance):
    def rank(self, layout: Layout) -> int:
        return min(5, layout.total // 2)

    def test_woodbury_is_used(self) -> None:
        assert self.build(STANDARD)[0].noise_dim == STANDARD.total + 5


class TestLowRankOneLess(LowRankConformance):
    def rank(self, layout: Layout) -> int:
        return max(layout.total - 1, 0)


class TestLowRankWide(LowRankConformance):
    def rank(self, layout: Layout) -> int:
        return layout.total + 4


class TestLowRankSquare(LowRankConformance):
    def rank(self, layout: Layout) -> int:
        return layout.total


def test_low_rank_without_columns_is_its_diagonal() -> None:
    value = LowRank(STANDARD, torch.zeros(STANDARD.total, 0, dtype=F64), 2.0)
    diagonal = Diagonal(STANDARD, torch.full((STANDARD.total,), 2.0, dtype=F64))
    jacobian = normal(3, STANDARD.total, seed=0)
    close(value.logdet(), diagonal.logdet())
    close(value.quadratic(jacobian), diagonal.quadratic(jacobian))
    close(value.effective_dimension(1.0), diagonal.effective_dimension(1.0))


def test_low_rank_gradient_survives_a_sum_with_an_equal_plain_scale() -> None:
    scale = torch.tensor(1.0, dtype=F64, requires_grad=True)
    columns = normal(STANDARD.total, 2, seed=0)
    for total in (
        LowRank(STANDARD, columns) + LowRank(STANDARD, columns, scale=scale),
        LowRank(STANDARD, columns, scale=scale) + LowRank(STANDARD, columns),
    ):
        (grad,) = torch.autograd.grad(total.trace(), scale)
        close(grad, columns.square().sum())


def test_low_rank_variances_do_not_cancel_below_their_bound() -> None:
    """The difference 1/d - leverage loses every digit of 1 / (1e20 + 1e-2), the sum of squares does not."""
    layout = Layout({"w": (3,)})
    columns = torch.tensor([[1e10], [0.0], [0.0]], dtype=F64)
    value = LowRank(layout, columns, 1e-2)
    assert 1e-20 * (1 - 1e-12) <= float(value.inverse_diagonal()[0]) < 100 * 1e-15
    close(value.quadratic(torch.eye(3, dtype=F64), True)[0], torch.tensor(1e-20, dtype=F64), atol=0.0)
