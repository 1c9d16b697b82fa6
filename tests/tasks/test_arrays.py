"""Arrays, tables and lists instead of tensors: the same answers, or an error that names what was given."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from toy_models import projector

from marquis import autoencoders as ae
from marquis.errors import DataError, UnsupportedOperationError
from marquis.tasks import calibration, imputation, neighbours, ood, semi_supervised
from marquis.tasks.batches import as_tensor, data_tensor
from marquis.tasks.masks import as_mask

QUIET = {"progress": False, "samples": 3}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).rand(*shape)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def model() -> ae.BaseAutoencoder:
    return ae.DropoutAutoencoder(*ae.build((1, 4, 4), 2, 0.2, seed=0))


@pytest.mark.parametrize(
    "given",
    [
        numbers(3, 2),
        np.asfortranarray(numbers(3, 2)),
        numbers(3, 2)[::-1],
        numbers(3, 2).astype(">f8"),
        numbers(3, 2).astype(np.float32),
        numbers(3, 2) > 0.5,
        np.array([1, 2, 3], dtype=np.uint16),
        np.array([1, 2, 3], dtype=np.uint64),
        np.ma.array(numbers(3)),
        np.array(0.5),
        [1, 2, 3],
        [True, False],
        [torch.tensor(1), torch.tensor(2)],
        pd.DataFrame(numbers(3, 2)),
        pd.Series([1, 2, 3], dtype="Int64"),
    ],
    ids=lambda given: f"{type(given).__name__}-{getattr(given, 'dtype', '')}",
)
def test_what_becomes_a_tensor(given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of arrays that cannot be written to
        result = as_tensor(given, "x")
    np.testing.assert_array_equal(result.numpy(), np.asarray(given))
    assert result.shape == np.shape(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "labels: a tensor or an array of numbers is needed, got NoneType"),
        ("abc", "got str"),
        (np.array(["a"]), "got ndarray of <U1"),
        (np.array([object()]), "got ndarray of object"),
        (np.array(["2020"], dtype="datetime64[D]"), "got ndarray of datetime64"),
        (np.array([1j]), "got ndarray of complex128"),
        ([[1, 2], [3]], "got list"),
        (pd.Series([1, None], dtype="Int64").astype(object), "got Series"),
        (np.ma.array([1, 2, 3], mask=[True, False, True]), r"labels: 2 entries are masked; write x\.filled"),
    ],
)
def test_what_does_not(given, message):
    with pytest.raises(DataError, match=message):
        as_tensor(given, "labels")


def test_tensors_stay_what_they_are(model):
    x = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    assert as_tensor(x, "x") is x and data_tensor(model, x, "x") is x
    assert data_tensor(model, x.detach().numpy(), "x").dtype == torch.float32  # the model's
    assert data_tensor(projector()[0], x.detach().numpy(), "x").dtype == torch.float64  # nothing to tell
    assert data_tensor(model, np.arange(3), "x").dtype == torch.int64


def test_scores(model):
    x = numbers(6, 1, 4, 4)
    tensor = torch.tensor(x, dtype=torch.float32)
    expected = ood.evaluate(model, tensor, 1 - tensor, tensor, generator=generator(), **QUIET)
    result = ood.evaluate(model, x, 1 - x, x, generator=generator(), **QUIET)
    for name, score in expected.in_distribution.items():
        torch.testing.assert_close(result.in_distribution[name], score, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        ood.typicality(expected.in_distribution["nll"].numpy(), expected.train["nll"].numpy()),
        expected.in_distribution["typicality_nll"],
    )
    parts = (expected.in_distribution, expected.train)
    arrays = [{name: score.numpy() for name, score in part.items()} for part in parts]
    torch.testing.assert_close(ood.combined(*arrays), expected.in_distribution["combined"])
    for data in (None, 3):
        with pytest.raises(DataError, match=f"scores: data are a tensor, .* got {type(data).__name__}"):
            ood.scores(model, data, **QUIET)


def test_few_labels(model):
    x, labels, attributes = numbers(12, 1, 4, 4), np.arange(12) % 2, numbers(12, 3, seed=1) > 0.5
    tensor = torch.tensor(x, dtype=torch.float32)
    options = {"repetitions": 2, "copies": 3, "progress": False}
    expected = semi_supervised.evaluate(model, tensor, torch.tensor(labels), [1, 3], generator=generator(), **options)
    for passed in (labels, labels.tolist(), pd.Series(labels), labels.astype(np.uint32)):
        result = semi_supervised.evaluate(model, x, passed, [1, 3], generator=generator(), **options)
        assert torch.equal(result.accuracy, expected.accuracy)
    several = [
        semi_supervised.evaluate_multilabel(model, one, other, 4, generator=generator(), **options).accuracy
        for one, other in ((tensor, torch.tensor(attributes)), (x, attributes))
    ]
    assert torch.equal(*several)
    codes = semi_supervised.embed(model, x, 3, copies=True, generator=generator(), progress=False)
    same = semi_supervised.embed(model, tensor, 3, copies=True, generator=generator(), progress=False)
    torch.testing.assert_close(codes, same)
    of_codes = [
        semi_supervised.evaluate_codes(one, other, [1, 3], means=means, repetitions=2, generator=generator()).accuracy
        for one, other, means in (
            (codes, torch.tensor(labels), codes.mean(0)),
            (codes.numpy(), labels, codes.mean(0).numpy()),
        )
    ]
    assert torch.equal(*of_codes)
    pixels = (255 * x).astype(np.uint8).reshape(1, 12, 16)
    assert semi_supervised.evaluate_codes(pixels, labels, [1], repetitions=1).copies == 1
    with pytest.raises(DataError, match=r"labels: .* got ndarray of <U"):
        semi_supervised.evaluate(model, x, labels.astype(str), [1])


def test_neighbours():
    codes, labels, queries = numbers(20, 3), np.arange(20) % 3, numbers(7, 3, seed=1)
    tensors = [torch.tensor(part) for part in (codes, labels, queries)]
    assert torch.equal(neighbours.predict(codes, labels, queries, [1, 3]), neighbours.predict(*tensors, [1, 3]))
    copies = codes.reshape(2, 10, 3)
    chosen = [
        neighbours.choose_k(one, two, at=one[0], generator=generator())
        for one, two in ((copies, labels[:10]), (torch.tensor(copies), tensors[1][:10]))
    ]
    assert chosen[0] == chosen[1]


def test_calibration():
    probs = numbers(30, 4)
    probs /= probs.sum(1, keepdims=True)
    labels, mean, target = np.arange(30) % 4, numbers(30, seed=1), numbers(30, seed=2)
    draws = numbers(9, 30, seed=3)
    for name, passed in {
        "expected_calibration_error": (probs, labels),
        "coverage": (mean, probs[:, 0], target),
        "sample_coverage": (draws, target),
        "sharpness": (probs,),
    }.items():
        function = getattr(calibration, name)
        assert function(*passed) == function(*map(torch.tensor, passed))
        assert function(*(part.tolist() for part in passed)) == function(*passed)
    curves = [
        calibration.error_against_variance(*(kind(part) for part in (mean, probs[:, 0], target)))
        for kind in (np.asarray, torch.tensor)
    ]
    assert torch.equal(curves[0].squared_error, curves[1].squared_error)
    with pytest.raises(DataError, match="labels is NoneType, but has to be Tensor"):
        calibration.reliability(probs, None)


def test_masks():
    x = torch.rand(3, 4)
    missing = numbers(3, 4) < 0.5
    assert torch.equal(as_mask(x, missing), torch.tensor(missing))
    assert torch.equal(as_mask(x, missing[0].tolist()), torch.tensor(missing[:1]).expand(3, 4))
    with pytest.raises(DataError, match=r"must be boolean.*got torch\.float64"):
        as_mask(x, missing.astype(float))
    with pytest.raises(DataError, match=r"imputation takes a tensor \[B, \.\.\.\], got ndarray: torch\.as_tensor"):
        as_mask(x.numpy(), missing)
    toy, _ = projector()
    data, hidden, options = torch.rand(3, 8).double(), numbers(3, 8) < 0.5, {"progress": False}
    for fill in (0.5, np.linspace(0, 1, 8), np.float32(0.25)):
        filled = torch.as_tensor(fill)
        result = imputation.impute(toy, data, hidden, fill=fill, **options)
        assert torch.equal(result.mean, imputation.impute(toy, data, torch.tensor(hidden), fill=filled, **options).mean)
    with pytest.raises(DataError, match="fill is NoneType, but has to be"):
        imputation.impute(toy, data, hidden, fill=None)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 4, 4)])
def test_images_of_the_wrong_size(model, shape):
    with pytest.raises(DataError) as caught:
        ood.scores(model, torch.rand(2, *shape), **QUIET)
    message = str(caught.value)
    assert f"DropoutAutoencoder cannot take data of shape {list(shape)} each" in message and "\n" not in message
    assert "Its first layer is Linear(in_features=16" in message
    convolution = ae.Autoencoder(*ae.build((1, 16, 16), 2, 0.1, kind="convolutional", seed=0))
    with pytest.raises(DataError, match=r"cannot take data of shape \[3, 16, 16\] each.*Its first layer is Conv2d\(1,"):
        ood.scores(convolution, torch.rand(2, 3, 16, 16), **QUIET)
    toy, _ = projector()
    with pytest.raises(DataError, match=r"LinearModel cannot take data of shape \[5\] each: .*[^.]\.$"):
        ood.scores(toy, torch.rand(2, 5).double(), **QUIET)


@pytest.mark.parametrize(
    "error", [UnsupportedOperationError("no"), NotImplementedError("no"), torch.OutOfMemoryError()]
)
def test_other_errors_are_not_blamed_on_the_shape(error):
    class Broken(nn.Module):
        def reconstruct(self, x, samples, *, generator):
            raise error

    with pytest.raises(type(error)):
        ood.scores(Broken(), torch.rand(2, 3), **QUIET)


def test_votes_are_counted_in_parts(monkeypatch):
    """Of 300 queries with 5 labels of 2 classes each: the same answers, with a hundredth of the memory."""
    codes, labels, queries = numbers(50, 2), numbers(50, 5, seed=1) > 0.5, numbers(300, 2, seed=2)
    whole = neighbours.predict(codes, labels.astype(int), queries, [1, 4, 10])
    sizes, original = [], torch.nn.functional.one_hot

    def counted(*given):
        result = original(*given)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(torch.nn.functional, "one_hot", counted)
    monkeypatch.setattr(neighbours, "VOTES", 300)
    assert torch.equal(neighbours.predict(codes, labels.astype(int), queries, [1, 4, 10]), whole)
    assert max(sizes) <= 300 and len(sizes) == 300
