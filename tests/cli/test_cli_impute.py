"""`marquis impute`: the same numbers as `impute` and `impute_weighted`; its reference set, and bad ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from helpers.commands import ONE_EPOCH, SMALL, exit_code, one_line, write_config
from marquis.data import load
from marquis.run import Run
from marquis.tasks.imputation import impute, impute_weighted

WEIGHTED = ("--method", "weighted")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two finished runs, which are only read: on digits, and on a table with holes."""
    folder = tmp_path_factory.mktemp("kept")
    wine = load_wine(as_frame=True).frame.drop(columns="target").iloc[:, :6]  # type: ignore[union-attr]
    wine.columns = list("abcdef")
    wine.to_csv(folder / "complete.csv", index=False)
    wine.mask(np.random.RandomState(0).rand(*wine.shape) < 0.05).to_csv(folder / "wine.csv", index=False)
    for name, data in (("digits", "digits"), ("wine", folder / "wine.csv")):
        assert exit_code("train", "lae", "--data", data, "--out", folder / name, *SMALL) == 0
    return folder


def training_rows(run: Run) -> torch.Tensor:
    run.data_module.setup()
    return run.data_module.train.x


def test_images_are_filled_as_impute_weighted_does(marquis, kept):
    text = ("impute", kept / "digits", "digits", "--hide", "top", "--limit", "6", *WEIGHTED, "--reference-rows", "50")
    code, message, _ = marquis(*text, "--exponent", "0.3", "--seed", "3", "--samples", "4", "--out", "a.npz")
    assert code == 0 and "reference set: 50 of 108 training rows of digits\n" in message and " of 500\n" in message
    run, x = Run.open(kept / "digits"), load("digits", "test").x[:6]
    missing = torch.zeros_like(x, dtype=torch.bool)
    missing[:, :, :4] = True
    generator = torch.Generator().manual_seed(3)
    donors = training_rows(run)[torch.randperm(108, generator=generator)[:50]]
    expected = impute_weighted(run.model(), x, donors, missing, exponent=0.3, samples=4, generator=generator)
    result = np.load("a.npz")
    assert np.array_equal(result["x"], expected.mean.numpy())
    assert np.array_equal(result["std"], expected.total_variance.sqrt().numpy())
    assert np.array_equal(result["samples"], expected.samples.numpy())
    assert np.array_equal(result["missing"], missing.numpy())
    # each option arrives, and the same words give the same file
    same = ("--exponent", "0.3", "--seed", "3", "--samples", "4")
    assert marquis(*text, *same, "--out", "again.npz")[0] == 0
    assert Path("again.npz").read_bytes() == Path("a.npz").read_bytes()
    for other in (("--exponent", "0.2", "--seed", "3"), ("--exponent", "0.3", "--seed", "4")):
        assert marquis(*text, *other, "--samples", "4", "--out", "b.npz", "--force")[0] == 0
        assert not np.allclose(np.load("b.npz")["x"], result["x"], atol=1e-4)
    assert marquis(*text, "--out", "sheet.png")[0] == 0
    assert Image.open("sheet.png").size[0] > 100


def test_tables_are_filled_in_their_own_units(marquis, kept):
    passed = pd.read_csv(kept / "wine.csv")
    for name in ("f.csv", "f.parquet"):
        code, message, _ = marquis("impute", kept / "wine", kept / "wine.csv", *WEIGHTED, "--out", name)
        assert code == 0
    run = Run.open(kept / "wine")
    rows = training_rows(run)
    complete = ~rows.isnan().any(1)
    left_out = int((~complete).sum())
    assert 10 < left_out < 60 and f"left out: {left_out} with missing entries\n" in message
    x = run.read(kept / "wine.csv").x
    generator = torch.Generator().manual_seed(0)  # a thousand at most, so none is chosen
    expected = impute_weighted(run.model(), x, rows[complete], samples=25, generator=generator)
    filled, incomplete = pd.read_csv("f.csv"), passed.isna()
    with_holes = [name for name in passed if incomplete[name].any()]
    assert list(filled) == [*passed, *(f"{name}_std" for name in with_holes)] and len(with_holes) > 3
    scaling = run.scaling
    assert scaling is not None
    for number, name in enumerate(passed):
        hole = incomplete[name].to_numpy()
        assert np.array_equal(filled[name][~hole], passed[name][~hole])
        mean = expected.mean[:, number].double() * scaling.scale[number] + scaling.mean[number]
        np.testing.assert_allclose(filled[name][hole], mean.numpy()[hole], rtol=1e-12)
        if name in with_holes:
            std = expected.total_variance[:, number].sqrt().double() * scaling.scale[number]
            np.testing.assert_allclose(filled[f"{name}_std"][hole], std.numpy()[hole], rtol=1e-12)
            assert (filled[f"{name}_std"][~hole] == 0).all() and (filled[f"{name}_std"][hole] > 0).all()
    pd.testing.assert_frame_equal(pd.read_parquet("f.parquet"), filled)


