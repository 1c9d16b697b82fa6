"""`marquis sample RUN -n 64`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.cli.options import DrawSeed, FinishedRun, OverwriteFile

if TYPE_CHECKING:
    from torch import Tensor

    from marquis.run import Run

app = typer.Typer(help="New data from a trained model.", no_args_is_help=True, add_completion=False)


@app.command()
def sample(
    run: FinishedRun,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png sheet of images, .npz, or .csv/.parquet for a table.", show_default="in the run's folder"
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 64,
    rounds: Annotated[int, typer.Option(help="Passes through the model, from noise (not for vae).")] = 1,
    seed: DrawSeed = 0,
    force: OverwriteFile = False,
) -> None:
    """Draw new data: a vae from its prior, other models by filling data in which everything is missing."""
    from marquis.cli.outputs import ARRAYS, PICTURES, TABLES, column_names, require_free, write_columns, write_picture
    from marquis.errors import DataError
    from marquis.run import Run

    opened = Run.open(run)
    is_table = len(opened.spec.shape) == 1
    out = run / ("samples.csv" if is_table else "samples.png") if out is None else out
    require_free(out, force, (*TABLES, *ARRAYS) if is_table else (*PICTURES, *ARRAYS))
    if n < 1:
        raise DataError(f"-n {n}: ask for at least one")
    drawn = _drawn(opened, n, rounds, seed)
    values = (drawn if opened.scaling is None else opened.scaling.unscaled(drawn)).cpu().numpy()
    if out.suffix.lower() in PICTURES:
        write_picture(out, values)
    elif out.suffix.lower() in ARRAYS:
        write_columns(out, {"x": values})
    else:
        names = column_names(opened.columns, values.shape[1])
        write_columns(out, {name: values[:, number] for number, name in enumerate(names)})
    typer.echo(f"written: {out}")


def _drawn(run: Run, n: int, rounds: int, seed: int) -> Tensor:
    import torch

    from marquis.autoencoders import VariationalAutoencoder
    from marquis.tasks.imputation import generate

    model, shape = run.model(), run.spec.shape
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, VariationalAutoencoder):
        return model.sample(n, generator, latent=run.spec.latent, noise=False)
    # a table's columns are scaled to mean 0 and deviation 1, so that is where its noise begins
    fill = "noise" if run.scaling is None else torch.randn(n, *shape, generator=generator)
    return generate(model, n, shape, samples=1, rounds=rounds, fill=fill, generator=generator).samples[0]
