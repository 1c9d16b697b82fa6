"""Define `marquis score RUN FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.cli import options as shared

if TYPE_CHECKING:
    from torch import Tensor

app = shared.new_app()


@app.command()
def score(
    run: shared.FinishedRun,
    data: shared.DataSource,
    out: shared.ColumnsFile = None,
    split: shared.Split = None,
    samples: shared.Samples = 100,
    linear: shared.Linear = False,
    reference: Annotated[int, typer.Option(help="Number of random training and test rows to compare with.")] = 1000,
    explain: Annotated[
        Path | None,
        typer.Option(
            help="Also write what every column (tables of lae runs, .csv) or pixel (.png, .npz) adds to a row's score."
        ),
    ] = None,
    header: shared.Header = None,
    limit: shared.FirstRows = None,
    seed: shared.Seed = 0,
    force: shared.OverwriteFile = False,
) -> None:
    """Write outlier scores of each row, larger for more likely outliers, and p-values among held-out rows.

    `p_value` is the share of held-out rows (of the training data's test split) with a combined score at least as
    large, the row itself counted among them: below 0.01 for one row in a hundred that is no outlier, and never below
    1 / (1 + held-out rows).

    --explain writes a line per row and column: value, expected value with its 90 % interval, and contribution to the
    score of `marquis.sklearn.LaplacianAutoencoder` fitted to the run's training rows, to which they add up. For images
    it writes what every pixel adds to `nll`: a .png of the largest scores, or an .npz of all.

    Missing entries are left out of the scores, so a row with more of them gets lower ones; compare only rows with about
    as many, and as many as in the training data.
    """
    from marquis.cli.image_explanation import write_pixel_maps
    from marquis.cli.outputs import ARRAYS, TABLES, beside_run, path_column, require_free, suffixes_of, write_columns
    from marquis.cli.table_estimator import is_for_estimator, write_explanation
    from marquis.errors import DataError
    from marquis.run import Run

    opened = Run.open(run)
    out = beside_run(run, "scores", data, linear) if out is None else out
    require_free(out, force, (*TABLES, *ARRAYS), data)
    if reference < 2:
        raise DataError(f"--reference {reference}: at least 2 rows are needed to compare with")
    if explain is not None:
        if opened.is_table and not is_for_estimator(opened):
            raise DataError("--explain is for images, and for tables of runs of lae with the gaussian likelihood")
        require_free(explain, force, suffixes_of(opened), data, "--explain")
    rows = opened.read(data, split=split, limit=limit, header=header)
    model, data_module = opened.model(linear=linear), opened.data_module
    if explain is not None:
        if opened.is_table:
            write_explanation(explain, opened, rows)
        else:
            write_pixel_maps(explain, model, rows.x, samples, seed)
        typer.echo(f"written: {explain}")
    data_module.setup()

    import torch

    from marquis.tasks import ood

    def scores(x: Tensor) -> ood.Scores:  # the same networks for all three, so that they can be compared
        return ood.scores(model, x, samples, generator=torch.Generator().manual_seed(seed))

    train_rows = data_module.train.random_rows(reference, seed).x
    result, trained = scores(rows.x), scores(train_rows)
    result["combined"] = ood.combined(result, trained)
    if data_module.test is not None:
        held_out = ood.combined(scores(data_module.test.random_rows(reference, seed).x), trained)
        at_least = (held_out[None, :] >= result["combined"][:, None]).sum(1)
        result["p_value"] = (1 + at_least).double() / (1 + len(held_out))
        outliers = int((at_least < 0.01 * len(held_out)).sum())
        typer.echo(f"{len(rows.x)} rows, {outliers} with a higher score than 99 % of {len(held_out)} held-out rows")
    empty = rows.x.isnan().flatten(1).all(1)
    if bool(empty.any()):  # nothing was left out of nothing: their scores would be the most ordinary of all
        result = {name: values.where(~empty, torch.nan) for name, values in result.items()}
        typer.echo(f"{int(empty.sum())} rows have no values at all: their scores are left empty")
    first = ("combined", "p_value")
    ordered = [name for name in first if name in result] + [name for name in result if name not in first]
    write_columns(out, {**path_column(rows.files), **{name: result[name].numpy() for name in ordered}})
    missing, usual = (float(x.isnan().float().mean()) for x in (rows.x, train_rows))
    if missing or usual:
        typer.echo(
            f"{missing:.1%} of the entries are missing, {usual:.1%} in the training rows; the more of a row is "
            "missing, the lower its scores"
        )
    typer.echo(f"written: {out}")
