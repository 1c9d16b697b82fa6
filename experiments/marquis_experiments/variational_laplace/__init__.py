"""Variational Laplace for Bayesian neural networks (VL)."""
