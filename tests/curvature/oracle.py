"""Dense oracles for the curvature engine: Jacobians by plain autograd, row by row, and the likelihood's own Hessian.

Nothing here knows a layer rule. `rows` differentiates every output entry of every sample once; a test at the top of
`test_exact.py` holds it against `torch.func.jacrev`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from marquis.likelihoods import Likelihood, as_likelihood
from marquis.structures import Structure

RTOL = 1e-8


def double(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def built(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 and eval mode, every parameter and statistic at random (so that none is a special case)."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.6 / max(1.0, prod(parameter.shape[1:]) ** 0.5) if parameter.dim() > 1 else 0.5
            parameter.copy_(scale * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
            parameter.add_(0.7 if parameter.dim() == 1 and parameter.numel() > 0 else 0.0)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2, generator=generator)
            elif name.endswith("running_mean"):
                buffer.normal_(generator=generator)
    return model


def evaluate(model: Any, x: Any, params: Mapping[str, Tensor] | None = None) -> Tensor:
    """The model's output as its user would call it."""
    if not isinstance(model, nn.Module):
        return model(dict(params or {}), x)
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, (tuple, list)) else model(x)


def rows(model: Any, x: Any, params: Mapping[str, Tensor] | None = None, names: Any = None) -> tuple[Tensor, Tensor]:
    """(outputs, Jacobian [B, O, P]) in the order of `named_parameters()`, row-major."""
    with torch.enable_grad():
        if isinstance(model, nn.Module):
            leaves: dict[str, Tensor] = dict(model.named_parameters())
            frozen = [p for p in leaves.values() if not p.requires_grad]
            for p in frozen:
                p.requires_grad_()
            f = evaluate(model, x)
        else:
            frozen = []
            leaves = {name: p.detach().clone().requires_grad_() for name, p in (params or {}).items()}
            f = evaluate(model, x, leaves)
        chosen = list(leaves) if names is None else list(names)
        expected = [leaves[name] for name in chosen]
        table = []
        for entry in f.flatten():
            grads = torch.autograd.grad(entry, expected, retain_graph=True, allow_unused=True)
            parts = [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(expected, grads, strict=True)
            ]
            table.append(torch.cat(parts))
    for p in frozen:
        p.requires_grad_(False)
    return f.detach(), torch.stack(table).reshape(f.shape[0], prod(f.shape[1:]), -1).detach()


def dense_ggn(
    model: Any,
    x: Any,
    likelihood: str | Likelihood | Any = "gaussian",
    mask: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    names: Any = None,
) -> Tensor:
    """sum_n J_nᵀ L_n J_n, [P, P]."""
    f, jacobian = rows(model, x, params, names)
    hessian = as_likelihood(likelihood).resolve(f).hessian(f, mask)
    return torch.einsum("nop,noq,nqr->pr", jacobian, hessian, jacobian)


def block_diagonal(dense: Tensor, named: Mapping[str, Tensor]) -> Tensor:
    """The dense matrix with everything zero that links two modules; parts of a parametrised weight are its layer's."""
    owners = [
        f".{name}".split(".parametrizations.")[0].removesuffix(f".{name.rpartition('.')[2]}")
        for name, p in named.items()
        for _ in range(p.numel())
    ]
    codes = torch.tensor([sorted(set(owners)).index(owner) for owner in owners])
    return dense * (codes[:, None] == codes[None, :])


def assert_matches(ours: Tensor, oracle: Tensor, rtol: float = RTOL) -> None:
    """Equal to `rtol` of the largest entry, and the oracle is not merely zeros."""
    scale = float(oracle.abs().max())
    assert scale > 0, "an oracle of zeros tests nothing"
    assert ours.shape == oracle.shape, (tuple(ours.shape), tuple(oracle.shape))
    worst = float((ours - oracle).abs().max()) / scale
    assert worst <= rtol, f"off by {worst:.3g} of the largest entry"


def assert_structure(structure: Structure, name: str, oracle: Tensor, named: Mapping[str, Tensor]) -> None:
    """Compare an exact structure (not Kronecker) with the dense GGN."""
    if name == "diagonal":
        ours, expected = structure.diagonal(), oracle.diagonal()
        floor = 1e-12 * float(expected.abs().max())
        assert_matches(ours, expected)
        worst = float(((ours - expected).abs() / (expected.abs() + floor)).max())
        assert worst <= 1e-6, f"a small entry is off by {worst:.3g} of itself"
        return
    expected = block_diagonal(oracle, named) if name == "block" else oracle
    assert_matches(structure.to_dense(), expected)


def greedy_bottlenecks(cuts: list[Any], columns: int, costs: object, samples: object) -> list[Any]:
    """Recompress wherever it shrinks the factor, so that every possible cut is taken in some example."""
    chosen = []
    for cut in cuts:
        if cut.width < columns:
            chosen.append(cut)
            columns = cut.width
    return chosen
