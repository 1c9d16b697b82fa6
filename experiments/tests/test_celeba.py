"""The experiment `celeba` at its quick size, which needs no faces, and what it is made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from marquis.data import Data
from marquis.errors import DataError
from marquis.tasks import semi_supervised
from marquis_experiments.laplacian_autoencoder.models import Images
from marquis_experiments.laplacian_autoencoder.table4_celeba import faces as celeba_faces
from marquis_experiments.laplacian_autoencoder.table4_celeba.faces import averaged_groups, random_codes
from marquis_experiments.laplacian_autoencoder.table4_celeba.page import Faces
from marquis_experiments.laplacian_autoencoder.table4_celeba.study import (
    STUDY,
    attributes,
    measured,
    most_common,
    patches,
    summary,
)

QUICK = STUDY.settings("quick")


def test_patches_have_the_attributes_they_say():
    result = patches(40)
    assert result.stored.shape == (40, 3, 64, 64) and result.stored.dtype == torch.uint8
    red, green, blue = result.x.double().mean((2, 3)).unbind(1)
    received = dict(zip(result.target_names or (), attributes(result).T, strict=True))
    assert torch.equal(received["Reddish"] == 1, red > green) and torch.equal(received["Bluish"] == 1, blue > red)
    assert all(0 < int(column.sum()) < 40 for column in received.values())
    assert torch.equal(patches(40).stored, result.stored)  # the same every time


def test_commoner_answer_of_the_labelled_images():
    settings = QUICK.replace(labelled=4, repetitions=2, test=10)
    y = torch.tensor([[1.0, 1.0, 0.0]] * 9 + [[0.0, 1.0, 0.0]])
    data = Data(torch.zeros(10, 3, 2, 2, dtype=torch.uint8), y, "own", "all", target_names=("a", "b", "c"))
    result = most_common(data, settings, 0)
    assert torch.equal(result.accuracy[:, 1:], torch.ones(2, 2, dtype=torch.float64))
    for row in result.accuracy[:, 0].tolist():  # the one without is labelled, or is the one mistake among six
        assert row == pytest.approx(1.0) or row == pytest.approx(5 / 6)
    tie = Data(data.stored, torch.tensor([[1.0], [0.0]] * 5), "own", "all", target_names=("a",))
    for row in most_common(tie, settings.replace(repetitions=30), 0).accuracy[:, 0].tolist():
        assert any(row == pytest.approx(share / 6) for share in (1, 2, 3, 4, 5))


def test_commoner_answer_meets_the_labelled_images_of_the_others(monkeypatch):
    data, settings = patches(30), QUICK.replace(labelled=6, repetitions=3)
    seen = []
    real = semi_supervised._classified

    def watch(codes, labels, chosen, *options):
        seen.append(chosen)
        return real(codes, labels, chosen, *options)

    monkeypatch.setattr(semi_supervised, "_classified", watch)
    measured(data.x.flatten(1)[None], None, data, settings, 5)
    truth = attributes(data)
    expected = []
    for chosen in seen:
        rest = torch.tensor([row for row in range(30) if row not in chosen.tolist()])
        answer = (truth[chosen].sum(0) > 3).long()
        expected.append((truth[rest] == answer).double().mean(0))
    assert torch.allclose(most_common(data, settings, 5).accuracy, torch.stack(expected), rtol=1e-12)


def test_summary_keeps_repetitions():
    data, settings = patches(30), QUICK.replace(repetitions=3)
    result = most_common(data, settings, 0)
    message = summary(result, data)
    assert message["overall"] == pytest.approx(result.accuracy.mean(1).tolist(), abs=1e-6)
    assert message["attributes"]["Bright"] == pytest.approx(result.accuracy[:, 1].tolist(), abs=1e-6)
    assert message["means"] == pytest.approx(
        dict(zip(result.names, result.accuracy.mean(0).tolist(), strict=True)), abs=1e-6
    )
    assert message["majority"]["Bright"] == pytest.approx(float(result.majority[:, 1].mean()), abs=1e-6)


# Nobody's faces


def test_random_codes_have_the_moments_of_the_codes():
    source = torch.Generator().manual_seed(0)
    mixing = torch.randn(3, 3, generator=source, dtype=torch.float64)
    codes = torch.randn(500, 3, generator=source, dtype=torch.float64) @ mixing + torch.tensor([1.0, 2.0, 3.0])
    drawn = random_codes(codes, 200_000, source)
    assert torch.allclose(drawn.mean(0), codes.mean(0), atol=0.03)
    assert torch.allclose(torch.cov(drawn.T), torch.cov(codes.T), atol=0.1)
    flat = torch.cat([codes[:, :2], codes[:, :1]], 1)  # a covariance of rank two
    drawn = random_codes(flat, 10, source)
    assert torch.allclose(drawn[:, 0], drawn[:, 2], atol=1e-6)
    assert torch.cdist(drawn, flat).min() > 0  # none is the code of an image


def test_no_average_over_few_people_is_drawn():
    data = patches(60)
    images = Images(data, None, data)
    with pytest.raises(DataError, match="of 50 people"):
        averaged_groups(images, 2, 249, people=True)
    with pytest.raises(DataError, match="fewer than 250 images"):
        averaged_groups(images, 2, 250, people=True)
    groups = averaged_groups(images, 2, 20, people=False)
    names = list(data.target_names or ())
    for name, rows in groups.items():
        assert len(rows) <= 20 and bool((attributes(data)[rows, names.index(name)] == 1).all())
    for size in ("default", "full"):
        each = 5 if size == "default" else 35
        assert STUDY.settings(size).averaged >= celeba_faces.FEWEST_PEOPLE * each


def test_differences_are_paired_and_the_majority_is_the_mean_over_attributes():
    def row(name: str, overall: list[float]) -> dict:
        scores = {"overall": overall, "balanced": overall, "majority": {"a": 0.7, "b": 0.9}, "attributes": {}}
        return {"name": name, "seed": 0, "failed": None, "ways": {"mean": scores}, "width": 0.0}

    faces = Faces({"shown": [], "rows": [row("ae", [0.6, 0.8]), row("vae", [0.7, 0.9])]})
    assert faces.difference("vae", "ae", "overall") == (pytest.approx(0.1), pytest.approx(0, abs=1e-12))
    assert faces.majority("overall") == pytest.approx(0.8) and faces.majority("b") == 0.9


def test_quick(tmp_path):
    page = STUDY.run("quick", tmp_path / "celeba", None, lambda _: None)
    for name in ("celeba.png", "celeba-faces.png"):
        assert (page.parent / name).stat().st_size > 10_000
    result = json.loads((page.parent / "results.json").read_text())
    assert len(result["rows"]) == 8 and not any(row["failed"] for row in result["rows"])
    pixels = next(row for row in result["rows"] if row["name"] == "pixels")
    assert np.mean(pixels["ways"]["mean"]["balanced"]) > 0.7  # colours are easy to tell
    stamp = {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
    STUDY.run("quick", tmp_path / "celeba", None, lambda _: None)
    assert stamp == {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
