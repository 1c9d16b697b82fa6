"""Variance of decoders where there are no data (LAE Figure 14)."""
