"""The command line: quick to answer, and every deliberate error is one line and exit code 2."""

from __future__ import annotations

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer

import marquis
from marquis.cli import main
from marquis.cli.app import GROUPS
from marquis.errors import MarquisError, MemoryBudgetError, StorageError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marquis", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def with_commands(monkeypatch):
    """Mount a group of commands that fail in the ways to be told apart."""
    group = typer.Typer()

    @group.command()
    def refuse() -> None:
        raise MemoryBudgetError("the full matrix needs 3 GB\n    try structure='kronecker'")

    @group.command()
    def interrupt() -> None:
        raise KeyboardInterrupt

    @group.command()
    def bug() -> None:
        raise ZeroDivisionError("a bug")

    @group.command()
    def fine() -> None:
        typer.echo("done")

    monkeypatch.setitem(sys.modules, "marquis_test_commands", SimpleNamespace(app=group))  # type: ignore
    monkeypatch.setitem(GROUPS, "try", ("marquis_test_commands", "Commands that fail."))


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0  # type: ignore


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"marquis {marquis.__version__}\n")


def test_help_names_every_group():
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout and summary in done.stdout for name, (_, summary) in GROUPS.items())


def test_help_takes_less_than_a_second_of_cpu_time():
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    assert run("--help").returncode == 0
    assert spent() - before < 1.0


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom marquis.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split("LOADED")[1].split()
    heavy = {"torch", "numpy", "lightning", "matplotlib", "sklearn", "pandas", "fastapi"}
    assert not heavy & set(loaded)
    assert not {module for module, _ in GROUPS.values()} & set(loaded)


def test_our_errors_are_one_line_and_exit_code_two(with_commands, capsys):
    assert leave("try", "refuse") == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "marquis: error: the full matrix needs 3 GB try structure='kronecker'\n")


def test_ctrl_c_is_130(with_commands):
    assert leave("try", "interrupt") == 130


def test_bugs_are_not_dressed_up(with_commands):
    with pytest.raises(ZeroDivisionError):
        main(["try", "bug"])


def test_success_is_zero(with_commands, capsys):
    assert leave("try", "fine") == 0
    assert capsys.readouterr().out == "done\n"


def test_unknown_command_and_no_command_are_wrong_usage():
    assert run("nonsense").returncode == 2
    assert run().returncode == 2


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_group_loads(group):
    done = run(group, "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", [MarquisError, *MarquisError.__subclasses__()])
def test_every_error_of_ours_is_told_in_one_line(error, monkeypatch, capsys):
    group = typer.Typer()

    @group.command()
    def fail() -> None:
        raise error("what, where, what to do")

    monkeypatch.setitem(sys.modules, "marquis_test_commands", SimpleNamespace(app=group))  # type: ignore
    monkeypatch.setitem(GROUPS, "try", ("marquis_test_commands", "A command that fails."))
    assert leave("try") == (1 if error is StorageError else 2)
    assert capsys.readouterr().err == "marquis: error: what, where, what to do\n"


def test_warnings_are_one_line_of_the_command(capsys):
    """Not the line of code that raised them, which says nothing to users."""
    import warnings

    from marquis.cli.app import _show_warning

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("always")
        warnings.warn("new.csv: column 'city' has\nlevels that were not there", stacklevel=1)
        warnings.warn("slow", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "marquis: warning: new.csv: column 'city' has levels that were not there",
        "marquis: warning: RuntimeWarning: slow",
    ]
