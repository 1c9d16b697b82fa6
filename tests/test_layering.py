"""Dependencies point one way only: a layer may import the layers listed before it, never those after it.

The order is the one in which data flows (the layout in the design), with one correction that the code needs:
`structures` stands before `curvature`, which returns structures. Imports inside functions count too: hiding an
import does not change what depends on what.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import marquis

PACKAGE = Path(marquis.__file__).parent

LAYERS = [
    "errors",
    "choices",
    "options",
    "lazy",
    "io",
    "progress",
    "functional",
    "distributed",
    "loaders",
    "likelihoods",
    "structures",
    "testing",
    "curvature",
    "priors",
    "posterior",
    "predictive",
    "tangent_kernel",
    "subnetwork",
    "evidence",
    "laplace",
    "online",
    "variational",
    "autoencoders",
    "tasks",
    "tomography",
    "sklearn",
    "data",
    "run",
    "report",
    "explorer",
    "cli",
]

# The front door knows everybody, and `python -m marquis` opens it.
OUTSIDE = {"__init__", "__main__"}


def imported_layers(source: str, module: tuple[str, ...]) -> set[str]:
    """First-level names below `marquis` that this source imports; `module` is its dotted path, as parts."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: len(module) - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for parts in names:
            if parts[0] == "marquis":
                found.add(parts[1] if len(parts) > 1 else "the whole package")
    return found


def violations(layer: str, imported: set[str]) -> list[str]:
    allowed = {*LAYERS[: LAYERS.index(layer) + 1], "__version__"}
    return sorted(name for name in imported if name not in allowed)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if layer_of(path) not in OUTSIDE)


def test_every_module_has_a_layer():
    unknown = {layer_of(path) for path in modules()} - set(LAYERS)
    assert not unknown, f"put {sorted(unknown)} into LAYERS, where the order of dependencies says they belong"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_layers_before(path):
    layer = layer_of(path)
    parts = ("marquis", *path.relative_to(PACKAGE).with_suffix("").parts)
    wrong = violations(layer, imported_layers(path.read_text(), parts))
    assert not wrong, f"{path.relative_to(PACKAGE)} is in layer {layer!r} and must not import {wrong}"


@pytest.mark.parametrize(
    ("layer", "source", "wrong"),
    [
        ("curvature", "from marquis.structures import Diagonal", []),
        ("structures", "from marquis.curvature import ggn", ["curvature"]),
        ("curvature", "def f():\n    import marquis.autoencoders.laplacian", ["autoencoders"]),
        ("curvature", "from marquis import laplace", ["laplace"]),
        ("curvature", "from ..laplace import Laplace", ["laplace"]),
        ("curvature", "from . import factor", []),
        ("curvature", "from .. import errors, online", ["online"]),
        ("laplace", "import marquis as mq", ["the whole package"]),
        ("cli", "from marquis import __version__", []),
        ("structures", "import torch, marquisette", []),
    ],
)
def test_the_check_itself(layer, source, wrong):
    assert violations(layer, imported_layers(source, ("marquis", layer, "somewhere"))) == wrong
