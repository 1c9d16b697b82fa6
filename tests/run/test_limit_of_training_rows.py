"""`--limit` cuts the training rows and no others."""

from __future__ import annotations

from marquis.run.settings import TrainingSettings
from marquis.run.training_data import load_rows


def test_limit_leaves_test_rows_alone():
    few, every = TrainingSettings("ae", data="digits", limit=40), TrainingSettings("ae", data="digits")
    assert len(load_rows(few, "train")) == 40 < len(load_rows(every, "train"))
    assert len(load_rows(few, "test")) == len(load_rows(every, "test")) > 300
