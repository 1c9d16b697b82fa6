"""Define `marquis train MODEL --data NAME|PATH --out DIR`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.choices import choose
from marquis.cli.options import Header, new_app, with_options
from marquis.io.lock import is_first_process
from marquis.online.settings import OnlineSettings
from marquis.options import options_of
from marquis.run.settings import TrainingSettings

if TYPE_CHECKING:
    from marquis.autoencoders import BaseAutoencoder, TrainingResult
    from marquis.run import Run

app = new_app()
DEVICES = ("auto", "cpu", "cuda", "mps")
TRAINING, CURVATURE = "Training", "Posterior of lae and lae-posthoc"


@app.command()
@with_options({TRAINING: TrainingSettings, CURVATURE: OnlineSettings})
def train(
    model: Annotated[str, typer.Argument(help=options_of(TrainingSettings)["model"].help)],
    out: Annotated[Path | None, typer.Option(help="Directory of the run.", show_default="runs/MODEL-DATA")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
    report: Annotated[bool, typer.Option(help="Draw the figures at the end and write report.html.")] = True,
    devices: Annotated[int, typer.Option(min=1, help="Processes on each machine, one per device.")] = 1,
    num_nodes: Annotated[int, typer.Option(min=1, help="Machines, each of which runs this command.")] = 1,
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda or mps.")] = "auto",
    header: Header = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Published settings of lae: paper or paper-code.", rich_help_panel=CURVATURE),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Temperature of the likelihood of lae-posthoc. For lae a deprecated name of --posterior-temperature.",
            show_default="1",
            rich_help_panel=CURVATURE,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Train an autoencoder; a run that was stopped in any way goes on with --resume to the same result."""
    if resume and force:
        raise typer.BadParameter("choose one of --resume and --force")
    chosen: dict[str, Any] = {"model": model, "header": header, "preset": preset, "temperature": temperature, **options}
    renamed = model == "lae" and temperature is not None
    if renamed:
        chosen["posterior_temperature"] = chosen.pop("temperature")
    chosen["data"] = None if chosen["data"] is None else _absolute(chosen["data"])
    chosen["data_dir"] = None if chosen["data_dir"] is None else str(Path(chosen["data_dir"]).absolute())
    chosen["target"] = tuple(chosen["target"]) if chosen["target"] else None
    where = {"devices": devices, "num_nodes": num_nodes, "accelerator": choose("device", device, DEVICES)}
    where |= {"strategy": "ddp"} if devices * num_nodes > 1 else {}
    if not is_first_process():  # Lightning, torchrun or another machine started it, to help with a run
        _train(_run_of_the_first_process(chosen, out), where, report=False)
        return
    run = _run(chosen, out, resume, force)
    if renamed:
        typer.echo("marquis: warning: --temperature of lae is now called --posterior-temperature", err=True)
    try:
        with run.held():
            _train(run, where, report)
    except KeyboardInterrupt as stopped:
        typer.echo(f"\n{str(stopped) or 'stopped'}; resume with: {_resume_command(run)}", err=True)
        raise


def _run_of_the_first_process(chosen: dict[str, Any], out: Path | None) -> Run:
    """Return the run that the first process has created, or will have within ten minutes: other disks may be slow."""
    from marquis.run import Run
    from marquis.run.directory import CONFIG

    path = _run_folder(chosen, out)
    for _ in range(6000):
        if (path / CONFIG).exists():
            break
        time.sleep(0.1)
    return Run.open(path)


def _resume_command(run: Run) -> str:
    """Return the command that resumes a run."""
    return f"marquis train {run.settings.model} --out {run.path} --resume"


def _absolute(data: str) -> str:
    """Return an absolute path, so that the run can be opened from any folder; the name of a set unchanged."""
    from marquis.data.registry import set_name

    name = set_name(data)
    if name is not None:
        return name
    return data if not Path(data).exists() else str(Path(data).expanduser().absolute())


