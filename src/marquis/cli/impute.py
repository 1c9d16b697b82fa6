"""Define `marquis impute RUN FILE --out FILE`."""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.choices import choose
from marquis.cli.options import FinishedRun, FirstRows, Header, OverwriteFile, Seed, Split, new_app

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from marquis.run import Rows, Run
    from marquis.tasks.imputation import Imputation

app = new_app()
HALVES = ("top", "bottom", "left", "right")
METHODS = {"estimator": (), "two-stage": ("rounds",), "weighted": ("reference", "reference_rows", "exponent")}
"""The methods, and the options that belong to one of them only."""
FEW = 20
"""Candidates whose mean and standard deviation are unreliable."""


@app.command()
def impute(
    run: FinishedRun,
    data: Annotated[str, typer.Argument(help="File, folder or name of data with missing (NaN or empty) entries.")],
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file (tables), .npz, or a .png sheet (images).")],
    hide: Annotated[
        str | None, typer.Option(help="For images: treat the top, bottom, left or right half as missing.")
    ] = None,
    split: Split = None,
    samples: Annotated[int, typer.Option(help="Number of imputations per row.")] = 25,
    method: Annotated[
        str | None,
        typer.Option(
            help="estimator (tables: marquis.sklearn's), two-stage (the paper's), or weighted: importance-weighted.",
            show_default="estimator for tables of lae runs, else two-stage",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="For two-stage: number of rounds.", show_default="1")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            "--donors",
            help="For weighted: file, folder or name of the reference set, complete data.",
            show_default="training rows of the run",
        ),
    ] = None,
    reference_rows: Annotated[
        int | None,
        typer.Option(
            "--reference-rows",
            "--donor-rows",
            help="For weighted: maximum number of random rows of the reference set.",
            show_default="1000",
        ),
    ] = None,
    exponent: Annotated[
        float | None,
        typer.Option(
            help="For weighted: exponent of the likelihood; below 1 for correlated entries, such as pixels.",
            show_default="1",
        ),
    ] = None,
    header: Header = None,
    limit: FirstRows = None,
    seed: Seed = 0,
    force: OverwriteFile = False,
) -> None:
    """Fill missing entries; observed ones stay exactly as they are.

    A table keeps its columns, and gets one more, NAME_std, for each one with missing entries: the standard deviation of
    the missing value, zero where it was observed. A .png sheet shows for each image the input, the imputation, and the
    standard deviation of the imputations (white: largest). An .npz file holds `x`, `std`, `missing` and `samples`. An
    .npz input may have a boolean array `missing` beside `x`, for any pattern of missing pixels.

    `estimator` fits `marquis.sklearn.LaplacianAutoencoder` to the run's training rows with the run's seed and gives its
    numbers; its 90 % intervals contain about 90 % of the missing values. `two-stage` reconstructs repeatedly, as in the
    paper. `weighted` is importance-weighted imputation: reconstructions of complete rows (the reference set), weighted
    by the likelihood of the observed entries. It is more accurate on images than `two-stage`.
    """
    options = {"rounds": rounds, "reference": reference, "reference_rows": reference_rows, "exponent": exponent}
    automatic = method is None and rounds is None
    method = _checked_method(method or "two-stage", **options)
    from marquis.cli.outputs import TABLES, check_std_names, column_names, require_free, suffixes_of
    from marquis.cli.table_estimator import imputed, is_for_estimator, write_imputed
    from marquis.errors import DataError, MarquisError
    from marquis.run import Run

    opened = Run.open(run)
    if automatic and is_for_estimator(opened):
        method = "estimator"
    if method == "estimator" and not is_for_estimator(opened):
        raise DataError("--method estimator is for tables of runs of lae with the gaussian likelihood")
    if method != "estimator" and opened.categories:
        raise DataError(f"--method {method} is for numbers; a table with categories is filled by a run of lae")
    require_free(out, force, suffixes_of(opened), data)
    rows = opened.read(data, split=split, limit=limit, header=header, allow_missing=True)
    missing = _missing(rows, hide)
    if out.suffix.lower() in TABLES and not opened.categories:
        names = column_names(rows.names, rows.x.shape[1])
        check_std_names(compress(names, missing.any(0).tolist()), (*names, *rows.aside), rows.source)

    import torch

    generator = torch.Generator().manual_seed(seed)
    filled = None
    if method == "estimator":
        opened.model()  # refuses a run that is not finished or damaged
        try:
            filled = imputed(opened, rows, samples, seed)
        except MarquisError as problem:
            if not automatic or opened.categories:
                raise
            typer.echo(f"marquis: warning: {problem} So --method two-stage is used.", err=True)
    count, entries = int(missing.sum()), missing.numel()
    if filled is not None and opened.categories:
        count, entries = write_imputed(out, rows, filled), filled.missing.size
    elif filled is not None:
        parts = filled.mean, filled.std, filled.samples
        _write(out, rows, missing, *map(torch.as_tensor, parts))
    else:
        if method == "weighted":
            most = 1000 if reference_rows is None else reference_rows
            strength = 1.0 if exponent is None else exponent
            result = _weighted(opened, rows, missing, reference, most, strength, samples, generator)
        else:
            result = _in_two_stages(opened, rows, missing, 1 if rounds is None else rounds, samples, generator)
        std = result.total_variance.sqrt()
        _write(out, rows, missing, *_in_units(opened, rows, missing, result.mean, std, result.samples))
    typer.echo(f"filled {count} of {entries} entries; written: {out}")


