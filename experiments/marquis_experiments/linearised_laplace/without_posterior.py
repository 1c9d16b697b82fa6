"""Scores without a posterior matrix on a network of Fashion-MNIST, with MNIST as outliers.

`python -m marquis_experiments.linearised_laplace.without_posterior` prints the rows of docs/scale.md: the perceptron of
`evidence-training` (199,210 weights), whose weight decay was chosen there on validation rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from marquis.data import load
from marquis.laplace import Laplace
from marquis.scores import null_space, sketched_lanczos
from marquis.tasks.ranking import auroc
from marquis_experiments.common.images import entropy
from marquis_experiments.linearised_laplace.classifiers import cases, trained_map

PRECISION = 30.0
"""The weight decay that `evidence-training` chose."""


def spread(network: nn.Module, samples: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the mean square, over samples, of the linearised change of the outputs, added over outputs: `[B]`."""
    point = {name: weight.detach() for name, weight in network.named_parameters()}

    def change(weights: dict[str, Tensor]) -> Tensor:
        steps = {name: weights[name] - weight for name, weight in point.items()}
        outputs = lambda p: torch.func.functional_call(network, p, (x,))  # noqa: E731
        return torch.func.jvp(outputs, (point,), (steps,))[1].square().sum(1)

    count = len(next(iter(samples.values())))
    return torch.stack([change({name: s[k] for name, s in samples.items()}) for k in range(count)]).mean(0)


def main() -> None:
    """Train or load the network, and print the AUROC of every score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400, help="test images of each data set")
    parser.add_argument("--rows", type=int, default=2000, help="training rows that the scores see")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--networks", type=Path, default=Path("runs/shared-networks"))
    options = parser.parse_args()
    case = cases("default")["fashion-mnist-mlp"]
    data = case.load(options.data_dir, or_digits=False)
    network = trained_map(options.networks, case.kind, data, PRECISION, case.recipe, 0, case.shape).eval()
    inside = data.test.x[: options.images]
    outside = data.standardised(load("mnist", "test", options.data_dir)[: options.images].x)
    seen = [(data.train.x[: options.rows], data.train.y[: options.rows])]
    loader = [(x, y) for x, y in zip(seen[0][0].split(500), seen[0][1].split(500), strict=True)]
    few = [(data.train.x[:100], data.train.y[:100])]

    def lanczos(steps: int, sketch: int | None) -> Callable[[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(0)
        return sketched_lanczos(network, loader, "categorical", steps, sketch, generator=generator).score

    def projected(kept: str, batches: list[tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        posterior = null_space(network, batches, "categorical", kept)
        samples = posterior.sample(10, torch.Generator().manual_seed(0), tolerance=1e-2)
        return lambda x: spread(network, samples, x)

    def variance() -> Callable[[Tensor], Tensor]:
        laplace = Laplace(network, "categorical").fit(loader, progress=False)
        laplace.tune()
        return lambda x: laplace.predict(x).variance.sum(1)

    methods: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        "entropy of the network": lambda: lambda x: entropy(network(x).detach().softmax(1)),
        "variance, Laplace, Kronecker": variance,
        "Jacobian's norm": lambda: lanczos(1, None),
        "Lanczos, 10 steps": lambda: lanczos(10, None),
        "Lanczos, 50 steps": lambda: lanczos(50, None),
        "null space of losses": lambda: projected("losses", loader),
        "null space of outputs, 100 images": lambda: projected("outputs", few),
        "sketched Lanczos, 50 steps of 2,000 numbers": lambda: lanczos(50, 2000),
    }
    for name, make in methods.items():
        began = time.process_time()
        score = make()
        made = time.process_time() - began
        parts = [torch.cat([score(x) for x in images.split(100)]) for images in (inside, outside)]
        took = time.process_time() - began - made
        print(f"| {name} | {auroc(*parts):.3f} | {made:.0f} s | {took:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
