"""Fits, trainings, the demonstration and the explorer talk to no network, as a trace of their system calls shows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from helpers.commands import SMALL

ONLINE = """
import torch, marquis as mq
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
x, y = torch.randn(8, 3), torch.randn(8, 2)
la = mq.Laplace(model, "gaussian").fit([(x, y)], progress=False)
la.tune()
la.predict(x)
mq.OnlineLaplace(model, "gaussian", num_data=8).step(x, y).backward()
"""


def tracing(log: Path, *words: object) -> list[str]:
    """Return the command that runs Python under strace and writes its calls of the network to a file."""
    calls = ["-e", "trace=connect,sendto,sendmsg,sendmmsg,bind", "-o", str(log)]
    return ["strace", "-f", "--seccomp-bpf", "-qq", *calls, sys.executable, *map(str, words)]


def internet_calls(log: Path) -> list[str]:
    """Return the traced system calls that name an internet address."""
    return [line for line in log.read_text().splitlines() if "AF_INET" in line]


def traced(folder: Path, *words: object) -> list[str]:
    """Run Python under strace; returns the system calls that reach for an internet address."""
    log = folder / "calls"
    done = subprocess.run(tracing(log, *words), cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    if "ptrace" in done.stderr.lower() and done.returncode != 0:
        pytest.skip(f"strace may not trace here: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return internet_calls(log)


def elsewhere(calls: list[str]) -> list[str]:
    """Return the calls with an address that is not this machine's."""
    local = re.compile(r'inet_addr\("127\.|"::1"|inet_addr\("0\.0\.0\.0"\)')
    return [line for line in calls if not local.search(line)]


def opened(address: str) -> int:
    """Return the status of a page that may need a moment until it is served."""
    for _ in range(100):
        try:
            return urllib.request.urlopen(address, timeout=60).status
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError(address)


pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def test_a_trace_sees_a_connection(tmp_path):
    """The check of the check: a connection to a far address is noticed."""
    text = "import socket; s = socket.socket(); s.settimeout(.01); s.connect_ex(('192.0.2.1', 9))"
    assert elsewhere(traced(tmp_path, "-c", text))


def test_laplace_and_online_training_talk_to_nobody(tmp_path):
    assert traced(tmp_path, "-c", ONLINE) == []


@pytest.mark.slow
def test_the_demonstration_talks_to_nobody(tmp_path, repository):
    demonstration = repository / "examples/laplacian_digits.py"
    assert traced(tmp_path, demonstration, "--out", "demo", "--epochs", "1", "--width", "0.25") == []
    assert (tmp_path / "demo/report.html").is_file() and (tmp_path / "demo/explorer.html").is_file()


@pytest.mark.slow
def test_train_and_explore_talk_to_this_machine_only(tmp_path):
    text = [word for word in SMALL if word != "--no-report"]
    assert traced(tmp_path, "-m", "marquis", "train", "lae", "--data", "digits", "--out", "run", *text) == []
    assert (tmp_path / "run/report.html").is_file()
    assert traced(tmp_path, "-m", "marquis", "explore", "run", "--rows", "20", "--export", "page.html") == []
    log = tmp_path / "served"
    command = tracing(log, "-m", "marquis", "explore", "run", "--rows", "20", "--no-browser")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        child = int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text())
        try:
            assert opened(address) == 200
        finally:
            os.kill(child, signal.SIGINT)  # not strace, which shields itself from signals
        server.communicate()
    calls = internet_calls(log)
    assert calls and elsewhere(calls) == [] and server.returncode == 0
