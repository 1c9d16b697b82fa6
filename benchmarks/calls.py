"""Whole calls beside the peers' in one process: `.venv-peers/bin/python -m benchmarks.calls lenet` prints a table.

Every call that a peer can do is timed in turns with the peer's, on one core by the processor's clock, so that what else
the machine does cancels. The best peer is the one with the smallest median. `python -m benchmarks.calls` runs all
workloads in the peers' environment and writes the page.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.environment import ROOT, peers_python
from benchmarks.measure import MEGABYTE, _timed, cpu_name, peak_bytes
from benchmarks.networks import build_network
from benchmarks.statistics import with_interval
from benchmarks.workloads import Workload, plain_step

WORKLOADS = ("lenet", "resnet", "encoder", "decoder")
TURNS, SECONDS, SLOWER = 15, 90.0, 1.5
NETWORKS = 30
MEMORY_LIMIT = 12 * 2**30  # of address space: a peer that wants more fails alone
Call = Callable[[], object]
Peers = dict[str, Callable[[], Call]]
"""By name, a function that prepares the peer's call; it may raise what the peer raises."""


def laplace_torch(work: Workload, structure: str, backend: str, subset: str = "all", fitted: bool = False) -> Any:
    """Return a `laplace.Laplace` of a copy of the network."""
    from laplace import Laplace, curvature  # pyright: ignore[reportMissingImports]

    options = {"backend": getattr(curvature, backend)}
    la = Laplace(copy.deepcopy(work.model), "classification", subset, structure, **options)
    if fitted:
        la.fit(loader(work), progress_bar=False)
    return la


def loader(work: Workload) -> Any:
    """Return the batch as a `DataLoader`, which laplace-torch asks for."""
    data = torch.utils.data.TensorDataset(work.x, work.y)
    return torch.utils.data.DataLoader(data, batch_size=len(work.x))


BACKENDS = {"ASDL": "AsdlGGN", "BackPACK": "BackPackGGN", "curvlinops": "CurvlinopsGGN"}


def fits(work: Workload) -> dict[str, tuple[Call, Peers]]:
    """Return the fits of a `Laplace`, ours and those of laplace-torch with each of its back-ends."""
    import marquis as mq

    rows = {}
    data = loader(work)
    for name, structure, theirs, subset, ours in (
        ("fit diagonal", "diagonal", "diag", "all", "all"),
        ("fit Kronecker", "kronecker", "kron", "all", "all"),
        ("fit last layer, Kronecker", "kronecker", "kron", "last_layer", "last-layer"),
    ):

        def peer(backend: str, theirs: str = theirs, subset: str = subset) -> Call:
            return lambda: laplace_torch(work, theirs, backend, subset, fitted=True)

        def own(structure: str = structure, ours: str = ours) -> object:
            return mq.Laplace(work.model, "categorical", structure, parameters=ours).fit(data, progress=False)

        # curvlinops' diagonal forms a Jacobian of the batch: 15 GB on LeNet.
        labels = [n for n in BACKENDS if structure != "diagonal" or n != "curvlinops"]
        rows[name] = own, {label: lambda b=BACKENDS[label], p=peer: p(b) for label in labels}
    return rows


def linear_names(model: nn.Module) -> list[str]:
    """Return the parameters of linear layers and convolutions, the only ones that curvlinops' KFAC takes."""
    kinds = (nn.Linear, nn.Conv2d)
    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, kinds)]
    return [f"{name}.{parameter}" for name, part in parts for parameter, _ in part.named_parameters()]


