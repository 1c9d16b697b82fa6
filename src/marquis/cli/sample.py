"""Define `marquis sample RUN -n 64`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marquis.choices import choose
from marquis.cli.options import FinishedRun, OverwriteFile, Seed, new_app

if TYPE_CHECKING:
    from torch import Tensor

    from marquis.run import Run

app = new_app()
METHODS = ("codes", "two-stage")
KNOWN = 1000
"""Training rows whose codes are used."""


@app.command()
def sample(
    run: FinishedRun,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png sheet of images, .npz, or .csv/.parquet for a table.", show_default="in the run's folder"
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 64,
    method: Annotated[
        str | None,
        typer.Option(
            help="codes: near codes of training rows; two-stage: from noise, as in the paper.",
            show_default="codes; a vae samples its prior",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="For two-stage: number of passes through the model.", show_default="1")
    ] = None,
    seed: Seed = 0,
    force: OverwriteFile = False,
) -> None:
    """Generate new data.

    A vae samples codes from its prior. For other models, random codes of training rows are perturbed and decoded by
    sampled networks; rows of a table also get the noise of the data. `two-stage`, the method of the paper, imputes data
    in which everything is missing: from noise most models reach few different results.
    """
    from marquis.cli.outputs import ARRAYS, IMAGES, column_names, require_free, suffixes_of, write_columns, write_images
    from marquis.data.categories import collapsed
    from marquis.errors import DataError
    from marquis.run import Run

    opened = Run.open(run)
    out = run / ("samples.csv" if opened.is_table else "samples.png") if out is None else out
    require_free(out, force, suffixes_of(opened))
    if n < 1:
        raise DataError(f"-n {n}: at least 1")
    method = None if method is None else choose("--method", method, METHODS, error=DataError)
    if rounds is not None and method != "two-stage":
        raise DataError("--rounds belongs to --method two-stage")
    samples = _samples(opened, n, method, 1 if rounds is None else rounds, seed)
    values = (samples if opened.scaling is None else opened.scaling.unscaled(samples)).cpu().numpy()
    if out.suffix.lower() in IMAGES:
        write_images(out, values)
    elif out.suffix.lower() in ARRAYS:
        write_columns(out, {"x": values})
    else:
        write_columns(out, collapsed(values, column_names(opened.columns, values.shape[1]), opened.categories))
    typer.echo(f"written: {out}")


def _samples(run: Run, n: int, method: str | None, rounds: int, seed: int) -> Tensor:
    """Generate rows with the run's model, by the method or by that of its kind."""
    import torch

    from marquis.autoencoders import VariationalAutoencoder
    from marquis.errors import DataError
    from marquis.tasks import generation, imputation

    model, shape = run.model(), run.spec.shape
    generator = torch.Generator().manual_seed(seed)
    is_table = run.scaling is not None
    if method is None and isinstance(model, VariationalAutoencoder):
        return model.sample(n, generator, latent=run.spec.latent, noise=is_table)
    if method == "two-stage":
        # a table's columns are scaled to mean 0 and standard deviation 1, and so is the initial noise
        fill = torch.randn(n, *shape, generator=generator) if is_table else "noise"
        return imputation.generate(model, n, shape, samples=1, rounds=rounds, fill=fill, generator=generator).samples[0]
    try:
        run.data_module.setup()
    except DataError as problem:
        raise DataError(f"{problem}; --method two-stage needs no training rows") from problem
    known = run.data_module.train.random_rows(KNOWN, seed).x
    return generation.sample(model, known, n, noise=is_table, generator=generator)
