"""`marquis evaluate RUN [--ood NAME|PATH]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.cli.options import Draws, DrawSeed, FinishedRun, Linear

if TYPE_CHECKING:
    from marquis.tasks.ood import OodResult

app = typer.Typer(
    help="How good is a trained model, and does it know what it does not know?",
    no_args_is_help=True,
    add_completion=False,
)
SHOWN = ("nll", "output_variance", "latent_variance", "combined")
"""Scores of which histograms are drawn."""


@app.command()
def evaluate(
    run: FinishedRun,
    ood: Annotated[str | None, typer.Option(help="Data from elsewhere, by name or path: are they recognised?")] = None,
    samples: Draws = 100,
    linear: Linear = False,
    limit: Annotated[int, typer.Option(help="At most so many rows of each set.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="Folder for table and pictures.", show_default="the run")] = None,
    seed: DrawSeed = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite results that are there already.")] = False,
) -> None:
    """Log-likelihood and error on held-out rows; with --ood, how well outliers are recognised, with pictures."""
    from marquis.atomic import write_json
    from marquis.cli.outputs import require_free, write_figure, writing
    from marquis.cli.quality import quality
    from marquis.errors import DataError
    from marquis.run import Run

    if limit < 1:
        raise DataError(f"--limit {limit}: at least 1")
    opened = Run.open(run)
    name = ("evaluation" if ood is None else f"ood-{Path(ood).stem}") + ("-linearised" if linear else "")
    table, picture = (out or run) / f"{name}.json", (out or run) / f"{name}.png"
    for path in (table, picture):
        require_free(path, force)
    model, data = opened.model(linear=linear), opened.data_module
    data.setup()
    if data.test is None:
        raise DataError(f"{opened.settings.data} has no test rows to evaluate on")
    if ood is None:
        found: dict[str, Any] = quality(model, data.test[:limit], samples, seed)
        for key, value in found.items():
            typer.echo(f"{key:<30} {value:.6g}")
    else:
        import torch

        from marquis.tasks.ood import evaluate as compared

        outside = opened.read(ood, limit=limit).x
        inside = data.test[: len(outside)].x  # as many as outside: the area under precision-recall depends on it
        generator = torch.Generator().manual_seed(seed)
        result = compared(model, inside, outside[: len(inside)], data.train[:limit].x, samples, generator=generator)
        typer.echo(str(result))
        found = {"inside": len(inside), "outside": min(len(outside), len(inside)), "samples": result.draws}
        found["table"] = result.table
        write_figure(picture, lambda: _drawn(result, opened.settings.data, ood))
        typer.echo(f"written: {picture}")
    with writing(table):
        write_json(table, found)
    typer.echo(f"written: {table}")


def _drawn(result: OodResult, inside: str, outside: str) -> Any:
    """ROC curves of all scores that vary, and histograms of a few."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * (1 + len(SHOWN)), 3.6), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(SHOWN))
    for name, row in result.table.items():
        if result.varies(name):
            curve = result.roc(name)
            first.plot(curve.false_positive_rate, curve.true_positive_rate, label=f"{name} {row['auroc']:.3f}")
    first.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
    first.set(xlabel="false alarms", ylabel="outliers found", title="ROC (area)")
    first.legend(fontsize=6)
    for axes, name in zip(others, SHOWN, strict=True):
        edges, counts_inside, counts_outside = result.histogram(name)
        axes.stairs(counts_inside, edges, fill=True, alpha=0.5, label=Path(inside).stem)
        axes.stairs(counts_outside, edges, fill=True, alpha=0.5, label=Path(outside).stem)
        axes.set(title=name, xlabel="score", ylabel="data")
        axes.legend(fontsize=7)
    return figure
