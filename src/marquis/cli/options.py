"""Declare arguments and options that several commands share, and options from settings dataclasses."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from marquis.options import Option, options_of


def _checked_seed(seed: int) -> int:
    """Return the seed, if every random generator accepts it."""
    from marquis.errors import DataError
    from marquis.run.settings import SEEDS

    if not 0 <= seed < SEEDS:
        raise DataError(f"--seed {seed}: from 0 to {SEEDS - 1}")
    return seed


FinishedRun = Annotated[Path, typer.Argument(help="Folder of a run that `marquis train` has finished.")]
DataSource = Annotated[str, typer.Argument(help="File, folder or name of the data.")]
ColumnsFile = Annotated[
    Path | None,
    typer.Option(help="File of results: .csv, .parquet or .npz.", show_default="a .csv in the run's folder"),
]
Split = Annotated[
    str | None, typer.Option(help="Which rows: train, test or all.", show_default="test of a name, all of a file")
]
Samples = Annotated[int, typer.Option(help="Number of posterior samples.")]
Linear = Annotated[
    bool,
    typer.Option(
        "--linearised",
        help="Use the linearised network: lae at effective temperature 1, lae-posthoc at its temperature.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a .csv file holds column names.",
        show_default="auto-detected",
    ),
]
FirstRows = Annotated[int | None, typer.Option(help="Use only the first N rows.", metavar="N")]
Seed = Annotated[int, typer.Option(help="Random seed.", callback=_checked_seed)]
OverwriteFile = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


def new_app(**options: Any) -> typer.Typer:
    """Return the app of a command's module."""
    return typer.Typer(no_args_is_help=True, add_completion=False, **options)


def with_options(panels: Mapping[str, type]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each field of settings dataclasses.

    The command receives them by name in its `**options`, None where an option was not used; arguments of the command
    itself take the place of fields of the same name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        written = {p.name: p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        declared = {
            known.name: _parameter(known, panel)
            for panel, settings in panels.items()
            for known in options_of(settings).values()
        }
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in {**declared, **written}.values()]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _parameter(known: Option, panel: str) -> inspect.Parameter:
    """Return the parameter of a command that stands for an option."""
    shown: Any = known.shown or (False if known.default in (None, (), inspect.Parameter.empty) else str(known.default))
    details = typer.Option(help=known.help, show_default=shown, rich_help_panel=panel)
    kinds = set(_types(known.type))
    if tuple in kinds:
        kind: Any = list[str]
    elif float in kinds and str in kinds:  # a number or a word
        details.parser, details.metavar, kind = _number_or_word, "NUMBER|WORD", str
    else:
        kind = next(kind for kind in (bool, int, float, str) if kind in kinds)
    annotation = Annotated[kind | None, details]
    return inspect.Parameter(known.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _types(annotation: Any) -> Iterator[type]:
    """Yield the plain types of which an annotation allows values."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _types(part)
    elif origin is Literal:
        yield from map(type, get_args(annotation))
    else:
        yield origin or annotation


def _number_or_word(text: str) -> Any:
    """Convert text to a number where it is one."""
    try:
        return float(text)
    except ValueError:
        return text
