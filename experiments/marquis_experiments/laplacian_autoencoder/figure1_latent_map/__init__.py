"""Latent codes over the standard deviation of the decoder (LAE Figure 1)."""
