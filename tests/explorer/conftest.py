"""Real models for the explorer, trained once: digits (two kinds), a table, and what is served of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browsing import CHROMIUM, Visit, checked
from sklearn.datasets import load_wine

SMALL = ("--data", "digits", "--latent", 2, "--width", 0.25)
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def trained(folder: Path, *words: object) -> Path:
    from helpers.commands import exit_code

    assert exit_code("train", *words, "--epochs", 6, "--out", folder) == 0
    return folder


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("runs") / "digits", "lae", "--data", "digits", "--latent", 2, "--width", 0.25
    )


@pytest.fixture(scope="session")
def vae_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "vae", "vae", *SMALL)


@pytest.fixture(scope="session")
def wine_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wine data with missing values, and a first column whose name is a script."""
    table: pd.DataFrame = load_wine(as_frame=True).data.iloc[:, :5]  # pyright: ignore[reportAttributeAccessIssue]
    table = table.set_axis([HOSTILE, *table.columns[1:]], axis=1)
    table = table.mask(np.random.RandomState(0).rand(*table.shape) < 0.05)
    path = tmp_path_factory.mktemp("data") / "wine.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def wine_run(tmp_path_factory: pytest.TempPathFactory, wine_file: Path) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "wine", "lae", "--data", wine_file, "--latent", 3)


@pytest.fixture(scope="session")
def workspace(digits_run: Path):
    from marquis.explorer import Workspace

    return Workspace([digits_run], most=150, progress=False)


@pytest.fixture(scope="session")
def pair(digits_run: Path, vae_run: Path):
    from marquis.explorer import Workspace

    return Workspace([digits_run, vae_run], most=100, progress=False)


@pytest.fixture(scope="session")
def table(wine_run: Path):
    from marquis.explorer import Workspace

    return Workspace([wine_run], split="all", progress=False)


@pytest.fixture(scope="session")
def served(workspace) -> Iterator[str]:
    pytest.importorskip("fastapi")
    from marquis.explorer import Server

    with Server(workspace) as server:
        yield server.url


@pytest.fixture(scope="module")  # its event loop would disturb other tests
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture
def visit(browser, served) -> Iterator[Visit]:
    yield from checked(Visit(browser, served))


@pytest.fixture
def compared(browser, pair) -> Iterator[Visit]:
    from marquis.explorer import Server

    with Server(pair) as server:
        yield from checked(Visit(browser, server.url))


@pytest.fixture
def of_table(browser, table) -> Iterator[Visit]:
    from marquis.explorer import Server

    with Server(table) as server:
        yield from checked(Visit(browser, server.url))
