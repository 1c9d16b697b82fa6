"""Arguments are checked against their annotations, and named where they are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from marquis.arguments import (
    AtLeastOne,
    FromZero,
    NotNegative,
    Positive,
    Share,
    checked,
    checked_arrays,
    checked_methods,
    describe_value,
)
from marquis.errors import DataError


@checked
def door(
    count: int = 1,
    rate: float = 1.0,
    flag: bool = False,
    name: str | None = None,
    path: str | Path = "",
    tensor: torch.Tensor | None = None,
    numbers: Sequence[float] | Mapping[str, float] = (),
    loader: Iterable[Any] = (),
    function: Callable[[int], int] | None = None,
    word: Literal["a", "b"] = "a",
    anything: Any = None,
    unknown: NotThere = None,  # noqa: F821 (only type checkers would know it)
    unannotated=None,
    **options: int,
) -> str:
    """Do nothing."""
    return "done"


@pytest.mark.parametrize(
    "good",
    [
        {"count": np.int64(3)},
        {"rate": 2},
        {"rate": np.float32(0.5)},
        {"rate": float("inf")},
        {"flag": np.bool_(True)},
        {"name": None},
        {"path": Path("x")},
        {"tensor": torch.ones(2)},
        {"numbers": [1.0]},
        {"numbers": {"a": 1.0}},
        {"loader": iter([])},
        {"function": abs},
        {"function": lambda first, second=2: first},
        {"function": torch.nn.ReLU()},
        {"word": "c"},  # refused by the function itself, which knows what was meant
        {"anything": object()},
        {"unknown": 5},
        {"unannotated": object()},
        {"more": "than that"},
    ],
)
def test_what_fits_passes(good):
    assert door(**good) == "done"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"count": 2.5}, r"count is 2\.5 \(float\), but has to be int"),
        ({"count": True}, "count is True"),
        ({"count": torch.tensor(3)}, r"count is a Tensor of shape \[\]"),
        ({"rate": float("nan")}, r"rate is nan \(float\)"),
        ({"rate": np.float64("nan")}, "rate is .*nan"),
        ({"rate": "fast"}, r"rate is 'fast' \(str\)"),
        ({"flag": 1}, "flag is 1"),
        ({"name": 3}, "name is 3"),
        ({"path": 3}, "path is 3"),
        ({"tensor": np.ones(3)}, r"tensor is a ndarray of shape \[3\] \(float64\)"),
        ({"tensor": torch.ones(2).to_sparse()}, "tensor is a sparse Tensor"),
        ({"tensor": torch.ones(2, device="meta")}, "tensor is a Tensor.* no entries"),
        ({"numbers": 3.0}, "numbers is 3.0"),
        ({"numbers": "12"}, "numbers is '12'"),
        ({"numbers": b"12"}, "numbers is b'12'"),
        ({"numbers": [1.0, None]}, "numbers is a list of NoneType, float"),
        ({"loader": "batches"}, "loader is 'batches'"),
        ({"loader": None}, "loader is None.*cannot be iterated; give a DataLoader"),
        ({"function": int}, "function is the class int"),
        ({"function": lambda: None}, "function is a function"),
        ({"function": torch.nn.Bilinear(2, 2, 2)}, "function is a Bilinear"),  # by what its forward takes
        ({"word": np.ones(3)}, "word is a ndarray"),
        ({"word": 3}, "word is 3"),
    ],
)
def test_what_does_not_fit_is_named(bad, message):
    with pytest.raises(DataError, match=f"door: .*{message}"):
        door(**bad)


def test_calls_that_do_not_bind_are_ours_too():
    @checked
    def other(x: int) -> int:
        return x

    with pytest.raises(DataError, match=r"other: missing a required argument: 'x'"):
        other()
    with pytest.raises(DataError, match="unexpected keyword argument 'y'"):
        other(1, y=2)


def test_arrays_are_what_may_hold_numbers():
    @checked_arrays
    def average(values: Sequence[int] | torch.Tensor, angles: int | Sequence[float] | torch.Tensor = 1) -> str:
        return "done"

    for good in ([1, 2], np.ones(3), torch.ones(2), list(torch.ones(2)), 3.0):
        assert average(good) == "done"
    for bad in ("x" * 5000, b"12", None, object(), {"a": 1}, torch.ones(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(DataError, match="values is"):
            average(bad)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="angles is"):
            average([1], bad)  # type: ignore[arg-type]


def test_constructors_of_scikit_learns_estimators_only_store():
    from sklearn.base import BaseEstimator

    @checked_methods
    class Estimator(BaseEstimator):
        def __init__(self, size: int = 1) -> None:
            self.size = size

        def predict(self, count: int) -> int:
            return count

    assert Estimator("large").get_params() == {"size": "large"}  # type: ignore[arg-type]
    with pytest.raises(DataError, match="count is 'x'"):
        Estimator().predict("x")  # type: ignore[arg-type]


def test_dataclasses():
    @checked_methods
    @dataclass(frozen=True)
    class Value:
        count: int

    @checked_methods
    @dataclass(frozen=True)
    class Result:
        share: float

        def above(self, level: float) -> bool:
            return self.share > level

    assert np.isnan(Result(float("nan")).share)  # a measure may be undefined, a choice is not
    with pytest.raises(DataError, match="level is nan"):
        Result(0.5).above(float("nan"))
    assert Value(3).count == 3
    with pytest.raises(DataError, match="Value: count is 'x'"):  # the class that was called, not its __init__
        Value("x")


def test_long_values_are_cut():
    assert len(describe_value("x" * 5000)) < 80


def test_counts_are_bounded():
    @checked
    def draw(samples: int, rows: int = 1) -> int:
        return samples

    assert draw(10**6, rows=10**9) == 10**6
    with pytest.raises(DataError, match=r"samples is 1000001 .*at most 1000000"):
        draw(10**6 + 1)


def test_ranges_are_declared_in_annotations():
    @checked
    def draw(
        samples: AtLeastOne | None = None,
        skipped: FromZero = 0,
        width: Positive = 1.0,
        noise: NotNegative = 0,
        level: Share = 0.5,
    ) -> None:
        return None

    draw(1, 0, 1e-9, 0.0, 0.999)
    draw(None)
    with pytest.raises(DataError, match=r"samples is 0 \(int\), but has to be a whole number from 1 \| None, at most"):
        draw(0)
    wrong = {"samples": [-1, 1.5, True], "skipped": [-1], "width": [0, -1.0, math.inf], "noise": [-0.1, math.inf]}
    for name, values in (wrong | {"level": [0, 1, 2.0, math.nan]}).items():
        for value in values:
            with pytest.raises(DataError, match=f"{name} is {value}"):
                draw(**{name: value})


def test_own_public_methods_are_checked_and_private_ones_left():
    @checked_methods
    class Value:
        def __init__(self, size: int) -> None:
            self.size = size

        def larger(self, by: int) -> int:
            return self.size + by

        @classmethod
        def of(cls, size: int) -> Value:
            return cls(size)

        @staticmethod
        def twice(size: int) -> int:
            return 2 * size

        def _free(self, by: int) -> str:
            return f"{by}"

    value = Value.of(2)
    assert value.larger(3) == 5 and Value.twice(2) == 4 and value._free("x") == "x"  # type: ignore[arg-type]
    for wrong in (lambda: Value("2"), lambda: Value.of("2"), lambda: Value.twice("2"), lambda: value.larger("3")):  # type: ignore[arg-type]
        with pytest.raises(DataError, match="has to be int"):
            wrong()
