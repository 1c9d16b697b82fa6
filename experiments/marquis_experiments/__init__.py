"""One module per experiment of the papers, run by `marquis reproduce NAME`.

A module has `run(size, out, data_dir, say)`: `size` is "quick", "default" or "full", `out` a folder for results,
`say` a function that prints progress. It keeps every finished cell in that folder, so that running it again goes on
where it stopped, and returns the path of the page it wrote.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from types import ModuleType

from marquis.errors import DataError

SIZES = ("quick", "default", "full")

EXPERIMENTS = {
    "imputation": ("marquis_experiments.imputation", "The upper half of a digit from the lower one, and from nothing"),
}
"""Name to module and summary; modules are imported when they are run."""


def find(name: str) -> ModuleType:
    """The module of an experiment.

    Raises:
        DataError: No experiment has that name.
    """
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DataError(f"no experiment is called {name!r}{hint} There are: {', '.join(EXPERIMENTS)}.")
    return import_module(EXPERIMENTS[name][0])
