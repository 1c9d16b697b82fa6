"""Evidence at the network's weights against evidence of the linear model (Antorán et al. 2022)."""
