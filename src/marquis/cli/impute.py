"""`marquis impute RUN FILE --out FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.choices import choose
from marquis.cli.options import DrawSeed, FinishedRun, FirstRows, Header, OverwriteFile, Split

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from marquis.run import Rows, Run
    from marquis.tasks.imputation import Imputation

app = typer.Typer(help="Fill in what is missing, with error bars.", no_args_is_help=True, add_completion=False)
HALVES = ("top", "bottom", "left", "right")
METHODS = {"two-stage": ("rounds",), "codes": ("donors", "donor_rows", "exponent")}
"""The ways to fill, and the options that belong to one of them only."""
FEW = 20
"""Candidates of which a mean and a deviation say little."""


@app.command()
def impute(
    run: FinishedRun,
    data: Annotated[str, typer.Argument(help="File, folder or name of data with missing (NaN or empty) entries.")],
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file (tables), .npz, or a .png sheet (images).")],
    hide: Annotated[
        str | None, typer.Option(help="For images: treat the top, bottom, left or right half as missing.")
    ] = None,
    split: Split = None,
    samples: Annotated[int, typer.Option(help="Different answers per row.")] = 25,
    method: Annotated[
        str, typer.Option(help="two-stage (as published), or codes: of other data, weighted by what was observed.")
    ] = "two-stage",
    rounds: Annotated[
        int | None, typer.Option(help="For two-stage: how often the observed entries are put back.", show_default="1")
    ] = None,
    donors: Annotated[
        str | None,
        typer.Option(help="For codes: file, folder or name of complete data.", show_default="training rows of the run"),
    ] = None,
    donor_rows: Annotated[
        int | None, typer.Option(help="For codes: at most so many donors, taken at random.", show_default="1000")
    ] = None,
    exponent: Annotated[
        float | None,
        typer.Option(help="For codes: on the likelihood; less than 1 trusts what was observed less.", show_default="1"),
    ] = None,
    header: Header = None,
    limit: FirstRows = None,
    seed: DrawSeed = 0,
    force: OverwriteFile = False,
) -> None:
    """Fill missing entries; observed ones stay exactly as they are.

    A table keeps its columns, and gets one more, NAME_std, for each one with missing entries: the standard deviation of
    the missing value, zero where it was observed. A .png sheet shows for each image what was given, what was filled in,
    and how much the answers differ (white: most). An .npz file holds `x`, `std`, `missing` and `samples`. One that is
    read may have a boolean array `missing` beside `x`, for images with other holes than halves.

    Two methods. `two-stage` reconstructs again and again, as published. `codes` asks which other, complete rows
    (donors) explain what was observed, by Bayes' rule, and fills in what the model makes of those: nearer to the truth
    on images, about as near on tables.
    """
    method = _checked_method(method, rounds=rounds, donors=donors, donor_rows=donor_rows, exponent=exponent)
    from marquis.cli.outputs import ARRAYS, PICTURES, TABLES, require_free
    from marquis.run import Run

    opened = Run.open(run)
    is_table = len(opened.spec.shape) == 1
    require_free(out, force, (*TABLES, *ARRAYS) if is_table else (*PICTURES, *ARRAYS), data)
    rows = opened.read(data, split=split, limit=limit, header=header, holes=True)
    missing = _missing(rows, hide)
    if out.suffix.lower() in TABLES:
        _check_names(rows, missing)

    import torch

    generator = torch.Generator().manual_seed(seed)
    if method == "codes":
        from marquis.cli.donors import chosen_donors

        most = 1000 if donor_rows is None else donor_rows
        given = chosen_donors(opened, rows.x[missing.flatten(1).any(1)], donors, most, generator)
        found = _by_codes(opened, rows, missing, given, 1.0 if exponent is None else exponent, samples, generator)
    else:
        found = _in_two_stages(opened, rows, missing, 1 if rounds is None else rounds, samples, generator)
    spread = found.total_variance.sqrt()
    mean, std, answers = _in_units(opened, rows, missing, found.mean, spread, found.samples)
    _write(out, rows, missing, mean, std, answers)
    typer.echo(f"filled {int(missing.sum())} of {missing.numel()} entries; written: {out}")


def _checked_method(method: str, **options: object) -> str:
    """Return the method's name; refuse an unknown one, and options of the other one, which would be ignored."""
    from marquis.errors import DataError

    method = choose("--method", method, METHODS, error=DataError)
    for owner, names in METHODS.items():
        for name in names:
            if owner != method and options[name] is not None:
                raise DataError(f"--{name.replace('_', '-')} belongs to --method {owner}, not to {method}")
    return method


