"""Define `marquis reconstruct SINOGRAM`: an image from X-ray projections, with a standard deviation for every pixel."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marquis.cli.options import OverwriteFile, Samples, Seed, new_app
from marquis.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from marquis.tomography import FanBeam, ParallelBeam, UncertainImage

app = new_app()

SINOGRAMS = (".npy", ".npz", ".tif", ".tiff")


@app.command()
def reconstruct(
    sinogram: Annotated[Path, typer.Argument(help="A .npy, .npz or .tif file: one row per angle.")],
    out: Annotated[Path, typer.Option(help="A .npz file for image, std, samples, noise and report.")],
    geometry: Annotated[str, typer.Option(help="Kind of beam: parallel or fan.")] = "parallel",
    angles: Annotated[
        str | None,
        typer.Option(
            help="Number of equidistant angles, or a .npy or .txt file of radians.",
            show_default="`angles` of an .npz file, else one per row",
        ),
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise level: standard deviation over the mean absolute reading.")
    ] = None,
    tv: Annotated[
        float | None, typer.Option(help="Weight of the total variation.", show_default="from --noise")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Edge of the image in pixels.", show_default="what the detector covers")
    ] = None,
    spacing: Annotated[float, typer.Option(help="Width of a detector bin, in pixels.")] = 1.0,
    pixel_size: Annotated[float, typer.Option(help="Edge of a pixel in the unit of the readings.")] = 1.0,
    source: Annotated[
        float | None, typer.Option(help="Distance from source to rotation centre in pixels (fan).")
    ] = None,
    detector: Annotated[
        float | None, typer.Option(help="Distance from rotation centre to detector in pixels (fan).")
    ] = None,
    low: Annotated[float | None, typer.Option(help="Smallest possible value of a pixel.")] = None,
    high: Annotated[float | None, typer.Option(help="Largest possible value of a pixel.")] = None,
    posterior: Annotated[str, typer.Option(help="Posterior: exact (dense matrices), iterative or auto.")] = "auto",
    preset: Annotated[str | None, typer.Option(help="Published settings: paper.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Maximum number of training steps.", show_default="2500, above 32 pixels 7500")
    ] = None,
    samples: Samples = 16,
    picture: Annotated[Path | None, typer.Option(help="A .png file for image and standard deviation.")] = None,
    seed: Seed = 0,
    force: OverwriteFile = False,
) -> None:
    """Reconstruct an image from a sinogram; an interrupted reconstruction resumes from OUT.partial."""
    from marquis.cli.outputs import ARRAYS, IMAGES, require_free

    require_free(out, force, ARRAYS, str(sinogram))
    if picture is not None:
        require_free(picture, force, IMAGES, str(sinogram), "--picture")
    if (low is None) != (high is None):
        raise DataError("--low and --high belong together: pass both, or neither for values from 0 upwards")
    readings, stored_angles = _read(sinogram)
    beam = _geometry(geometry, readings, angles, stored_angles, size, spacing, pixel_size, source, detector, sinogram)

    import torch

    from marquis.tomography import reconstruct as run

    generator = torch.Generator().manual_seed(seed)
    partial = out.with_name(f"{out.name}.partial")
    options: dict[str, Any] = {"posterior": posterior, "preset": preset}
    result = run(
        torch.from_numpy(readings),
        beam,
        noise=noise,
        tv=tv,
        range=None if low is None or high is None else (low, high),
        samples=samples,
        steps=steps,
        checkpoint=partial,
        generator=generator,
        **options,
    )
    _write(result, samples, out, picture, generator)
    shutil.rmtree(partial, ignore_errors=True)
    typer.echo(f"{beam!r}\n{result.report()}")
    typer.echo(f"written: {out}" + ("" if picture is None else f" and {picture}"))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a sinogram `[angles, detectors]` in float64, and the angles that an .npz file holds."""
    import numpy as np

    from marquis.data.files import read_bytes, read_npy, read_npz

    suffix = path.suffix.lower()
    if suffix not in SINOGRAMS:
        raise DataError(f"{path}: a sinogram is read from a file that ends in {', '.join(SINOGRAMS)}")
    angles = None
    if suffix == ".npz":
        arrays = read_npz(read_bytes(path), path)
        angles = arrays.pop("angles", None)
        if "sinogram" not in arrays and len(arrays) != 1:
            raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; name the readings `sinogram`")
        values = arrays["sinogram"] if "sinogram" in arrays else next(iter(arrays.values()))
    elif suffix == ".npy":
        values = read_npy(read_bytes(path), path)
    else:
        values = _read_tiff(path)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise DataError(f"{path} has {values.dtype} of shape {values.shape}; a sinogram is [angles, detectors] numbers")
    return values.astype(np.float64), angles