@pytest.mark.parametrize(
    ("trained_on", "missing", "usual"),
    [("wine", "mask", {"fill": "missing", "rounds": 1}), ("complete", True, {"fill": 0.0, "rounds": 1})],
)
def test_two_stages_are_asked_as_the_model_has_learnt_it(marquis, kept, trained_on, missing, usual):
    """Holes stay holes for an encoder that sees them; others get the columns' means."""
    assert marquis("train", "lae", "--data", kept / f"{trained_on}.csv", "--out", "run", *ONE_EPOCH)[0] == 0
    run = Run.open("run")
    assert run.spec.missing == missing and run.scaling is not None
    x, result = run.read(kept / "wine.csv").x, {}
    for rounds in (None, 0, 1):
        requested = ("--method", "two-stage") if rounds is None else ("--rounds", rounds)
        assert (
            marquis("impute", "run", kept / "wine.csv", "--samples", "3", *requested, "--out", f"{rounds}.npz")[0] == 0
        )
        result[rounds] = np.load(f"{rounds}.npz")["x"][x.isnan()]
        options = usual | ({} if rounds is None else {"rounds": rounds})
        expected = impute(run.model(), x, samples=3, generator=torch.Generator().manual_seed(0), **options).mean
        np.testing.assert_allclose(result[rounds], run.scaling.unscaled(expected).numpy()[x.isnan()], rtol=1e-12)
    assert np.array_equal(result[None], result[usual["rounds"]]) and not np.allclose(result[0], result[1], rtol=1e-5)


def test_a_reference_file_is_read_by_name_and_scaled(marquis, kept):
    donors = pd.read_csv(kept / "complete.csv")[:40]
    donors.to_csv("donors.csv", index=False)
    donors.iloc[:, ::-1].to_csv("reversed.csv", index=False)
    run = Run.open(kept / "wine")
    for name in ("donors", "reversed"):
        text = (kept / "wine.csv", *WEIGHTED, "--reference", f"{name}.csv", "--out", f"{name}.npz")
        code, message, _ = marquis("impute", kept / "wine", *text)
        assert code == 0 and f"reference set: 40 of 40 rows of {name}.csv\n" in message
    x, generator = run.read(kept / "wine.csv").x, torch.Generator().manual_seed(0)
    expected = impute_weighted(run.model(), x, run.read("donors.csv").x, samples=25, generator=generator)
    assert run.scaling is not None
    incomplete = x.isnan().numpy()
    for name in ("donors", "reversed"):
        np.testing.assert_array_equal(
            np.load(f"{name}.npz")["x"][incomplete], run.scaling.unscaled(expected.mean)[incomplete]
        )


def test_a_name_gives_its_training_rows_and_a_folder_all(marquis, kept):
    text = ("impute", kept / "digits", "digits", "--hide", "left", "--limit", "2", *WEIGHTED)
    code, message, _ = marquis(*text, "--reference", "digits", "--reference-rows", "30", "--out", "n.npz")
    assert code == 0 and "reference set: 30 of 1438 rows of digits\n" in message
    Path("pictures").mkdir()
    for number, image in enumerate(load("digits", "train").stored[:5]):
        Image.fromarray((image[0].numpy() * 255).astype(np.uint8)).save(f"pictures/{number}.png")
    code, message, _ = marquis(*text, "--reference", "pictures", "--out", "p.npz")
    assert code == 0 and "reference set: 5 of 5 rows of pictures\n" in message


