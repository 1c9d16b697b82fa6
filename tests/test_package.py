"""The package as a user meets it: light to import, complete in its promised names, one version everywhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import metadata, packages_distributions, requires, version
from pathlib import Path

import pytest

import marquis as mq

# Imported only behind a check or an extra: a parquet file without pyarrow is told what to install.
OPTIONAL = {"botorch", "gpytorch", "linear_operator", "huggingface_hub", "pyarrow", "pyod", "pytest"}
OPTIONAL |= {"fastapi", "starlette", "pydantic", "uvicorn", "python_multipart", "IPython"}  # marquis[explore]
HEAVY = ["torch", "numpy", "lightning", "matplotlib", "fastapi", "sklearn", "pandas", "PIL", "rich", "typer"]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy():
    loaded = run_python("import sys, marquis; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert "marquis" in loaded
    assert not set(HEAVY) & set(loaded)


def test_lightning_is_not_loaded_before_a_training_with_it():
    names = "mq.Laplace, mq.OnlineLaplace, mq.tasks.ood, mq.variational.MAP, mq.data.load, mq.evidence.train"
    loaded = run_python(f"import sys, marquis as mq, marquis.sklearn; {names}; print(*sys.modules)").split()
    assert "lightning" not in loaded and "pytorch_lightning" not in loaded


def test_the_heavy_check_can_fail():
    loaded = run_python("import sys, marquis; marquis.likelihoods; print(*sys.modules)").split()
    assert "torch" in loaded


@pytest.mark.parametrize("name", sorted(set(mq.__all__) - {"__version__"}))
def test_every_promised_name_resolves(name):
    value = getattr(mq, name)
    assert value is getattr(mq, name)
    assert name in dir(mq)


def test_table_of_homes_and_all_agree():
    assert set(mq._HOMES) | {"__version__"} == set(mq.__all__)


def test_type_checkers_see_the_same_names(repository):
    source = (repository / "src/marquis/__init__.py").read_text()
    block = source.split("if TYPE_CHECKING:")[1].split("__version__")[0]
    seen = set(re.findall(r"\b\w+\b", re.sub(r"from [\w.]+ import|#.*", "", block)))
    assert seen == set(mq._HOMES)


@pytest.mark.parametrize("names", ["curvature", "structures", "likelihoods", "data", "Gaussian"])
def test_any_name_may_come_first(names):
    run_python(f"import marquis as mq; mq.{names}")


def test_unknown_name_says_what_exists():
    with pytest.raises(AttributeError, match=r"no attribute 'Laplce'.*Gaussian"):
        mq.Laplce  # noqa: B018


def test_one_version_everywhere(repository):
    assert version("marquis") == mq.__version__
    assert f"## {mq.__version__}" in (repository / "CHANGELOG.md").read_text()
    assert f'version: "{mq.__version__}"' in (repository / "CITATION.cff").read_text()


def test_marked_as_typed():
    assert (Path(mq.__file__).parent / "py.typed").is_file()


def test_constraints_pin_every_dependency_exactly(repository):
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][\w.]*", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    needed = {re.split(r"[\[<>=; ]", text)[0].lower() for text in requires("marquis") or []} - {"marquis"}
    assert needed <= pinned
    assert "torch==2.13.0" in pins
    assert "torchvision" not in pinned


def test_only_declared_dependencies_are_imported(repository):
    needed = [text for text in requires("marquis") or [] if "extra ==" not in text]
    declared = {re.split(r"[\[<>=; ]", text)[0].lower() for text in needed}
    homes = packages_distributions()
    for path in (repository / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in {name.split(".")[0] for name in names}:
                if name in sys.stdlib_module_names or name in {"marquis", *OPTIONAL}:
                    continue
                known = {home.lower().replace("_", "-") for home in homes.get(name, [])}
                assert known & declared, f"{path.name} imports {name}, which pyproject.toml does not declare"


def test_no_registry_host_in_the_set_up_files(repository):
    for name in ["pyproject.toml", "constraints.txt", "Makefile", ".ci/run"]:
        assert "://" not in (repository / name).read_text(), name


def test_every_extra_that_is_advised_exists_and_is_listed(repository):
    block = (repository / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", block, re.MULTILINE))
    texts = [
        path for room in ("src", "docs") for path in (repository / room).rglob("*") if path.suffix in (".py", ".md")
    ]
    advised = [match for path in texts for match in re.findall(r"marquis\[([\w,]+)\]", path.read_text())]
    assert {name for names in advised for name in names.split(",")} <= extras
    table = (repository / "docs/installation.md").read_text().split("## Extras")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras


def test_python_bound():
    assert metadata("marquis")["Requires-Python"] == ">=3.10"
