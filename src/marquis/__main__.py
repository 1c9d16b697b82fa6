"""Run the `marquis` command by `python -m marquis`."""

from __future__ import annotations

from marquis.cli import main

if __name__ == "__main__":
    main()
