"""Define the `marquis` command.

Nothing heavy is imported until a command runs: `marquis --help` must answer at once.
"""

from __future__ import annotations

from marquis.cli.app import app, main

__all__ = ["app", "main"]
