"""A study: an experiment's settings at three sizes, how it is measured, and the page that it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from marquis.errors import DataError
from marquis.io.atomic import make_folder
from marquis.io.lock import exclusive
from marquis_experiments.common.cells import cell, committed_row, stored, write_json
from marquis_experiments.common.networks import trained
from marquis_experiments.common.page import RESULTS, committed, fill, write_text

SIZES = ("quick", "default", "full")


class Settings(dict[str, Any]):
    """Hold the settings of a run: a dictionary whose keys can also be read as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no setting is called {name!r}; there are {', '.join(self)}.") from None

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with some settings changed."""
        return Settings({**self, **changes})

    def only(self, *names: str) -> dict[str, Any]:
        """Return the named settings as plain values, for the key of a cell."""
        return {name: value for name, value in self.plain().items() if name in names}

    def without(self, *names: str) -> dict[str, Any]:
        """Return all settings but these as plain values, for the key of a cell."""
        return {name: value for name, value in self.plain().items() if name not in names}

    def plain(self) -> dict[str, Any]:
        """Return all settings as plain values: dataclasses become dictionaries."""
        return {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in self.items()}


@dataclass(frozen=True)
class Run:
    """Describe one run of a study: its size, its settings, and where it keeps what it has computed.

    Attributes:
        size: "quick", "default" or "full".
        settings: Settings of that size.
        out: Folder of all sizes of the study.
        data_dir: First folder to look in for data.
        say: Function that prints a line of progress, with the seconds since the start in front.
        cells: Folder of the cells.
        committed: Results whose rows count as computed; empty if everything is computed here.
        rows: Rows of this run so far, by the names of their list and of their cell.
    """

    size: str
    settings: Settings
    out: Path
    data_dir: Path | None
    say: Callable[[str], None]
    cells: Path
    committed: Mapping[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Return the folder of this size: results, pictures and the page."""
        return self.out / self.size

    @property
    def shared(self) -> Path:
        """Return the folder of networks that studies with neighbouring folders share."""
        return self.out.parent / "shared-networks"

    def cell(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Mapping[str, Any]],
        among: str | None = None,
    ) -> dict[str, Any]:
        """Return settings and result of a cell, computed once (see `common.cells.cell`).

        Args:
            name: Name of the cell's file.
            settings: All that the result depends on.
            compute: Function that returns JSON values.
            among: Name of the list of the results in which this cell and only cells of its kind are rows: a run that
                continues committed results takes the row from there, and the results on disk have it at once.
        """
        row = self.stored(name, settings, among) or cell(self.cells, name, settings, compute)
        if among is not None:
            self.rows.setdefault(among, {})[name] = row
            so_far = {part: [*rows.values()] for part, rows in self.rows.items()}
            self.keep({"settings": self.settings.plain(), **so_far})
        return row

    def stored(self, name: str, settings: Mapping[str, Any], among: str | None = None) -> dict[str, Any] | None:
        """Return a cell that was computed with these settings, here or in the committed results, else None."""
        rows = [] if among is None else self.committed.get(among, [])
        return stored(self.cells, name, settings) or committed_row(rows, settings)

    def keep(self, results: Mapping[str, Any]) -> None:
        """Write results, also those of an unfinished run: its rows can be committed as they come."""
        write_json(self.folder / "results.json", {"size": self.size, **results})

    def network(
        self,
        name: str,
        settings: Mapping[str, Any],
        build: Callable[[], nn.Module],
        train: Callable[[nn.Module], None],
    ) -> nn.Module:
        """Return a network of this study, trained once (see `common.networks.trained`)."""
        return trained(self.folder / "networks", name, settings, build, train)


@dataclass(frozen=True)
class Study:
    """Describe an experiment that `marquis reproduce` runs.

    Attributes:
        name: Name on the command line, and of the page and the results that are committed.
        page: Markdown template of the page.
        measure: Function that runs what is missing and returns the results as JSON values.
        values: Function of the results that returns what the template's placeholders stand for; the verdict
            ("reproduced", "partly" or "not") is one of them.
        draw: Function of a folder and the results that draws the page's pictures there.
        default: Settings of the default size.
        quick: Settings that the quick size changes: a minute or two.
        full: Settings that the full size changes: the paper's size.
        cells: Name of the cells' folder below the size's folder.
    """

    name: str
    page: Path
    measure: Callable[[Run], dict[str, Any]]
    values: Callable[[dict[str, Any]], Mapping[str, Any]]
    draw: Callable[[Path, dict[str, Any]], None] | None = None
    default: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    cells: str = "cells"

    def settings(self, size: str) -> Settings:
        """Return the settings of a size.

        Raises:
            DataError: The size is none of `SIZES`.
        """
        if size not in SIZES:
            raise DataError(f"a study has the sizes {', '.join(SIZES)}, not {size!r}.")
        return Settings({**self.default, **({} if size == "default" else getattr(self, size))})

    def start(
        self,
        size: str = "default",
        out: str | Path | None = None,
        data_dir: str | Path | None = None,
        say: Callable[[str], None] = print,
        settings: Mapping[str, Any] | None = None,
        go_on: bool = False,
    ) -> Run:
        """Return a run of this study, of which nothing is computed yet.

        Args:
            size: "quick", "default" or "full".
            out: Folder of all sizes; `runs/NAME` by default.
            data_dir: First folder to look in for data.
            say: Function that prints a line of progress.
            settings: Settings that replace those of the size.
            go_on: Whether rows of the checkout's committed results count as computed: a study of many hours goes on
                on another machine.
        """
        started = time.time()
        folder = Path(out) if out is not None else Path("runs") / self.name
        return Run(
            size,
            self.settings(size).replace(**(settings or {})),
            folder,
            None if data_dir is None else Path(data_dir),
            lambda text: say(f"[{time.time() - started:5.0f} s] {text}"),
            folder / size / self.cells,
            self.committed(size) if go_on else {},
        )

    def committed(self, size: str = "default") -> dict[str, Any]:
        """Return the checkout's committed results of a size; empty if there are none."""
        name = self.name if size == "default" else f"{self.name}-{size}"
        return committed(name) if (RESULTS / f"{name}.json").is_file() else {}

    def run(self, *arguments: Any, **options: Any) -> Path:
        """Run what is missing, write results, pictures and the page, and return the page's path.

        The arguments are those of `start`.
        """
        run = self.start(*arguments, **options)
        with exclusive(make_folder(run.folder), "another run of this study", again=True):
            results = {"size": run.size, **self.measure(run)}
            run.keep(results)
            if self.draw is not None:
                self.draw(run.folder, results)
            return write_text(run.folder / f"{self.name}.md", self.text(results))

    def text(self, results: dict[str, Any]) -> str:
        """Return the page: the template filled from results alone."""
        flag = {"quick": " --quick", "full": " --full"}.get(results["size"], "")
        command = f"`marquis reproduce {self.name}{flag}`"
        return fill(self.page, {**results, "command": command, **self.values(results)})
