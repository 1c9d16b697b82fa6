"""The linearised Laplace approximation: error bars, evidence, and predictions away from the data."""
