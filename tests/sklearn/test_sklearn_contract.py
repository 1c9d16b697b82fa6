"""scikit-learn's own checks, all of them, on both estimators."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import marquis as mq
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder

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


OLD_NAMES = [
    (LaplacianAutoencoder, "latent_dim", "n_components", 3),
    (LaplacianAutoencoder, "hidden_sizes", "hidden_layer_sizes", (8,)),
    (LaplacianAutoencoder, "epochs", "max_iter", 5),
    (LaplacianAutoencoder, "lr", "learning_rate_init", 0.1),
    (LaplacianAutoencoder, "patience", "n_iter_no_change", 3),
    (LaplacianAutoencoder, "hide", "mask_fraction", 0.1),
    (LaplacianAutoencoder, "temperature", "posterior_temperature", 0.5),
    (LaplaceClassifier, "hidden_sizes", "hidden_layer_sizes", (8,)),
    (LaplaceRegressor, "epochs", "max_iter", 5),
    (LaplaceClassifier, "lr", "learning_rate_init", 0.1),
]


@pytest.mark.parametrize(("estimator", "old", "new", "value"), OLD_NAMES)
def test_old_names_of_parameters(estimator, old, new, value):
    with pytest.warns(DeprecationWarning, match=f"{old}= is deprecated; write {new}="):
        made = estimator(**{old: value})
    assert made.get_params()[new] == value and old not in made.get_params()
    assert old not in inspect.signature(estimator).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clone(made).get_params()[new] == value
    with pytest.raises(mq.DataError, match=f"pass {new}= only"):
        estimator(**{old: value, new: value})
    with pytest.raises(TypeError, match="unexpected"):
        estimator(nonsense=1)


def test_what_earlier_versions_pickled():
    """They had other names of parameters and of an attribute."""
    model = LaplacianAutoencoder(3, max_iter=1, samples=2, random_state=0).fit(np.random.RandomState(0).rand(30, 4))
    old = {new: old for kind, old, new, _ in OLD_NAMES if kind is LaplacianAutoencoder} | {"missing_std_": "hole_std_"}
    state = {old.get(name, name): value for name, value in model.__getstate__().items()}
    again = LaplacianAutoencoder.__new__(LaplacianAutoencoder)
    again.__setstate__(state)
    assert again.get_params() == model.get_params()
    with pytest.warns(DeprecationWarning, match="missing_std_"):
        np.testing.assert_array_equal(again.hole_std_, model.missing_std_)
