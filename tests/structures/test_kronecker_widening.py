"""A float32 product is symmetric only up to its own rounding; in float64 that must not count as an asymmetry."""

from __future__ import annotations

import torch

from marquis.structures import Kronecker, Layout
from marquis.structures.pieces import DensePiece, KroneckerPiece


def test_widening_accepts_the_rounding_of_the_narrower_dtype() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 6, generator=generator)
    left, right = torch.eye(2)[None], (inputs.t() @ inputs)[None]
    right[0, 0, 1] += 3e-4 * right[0, 0, 0]  # within float32's tolerance, far outside float64's
    layout = Layout({"weight": (2, 6), "bias": (2,)})
    narrow = Kronecker(layout, {"weight": KroneckerPiece(left, right, 4096.0), "bias": DensePiece(torch.eye(2))})
    wide = narrow.to(torch.float64)
    assert wide.dtype == torch.float64
    doubled = (wide + wide).to_dense()
    assert torch.equal(doubled, doubled.mT)
