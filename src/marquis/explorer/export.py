"""Export the explorer as one HTML file with precomputed results, which opens from disk without a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from marquis.arguments import checked
from marquis.errors import DataError
from marquis.explorer.assets import SCRIPTS, asset
from marquis.explorer.json_arrays import packed
from marquis.explorer.session import BATCH, SHOWN, Answer, Session, code_covariances, plane_grid
from marquis.explorer.thumbnails import SHEET, is_image, sheet_png
from marquis.explorer.workspace import Workspace
from marquis.io.atomic import write_text
from marquis.tasks import geometry

GRID = 24
"""Cells along each side of the grid on which answers are precomputed."""
MARGIN = 0.2
"""Of the codes' extent, by which the grid goes beyond them."""


@checked
def export_page(workspace: Workspace, path: str | os.PathLike[str]) -> Path:
    """Write the explorer's page with everything it needs into one file.

    Decoded means, standard deviations and posterior samples are precomputed on a grid of 24 x 24 codes (of the first
    two principal components where codes are longer), backgrounds and the metric on the same grid, reconstructions for
    every row. Images are kept in 8 bits. What needs the model (imputation, a new data set) is not there.

    Args:
        workspace: What to show.
        path: The file, which is overwritten; written atomically.

    Returns:
        The path.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{path}: an export is an .html file")
    contents: Answer = {"about": workspace.about(), "models": [_precomputed(session) for session in workspace.sessions]}
    low, high = workspace.value_range
    if is_image(workspace.points.rows):
        contents["originals"] = _sheets(workspace.points.rows, low, high)
    if workspace.second is not None:
        contents["second"] = workspace.about_second()
        if is_image(workspace.points.rows):
            contents["second"]["sheets"] = _sheets(workspace.second[0].rows, low, high)
    write_text(path, page_with(contents))
    return path


def page_with(contents: Answer) -> str:
    """Return the page as one text: styles, scripts and data inside, and a policy that forbids everything else."""
    data = json.dumps(packed(contents), ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    script, style = joined_scripts(), asset("style.css")
    policy = (
        f"default-src 'none'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        f"script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    )
    page = asset("index.html").replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
    )
    page = page.replace('<link rel="stylesheet" href="/page/style.css">', f"<style>{style}</style>")
    return page.replace(
        '<script type="module" src="/page/main.js"></script>',
        f'<script type="application/json" id="saved">{data}</script>\n  <script type="module">{script}</script>',
    )


def joined_scripts() -> str:
    """Return all modules of the page in one script: each becomes a function, imports and exports a table of names."""
    parts = ["const modules = {};"]
    for name in SCRIPTS:
        text = re.sub(
            r'^import (\{[^}]*\}) from "\./([\w.-]+)";$', r'const \1 = modules["\2"];', asset(name), flags=re.MULTILINE
        )
        exported = re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, flags=re.MULTILINE)
        text = re.sub(r"^export (?=(?:async )?(?:function|const|class) )", "", text, flags=re.MULTILINE)
        parts.append(f'{{\n{text}\nmodules["{name}"] = {{ {", ".join(exported)} }};\n}}')
    return "\n".join(parts)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _precomputed(session: Session) -> Answer:
    """Return a model's answers on the grid and for every row."""
    plane, box = _plane(session)
    origin, u, v = (tuple(map(float, vector)) for vector in plane)
    spread = session.as_codes(np.stack([u, v]))
    codes = plane_grid(session.as_codes(np.array(origin)), spread, box, GRID)
    mean, std, total, samples = session.decode_many(codes)
    decoded = {"mean": mean, "std": std, "total_std": total}
    decoded |= {f"sample{k}": samples[k] for k in range(min(SHOWN, len(samples)))}
    matrices = geometry.metric(session.few_decoders, codes)
    rows, contributions_of = _rows(session)
    return {
        "plane": {"origin": list(origin), "u": list(u), "v": list(v)},
        "box": list(box),
        "size": GRID,
        "backgrounds": {
            name: session.background(name, origin, u, v, box, GRID).reshape(-1)
            for name in ("std", "total_std", "density", "volume")
        },
        "metric": (spread @ matrices @ spread.T).reshape(GRID, GRID, 2, 2).numpy(),
        "grid": {name: _for_json(values) for name, values in decoded.items()},
        "rows": {name: _for_json(values) for name, values in rows.items()},
        "contributions_of": contributions_of,
    }


def _plane(session: Session) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], tuple[float, float, float, float]]:
    """Return the plane that the page shows at first, and a box around the codes in it."""
    width, (center, components) = session.latent, session.principal
    if width > 2:
        plane = center, components[0], components[1]
    else:
        plane = np.zeros(width), np.eye(width)[0], np.eye(width)[1] if width == 2 else np.zeros(1)
    ends = []
    for direction in plane[1:]:
        along = (session.codes - plane[0]) @ direction
        low, high = float(along.min()), float(along.max())
        pad = MARGIN * (high - low or 1.0)
        ends += [low - pad, high + pad]
    return plane, (ends[0], ends[1], ends[2], ends[3])


def _rows(session: Session) -> tuple[dict[str, np.ndarray], str]:
    """Return reconstructions, standard deviations and code covariances; of tables also contributions to a score."""
    reconstructions, stds, covariances, parts, score = [], [], [], [], "nll"
    table = not is_image(session.points.rows)
    for x in session.x.split(BATCH):
        result = session.reconstruct(x, keep=True)
        covariances.append(code_covariances(result.latent))
        reconstructions.append(session.explored.rows(result.mean))
        stds.append(session.explored.stds(result.std))
        if table:
            score, entries = session.contributions(x, result, "nll")
            parts.append(session.explored.entries(entries))
    rows = {"reconstruction": np.concatenate(reconstructions), "std": np.concatenate(stds)}
    rows["covariance"] = np.concatenate(covariances)
    return ({**rows, "contributions": np.concatenate(parts)} if table else rows), score


def _for_json(values: np.ndarray) -> Any:
    """Return images as sheets of PNG between their extremes, other rows as they are."""
    if not is_image(values):
        return values.reshape(len(values), -1)
    return _sheets(values, float(np.nanmin(values)), float(np.nanmax(values)))


def _sheets(images: np.ndarray, low: float, high: float) -> dict[str, Any]:
    """Return images as PNG sheets, encoded for the page."""
    edge = max(images.shape[2:])
    sheets = [sheet_png(images[k : k + SHEET], low, high, edge) for k in range(0, len(images), SHEET)]
    encoded = [base64.b64encode(sheet).decode() for sheet in sheets]
    return {"images": encoded, "shape": list(images.shape[1:]), "count": len(images), "low": low, "high": high}
