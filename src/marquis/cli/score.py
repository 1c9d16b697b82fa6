"""`marquis score RUN FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from marquis.cli.options import (
    ColumnsFile,
    DataSource,
    Draws,
    DrawSeed,
    FinishedRun,
    FirstRows,
    Header,
    Linear,
    OverwriteFile,
    Split,
)

if TYPE_CHECKING:
    from torch import Tensor

app = typer.Typer(help="Outlier scores of data.", no_args_is_help=True, add_completion=False)


@app.command()
def score(
    run: FinishedRun,
    data: DataSource,
    out: ColumnsFile = None,
    split: Split = None,
    samples: Draws = 100,
    linear: Linear = False,
    reference: Annotated[
        int, typer.Option(help="Rows of training and of test data to compare with, at random.")
    ] = 1000,
    header: Header = None,
    limit: FirstRows = None,
    seed: DrawSeed = 0,
    force: OverwriteFile = False,
) -> None:
    """Write outlier scores of each row, larger for stranger rows, and how rare such a score is among held-out rows.

    `p_value` is the share of held-out rows (of the training data's own test split) with a combined score at least as
    large, the row itself counted among them: below 0.01 for one row in a hundred that is no outlier, and never below
    1 / (1 + held-out rows).

    Missing entries count for nothing, so a row with more of them looks less strange; only rows with about as many, and
    as many as in the training data, can be compared.
    """
    from marquis.cli.outputs import ARRAYS, TABLES, beside_run, path_column, require_free, write_columns
    from marquis.errors import DataError
    from marquis.run import Run
    from marquis.run.rows import at_random

    opened = Run.open(run)
    out = beside_run(run, "scores", data, linear) if out is None else out
    require_free(out, force, (*TABLES, *ARRAYS), data)
    if reference < 2:
        raise DataError(f"--reference {reference}: at least 2 rows are needed to compare with")
    rows = opened.read(data, split=split, limit=limit, header=header)
    model, known = opened.model(linear=linear), opened.data_module
    known.setup()

    import torch

    from marquis.tasks import ood

    def scores(x: Tensor) -> ood.Scores:  # the same draws for all three, so that they can be compared
        return ood.scores(model, x, samples, generator=torch.Generator().manual_seed(seed))

    learnt = at_random(known.train, reference, seed).x
    found, trained = scores(rows.x), scores(learnt)
    found["combined"] = ood.combined(found, trained)
    if known.test is not None:
        inside = ood.combined(scores(at_random(known.test, reference, seed).x), trained)
        at_least = (inside[None, :] >= found["combined"][:, None]).sum(1)
        found["p_value"] = (1 + at_least).double() / (1 + len(inside))
        strange = int((at_least < 0.01 * len(inside)).sum())
        typer.echo(f"{len(rows.x)} rows, {strange} of them stranger than 99 % of {len(inside)} held-out rows")
    first = ("combined", "p_value")
    ordered = [name for name in first if name in found] + [name for name in found if name not in first]
    write_columns(out, {**path_column(rows.files), **{name: found[name].numpy() for name in ordered}})
    holes, usual = (float(x.isnan().float().mean()) for x in (rows.x, learnt))
    if holes or usual:
        typer.echo(
            f"{holes:.1%} of the entries are missing, {usual:.1%} in the training rows; the more of a row is missing, "
            "the less strange it looks"
        )
    typer.echo(f"written: {out}")
