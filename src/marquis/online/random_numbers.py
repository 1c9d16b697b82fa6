"""Sample standard normal numbers for millions of weights, cheap enough for every training step.

32 consecutive weights take one random row of a table (docs/method/online.md, Random numbers). Every column of a table
holds the quantiles of the normal distribution, its rows are whitened and come in pairs of opposite sign: mean 0 and
covariance I are exact, odd moments vanish, and a weight's fourth moment is that of the normal within one per cent.
Products of fourth order within a row deviate by up to 13 per cent in one of the tables, 6 over all of them.
A number costs a 32nd of a random integer and a copy: a fifth to a tenth of torch's `normal_` on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 1 << 16
"""Weights that are worked on at once, so that the intermediate numbers stay in the processor's cache."""

ROWS, WIDTH, TABLES = 8192, 32, 4
"""Size of a table, and their number; each draw takes one of them."""


@lru_cache(maxsize=8)
def row_tables(dtype: torch.dtype) -> Tensor:
    """Return the tables `[TABLES, ROWS, WIDTH]`, always the same."""
    source = torch.Generator().manual_seed(20_749)
    middles = (torch.arange(ROWS // 2, dtype=torch.float64) + 0.5) / ROWS + 0.5
    quantiles = torch.special.ndtri(middles)
    tables = []
    for _ in range(TABLES):
        order = torch.stack([torch.randperm(ROWS // 2, generator=source) for _ in range(WIDTH)], dim=1)
        signs = torch.randint(0, 2, order.shape, generator=source) * 2.0 - 1
        half = quantiles[order] * signs
        lower = torch.linalg.cholesky(half.mT @ half / len(half))
        half = torch.linalg.solve_triangular(lower, half.mT, upper=False).mT
        tables.append(torch.cat([half, -half]))
    return torch.stack(tables).to(dtype)


class _Rows:
    """Sample random rows for a number of weights, all from one table."""

    def __init__(self, blocks: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        index = torch.empty(blocks + 1, dtype=torch.int64).random_(0, TABLES * ROWS, generator=generator)
        self.table = row_tables(dtype)[int(index[-1]) % TABLES]
        self.index = index.remainder_(ROWS)
        self.scratch = torch.empty(CHUNK // WIDTH, WIDTH, dtype=dtype)
        self.used = 0

    def take(self, count: int) -> Tensor:
        """Return the next `count` numbers, at most a chunk; overwritten by the next call."""
        blocks = -(-count // WIDTH)
        part = self.scratch[:blocks]
        torch.index_select(self.table, 0, self.index[self.used : self.used + blocks], out=part)
        self.used += blocks
        return part.view(-1)[:count]


def fill_with_noise(out: Tensor, generator: torch.Generator) -> Tensor:
    """Overwrite the flat tensor `out [P]` with standard normal numbers from the tables (on a GPU: of torch's)."""
    if out.device.type != "cpu":
        return out.normal_(generator=generator)
    rows = _Rows(-(-out.numel() // WIDTH), out.dtype, generator)
    for part in out.split(CHUNK):
        part.copy_(rows.take(part.numel()))
    return out


def fill_with_samples(
    outs: Sequence[Tensor],
    means: Sequence[Tensor],
    curvatures: Sequence[Tensor] | None,
    weight: float,
    constant: float,
    generator: torch.Generator,
) -> None:
    """Overwrite each flat tensor of `outs` with a sample of `N(mean, 1 / (weight * curvature + constant))`.

    Cost: that of the noise and one pass over the memory, chunk by chunk.
    """
    on_cpu = outs[0].device.type == "cpu"
    blocks = sum(-(-size // WIDTH) for out in outs for size in _chunk_sizes(out.numel()))
    rows = _Rows(blocks, outs[0].dtype, generator) if on_cpu else None
    rest = outs[0].new_tensor(constant)
    deviations = outs[0].new_empty(CHUNK)
    for number, (whole, whole_mean) in enumerate(zip(outs, means, strict=True)):
        diagonals = [None] * len(_chunk_sizes(whole.numel())) if curvatures is None else curvatures[number].split(CHUNK)
        for out, mean, diagonal in zip(whole.split(CHUNK), whole_mean.split(CHUNK), diagonals, strict=True):
            noise = out.normal_(generator=generator) if rows is None else rows.take(out.numel())
            if diagonal is None:
                torch.add(mean, noise, alpha=constant**-0.5, out=out)
                continue
            deviation = torch.add(rest, diagonal, alpha=weight, out=deviations[: out.numel()]).rsqrt_()
            torch.addcmul(mean, noise, deviation, out=out)


def _chunk_sizes(count: int) -> list[int]:
    """Return the sizes of the chunks in which weights are sampled."""
    return [min(CHUNK, count - start) for start in range(0, count, CHUNK)] or [0]