def test_no_row_is_in_its_own_reference_set(marquis, kept):
    x = load("digits", "test").x[:25]
    np.savez("donors.npz", x=x.numpy())
    text = ("impute", kept / "digits", "digits", "--hide", "top", *WEIGHTED, "--reference", "donors.npz")
    code, message, _ = marquis(*text, "--limit", "5", "--out", "a.npz")
    assert code == 0 and "reference set: 20 of 25 rows of donors.npz; left out: 5 among those to be filled\n" in message
    result, model = np.load("a.npz"), Run.open(kept / "digits").model()
    others, all_of_them = (
        impute_weighted(model, x[:5], rows, torch.tensor(result["missing"]), generator=torch.Generator().manual_seed(0))
        for rows in (x[5:], x)
    )
    assert np.array_equal(result["x"], others.mean.numpy())
    assert not np.allclose(result["x"], all_of_them.mean.numpy(), atol=1e-4)
    one_line(marquis(*text, "--limit", "25", "--out", "b.npz"), "all complete rows of donors.npz", "--limit")
    assert not Path("b.npz").exists()


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("--method", "code"), ("--method 'code'", "'two-stage', 'weighted'")),
        ((*WEIGHTED, "--rounds", "2"), ("--rounds belongs to --method two-stage",)),
        (("--reference", "x.csv"), ("--reference belongs to --method weighted",)),
        (("--reference-rows", "5"), ("--reference-rows belongs to --method weighted",)),
        (("--exponent", "0"), ("--exponent belongs to --method weighted",)),
        ((*WEIGHTED, "--reference-rows", "0"), ("--reference-rows 0", "at least 1")),
        ((*WEIGHTED, "--exponent", "-1"), ("exponent is -1.0",)),
        ((*WEIGHTED, "--exponent", "nan"), ("exponent is nan",)),
        ((*WEIGHTED, "--samples", "0"), ("samples is 0",)),
        ((*WEIGHTED, "--reference", "nowhere.csv"), ("nowhere.csv", "does not exist")),
        ((*WEIGHTED, "--reference", "digit"), ("digit", "Did you mean")),
        ((*WEIGHTED, "--reference", "digits"), ("8x8", "6 columns")),
        ((*WEIGHTED, "--reference", "less.csv"), ("less.csv", "lacks c")),
        ((*WEIGHTED, "--reference", "words.csv"), ("'c'", "not numeric")),
        ((*WEIGHTED, "--reference", "holes.csv"), ("holes.csv", "all rows", "missing entries", "--reference FILE")),
        ((*WEIGHTED, "--reference", "damaged.npz"), ("damaged.npz",)),
        ((*WEIGHTED, "--out", "there.csv"), ("there.csv", "--force")),
    ],
)
def test_what_is_wrong_is_one_line(marquis, kept, words, texts):
    table = pd.read_csv(kept / "complete.csv")[:20]
    table.drop(columns="c").to_csv("less.csv", index=False)
    table.assign(c="red").to_csv("words.csv", index=False)
    table.assign(c=[*[np.nan] * 19, 1.0], d=[1.0, *[np.nan] * 19]).to_csv("holes.csv", index=False)
    Path("damaged.npz").write_bytes(b"PK\x03\x04 no more of it")
    Path("there.csv").write_text("mine")
    out = () if "--out" in words else ("--out", "x.csv")
    one_line(marquis("impute", kept / "wine", kept / "wine.csv", *words, *out), *texts)
    assert not Path("x.csv").exists() and Path("there.csv").read_text() == "mine"


def test_training_rows_that_are_gone(marquis, kept, tmp_path):
    run = Path(shutil.copytree(kept / "wine", tmp_path / "run"))
    held = json.loads((run / "config.json").read_text())
    held["settings"]["data"] = str(tmp_path / "gone.csv")
    write_config(run, held)
    text = ("impute", run, kept / "wine.csv", *WEIGHTED, "--out", "x.csv")
    one_line(marquis(*text), "training rows cannot be read", "gone.csv does not exist", "--reference FILE")
    assert marquis(*text, "--reference", kept / "complete.csv")[0] == 0
