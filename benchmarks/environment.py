"""The peers' own environment `.venv-peers`: made once, and done without where it cannot be made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).with_name("requirements-peers.txt")


def peers_python() -> tuple[Path | None, str]:
    """The interpreter that has the peers, and a word: "ready", or why there is none."""
    python, stamp = HOME / "bin" / "python", HOME / ".installed"
    requirements = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == requirements:
        return python, "ready"
    print("making .venv-peers for BackPACK, curvlinops and laplace-torch (once)", flush=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    commands = [
        [sys.executable, "-m", "venv", HOME],
        [*install, "-c", ROOT / "constraints.txt", "-r", REQUIREMENTS],
        [python, "-c", "import backpack, curvlinops, laplace"],
    ]
    for command in commands:
        try:
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=900, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"{type(error).__name__}: {error}"
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            return None, last[:200]
        if HOME.exists():
            (HOME / ".gitignore").write_text("*\n")
    stamp.write_text(requirements)
    return python, "ready"