def factors(work: Workload) -> dict[str, tuple[Call, Peers]]:
    """Return the Kronecker factors of one batch with one sampled column, of linear layers and convolutions."""
    import marquis as mq

    names = linear_names(work.model)

    def peer() -> Call:
        from curvlinops import KFACLinearOperator  # pyright: ignore[reportMissingImports]

        model = copy.deepcopy(work.model)
        parameters = [p for n, p in model.named_parameters() if n in names]
        options: dict[str, Any] = {"check_deterministic": False, "fisher_type": "mc", "num_data": len(work.x)}

        def call() -> object:
            operator = KFACLinearOperator(
                model, work.loss_module(), parameters, [(work.x, work.y)], num_per_example_loss_terms=1, **options
            )
            return operator.compute_kronecker_factors(), operator

        return call

    generator = torch.Generator().manual_seed(0)
    own = lambda: mq.curvature.ggn(  # noqa: E731
        work.model, work.x, "categorical", "kronecker", "sketched", parameters=names, generator=generator
    )
    return {"Kronecker factors, one column": (own, {"curvlinops": peer})}


def products(work: Workload) -> dict[str, tuple[Call, Peers]]:
    """Return products with the curvature of one batch."""
    import marquis as mq

    rows: dict[str, tuple[Call, Peers]] = {}
    classes = {"ggn": "GGNLinearOperator", "hessian": "HessianLinearOperator", "empirical-fisher": "EFLinearOperator"}
    size = sum(p.numel() for p in work.model.parameters())
    for kind, theirs in classes.items():
        operator = mq.curvature.operator(work.model, [(work.x, work.y)], "categorical", kind, check=False)
        for count in (1, 8):
            vectors = torch.randn(count, size, generator=torch.Generator().manual_seed(1))

            def peer(theirs: str = theirs, vectors: torch.Tensor = vectors) -> Call:
                import curvlinops  # pyright: ignore[reportMissingImports]

                model = copy.deepcopy(work.model)
                made = getattr(curvlinops, theirs)(
                    model,
                    work.loss_module(),
                    list(model.parameters()),
                    [(work.x, work.y)],
                    check_deterministic=False,
                    num_data=len(work.x),
                )
                columns = vectors.T.contiguous()
                return lambda: made @ columns

            own = lambda operator=operator, vectors=vectors: operator @ vectors  # noqa: E731
            rows[f"{kind} product, {count} vector{'s'[: count - 1]}"] = own, {"curvlinops": peer}
    return rows


def jacobians(work: Workload) -> dict[str, tuple[Call, Peers]]:
    """Return the Jacobians of 32 images."""
    from marquis.functional.function import NetworkFunction
    from marquis.functional.jacobian import jacobian

    x = work.x[:32]

    def peer(backend: str) -> Call:
        la = laplace_torch(work, "kron", backend)
        la.model.output_size = 10
        made = la.backend
        return lambda: made.jacobians(x)

    function = NetworkFunction.copy_of(work.model)
    peers: Peers = {name: lambda b=backend: peer(b) for name, backend in BACKENDS.items()}
    return {"Jacobians, 32 images": (lambda: jacobian(function, x), peers)}


