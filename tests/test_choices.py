"""Names that users type: every spelling means the same, and a wrong one gets a useful answer."""

from __future__ import annotations

import pytest

from marquis.choices import SYNONYMS, choose, match_choice
from marquis.errors import DataError, UnsupportedOperationError

STRUCTURES = ("diagonal", "kronecker", "block", "full", "lowrank")


@pytest.mark.parametrize(
    ("value", "allowed", "meant"),
    [
        ("kron", STRUCTURES, "kronecker"),
        ("Kronecker", STRUCTURES, "kronecker"),
        ("DIAG", STRUCTURES, "diagonal"),
        ("low-rank", STRUCTURES, "lowrank"),
        ("low_rank", STRUCTURES, "lowrank"),
        ("glm", ("linearised", "sampled"), "linearised"),
        ("linearized", ("linearised", "linearised-samples"), "linearised"),
        ("linearized_samples", ("linearised", "linearised-samples"), "linearised-samples"),
        ("linearised", ("linearized",), "linearized"),
        ("last_layer", ("last-layer",), "last-layer"),
        ("learned", ("learnt",), "learnt"),
        ("normalized", ("normalised",), "normalised"),
        ("classification", ("gaussian", "categorical"), "categorical"),
        ("regression", ("gaussian", "categorical"), "gaussian"),
        ("regression", ("gaussian", "regression"), "regression"),  # an exact match comes first
    ],
)
def test_spellings(value, allowed, meant):
    assert match_choice(value, allowed) == meant
    assert choose("anything", value, allowed) == meant


def test_a_name_belongs_to_one_group_of_synonyms():
    names = [name for group in SYNONYMS for name in group]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and name.isalpha() for name in names)


@pytest.mark.parametrize("value", ["", "kronekcer", "krn", "full block", "diagonall", None, 3, ["full"], b"full"])
def test_anything_else_is_an_error(value):
    assert match_choice(value, STRUCTURES) is None
    with pytest.raises(UnsupportedOperationError, match=r"Choose one of 'diagonal', 'kronecker'"):
        choose("structure", value, STRUCTURES)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("structure", "krno", STRUCTURES),
            {},
            "structure='krno' is not known. Did you mean 'kronecker'? Choose one of 'diagonal', 'kronecker', 'block', "
            "'full', 'lowrank'.",
        ),
        (
            ("data set", "zzz", ("mnist", "digits")),
            {"hint": "Or give a path."},
            "data set 'zzz' is not known. Choose one of 'mnist', 'digits'. Or give a path.",
        ),
        (("link", 3, ("mc",)), {}, "link=3 is of type int, not a string. Choose one of 'mc'."),
    ],
)
def test_message(arguments, options, message):
    with pytest.raises(DataError) as caught:
        choose(*arguments, error=DataError, **options)
    assert str(caught.value) == message
