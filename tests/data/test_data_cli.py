"""`marquis data list | fetch | check`, as a user meets them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from marquis.cli import main
from marquis.cli.data import app
from marquis.data.registry import SETS
from marquis.errors import DataError

IMAGES = "train-images-idx3-ubyte.gz"


def run(*arguments: str):
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})


@pytest.fixture
def only_tiny(tiny, monkeypatch):
    for name in [name for name in SETS if name not in ("tiny", "digits")]:
        monkeypatch.delitem(SETS, name)
    return tiny


def test_list_names_every_set_and_where_it_is(tiny, tmp_path):
    tiny.write_to(tmp_path / "tiny")
    (tmp_path / "tiny" / IMAGES).unlink()
    result = run("list", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    assert all(name in result.stdout for name in SETS)
    unfolded = "".join(line.split("│")[3].strip() for line in result.stdout.splitlines() if "│" in line)
    assert f"{tmp_path}/tiny" in unfolded  # the test split; the training split is not whole
    assert "`marquis data fetch tiny`" in result.stdout.replace("\n", " ")


def test_fetch_downloads_checks_and_says_where(only_tiny, server, tmp_path):
    server.files = {name: only_tiny.packed(name) for name in only_tiny.arrays}
    only_tiny.at(server.address)
    result = run("fetch", "tiny", "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"tiny {s}: right ({tmp_path}/data/tiny)" for s in ("train", "test")]
    assert sorted(f.name for f in (tmp_path / "data" / "tiny").iterdir()) == sorted(only_tiny.arrays)
    run("fetch", "tiny", "--data-dir", str(tmp_path / "data"))
    assert len(server.requests) == 4  # not again


def test_fetch_what_cannot_be_downloaded():
    result = run("fetch", "celeba")
    assert isinstance(result.exception, DataError)
    assert "mmlab.ie.cuhk.edu.hk" in str(result.exception)
    assert run("fetch", "digits").exit_code == 0
    assert "data set 'nothing' is not known" in str(run("fetch", "nothing").exception)


def test_check_finds_the_damaged_file_and_still_checks_the_rest(only_tiny, tmp_path):
    only_tiny.write_to(tmp_path / "tiny")
    assert run("check", "--data-dir", str(tmp_path)).exit_code == 0
    (tmp_path / "tiny" / IMAGES).write_bytes(only_tiny.packed(IMAGES)[:30])
    result = run("check", "--data-dir", str(tmp_path))
    assert result.exit_code != 0 and isinstance(result.exception, DataError)
    assert f"{IMAGES} is truncated" in str(result.exception)
    assert result.stdout.splitlines() == [
        "digits all: right (scikit-learn)",
        f"tiny train: WRONG ({tmp_path}/tiny)",
        f"tiny test: right ({tmp_path}/tiny)",
    ]


def test_absence_is_an_error_only_for_a_set_that_was_named(only_tiny, tmp_path):
    result = run("check", "--data-dir", str(tmp_path))
    assert result.exit_code == 0 and "tiny train: absent" in result.stdout
    result = run("check", "tiny", "--data-dir", str(tmp_path))
    assert "tiny: split 'train' is absent; get it by `marquis data fetch tiny`" in str(result.exception)


def test_check_of_everything_in_the_real_folder(shared):
    result = run("check", "fashion-mnist", "--data-dir", str(shared))
    assert result.exit_code == 0, result.output


def test_from_the_main_command_errors_are_one_line(capsys, monkeypatch):
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    monkeypatch.setitem(SETS, "mnist", SETS["kmnist"])
    with pytest.raises(SystemExit) as leaving:
        main(["data", "fetch", "mnist"])
    error = capsys.readouterr().err
    assert leaving.value.code == 2
    assert error.count("\n") == 1 and "Three ways" in error
