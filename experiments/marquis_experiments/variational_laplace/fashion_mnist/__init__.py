"""Variational Laplace, mean-field VI and MAP on Fashion-MNIST (VL Tables 1 and 2, Figure 2)."""
