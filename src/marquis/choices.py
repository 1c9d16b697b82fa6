"""Read names that users type, such as `structure="kron"`, by one function everywhere.

British and American spellings, the field's short names, hyphens, underscores and capitals all mean the same; a name
that is not known gets an error with the nearest one and the list of all.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeVar

from marquis.errors import MarquisError, UnsupportedOperationError

Name = TypeVar("Name", bound=str)

SYNONYMS: tuple[frozenset[str], ...] = tuple(
    frozenset(group.split())
    for group in (
        "linearised linearized glm",
        "linearisedsamples linearizedsamples glmsamples",
        "linearisation linearization",
        "learnt learned",
        "normalised normalized",
        "kronecker kron",
        "diagonal diag",
        "categorical classification",
        "gaussian regression",
        "convolutional conv",
    )
)
"""Names with one meaning, in lower case and without separators."""


def match_choice(value: object, allowed: Iterable[Name]) -> Name | None:
    """Return the allowed name that `value` stands for, or None when it is another name or not a string."""
    if not isinstance(value, str):
        return None
    allowed = tuple(allowed)
    for name in allowed:  # as written comes first
        if name == value:
            return name
    meanings = _spellings(value)
    return next((name for name in allowed if _plain(name) in meanings), None)


def choose(
    what: str,
    value: object,
    allowed: Iterable[Name],
    *,
    error: type[MarquisError] = UnsupportedOperationError,
    hint: str = "",
) -> Name:
    """Return the allowed name that a string typed by a user stands for.

    Args:
        what: The argument's name (`"structure"`), or words for the message (`"data set"`, `"--method"`).
        value: What the user passed.
        allowed: Names as the package writes them.
        error: The type of the error to raise.
        hint: The end of the message: what else is accepted, as a full sentence.

    Raises:
        MarquisError: Of type `error`, when `value` is not a string or not one of these names; the message suggests the
            nearest name and lists all of them.
    """
    allowed = tuple(allowed)
    name = match_choice(value, allowed)
    if name is not None:
        return name
    subject = f"{what}={value!r}" if what.isidentifier() else f"{what} {value!r}"
    if isinstance(value, str):
        spellings = {spelling: name for name in allowed for spelling in _spellings(name)}
        close = difflib.get_close_matches(_plain(value), spellings, n=1)
        problem = "is not known." + (f" Did you mean {spellings[close[0]]!r}?" if close else "")
    else:
        problem = f"is of type {type(value).__name__}, not a string."
    message = f"{subject} {problem} Choose one of {', '.join(map(repr, allowed))}. {hint}"
    raise error(message.rstrip())


def _plain(name: str) -> str:
    """Return the name in lower case without hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]+", "", name.lower())


def _spellings(name: str) -> frozenset[str]:
    """Return every plain spelling that means the same as `name`."""
    plain = _plain(name)
    return next((group for group in SYNONYMS if plain in group), frozenset((plain,)))
