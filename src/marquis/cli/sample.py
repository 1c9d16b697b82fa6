"""`marquis sample RUN -n 64`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.choices import choose
from marquis.cli.options import DrawSeed, FinishedRun, OverwriteFile

if TYPE_CHECKING:
    from torch import Tensor

    from marquis.run import Run

app = typer.Typer(help="New data from a trained model.", no_args_is_help=True, add_completion=False)
METHODS = ("codes", "two-stage")
KNOWN = 1000
"""Training rows whose codes are drawn from."""


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
    method: Annotated[
        str | None,
        typer.Option(
            help="codes: near those of training rows; two-stage: from noise, as published.",
            show_default="codes; a vae draws from its prior",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="For two-stage: passes through the model.", show_default="1")
    ] = None,
    seed: DrawSeed = 0,
    force: OverwriteFile = False,
) -> None:
    """Draw new data.

    A vae has a prior to draw codes from. For other models, codes of training rows are taken at random and moved a
    little, and networks drawn from the model decode them; a table's rows get the noise of the data, too. `two-stage`,
    the published way, fills in data in which everything is missing: from noise most models come to few answers.
    """
    from marquis.cli.outputs import ARRAYS, PICTURES, TABLES, column_names, require_free, write_columns, write_picture
    from marquis.errors import DataError
    from marquis.run import Run

    opened = Run.open(run)
    is_table = len(opened.spec.shape) == 1
    out = run / ("samples.csv" if is_table else "samples.png") if out is None else out
    require_free(out, force, (*TABLES, *ARRAYS) if is_table else (*PICTURES, *ARRAYS))
    if n < 1:
        raise DataError(f"-n {n}: ask for at least one")
    method = None if method is None else choose("--method", method, METHODS, error=DataError)
    if rounds is not None and method != "two-stage":
        raise DataError("--rounds belongs to --method two-stage")
    drawn = _drawn(opened, n, method, 1 if rounds is None else rounds, seed)
    values = (drawn if opened.scaling is None else opened.scaling.unscaled(drawn)).cpu().numpy()
    if out.suffix.lower() in PICTURES:
        write_picture(out, values)
    elif out.suffix.lower() in ARRAYS:
        write_columns(out, {"x": values})
    else:
        names = column_names(opened.columns, values.shape[1])
        write_columns(out, {name: values[:, number] for number, name in enumerate(names)})
    typer.echo(f"written: {out}")


def _drawn(run: Run, n: int, method: str | None, rounds: int, seed: int) -> Tensor:
    import torch

    from marquis.autoencoders import VariationalAutoencoder
    from marquis.errors import DataError
    from marquis.run.rows import at_random
    from marquis.tasks import generation, imputation

    model, shape = run.model(), run.spec.shape
    generator = torch.Generator().manual_seed(seed)
    is_table = run.scaling is not None
    if method is None and isinstance(model, VariationalAutoencoder):
        return model.sample(n, generator, latent=run.spec.latent, noise=is_table)
    if method == "two-stage":
        # a table's columns are scaled to mean 0 and deviation 1, so that is where its noise begins
        fill = torch.randn(n, *shape, generator=generator) if is_table else "noise"
        return imputation.generate(model, n, shape, samples=1, rounds=rounds, fill=fill, generator=generator).samples[0]
    try:
        run.data_module.setup()
    except DataError as problem:
        raise DataError(f"{problem}; --method two-stage does without the training rows") from problem
    known = at_random(run.data_module.train, KNOWN, seed).x
    return generation.sample(model, known, n, noise=is_table, generator=generator)
