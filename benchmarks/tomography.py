"""The projector against scikit-image and ASTRA's CPU projector, and the cost of a posterior sample.

`python -m benchmarks.tomography [--size 128] [--angles 60]` prints the projectors as a Markdown table, with ratios of
one run. ASTRA is measured where it is installed (`pip install --no-deps astra-toolbox nvidia-cuda-runtime-cu12
nvidia-cufft-cu12 nvidia-nvjitlink-cu12` in an environment of the benchmark, with the folders of these libraries in
LD_LIBRARY_PATH: its wheel is linked against CUDA even where only CPU projectors are used).

`python -m benchmarks.tomography --samples` prints the seconds of one sample of the iterative posterior against pixels
and angles.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from marquis.tomography import ParallelBeam, deep_image_prior, linearise, simulate
from marquis.tomography.posterior import IterativePrior

GRID = ((32, 30), (64, 30), (64, 60), (64, 120), (96, 60), (128, 60))
"""Pixels along a side and angles, for the cost of a sample."""
SAMPLES, STEPS = 8, 300


def best_of(call: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def phantom(size: int) -> np.ndarray:
    image = np.zeros((size, size))
    image[size // 4 : 3 * size // 4, size // 3 : 2 * size // 3] = 1.0
    return image


def projectors(size: int, angles: int) -> dict[str, tuple[float, float, float]]:
    """Seconds of projection and of its adjoint or back-projection, and the difference of the projection to ours."""
    image, beam = phantom(size), ParallelBeam(size, angles, size)
    x = torch.from_numpy(image)
    sinogram = beam.forward(x)
    ours = sinogram.numpy()

    def difference(theirs: np.ndarray) -> float:
        return float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours))

    adjoint, filtered = best_of(lambda: beam.adjoint(sinogram)), best_of(lambda: beam.fbp(sinogram))
    forward = best_of(lambda: beam.forward(x))
    measured = {"marquis": (forward, adjoint, 0.0), "marquis, filtered": (forward, filtered, 0.0)}
    try:
        from skimage.transform import iradon, radon
    except ImportError:
        pass
    else:
        degrees, theirs = np.rad2deg(beam.angles.numpy()), ours.T.copy()
        measured["scikit-image, filtered"] = (
            best_of(lambda: radon(image, degrees, circle=True), 3),
            best_of(lambda: iradon(theirs, degrees, circle=True), 3),
            difference(radon(image, degrees, circle=True).T),
        )
    try:
        import astra  # pyright: ignore[reportMissingImports]
    except ImportError:
        return measured
    geometry = astra.create_proj_geom("parallel", 1.0, size, beam.angles.numpy())
    for kind in ("strip", "line"):
        projector = astra.create_projector(kind, geometry, astra.create_vol_geom(size, size))
        operator = astra.OpTomo(projector)
        pair = best_of(lambda: operator.FP(image)), best_of(lambda: operator.BP(ours))  # noqa: B023
        measured[f"ASTRA, {kind}"] = (*pair, difference(np.asarray(operator.FP(image))))
        matrix = astra.matrix.get(astra.projector.matrix(projector))
        flat, data = image.ravel(), ours.ravel()
        pair = best_of(lambda: matrix @ flat), best_of(lambda: matrix.T @ data)  # noqa: B023
        measured[f"ASTRA, {kind}, as a scipy matrix"] = (*pair, difference((matrix @ flat).reshape(ours.shape)))
    return measured


def print_projectors(size: int, angles: int) -> None:
    started = time.process_time()
    ParallelBeam(size, angles, size).matrix()
    build = time.process_time() - started
    print(f"{size} pixels, {angles} angles; building our matrix once: {build:.2f} s")
    measured = projectors(size, angles)
    print("| library | projection | ratio | back-projection | ratio | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (forward, backward, difference) in measured.items():
        base = measured["marquis, filtered" if "filtered" in name else "marquis"]
        cells = f"{1e3 * forward:.1f} ms | {forward / base[0]:.1f} | {1e3 * backward:.1f} ms | {backward / base[1]:.1f}"
        print(f"| {name} | {cells} | {100 * difference:.2g} % |")


def sample_seconds(size: int, angles: int) -> dict[str, float]:
    """Seconds of the parts of an iterative posterior of a briefly trained network, one variance, 5 % noise."""
    generator = torch.Generator().manual_seed(0)
    geometry = ParallelBeam(size, angles, pixel_size=1 / size)
    data = simulate(torch.from_numpy(phantom(size)), geometry, noise=0.05, generator=generator)
    options = {"range": (0.0, 1.0), "steps": STEPS, "generator": generator, "progress": False}
    trained = deep_image_prior(data, geometry, tv=1e-4, **options)
    prior = linearise(trained, geometry, posterior="iterative", generator=generator)
    assert isinstance(prior, IterativePrior)
    started = time.process_time()
    tuned = prior.tune(data)
    tuning = time.process_time() - started
    product = prior.operator(tuned.variance, tuned.noise_variance).seconds_per_product()
    started = time.process_time()
    prior.posterior(tuned, samples=SAMPLES)
    seconds = (time.process_time() - started) / SAMPLES
    return {"readings": math.prod(geometry.data_shape), "product": product, "tuning": tuning, "sample": seconds}


def print_samples() -> None:
    print("| pixels | angles | readings | a product | tuning | a sample |\n| ---: | ---: | ---: | ---: | ---: | ---: |")
    for size, angles in GRID:
        row = sample_seconds(size, angles)
        cells = f"{row['readings']:.0f} | {1e3 * row['product']:.0f} ms | {row['tuning']:.1f} s | {row['sample']:.2f} s"
        print(f"| {size} x {size} | {angles} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--angles", type=int, default=60)
    parser.add_argument("--samples", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.samples:
        print_samples()
    else:
        print_projectors(options.size, options.angles)


if __name__ == "__main__":
    main()