def _in_two_stages(
    run: Run, rows: Rows, missing: Tensor, rounds: int, samples: int, generator: Generator
) -> Imputation:
    from marquis.tasks.imputation import impute as filled_in

    fill: str | float = "noise" if run.scaling is None else 0.0  # the columns' means
    if run.spec.missing == "mask":  # its encoder knows what a hole is, and would take a fill for an observation
        fill = "missing"
    options = {"samples": samples, "rounds": rounds, "fill": fill, "generator": generator}
    return filled_in(run.model(), rows.x, missing, **options)


def _by_codes(
    run: Run, rows: Rows, missing: Tensor, donors: Tensor, exponent: float, samples: int, generator: Generator
) -> Imputation:
    """By Bayes' rule; says how many candidates a row's answer comes from, as one alone would be no distribution."""
    from marquis.tasks.imputation import condition

    options = {"exponent": exponent, "samples": samples, "generator": generator}
    found = condition(run.model(), rows.x, donors, missing, **options)
    typical = float(found.effective[missing.flatten(1).any(1)].median())
    few = "; few: a smaller --exponent takes more" if typical < FEW else ""
    typer.echo(f"a typical row is filled from {typical:.1f} of {found.candidates} candidates{few}")
    return found


def _missing(rows: Rows, hide: str | None) -> Tensor:
    """Where entries are missing.

    Raises:
        DataError: Nowhere, or `hide` makes no sense.
    """
    from marquis.errors import DataError

    missing = rows.x.isnan()
    if hide is not None:
        hide = choose("--hide", hide, HALVES, error=DataError)
        if rows.x.ndim != 4:
            raise DataError(f"--hide {hide}: for images only")
        height, width = rows.x.shape[2:]
        parts = {
            "top": (slice(0, height // 2), slice(None)),
            "bottom": (slice(height // 2, None), slice(None)),
            "left": (slice(None), slice(0, width // 2)),
            "right": (slice(None), slice(width // 2, None)),
        }
        missing = missing.clone()
        missing[:, :, parts[hide][0], parts[hide][1]] = True
    if not bool(missing.any()):
        hint = "; --hide top hides half of each image" if rows.x.ndim == 4 else ""
        raise DataError(f"{rows.source}: nothing is missing (no NaN, no empty fields){hint}")
    return missing


def _check_names(rows: Rows, missing: Tensor) -> None:
    """Refuse a table in which NAME_std is the name of a column of its own, which would be lost."""
    from marquis.cli.outputs import column_names
    from marquis.errors import DataError

    names = column_names(rows.names, rows.x.shape[1])
    for name, has_holes in zip(names, missing.any(0).tolist(), strict=True):
        if has_holes and f"{name}_std" in (*names, *rows.aside):
            raise DataError(
                f"{rows.source} has a column {name}_std, which is what the error bars of {name} would be called; "
                "write an .npz file, or train with another name for it"
            )


def _in_units(
    run: Run, rows: Rows, missing: Tensor, mean: Tensor, std: Tensor, samples: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Back in the units of the data, with observed entries exactly as they were read."""
    import torch

    if run.scaling is not None:
        mean, std, samples = run.scaling.unscaled(mean), run.scaling.deviations(std), run.scaling.unscaled(samples)
    return torch.where(missing, mean, rows.original), std, torch.where(missing, samples, rows.original)


def _write(out: Path, rows: Rows, missing: Tensor, mean: Tensor, std: Tensor, samples: Tensor) -> None:
    import torch

    from marquis.cli.outputs import ARRAYS, PICTURES, column_names, write_columns, write_picture

    if out.suffix.lower() in ARRAYS:
        held = {"x": mean, "std": std, "missing": missing, "samples": samples}
        write_columns(out, {name: value.numpy() for name, value in held.items()})
        return
    if out.suffix.lower() in PICTURES:
        given = torch.where(missing, 0.5, rows.original)
        spread = samples.std(0) if len(samples) > 1 else std
        rows_of_three = torch.stack([given, mean, spread / spread.max().clamp_min(1e-12)], 1).flatten(0, 1)
        write_picture(out, rows_of_three.numpy(), together=3)
        return
    names = column_names(rows.names, rows.x.shape[1])
    filled = {name: mean[:, number].numpy() for number, name in enumerate(names)}
    filled |= {name: values.numpy() for name, values in rows.aside.items()}
    columns = {name: filled[name] for name in rows.file_names or names}
    for number, name in enumerate(names):
        if bool(missing[:, number].any()):
            columns[f"{name}_std"] = std[:, number].numpy()
    write_columns(out, columns)
