"""Draws the pictures of the how-to and gallery pages by running the code on them.

    python examples/make_pictures.py                      # all pages
    python examples/make_pictures.py regression outliers   # some

A page's last block saves one picture, named like the page; it goes into docs/assets/gallery.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, Path]:
    """Return the pages that draw a picture, by name."""
    paths = [*(ROOT / "docs/howto").glob("*.md"), *(ROOT / "docs/gallery").glob("*.md")]
    return {path.stem: path for path in sorted(paths) if "savefig(" in path.read_text()}


def main(names: list[str]) -> None:
    """Run the pages in the folder of the pictures."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    target = ROOT / "docs/assets/gallery"
    target.mkdir(parents=True, exist_ok=True)
    os.chdir(target)
    for name, path in pages().items():
        if not names or name in names:
            print(f"--- {name}")
            namespace: dict[str, object] = {"__name__": "__main__"}
            for block in BLOCK.findall(path.read_text()):
                exec(compile(block, str(path), "exec"), namespace)
    (target / "posterior.safetensors").unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
