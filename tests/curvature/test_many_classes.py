"""Exact curvature of a softmax with many classes, whose columns are never written out, against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from marquis.curvature import ggn
from marquis.curvature.backward import output_roots
from marquis.curvature.factors.centred import CentredFactor, Softmax
from marquis.curvature.factors.factor import Factor

CLASSES = output_roots.MANY_CLASSES + 5


def network(last: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, CLASSES)]
    return nn.Sequential(*layers, *([] if last is None else [last])).double().eval()


def dense_ggn(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    params = {n: p.detach() for n, p in model.named_parameters()}
    total = sum(p.numel() for p in params.values())
    H = torch.zeros(total, total, dtype=torch.float64)
    for number, row in enumerate(x):
        if mask is not None and not mask[number]:
            continue
        jacobian = torch.func.jacrev(lambda p, row=row: torch.func.functional_call(model, p, (row[None],))[0])(params)
        J = torch.cat([jacobian[n].flatten(1) for n in params], 1)
        p = model(row[None])[0].detach().softmax(0)
        H += J.t() @ (torch.diag(p) - torch.outer(p, p)) @ J
    return H


@pytest.mark.parametrize("structure", ["diagonal", "full", "block"])
@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("last", [None, nn.Tanh()])
def test_the_matrix_is_that_of_dense_jacobians(
    structure: str, chunk: int | None, masked: bool, last: nn.Module | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(last), torch.randn(4, 3, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True]) if masked else None
    if chunk is not None:
        ranges = output_roots._ranges_of
        monkeypatch.setattr(output_roots, "_ranges_of", lambda count, _: ranges(count, chunk))
    H = dense_ggn(model, x, mask)
    result = ggn(model, x, "categorical", structure, "exact", mask=mask)
    torch.testing.assert_close(result.diagonal(), H.diagonal(), rtol=1e-10, atol=1e-13)
    if structure == "full":
        torch.testing.assert_close(result.to_dense(), H, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stretch", [1.0, 60.0])
@pytest.mark.parametrize("bounds", [(0, CLASSES), (0, 9), (9, CLASSES)])
def test_every_form_of_the_columns_agrees_with_the_written_out_one(stretch: float, bounds: tuple[int, int]) -> None:
    torch.manual_seed(1)
    logits, weight = stretch * torch.randn(5, CLASSES).double(), torch.randn(CLASSES, 4).double()
    lazy = CentredFactor(Softmax.of(logits, None), *bounds)
    written = Factor(lazy.columns, tuple(logits.shape))
    torch.testing.assert_close(lazy.squares, written.squares, rtol=1e-10, atol=1e-300)
    torch.testing.assert_close(lazy.times(weight), written.columns @ weight, rtol=1e-9, atol=1e-16)
    flat = written.columns.flatten(0, 1)
    torch.testing.assert_close(lazy.gram(), flat.t() @ flat, rtol=1e-9, atol=1e-15)


def test_almost_certain_predictions_keep_their_relative_precision() -> None:
    model, x = network(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        model[2].bias[3] += 30.0
    single = network().float()
    single.load_state_dict(model.state_dict())
    result = ggn(single, x.float(), "categorical", "diagonal", "exact").diagonal().double()
    assert float(result.max()) < 1e-9
    torch.testing.assert_close(result, dense_ggn(model, x, None).diagonal(), rtol=2e-4, atol=1e-25)


def test_the_kronecker_factor_of_the_outputs_is_the_sum_of_output_hessians() -> None:
    model, x = network(), torch.randn(4, 3, dtype=torch.float64)
    p = model(x).detach().softmax(1)
    bias = ggn(model, x, "categorical", "kronecker", "exact").pieces["2.bias"].tensors()[0]
    torch.testing.assert_close(bias, torch.diag(p.sum(0)) - p.t() @ p, rtol=1e-10, atol=1e-14)
