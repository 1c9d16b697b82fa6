"""Dependencies point one way only: a layer may import the layers listed before it, never those after it.

The order is the one in which data flows (the layout in the design), with one correction that the code needs:
`structures` stands before `curvature`, which returns structures. Imports inside functions count too: hiding an
import does not change what depends on what.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import marquis

PACKAGE = Path(marquis.__file__).parent
TESTS = Path(__file__).parent

LAYERS = [
    "errors",
    "arguments",
    "choices",
    "options",
    "lazy",
    "randomness",
    "io",
    "progress",
    "notebook",
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
    "conformal",
    "tangent_kernel",
    "subnetwork",
    "evidence",
    "laplace",
    "scores",
    "online",
    "variational",
    "autoencoders",
    "tasks",
    "plots",
    "tomography",
    "sklearn",
    "integrations",
    "data",
    "run",
    "report",
    "explorer",
    "cli",
]

# Inside the engine: rooms first, then the doors.
CURVATURE_LAYERS = [
    "graph",
    "factors",
    "ops",
    "backward",
    "squared",
    "planning",
    "linop",
    "output_covariance",
    "ggn",
    "hessian",
    "over_processes",
    "resume",
    "regroup",
    "data_pass",
    "in_groups",
    "accumulate",
]

# The front door knows everybody, and `python -m marquis` opens it.
OUTSIDE = {"__init__", "__main__"}


def imported_layers(source: str, module: tuple[str, ...], package: tuple[str, ...] = ("marquis",)) -> set[str]:
    """First-level names below a package that this source imports; `module` is its dotted path, as parts."""
    result = set()
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
            if tuple(parts[: len(package)]) == package:
                result.add(parts[len(package)] if len(parts) > len(package) else "the whole package")
    return result


def violations(layer: str, imported: set[str], layers: list[str] = LAYERS) -> list[str]:
    allowed = {*layers[: layers.index(layer) + 1], "__version__"}
    return sorted(name for name in imported if name not in allowed)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if layer_of(path) not in OUTSIDE)


def engine_layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE / "curvature").parts[0].removesuffix(".py")


def engine_modules() -> list[Path]:
    return sorted(path for path in (PACKAGE / "curvature").rglob("*.py") if engine_layer_of(path) not in OUTSIDE)


def test_every_module_has_a_layer():
    unknown = {layer_of(path) for path in modules()} - set(LAYERS)
    assert not unknown, f"put {sorted(unknown)} into LAYERS, where the order of dependencies says they belong"
    unknown = {engine_layer_of(path) for path in engine_modules()} - set(CURVATURE_LAYERS)
    assert not unknown, f"put {sorted(unknown)} into CURVATURE_LAYERS, where the order of dependencies says they belong"


def test_a_class_name_means_one_thing():
    sources = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    names = Counter(node.name for source in sources for node in source.body if isinstance(node, ast.ClassDef))
    # the estimator for tables has the name of the model that it trains
    assert {name for name, count in names.items() if count > 1} == {"LaplacianAutoencoder"}


def test_every_room_has_its_tests():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    # the conformance suites of `testing` run in tests/structures and tests/likelihoods
    assert not {room for room in rooms - {"testing"} if not list((TESTS / room).glob("test_*.py"))}


def test_contributors_find_every_room():
    text = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Rooms\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", section))
    rooms = {path.name for path in (PACKAGE / "curvature").iterdir() if (path / "__init__.py").is_file()}
    assert not {*LAYERS, *rooms} - listed


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_layers_before(path):
    layer = layer_of(path)
    parts = ("marquis", *path.relative_to(PACKAGE).with_suffix("").parts)
    wrong = violations(layer, imported_layers(path.read_text(), parts))
    assert not wrong, f"{path.relative_to(PACKAGE)} is in layer {layer!r} and must not import {wrong}"


@pytest.mark.parametrize("path", engine_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_rooms_of_the_engine_before(path):
    layer = engine_layer_of(path)
    parts = ("marquis", *path.relative_to(PACKAGE).with_suffix("").parts)
    imported = imported_layers(path.read_text(), parts, ("marquis", "curvature"))
    wrong = violations(layer, imported, CURVATURE_LAYERS)
    assert not wrong, f"{path.relative_to(PACKAGE)} is in room {layer!r} of curvature and must not import {wrong}"


@pytest.mark.parametrize(
    ("layer", "source", "wrong"),
    [
        ("ops", "from marquis.curvature.graph.network import Step", []),
        ("graph", "from marquis.curvature.ops import linear", ["ops"]),
        ("planning", "def f():\n    from marquis.curvature import ggn", ["ggn"]),
        ("backward", "from ..squared.mixed import mixed_pass", ["squared"]),
        ("backward", "from . import walk", []),
        ("squared", "import marquis.curvature", ["the whole package"]),
        ("graph", "from marquis.errors import DataError", []),
    ],
)
def test_the_check_of_the_engine_itself(layer, source, wrong):
    imported = imported_layers(source, ("marquis", "curvature", layer, "somewhere"), ("marquis", "curvature"))
    assert violations(layer, imported, CURVATURE_LAYERS) == wrong


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