def with_posterior(work: Workload) -> dict[str, tuple[Call, Peers]]:
    """Return what is done with a fitted posterior: predictions, tuning, and the gradient of the evidence."""
    import marquis as mq

    data = loader(work)
    x = work.x[:32]
    rows: dict[str, tuple[Call, Peers]] = {}
    for structure, theirs in (("kronecker", "kron"), ("diagonal", "diag")):
        laplace = mq.Laplace(work.model, "categorical", structure).fit(data, progress=False)
        made: dict[str, Any] = {}

        def fitted(backend: str, theirs: str = theirs, made: dict[str, Any] = made) -> Any:
            if backend not in made:
                made[backend] = laplace_torch(work, theirs, backend, fitted=True)
                made[backend].model.output_size = 10
            return made[backend]

        def linearised(backend: str, fitted: Any = fitted) -> Call:
            la = fitted(backend)
            return lambda: la(x, pred_type="glm", link_approx="probit")

        label = structure.replace("kro", "Kro")
        few = {"ASDL": "AsdlGGN", "curvlinops": "CurvlinopsGGN"}
        call = lambda laplace=laplace: laplace.predict(x, link="probit")  # noqa: E731
        rows[f"linearised predictive, {label}"] = call, {n: lambda b=b, f=linearised: f(b) for n, b in few.items()}

        def sampled(backend: str, fitted: Any = fitted) -> Call:
            la = fitted(backend)
            return lambda: la(x, pred_type="nn", link_approx="mc", n_samples=NETWORKS)

        call = lambda laplace=laplace: laplace.predict(x, method="sampled", samples=NETWORKS)  # noqa: E731
        rows[f"{NETWORKS} sampled networks, {label}"] = call, {"laplace-torch": lambda f=sampled: f("AsdlGGN")}

        def tuned(backend: str, how: str, fitted: Any = fitted) -> Call:
            la = fitted(backend)
            return lambda: la.optimize_prior_precision(
                pred_type="glm", method="marglik", prior_structure=how, init_prior_prec=1.0
            )

        for how, groups in (("scalar", "scalar"), ("layerwise", "tensor")):
            mine = mq.Laplace(work.model, "categorical", structure, prior=mq.Prior(1.0, groups=groups))
            mine.fit(data, progress=False)
            start = mine.prior

            def tune(method: str, mine: Any = mine, start: Any = start, **options: Any) -> object:
                mine.update(prior=start)
                return mine.tune(method, **options)

            peer: Peers = {"laplace-torch": lambda how=how, f=tuned: f("AsdlGGN", how)}
            rows[f"tuning by evidence, {how}, {label}"] = lambda t=tune: t("evidence"), peer
            by_adam = lambda t=tune: t("gradient", steps=100, tolerance=0.0)  # noqa: E731
            rows[f"tuning, 100 steps of Adam, {how}, {label}"] = by_adam, peer

        def gradient(la: Any) -> object:
            precision = torch.ones(1, requires_grad=True)
            la.log_marginal_likelihood(precision).backward()
            return precision.grad

        def theirs_gradient(fitted: Any = fitted, gradient: Any = gradient) -> Call:
            la = fitted("AsdlGGN")
            return lambda: gradient(la)

        rows[f"gradient of the evidence, {label}"] = (
            lambda laplace=laplace, g=gradient: g(laplace),
            {"laplace-torch": theirs_gradient},
        )
    return rows


def compare(ours: Call, peers: Peers, plain: Call, turns: int) -> dict[str, Any]:
    """Return times, ratios and peaks of our call and its peers', taken in turns."""
    calls, reasons, first = {"ours": ours}, {}, {}
    ours()
    for name, prepare in peers.items():
        try:
            calls[name] = prepare()
            first[name] = min(_timed(calls[name])[1] for _ in range(2))
        except Exception as error:  # a peer raises what it likes; the table says what
            calls.pop(name, None)
            reasons[name] = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:120]}"
    best = min(first.values(), default=0.0)
    for name, seconds in first.items():
        if seconds > SLOWER * best:
            calls.pop(name)
            reasons[name] = f"{seconds / best:.1f} times the best peer"
    times: dict[str, list[float]] = {name: [] for name in ("plain", *calls)}
    for _ in range(turns):
        for name, call in {"plain": plain, **calls}.items():
            times[name].append(_timed(call)[1])
        if sum(map(sum, times.values())) > SECONDS and len(times["ours"]) >= 11:
            break
    row: dict[str, Any] = {"turns": len(times["ours"]), "reasons": reasons, "plain_ms": 1000 * median(times["plain"])}
    row["ms"] = {name: 1000 * median(times[name]) for name in calls}
    row["plain_ratio"] = with_interval([a / b for a, b in zip(times["ours"], times["plain"], strict=True)])
    row["ratios"] = {
        name: with_interval([a / b for a, b in zip(times["ours"], times[name], strict=True)])
        for name in calls
        if name != "ours"
    }
    row["peak_mb"] = {name: peak_bytes(call) / MEGABYTE for name, call in calls.items()}
    return row


