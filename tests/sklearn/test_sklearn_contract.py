"""scikit-learn's own checks, all of them, on both estimators with their default settings."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from marquis.sklearn import LaplaceClassifier, LaplaceRegressor

# Check by name -> why it cannot apply. Empty: all of them do.
NOT_APPLICABLE: dict[str, str] = {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [LaplaceClassifier(random_state=0), LaplaceRegressor(random_state=0)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
