"""Every parametric layer against dense Jacobians: diagonal, block and full, batches of one and three, odd sizes.

Each case runs twice: with the engine's own chunks, and with the smallest ones (one column, a tile of one pixel), so that
windows, tiles and chunks of columns are crossed everywhere.
"""

# ruff: noqa: E501 (tables: one case per line)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import assert_structure, built, dense_ggn, double
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from marquis.curvature import ggn
from marquis.curvature.backward import walk
from networks import Net, Transformer


def tokens(batch: int, length: int = 4, vocabulary: int = 6) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def behind(layer: nn.Module, channels: int, dims: int) -> nn.Sequential:
    """A convolution above, so that the layer below receives a factor that is neither diagonal nor constant."""
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    return nn.Sequential(layer, nn.Tanh(), kinds[dims](channels, 2, 2))


class Attention(nn.Module):
    """Two inputs of different widths, one output per sample."""

    def __init__(self, batch_first: bool, own: bool, **options: Any) -> None:
        super().__init__()
        self.batch_first, self.own = batch_first, own
        kv = {} if own else {"kdim": 3, "vdim": 5}
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **kv, **options)
        self.head = nn.Linear(4, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.own:
            k = v = q
        if not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        out, weights = self.attention(q, k, v, need_weights=self.own)
        if not self.batch_first:
            out = out.transpose(0, 1)
        out = self.head(torch.tanh(out)).mean(1)
        return out + weights.square().sum((1, 2))[:, None] if self.own else out


class HandAttention(nn.Module):
    """Products of two tensors that both depend on the data and on the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(3, w) for w in (3, 3, 4, 2))
        self.o = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return self.o((scores.softmax(-1) @ self.v(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(2, 2, batch_first=True)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def normalised(channels: int) -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(3, channels))


def bare(function: Callable[..., Tensor], *shape: int) -> nn.Module:
    return Net(function, p=torch.zeros(shape), first=nn.Linear(3, 4), last=nn.Linear(4, 2))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "image, squeezed": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x))).squeeze(1), a=nn.Conv2d(1, 2, 3, padding=1), b=nn.Conv2d(2, 1, 3)), lambda n: double(n, 1, 6, 5)),
    "image, unsqueezed and flat": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x))).unsqueeze(2).flatten(1), a=nn.Conv2d(1, 2, 3), b=nn.Conv2d(2, 2, 2)), lambda n: double(n, 1, 5, 4)),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "linear, no bias": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.GELU(), nn.Linear(4, 2, bias=False)), lambda b: double(b, 3)),
    "linear over a sequence": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 5, 3)),
    "linear over a grid": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)), lambda b: double(b, 3, 2, 3)),
    "bilinear": (lambda: Net(lambda m, x: m.b(m.first(x), x), first=nn.Linear(3, 2), b=nn.Bilinear(2, 3, 2)), lambda b: double(b, 3)),
    "conv1d": (lambda: behind(nn.Conv1d(2, 3, 3, stride=2, padding=2), 3, 1), lambda b: double(b, 2, 9)),
    "conv1d same, even kernel": (lambda: behind(nn.Conv1d(2, 3, 4, padding="same"), 3, 1), lambda b: double(b, 2, 7)),
    "average pool 1d": (lambda: behind(nn.Sequential(nn.Conv1d(2, 3, 2), nn.AvgPool1d(2)), 3, 1), lambda b: double(b, 2, 9)),
    "average pool 2d": (lambda: behind(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d((2, 3))), 3, 2), lambda b: double(b, 2, 4, 6)),
    "average pool 2d, divisor": (lambda: behind(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(2, divisor_override=3)), 3, 2), lambda b: double(b, 2, 4, 4)),
    "average pool 2d, overlapping": (lambda: behind(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(3, 2, 1)), 3, 2), lambda b: double(b, 2, 5, 5)),
    "average pool 2d, rest left over": (lambda: behind(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(2)), 3, 2), lambda b: double(b, 2, 5, 5)),
    "average pool 3d": (lambda: behind(nn.Sequential(nn.Conv3d(1, 2, 1), nn.AvgPool3d(2)), 2, 3), lambda b: double(b, 1, 4, 4, 4)),
    "conv2d": (lambda: behind(nn.Conv2d(2, 3, 3), 3, 2), lambda b: double(b, 2, 5, 6)),
    "conv2d, no bias": (lambda: behind(nn.Conv2d(2, 3, 3, bias=False), 3, 2), lambda b: double(b, 2, 5, 5)),
    "conv2d stride and padding": (lambda: behind(nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(2, 1)), 3, 2), lambda b: double(b, 2, 6, 7)),
    "conv2d same, even kernel": (lambda: behind(nn.Conv2d(2, 3, (4, 2), padding="same", dilation=(1, 2)), 3, 2), lambda b: double(b, 2, 5, 6)),
    "conv2d valid": (lambda: behind(nn.Conv2d(2, 3, 2, padding="valid"), 3, 2), lambda b: double(b, 2, 4, 5)),
    "conv2d circular": (lambda: behind(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), 3, 2), lambda b: double(b, 2, 5, 4)),
    "conv2d reflect": (lambda: behind(nn.Conv2d(2, 3, 3, padding=2, padding_mode="reflect"), 3, 2), lambda b: double(b, 2, 5, 4)),
    "conv2d dilation": (lambda: behind(nn.Conv2d(2, 3, 3, dilation=2, padding=1), 3, 2), lambda b: double(b, 2, 7, 6)),
    "conv2d groups": (lambda: behind(nn.Conv2d(4, 6, 3, groups=2, padding=1), 6, 2), lambda b: double(b, 4, 4, 5)),
    "conv2d depthwise, stride": (lambda: behind(nn.Conv2d(3, 3, 3, groups=3, padding=1, stride=2), 3, 2), lambda b: double(b, 3, 5, 6)),
    "conv2d depthwise, multiplier": (lambda: behind(nn.Conv2d(2, 4, 3, groups=2), 4, 2), lambda b: double(b, 2, 5, 5)),
    "conv2d padding beyond the kernel": (lambda: behind(nn.Conv2d(1, 2, 2, padding=3), 2, 2), lambda b: double(b, 1, 4, 3)),
    "conv2d unread rim": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Tanh(), nn.Conv2d(2, 1, 2, stride=3)), lambda b: double(b, 1, 7, 7)),
    "conv3d": (lambda: behind(nn.Conv3d(1, 2, (2, 3, 1), stride=(1, 2, 1), padding=(1, 1, 0)), 2, 3), lambda b: double(b, 1, 3, 4, 3)),
    "conv transpose 1d": (lambda: behind(nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), 3, 1), lambda b: double(b, 2, 4)),
    "conv transpose 2d": (lambda: behind(nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 1), padding=1), 3, 2), lambda b: double(b, 2, 3, 4)),
    "conv transpose 2d, all options": (
        lambda: behind(nn.ConvTranspose2d(4, 6, 3, stride=3, padding=2, output_padding=2, groups=2, dilation=2), 6, 2),
        lambda b: double(b, 4, 2, 3),
    ),
    "conv transpose 3d": (lambda: behind(nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 1)), 2, 3), lambda b: double(b, 2, 2, 2, 2)),
    "two conv transposes": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.Tanh(), nn.ConvTranspose2d(3, 1, 2, stride=2)),
        lambda b: double(b, 2, 2, 3),
    ),
    "batch norm 1d": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "batch norm 2d": (lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 2)), lambda b: double(b, 1, 4, 5)),
    "batch norm last": (lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)), lambda b: double(b, 1, 4, 5)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "layer norm over a sequence": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), lambda b: double(b, 5, 3)),
    "layer norm, two dimensions": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([5, 4]), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 2, 5, 3)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 2, 2)), lambda b: double(b, 1, 4, 5)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 5, 3)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.Tanh(), nn.Conv2d(3, 2, 2)), lambda b: double(b, 1, 4, 5)),
    "instance norm, running statistics": (
        lambda: nn.Sequential(nn.Conv1d(1, 3, 2), nn.InstanceNorm1d(3, affine=True, track_running_stats=True), nn.Conv1d(3, 2, 2)),
        lambda b: double(b, 1, 6),
    ),
    "embedding": (lambda: Net(lambda m, t: m.last(torch.tanh(m.table(t)).sum(1)), table=nn.Embedding(6, 3), last=nn.Linear(3, 2)), tokens),
    "embedding, padding": (
        lambda: Net(lambda m, t: m.last(torch.tanh(m.table(t)).flatten(1)), table=nn.Embedding(6, 3, padding_idx=2), last=nn.Linear(12, 2)),
        tokens,
    ),
    "embedding of positions": (
        lambda: Net(
            lambda m, t: m.last(torch.tanh(m.table(t) + m.place(torch.arange(t.shape[1])[None])).flatten(1)),
            table=nn.Embedding(6, 3), place=nn.Embedding(4, 3), last=nn.Linear(12, 2),
        ),
        tokens,
    ),
    "embedding bag": (lambda: Net(lambda m, t: m.last(torch.tanh(m.table(t))), table=nn.EmbeddingBag(6, 3), last=nn.Linear(3, 2)), tokens),
    "attention by hand": (HandAttention, lambda b: double(b, 5, 3)),
    "attention, own": (lambda: Attention(True, True), lambda b: (double(b, 3, 4), double(b, 3, 3), double(b, 3, 5))),
    "attention, own, batch second": (lambda: Attention(False, True), lambda b: (double(b, 3, 4), double(b, 3, 3), double(b, 3, 5))),
    "attention, cross": (lambda: Attention(True, False), lambda b: (double(b, 3, 4), double(b, 2, 3), double(b, 2, 5))),
    "attention, cross, batch second, bias": (
        lambda: Attention(False, False, add_bias_kv=True),
        lambda b: (double(b, 3, 4), double(b, 2, 3), double(b, 2, 5)),
    ),
    "transformer, first token": (lambda: Transformer(0), tokens),
    "transformer, last token": (lambda: Transformer(-1), tokens),
    "transformer, norm first, third token": (lambda: Transformer(2, norm_first=True), tokens),
    "transformer, batch second, mean": (lambda: Transformer(None, batch_first=False), tokens),
    "scale": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) * m.p)), 4), lambda b: double(b, 3)),
    "one number": (lambda: bare(lambda m, x: m.last(torch.tanh(m.p * m.first(x))), 1), lambda b: double(b, 3)),
    "a scalar": (lambda: bare(lambda m, x: m.last(torch.tanh(m.p * m.first(x)))), lambda b: double(b, 3)),
    "shift": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) - m.p)), 1, 4), lambda b: double(b, 3)),
    "division": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x)) / (2 + m.p.square())), 4), lambda b: double(b, 3)),
    "positions": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) + m.p)), 1, 5, 4), lambda b: double(b, 5, 3)),
    "positions per channel": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) * m.p)), 5, 1), lambda b: double(b, 5, 3)),
    "class token": (
        lambda: bare(lambda m, x: m.last(torch.tanh(torch.cat([m.p.expand(x.shape[0], -1, -1), m.first(x)], 1)).sum(1)), 1, 1, 4),
        lambda b: double(b, 5, 3),
    ),
    "matmul": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) @ m.p)), 4, 4), lambda b: double(b, 3)),
    "matmul over a sequence": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x) @ m.p)), 4, 4), lambda b: double(b, 5, 3)),
    "matmul from the left": (lambda: bare(lambda m, x: m.last(torch.tanh(m.p @ m.first(x))), 2, 5), lambda b: double(b, 5, 3)),
    "einsum": (lambda: bare(lambda m, x: m.last(torch.tanh(torch.einsum("nti,ij->ntj", m.first(x), m.p))), 4, 4), lambda b: double(b, 5, 3)),
    "einsum, three factors": (
        lambda: bare(lambda m, x: torch.einsum("nti,ij,ntj->nj", m.first(x), m.p, torch.tanh(m.first(x))), 4, 4),
        lambda b: double(b, 5, 3),
    ),
    "gate": (lambda: bare(lambda m, x: m.last(torch.tanh(m.first(x)) * m.p.softmax(0)), 4), lambda b: double(b, 3)),
    "gate between branches": (
        lambda: bare(lambda m, x: m.last(torch.sigmoid(m.p) * torch.tanh(m.first(x)) + (1 - torch.sigmoid(m.p)) * m.first(x)), 1),
        lambda b: double(b, 3),
    ),
    "prelu": (lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "prelu per channel": (lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.PReLU(4), nn.Conv2d(4, 1, 2)), lambda b: double(b, 1, 5, 5)),
    "weight norm": (lambda: nn.Sequential(normalised(4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "weight norm of a convolution": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(1, 3, 2)), nn.Tanh(), nn.Conv2d(3, 1, 2)),
        lambda b: double(b, 1, 4, 4),
    ),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Tanh(), nn.Linear(3, 2)), lambda b: double(b, 3)),
    "weight standardisation": (
        lambda: bare(lambda m, x: m.last(F.linear(m.first(x), (m.p - m.p.mean(1, True)) / m.p.std(1, keepdim=True))), 4, 4),
        lambda b: double(b, 3),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda b: double(b, 2, 2)),
    "gru": (lambda: Recurrent(nn.GRU), lambda b: double(b, 2, 2)),
}  # fmt: skip


def one_column_at_a_time(self: walk.BackwardWalk, root: object, steps: object) -> int:
    return 1


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, data = LAYERS[name]
    model = built(make())
    named = dict(model.named_parameters())
    oracles = {batch: dense_ggn(model, data(batch)) for batch in (3, 1)}
    for structures in (("diagonal", "full"), ("diagonal", "block")):
        for batch, oracle in oracles.items():
            for structure in structures:
                assert_structure(ggn(model, data(batch), "gaussian", structure), structure, oracle, named)
        monkeypatch.setattr(walk.BackwardWalk, "_columns_per_chunk", one_column_at_a_time)
