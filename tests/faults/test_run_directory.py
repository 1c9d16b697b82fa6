"""Run directories: damaged files are noticed, two trainings do not mix, killed ones leave nothing that hinders."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from helpers.commands import ONE_EPOCH, SMALL, exit_code, one_line
from marquis.autoencoders import ModelSpec, fit
from marquis.autoencoders.checkpoints import read_checkpoint
from marquis.autoencoders.epoch_table import read_rows
from marquis.data import DataModule
from marquis.errors import DataError, StorageError
from marquis.io import checksum
from marquis.io.lock import exclusive
from marquis.run import Run

FLIPS = 200


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "run"
    assert exit_code("train", "ae", "--data", "digits", "--out", folder, *SMALL) == 0
    return folder


@pytest.fixture
def run(kept, tmp_path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


READERS = {
    "checkpoints/last.ckpt": read_checkpoint,
    "checkpoints/best.ckpt": read_checkpoint,
    "config.json": lambda path: Run.open(path.parent)._config(),
    "summary.json": lambda path: checksum.read_json(path, unsealed=(None,)),
    "metrics.csv": read_rows,
    "model.safetensors": lambda path: Run.open(path.parent).model().state_dict(),
}


def same(one: object, two: object) -> bool:
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    return one == two


@pytest.mark.parametrize("name", READERS)
def test_one_flipped_bit_is_refused(name, run):
    """200 places in each file that we read back: refused, or (white space, unused bytes) the same contents."""
    path, chooser = run / name, random.Random(0)
    raw, contents = path.read_bytes(), READERS[name](path)
    refused = 0
    for _ in range(FLIPS if name != "model.safetensors" else 40):
        place = chooser.randrange(len(raw))
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << chooser.randrange(8)]) + raw[place + 1 :])
        try:
            assert same(READERS[name](path), contents), f"byte {place} of {name} was changed unnoticed"
        except DataError:
            refused += 1
    assert refused >= 30


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.unlink()  # not the inode: generations may share one
    path.write_bytes(raw)


def train_digits(out: Path, epochs: int, **options: object):
    model = ModelSpec("ae", (1, 8, 8), 2, width=0.125).build(0)
    data = DataModule("digits", limit=80, batch_size=32, validation=16)
    settings = {"progress": False, "tensorboard": False, "accelerator": "cpu", **options}
    return model, fit(model, data, out, max_epochs=epochs, **settings)  # type: ignore[arg-type]


def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(tmp_path):
    whole, result = train_digits(tmp_path / "whole", 4)
    train_digits(tmp_path / "damaged", 3)
    damage(tmp_path / "damaged/checkpoints/last.ckpt")
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged.*last\.previous\.ckpt"):
        again, resumed = train_digits(tmp_path / "damaged", 4, resume=True)
    assert same(whole.state_dict(), again.state_dict()) and resumed.best_epoch == result.best_epoch
    checkpoints = tmp_path / "damaged/checkpoints"
    assert [read_checkpoint(checkpoints / f"{name}.ckpt")["epoch"] for name in ("last", "last.previous")] == [3, 2]
    for name in ("last", "last.previous"):
        damage(checkpoints / f"{name}.ckpt")
    with pytest.raises(DataError, match="damaged"):
        train_digits(tmp_path / "damaged", 5, resume=True)


def test_a_damaged_best_checkpoint_says_which_epoch_it_fell_back_to(tmp_path):
    _, result = train_digits(tmp_path, 3)
    assert result.best_epoch == 2
    damage(tmp_path / "checkpoints/best.ckpt")
    with pytest.warns(UserWarning, match=r"best\.previous\.ckpt"):
        _, again = train_digits(tmp_path, 3, resume=True)
    assert again.best_epoch == 1 and again.best_loss == result.rows[1]["validation_loss"]


def test_runs_of_before_without_checksums_are_read_and_resumed(run, kept):
    """Files as version 0.1.0 wrote them."""
    for name in ("last", "best"):
        path = run / f"checkpoints/{name}.ckpt"
        torch.save(read_checkpoint(path), path)
        (run / f"checkpoints/{name}.previous.ckpt").unlink(missing_ok=True)
    for name in ("config.json", "summary.json"):
        held = {k: v for k, v in json.loads((run / name).read_text()).items() if k not in ("sha256", "version")}
        (run / name).write_text(json.dumps({**held, "version": 1} if name == "config.json" else held))
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        opened = Run.open(run)
        assert opened.rows_of_training() == Run.open(kept).rows_of_training()
        assert "version" not in checksum.read_json(run / "summary.json", unsealed=(None,))
        assert exit_code("train", "ae", "--out", run, "--resume", "--epochs", "3", "--no-report") == 0
    assert checksum.check_archive(run / "checkpoints/last.ckpt")
    assert len(read_rows(run / "metrics.csv")) == 3 and checksum.read_json(run / "config.json")["version"] == 2


def test_a_damaged_table_of_epochs_is_written_again(run):
    damage(run / "metrics.csv")
    with pytest.raises(DataError, match=r"metrics\.csv is damaged"):
        Run.open(run).rows_of_training()
    assert exit_code("train", "ae", "--out", run, "--resume", "--no-report") == 0
    assert len(Run.open(run).rows_of_training()) == 2


HOLD = """
import sys
from marquis.io.lock import exclusive
with exclusive(sys.argv[1], "a training"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_training_in_a_folder_is_refused(marquis, run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        for text in (("--resume",), ("--data", "digits", "--force")):
            message = marquis("train", "ae", "--out", run, *text, "--epochs", "9")
            one_line(message, "is being written by a training", str(other.pid), exit_code=1)
        with pytest.raises(StorageError, match="another process"):
            train_digits(run, 9, resume=True)
        other.communicate()
    (run / ".lock").unlink(missing_ok=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_lock_may_be_taken_again_by_its_own_thread_only(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    def take(again: bool = True) -> None:
        with exclusive(tmp_path, "a training", again=again):
            pass

    with exclusive(tmp_path, "a training"):
        take()
        with pytest.raises(StorageError, match="another thread"):
            take(again=False)
        with ThreadPoolExecutor(1) as pool, pytest.raises(StorageError, match="another thread"):
            pool.submit(take).result()
    take()


def test_a_configuration_that_another_training_wrote_is_left_alone(run):
    opened = Run.open(run)
    opened.resumed({"epochs": 77})
    with pytest.raises(StorageError, match="replaced"), opened.held():
        pass
    assert Run.open(run).settings.epochs == 77


# ---- killed at the start, removed in the middle

KILL = """
import os, signal, sys
from pathlib import Path
from marquis.cli import main
whole = os.fsync
def die(handle):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = die
main(sys.argv[1:])
"""


def test_killed_while_writing_the_configuration(marquis, tmp_path):
    text = ["train", "ae", "--data", "digits", "--out", "run", *ONE_EPOCH]
    done = subprocess.run([sys.executable, "-c", KILL, *text], cwd=tmp_path, check=False)
    assert done.returncode == -9
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert [name for name in left if name.startswith(".part-config")] and "config.json" not in left
    assert marquis(*text)[0] == 0
    assert not [path for path in Path("run").iterdir() if path.name.startswith(".")]


class Remove(Callback):
    """Removes something in the middle of an epoch."""

    def __init__(self, path: Path, epoch: int = 1) -> None:
        self.path, self.epoch = path, epoch

    def on_train_batch_end(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink(missing_ok=True)


def test_a_folder_removed_during_training_is_noticed_and_nothing_lost(tmp_path):
    whole, _ = train_digits(tmp_path / "whole", 3)
    with pytest.raises(StorageError, match="was removed during training"):
        train_digits(tmp_path / "run", 3, callbacks=[Remove(tmp_path / "run")])
    assert read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["epoch"] == 1
    again, _ = train_digits(tmp_path / "run", 3, resume=True)
    assert same(again.state_dict(), whole.state_dict())


@pytest.mark.parametrize("what", ["config.json", "."])
def test_the_command_notices_that_its_configuration_is_gone(what, marquis, monkeypatch, tmp_path):
    import marquis.autoencoders as autoencoders

    plain = autoencoders.fit

    def removing(*args, callbacks=(), **options):
        return plain(*args, callbacks=[Remove(tmp_path / "run" / what, 0), *callbacks], **options)

    monkeypatch.setattr(autoencoders, "fit", removing)
    text = ("train", "ae", "--data", "digits", "--out", tmp_path / "run")
    one_line(marquis(*text, *SMALL), "was removed during training", exit_code=1)
    monkeypatch.undo()
    os.chdir(tmp_path)
    assert Run.open(tmp_path / "run").settings.model == "ae"
    assert marquis("train", "ae", "--out", tmp_path / "run", "--resume", "--no-report")[0] == 0
    assert len(read_rows(tmp_path / "run/metrics.csv")) == 2
