"""Treat curvature as a linear operator: products, solves, spectra, traces and log-determinants without a matrix."""
