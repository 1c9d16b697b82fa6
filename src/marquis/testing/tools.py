"""Share random numbers and comparisons among the conformance suites."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator with this seed."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def random_psd(n: int, seed: int, rank: int | None = None) -> Tensor:
    """Return a random positive semi-definite matrix, definite unless a lower rank is wanted."""
    root = normal(n, n + 3 if rank is None else rank, seed=seed)
    return root @ root.mT


def flat(t: Tensor, leading: int = 1) -> Tensor:
    """Return the tensor with all dimensions after the `leading` ones flattened into one."""
    return t.reshape(*t.shape[:leading], math.prod(t.shape[leading:]))


def close(actual: Tensor, expected: Tensor, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Assert that two tensors are equal in shape, dtype and, up to rounding, value."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