def _read_tiff(path: Path) -> np.ndarray:
    """Read a TIFF image as an array."""
    import io

    import numpy as np
    from PIL import Image

    from marquis.data.files import read_bytes
    from marquis.data.limits import require_fits

    content = read_bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its size is checked here, and damage is one error
            with Image.open(io.BytesIO(content)) as image:
                numbers = image.width * image.height * len(image.getbands())
                require_fits(8 * numbers, path, f"{image.width} x {image.height} pixels")
                return np.asarray(image)
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        Image.DecompressionBombError,
    ) as problem:
        raise DataError(f"{path} is no TIFF image, or a damaged one ({problem})") from problem


def _geometry(
    kind: str,
    readings: np.ndarray,
    angles: str | None,
    stored_angles: np.ndarray | None,
    size: int | None,
    spacing: float,
    pixel_size: float,
    source: float | None,
    detector: float | None,
    path: Path,
) -> ParallelBeam | FanBeam:
    """Return the X-ray geometry that the options and the sinogram's shape describe."""
    from marquis.choices import choose
    from marquis.tomography import FanBeam, ParallelBeam

    kind = choose("--geometry", kind, ("parallel", "fan"), error=DataError)
    rows, bins = readings.shape
    directions = _angles(angles, stored_angles, rows)
    count = directions if isinstance(directions, int) else len(directions)
    if count != rows:
        hint = "; it has that many columns: transpose it" if count == bins else ""
        raise DataError(f"{path} has {rows} rows, one per angle, but there are {count} angles{hint}")
    for option, value in {"--spacing": spacing, "--source": source, "--detector": detector}.items():
        if value is not None and not (0 <= value < math.inf and value + (option == "--detector")):
            raise DataError(f"{option} {value}: a finite length in pixels, and above 0 but for --detector")
    if size is None:  # the largest even image whose diagonal the detector covers
        width = bins * spacing
        if kind == "fan" and source is not None and detector is not None:
            ratio = width / (2 * (source + detector))
            width = 2 * source * ratio / math.sqrt(1 + ratio**2)
        size = max(2, 2 * math.floor(width / math.sqrt(8)))
    if kind == "parallel":
        if source is not None or detector is not None:
            raise DataError("--source and --detector belong to --geometry fan; parallel rays have no source")
        return ParallelBeam(size, directions, bins, spacing, pixel_size=pixel_size)
    if source is None or detector is None:
        raise DataError("--geometry fan needs --source and --detector, distances from the rotation centre in pixels")
    return FanBeam(size, directions, bins, spacing, source=source, detector=detector, pixel_size=pixel_size)


def _angles(option: str | None, stored_angles: np.ndarray | None, rows: int) -> int | list[float]:
    """Return the number of equidistant angles, or angles in radians from a file."""
    if option is None:
        return rows if stored_angles is None else [float(value) for value in stored_angles.reshape(-1)]
    if option.isdigit():
        return int(option)
    import numpy as np

    from marquis.data.files import read_bytes, read_npy

    path = Path(option)
    if path.suffix.lower() == ".npy":
        values = read_npy(read_bytes(path), path)
    else:
        try:
            values = np.array(read_bytes(path).decode().replace(",", " ").split(), dtype=np.float64)
        except (UnicodeDecodeError, ValueError) as problem:
            raise DataError(f"--angles {option}: neither a number nor a file of numbers ({problem})") from problem
    return [float(value) for value in values.reshape(-1)]


def _write(result: UncertainImage, samples: int, out: Path, picture: Path | None, generator: Any) -> None:
    """Write image, standard deviation, samples and report, and the figure if there is to be one."""
    import numpy as np

    from marquis.cli.outputs import write_columns, write_figure

    if result.deviations is not None:
        images = (result.image.flatten() + result.deviations).reshape(-1, *result.image.shape)
    else:
        images = result.sample(samples, generator=generator)
    arrays = {
        "image": result.image.numpy(),
        "std": result.std.numpy(),
        "samples": images.float().numpy(),
        "noise_variance": np.array(result.noise_variance),
        "report": np.array(result.report()),
    }
    write_columns(out, arrays)
    if picture is not None:
        write_figure(picture, lambda: _draw(result))


def _draw(result: UncertainImage) -> Any:
    """Draw image and standard deviation side by side."""
    from marquis.plots import new_figure

    figure = new_figure(8.4, 3.8)
    for axes, (title, values, colours) in zip(
        figure.subplots(1, 2),
        (("image", result.image, "gray"), ("standard deviation", result.std, "magma")),
        strict=True,
    ):
        shown = axes.imshow(values.numpy(), cmap=colours)
        axes.set(title=title, xticks=[], yticks=[])
        figure.colorbar(shown, ax=axes, shrink=0.85)
    return figure