def _run(chosen: dict[str, Any], out: Path | None, resume: bool, force: bool) -> Run:
    """Open the run to resume, or create a new one."""
    from marquis.errors import DataError
    from marquis.run import Run

    if out is None and chosen["data"] is None:
        raise DataError("say what to train on (--data NAME or PATH), or which run to resume (--out DIR --resume)")
    path = _run_folder(chosen, out)
    if resume:
        return Run.open(path).resumed(chosen)
    return Run.create(path, TrainingSettings.of(chosen), force=force)


def _run_folder(chosen: dict[str, Any], out: Path | None) -> Path:
    """Return the directory of a run."""
    return out or Path("runs") / f"{chosen['model']}-{Path(chosen['data']).stem}"


def _train(run: Run, where: dict[str, Any], report: bool) -> None:
    """Train the run's model; the first process saves it, and writes summary and report."""
    from torch import distributed as dist

    from marquis.autoencoders import fit, save
    from marquis.autoencoders.checkpoints import RemovalWatch
    from marquis.cli.held_out import untrained_warning
    from marquis.errors import StorageError
    from marquis.io.checksum import write_json
    from marquis.run.directory import CONFIG, SUMMARY, SUMMARY_VERSION

    settings, data = run.settings, run.data_module
    data.setup()
    echo = typer.echo if is_first_process() else lambda _: None
    if data.validation is None:
        echo(f"{len(data.train)} rows are too few for validation rows: training stops after --epochs")
    echo(f"training {settings.model} on {len(data.train)} rows of {settings.data}; the run is in {run.path}")
    model = run.new_model
    options: dict[str, Any] = {"max_epochs": settings.epochs, "patience": settings.patience, "seed": settings.seed}
    watch = RemovalWatch(run.check_config)
    trained = fit(model, data, run.path, resume=True, callbacks=[watch], **options, **where)
    if dist.is_initialized():  # what follows is the first process's, and no sum over all of them
        dist.destroy_process_group()
    if not is_first_process():
        return
    if watch.removed or not run.check_config():
        raise StorageError(
            f"{run.path / CONFIG} was removed during training. It was written again; the checkpoints are kept, and "
            f"`{_resume_command(run)}` goes on with them"
        )
    finished = run.spec.finish(model, data.train_dataloader(), seed=settings.seed)
    save(run.model_path, finished, run.spec)
    summary = _summary(run, finished, trained)
    write_json(run.path / SUMMARY, {"version": SUMMARY_VERSION, **summary})
    _print_summary(summary)
    warning = untrained_warning(summary)
    if warning is not None:
        typer.echo(f"marquis: warning: {warning}", err=True)
    typer.echo(f"written: {run.path}")
    if report:
        _report(run.path)


def _summary(run: Run, model: BaseAutoencoder, trained: TrainingResult) -> dict[str, Any]:
    """Return the training in numbers, and how well held-out rows are reconstructed."""
    from marquis.cli.held_out import ERROR_OF_MEAN, error_of_mean, held_out_metrics

    data = run.data_module
    held_out = data.test if data.test is not None else data.validation
    summary: dict[str, Any] = {
        "model": run.settings.model,
        "data": run.settings.data,
        "training rows": len(data.train),
        "weights": sum(weight.numel() for weight in model.parameters()),
        "epochs": trained.epochs,
        "best epoch": trained.best_epoch,
        "validation loss": trained.best_loss,
    }
    last = trained.rows[trained.best_epoch] if trained.rows else {}
    learnt = ("noise_precision", "prior_precision", "effective_temperature")
    summary |= {name.replace("_", " "): last[name] for name in learnt if name in last}
    if held_out is None:
        return summary
    return {**summary, **held_out_metrics(model, held_out), ERROR_OF_MEAN: error_of_mean(data.train, held_out)}


def _print_summary(summary: dict[str, Any]) -> None:
    """Print the summary of a training as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "value")
    for name, value in summary.items():
        table.add_row(name, f"{value:.5g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _report(path: Path) -> None:
    """Write the page with figures; training is over, so that a page which cannot be drawn is no reason to fail."""
    from marquis.errors import MarquisError
    from marquis.report import write_report

    try:
        typer.echo(f"report: {write_report(path)}")
    except MarquisError as problem:
        typer.echo(f"no report: {problem}", err=True)
