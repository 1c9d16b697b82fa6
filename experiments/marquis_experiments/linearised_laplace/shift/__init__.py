"""Rotated MNIST: negative log-likelihood and calibration under distribution shift."""
