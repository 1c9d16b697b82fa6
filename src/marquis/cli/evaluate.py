"""Define `marquis evaluate RUN [--ood NAME|PATH]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.cli.options import FinishedRun, Header, Linear, Samples, Seed, new_app

if TYPE_CHECKING:
    from marquis.tasks.ood import OodResult

app = new_app()
SHOWN = ("nll", "output_variance", "latent_variance", "combined")
"""Scores that are plotted."""
FEWEST_BINS, MOST_BINS = 8, 50


@app.command()
def evaluate(
    run: FinishedRun,
    ood: Annotated[str | None, typer.Option(help="Out-of-distribution data set, by name or path.")] = None,
    samples: Samples = 100,
    linear: Linear = False,
    limit: Annotated[int, typer.Option(help="Maximum number of random rows of each data set.")] = 2000,
    header: Header = None,
    out: Annotated[Path | None, typer.Option(help="Folder for table and figure.", show_default="the run")] = None,
    seed: Seed = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing results.")] = False,
) -> None:
    """Evaluate a model on held-out rows; with --ood, evaluate how well it detects out-of-distribution data.

    A report.html of the run is written anew, with the results of --ood and what they mean.
    """
    from marquis.cli.held_out import held_out_metrics
    from marquis.cli.outputs import require_free, write_figure
    from marquis.errors import DataError
    from marquis.io.checksum import write_json
    from marquis.report.comparison import REPORT
    from marquis.run import Run
    from marquis.run.directory import SUMMARY_VERSION

    if limit < 1:
        raise DataError(f"--limit {limit}: at least 1")
    opened = Run.open(run)
    name = ("evaluation" if ood is None else f"ood-{Path(ood).stem}") + ("-linearised" if linear else "")
    table, figure = (out or run) / f"{name}.json", (out or run) / f"{name}.png"
    for path in (table, figure):
        require_free(path, force)
    model, data = opened.model(linear=linear), opened.data_module
    data.setup()
    if data.test is None:
        raise DataError(f"{opened.settings.data} has no test rows to evaluate on")
    if ood is None:
        result: dict[str, Any] = held_out_metrics(model, data.test.random_rows(limit, seed), samples, seed)
        for key, value in result.items():
            typer.echo(f"{key:<30} {value:.6g}")
    else:
        import torch

        from marquis.tasks.ood import evaluate as evaluate_ood

        # as many in-distribution as OOD rows: the area under precision-recall depends on it
        out_of_distribution = opened.read(ood, some=min(limit, len(data.test)), seed=seed, header=header).x
        if bool((empty := out_of_distribution.isnan().flatten(1).all(1)).any()):
            raise DataError(f"{int(empty.sum())} rows of {ood} have no values at all; remove them")
        in_distribution = data.test.random_rows(len(out_of_distribution), seed).x
        train = data.train.random_rows(limit, seed).x
        generator = torch.Generator().manual_seed(seed)
        scores = evaluate_ood(model, in_distribution, out_of_distribution, train, samples, generator=generator)
        typer.echo(str(scores))
        counts = {"in_distribution": len(in_distribution), "out_of_distribution": len(out_of_distribution)}
        result = {**counts, "samples": scores.samples, "table": scores.table}
        write_figure(figure, lambda: _ood_figure(scores, opened.settings.data, ood))
        typer.echo(f"written: {figure}")
    write_json(table, {"version": SUMMARY_VERSION, **result})
    typer.echo(f"written: {table}")
    if ood is not None and out is None and (run / REPORT).is_file():
        from marquis.report import write_report

        typer.echo(f"written: {write_report(run)}")


def _ood_figure(result: OodResult, in_distribution: str, out_of_distribution: str) -> Any:
    """Draw ROC curves and histograms of a few scores that vary; the table has them all."""
    from marquis.plots import new_figure

    shown = [name for name in SHOWN if result.varies(name)]
    figure = new_figure(3.4 * (1 + len(shown)), 3.8)
    first, *others = figure.subplots(1, 1 + len(shown))
    for name in shown:
        curve, area = result.roc(name), result.table[name]["auroc"]
        first.plot(curve.false_positive_rate, curve.true_positive_rate, label=f"{_title(name)}: {area:.3f}")
    first.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
    first.set(xlabel="false positive rate", ylabel="true positive rate", title="ROC curves (AUROC in the legend)")
    first.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    count = len(result.in_distribution["nll"]) + len(result.out_of_distribution["nll"])
    bins = min(MOST_BINS, max(FEWEST_BINS, round(count**0.5)))
    labels = f"in-distribution: {Path(in_distribution).stem}", f"OOD: {Path(out_of_distribution).stem}"
    for axes, name in zip(others, shown, strict=True):
        edges, *counts = result.histogram(name, bins)
        for values, label in zip(counts, labels, strict=True):
            axes.stairs(values, edges, fill=True, alpha=0.5, label=label)
        axes.set(title=_title(name), xlabel="score", ylabel="rows")
        axes.locator_params(axis="x", nbins=5)
    if others:
        others[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    return figure


def _title(score: str) -> str:
    """Return the name of a score for titles."""
    return "negative log-likelihood" if score == "nll" else score.replace("_", " ")
