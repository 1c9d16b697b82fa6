"""The lock files: every package of the development environment with a hash, both builds of torch, inside the bounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINE = re.compile(r"^([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$")


def locked(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes by package; a line that is neither a comment nor pinned with a hash fails."""
    packages = {}
    for line in path.read_text().splitlines():
        if line.startswith("#") or line == "-r requirements.lock":
            continue
        match = LINE.match(line)
        assert match, f"{path.name}: {line}"
        packages[canonicalize_name(match[1])] = (match[2], match[3].split())
    return packages


def test_every_constraint_is_locked_at_its_version(repository):
    lock = locked(repository / "requirements.lock")
    pinned = [line.split("==") for line in (repository / "constraints.txt").read_text().splitlines() if "==" in line]
    assert {canonicalize_name(name): version for name, version in pinned}.items() <= {
        name: version for name, (version, _) in lock.items()
    }.items()


def test_both_builds_of_torch_are_listed_and_what_the_one_with_cuda_needs(repository):
    version, hashes = locked(repository / "requirements.lock")["torch"]
    assert version == "2.13.0" and len(set(hashes)) == 2
    cuda = locked(repository / "requirements-cuda.lock")
    assert {"triton", "cuda-toolkit", "nvidia-cublas", "nvidia-cudnn-cu13"} <= cuda.keys()
    assert not cuda.keys() & locked(repository / "requirements.lock").keys()


def test_locked_versions_are_inside_the_bounds_of_the_package(repository):
    tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
    with (repository / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lock = locked(repository / "requirements.lock")
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        name = canonicalize_name(requirement.name)
        if name != "marquis":
            assert requirement.specifier.contains(lock[name][0]), f"{requirement} against {lock[name][0]}"
