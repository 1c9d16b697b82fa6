"""`mask_input`: the encoder of a table sees which entries were observed, by default if some were missing in `fit`."""

from __future__ import annotations

import numpy as np
import pytest

from marquis.errors import DataError
from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer

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
    asked, _ = telling_holes(seed=1)
    asked[:, 0] = np.nan  # nothing but the mask tells the groups apart

    def accuracy(**options):
        filled = LaplacianAutoencoder(2, **FAST, **options).fit(x).impute(asked).mean[:, 0]
        return ((filled > 0) == (group == 1)).mean()

    assert accuracy() > 0.95
    assert accuracy(mask_input=False) < 0.8  # zero, the column's mean, may have been observed


def test_only_tables_with_holes_get_it_by_default():
    x, _ = telling_holes()
    complete = np.nan_to_num(x)

    def found(x, **options):
        model = LaplacianAutoencoder(2, max_iter=1, samples=2, random_state=0, **options).fit(x).model_
        return model.encoder[0].in_features, model.missing

    assert found(x) == (6, "mask") and found(complete) == (3, True)
    assert found(x, mask_input=False) == (3, True) and found(complete, mask_input=True) == (6, "mask")
    assert LaplacianImputer(LaplacianAutoencoder(2, max_iter=1, samples=2)).fit(x).estimator_.model_.missing == "mask"
    with pytest.raises(DataError, match="mask_input='maybe'"):
        LaplacianAutoencoder(mask_input="maybe").fit(x)


def test_rounds_take_the_first_answers_for_observations():
    """So they are off by default: here they say that the second column was observed, which it is in one group only."""
    x, _ = telling_holes()
    fitted = LaplacianAutoencoder(2, **FAST).fit(x)
    asked, group = telling_holes(seed=1)
    asked[:, 0] = np.nan
    by_hand = fitted.impute(asked, rounds=0).mean[:, 0]
    assert np.array_equal(by_hand, fitted.impute(asked).mean[:, 0])
    corrected = fitted.impute(asked, rounds=1).mean[:, 0]
    assert ((by_hand > 0) == (group == 1)).mean() > 0.95
    assert (corrected > 0).mean() < 0.1
