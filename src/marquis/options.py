"""Declare an option once: as a field of a settings dataclass, with its type, default and help text.

Constructors show these fields as keyword arguments (`takes_options`), `marquis train` shows them as command-line
options, and configuration files hold them under the same names.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, cast, get_type_hints

from marquis.errors import DataError

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def option(default: Any = MISSING, help: str = "", *, shown: str | None = None) -> Any:
    """Return a dataclass field that is an option.

    Args:
        default: The default value; none for an option that has to be passed.
        help: One sentence for docstrings and for `--help`.
        shown: What `--help` shows as the default, where that depends on other things.
    """
    return field(default=default, metadata={"help": help, "shown": shown})


@dataclass(frozen=True)
class Option:
    """Describe one option of a settings dataclass.

    Attributes:
        name: The field's name.
        type: Its type.
        default: Its default; `inspect.Parameter.empty` if there is none.
        help: One sentence.
        shown: What `--help` shows as the default; None for `default` itself.
    """

    name: str
    type: Any
    default: Any
    help: str
    shown: str | None


def options_of(settings: type) -> dict[str, Option]:
    """Return the options that a settings dataclass declares, by name, in their order."""
    types = get_type_hints(settings)
    return {
        entry.name: Option(
            entry.name,
            types[entry.name],
            inspect.Parameter.empty if entry.default is MISSING else entry.default,
            entry.metadata["help"],
            entry.metadata["shown"],
        )
        for entry in fields(settings)
        if "help" in entry.metadata
    }


def takes_options(settings: type) -> Callable[[Class], Class]:
    """Return a class decorator that shows the options of a settings dataclass in the place of `**options`.

    `inspect.signature`, `help` and notebooks then show every option with its type and default, and the class's
    docstring, which has to end with its `Args` section, lists their help texts. `__init__` still receives only the
    options that were passed. An argument with an option's name keeps its place and shows the option's default.
    """

    def decorate(cls: Class) -> Class:
        declared, shown = options_of(settings), []
        constructor = vars(cls)["__init__"]
        for argument in inspect.signature(constructor).parameters.values():
            if argument.kind is not inspect.Parameter.VAR_KEYWORD:
                known = declared.pop(argument.name, None)
                shown.append(argument if known is None else argument.replace(default=known.default))
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown += [inspect.Parameter(o.name, keyword, default=o.default, annotation=o.type) for o in declared.values()]
        constructor.__signature__ = inspect.Signature(shown)
        lines = [f"        {known.name}: {known.help}" for known in declared.values()]
        cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), *lines, ""])
        return cls

    return decorate


def inherits_options(cls: Class) -> Class:
    """Show the keyword-only arguments of the base class's constructor in the place of `**options`."""
    constructor, keyword = vars(cls)["__init__"], inspect.Parameter.KEYWORD_ONLY
    arguments = inspect.signature(constructor).parameters
    shown = [argument for argument in arguments.values() if argument.kind is not inspect.Parameter.VAR_KEYWORD]
    inherited = next(vars(parent)["__init__"] for parent in cls.__mro__[1:] if "__init__" in vars(parent))
    base = inspect.signature(inherited).parameters.values()
    shown += [argument for argument in base if argument.kind is keyword and argument.name not in arguments]
    constructor.__signature__ = inspect.Signature(shown)
    return cls


def rename_options(
    options: Mapping[str, Any], new_names: Mapping[str, str], owner: str, *, stacklevel: int = 5
) -> dict[str, Any]:
    """Return the options with deprecated names replaced, with a `DeprecationWarning` for each.

    Args:
        options: By name, as the user passed them; None stands for an option that was not passed.
        new_names: The present name for each deprecated one.
        owner: Whose options they are, for the message.
        stacklevel: As of `warnings.warn`; by default the caller of a constructor two calls away.

    Raises:
        DataError: An option was passed under both names.
    """
    renamed = dict(options)
    for old, new in new_names.items():
        if renamed.get(old) is not None:
            if renamed.get(new) is not None:
                raise DataError(f"{owner}: {old}= is the deprecated name of {new}=; pass {new}= only.")
            warn_renamed(f"{owner}: {old}=", f"{new}=", stacklevel=stacklevel)
            renamed[new] = renamed[old]
        renamed.pop(old, None)
    return renamed


def renamed_arguments(**new_names: str) -> Callable[[Function], Function]:
    """Return a decorator for functions that still accept deprecated names of arguments, with a `DeprecationWarning`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if options.keys() & new_names.keys():
                owner = function.__qualname__.removesuffix(".__init__")
                options = rename_options(options, new_names, owner, stacklevel=4)
            return function(*arguments, **options)

        return cast(Function, call)

    return decorate


def renamed_attributes(**new_names: str) -> Callable[[Class], Class]:
    """Return a decorator for classes that still have deprecated names of attributes, with a `DeprecationWarning`."""

    def decorate(cls: Class) -> Class:
        for old, new in new_names.items():

            def read(self: Any, old: str = old, new: str = new) -> Any:
                warn_renamed(f"{cls.__name__}.{old}", new)
                return getattr(self, new)

            setattr(cls, old, property(read, doc=f"Return `{new}`, by its deprecated name."))
        return cls

    return decorate


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that a name is deprecated."""
    warnings.warn(f"{old} is deprecated; write {new}.", DeprecationWarning, stacklevel=stacklevel)
