"""Define `marquis embed RUN FILE`."""

from __future__ import annotations

import typer

from marquis.cli import options as shared

app = shared.new_app()


@app.command()
def embed(
    run: shared.FinishedRun,
    data: shared.DataSource,
    out: shared.ColumnsFile = None,
    split: shared.Split = None,
    samples: shared.Samples = 100,
    linear: shared.Linear = False,
    header: shared.Header = None,
    limit: shared.FirstRows = None,
    seed: shared.Seed = 0,
    force: shared.OverwriteFile = False,
) -> None:
    """Write each row's code: columns z1, z2, ... and their standard deviations z1_std, z2_std, ...

    Columns of a table that were excluded from training (--target) follow; paths of images come first.
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
        raise DataError(f"the column {min(taken)} that was excluded from training has the name of a result; rename it")
    model = opened.model(linear=linear)

    import torch

    from marquis.tasks.batches import SameSeed, batches

    same = SameSeed(model, torch.Generator().manual_seed(seed))
    means, stds = [], []
    for x in batches(model, rows.x, 256, "codes", True):
        encoded = model.encode(x, samples, generator=same.generator())
        means.append(encoded.mean.cpu())
        stds.append(encoded.std.cpu())
    empty = rows.x.isnan().flatten(1).all(1)
    if bool(empty.any()):  # the network has a code for nothing, too
        typer.echo(f"{int(empty.sum())} rows have no values at all: their codes are left empty")
    means, stds = (torch.cat(parts) for parts in (means, stds))
    mean, std = (values.where(~empty[:, None], torch.nan).numpy() for values in (means, stds))
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
