"""`marquis train MODEL --data NAME|PATH --out DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.cli.options import Header

if TYPE_CHECKING:
    from marquis.autoencoders import BaseAutoencoder, Trained
    from marquis.run import Run

app = typer.Typer(help="Train an autoencoder.", no_args_is_help=True, add_completion=False)
KINDS = "lae, lae-posthoc, ae, ae-variance, vae, dropout, ensemble, bbb"


@app.command()
def train(
    model: Annotated[str, typer.Argument(help=f"Kind of model: {KINDS}.")],
    data: Annotated[
        str | None,
        typer.Option(help="A name of `marquis data list`, a table (.csv, .parquet, .npy, .npz) or a folder."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/MODEL-DATA")] = None,
    latent: Annotated[int | None, typer.Option(help="Size of the code.", show_default="2; celeba 64")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Published settings of lae: paper or paper-code.", show_default="ours")
    ] = None,
    structure: Annotated[
        str | None,
        typer.Option(
            help="Curvature of lae and lae-posthoc: diagonal, kronecker, block or full.",
            show_default="diagonal",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Factor on the covariance of lae and lae-posthoc.",
            show_default="lae 0.01; presets and post hoc 1",
        ),
    ] = None,
    likelihood: Annotated[str | None, typer.Option(help="gaussian or bernoulli.", show_default="gaussian")] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            help="auto, dense, convolutional, mnist-dense, fashion-conv or celeba-conv.", show_default="by data"
        ),
    ] = None,
    width: Annotated[float | None, typer.Option(help="Factor on hidden units and channels.", show_default="1")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many.", show_default="100")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without improvement before it stops.", show_default="8")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per batch.", show_default="128, fewer of few rows")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.001")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and random draws.", show_default="0")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many training rows.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Column of a table to leave out; may be repeated.")] = None,
    header: Header = None,
    size: Annotated[int | None, typer.Option(help="Resize the images of a folder to this edge.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The first folder to look in for data.", show_default="$MARQUIS_DATA")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there already.")] = False,
    report: Annotated[bool, typer.Option(help="Draw the pictures at the end and write report.html.")] = True,
) -> None:
    """Train an autoencoder; a run that was stopped in any way goes on with --resume to the same result."""
    if resume and force:
        raise typer.BadParameter("choose one of --resume and --force")
    given = {
        "model": model,
        "data": None if data is None else _absolute(data),
        "latent": latent,
        "preset": preset,
        "structure": structure,
        "temperature": temperature,
        "likelihood": likelihood,
        "architecture": architecture,
        "width": width,
        "epochs": epochs,
        "patience": patience,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "limit": limit,
        "target": tuple(target) if target else None,
        "size": size,
        "header": header,
        "data_dir": None if data_dir is None else str(data_dir.absolute()),
    }
    run = _run(given, out, resume, force)
    try:
        _train(run, report)
    except KeyboardInterrupt as stopped:
        again = f"marquis train {run.settings.model} --out {run.path} --resume"
        typer.echo(f"\n{str(stopped) or 'stopped'}; go on with: {again}", err=True)
        raise


def _absolute(data: str) -> str:
    """A path that still leads there when the run is opened from another folder; a name as it is."""
    from marquis.data.registry import set_name

    name = set_name(data)
    if name is not None:
        return name
    return data if not Path(data).exists() else str(Path(data).expanduser().absolute())


def _run(given: dict[str, Any], out: Path | None, resume: bool, force: bool) -> Run:
    from marquis.errors import DataError
    from marquis.run import Run, Settings

    if out is None and given["data"] is None:
        raise DataError("say what to train on (--data NAME or PATH), or which run to resume (--out DIR --resume)")
    path = out or Path("runs") / f"{given['model']}-{Path(given['data']).stem}"
    if resume:
        return Run.open(path).resumed(given)
    return Run.create(path, Settings.of(given), force=force)


def _train(run: Run, report: bool) -> None:
    from marquis.autoencoders import fit, save
    from marquis.cli.quality import learnt_nothing
    from marquis.io.atomic import write_json
    from marquis.run.directory import SUMMARY

    settings, data = run.settings, run.data_module
    data.setup()
    if data.validation is None:
        typer.echo(f"{len(data.train)} rows are too few to hold any back: nothing tells when to stop but --epochs")
    typer.echo(f"training {settings.model} on {len(data.train)} rows of {settings.data}; the run is in {run.path}")
    model = run.spec.build(settings.seed)
    options: dict[str, Any] = {"max_epochs": settings.epochs, "patience": settings.patience, "seed": settings.seed}
    trained = fit(model, data, run.path, resume=True, **options)
    finished = run.spec.finish(model, data.train_dataloader(), seed=settings.seed)
    save(run.model_path, finished, run.spec)
    summary = _summary(run, finished, trained)
    write_json(run.path / SUMMARY, summary)
    _show(summary)
    warning = learnt_nothing(summary)
    if warning is not None:
        typer.echo(f"marquis: warning: {warning}", err=True)
    typer.echo(f"written: {run.path}")
    if report:
        _report(run.path)


def _summary(run: Run, model: BaseAutoencoder, trained: Trained) -> dict[str, Any]:
    """What came out: the training in numbers, and how well held-out rows are reconstructed."""
    from marquis.cli.quality import ERROR_OF_MEAN, error_of_mean, quality

    data = run.data_module
    held_out = data.test if data.test is not None else data.validation
    found: dict[str, Any] = {
        "model": run.settings.model,
        "data": run.settings.data,
        "training rows": len(data.train),
        "weights": sum(weight.numel() for weight in model.parameters()),
        "epochs": trained.epochs,
        "best epoch": trained.best_epoch,
        "validation loss": trained.best_loss,
    }
    last = trained.rows[trained.best_epoch] if trained.rows else {}
    names = {"noise_precision": "noise precision", "prior_precision": "prior precision", "temperature": "temperature"}
    found |= {names[name]: last[name] for name in names if name in last}
    if held_out is None:
        return found
    return {**found, **quality(model, held_out), ERROR_OF_MEAN: error_of_mean(data.train, held_out)}


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "value")
    for name, value in summary.items():
        table.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _report(path: Path) -> None:
    """The page with pictures; training is over, so that a page which cannot be drawn is no reason to fail."""
    from marquis.errors import MarquisError
    from marquis.report import write_report

    try:
        typer.echo(f"report: {write_report(path)}")
    except MarquisError as problem:
        typer.echo(f"no report: {problem}", err=True)
