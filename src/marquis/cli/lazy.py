"""Command groups that are imported only when one of their commands runs.

Typer builds its whole tree of commands before it parses anything, so a plain `add_typer` would import every
command's module, and torch with it, just to print the help.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class _Placeholder(TyperGroup):
    """Show a group in the help, and turn into the real group when it is about to run."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary, short_help=summary)
        self.module = module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Make the context of the real group, which names that one as its command."""
        command = typer.main.get_command(import_module(self.module).app)
        return command.make_context(info_name, args, parent=parent, **extra)


def lazy_group(groups: Mapping[str, tuple[str, str]]) -> type[TyperGroup]:
    """Build the class of a command that also has these groups.

    Args:
        groups: For each name, the module that holds `app` and the sentence shown in the help.

    Returns:
        A class for `typer.Typer(cls=...)`.
    """

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *groups]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in groups:
                return _Placeholder(cmd_name, *groups[cmd_name])
            return super().get_command(ctx, cmd_name)

    return LazyGroup
