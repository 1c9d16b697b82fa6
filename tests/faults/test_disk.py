"""Real file systems that are full, read-only or broken: one line, exit code 1, nothing lost, and the run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from marquis.autoencoders.checkpoints import read_checkpoint
from marquis.errors import StorageError
from marquis.io.tensors import load_tensors, save_tensors

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting needs root on Linux"
)
WORDS = ("train", "ae", "--data", "digits", "--width", "0.5", "--limit", "120", "--no-report")


@contextmanager
def mounted(folder: Path, size: str):
    """A small file system in memory; skips where containers forbid it."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_is_full_stops_with_one_line_and_the_run_goes_on(marquis, tmp_path):
    with mounted(tmp_path / "small", "64M") as disk:
        out = disk / "run"
        assert marquis(*WORDS, "--out", out, "--epochs", "1")[0] == 0
        kept = read_checkpoint(out / "checkpoints/last.ckpt")["epoch"]
        free = shutil.disk_usage(disk).free
        (disk / "ballast").write_bytes(b"\0" * (free - 100_000))  # less than a checkpoint
        code, _, err = marquis("train", "ae", "--out", out, "--resume", "--epochs", "4", "--no-report")
        assert code == 1 and err.startswith("marquis: error: ") and err.count("\n") == 1, err
        assert "cannot be written: No space left on device" in err and str(out) in err
        assert read_checkpoint(out / "checkpoints/last.ckpt")["epoch"] == kept
        assert not list(out.rglob(".part-*"))
        (disk / "ballast").unlink()
        assert marquis("train", "ae", "--out", out, "--resume", "--epochs", "4", "--no-report")[0] == 0
        assert read_checkpoint(out / "checkpoints/last.ckpt")["epoch"] == 3


def test_safetensors_on_a_full_disk_keep_the_old_file(tmp_path):
    with mounted(tmp_path / "small", "2M") as disk:
        path = disk / "sum.safetensors"
        save_tensors(path, "test", {}, {"x": torch.ones(10)})
        with pytest.raises(StorageError, match="No space left"):
            save_tensors(path, "test", {}, {"x": torch.ones(2_000_000)})
        assert load_tensors(path, ("test",))[2]["x"].sum() == 10 and list(disk.iterdir()) == [path]


def test_a_read_only_file_system_is_one_line(marquis, tmp_path):
    with mounted(tmp_path / "small", "64M") as disk:
        out = disk / "run"
        assert marquis(*WORDS, "--out", out, "--epochs", "1")[0] == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for text in (("train", "ae", "--out", out, "--resume", "--epochs", "3"), (*WORDS, "--out", disk / "new")):
            code, _, err = marquis(*text)
            assert code == 1 and "Read-only file system" in err and err.count("\n") == 1, err
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert marquis("train", "ae", "--out", out, "--resume", "--epochs", "2", "--no-report")[0] == 0


def test_an_io_error_is_one_line_with_the_path(tmp_path, monkeypatch):
    """What a failing disk answers to fsync."""

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "sum.safetensors"
    save_tensors(path, "test", {}, {"x": torch.ones(10)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match=r"sum\.safetensors cannot be written: Input/output error") as caught:
            save_tensors(path, "test", {}, {"x": torch.zeros(10)})
    assert caught.value.errno == 5 and load_tensors(path, ("test",))[2]["x"].sum() == 10
    assert list(tmp_path.iterdir()) == [path]
