"""EKFAC: the curvature along Kronecker eigenvectors, against dense blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.curvature import accumulate, ggn
from marquis.errors import DataError, UnsupportedOperationError
from marquis.structures import from_state_dict


class Tokens(nn.Module):
    """A linear layer over positions."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh().mean(1))


NETWORKS = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
    "convolution": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3, stride=2), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(4, 3)),
        ),
        (2, 5, 5),
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(75, 3)),
        (2, 2, 2),
    ),
    "positions": (Tokens, (5, 3)),
}


@pytest.fixture(params=NETWORKS)
def case(request):
    make, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    model = make().double().eval()
    x = torch.randn(11, *shape, dtype=torch.float64)
    return model, [(x[:4], None), (x[4:], None)], x


def loader(batches):
    return [x for x, _ in batches]


def test_values_are_the_exact_block_in_the_eigenbasis_and_nearer_than_plain(case):
    model, batches, x = case
    plain = accumulate(model, loader(batches), "categorical", "kronecker")
    better = accumulate(model, loader(batches), "categorical", "kronecker", corrected=True)
    exact = ggn(model, x, "categorical", "full").to_dense()
    nearer = 0
    for name in plain.layout.names:
        part = plain.layout.slice(name)
        block = exact[part, part]
        errors = [(s.to_dense()[part, part] - block).norm() / block.norm() for s in (plain, better)]
        assert errors[1] <= errors[0] + 1e-12
        if plain.report()[name] != "kronecker":
            torch.testing.assert_close(better.to_dense()[part, part], plain.to_dense()[part, part])
            continue
        assert better.report()[name] == "corrected"
        (_, left), (_, right) = plain.pieces[name].eigen(name)
        basis = torch.block_diag(*[torch.kron(a, b) for a, b in zip(left, right, strict=True)])
        places = torch.arange(len(basis)).view(left.shape[0], left.shape[-1], plain.pieces[name].channels, -1)
        basis = basis[places.transpose(1, 2).flatten()]  # the weight's own order
        torch.testing.assert_close(better.pieces[name].values.flatten(), (basis.mT @ block @ basis).diagonal())
        nearer += bool(errors[1] < 0.999 * errors[0])
    assert nearer  # and it does matter somewhere


def test_the_corrected_structure_has_the_linear_algebra_of_its_dense_matrix(case):
    model, batches, _ = case
    structure = accumulate(model, loader(batches), "categorical", "kronecker", corrected=True)
    precision = (structure * 2.0).add_diagonal(0.3)
    dense = 2 * structure.to_dense() + 0.3 * torch.eye(structure.layout.total, dtype=torch.float64)
    torch.testing.assert_close(precision.to_dense(), dense)
    v = torch.randn(3, len(dense), dtype=torch.float64)
    torch.testing.assert_close(precision.matvec(v), v @ dense)
    torch.testing.assert_close(precision.solve(v), torch.linalg.solve(dense, v.mT).mT)
    torch.testing.assert_close(precision.logdet(), torch.logdet(dense))
    torch.testing.assert_close(precision.diagonal(), dense.diagonal())
    torch.testing.assert_close(precision.inverse_diagonal(), torch.linalg.inv(dense).diagonal())
    torch.testing.assert_close(precision.quadratic(v), v @ torch.linalg.inv(dense) @ v.mT)
    root = precision.sample_from(torch.eye(precision.noise_dim, dtype=torch.float64))
    torch.testing.assert_close(root.mT @ root, torch.linalg.inv(dense))
    again = from_state_dict(precision.state_dict())
    torch.testing.assert_close(again.to_dense(), dense)
    torch.testing.assert_close(precision.to(dtype=torch.float32).to_dense(), dense.float())
    torch.testing.assert_close((structure + structure).to_dense(), 2 * structure.to_dense())
    with pytest.raises(UnsupportedOperationError, match="varies within"):
        precision.add_diagonal(torch.arange(1.0, 1 + len(dense), dtype=torch.float64))


def test_the_front_door_and_the_last_layer(case, tmp_path):
    model, batches, x = case
    labelled = [(x, torch.arange(len(x)) % 2) for x, _ in batches]
    la = mq.Laplace(model, "categorical").fit(labelled, progress=False, corrected=True)
    la.tune()
    jacobian = mq.predictive.predict(la.posterior, model, x[:2], joint=True).covariance
    per_input = la.predict(x[:2]).covariance  # without Jacobians
    outputs = per_input.shape[-1]
    torch.testing.assert_close(per_input[1], jacobian[outputs:, outputs:])
    la.save(tmp_path / "corrected.mq")
    torch.testing.assert_close(mq.load(tmp_path / "corrected.mq", model).predict(x[:2]).covariance, per_input)
    last = mq.Laplace(model, "categorical", parameters="last-layer").fit(labelled, progress=False, corrected=True)
    joint = mq.predictive.predict(last.posterior, model, x[:2], joint=True).covariance
    torch.testing.assert_close(last.predict(x[:2]).covariance[0], joint[:outputs, :outputs])


def test_what_it_is_not_for_is_refused(tmp_path):
    model = nn.Linear(2, 2).double().eval()
    x = torch.randn(3, 2, dtype=torch.float64)
    with pytest.raises(UnsupportedOperationError, match="corrected"):
        accumulate(model, [x], "gaussian", "diagonal", corrected=True)
    with pytest.raises(UnsupportedOperationError, match="checkpoint"):
        accumulate(model, [x], "gaussian", "kronecker", corrected=True, checkpoint=tmp_path / "file")
    with pytest.raises(DataError, match="more than once"):
        mq.Laplace(model, "gaussian").fit(iter([(x, x)]), progress=False, corrected=True)
