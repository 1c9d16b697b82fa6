"""Names and places in the flat vector."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from marquis.errors import DataError, ModelMismatchError
from marquis.structures import Layout
from marquis.testing import STANDARD, normal


def test_order_and_places() -> None:
    assert STANDARD.names == ("a.weight", "a.bias", "b.weight", "b.bias")
    assert STANDARD.sizes == {"a.weight": 12, "a.bias": 3, "b.weight": 6, "b.bias": 2}
    assert STANDARD.offsets == {"a.weight": 0, "a.bias": 12, "b.weight": 15, "b.bias": 21}
    assert STANDARD.total == 23
    assert STANDARD.slice("b.weight") == slice(15, 21)
    assert [STANDARD.locate(i) for i in (0, 11, 12, 14, 15, 22)] == [
        "a.weight",
        "a.weight",
        "a.bias",
        "a.bias",
        "b.weight",
        "b.bias",
    ]
    with pytest.raises(ModelMismatchError, match="'c'"):
        STANDARD.slice("c")


def test_an_empty_parameter_is_never_located() -> None:
    layout = Layout({"none": (0,), "a": (2,), "nothing": (3, 0), "b": (1,)})
    assert [layout.locate(i) for i in range(3)] == ["a", "a", "b"]


def test_flat_order_is_torchs() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
    parameters = dict(model.named_parameters())
    layout = Layout.of(parameters)
    assert torch.equal(layout.flatten(parameters), parameters_to_vector(model.parameters()))
    again = layout.unflatten(layout.flatten(parameters))
    assert all(torch.equal(again[name], parameters[name]) for name in parameters)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_round_trip_with_batches(batch: tuple[int, ...]) -> None:
    v = normal(*batch, STANDARD.total, seed=0)
    named = STANDARD.unflatten(v)
    assert named["a.weight"].shape == (*batch, 3, 4)
    assert torch.equal(STANDARD.flatten(named), v)
    empty = Layout({})
    assert empty.unflatten(torch.zeros(*batch, 0)) == {}
    assert empty.flatten({}).shape == (0,)


def test_refusals() -> None:
    named = STANDARD.unflatten(torch.zeros(STANDARD.total))
    with pytest.raises(ModelMismatchError, match=r"missing \['b.bias'\]"):
        STANDARD.flatten({name: t for name, t in named.items() if name != "b.bias"})
    with pytest.raises(ModelMismatchError, match="unknown"):
        STANDARD.flatten(named | {"c": torch.zeros(1)})
    with pytest.raises(ModelMismatchError, match=r"a\.weight"):
        STANDARD.flatten(named | {"a.weight": torch.zeros(4, 3)})
    with pytest.raises(DataError, match="23"):
        STANDARD.unflatten(torch.zeros(22))


def test_equality_is_names_shapes_and_order() -> None:
    same = Layout(dict(STANDARD.items))
    assert same == STANDARD and hash(same) == hash(STANDARD)
    assert pickle.loads(pickle.dumps(STANDARD)) == STANDARD
    STANDARD.require_same(same)
    for other, difference in (
        (Layout(dict(STANDARD.items[:-1])), r"only in the first: \['b.bias'\]"),
        (Layout(dict(STANDARD.items) | {"c": (1,)}), r"only in the second: \['c'\]"),
        (Layout(dict(STANDARD.items) | {"a.weight": (4, 3)}), r"'a.weight' has shape \(3, 4\) and \(4, 3\)"),
        (Layout(dict(reversed(STANDARD.items))), "order"),
    ):
        assert other != STANDARD
        with pytest.raises(ModelMismatchError, match=difference):
            STANDARD.require_same(other)


def test_frozen_and_copied() -> None:
    shapes = {"a": (2,)}
    layout = Layout(shapes)
    shapes["b"] = (3,)
    assert layout.total == 2
    with pytest.raises(AttributeError):
        layout.items = ()  # type: ignore[misc]
    assert "P=2" in repr(layout)
