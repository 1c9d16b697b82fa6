"""What the commands compare with, draw from and refuse: rows at random, the same data as in training, small tables."""

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

from helpers.commands import ONE_EPOCH, exit_code, one_line, write_config
from marquis.cli.held_out import ERROR, ERROR_OF_MEAN, untrained_warning
from marquis.data import Data, images, load
from marquis.errors import DataError
from marquis.run import Run, Scaling
from marquis.run.settings import rows_per_batch
from marquis.run.training_data import fingerprint
from marquis.sklearn import LaplacianAutoencoder


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A table sorted by group, with a constant column, and a run on it."""
    folder = tmp_path_factory.mktemp("sorted")
    source = np.random.default_rng(0)
    first = source.normal(size=(300, 3))
    second = source.normal(size=(200, 3)) @ np.diag([1.0, 0.1, 1.0]) + [8.0, 8.0, 0.0]
    table = pd.DataFrame(np.concatenate([first, second]), columns=list("abc"))
    table["same"] = 1e-6
    table.to_csv(folder / "table.csv", index=False)
    text = ("--epochs", "30", "--latent", "3", "--no-report")
    assert exit_code("train", "lae", "--data", folder / "table.csv", "--out", folder / "run", *text) == 0
    return folder


@pytest.fixture
def run(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "all")
    text = (tmp_path / "all/run/config.json").read_text().replace(str(kept), str(tmp_path / "all"))
    write_config(tmp_path / "all/run", json.loads(text))
    return tmp_path / "all/run"


# ---- rows at random


def test_rows_at_random_are_a_few_of_all_in_their_order():
    data = Data(torch.arange(100.0).reshape(100, 1), None, "x", "all")
    some = data.random_rows(20, 0).x[:, 0]
    assert len(some) == 20 and some.max() > 50 and bool((some.diff() > 0).all())
    assert torch.equal(some, data.random_rows(20, 0).x[:, 0])
    assert not torch.equal(some, data.random_rows(20, 1).x[:, 0])
    assert data.random_rows(100, 0) is data


def test_ordinary_rows_of_a_sorted_table_are_no_outliers(marquis, run, tmp_path):
    """The first rows of the table are all of one group; compared with those alone, the other would be strange."""
    pd.read_csv(run.parent / "table.csv").iloc[300:].to_csv(tmp_path / "second.csv", index=False)
    few = ("--samples", "5", "--reference", "40")
    assert marquis("score", run, tmp_path / "second.csv", "--out", tmp_path / "s.csv", *few)[0] == 0
    assert pd.read_csv(tmp_path / "s.csv")["p_value"].median() > 0.1
    few = ("--samples", "5", "--limit", "40")
    assert marquis("evaluate", run, "--ood", run.parent / "table.csv", *few)[0] == 0
    result = json.loads((run / "ood-table.json").read_text())
    assert result["in_distribution"] == result["out_of_distribution"] == 40
    assert 0.3 < result["table"]["nll"]["auroc"] < 0.7  # the same table: nothing to tell apart


def test_linearised_numbers_are_others(marquis, run, tmp_path):
    message = {}
    for flag in ((), ("--linearised",)):
        out = tmp_path / f"s{len(flag)}.csv"
        assert marquis("score", run, run.parent / "table.csv", "--samples", "20", "--out", out, *flag)[0] == 0
        assert marquis("evaluate", run, "--samples", "20", *flag)[0] == 0
        message[flag] = pd.read_csv(out)["output_variance"].mean()
    assert message[("--linearised",)] > 10 * message[()]  # at temperature 1 instead of 0.01
    drawn, straight = (json.loads((run / f"evaluation{end}.json").read_text()) for end in ("", "-linearised"))
    name = "std of reconstructions (sum)"
    assert straight[name] > 3 * drawn[name]


def test_a_posthoc_run_is_linearised_too(marquis, kept, tmp_path):
    out = tmp_path / "posthoc"
    assert exit_code("train", "lae-posthoc", "--data", kept / "table.csv", "--out", out, *ONE_EPOCH) == 0
    assert type(Run.open(out).model(linear=True)).__name__ == "LinearisedAutoencoder"
    assert marquis("evaluate", out, "--linearised", "--samples", "3")[0] == 0


# ---- new data


def test_samples_vary_as_the_data_do(marquis, run, tmp_path):
    assert marquis("sample", run, "-n", "400", "--out", tmp_path / "s.csv")[0] == 0
    made, table = pd.read_csv(tmp_path / "s.csv"), pd.read_csv(run.parent / "table.csv")
    assert list(made) == list(table) and (made["same"] == 1e-6).all()
    ratio = (made.std() / table.std())[list("abc")]
    assert ratio.between(0.7, 1.3).all()
    assert 0.25 < (made["a"] > 4).mean() < 0.55  # both groups
    assert (
        marquis("sample", run, "-n", "9", "--method", "two-stage", "--rounds", "2", "--out", tmp_path / "t.csv")[0] == 0
    )
    assert pd.read_csv(tmp_path / "t.csv").shape == (9, 4)
    one_line(marquis("sample", run, "--method", "magic", "--out", tmp_path / "u.csv"), "--method 'magic'", "codes")
    one_line(marquis("sample", run, "--rounds", "2", "--out", tmp_path / "u.csv"), "--rounds", "two-stage")
    (run.parent / "table.csv").unlink()
    one_line(marquis("sample", run, "--out", tmp_path / "u.csv"), "two-stage needs no")
    assert marquis("sample", run, "-n", "4", "--method", "two-stage", "--out", tmp_path / "u.csv")[0] == 0


def test_a_constant_column_is_filled_with_the_constant(marquis, run, tmp_path):
    table = pd.read_csv(run.parent / "table.csv").iloc[:20]
    table.loc[3:8, "same"] = np.nan
    table.loc[2, "a"] = np.nan
    table.to_csv(tmp_path / "h.csv", index=False)
    assert marquis("impute", run, tmp_path / "h.csv", "--out", tmp_path / "f.csv")[0] == 0
    filled = pd.read_csv(tmp_path / "f.csv")
    assert (filled["same"] == 1e-6).all() and (filled["same_std"] == 0).all() and filled.loc[2, "a_std"] > 0


def test_scaling_knows_constants_and_impossible_units():
    x = torch.tensor([[0.1, 1.0, torch.nan], [0.1, 2.0, 3.0], [0.1, 6.0, 3.0]], dtype=torch.float64)
    scaling = Scaling.of(x)
    assert scaling.constant.tolist() == [True, False, True] and scaling.mean.tolist() == [0.1, 3.0, 3.0]
    again = Scaling.from_json(json.loads(json.dumps(scaling.as_json())))
    assert again.constant.tolist() == [True, False, True]
    assert again.unscaled(torch.ones(1, 3)).tolist()[0][::2] == [0.1, 3.0]
    assert again.deviations(torch.ones(3)).tolist() == pytest.approx([0.0, (14 / 3) ** 0.5, 0.0])
    old = {name: value for name, value in scaling.as_json().items() if name != "constant"}
    assert not Scaling.from_json(old).constant.any()
    for factor in (1e300, 1e-320):
        with pytest.raises(Exception, match=r"'b'.*other units"):
            Scaling.of(x * torch.tensor([1.0, factor, 1.0], dtype=torch.float64), ("a", "b", "c"))


# ---- the same data as in training


def test_training_data_that_changed_are_refused(marquis, run, tmp_path):
    path = run.parent / "table.csv"
    assert marquis("evaluate", run, "--samples", "2")[0] == 0
    lines = path.read_text()
    path.write_text(lines + "1,2,3,1e-6\n")
    for text in (("evaluate", run, "--force"), ("score", run, path, "--out", tmp_path / "o.csv")):
        one_line(marquis(*text), "not as it was in training")
    one_line(marquis("train", "lae", "--out", run, "--resume", "--epochs", "30"), "not as it was in training")
    assert marquis("embed", run, path, "--out", tmp_path / "e.csv", "--samples", "2")[0] == 0  # does not need them
    path.write_text(lines)
    assert marquis("evaluate", run, "--samples", "2", "--force")[0] == 0
    config = json.loads((run / "config.json").read_text())
    del config["trained_on"]
    write_config(run, config)
    path.write_text(lines + "1,2,3,1e-6\n")
    assert marquis("evaluate", run, "--samples", "2", "--force")[0] == 0  # a run of before it was kept


def test_fingerprints(tmp_path):
    (tmp_path / "images/a").mkdir(parents=True)
    (tmp_path / "images/a/1.png").write_bytes(b"one")
    before = fingerprint(str(tmp_path / "images"))
    (tmp_path / "images/a/2.png").write_bytes(b"two")
    after = fingerprint(str(tmp_path / "images"))
    assert before != after is not None
    (tmp_path / "images/.DS_Store").write_bytes(b"")
    (tmp_path / "images/notes.txt").write_text("no image")
    (tmp_path / "images/broken.png").symlink_to(tmp_path / "nowhere")
    assert fingerprint(str(tmp_path / "images")) == after
    assert fingerprint("mnist") is None and fingerprint(str(tmp_path / "nowhere")) is None


def test_files_of_images_stand_in_the_answers(marquis, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    source = np.random.default_rng(0)
    for number in range(30):
        Image.fromarray(source.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    assert exit_code("train", "ae", "--data", folder, "--out", tmp_path / "run", *ONE_EPOCH) == 0
    few = ("--samples", "2", "--limit", "3")
    for command in ("score", "embed"):
        assert marquis(command, tmp_path / "run", folder, "--out", tmp_path / f"{command}.csv", *few)[0] == 0
        assert list(pd.read_csv(tmp_path / f"{command}.csv")["path"]) == ["00.png", "01.png", "02.png"]
    assert marquis("embed", tmp_path / "run", folder, "--out", tmp_path / "e.npz", *few)[0] == 0
    assert np.load(tmp_path / "e.npz")["path"].tolist() == ["00.png", "01.png", "02.png"]  # no pickle


# ---- training on few rows


def test_rows_per_batch():
    assert [rows_per_batch(rows) for rows in (3, 142, 400, 1438, 60_000)] == [16, 16, 40, 128, 128]


def test_a_small_table_is_learnt_and_what_is_not_is_said(marquis, tmp_path):
    load_wine(as_frame=True).data.to_csv(tmp_path / "wine.csv", index=False)  # type: ignore[union-attr]
    code, _, err = marquis("train", "lae", "--data", tmp_path / "wine.csv", "--out", tmp_path / "run", "--no-report")
    result = json.loads((tmp_path / "run/summary.json").read_text())
    assert code == 0 and "learnt nothing" not in err and result[ERROR] < 0.6 * result[ERROR_OF_MEAN]
    assert Run.open(tmp_path / "run").settings.batch_size == 16
    slow = ("--lr", "1e-7", "--out", tmp_path / "slow", "--no-report", "--epochs", "3")
    code, _, err = marquis("train", "lae", "--data", tmp_path / "wine.csv", *slow)
    assert code == 0 and "learnt nothing" in err and "--lr" in err
    assert untrained_warning({ERROR: 5.0, ERROR_OF_MEAN: 10.0}) is None and untrained_warning({}) is None


def test_too_few_rows_leave_no_folder_behind(marquis, tmp_path):
    (tmp_path / "one.csv").write_text("a,b\n1,2\n")
    one_line(marquis("train", "ae", "--data", tmp_path / "one.csv", "--out", tmp_path / "run"), "one.csv")
    assert not (tmp_path / "run").exists()


def test_rows_too_few_for_validation_are_said(marquis, tmp_path):
    (tmp_path / "few.csv").write_text("a,b\n" + "".join(f"{i},{i * i}\n" for i in range(6)))
    text = ("train", "ae", "--data", tmp_path / "few.csv", "--out", tmp_path / "run", *ONE_EPOCH)
    code, out, err = marquis(*text)
    assert code == 0 and "5 rows are too few for validation" in out and "across ranks" not in err


def test_old_answers_go_with_the_old_model(marquis, run):
    assert marquis("score", run, run.parent / "table.csv", "--samples", "2")[0] == 0
    assert marquis("embed", run, run.parent / "table.csv", "--samples", "2")[0] == 0
    assert marquis("sample", run, "-n", "3")[0] == 0
    (run / "mine.csv").write_text("mine")
    text = ("--out", run, "--force", "--limit", "60", *ONE_EPOCH)
    assert exit_code("train", "lae", "--data", run.parent / "table.csv", *text) == 0
    assert not {"scores-table.csv", "codes-table.csv", "samples.csv"} & {path.name for path in Path(run).iterdir()}
    assert (run / "mine.csv").exists()


def test_names_that_are_numbers_are_asked_for(marquis, tmp_path):
    numbers = np.random.default_rng(0).integers(0, 50, (60, 4))
    text = "2018,2019,2020,2021\n" + "\n".join(",".join(map(str, row)) for row in numbers) + "\n"
    (tmp_path / "years.csv").write_text(text)
    message = ("train", "ae", "--data", tmp_path / "years.csv", "--out", tmp_path / "run", *ONE_EPOCH)
    one_line(marquis(*message), "--header", "--no-header")
    assert exit_code(*message, "--header") == 0
    assert Run.open(tmp_path / "run").columns == ("2018", "2019", "2020", "2021")
    one_line(marquis("embed", tmp_path / "run", tmp_path / "years.csv", "--out", tmp_path / "e.csv"), "--header")
    assert marquis("embed", tmp_path / "run", tmp_path / "years.csv", "--out", tmp_path / "e.csv", "--header")[0] == 0
    assert len(pd.read_csv(tmp_path / "e.csv")) == 60


def test_a_run_of_before_reads_its_file_as_it_did_then(marquis, tmp_path):
    """`0,1,2` were data then, and are names now: the held-out rows would be others."""
    numbers = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    text = "0,1,2\n" + "\n".join(",".join(map(str, row)) for row in numbers) + "\n"
    (tmp_path / "pandas.csv").write_text(text)
    message = ("train", "ae", "--data", tmp_path / "pandas.csv", "--out", tmp_path / "run", *ONE_EPOCH)
    assert exit_code(*message, "--no-header") == 0
    config = tmp_path / "run/config.json"
    held = json.loads(config.read_text())
    before = Run.open(tmp_path / "run").data_module
    before.setup()
    assert held["settings"].pop("header") is False and held.pop("trained_on") is not None
    write_config(tmp_path / "run", held)
    after = Run.open(tmp_path / "run").data_module
    after.setup()
    assert before.test is not None and after.test is not None and torch.equal(before.test.x, after.test.x)
    assert exit_code(*message, "--force") == 0
    assert Run.open(tmp_path / "run").settings.header is True  # as it was found out, and so it stays


def test_few_of_a_folder_are_decoded(tmp_path, monkeypatch):
    for number in range(20):
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(tmp_path / f"{number:02d}.png")
    requested, decode = [], images.decode_images

    def counting(files, *arguments, **options):
        requested.append(len(files))
        return decode(files, *arguments, **options)

    monkeypatch.setattr(images, "decode_images", counting)
    few = load(tmp_path, some=5, seed=1)
    numbers = [int(name[:2]) for name in few.files or ()]
    assert requested == [5] and numbers == sorted(numbers) and max(numbers) > 5
    assert torch.equal(few.stored, load(tmp_path)[numbers].stored)
    with pytest.raises(DataError, match="some"):
        load(tmp_path, some=0)


def test_a_column_with_one_value_is_no_constant():
    x = torch.tensor([[torch.nan, 1.0], [2.0, 2.0], [torch.nan, 3.0]])
    with pytest.raises(DataError, match="'a' has a single value"):
        Scaling.of(x, ("a", "b"))
    with pytest.raises(DataError, match="single value"):
        LaplacianAutoencoder().fit(x.numpy())


def test_columns_set_apart_are_written_beside_the_codes(marquis, kept, tmp_path):
    text = ("--target", "c", "--out", tmp_path / "run", *ONE_EPOCH)
    assert exit_code("train", "ae", "--data", kept / "table.csv", *text) == 0
    assert marquis("embed", tmp_path / "run", kept / "table.csv", "--out", tmp_path / "e.csv")[0] == 0
    truth = pd.read_csv(kept / "table.csv")
    assert pd.read_csv(tmp_path / "e.csv")["c"].tolist() == truth["c"].tolist()
    assert marquis("embed", tmp_path / "run", kept / "table.csv", "--out", tmp_path / "e.npz")[0] == 0
    assert np.load(tmp_path / "e.npz")["c"].tolist() == truth["c"].tolist()
    truth.rename(columns={"c": "z1"}).to_csv(tmp_path / "clash.csv", index=False)
    text = ("--target", "z1", "--out", tmp_path / "clash", *ONE_EPOCH)
    assert exit_code("train", "ae", "--data", tmp_path / "clash.csv", *text) == 0
    one_line(marquis("embed", tmp_path / "clash", tmp_path / "clash.csv", "--out", tmp_path / "f.csv"), "z1", "rename")