def rows_of(name: str) -> dict[str, tuple[Call, Peers]]:
    """Return all calls that are compared on one workload."""
    work = build_network(name)
    groups = [fits, products, jacobians, with_posterior] if name in ("lenet", "resnet") else [factors, products]
    if name == "encoder":
        groups.append(lambda work: {"fit diagonal": fits(work)["fit diagonal"]})
    return {label: pair for group in groups for label, pair in group(work).items()}


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cells(label: str, row: dict[str, Any]) -> list[str]:
    """Return one row of the table."""
    peers = row["ratios"]
    best = min(peers, key=lambda name: row["ms"][name], default=None)
    if best is None:
        ratio, met = "–", "no peer did"
    else:
        middle, low, high = peers[best]
        ratio = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        met = "yes" if middle <= 1 else ("**no**, within the interval" if low <= 1 else "**no**")
    others = [f"{name} {_digits(row['ms'][name])} ms, {_digits(row['peak_mb'][name])} MB" for name in peers]
    others += [f"{name}: {reason}" for name, reason in row["reasons"].items()]
    others += [row["note"]] if "note" in row else []
    mine = f"{_digits(row['ms']['ours'])} [{_digits(row['peak_mb']['ours'])}]"
    remark = "; ".join(others).replace("|", "/").replace("<", "&lt;")
    return [label, mine, f"{row['plain_ratio'][0]:.2f}", ratio, met, str(row["turns"]), remark]


def write_page(results: dict[str, Any], page: Path) -> None:
    """Write the table of all calls."""
    from benchmarks.report import table  # needs more than the peers' environment has

    rows = [[name, *cells(label, row)] for name, calls in results.items() for label, row in calls.items()]
    missed = sum(row[5].startswith("**no**") for row in rows)
    head = ["network", "call", "ms [peak MB]", "plain passes", "to the best peer", "at most 1.0", "turns", "peers"]
    text = f"""# Calls beside the peers

Written by `python -m benchmarks.calls`, in the peers' own environment. Every call of ours is timed in turns with the
same call of each peer, in one process on one core ({cpu_name()}) by the processor's clock, since other programs ran;
*to the best peer* is the median of the ratios of these pairs with its 95 % interval, below 1 ours is faster. *Plain
passes*: forward and backward passes over the same batch. The peak is that of the resident set above its start, after
all calls were timed. laplace-torch 0.3 runs with each back-end (ASDL, BackPACK, curvlinops); a peer that takes 1.5
times the best one is not timed further (2.5 times in older rows), and one that asks for more than 8 GB fails. The last
word of a row is the commit of which it was taken.

LeNet has 16 and 32 channels and average pooling (128 images of 28 x 28), the ResNet width 16 and GroupNorm (32 images
of 32 x 32), the encoder 0.9 million and the decoder 4 million weights (2,000 words, 32 positions). Ours missed the bar
of 1.0 in {missed} of {sum(row[5] != "no peer did" for row in rows)} calls that a peer did.

{table(head, rows)}
"""
    page.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Compare on one workload and print a line of JSON per call."""
    parser = argparse.ArgumentParser(description="Whole calls beside the peers'.")
    parser.add_argument("workload", nargs="?", choices=WORKLOADS, help="default: all, in the peers' environment")
    parser.add_argument("--only", default="", help="part of a call's name")
    parser.add_argument("--render", action="store_true", help="only write the page again from the JSON")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "calls.json")
    chosen = parser.parse_args(arguments)
    if chosen.workload is None:
        python, word = peers_python()
        if python is None:
            sys.exit(f"no peers: {word}")
        for name in WORKLOADS:
            command = [str(python), "-m", "benchmarks.calls", name, "--out", str(chosen.out)]
            subprocess.run(command, check=True, cwd=ROOT)
        write_page(json.loads(chosen.out.read_text()), chosen.out.with_suffix(".md"))
        return
    if chosen.render:
        write_page(json.loads(chosen.out.read_text()), chosen.out.with_suffix(".md"))
        return
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    torch.set_num_threads(1)
    plain = plain_step(build_network(chosen.workload))
    results = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for label, (ours, peers) in rows_of(chosen.workload).items():
        if chosen.only not in label:
            continue
        row = compare(ours, peers, plain, chosen.turns)
        print(chosen.workload, *cells(label, row), sep=" | ", flush=True)
        results.setdefault(chosen.workload, {})[label] = row
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
