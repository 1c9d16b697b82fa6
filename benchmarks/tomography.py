"""The projector against scikit-image (and ASTRA's CPU projector, where it is installed), as ratios in one run.

`python -m benchmarks.tomography [--size 128] [--angles 60]` prints a Markdown table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from marquis.tomography import ParallelBeam


def best_of(call: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def rows(size: int, angles: int) -> dict[str, tuple[float, float]]:
    """Seconds of projection and of filtered back-projection, by library; ours after its matrix is built."""
    image = np.zeros((size, size))
    image[size // 4 : 3 * size // 4, size // 3 : 2 * size // 3] = 1.0
    beam = ParallelBeam(size, angles, size)
    x = torch.from_numpy(image)
    beam.forward(x)
    sinogram = beam.forward(x)
    measured = {"marquis": (best_of(lambda: beam.forward(x)), best_of(lambda: beam.fbp(sinogram)))}
    try:
        from skimage.transform import iradon, radon
    except ImportError:
        pass
    else:
        degrees = np.rad2deg(beam.angles.numpy())
        theirs = sinogram.numpy().T.copy()
        measured["scikit-image"] = (
            best_of(lambda: radon(image, degrees, circle=True), 3),
            best_of(lambda: iradon(theirs, degrees, circle=True), 3),
        )
    try:
        import astra  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    else:
        volume = astra.create_vol_geom(size, size)
        geometry = astra.create_proj_geom("parallel", 1.0, size, beam.angles.numpy())
        projector = astra.create_projector("strip", geometry, volume)
        operator = astra.OpTomo(projector)
        data = sinogram.numpy()
        measured["ASTRA (strip)"] = best_of(lambda: operator.FP(image)), best_of(lambda: operator.BP(data))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--angles", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    ParallelBeam(options.size, options.angles, options.size).matrix()
    build = time.perf_counter() - started
    print(f"{options.size} pixels, {options.angles} angles; building our matrix once: {build:.2f} s")
    measured = rows(options.size, options.angles)
    ours = measured["marquis"]
    print("| library | projection | ratio | filtered back-projection | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for name, (forward, backward) in measured.items():
        cells = f"{1e3 * forward:.1f} ms | {forward / ours[0]:.1f} | {1e3 * backward:.1f} ms | {backward / ours[1]:.1f}"
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
