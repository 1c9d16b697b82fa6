"""Random command lines: options as the commands declare them, values as people and their scripts mistype them."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import typer.main

from marquis.cli.app import GROUPS

WEIRD = (
    "", " ", "-", "--", "0", "-1", "1e400", "nan", "inf", "99999999999999999999", "1.5", "true", "None", "../..", "/",
    "/dev/null", "/proc/self/mem", "/proc/nowhere/at/all", "x" * 5000, "a\x01b", "[/b] bold", "[red]", "%s%n",
    "$(touch owned)",     "caf\u00e9", "\u202e", "\udcff\udcfe", "'; drop table", "*.csv", "~nobody/x", "a/" * 60 + "b",
)  # fmt: skip
"""Values of no option, among them bytes that are not UTF-8 (as Python passes them on) and Rich's markup."""


def make_files(folder: Path) -> list[str]:
    """Files that exist: a good table, and some that only look like one."""
    rows = np.random.default_rng(0).normal(size=(40, 3))
    header = "a,b,[/b]\n"
    body = "\n".join(",".join(f"{value:.3f}" for value in row) for row in rows)
    (folder / "good.csv").write_text(header + body + "\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / "empty.csv").write_bytes(b"")
    (folder / "damaged.npz").write_bytes(b"PK\x03\x04" + bytes(50))
    (folder / "folder").mkdir()
    (folder / "half-a-run").mkdir()
    (folder / "half-a-run" / "config.json").write_text("{")
    np.save(folder / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return [str(path) for path in sorted(folder.iterdir())]


def commands() -> dict[str, list[Any]]:
    """Options and arguments of every command, as click knows them."""
    result = {}
    for name, (module, _) in GROUPS.items():
        command: Any = typer.main.get_command(import_module(module).app)
        nested = getattr(command, "commands", None)
        if nested:
            result |= {f"{name} {sub}": list(part.params) for sub, part in nested.items()}
        else:
            result[name] = list(command.params)
    return result


def random_line(chooser: random.Random, known: dict[str, list[Any]], files: list[str]) -> list[str]:
    """One command line; at most one epoch of training where it happens to be right."""
    name = chooser.choice(sorted(known))
    text = name.split()
    if chooser.random() < 0.05:
        text = [chooser.choice(WEIRD)]
    parameters = known[name]
    for parameter in parameters:
        if parameter.param_type_name == "argument" and chooser.random() < 0.9:
            text.append(_value(chooser, files))
    options = [part for part in parameters if part.param_type_name == "option" and part.name != "help"]
    for parameter in chooser.sample(options, k=min(len(options), chooser.randrange(4))):
        text.append(chooser.choice(parameter.opts))
        if not parameter.is_flag or chooser.random() < 0.1:
            text.append(_value(chooser, files))
    if name == "train":
        text += ["--epochs", "1", "--no-report"]
    return text


def _value(chooser: random.Random, files: list[str]) -> str:
    sensible = [*files, "lae", "ae", "digits", "train", "3"]
    return chooser.choice(WEIRD if chooser.random() < 0.6 else sensible)
