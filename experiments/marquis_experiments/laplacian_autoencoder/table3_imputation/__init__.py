"""Imputation of half an image, and generation from nothing (LAE Table 3, Figure 11)."""
