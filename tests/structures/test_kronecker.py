"""Kronecker: the conformance suite, and what its sum, scale, decay and diagonal mean (docs/method/kronecker.md)."""

from __future__ import annotations

import math
from typing import ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor

from marquis.errors import DataError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.structures import Full, Kronecker, Layout, Structure, from_state_dict
from marquis.structures.pieces import DensePiece, DiagonalPiece, KroneckerFactors, KroneckerPiece, Piece
from marquis.testing import LAYOUTS, StructureConformance, close, normal, random_psd

F64 = torch.float64


def reordered(block: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The block of a weight [g, r, i, s / i] as that of [g, i, r, s / i]."""
    order = torch.arange(len(block)).view(*shape, len(block) // max(1, math.prod(shape))).transpose(1, 2).flatten()
    return block[order][:, order]


class KroneckerConformance(StructureConformance):
    """Matrices as Kronecker pieces, vectors in turn dense and diagonal."""

    # Without a parameter there is no tensor and no dtype: test_structures_over_no_parameters_at_all.
    layouts: ClassVar[dict[str, Layout]] = {name: layout for name, layout in LAYOUTS.items() if layout.names}
    groups = 1
    channels = 1
    scale = 1.0
    shift = 0.0

    def build(self, layout: Layout, seed: int = 0, definite: bool = True) -> tuple[Structure, Tensor]:
        pieces: dict[str, Piece] = {}
        blocks = []
        for i, (name, shape) in enumerate(layout.items):
            n, here = math.prod(shape), seed + 100 * i
            if len(shape) >= 2:
                g = self.groups if shape[0] % self.groups == 0 else 1
                r, s, count = shape[0] // g, math.prod(shape[1:]), 7.0 + i
                left = [random_psd(r, here + k, None if definite else (r + 1) // 2) for k in range(g)]
                right = [random_psd(s, here + k + 50) for k in range(g)]
                channels = self.channels if s % self.channels == 0 else 1
                pieces[name] = KroneckerPiece(torch.stack(left), torch.stack(right), count, channels)
                both = [torch.kron(a, b) / count for a, b in zip(left, right, strict=True)]
                blocks.append(reordered(torch.block_diag(*both), (g, r, channels)))
            elif i % 2 == 1:
                matrix = random_psd(n, here, None if definite else n // 2)
                pieces[name] = DensePiece(matrix)
                blocks.append(matrix)
            else:
                values = normal(n, seed=here).square() + 0.1
                pieces[name] = DiagonalPiece(values.reshape(shape))
                blocks.append(torch.diag(values))
        dense = torch.zeros(0, 0, dtype=F64)
        for block in blocks:
            dense = torch.block_diag(dense, block.reshape(len(block), len(block))) if block.numel() else dense
        dense = self.scale * dense
        if definite and self.shift:
            return Kronecker(layout, pieces, self.scale, self.shift), dense + self.shift * torch.eye(
                len(dense), dtype=F64
            )
        return Kronecker(layout, pieces, self.scale), dense

    def expected_sum(self, a: Structure, b: Structure) -> Tensor:
        """The joint batch: factors and counts added before the product."""
        assert isinstance(a, Kronecker) and isinstance(b, Kronecker)
        blocks = []
        for name in a.layout.names:
            mine, theirs = a.pieces[name].tensors(), b.pieces[name].tensors()
            total = [x + y for x, y in zip(mine, theirs, strict=True)]
            if len(total) == 3:
                left, right, count = total
                both = [torch.kron(x, y) / count for x, y in zip(left, right, strict=True)]
                shape = (len(left), left.shape[-1], a.pieces[name].channels)  # type: ignore[attr-defined]
                blocks.append(reordered(torch.block_diag(*both), shape))
            else:
                blocks.append(total[0] if total[0].dim() == 2 else torch.diag(total[0]))
        dense = self.scale * torch.block_diag(*blocks)
        return dense + 2 * self.shift * torch.eye(len(dense), dtype=F64)


class TestKronecker(KroneckerConformance):
    pass


class TestKroneckerScaledAndShifted(KroneckerConformance):
    scale = 0.7
    shift = 0.3


class TestKroneckerGrouped(KroneckerConformance):
    groups = 2
    scale = 2.0


class TestKroneckerOfTransposedConvolutions(KroneckerConformance):
    groups = 2
    channels = 3
    scale = 0.7


def test_channels_are_kept_checked_and_not_mixed() -> None:
    layout = Layout({"w": (4, 2, 3)})

    def build(channels: int) -> Kronecker:
        piece = KroneckerPiece(random_psd(2, 0)[None], random_psd(12, 1)[None], 3.0, channels)
        return Kronecker(layout, {"w": piece})

    value = build(4)
    factors = value.by_parameter()["w"]
    assert isinstance(factors, KroneckerFactors) and factors.channels == 4
    close(reordered(torch.kron(factors.left[0], factors.right[0]), (1, 2, 4)), value.to_dense())
    assert float((value.to_dense() - build(1).to_dense()).abs().max()) > 0.1
    again = from_state_dict(value.state_dict())
    close(again.to_dense(), value.to_dense())
    with pytest.raises(ModelMismatchError, match="two orders"):
        _ = value + build(1)
    with pytest.raises(DataError, match="multiple of 5 channels"):
        build(5)


LAYOUT = Layout({"w": (2, 3), "b": (2,), "norm": (2,)})


def example(seed: int = 0, count: float = 5.0) -> Kronecker:
    pieces: dict[str, Piece] = {
        "w": KroneckerPiece(random_psd(2, seed)[None], random_psd(3, seed + 1)[None], count),
        "b": DensePiece(random_psd(2, seed + 2)),
        "norm": DiagonalPiece(normal(2, seed=seed + 3).square() + 0.5),
    }
    return Kronecker(LAYOUT, pieces)


def test_report_and_pieces_by_parameter() -> None:
    value = (3 * example()).add_diagonal(0.25)
    assert value.report() == {"w": "kronecker", "b": "dense", "norm": "diagonal"}
    dense, result = value.to_dense(), value.by_parameter()
    factors = result["w"]
    assert isinstance(factors, KroneckerFactors)
    block = torch.kron(factors.left[0], factors.right[0]) + factors.shift * torch.eye(6, dtype=F64)
    close(block, dense[:6, :6])
    assert isinstance(result["b"], Tensor) and isinstance(result["norm"], Tensor)
    close(result["b"], dense[6:8, 6:8])
    close(result["norm"], dense.diagonal()[8:])


def test_sum_is_the_joint_batch_and_not_the_dense_sum() -> None:
    """Two-sided: factors of two half batches add up to those of the whole; the matrices do not."""
    inputs, outputs = normal(10, 3, seed=0), normal(10, 2, seed=1)
    layout = Layout({"w": (2, 3)})

    def factors(rows: slice) -> Kronecker:
        a, g = inputs[rows], outputs[rows]
        return Kronecker(layout, {"w": KroneckerPiece((g.mT @ g)[None], (a.mT @ a)[None], len(a))})

    one, two, whole = factors(slice(0, 4)), factors(slice(4, 10)), factors(slice(0, 10))
    close((one + two).to_dense(), whole.to_dense())
    dense_sum = one.to_dense() + two.to_dense()
    assert (dense_sum - whole.to_dense()).abs().max() > 1e-3 * dense_sum.abs().max()


def test_count_divides_once() -> None:
    """trace = tr(left) tr(right) / N; the formula without 1/N must fail."""
    piece = KroneckerPiece(random_psd(2, 0)[None], random_psd(3, 1)[None], 5)
    trace = Kronecker(Layout({"w": (2, 3)}), {"w": piece}).trace()
    product = piece.left[0].trace() * piece.right[0].trace()
    close(trace, product / 5)
    assert not torch.isclose(trace, product)


def test_decay_and_scale_are_one_matrix_but_different_weights() -> None:
    a, b = example(0), example(10)
    close(a.decay(0.5).to_dense(), (0.5 * a).to_dense())
    forgotten = a.decay(0.5) + b
    piece, mine, theirs = forgotten.pieces["w"], a.pieces["w"], b.pieces["w"]
    assert all(isinstance(p, KroneckerPiece) for p in (piece, mine, theirs))
    for result, x, y in zip(piece.tensors(), mine.tensors(), theirs.tensors(), strict=True):
        close(result, 0.5 * x + y)
    with pytest.raises(UnsupportedOperationError, match="joint batch"):
        0.5 * a + b
    close((0.5 * a + 0.5 * b).to_dense(), 0.5 * (a + b).to_dense())


def test_forgetting_with_alpha_batch_over_data_recovers_all_data() -> None:
    """alpha = B / N: in the steady state left, right and count are those of N data."""
    batch, total = 4, 40
    one = example(0, count=batch)
    running = one.decay(0)
    for _ in range(600):
        running = running.decay(1 - batch / total) + one
    assert isinstance(running.pieces["w"], KroneckerPiece)
    assert running.pieces["w"].count == pytest.approx(total, rel=1e-10)
    close(running.to_dense(), 10 * one.to_dense())


def test_empty_batch_is_neutral() -> None:
    value = example()
    nothing = value.decay(0)
    assert isinstance(nothing.pieces["w"], KroneckerPiece)
    assert nothing.pieces["w"].count == 0
    close((nothing + value).to_dense(), value.to_dense())
    close(nothing.add_diagonal(2.0).logdet(), torch.tensor(10 * math.log(2), dtype=F64))


def test_diagonal_varying_inside_factors_is_refused_elsewhere_accepted() -> None:
    value = example()
    varying = torch.ones(10, dtype=F64)
    varying[3] = 2
    with pytest.raises(UnsupportedOperationError, match="'w'"):
        value.add_diagonal(varying)
    with pytest.raises(UnsupportedOperationError, match="'w'"):
        value.effective_dimension({"w": varying[:6].reshape(2, 3), "b": 1.0, "norm": 1.0})
    fine = torch.ones(10, dtype=F64)
    fine[6:] = torch.tensor([2.0, 3.0, 4.0, 5.0])
    close(value.add_diagonal(fine).to_dense(), value.to_dense() + torch.diag(fine))
    expected = (value.to_dense() @ torch.linalg.inv(value.to_dense() + torch.diag(fine))).diagonal()
    close(value.effective_dimension(fine), expected)


def test_damping() -> None:
    """(G + sqrt d)(A + sqrt d), with scale and 1/count shared by both: larger than A + d."""
    value, d = 3 * example(), 0.4
    damped = value.add_diagonal(d, damping=True)
    piece = value.pieces["w"]
    assert isinstance(piece, KroneckerPiece)
    share, root = math.sqrt(3 / 5), math.sqrt(d)
    left = share * piece.left[0] + root * torch.eye(2, dtype=F64)
    right = share * piece.right[0] + root * torch.eye(3, dtype=F64)
    plain = value.add_diagonal(d).to_dense()
    expected = plain.clone()
    expected[:6, :6] = torch.kron(left, right)
    close(damped.to_dense(), expected)
    close(damped.logdet(), torch.logdet(expected))
    assert damped.logdet() > value.add_diagonal(d).logdet()
    close(value.add_diagonal(1.0).add_diagonal(d, damping=True).to_dense(), expected + torch.eye(10, dtype=F64))


def test_eigen_decompositions_are_computed_once_and_only_when_needed() -> None:
    value = example()
    with mock.patch.object(torch.linalg, "eigh", wraps=torch.linalg.eigh) as eigh:
        value.matvec(torch.ones(10, dtype=F64)), value.diagonal(), value.to_dense(), value.trace()
        assert eigh.call_count == 0
        for delta in (0.1, 1.0, 10.0):
            (2.0 * value).add_diagonal(delta).logdet()
            value.effective_dimension(delta)
        assert eigh.call_count == 2


def test_rank_deficient_factors_are_singular_not_almost() -> None:
    """Fewer data than features leaves eigenvalues of 1e-17, which must not enter a log-determinant."""
    layout = Layout({"w": (4, 20)})
    features = normal(5, 20, seed=0)
    piece = KroneckerPiece(random_psd(4, 1)[None], (features.mT @ features)[None], 5)
    value = Kronecker(layout, {"w": piece})
    with pytest.raises(NumericalError, match="'w'"):
        value.logdet()
    delta = 1e-12
    dense_left = torch.linalg.eigvalsh(piece.left[0])
    dense_right = torch.linalg.svdvals(features).square()
    inside = (dense_left[:, None] * dense_right / 5 + delta).log().sum()
    close(value.add_diagonal(delta).logdet(), inside + 4 * 15 * math.log(delta))


def test_failed_decomposition_is_retried_in_float64() -> None:
    piece = KroneckerPiece(random_psd(2, 0)[None].float(), random_psd(3, 1)[None].float(), 5)
    value = Kronecker(Layout({"w": (2, 3)}), {"w": piece}).add_diagonal(1.0)
    expected = torch.logdet(value.to_dense().double()).float()
    original = torch.linalg.eigh

    def fails_in_single(matrix: Tensor) -> tuple[Tensor, Tensor]:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return original(matrix)

    with mock.patch.object(torch.linalg, "eigh", side_effect=fails_in_single):
        close(value.logdet(), expected, rtol=1e-5)
    again = value.with_tensors(value.tensors())
    error = torch.linalg.LinAlgError("did not converge")
    with (
        mock.patch.object(torch.linalg, "eigh", side_effect=error),
        pytest.raises(NumericalError, match="left Kronecker factor of parameter 'w'"),
    ):
        again.logdet()


def test_indefinite_factor_is_refused() -> None:
    left = torch.diag(torch.tensor([1.0, -0.5], dtype=F64))[None]
    value = Kronecker(Layout({"w": (2, 3)}), {"w": KroneckerPiece(left, torch.eye(3, dtype=F64)[None], 1)})
    with pytest.raises(NumericalError, match="positive semi-definite"):
        value.add_diagonal(1.0).logdet()


def test_factors_with_gradients_are_refused_with_a_reason() -> None:
    left = torch.eye(2, dtype=F64)[None].requires_grad_()
    value = Kronecker(Layout({"w": (2, 3)}), {"w": KroneckerPiece(left, torch.eye(3, dtype=F64)[None], 1)})
    with pytest.raises(UnsupportedOperationError, match="detach"):
        value.logdet()


def test_large_counts_survive_single_precision() -> None:
    piece = KroneckerPiece(torch.eye(2)[None], torch.eye(3)[None], 2**24 + 1)
    value = Kronecker(Layout({"w": (2, 3)}), {"w": piece})
    for again in (value.to(dtype=torch.float64), value.with_tensors(value.tensors()), value.decay(1.0)):
        assert isinstance(again.pieces["w"], KroneckerPiece)
        assert again.pieces["w"].count == 2**24 + 1


def test_refused_pieces() -> None:
    eye2, eye3 = torch.eye(2)[None], torch.eye(3)[None]
    layout = Layout({"w": (2, 3)})
    for bad in (
        KroneckerPiece(eye3, eye3, 1),
        KroneckerPiece(eye2[0], eye3[0], 1),
        KroneckerPiece(torch.ones(1, 2, 3), eye3, 1),
        KroneckerPiece(torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]), eye3, 1),
        DensePiece(torch.eye(5)),
        DensePiece(torch.full((6, 6), torch.inf)),
        DiagonalPiece(torch.ones(5)),
        DiagonalPiece(torch.full((6,), torch.nan)),
    ):
        with pytest.raises(DataError, match="'w'"):
            Kronecker(layout, {"w": bad})
    with pytest.raises(DataError, match="count"):
        KroneckerPiece(eye2, eye3, -1)
    with pytest.raises(DataError, match="mixes"):
        Kronecker(layout, {"w": KroneckerPiece(eye2, eye3.double(), 1)})
    with pytest.raises(ModelMismatchError, match="missing"):
        Kronecker(layout, {})
    kron = Kronecker(layout, {"w": KroneckerPiece(eye2, eye3, 1)})
    with pytest.raises(ModelMismatchError, match="'w' is kept as kronecker"):
        kron + Kronecker(layout, {"w": DensePiece(torch.eye(6))})
    with pytest.raises(ModelMismatchError, match="'w'"):
        kron + Kronecker(layout, {"w": KroneckerPiece(eye3, eye2, 1)})


def test_equals_full_where_it_is_exact() -> None:
    """All output curvatures equal (Gaussian last layer): the Kronecker product is the exact block."""
    inputs, noise = normal(50, 3, seed=0), 1.7
    layout = Layout({"w": (2, 3)})
    jacobians = [torch.kron(torch.eye(2, dtype=F64), a[None]) for a in inputs]
    exact = Full(layout, sum((noise * j.mT @ j for j in jacobians), torch.zeros(6, 6, dtype=F64)))
    left = 50 * noise * torch.eye(2, dtype=F64)
    kron = Kronecker(layout, {"w": KroneckerPiece(left[None], (inputs.mT @ inputs)[None], 50)})
    close(kron.to_dense(), exact.to_dense())
    jacobian = torch.stack(jacobians)
    for d in (0.3, {"w": 2.0}):
        one, two = kron.add_diagonal(d), exact.add_diagonal(d)
        close(one.logdet(), two.logdet())
        close(one.quadratic(jacobian), two.quadratic(jacobian))
        close(one.solve(jacobian), two.solve(jacobian))
        close(one.inverse_diagonal(), two.inverse_diagonal())
