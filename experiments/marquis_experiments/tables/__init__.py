"""Outliers and missing values of tables, against the estimators of scikit-learn."""
