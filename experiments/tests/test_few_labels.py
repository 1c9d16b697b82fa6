"""The experiment `few-labels` at its quick size, and what it is made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from marquis.autoencoders import Autoencoder, EnsembleAutoencoder, VariationalAutoencoder, for_data
from marquis.data import load
from marquis.errors import DataError
from marquis_experiments.laplacian_autoencoder.codes import codes_of, exceeds, mean_and_error, points, width
from marquis_experiments.laplacian_autoencoder.figure12_few_labels.study import (
    STUDY,
    Rows,
    accuracies,
    held_out,
    jobs,
    measured,
)


def pair():
    return for_data((1, 4, 4), 2, 0.1, seed=0)


def images(n: int = 12) -> torch.Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(0))


# Codes


def test_members_of_an_ensemble_are_put_side_by_side():
    own = EnsembleAutoencoder(*pair(), members=3, seed=5)
    codes, means = codes_of(own, images(), 100, 0)
    assert codes.shape == (1, 12, 6) and means is None
    for number, member in enumerate(own.members):
        assert torch.allclose(codes[0, :, 2 * number : 2 * number + 2], member.encoder(images()), rtol=1e-5)


def test_mean_of_a_variational_autoencoder_is_exact():
    own = VariationalAutoencoder(*pair())
    codes, means = codes_of(own, images(), 7, 0)
    assert codes.shape == (7, 12, 2) and means is not None
    assert torch.allclose(means, own.encoder(images()), rtol=1e-5)
    assert not torch.allclose(means, codes.mean(0), rtol=1e-2)
    assert codes_of(Autoencoder(*pair()), images(), 7, 0)[0].shape == (1, 12, 2)


def test_width_is_spread_of_copies_over_spread_of_images():
    means = torch.tensor([[3.0, 0.0], [-3.0, 0.0]], dtype=torch.float64)  # variance 9 + 0
    shift = torch.tensor([[0.0, 1.5], [0.0, -1.5]], dtype=torch.float64)  # variance 2.25
    codes = means + shift[:, None]
    assert width(codes, means) == pytest.approx(0.5, rel=1e-12)
    assert width(2 * codes, 2 * means) == pytest.approx(0.5, rel=1e-12)
    assert width(means[None], means) == 0.0


# Pairs


def results(accuracy: dict[tuple[str, int], list[list[float]]]) -> dict:
    rows = [
        {"name": name, "seed": seed, "failed": None, "ways": {"mean": {"accuracy": value}}, "width": 0.0}
        for (name, seed), value in accuracy.items()
    ]
    return {"settings": {"per_class": [1, 50], "models": ["ae", "vae"]}, "rows": rows}


def test_differences_are_taken_within_seeds():
    hard, easy = [[0.1, 0.3], [0.5, 0.5]], [[0.7, 0.9], [0.9, 0.9]]
    better = [[[a + 0.1 for a in row] for row in value] for value in (hard, easy)]
    rows = Rows(results({("ae", 0): hard, ("ae", 1): easy, ("vae", 0): better[0], ("vae", 1): better[1]}))
    mean, error = rows.difference("vae", "ae")
    assert mean == pytest.approx([0.1, 0.1], rel=1e-12) and error == pytest.approx([0, 0], abs=1e-12)
    alone = rows.accuracy("ae")
    assert alone[0] == pytest.approx([0.5, 0.7]) and alone[1] == pytest.approx([0.3, 0.2])  # .2 and .8, .5 and .9
    assert (rows.few, rows.many) == ([0], [1])


def test_differences_of_other_seeds_are_left_out():
    one, two = [[0.2], [0.2]], [[0.9], [0.9]]
    rows = Rows(results({("ae", 0): one, ("vae", 0): two, ("vae", 1): one}))
    mean, error = rows.difference("vae", "ae")
    assert mean == pytest.approx([0.7, 0.7]) and np.isnan(error).all()


def test_the_larger_standard_error_counts():
    seeds = [np.array([[1.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([[6.0, 6.0]])]
    mean, error = mean_and_error(seeds)
    assert mean[0] == pytest.approx(3.0) and error[0] == pytest.approx((7.0 / 3) ** 0.5, rel=1e-12)
    lucky = [np.array([[1.0, 3.0]]), np.array([[0.0, 4.0]])]  # equal means, though each is made of spread numbers
    mean, error = mean_and_error(lucky)
    assert mean[0] == 2 and error[0] == pytest.approx(((2 + 8) / 2 / 4) ** 0.5, rel=1e-12)
    mean, error = mean_and_error(lucky[:1])
    assert mean[0] == 2 and error[0] == pytest.approx(1.0, rel=1e-12)


def test_differences_count_from_two_standard_errors_on():
    assert exceeds(0.03, 0.01) and not exceeds(0.02, 0.01) and not exceeds(-0.03, 0.01)
    assert not exceeds(0.5, float("nan"))  # a single number decides nothing
    assert points(0.1234, 0.01) == "12.3 ± 1.0" and points(0.1234, float("nan"), sign=True) == "+12.3"


# Data


def test_labelled_images_are_not_trained_on():
    settings = STUDY.settings("quick")
    held = held_out(settings, None)
    whole = load("digits", "train")
    assert torch.equal(held.stored, whole.stored[1000:1400])
    for size in ("quick", "default", "full"):
        assert STUDY.settings(size).first >= STUDY.settings(size).recipe.images
    with pytest.raises(DataError, match="wanted for labels"):
        held_out(settings.replace(first=100), None)
    with pytest.raises(DataError, match="wanted for labels"):
        held_out(settings.replace(held=10_000), None)


def test_every_way_meets_the_same_labels():
    settings = STUDY.settings("quick").replace(data_copies=4)
    held = held_out(settings, None)
    x = held.x.flatten(1)
    once = measured(x[None], None, held, settings, 0)
    assert set(once["ways"]) == {"mean"} and once["width"] == 0
    copied = measured(x.repeat(10, 1, 1), None, held, settings, 0)  # copies without variance
    assert copied["ways"]["mean"]["accuracy"] == once["ways"]["mean"]["accuracy"]
    assert copied["ways"]["data"]["accuracy"] == once["ways"]["mean"]["accuracy"]
    other = measured(x[None], None, held, settings, 1)
    assert other["ways"]["mean"]["accuracy"] != once["ways"]["mean"]["accuracy"]  # other labels for another seed


# The whole


def test_quick(tmp_path):
    lines: list[str] = []
    page = STUDY.run("quick", tmp_path / "few-labels", None, lines.append)
    assert (page.parent / "few-labels.png").stat().st_size > 10_000
    result = json.loads((page.parent / "results.json").read_text())
    assert sorted(row["name"] for row in result["rows"]) == sorted(name for name, _ in jobs(STUDY.settings("quick")))
    assert not any(row["failed"] for row in result["rows"])
    pixels = next(row for row in result["rows"] if row["name"] == "pixels")
    assert np.mean(accuracies(pixels)[-1]) > 0.8  # digits are easy, whatever the models do
    lines.clear()
    stamp = {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
    STUDY.run("quick", tmp_path / "few-labels", None, lines.append)
    assert stamp == {path: path.stat().st_mtime_ns for path in page.parent.glob("*-s0.json")}
    assert not any("trained" in text for text in lines)
