"""Every refusal says what, where, and what to do instead."""

# ruff: noqa: E501 (tables: one case per line)

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import built, double
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from networks import Net


def net(function: Callable[..., Any]) -> nn.Module:
    return built(Net(function, l=nn.Linear(3, 2)))


class Doubled(torch.autograd.Function):
    """A derivative that is not that of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 3


def embedded(function: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return built(Net(function, table=nn.Embedding(5, 3), l=nn.Linear(3, 2)))


Unsupported = mq.UnsupportedOperationError
X = double(3, 3)
TOKENS = torch.tensor([1, 2, 3])

REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, type[Exception], str]] = {
    "dropout": (
        lambda: built(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))).train(), X,
        Unsupported, r"`dropout` in module '1' is in training mode.*model\.eval\(\)",
    ),
    "batch statistics": (
        lambda: built(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).train(), X,
        Unsupported, r"in module '1' uses the statistics of the batch.*model\.eval\(\)",
    ),
    "random forward": (lambda: net(lambda m, x: m.l(x + torch.rand_like(x))), X, Unsupported, "random"),
    "branch on the data": (lambda: net(lambda m, x: m.l(x) if x.sum() > 0 else -m.l(x)), X, Unsupported, r"torch\.where"),
    "tuple": (lambda: net(lambda m, x: (m.l(x), x)), X, Unsupported, "returns 2 tensors"),
    "loss": (lambda: net(lambda m, x: m.l(x).mean()), X, Unsupported, "dimension 0 of the output must be the batch"),
    "mean over the batch": (lambda: net(lambda m, x: m.l(x).mean(0)), X, Unsupported, "must be the batch"),
    "loss of one datum": (lambda: net(lambda m, x: m.l(x).mean()), X[:1], Unsupported, "must be the batch"),
    "mean of one datum": (lambda: net(lambda m, x: m.l(x).mean(0)), X[:1], Unsupported, "influence each other|must be the batch"),
    "centred by the batch": (lambda: net(lambda m, x: m.l(x - x.mean(0))), X, Unsupported, "influence each other"),
    "centred, one datum": (lambda: net(lambda m, x: m.l(x - x.mean(0))), X[:1], Unsupported, "influence each other"),
    "cumulative sum": (lambda: net(lambda m, x: m.l(x).cumsum(0)), X, Unsupported, "influence each other"),
    "rolled": (lambda: net(lambda m, x: m.l(x + x.roll(1, 0))), X, Unsupported, "influence each other"),
    "mixed tokens": (
        lambda: embedded(lambda m, t: m.l(m.table(t) + m.table(t).mean(0, True))), TOKENS, Unsupported, "influence each other",
    ),
    "mean of tokens": (lambda: embedded(lambda m, t: m.l(m.table(t)).mean(0)), TOKENS, Unsupported, "must be the batch"),
    "integers": (lambda: net(lambda m, x: m.l(x).argmax(-1)), X, Unsupported, r"returns torch\.int64"),
    "own derivative": (lambda: net(lambda m, x: Doubled.apply(m.l(x))), X, Unsupported, r"custom autograd\.Function"),
    "nan in x": (lambda: net(lambda m, x: m.l(x)), X.clone().fill_(float("nan")), mq.DataError, "9 NaN or infinite"),
    "infinity in x": (lambda: net(lambda m, x: m.l(x)), X / 0, mq.DataError, "NaN or infinite"),
    "empty": (lambda: net(lambda m, x: m.l(x)), X[:0], mq.DataError, "batch is empty"),
    "wrong width": (lambda: net(lambda m, x: m.l(x)), double(3, 7), mq.DataError, "cannot take x of shape"),
    "two sizes": (lambda: net(lambda m, x, y: m.l(x) + m.l(y)), (X, X[:2]), mq.DataError, "disagree"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, x, error, message = REFUSED[name]
    model = make()
    for _ in range(2):  # the second time it must not come out of a memory
        with warnings.catch_warnings(), pytest.raises(error, match=message):
            warnings.simplefilter("error")
            ggn(model, x, "gaussian")
    assert capsys.readouterr() == ("", ""), "the error is the message; nothing else is printed"


def test_samples_that_mix_are_found_when_the_first_batch_had_only_one() -> None:
    model = embedded(lambda m, t: m.l(m.table(t) + m.table(t).mean(0, True)))
    ggn(model, TOKENS[:1], "gaussian")
    for _ in range(2):
        with pytest.raises(Unsupported, match="influence each other"):
            ggn(model, TOKENS, "gaussian")


def test_nan_weights_and_overflow() -> None:
    model = built(nn.Linear(3, 2))
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with pytest.raises(mq.DataError, match=r"NaN or infinite outputs.*weights"):
        ggn(model, X, "gaussian")
    model = built(nn.Linear(3, 2))
    ggn(model, X, "gaussian")
    with torch.no_grad():
        model.weight[0, 0] = float("inf")
    with pytest.raises(mq.DataError, match=r"NaN or infinite outputs.*weights"):
        ggn(model, X, "gaussian")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "diagnal"}, "structure='diagnal' is not known.*'diagonal'"),
        ({"estimator": "exakt"}, "estimator='exakt' is not known.*'exact'"),
        ({"likelihood": "gauss"}, "'gauss'.*'gaussian'"),
        ({"structure": "kronecker", "weight_sharing": "both"}, "weight_sharing='both'"),
        ({"structure": "kronecker", "estimator": "approximate"}, "use estimator='exact' or 'sketched'"),
        ({"structure": "full", "estimator": "mixed"}, "use estimator='exact' or 'sketched'"),
        ({"structure": "lowrank", "estimator": "approximate"}, "structure='diagonal'"),
        ({"parameters": "heads.*"}, "selects none"),
        ({"parameters": ["wheight"]}, "did you mean 'weight'"),
    ],
)
def test_unknown_words_and_impossible_combinations(options: dict[str, Any], message: str) -> None:
    passed = {"likelihood": "gaussian", **options}
    with pytest.raises(mq.MarquisError, match=message):
        ggn(built(nn.Linear(3, 2)), X, **passed)


def test_a_matrix_that_does_not_fit_names_what_would() -> None:
    model = nn.Linear(1000, 1000)
    with pytest.raises(
        mq.MemoryBudgetError, match=r"1,001,000 parameters.*'diagonal'.*'kronecker'.*parameters="
    ) as caught:
        ggn(model, torch.randn(2, 1000), "gaussian", "full")
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(mq.MemoryBudgetError, match="memory_limit"):
        ggn(model, torch.randn(2, 1000), "gaussian", "block", memory_limit=2**20)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_mask_of_the_wrong_shape(structure: str) -> None:
    with pytest.raises(mq.DataError, match="mask"):
        ggn(built(nn.Linear(3, 2)), X, "gaussian", structure, mask=torch.ones(3, 5))


def test_a_function_without_parameters() -> None:
    with pytest.raises(mq.MarquisError, match="params="):
        ggn(lambda p, x: x, X, "gaussian")
