"""Fashion-MNIST classification with MNIST as outliers: MAP, sampled and linearised Laplace."""
