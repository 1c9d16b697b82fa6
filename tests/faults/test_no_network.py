"""A fit, a prediction and an online step talk to no network, as a trace of their system calls shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ONLINE = """
import torch, marquis as mq
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
x, y = torch.randn(8, 3), torch.randn(8, 2)
la = mq.Laplace(model, "gaussian").fit([(x, y)], progress=False)
la.tune()
la.predict(x)
mq.OnlineLaplace(model, "gaussian", num_data=8).step(x, y).backward()
"""


def traced(folder: Path, *words: str) -> list[str]:
    """Run Python under strace; returns the system calls that reach for an internet address."""
    log = folder / "calls"
    command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,bind", "-o", str(log), sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    if "ptrace" in done.stderr.lower() and done.returncode != 0:
        pytest.skip(f"strace may not trace here: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return [line for line in log.read_text().splitlines() if "AF_INET" in line]


def elsewhere(calls: list[str]) -> list[str]:
    """Return the calls with an address that is not this machine's."""
    local = re.compile(r'inet_addr\("127\.|"::1"|inet_addr\("0\.0\.0\.0"\)')
    return [line for line in calls if not local.search(line)]


pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def test_a_trace_sees_a_connection(tmp_path):
    """The check of the check: a connection to a far address is noticed."""
    words = "import socket; s = socket.socket(); s.settimeout(.01); s.connect_ex(('192.0.2.1', 9))"
    assert elsewhere(traced(tmp_path, "-c", words))


def test_laplace_and_online_training_talk_to_nobody(tmp_path):
    assert traced(tmp_path, "-c", ONLINE) == []