def _checked_method(method: str, **options: object) -> str:
    """Return the method's name; refuse an unknown one, and options of the other one, which would be ignored."""
    from marquis.errors import DataError

    if method == "codes":
        typer.echo("marquis: warning: --method codes is now called weighted", err=True)
        method = "weighted"
    method = choose("--method", method, METHODS, error=DataError)
    for owner, names in METHODS.items():
        for name in names:
            if owner != method and options[name] is not None:
                raise DataError(f"--{name.replace('_', '-')} belongs to --method {owner}, not to {method}")
    return method


def _in_two_stages(
    run: Run, rows: Rows, missing: Tensor, rounds: int, samples: int, generator: Generator
) -> Imputation:
    """Impute by the two-stage method, from what this model's missing entries start with."""
    from marquis.tasks import imputation

    fill: str | float = "noise" if run.scaling is None else 0.0  # the columns' means
    if run.spec.missing == "mask":  # its encoder sees the mask, and would take a fill for an observation
        fill = "missing"
    options = {"samples": samples, "rounds": rounds, "fill": fill, "generator": generator}
    return imputation.impute(run.model(), rows.x, missing, **options)


def _weighted(
    run: Run,
    rows: Rows,
    missing: Tensor,
    source: str | None,
    most: int,
    exponent: float,
    samples: int,
    generator: Generator,
) -> Imputation:
    """Impute by weighted candidates; prints how many of them count, as one alone would be no distribution."""
    from marquis.cli.reference_set import reference_rows
    from marquis.tasks.imputation import impute_weighted

    incomplete = missing.flatten(1).any(1)
    reference = reference_rows(run, rows.x[incomplete], source, most, generator)
    options = {"exponent": exponent, "samples": samples, "generator": generator}
    result = impute_weighted(run.model(), rows.x, reference, missing, **options)
    typical = float(result.effective[incomplete].median())
    few = "; few: a smaller --exponent takes more" if typical < FEW else ""
    typer.echo(f"effective number of candidates of a typical row: {typical:.1f} of {result.candidates}{few}")
    return result


def _missing(rows: Rows, hide: str | None) -> Tensor:
    """Return where entries are missing.

    Raises:
        DataError: Nowhere, or `hide` does not apply.
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


def _in_units(
    run: Run, rows: Rows, missing: Tensor, mean: Tensor, std: Tensor, samples: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Convert to the units of the data, with observed entries exactly as they were read."""
    import torch

    if run.scaling is not None:
        mean, std, samples = run.scaling.unscaled(mean), run.scaling.deviations(std), run.scaling.unscaled(samples)
    return torch.where(missing, mean, rows.original), std, torch.where(missing, samples, rows.original)


def _write(out: Path, rows: Rows, missing: Tensor, mean: Tensor, std: Tensor, samples: Tensor) -> None:
    """Write an imputation as arrays, as a sheet of images, or as a table."""
    import torch

    from marquis.cli.outputs import ARRAYS, IMAGES, column_names, write_columns, write_images

    if out.suffix.lower() in ARRAYS:
        arrays = {"x": mean, "std": std, "missing": missing, "samples": samples}
        write_columns(out, {name: value.numpy() for name, value in arrays.items()})
        return
    if out.suffix.lower() in IMAGES:
        inputs = torch.where(missing, 0.5, rows.original)
        spread = samples.std(0) if len(samples) > 1 else std
        rows_of_three = torch.stack([inputs, mean, spread / spread.max().clamp_min(1e-12)], 1).flatten(0, 1)
        write_images(out, rows_of_three.numpy(), group=3)
        return
    names = column_names(rows.names, rows.x.shape[1])
    filled = {name: mean[:, number].numpy() for number, name in enumerate(names)}
    filled |= {name: values.numpy() for name, values in rows.aside.items()}
    columns = {name: filled[name] for name in rows.file_names or names}
    for number, name in enumerate(names):
        if bool(missing[:, number].any()):
            columns[f"{name}_std"] = std[:, number].numpy()
    write_columns(out, columns)
