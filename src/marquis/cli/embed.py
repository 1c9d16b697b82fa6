"""`marquis embed RUN FILE`."""

from __future__ import annotations

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

app = typer.Typer(help="Codes of data, with error bars.", no_args_is_help=True, add_completion=False)


@app.command()
def embed(
    run: FinishedRun,
    data: DataSource,
    out: ColumnsFile = None,
    split: Split = None,
    samples: Draws = 100,
    linear: Linear = False,
    header: Header = None,
    limit: FirstRows = None,
    seed: DrawSeed = 0,
    force: OverwriteFile = False,
) -> None:
    """Write each row's code: columns z1, z2, ... and their standard deviations z1_std, z2_std, ...

    Columns of a table that were set apart in training (--target) are written beside them, and files of images before.
    """
    from marquis.cli.outputs import ARRAYS, TABLES, beside_run, path_column, require_free, write_columns
    from marquis.errors import DataError
    from marquis.run import Run

    opened = Run.open(run)
    out = beside_run(run, "codes", data, linear) if out is None else out
    require_free(out, force, (*TABLES, *ARRAYS), data)
    rows = opened.read(data, split=split, limit=limit, header=header)
    aside = {name: values.numpy() for name, values in rows.aside.items()}
    codes = [f"z{number + 1}" for number in range(opened.spec.latent)]
    taken = set(aside) & {"path", "label", "mean", "std", "y", *codes, *(f"{name}_std" for name in codes)}
    if taken:
        raise DataError(f"the column {min(taken)} that was set apart is called like one of the answers; rename it")
    model = opened.model(linear=linear)

    import torch

    from marquis.tasks.batches import SameDraws, batches

    same = SameDraws(model, torch.Generator().manual_seed(seed))
    means, stds = [], []
    for x in batches(model, rows.x, 256, "codes", True):
        said = model.encode(x, samples, generator=same.again())
        means.append(said.mean.cpu())
        stds.append(said.std.cpu())
    mean, std = torch.cat(means).numpy(), torch.cat(stds).numpy()
    if out.suffix.lower() in ARRAYS:
        labels = {} if rows.y is None else {"y": rows.y.numpy()}
        write_columns(out, {**path_column(rows.files), "mean": mean, "std": std, **labels, **aside})
    else:
        columns = {**path_column(rows.files), **{name: mean[:, number] for number, name in enumerate(codes)}}
        columns |= {f"{name}_std": std[:, number] for number, name in enumerate(codes)}
        if rows.y is not None and rows.y.ndim == 1:
            columns["label"] = rows.y.numpy()
        write_columns(out, columns | aside)
    typer.echo(f"written: {out}")
