"""Memory bounds, on the bytes of tensors that are alive at once (not on time): nothing grows as outputs x outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import assert_matches
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import marquis as mq
from marquis.curvature import ggn
from networks import dense_autoencoder


class Peak(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()
        self.foreign: dict[int, Any] = {}  # made before: the model and its inputs, which some operations only pass on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.known:
                    self.foreign[storage._cdata] = storage
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or key in self.foreign or size == 0:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._released, key, size)

    def _released(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_of(action: Callable[[], Any]) -> int:
    action()  # the capture, and caches of torch itself
    with torch.no_grad(), Peak() as counter:
        action()
    return counter.peak


def plain_step(model: nn.Module, x: Tensor) -> int:
    def step() -> None:
        with torch.enable_grad():
            torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    return peak_of(step)


def pixels(side: int, layers: int = 3) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*parts[:-1]).eval(), torch.randn(1, 3, side, side)


def test_the_counter_counts() -> None:
    def hold() -> None:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b + 1
        del b, c

    assert peak_of(hold) == 8000


def test_exact_diagonal_of_a_large_picture_does_not_hold_outputs_times_outputs() -> None:
    small, large = (peak_of(lambda m=m, x=x: ggn(m, x, "gaussian")) for m, x in (pixels(16), pixels(32)))
    outputs = 3 * 32 * 32
    assert large < outputs * outputs * 4 / 4, f"{large:,} bytes"
    assert large < 6 * small, "four times the pixels may not take sixteen times the memory"


def test_the_exact_encoder_carries_only_the_bottleneck() -> None:
    """784 outputs, 2 codes: below the bottleneck two columns; a chunk, never all columns at all widths."""
    model = dense_autoencoder((784, 128, 2, 128, 784)).eval()
    x = torch.randn(16, 784)
    parameters = sum(p.numel() for p in model.parameters()) * 4
    peak = peak_of(lambda: ggn(model, x, "gaussian"))
    all_columns = 784 * 16 * 784 * 4
    assert peak < all_columns / 2 + parameters, f"{peak:,} bytes against {all_columns:,}"


@pytest.mark.parametrize("estimator", ["sketched", "approximate"])
def test_one_column_takes_about_a_plain_step(estimator: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 14 * 14, 10),
    ).eval()  # fmt: skip
    x = torch.randn(32, 1, 28, 28)
    ours = peak_of(lambda: ggn(model, x, "categorical", "diagonal", estimator))
    assert ours < 2.2 * plain_step(model, x)


def test_a_smaller_limit_takes_less_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 200)).eval()
    x = torch.randn(32, 64)
    free = peak_of(lambda: ggn(model, x, "bernoulli"))
    limited = peak_of(lambda: ggn(model, x, "bernoulli", memory_limit=2**21))
    assert limited < free / 2
    assert_matches(
        ggn(model, x, "bernoulli", memory_limit=2**21).diagonal(), ggn(model, x, "bernoulli").diagonal(), 1e-5
    )


def test_a_subset_takes_less() -> None:
    model, x = pixels(32, layers=6)
    everything = peak_of(lambda: ggn(model, x, "gaussian"))
    last = peak_of(lambda: ggn(model, x, "gaussian", parameters="10.*"))
    assert last < everything / 2


def test_classes_per_pixel_stay_local() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 5, 3, padding=1)).eval()
    x = torch.randn(1, 1, 32, 32)
    peak = peak_of(lambda: ggn(model, x, mq.Categorical(dim=1)))
    assert peak < (5 * 32 * 32) ** 2 * 4 / 4


def test_kronecker_of_an_embedding_and_of_learnt_positions_is_not_refused() -> None:
    """They have no Kronecker form and are kept as a diagonal: nothing squares the vocabulary."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30_000, 4)
            self.positions = nn.Parameter(torch.zeros(1, 2_000, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head((self.table(tokens) + self.positions).mean(1))

    x = torch.randint(0, 30_000, (2, 2_000))
    ours = ggn(Model().eval(), x, "categorical", "kronecker", memory_limit=2**28)
    assert ours.diagonal().numel() == 30_000 * 4 + 8_000 + 10
