"""Define the root command and its options, and turn errors into exit codes.

Exit codes: 0 all went well; 1 a `StorageError` (disk full, read-only, in use), printed in one line, or a bug of ours
(with a traceback, please report it); 2 wrong usage, such as an unknown option or a path that cannot exist, or any other
`MarquisError`, printed in one line; 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import errno
import inspect
import io
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from marquis import __version__
from marquis.errors import MarquisError, StorageError

STORAGE_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
_UsageError: Any = typer.BadParameter.__base__  # click's, or typer's own copy of it
IMPOSSIBLE_PATHS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL)
"""The system's numbers for names that are too long, folders below a file, and the like."""

# Command groups, each in its module, which exposes `app`; the sentence is what `--help` shows.
GROUPS = {
    "train": ("marquis.cli.train", "Train an autoencoder; resumable."),
    "evaluate": ("marquis.cli.evaluate", "Evaluate a trained model, and its outlier detection."),
    "sample": ("marquis.cli.sample", "Generate new data with a trained model."),
    "embed": ("marquis.cli.embed", "Encode data, with error bars."),
    "impute": ("marquis.cli.impute", "Impute missing values, with error bars."),
    "score": ("marquis.cli.score", "Compute outlier scores of data."),
    "explore": ("marquis.cli.explore", "Explore a trained model in the browser."),
    "reconstruct": ("marquis.cli.reconstruct", "Reconstruct an image from X-ray projections; resumable."),
    "data": ("marquis.cli.data", "List, fetch and check data sets."),
    "reproduce": ("marquis.cli.reproduce", "Run an experiment of the papers."),
}


class _Placeholder(TyperGroup):
    """Show a group in the help, and turn into the real group when it is about to run."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary, short_help=summary)
        self.module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Make the context of the real group, which names that one as its command."""
        command = typer.main.get_command(import_module(self.module).app)
        # docstrings have lines of their own length; `--help` fits paragraphs to the terminal
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or ""))
        return command.make_context(info_name, args, parent=parent, **extra)


class _LazyGroup(TyperGroup):
    """List and find the commands of `GROUPS` besides those that are registered."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in GROUPS:
            return _Placeholder(cmd_name, *GROUPS[cmd_name])
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="marquis",
    cls=_LazyGroup,
    help="Uncertainty in neural networks from the curvature of their loss.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"marquis {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", callback=_print_version, is_eager=True
    ),
    max_bytes: int | None = typer.Option(
        None, min=1, help="Largest size to which data may unpack in memory.", show_default="half of what is free"
    ),
) -> None:
    """Compute uncertainty in neural networks from the curvature of their loss."""
    if max_bytes is not None:
        from marquis.data.limits import allowing

        context.with_resource(allowing(max_bytes))  # for this command only, also where one process runs several


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with an exit code.

    Args:
        arguments: The words after `marquis`; those of the process if omitted.

    Raises:
        SystemExit: Always; its code is described at the top of this module.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be UTF-8, and messages repeat them
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(args=arguments, prog_name="marquis", standalone_mode=False)
    except MarquisError as error:
        storage = isinstance(error, StorageError) and error.errno not in IMPOSSIBLE_PATHS
        _leave(f"marquis: error: {_one_line(str(error))}", STORAGE_EXIT_CODE if storage else USAGE_EXIT_CODE)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no words at all: the help is the answer
            error.show()
            sys.exit(error.exit_code)
        path = "marquis" if error.ctx is None else error.ctx.command_path
        message = _one_line(error.format_message()).rstrip(".")
        _leave(f"marquis: error: {message}. See {path} --help.", USAGE_EXIT_CODE)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED_EXIT_CODE
    if code == INTERRUPTED_EXIT_CODE:  # also what typer makes of Ctrl-C
        _leave("marquis: stopped", INTERRUPTED_EXIT_CODE)
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as one line of this command's, without the line of code that raised it."""
    kind = "" if issubclass(category, UserWarning | FutureWarning) else f"{category.__name__}: "
    print(f"marquis: warning: {kind}{_one_line(str(message))}", file=sys.stderr)


def _one_line(message: str) -> str:
    """Return a message in one line of printable characters, however it was laid out, for logs and terminals."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))


def _leave(message: str, code: int) -> NoReturn:
    """Print a message to standard error and exit."""
    print(message, file=sys.stderr)
    sys.exit(code)
