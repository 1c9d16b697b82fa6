"""`python -m marquis`: the same as the `marquis` command."""

from __future__ import annotations

from marquis.cli import main

if __name__ == "__main__":
    main()
