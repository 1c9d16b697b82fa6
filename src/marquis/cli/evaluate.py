"""`marquis evaluate RUN [--ood NAME|PATH]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.cli.options import Draws, DrawSeed, FinishedRun, Header, Linear

if TYPE_CHECKING:
    from marquis.tasks.ood import OodResult

app = typer.Typer(
    help="How good is a trained model, and does it know what it does not know?",
    no_args_is_help=True,
    add_completion=False,
)
SHOWN = ("nll", "output_variance", "latent_variance", "combined")
"""Scores that are drawn."""
FEWEST_BINS, MOST_BINS = 8, 50


@app.command()
def evaluate(
    run: FinishedRun,
    ood: Annotated[str | None, typer.Option(help="Data from elsewhere, by name or path: are they recognised?")] = None,
    samples: Draws = 100,
    linear: Linear = False,
    limit: Annotated[int, typer.Option(help="At most so many rows of each set, at random.")] = 2000,
    header: Header = None,
    out: Annotated[Path | None, typer.Option(help="Folder for table and pictures.", show_default="the run")] = None,
    seed: DrawSeed = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite results that are there already.")] = False,
) -> None:
    """Log-likelihood and error on held-out rows; with --ood, how well outliers are recognised, with pictures."""
    from marquis.cli.outputs import require_free, write_figure, writing
    from marquis.cli.quality import quality
    from marquis.errors import DataError
    from marquis.io.atomic import write_json
    from marquis.run import Run
    from marquis.run.rows import at_random

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
        found: dict[str, Any] = quality(model, at_random(data.test, limit, seed), samples, seed)
        for key, value in found.items():
            typer.echo(f"{key:<30} {value:.6g}")
    else:
        import torch

        from marquis.tasks.ood import evaluate as compared

        # as many inside as outside: the area under precision-recall depends on it
        outside = opened.read(ood, some=min(limit, len(data.test)), seed=seed, header=header).x
        inside = at_random(data.test, len(outside), seed).x
        typical = at_random(data.train, limit, seed).x
        generator = torch.Generator().manual_seed(seed)
        result = compared(model, inside, outside, typical, samples, generator=generator)
        typer.echo(str(result))
        found = {"inside": len(inside), "outside": len(outside), "samples": result.draws}
        found["table"] = result.table
        write_figure(picture, lambda: _drawn(result, opened.settings.data, ood))
        typer.echo(f"written: {picture}")
    with writing(table):
        write_json(table, found)
    typer.echo(f"written: {table}")


def _drawn(result: OodResult, inside: str, outside: str) -> Any:
    """ROC curves and histograms of a few scores that vary; the table has them all."""
    from matplotlib.figure import Figure

    shown = [name for name in SHOWN if result.varies(name)]
    figure = Figure(figsize=(3.4 * (1 + len(shown)), 3.8), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(shown))
    for name in shown:
        curve, area = result.roc(name), result.table[name]["auroc"]
        first.plot(curve.false_positive_rate, curve.true_positive_rate, label=f"{_title(name)}: {area:.3f}")
    first.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
    first.set(xlabel="inside flagged", ylabel="outside flagged", title="ROC (area below)")
    first.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    count = len(result.inside["nll"]) + len(result.outside["nll"])
    bins = min(MOST_BINS, max(FEWEST_BINS, round(count**0.5)))
    for axes, name in zip(others, shown, strict=True):
        edges, counts_inside, counts_outside = result.histogram(name, bins)
        axes.stairs(counts_inside, edges, fill=True, alpha=0.5, label=f"inside: {Path(inside).stem}")
        axes.stairs(counts_outside, edges, fill=True, alpha=0.5, label=f"outside: {Path(outside).stem}")
        axes.set(title=_title(name), xlabel="score", ylabel="rows")
        axes.locator_params(axis="x", nbins=5)
    if others:
        others[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    return figure


def _title(score: str) -> str:
    return "-log p" if score == "nll" else score.replace("_", " ")
