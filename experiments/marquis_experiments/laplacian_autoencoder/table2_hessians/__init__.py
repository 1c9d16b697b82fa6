"""Curvature approximations of Laplacian autoencoders, after and during training (LAE Table 2, Figure 8)."""
