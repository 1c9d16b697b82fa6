"""`mask_input`: the encoder of a table sees which entries were observed, by default if it ever misses some."""

from __future__ import annotations

import numpy as np
import pytest

from marquis.errors import DataError
from marquis.sklearn import LaplacianAutoencoder

FAST = {"max_iter": 60, "samples": 8, "random_state": 0}


def telling_holes(seed=0, rows=200):
    """Two groups that differ in the first column; the second is noise, and observed in one of the groups only."""
    rng = np.random.default_rng(seed)
    group = np.arange(rows) % 2
    x = rng.normal(size=(rows, 3))
    x[:, 0] = 4.0 * group - 2 + 0.1 * rng.normal(size=rows)
    x[group == 1, 1] = np.nan
    return x, group


def test_what_is_missing_tells_something_if_the_encoder_sees_it():
    x, group = telling_holes()
    requested, _ = telling_holes(seed=1)
    requested[:, 0] = np.nan  # nothing but the mask tells the groups apart

    def accuracy(**options):
        filled = LaplacianAutoencoder(**FAST, **options).fit(x).impute(requested).mean[:, 0]
        return ((filled > 0) == (group == 1)).mean()

    assert accuracy() > 0.95
    assert accuracy(mask_input=False) < 0.8  # zero, the column's mean, may have been observed


def test_encoders_that_never_miss_anything_do_not_get_it_by_default():
    x, _ = telling_holes()
    complete = np.nan_to_num(x)

    def found(x, **options):
        model = LaplacianAutoencoder(2, max_iter=1, samples=2, random_state=0, **options).fit(x).model_
        return model.encoder.direct.in_features, model.missing

    assert found(x) == found(complete) == (6, "mask")  # entries are hidden in training
    assert found(x, mask_fraction=0.0) == (6, "mask") and found(complete, mask_fraction=0.0) == (3, True)
    assert found(x, mask_input=False) == (3, True) and found(complete, mask_input=True) == (6, "mask")
    with pytest.raises(DataError, match="mask_input='maybe'"):
        LaplacianAutoencoder(mask_input="maybe").fit(x)
