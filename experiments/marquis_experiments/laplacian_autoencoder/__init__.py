"""Experiments of the paper on Laplacian autoencoders (LAE: Miani et al., 2022), one folder per table or figure."""
