"""scikit-learn's own checks, all of them, on both estimators."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from marquis.sklearn import LaplaceClassifier, LaplaceRegressor

# Check by name -> why it cannot apply. Empty: all of them do.
NOT_APPLICABLE: dict[str, str] = {}


@parametrize_with_checks(
    [LaplaceClassifier(rounds=1, random_state=0), LaplaceRegressor(rounds=1, random_state=0)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [LaplaceClassifier(random_state=0), LaplaceRegressor(random_state=0)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_scikit_learn_contract_with_all_rounds(estimator, check):
    check(estimator)
