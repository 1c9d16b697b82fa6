"""Parameters, selection, calling conventions, batches: what comes back, and what the refusals say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marquis.errors import DataError, MarquisError
from marquis.functional.call import buffers_of, call
from marquis.functional.checks import batch_size, check_finite
from marquis.functional.selection import SelectionError, parameters_of, select
from marquis.loaders import split_batch


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        return self.norm(self.second(self.first(x))) * scale


def test_shared_parameters_are_listed_once():
    assert list(parameters_of(Tied())) == [
        "first.weight",
        "first.bias",
        "second.bias",
        "norm.weight",
        "norm.bias",
    ]


def test_a_function_needs_its_parameters():
    with pytest.raises(MarquisError, match="pass params"):
        parameters_of(lambda p, x: x)
    w = {"w": torch.ones(2)}
    assert parameters_of(lambda p, x: x, w) == w


def test_other_values_must_fit_the_module():
    model = nn.Linear(2, 3)
    values = {"bias": torch.ones(3), "weight": torch.ones(3, 2)}
    assert list(parameters_of(model, values)) == ["weight", "bias"]
    for wrong in ({"weight": torch.ones(3, 2)}, {**values, "extra": torch.ones(1)}, {**values, "bias": torch.ones(2)}):
        with pytest.raises(SelectionError, match=r"extra|bias"):
            parameters_of(model, wrong)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (None, ["first.weight", "first.bias", "norm.weight", "norm.bias"]),
        ("all", ["first.weight", "first.bias", "norm.weight", "norm.bias"]),
        ("first.*", ["first.weight", "first.bias"]),
        (lambda name, p: p.ndim == 2, ["first.weight"]),
        (["norm.bias", "first.weight"], ["first.weight", "norm.bias"]),
        (("second.bias",), ["second.bias"]),  # frozen, but asked for by name
        ((name for name in ["first.bias"]), ["first.bias"]),
    ],
)
def test_selection(parameters: Any, names: list[str]):
    model = Tied()
    model.second.bias.requires_grad_(False)
    assert list(select(parameters_of(model), parameters)) == names


def test_plain_tensors_of_a_function_all_count():
    assert list(select({"a": torch.ones(1), "b": torch.ones(1)})) == ["a", "b"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (["first.wieght"], r"'first.wieght' \(did you mean 'first.weight'"),
        (["qqqqqq"], r"'qqqqqq'; it has 'first.weight', 'first.bias'"),
        ("frist.*", r"'frist.\*' \(did you mean"),
        ("second.*", r"\['second.bias'\] match but are frozen"),
        ([], "empty list of names"),
        (lambda name, p: False, "predicate"),
    ],
)
def test_selecting_nothing_or_the_unknown(parameters: Any, message: str):
    model = Tied()
    model.second.bias.requires_grad_(False)
    with pytest.raises(SelectionError, match=message):
        select(parameters_of(model), parameters)
    assert issubclass(SelectionError, MarquisError)


def test_a_frozen_model_says_so():
    model = Tied().requires_grad_(False)
    with pytest.raises(SelectionError, match="frozen"):
        select(parameters_of(model))


def test_calling_conventions():
    model, x, scale = Tied().eval(), torch.randn(3, 2), torch.full((3, 1), 2.0)
    params, buffers = parameters_of(model), buffers_of(model)
    assert set(buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    expected = model(x)
    assert torch.equal(call(model, params, buffers, x), expected)
    assert torch.equal(call(model, params, buffers, (x, scale)), 2 * expected)
    assert torch.equal(call(model, params, buffers, [x, scale]), 2 * expected)
    assert torch.equal(call(model, params, buffers, {"scale": scale, "x": x}), 2 * expected)
    assert torch.equal(call(lambda p, x: p["w"] * x, {"w": scale}, {}, x), 2 * x)
    assert buffers_of(lambda p, x: x) == {}


def test_a_call_uses_the_given_values_for_every_use_of_a_shared_parameter():
    model, x = Tied().eval(), torch.randn(3, 2)
    zeros = {name: torch.zeros_like(p) for name, p in parameters_of(model).items()}
    assert torch.equal(call(model, zeros, buffers_of(model), x), torch.zeros(3, 2))
    assert not torch.equal(model.first.weight, torch.zeros(2, 2))


def test_a_module_under_two_names_is_called_right_and_left_as_it_was():
    torch.manual_seed(0)
    twice, tied = nn.Linear(3, 3), nn.Linear(3, 3)
    tied.weight = twice.weight  # another module with the same parameter
    model, x = nn.Sequential(twice, nn.BatchNorm1d(3), twice, tied).eval(), torch.randn(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    params = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    buffers = {**buffers_of(model), "1.running_mean": torch.ones(3)}
    for _ in range(2):
        result = call(model, params, buffers, x)
    inner = nn.functional.linear(x, params["0.weight"], params["0.bias"])
    scale = params["1.weight"] / (buffers["1.running_var"] + 1e-5).sqrt()
    inner = nn.functional.linear((inner - 1) * scale + params["1.bias"], params["0.weight"], params["0.bias"])
    torch.testing.assert_close(result, nn.functional.linear(inner, params["0.weight"], params["3.bias"]))
    assert isinstance(twice.weight, nn.Parameter) and tied.weight is twice.weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class TwoNames(nn.Module):
    """One buffer under two names, written in place, and a parameter that is not shown."""

    def __init__(self) -> None:
        super().__init__()
        shared = torch.ones(2)
        self.register_buffer("p", shared)
        self.register_buffer("q", shared)
        self.w, self.hidden = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return ((name, value) for name, value in super().named_parameters(*args, **kwargs) if name != "hidden")

    def forward(self, x: Tensor) -> Tensor:
        self.q.add_(1)  # type: ignore[operator]
        return x * self.p + self.q * self.w + 0 * self.hidden


def test_a_buffer_under_two_names_and_parameters_that_are_not_shown():
    model = TwoNames()
    result = call(model, {"w": torch.ones(2)}, {"p": torch.full((2,), 10.0)}, torch.ones(2))
    assert result.tolist() == [22.0, 22.0] and model.p.tolist() == model.q.tolist() == [1.0, 1.0]


def test_batch_size_of_any_pytree():
    assert batch_size(torch.ones(4, 2)) == 4
    assert batch_size({"a": torch.ones(3), "b": (torch.ones(3, 1), "text", None)}) == 3
    with pytest.raises(DataError, match=r"x\['a'\]: 3, x\['b'\]\[0\]: 2"):
        batch_size({"a": torch.ones(3), "b": [torch.ones(2)]})
    with pytest.raises(DataError, match="empty"):
        batch_size(torch.ones(0, 2))
    with pytest.raises(DataError, match="no tensor"):
        batch_size({"a": 3})
    with pytest.raises(DataError, match="single number"):
        batch_size(torch.tensor(1.0))


def test_check_finite_names_the_leaf():
    check_finite({"a": torch.ones(3), "b": torch.tensor([1, 2]), "c": None})
    check_finite(None)
    with pytest.raises(DataError, match=r"y\['b'\]\[1\] holds 2 NaN or infinite value\(s\) of 3"):
        check_finite({"b": [torch.ones(1), torch.tensor([float("nan"), 1.0, -float("inf")])]}, "y")


def test_split_batch():
    x, y = torch.ones(2), torch.zeros(2)
    assert split_batch((x, y)) == (x, y)
    assert split_batch([x, y]) == (x, y)
    assert split_batch(x) == (x, None)
    for key in ("labels", "label", "y", "target", "targets"):
        assert split_batch({"input": x, key: y}) == ({"input": x}, y)
    assert split_batch({"input": x}) == ({"input": x}, None)
    with pytest.raises(DataError, match="3 items"):
        split_batch((x, y, y))
    with pytest.raises(DataError, match="several label entries"):
        split_batch({"y": y, "labels": y})
    with pytest.raises(DataError, match="str"):
        split_batch("text")
