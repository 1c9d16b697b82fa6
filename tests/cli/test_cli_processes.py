"""`marquis train` in several processes of one machine, and on several machines."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def command(out: Path, size: int, *more: str) -> list[str]:
    options = ["--limit", "120", "--epochs", "1", "--batch-size", str(size), "--device", "cpu", "--no-report", *more]
    return [sys.executable, "-m", "marquis", "train", "ae", "--data", "digits", "--out", str(out), *options]


def last_loss(out: Path) -> float:
    with (out / "metrics.csv").open() as file:
        return float(list(csv.DictReader(file))[-1]["validation_loss"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_devices_and_two_machines_train_as_one_process_with_twice_the_batch(tmp_path: Path):
    done = subprocess.run(command(tmp_path / "one", 24), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    two = command(tmp_path / "devices", 12, "--devices", "2")
    done = subprocess.run(two, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written:") == done.stdout.count("training ae on") == 1
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    machines = [
        subprocess.Popen(
            command(tmp_path / "machines", 12, "--num-nodes", "2"),
            env={**os.environ, **meeting, "NODE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    message = [machine.communicate(timeout=400)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], message
    expected = last_loss(tmp_path / "one")
    for name in ("devices", "machines"):
        assert last_loss(tmp_path / name) == pytest.approx(expected, rel=1e-5)
        assert (tmp_path / name / "model.safetensors").exists()


def test_an_unknown_device_is_refused(tmp_path: Path):
    text = ["abacus" if word == "cpu" else word for word in command(tmp_path / "run", 12)]
    done = subprocess.run(text, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "abacus" in done.stderr
    assert not (tmp_path / "run").exists()
